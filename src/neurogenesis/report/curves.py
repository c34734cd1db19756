"""Learning curves: accuracy and loss after each epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import altair as alt

from .records import Epoch
from .sections import Configuration, Section, lost, panels
from .statistics import evenly, statistic
from .style import (
    DEVIATION,
    EACH,
    FILL,
    HIGH,
    STATIC_DASHED,
    STROKE,
    Figure,
    Legend,
    Look,
    Row,
    brief,
    is_wide,
    layered,
    small_title,
    tips,
)

_EPOCHS = 100  # that are drawn at most


def learning_curves(section: Section, look: Look) -> Figure | None:
    """Accuracy after each epoch, and the training loss where there is room for it."""
    configurations = [c for c in section.finished if all(len(run.epochs) > 1 for run in c.finished)]
    if not configurations:
        return None
    legend, parts = look.legend(configurations), panels(configurations)
    data: dict[str, list[Row]] = {}
    charts: list[alt.LayerChart] = []
    alone = len(parts) == 1
    size = {"width": 370, "height": 240} if alone else {"width": 235, "height": 160}

    def draw(name: str, of: Sequence[Configuration], value: Callable[[Epoch], float | None], title: str) -> None:
        data[name] = [row for c in of for row in _rows(c, value)]
        log = value is _loss and bool(data[name]) and is_wide(row["mean"] for row in data[name])
        if log:  # which has no place for what is below the least mean
            least = min(row["mean"] for row in data[name])
            data[name] = [row | ({"low": max(row["low"], least)} if "low" in row else {}) for row in data[name]]
        scale = alt.Scale(type="log", nice=False) if log else alt.Scale(zero=False)
        y = alt.Y("mean:Q", title=title, scale=scale, axis=alt.Axis(tickCount=5) if log else alt.Axis())
        told = tips("strategy:N", "epoch:Q", alt.Tooltip("mean:Q", title=title), DEVIATION)
        x = alt.X("epoch:Q", title="epoch", axis=alt.Axis(tickMinStep=1), scale=alt.Scale(zero=False))
        layers = line_and_cloud(name, x, y, legend, told, owner=not charts)
        charts.append(layered(*layers, title=small_title("" if alone else name), **size))

    for label, some in parts:
        draw(label or "accuracy", some, _percent, f"{section.accuracy}, %")
    if alone:
        draw("loss", configurations, _loss, "training loss")
    return Figure(
        f"{section.name}-learning-curves",
        "Learning curves",
        f"{section.accuracy.capitalize()}{' and training loss' if alone else ''} after each epoch{section.seeds}.",
        lost(section.configurations),
        alt.concat(*charts, columns=2 if alone else 3).resolve_scale(y="independent" if alone else "shared"),
        legend.painted(data),
    )


def line_and_cloud(
    name: str,
    x: alt.X,
    y: alt.Y,
    legend: Legend,
    told: list[alt.Tooltip],
    owner: bool,
    steps: bool = False,
) -> list[alt.Chart]:
    """Means over seeds as a line, one standard deviation as a cloud around it."""
    rows = legend.rows(name)
    between: Literal["step-after", "linear"] = "step-after" if steps else "linear"
    cloud = rows.transform_filter("isValid(datum.sd)").mark_area(opacity=0.18, interpolate=between)
    line = rows.mark_line(interpolate=between)
    line = line.encode(x=x, y=y, detail=EACH, strokeDash=STATIC_DASHED, tooltip=told)
    return [
        cloud.encode(x=x, y=alt.Y("low:Q", scale=y["scale"]), y2=HIGH, fill=FILL, detail=EACH),
        legend.owned(line) if owner else line.encode(stroke=STROKE),
    ]


def mean_row(c: Configuration, mean: float, sd: float | None, most: float = math.inf) -> Row:
    """A mean over seeds, with the ends of its deviation where there is one; nothing is above the most there can be."""
    row: Row = {"strategy": c.name, "mean": brief(mean)}
    if sd is None:
        return row
    # Nothing that is drawn can be negative.
    return row | {"sd": brief(sd, 3), "low": brief(max(0.0, mean - sd)), "high": brief(min(most, mean + sd))}


def _rows(c: Configuration, value: Callable[[Epoch], float | None]) -> list[Row]:
    runs = [{epoch.epoch: value(epoch) for epoch in run.epochs} for run in c.finished]
    epochs = sorted(set.intersection(*(set(run) for run in runs)))
    rows = []
    for epoch in [epochs[index] for index in evenly(len(epochs), _EPOCHS)]:
        found = statistic([number for run in runs if (number := run[epoch]) is not None])
        if found is not None:
            rows.append(mean_row(c, found.mean, found.sd, 100.0 if value is _percent else math.inf) | {"epoch": epoch})
    return rows


def _loss(epoch: Epoch) -> float | None:
    return epoch.loss


def _percent(epoch: Epoch) -> float | None:
    return None if epoch.accuracy is None else 100 * epoch.accuracy
