"""Accuracy and training time against size: means, ellipses of one standard deviation, and the Pareto front."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from .records import Result
from .sections import Configuration, Section, lost
from .statistics import ellipse, pareto
from .style import (
    FILL,
    MOST_SHAPES,
    STROKE,
    Figure,
    Legend,
    Look,
    Row,
    brief,
    is_wide,
    layered,
    plus_minus,
    shapes,
    significant,
    table,
    time_unit,
    tips,
)


@dataclass(frozen=True)
class _Axis:
    """A quantity, on a linear or logarithmic axis: ellipses are drawn where they are ellipses to the eye."""

    name: str
    title: str
    value: Callable[[Result], float]
    log: bool = False

    def place(self, result: Result) -> float:
        return math.log10(self.value(result)) if self.log else self.value(result)

    def at(self, place: float) -> float | None:
        return brief(10**place if self.log else place)

    @property
    def scale(self) -> alt.Scale:
        if self.log:
            return alt.Scale(type="log", nice=False, padding=14)
        return alt.Scale(zero=False, nice=False, padding=14)


def against_size(section: Section, look: Look) -> Figure | None:
    """Where each configuration ends; None where there are not two sizes to compare."""
    configurations = section.finished
    if len({round(sum(_sizes(c)) / len(_sizes(c))) for c in configurations}) < 2:
        return None
    legend = look.legend(configurations)
    results = [run.result for c in configurations for run in c.finished if run.result is not None]
    unit, seconds = time_unit(max(result.train_seconds for result in results))
    size = _Axis("size", "parameters", _size, is_wide(map(_size, results)))
    accuracy = _Axis("accuracy", f"{section.accuracy}, %", lambda result: 100 * result.accuracy)
    time = _Axis("time", f"training time, {unit}", lambda result: result.train_seconds / seconds)
    time = _Axis(time.name, time.title, time.value, is_wide(map(time.value, results)))
    data: dict[str, list[Row]] = {
        "means": [_mean(c, [size, accuracy, time], unit, seconds) for c in configurations],
        "runs": [row for c in configurations for row in _runs(c, [size, accuracy, time])],
    }
    for axis, better in ((accuracy, 1), (time, -1)):
        data[f"{axis.name} ellipses"] = _ellipses(configurations, size, axis)
        data[f"{axis.name} front"] = _front(data["means"], axis.name, better)
    variants = list(dict.fromkeys(row["variant"] for row in data["means"]))
    told = tips("strategy:N", *(["variant:N"] if len(variants) > 1 else []))
    marks: dict[str, Any] = {}
    if len(variants) <= MOST_SHAPES:
        marks = {"shape": shapes(variants) if len(variants) > 1 else legend.shape}
    charts = [_panel(size, axis, legend, told, marks, owner=axis is accuracy) for axis in (accuracy, time)]
    return Figure(
        f"{section.name}-accuracy-and-time-against-size",
        f"{section.accuracy.capitalize()} and training time against size",
        "Large marks are means over seeds, small ones single runs. Ellipses are one standard deviation of both "
        "quantities together. The dotted line is the Pareto front: no other configuration, hidden ones included, is "
        f"both smaller and better.{' On logarithmic axes means and ellipses are of logarithms.' if size.log else ''}",
        lost(section.configurations),
        alt.hconcat(*charts, bounds="flush", spacing=80),
        legend.painted(data),
    )


def _panel(
    size: _Axis, axis: _Axis, legend: Legend, told: list[alt.Tooltip], marks: Mapping[str, Any], owner: bool
) -> alt.LayerChart:
    x = alt.X("size:Q", title=size.title, scale=size.scale, axis=alt.Axis(format="~s", tickCount=6))
    y = alt.Y(f"{axis.name}:Q", title=axis.title, scale=axis.scale)
    each = tips(
        "seed:N",
        alt.Tooltip("size:Q", title=size.title, format=","),
        alt.Tooltip(f"{axis.name}:Q", title=axis.title),
    )
    front = table(f"{axis.name} front").mark_line(color="#222", strokeWidth=1.3, strokeDash=[2, 3])
    around = legend.rows(f"{axis.name} ellipses").mark_line(strokeWidth=1.3, opacity=0.8)
    runs = legend.rows("runs").mark_point(filled=True, size=14, opacity=0.45)
    means = legend.rows("means").mark_point(filled=True, size=90, opacity=1).encode(x=x, y=y, **marks)
    means = means.encode(tooltip=tips(*told, "runs:Q", "accuracy, %:N", "parameters:N", "training time:N"))
    return layered(
        front.encode(x=x, y=y),
        around.encode(x=x, y=y, stroke=STROKE, order=alt.Order("corner:Q"), detail=alt.Detail("of:N")),
        runs.encode(x=x, y=y, fill=FILL, tooltip=[*told, *each]),
        legend.owned(means) if owner else means.encode(fill=FILL),
        width=360,
        height=290,
    )


def _mean(c: Configuration, axes: Sequence[_Axis], unit: str, seconds: float) -> Row:
    results = [run.result for run in c.finished if run.result is not None]
    return {
        **_told(c),
        **{axis.name: axis.at(sum(map(axis.place, results)) / len(results)) for axis in axes},
        "runs": len(results),
        "accuracy, %": plus_minus(c.statistic(lambda result: 100 * result.accuracy), ".2f"),
        "parameters": plus_minus(c.statistic(_size)),
        "training time": f"{significant(c.statistic(lambda result: result.train_seconds), 1 / seconds)} {unit}",
    }


def _runs(c: Configuration, axes: Sequence[_Axis]) -> list[Row]:
    return [
        {**_told(c), "seed": run.settings["seed"], **{axis.name: brief(axis.value(run.result)) for axis in axes}}
        for run in c.runs
        if run.result is not None
    ]


def _ellipses(configurations: Sequence[Configuration], size: _Axis, axis: _Axis) -> list[Row]:
    rows = []
    for index, c in enumerate(configurations):
        results = [run.result for run in c.finished if run.result is not None]
        corners = ellipse(list(map(size.place, results)), list(map(axis.place, results)))
        rows += [
            {"strategy": c.name, "of": index, "corner": corner, "size": size.at(x), axis.name: axis.at(y)}
            for corner, (x, y) in enumerate(corners)
        ]
    return rows


def _front(means: Sequence[Row], name: str, better: int) -> list[Row]:
    front = pareto([(row["size"], better * row[name]) for row in means])
    return [{"size": means[index]["size"], name: means[index][name]} for index in front]


def _told(c: Configuration) -> Row:
    return {"strategy": c.name, "variant": c.label() or "—"}


def _size(result: Result) -> float:
    return result.parameters


def _sizes(c: Configuration) -> list[float]:
    return [_size(run.result) for run in c.finished if run.result is not None]
