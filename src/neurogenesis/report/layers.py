"""The widths of layers, during training and at its end: in neurons, or relative where there are many layers."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from .curves import line_and_cloud, mean_row
from .records import Run
from .sections import Configuration, Section, lost, panels
from .statistics import evenly, statistic
from .style import DEVIATION, FILL, HIGH, STROKE, Figure, Legend, Look, Row, layered, small_title, table, tips, toggled
from .trace import size_at

_FEW = 3  # layers that are drawn one by one, and variants that have room for their ends
_MOMENTS = 100  # of training at which means are taken, at most
_ALL_ROWS = 6000  # of the lines of a figure
_NEURONS = alt.Scale(zero=True, nice=True)


def widths(section: Section, look: Look) -> list[Figure]:
    """The figures of widths; none of networks that do not grow, or grow as they were told to."""
    configurations = [c for c in section.finished if all(run.trace.steps for run in c.finished)]
    grown = [c for c in configurations if not c.static]
    if all(c.runs[0].settings.get("schedule", "dynamic") != "dynamic" for c in grown):
        return []
    if len(section.layers) <= _FEW:
        return [_in_neurons(section, configurations, look)]
    return [_relative(section, grown), _relative_at_the_end(section, grown, look)]


def _in_neurons(section: Section, configurations: Sequence[Configuration], look: Look) -> Figure:
    legend, clock, parts = look.legend(configurations), _Clock(section), panels(configurations)
    # One run ends where its line does; many variants leave no room.
    roomy = len(parts) <= _FEW and sum(len(c.finished) for c in configurations) > 1
    width = 560 if roomy else 370 if len(parts) == 1 else 185
    height = 200 if len(parts) == 1 else 130
    moments = _moments(len(configurations) * len(section.layers))
    data: dict[str, list[Row]] = {}
    charts: list[alt.LayerChart] = []
    for label, some in parts:
        for layer in section.layers:
            having = [c for c in some if c.has(layer)]
            if not having:
                continue
            named = [part for part in (label, layer) if part]
            name, end = ", ".join(named), f"{', '.join(named)} at the end"
            data[name] = [row for c in having for row in _sizes(c, layer, clock, moments)]
            data[end] = _ends(having, layer)
            told = tips("strategy:N", f"{clock.unit}:Q", alt.Tooltip("mean:Q", title="neurons"), DEVIATION)
            x, y = clock.axis(width), alt.Y("mean:Q", title="neurons" if roomy or not charts else None, scale=_NEURONS)
            over = line_and_cloud(name, x, y, legend, told, owner=not charts, steps=True)
            title = small_title(name if roomy else named)
            charts.append(layered(*over, width=width, height=height, title=title))
            if roomy:
                marks, beside = _end_marks(end, legend), max(60, 24 * len(legend.names))
                charts.append(layered(*marks, width=beside, height=height, title=small_title("at the end")))
    spacing = {"row": 90, "column": 16 if roomy else 50}
    columns = 2 if roomy or len(parts) == 1 else 4 if len(section.layers) == 2 else 3
    return Figure(
        f"{section.name}-widths",
        f"Widths during {'and at the end of ' if roomy else ''}training",
        f"Neurons of each layer while training goes on{section.seeds}."
        + (" Right: where it ended, a dot per run and a bar at the mean." if roomy else ""),
        lost(section.configurations),
        alt.concat(*charts, columns=columns, bounds="flush", spacing=spacing).resolve_scale(y="shared"),
        legend.painted(data),
    )


def _end_marks(name: str, legend: Legend) -> list[alt.Chart]:
    x = legend.places.axis(alt.Axis(labels=False, ticks=False))
    y = alt.Y("mean:Q", title=None, axis=alt.Axis(labels=False, ticks=False), scale=_NEURONS)
    rows = legend.rows(name)
    dots = rows.transform_filter("isValid(datum.seed)").mark_point(filled=True, size=26, opacity=0.6)
    bars = rows.transform_filter("!isValid(datum.seed)").mark_tick(thickness=2.5, size=18)
    neurons = alt.Tooltip("mean:Q", title="neurons")
    return [
        dots.encode(x=x, y=y, fill=FILL, tooltip=tips("strategy:N", "seed:N", neurons)),
        bars.encode(x=x, y=y, fill=FILL, tooltip=tips("strategy:N", neurons, DEVIATION)),
    ]


def _relative(section: Section, grown: Sequence[Configuration]) -> Figure:
    clock, layers = _Clock(section), section.layers
    shown, moments = toggled("layer", layers), _moments(len(grown) * len(layers))
    scheme = alt.SchemeParams(name="viridis", extent=[0, 0.88])
    colour = alt.Color("layer:O", sort=layers, scale=alt.Scale(domain=layers, scheme=scheme))
    told = tips("layer:N", f"{clock.unit}:Q", alt.Tooltip("mean:Q", title="relative width"), DEVIATION)
    data: dict[str, list[Row]] = {"one": [{"one": 1}]}
    charts: list[alt.LayerChart] = []
    for c in grown:
        name = ", ".join(part for part in (c.name, c.label()) if part)
        data[name] = [
            row for layer in layers if c.has(layer) for row in _sizes(c, layer, clock, moments, relative=True)
        ]
        y = alt.Y("mean:Q", title="relative width" if len(charts) % 3 == 0 else None)
        line = table(name).transform_filter(shown).mark_line(interpolate="step-after", strokeWidth=1.7)
        line = line.encode(x=clock.axis(240), y=y, color=colour, tooltip=told)
        line = line if charts else line.add_params(shown)
        charts.append(layered(_one(), line, width=240, height=190, title=small_title(name)))
    return Figure(
        f"{section.name}-relative-widths",
        "Relative widths during training",
        f"Each layer's width relative to {section.standard}{', mean over seeds' if section.seeds else ''}, from the "
        "first layer (dark) to the last (light). The dashed line is 1.",
        lost([c for c in section.configurations if not c.static]),
        alt.concat(*charts, columns=3).resolve_scale(y="shared"),
        data,
    )


def _relative_at_the_end(section: Section, grown: Sequence[Configuration], look: Look) -> Figure:
    legend, layers, parts = look.legend(grown), section.layers, panels(grown)
    beside = alt.XOffset("strategy:N", scale=alt.Scale(domain=legend.names))
    told = tips("strategy:N", "layer:N", alt.Tooltip("mean:Q", title="relative width"), DEVIATION, "runs:Q")
    data: dict[str, list[Row]] = {"one": [{"one": 1}]}
    charts: list[alt.LayerChart] = []
    for label, some in parts:
        name = label or "widths"
        data[name] = [_relative_end(c, layer) for c in some for layer in layers if c.has(layer)]
        axis = alt.Axis(labelAngle=-30) if label == parts[-1][0] else alt.Axis(labels=False, ticks=False)
        x = alt.X("layer:N", title=None, scale=alt.Scale(domain=layers), axis=axis)
        rows = legend.rows(name).encode(x=x, xOffset=beside)
        bars = rows.transform_filter("isValid(datum.sd)").mark_rule(strokeWidth=1.5)
        bars = bars.encode(y=alt.Y("low:Q"), y2=HIGH, stroke=STROKE)
        dots = rows.mark_point(filled=True, size=50, opacity=1)
        dots = dots.encode(y=alt.Y("mean:Q", title="relative width"), tooltip=told)
        dots = dots.encode(fill=FILL) if charts else legend.owned(dots)
        height = 230 if len(parts) == 1 else 150
        charts.append(layered(_one(), bars, dots, width=800, height=height, title=small_title(label)))
    return Figure(
        f"{section.name}-relative-widths-at-the-end",
        "Relative widths at the end of training",
        f"Where networks grew: each layer's final width relative to {section.standard}"
        f"{', mean over seeds with one standard deviation' if section.seeds else ''}. The dashed line is 1.",
        lost([c for c in section.configurations if not c.static]),
        alt.vconcat(*charts).resolve_scale(y="shared"),
        legend.painted(data),
    )


class _Clock:
    """Gradient steps, or epochs where a step is not the same part of an epoch in all runs."""

    def __init__(self, section: Section) -> None:
        runs = [run for run in section.runs if run.result is not None and run.epochs]
        self.unit = "step" if len({round(run.trace.steps / len(run.epochs)) for run in runs}) == 1 else "epoch"
        title = "gradient step" if self.unit == "step" else "epoch"
        self._x = alt.X(f"{self.unit}:Q", title=title, scale=alt.Scale(nice=False))

    def axis(self, width: int) -> alt.X:
        """The axis of a chart so many pixels wide."""
        return self._x.axis(alt.Axis(tickCount=width // 55))

    def reads(self, run: Run, part: float) -> float:
        whole = run.trace.steps if self.unit == "step" else max(1, len(run.epochs))
        return round(part * whole, 2)


def _moments(lines: int) -> int:
    return max(30, min(_MOMENTS, _ALL_ROWS // lines))


def _sizes(c: Configuration, layer: str, clock: _Clock, moments: int, relative: bool = False) -> list[Row]:
    """Mean sizes where one changes, at some of these if they are many; of a stretch without change, its ends."""
    units = [run.result.unit(layer) if relative and run.result else 1 for run in c.finished]
    rows: list[Row] = []
    changes = sorted(
        {step / run.trace.steps for run in c.finished for step, _ in run.trace.changes[layer]} | {0.0, 1.0}
    )
    for part in [changes[index] for index in evenly(len(changes), 2 * moments)]:
        pairs = zip(c.finished, units, strict=True)
        found = statistic([size_at(run.trace.changes[layer], part * run.trace.steps) / unit for run, unit in pairs])
        assert found is not None
        row = mean_row(c, found.mean, found.sd) | ({"layer": layer} if relative else {})
        if len(rows) > 1 and all(row.items() <= earlier.items() for earlier in rows[-2:]):
            rows.pop()
        rows.append(row | {clock.unit: clock.reads(c.finished[0], part)})
    return rows


def _ends(configurations: Sequence[Configuration], layer: str) -> list[Row]:
    rows: list[Row] = []
    for c in configurations:
        found = c.statistic(lambda result: result.widths[layer])
        assert found is not None
        each = [(run.settings["seed"], run.result.widths[layer]) for run in c.runs if run.result is not None]
        rows += [{"strategy": c.name, "seed": seed, "mean": size} for seed, size in each]
        rows.append(mean_row(c, found.mean, found.sd))
    return rows


def _relative_end(c: Configuration, layer: str) -> Row:
    found = c.statistic(lambda result: result.relative(layer))
    assert found is not None
    return mean_row(c, found.mean, found.sd) | {"layer": layer, "runs": found.n}


def _one() -> alt.Chart:
    rule: alt.Chart = table("one").mark_rule(strokeDash=[4, 3], color="#999").encode(y=alt.Y("one:Q"))
    return rule
