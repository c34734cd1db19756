"""Accuracy and training time against size: means, ellipses of one standard deviation, and the Pareto front."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from ...experiments.record import Result
from ..numbers import NONE, needs_log_axis, plus_minus, rounded, significant, time_unit
from ..sections import Configuration, Section, missing_note
from ..statistics import ellipse
from .figure import Figure, Row
from .style import FILL, MOST_SHAPES, STROKE, Legend, Palette, layered, tooltip, variant_shapes


@dataclass(frozen=True)
class _Axis:
    """A quantity on a linear or logarithmic axis. Means and ellipses are computed from positions on the axis."""

    name: str
    title: str
    value: Callable[[Result], float]
    log: bool = False

    def position(self, result: Result) -> float:
        return math.log10(self.value(result)) if self.log else self.value(result)

    def value_at(self, position: float) -> float | None:
        return rounded(10**position if self.log else position)

    @property
    def scale(self) -> alt.Scale:
        if self.log:
            return alt.Scale(type="log", nice=False, padding=14)
        return alt.Scale(zero=False, nice=False, padding=14)


def against_size(section: Section, palette: Palette) -> Figure | None:
    """Accuracy, time and size of each configuration; None if all have the same size."""
    configurations = section.finished
    if len({round(sum(map(_size, c.results)) / len(c.results)) for c in configurations}) < 2:
        return None
    legend = palette.legend(configurations)
    results = section.results
    unit, seconds = time_unit(max(result.train_seconds for result in results))
    size = _Axis("size", "parameters", _size, needs_log_axis(map(_size, results)))
    accuracy = _Axis("accuracy", f"{section.accuracy}, %", lambda result: 100 * result.accuracy)
    time = _Axis("time", f"training time, {unit}", lambda result: result.train_seconds / seconds)
    time = _Axis(time.name, time.title, time.value, needs_log_axis(map(time.value, results)))
    data: dict[str, list[Row]] = {
        "means": [_mean(c, [size, accuracy, time], unit, seconds) for c in configurations],
        "runs": [row for c in configurations for row in _runs(c, [size, accuracy, time])],
    }
    for axis in (accuracy, time):
        data[f"{axis.name} ellipses"] = _ellipses(configurations, size, axis)
    variants = list(dict.fromkeys(row["variant"] for row in data["means"]))
    identity = tooltip("strategy:N", *(["variant:N"] if len(variants) > 1 else []))
    marks: dict[str, Any] = {}
    if len(variants) <= MOST_SHAPES:
        marks = {"shape": variant_shapes(variants) if len(variants) > 1 else legend.shape}
    charts = [_panel(size, axis, legend, identity, marks, with_legend=axis is accuracy) for axis in (accuracy, time)]
    return Figure(
        f"{section.name}-accuracy-and-time-against-size",
        f"{section.accuracy.capitalize()} and training time against size",
        _caption(section, size.log or time.log, data["means"]),
        missing_note(section.configurations),
        alt.hconcat(*charts, bounds="flush", spacing=80).resolve_scale(x="shared"),
        legend.colored(data),
        hint="Point at a mark to see its settings and numbers.",
    )


def _caption(section: Section, log: bool, means: Sequence[Row]) -> str:
    seeds = (
        "Large marks are means over seeds, small ones single runs. Ellipses show one standard deviation of both "
        f"quantities.{' On logarithmic axes, means and ellipses are those of the logarithms.' if log else ''} "
    )
    front = (
        "The dotted line is the Pareto front: no other configuration is both smaller and better. There is none if the "
        "smallest is also the best."
    )
    spots: dict[tuple[float, float], dict[str, None]] = {}
    for row in means:
        spots.setdefault((row["size"], row["accuracy"]), {})[row["strategy"]] = None
    same = [" and ".join((", ".join([*names][:-1]), [*names][-1])) for names in spots.values() if len(names) > 1]
    overlap = f" At the same position on the left: {'; '.join(same)}." if same else ""
    return (seeds if section.several_seeds else "") + front + overlap


def _panel(
    size: _Axis, axis: _Axis, legend: Legend, identity: list[alt.Tooltip], marks: Mapping[str, Any], with_legend: bool
) -> alt.LayerChart:
    x = alt.X("size:Q", title=size.title, scale=size.scale, axis=alt.Axis(format="~s", tickCount=6))
    y = alt.Y(f"{axis.name}:Q", title=axis.title, scale=axis.scale)
    numbers = tooltip(
        "seed:N",
        alt.Tooltip("size:Q", title=size.title, format=","),
        alt.Tooltip(f"{axis.name}:Q", title=axis.title),
    )
    front = _front(legend, axis).mark_line(color="#222", strokeWidth=1.3, strokeDash=[2, 3])
    ellipses = legend.rows(f"{axis.name} ellipses").mark_line(strokeWidth=1.3, opacity=0.8)
    runs = legend.rows("runs").mark_point(filled=True, size=14, opacity=0.45)
    means = legend.rows("means").mark_point(filled=True, size=90, opacity=1).encode(x=x, y=y, **marks)
    means = means.encode(tooltip=tooltip(*identity, "runs:Q", "accuracy, %:N", "parameters:N", "training time:N"))
    return layered(
        front.encode(x=x, y=y),
        ellipses.encode(x=x, y=y, stroke=STROKE, order=alt.Order("corner:Q"), detail=alt.Detail("of:N")),
        runs.encode(x=x, y=y, fill=FILL, tooltip=[*identity, *numbers]),
        legend.attach(means) if with_legend else means.encode(fill=FILL),
        width=360,
        height=290,
    )


def _front(legend: Legend, axis: _Axis) -> alt.Chart:
    """Those of the shown means that are better than all smaller ones."""
    best, better, order = ("max", ">", "descending") if axis.name == "accuracy" else ("min", "<", "ascending")
    sort: Any = [alt.SortField("size", "ascending"), alt.SortField(axis.name, order)]  # type: ignore[arg-type]

    def window(operation: Any, field: str, name: str) -> alt.WindowFieldDef:
        return alt.WindowFieldDef(op=operation, field=field, **{"as": name})  # type: ignore[arg-type]

    # Vega-Lite has no window that ends before the current row: hence the lag.
    front: alt.Chart = (
        legend.rows("means")
        .transform_window(window=[window(best, axis.name, "best")], frame=[None, 0], sort=sort)
        .transform_window(window=[window("lag", "best", "before")], sort=sort)
        .transform_filter(f"!isValid(datum.before) || datum.{axis.name} {better} datum.before")
    )
    return front


def _mean(c: Configuration, axes: Sequence[_Axis], unit: str, seconds: float) -> Row:
    results = c.results
    return {
        **_identity(c),
        **{axis.name: axis.value_at(sum(map(axis.position, results)) / len(results)) for axis in axes},
        "runs": len(results),
        "accuracy, %": plus_minus(c.statistic(lambda result: 100 * result.accuracy), ".2f"),
        "parameters": plus_minus(c.statistic(_size)),
        "training time": f"{significant(c.statistic(lambda result: result.train_seconds), 1 / seconds)} {unit}",
    }


def _runs(c: Configuration, axes: Sequence[_Axis]) -> list[Row]:
    return [
        {**_identity(c), "seed": run.settings.seed, **{axis.name: rounded(axis.value(run.result)) for axis in axes}}
        for run in c.runs
        if run.result is not None
    ]


def _ellipses(configurations: Sequence[Configuration], size: _Axis, axis: _Axis) -> list[Row]:
    rows = []
    for index, c in enumerate(configurations):
        corners = ellipse(list(map(size.position, c.results)), list(map(axis.position, c.results)))
        rows += [
            {"strategy": c.name, "of": index, "corner": corner, "size": size.value_at(x), axis.name: axis.value_at(y)}
            for corner, (x, y) in enumerate(corners)
        ]
    return rows


def _identity(c: Configuration) -> Row:
    return {"strategy": c.name, "variant": c.label() or NONE}


def _size(result: Result) -> float:
    return result.parameters
