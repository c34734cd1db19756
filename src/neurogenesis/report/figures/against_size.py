"""Accuracy and training time against size: means, ellipses of one standard deviation, and the Pareto front."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from ..numbers import NONE, ellipse, needs_log_axis, plus_minus, rounded, significant, time_unit
from ..sections import Section, missing_note
from .figure import Figure
from .style import FILL, MOST_SHAPES, STROKE, Drawing, Legend, Palette, tooltip, variant_shapes


@dataclass(frozen=True)
class _Axis:
    """A quantity on a linear or logarithmic axis. Means and ellipses are computed from positions on the axis."""

    name: str
    title: str
    log: bool = False

    def positions(self, values: pd.Series) -> pd.Series:
        return np.log10(values) if self.log else values

    def values(self, positions: pd.Series) -> pd.Series:
        return (10**positions if self.log else positions).map(rounded)

    @property
    def scale(self) -> alt.Scale:
        if self.log:
            return alt.Scale(type="log", nice=False, padding=14)
        return alt.Scale(zero=False, nice=False, padding=14)


def against_size(section: Section, palette: Palette) -> Figure | None:
    """Accuracy, time and size of each configuration; None if all have the same size."""
    results = section.results
    if results.groupby("configuration")["parameters"].mean().round().nunique() < 2:
        return None
    drawing = Drawing(palette.legend(section.finished))
    unit, length = time_unit(results["seconds"].max())
    results = results.assign(
        variant=results["variant"].replace("", NONE), size=results["parameters"], time=results["seconds"] / length
    )
    size = _Axis("size", "parameters", needs_log_axis(results["size"]))
    accuracy = _Axis("accuracy", f"{section.accuracy}, %")
    time = _Axis("time", f"training time, {unit}", needs_log_axis(results["time"]))
    axes = (size, accuracy, time)
    drawing.tables["means"] = means = _means(results, axes, unit)
    runs = results[["strategy", "variant", "seed"]]
    drawing.tables["runs"] = runs.assign(**{axis.name: results[axis.name].map(rounded) for axis in axes})
    variants = list(means["variant"].unique())
    identity = tooltip("strategy:N", *(["variant:N"] if len(variants) > 1 else []))
    marks: dict[str, Any] = {}
    if len(variants) <= MOST_SHAPES:
        marks = {"shape": variant_shapes(variants) if len(variants) > 1 else drawing.legend.shape}
    for axis in (accuracy, time):
        drawing.tables[f"{axis.name} ellipses"] = _ellipses(results, size, axis)
        drawing.add(*_layers(drawing, size, axis, identity, marks), width=360, height=290)
    return Figure(
        f"{section.name}-accuracy-and-time-against-size",
        f"{section.accuracy.capitalize()} and training time against size",
        _caption(section, size.log or time.log, means),
        missing_note(section.configurations),
        alt.hconcat(*drawing.charts, bounds="flush", spacing=80).resolve_scale(x="shared"),
        drawing.data,
        hint="Point at a mark to see its settings and numbers.",
    )


def _caption(section: Section, log: bool, means: pd.DataFrame) -> str:
    seeds = (
        "Large marks are means over seeds, small ones single runs. Ellipses show one standard deviation of both "
        f"quantities.{' On logarithmic axes, means and ellipses are those of the logarithms.' if log else ''} "
    )
    front = (
        "The dotted line is the Pareto front: no other configuration is both smaller and better. There is none if the "
        "smallest is also the best."
    )
    spots = means.groupby(["size", "accuracy"], sort=False)["strategy"].unique()
    same = [f"{', '.join(names[:-1])} and {names[-1]}" for names in map(list, spots) if len(names) > 1]
    overlap = f" At the same position on the left: {'; '.join(same)}." if same else ""
    return (seeds if section.several_seeds else "") + front + overlap


def _layers(
    drawing: Drawing, size: _Axis, axis: _Axis, identity: list[alt.Tooltip], marks: Mapping[str, Any]
) -> list[alt.Chart]:
    x = alt.X("size:Q", title=size.title, scale=size.scale, axis=alt.Axis(format="~s", tickCount=6))
    y = alt.Y(f"{axis.name}:Q", title=axis.title, scale=axis.scale)
    numbers = tooltip(
        "seed:N",
        alt.Tooltip("size:Q", title=size.title, format=","),
        alt.Tooltip(f"{axis.name}:Q", title=axis.title),
    )
    front = _front(drawing.legend, axis.name).mark_line(color="#222", strokeWidth=1.3, strokeDash=[2, 3])
    ellipses = drawing.rows(f"{axis.name} ellipses").mark_line(strokeWidth=1.3, opacity=0.8)
    runs = drawing.rows("runs").mark_point(filled=True, size=14, opacity=0.45)
    means = drawing.rows("means").mark_point(filled=True, size=90, opacity=1).encode(x=x, y=y, **marks)
    means = means.encode(tooltip=tooltip(*identity, "runs:Q", "accuracy, %:N", "parameters:N", "training time:N"))
    return [
        front.encode(x=x, y=y),
        ellipses.encode(x=x, y=y, stroke=STROKE, order=alt.Order("corner:Q"), detail=alt.Detail("of:N")),
        runs.encode(x=x, y=y, fill=FILL, tooltip=[*identity, *numbers]),
        drawing.in_colors(means),
    ]


def _front(legend: Legend, field: str) -> alt.Chart:
    """The shown means that are better than all smaller ones."""
    best, better, order = ("max", ">", "descending") if field == "accuracy" else ("min", "<", "ascending")
    sort: Any = [alt.SortField("size", "ascending"), alt.SortField(field, order)]  # type: ignore[arg-type]

    def window(operation: Any, source: str, name: str) -> alt.WindowFieldDef:
        return alt.WindowFieldDef(op=operation, field=source, **{"as": name})  # type: ignore[arg-type]

    # Vega-Lite has no window that ends before the current row: hence the lag.
    front: alt.Chart = (
        legend.rows("means")
        .transform_window(window=[window(best, field, "best")], frame=[None, 0], sort=sort)
        .transform_window(window=[window("lag", "best", "before")], sort=sort)
        .transform_filter(f"!isValid(datum.before) || datum.{field} {better} datum.before")
    )
    return front


def _means(results: pd.DataFrame, axes: tuple[_Axis, ...], unit: str) -> pd.DataFrame:
    positions = results.assign(**{axis.name: axis.positions(results[axis.name]) for axis in axes})
    groups = positions.groupby(["configuration", "strategy", "variant"])
    means = groups[[axis.name for axis in axes]].mean()
    seeds = results.groupby(["configuration", "strategy", "variant"])
    texts = {
        "runs": groups.size(),
        "accuracy, %": seeds["accuracy"].agg(plus_minus, ".2f"),
        "parameters": seeds["parameters"].agg(plus_minus),
        "training time": seeds["time"].agg(significant) + f" {unit}",
    }
    means = means.assign(**{axis.name: axis.values(means[axis.name]) for axis in axes}, **texts)
    return means.reset_index().drop(columns="configuration")


def _ellipses(results: pd.DataFrame, size: _Axis, axis: _Axis) -> pd.DataFrame:
    tables = []
    for (index, strategy), group in results.groupby(["configuration", "strategy"]):
        positions = pd.DataFrame({each.name: each.positions(group[each.name]) for each in (size, axis)})
        corners = ellipse(positions)
        values = {each.name: each.values(corners[each.name]) for each in (size, axis)}
        tables.append(pd.DataFrame({"strategy": strategy, "of": index, "corner": range(len(corners)), **values}))
    return pd.concat(tables)
