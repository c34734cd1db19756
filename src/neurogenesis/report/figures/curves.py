"""Learning curves: accuracy and loss after each epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import altair as alt

from ...experiments.record import Epoch
from ..numbers import needs_log_axis, rounded
from ..sections import Configuration, Section, missing_note, panels
from ..statistics import evenly, statistic
from .figure import Figure, Row
from .style import (
    DEVIATION,
    FILL,
    HIGH,
    PER_STRATEGY,
    STATIC_DASHED,
    STROKE,
    Legend,
    Palette,
    layered,
    small_title,
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
    legend, parts = palette.legend(configurations), panels(configurations)
    data: dict[str, list[Row]] = {}
    charts: list[alt.LayerChart] = []
    single = len(parts) == 1
    size = {"width": 370, "height": 240} if single else {"width": 235, "height": 160}

    def draw(name: str, shown: Sequence[Configuration], value: Callable[[Epoch], float | None], title: str) -> None:
        data[name] = [row for c in shown for row in _rows(c, value)]
        log = value is _loss and bool(data[name]) and needs_log_axis(row["mean"] for row in data[name])
        if log:  # the axis ends at the smallest mean, and so must the bands
            least = min(row["mean"] for row in data[name])
            data[name] = [row | ({"low": max(row["low"], least)} if "low" in row else {}) for row in data[name]]
        scale = alt.Scale(type="log", nice=False) if log else alt.Scale(zero=False)
        y = alt.Y("mean:Q", title=title, scale=scale, axis=alt.Axis(tickCount=5) if log else alt.Axis())
        numbers = tooltip("strategy:N", "epoch:Q", alt.Tooltip("mean:Q", title=title), DEVIATION)
        x = alt.X("epoch:Q", title="epoch", axis=alt.Axis(tickMinStep=1), scale=alt.Scale(zero=False))
        layers = line_and_band(name, x, y, legend, numbers, with_legend=not charts)
        charts.append(layered(*layers, title=small_title("" if single else name), **size))

    for label, some in parts:
        draw(label or "accuracy", some, _percent, f"{section.accuracy}, %")
    if single:
        draw("loss", configurations, _loss, "training loss")
    return Figure(
        f"{section.name}-learning-curves",
        "Learning curves",
        f"{section.accuracy.capitalize()}{' and training loss' if single else ''} after each epoch"
        f"{BAND if section.several_seeds else ''}.",
        missing_note(section.configurations),
        alt.concat(*charts, columns=2 if single else 3).resolve_scale(y="independent" if single else "shared"),
        legend.colored(data),
    )


def line_and_band(
    name: str,
    x: alt.X,
    y: alt.Y,
    legend: Legend,
    numbers: list[alt.Tooltip],
    with_legend: bool,
    stepped: bool = False,
) -> list[alt.Chart]:
    """Means over seeds as a line, one standard deviation as a band around it."""
    rows = legend.rows(name)
    interpolation: Literal["step-after", "linear"] = "step-after" if stepped else "linear"
    band = rows.transform_filter("isValid(datum.sd)").mark_area(opacity=0.18, interpolate=interpolation)
    line = rows.mark_line(interpolate=interpolation)
    line = line.encode(x=x, y=y, detail=PER_STRATEGY, strokeDash=STATIC_DASHED, tooltip=numbers)
    return [
        band.encode(x=x, y=alt.Y("low:Q", scale=y["scale"]), y2=HIGH, fill=FILL, detail=PER_STRATEGY),
        legend.attach(line) if with_legend else line.encode(stroke=STROKE),
    ]


def mean_row(c: Configuration, mean: float, sd: float | None, maximum: float = math.inf) -> Row:
    """A mean over seeds with the ends of its band, which stay within 0 and the maximum."""
    row: Row = {"strategy": c.name, "mean": rounded(mean)}
    if sd is None:
        return row
    return row | {"sd": rounded(sd, 3), "low": rounded(max(0.0, mean - sd)), "high": rounded(min(maximum, mean + sd))}


def _rows(c: Configuration, value: Callable[[Epoch], float | None]) -> list[Row]:
    runs = [{epoch.epoch: value(epoch) for epoch in run.epochs} for run in c.finished]
    epochs = sorted(set.intersection(*(set(run) for run in runs)))
    maximum = 100.0 if value is _percent else math.inf
    rows = []
    for epoch in [epochs[index] for index in evenly(len(epochs), _MOST_EPOCHS)]:
        found = statistic([number for run in runs if (number := run[epoch]) is not None])
        if found is not None:
            rows.append(mean_row(c, found.mean, found.sd, maximum) | {"epoch": epoch})
    return rows


def _loss(epoch: Epoch) -> float | None:
    return epoch.loss


def _percent(epoch: Epoch) -> float | None:
    return None if epoch.accuracy is None else 100 * epoch.accuracy
