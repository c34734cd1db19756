"""Configurations against what was varied: schedules, settings, and features of generated data."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import altair as alt

from .records import Result
from .sections import Configuration, Section, heading, lost
from .style import (
    EACH,
    FILL,
    HIGH,
    STROKE,
    Figure,
    Legend,
    Look,
    Row,
    brief,
    is_wide,
    layered,
    significant,
    small_title,
    time_unit,
    tips,
)

Value = Callable[[Result], float]
SETTINGS = ("gamma", "batch", "learning_rate", "features")


def schedules(section: Section, look: Look) -> Figure | None:
    """Initializations on schedules that are fixed beforehand, against the static network of the same final size."""
    grown = [c for c in section.finished if c.runs[0].settings.get("schedule", "dynamic") != "dynamic" and not c.static]
    if not grown:
        return None
    static = [c for c in section.finished if c.strategy == "medium"]
    legend, places = look.legend([*grown, *static]), look.legend(grown).places
    unit, seconds = time_unit(max(run.result.train_seconds for c in grown for run in c.finished if run.result))
    measures: list[tuple[str, Value]] = [
        (f"{section.accuracy}, %", _accuracy),
        (f"training time, {unit}", lambda result: result.train_seconds / seconds),
    ]
    kinds = sorted({_schedule(c) for c in grown})
    data: dict[str, list[Row]] = {}
    rows = []
    for title, value in measures:
        columns = []
        static_name = f"static {title}"
        data[static_name] = _means(static, value)
        for kind in kinds:
            some = [c for c in grown if _schedule(c) == kind]
            name, runs_name = f"{kind} {title}", f"{kind} {title} runs"
            data[name], data[runs_name] = _means(some, value), _each(some, value)
            first, last = title == measures[0][0], title == measures[-1][0]
            x = places.axis(alt.Axis(labelAngle=-40) if last else alt.Axis(labels=False, ticks=False))
            scale = alt.Scale(zero=False)
            y = alt.Y("mean:Q", title=title if kind == kinds[0] else None, scale=scale)
            layers = [
                *_references(static_name, legend, scale),
                _each_run(runs_name, x, y, legend),
                *_dots(name, x, y, legend, owner=first and kind == kinds[0]),
            ]
            columns.append(layered(*layers, width=360, height=190, title=small_title(kind if first else "")))
        rows.append(alt.hconcat(*columns, bounds="flush", spacing=60).resolve_scale(y="shared"))
    return Figure(
        f"{section.name}-schedules",
        "Initializations on fixed schedules",
        "All these networks grow to the same size at the same steps; what differs is how new neurons are initialized."
        + (" Large marks are means with one standard deviation, small ones single runs." if section.seeds else "")
        + (" The grey line is Medium static, which has that size from the start." if static else ""),
        lost([c for c in section.configurations if c.strategy == "medium" or not c.static]),
        alt.vconcat(*rows),
        legend.painted(data),
    )


def sensitivity(section: Section, key: str, look: Look) -> Figure | None:
    """Accuracy and size against a setting; None where it does not vary within a strategy."""
    values = section.numbers(key)
    if len(values) < 2:
        return None
    varied = [c for c in section.finished if c.values.get(key) in values]
    static = [c for c in section.finished if c.static and key not in c.values]
    legend = look.legend([*varied, *static])
    groups = list(dict.fromkeys(c.label(but=[key]) for c in varied))
    measures: list[tuple[str, Value]] = [(f"{section.accuracy}, %", _accuracy), ("parameters", _size)]
    x = _spread(key, heading(key), values)
    data: dict[str, list[Row]] = {}
    charts: list[alt.LayerChart] = []
    for group in groups:
        some = [c for c in varied if c.label(but=[key]) == group]
        for title, value in measures:
            name, reference = f"{group} {title}", f"static {title}"
            data[name], data[reference] = _means(some, value, key), _means(static, value)
            ends = [row[end] for row in _means([*varied, *static], value) for end in ("low", "high")]
            log = title == "parameters" and is_wide(ends)
            scale = alt.Scale(
                type="log" if log else "linear", domain=[min(ends), max(ends)], nice=not log, padding=8 if log else 0
            )
            axis = alt.Axis(format="~s") if title == "parameters" else alt.Axis()
            y = alt.Y("mean:Q", title=title, scale=scale, axis=axis)
            layers = [*_references(reference, legend, scale), *_curve(name, x, y, legend, owner=not charts)]
            charts.append(layered(*layers, width=350, height=200, title=small_title(group)))
    return Figure(
        f"{section.name}-sensitivity-to-{key.replace('_', '-')}",
        f"Sensitivity to {_noun(key)}",
        f"{section.accuracy.capitalize()} and final size for each value of {_noun(key)}{_over(section)}."
        + (" Horizontal lines are static networks." if static else ""),
        lost(section.configurations),
        alt.concat(*charts, columns=2, bounds="flush", spacing={"row": 75, "column": 85}),
        legend.painted(data),
    )


def features(section: Section, look: Look) -> Figure | None:
    """Final widths against the number of independent features of generated data, per layer."""
    values = section.numbers("features")
    varied = [c for c in section.finished if c.values.get("features") in values and not c.static]
    if len(values) < 2 or not varied:
        return None
    legend = look.legend(varied)
    x = _spread("features", "independent features", values)
    data: dict[str, list[Row]] = {}
    charts: list[alt.LayerChart] = []
    for group in dict.fromkeys(c.label(but=["features"]) for c in varied):
        some = [c for c in varied if c.label(but=["features"]) == group]
        results = [run.result for c in some for run in c.finished if run.result is not None]
        for layer in [layer for layer in section.layers if all(layer in result.widths for result in results)]:
            name = ", ".join(part for part in (group, layer) if part)
            data[name] = _means(some, lambda result, layer=layer: result.widths[layer], "features")  # type: ignore[misc]
            y = alt.Y("mean:Q", title="final width" if not charts else None)
            layers = _curve(name, x, y, legend, owner=not charts)
            charts.append(layered(*layers, width=250, height=230, title=small_title(name)))
    return Figure(
        f"{section.name}-widths-against-features",
        "Final widths against independent features",
        f"How wide each layer is at the end of training when the data has more independent features{_over(section)}.",
        lost([c for c in section.configurations if not c.static]),
        alt.concat(*charts, columns=3).resolve_scale(y="shared"),
        legend.painted(data),
    )


def _over(section: Section) -> str:
    return ": means over seeds with one standard deviation" if section.seeds else ""


def _curve(name: str, x: alt.X, y: alt.Y, legend: Legend, owner: bool) -> list[alt.Chart]:
    line = legend.rows(name).mark_line().encode(x=x, y=y, stroke=STROKE, detail=EACH)
    return [line, *_dots(name, x, y, legend, owner)]


def _dots(name: str, x: alt.X, y: alt.Y, legend: Legend, owner: bool) -> list[alt.Chart]:
    """Means with their deviations."""
    rows = legend.rows(name)
    told = tips("strategy:N", "variant:N", "runs:Q", alt.Tooltip("told:N", title="mean ± sd"))
    bars = rows.mark_rule(strokeWidth=1.5).encode(x=x, y=alt.Y("low:Q", scale=y["scale"]), y2=HIGH, stroke=STROKE)
    dots = rows.mark_point(filled=True, size=55, opacity=1).encode(x=x, y=y, tooltip=told)
    return [bars, legend.owned(dots) if owner else dots.encode(fill=FILL)]


def _each_run(name: str, x: alt.X, y: alt.Y, legend: Legend) -> alt.Chart:
    rows = legend.rows(name).mark_point(filled=True, size=16, opacity=0.45)
    told = tips("strategy:N", "seed:N", alt.Tooltip("mean:Q", title="value"))
    drawn: alt.Chart = rows.encode(x=x, y=y, fill=FILL, tooltip=told)
    return drawn


def _references(name: str, legend: Legend, scale: alt.Scale) -> list[alt.Chart]:
    """Static networks, which have no place on the axis: lines across, with bands of one standard deviation."""
    rows = legend.rows(name)
    band = rows.mark_rect(opacity=0.15).encode(y=alt.Y("low:Q", scale=scale), y2=HIGH, fill=FILL)
    line = rows.mark_rule(strokeWidth=1.5).encode(y=alt.Y("mean:Q", scale=scale), stroke=STROKE)
    line = line.encode(tooltip=tips("strategy:N", "runs:Q", alt.Tooltip("told:N", title="mean ± sd")))
    return [band, line]


def _means(configurations: Sequence[Configuration], value: Value, key: str = "") -> list[Row]:
    rows = []
    for c in configurations:
        found = c.statistic(value)
        assert found is not None
        # A logarithmic axis has no place for zero.
        low = found.low if found.low > 0 else min(value(run.result) for run in c.finished if run.result is not None)
        rows.append(
            {"strategy": c.name, "variant": c.label(), "mean": brief(found.mean), "low": brief(low),
             "high": brief(found.high), "runs": found.n, "told": significant(found, digits=4)}
            | ({key: c.values[key]} if key else {})
        )  # fmt: skip
    return rows


def _each(configurations: Sequence[Configuration], value: Value) -> list[Row]:
    return [
        {"strategy": c.name, "seed": run.settings["seed"], "mean": brief(value(run.result))}
        for c in configurations
        for run in c.runs
        if run.result is not None
    ]


def _spread(key: str, title: str, values: Sequence[float]) -> alt.X:
    """Values of a setting at even distances, which is how they are chosen: halves, tenths, powers of two."""
    axis = alt.Axis(labelAngle=0, grid=True, labelExpr="datum.value")
    return alt.X(f"{key}:O", title=title, scale=alt.Scale(domain=list(values), type="point", padding=0.3), axis=axis)


def _schedule(configuration: Configuration) -> str:
    return str(configuration.runs[0].settings["schedule"])


def _noun(key: str) -> str:
    named = {"batch": "the batch size", "features": "the number of independent features", "gamma": "gamma"}
    return named.get(key, f"the {heading(key)}")


def _accuracy(result: Result) -> float:
    return 100 * result.accuracy


def _size(result: Result) -> float:
    return result.parameters
