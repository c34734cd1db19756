"""Learning curves: accuracy and loss after each epoch."""

from __future__ import annotations

import math
from typing import Literal

import altair as alt
import pandas as pd

from ..numbers import evenly, needs_log_axis, rounded
from ..sections import Configuration, Section, missing_note, panels
from .figure import Figure
from .style import (
    DEVIATION,
    FILL,
    HIGH,
    PER_STRATEGY,
    STATIC_DASHED,
    STROKE,
    Drawing,
    Palette,
    tooltip,
)

_MOST_EPOCHS = 100  # per curve
BAND = ": mean over seeds, with a band of one standard deviation"
"""Caption of `line_and_band`."""


def learning_curves(section: Section, palette: Palette) -> Figure | None:
    """Accuracy after each epoch, and the training loss if there is room; None if all runs have a single epoch."""
    configurations = [c for c in section.finished if all(len(run.epochs) > 1 for run in c.finished)]
    if not configurations:
        return None
    drawing, parts = Drawing(palette.legend(configurations)), panels(configurations)
    single = len(parts) == 1
    size = {"width": 370, "height": 240} if single else {"width": 235, "height": 160}
    drawn = [(label or "accuracy", some, "accuracy", f"{section.accuracy}, %") for label, some in parts]
    if single:
        drawn.append(("loss", configurations, "loss", "training loss"))
    for name, some, field, title in drawn:
        table = pd.concat([_means(c, field) for c in some])
        log = field == "loss" and not table.empty and needs_log_axis(table["mean"])
        if log:  # the axis ends at the smallest mean, and so must the bands
            table["low"] = table["low"].clip(lower=table["mean"].min())
        scale = alt.Scale(type="log", nice=False) if log else alt.Scale(zero=False)
        y = alt.Y("mean:Q", title=title, scale=scale, axis=alt.Axis(tickCount=5) if log else alt.Axis())
        numbers = tooltip("strategy:N", "epoch:Q", alt.Tooltip("mean:Q", title=title), DEVIATION)
        x = alt.X("epoch:Q", title="epoch", axis=alt.Axis(tickMinStep=1), scale=alt.Scale(zero=False))
        drawing.add(*line_and_band(drawing, name, table, x, y, numbers), title="" if single else name, **size)
    return Figure(
        f"{section.name}-learning-curves",
        "Learning curves",
        f"{section.accuracy.capitalize()}{' and training loss' if single else ''} after each epoch"
        f"{BAND if section.several_seeds else ''}.",
        missing_note(section.configurations),
        alt.concat(*drawing.charts, columns=2 if single else 3).resolve_scale(y="independent" if single else "shared"),
        drawing.data,
    )


def line_and_band(
    drawing: Drawing,
    name: str,
    table: pd.DataFrame,
    x: alt.X,
    y: alt.Y,
    numbers: list[alt.Tooltip],
    stepped: bool = False,
) -> list[alt.Chart]:
    """Means over seeds as a line, one standard deviation as a band around it."""
    rows = drawing.rows(name, table)
    interpolation: Literal["step-after", "linear"] = "step-after" if stepped else "linear"
    band = rows.transform_filter("isValid(datum.sd)").mark_area(opacity=0.18, interpolate=interpolation)
    line = rows.mark_line(interpolate=interpolation)
    line = line.encode(x=x, y=y, detail=PER_STRATEGY, strokeDash=STATIC_DASHED, tooltip=numbers)
    return [
        band.encode(x=x, y=alt.Y("low:Q", scale=y["scale"]), y2=HIGH, fill=FILL, detail=PER_STRATEGY),
        drawing.in_colors(line, STROKE),
    ]


def bands(seeds: pd.DataFrame, c: Configuration, maximum: float = math.inf) -> pd.DataFrame:
    """Means over seeds, which are columns, with the ends of their bands; these stay within 0 and the maximum."""
    mean, sd = seeds.mean(axis=1), seeds.std(axis=1)
    return pd.DataFrame(
        {
            "strategy": c.name,
            "mean": mean.map(rounded),
            "sd": sd.map(lambda value: rounded(value, 3)),
            "low": (mean - sd).clip(lower=0.0).map(rounded),
            "high": (mean + sd).clip(upper=maximum).map(rounded),
        }
    )


def _means(c: Configuration, field: str) -> pd.DataFrame:
    """Means over runs of what all of them have recorded after the same epochs."""
    runs = [run.epoch_table.set_index("epoch")[field] for run in c.finished]
    seeds = pd.concat(runs, axis=1, join="inner").sort_index()
    seeds = seeds.iloc[evenly(len(seeds), _MOST_EPOCHS)].dropna(how="all")
    return bands(seeds, c, 100.0 if field == "accuracy" else math.inf).reset_index()
