"""The sizes of layers during and after training: in neurons, or relative to a reference if there are many layers."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import pandas as pd

from ..numbers import evenly
from ..sections import Configuration, Section, missing_note, panels
from .curves import BAND, bands, line_and_band
from .figure import Figure, stacked
from .style import (
    DEVIATION,
    FILL,
    HIGH,
    STROKE,
    Drawing,
    Legend,
    Palette,
    layered,
    legend_selection,
    small_title,
    table,
    tooltip,
)

_FEW = 3  # up to this many layers are drawn one by one, and variants leave room for charts of the end
_MOST_MOMENTS = 100  # per line
_MOST_ROWS = 6000  # per figure
_NEURONS = alt.Scale(zero=True, nice=True)


def widths(section: Section, palette: Palette) -> list[Figure]:
    """The figures of sizes; none if all networks are static, grow on fixed schedules, or have no widths."""
    configurations = [c for c in section.finished if all(run.steps.count for run in c.finished)]
    growing = [c for c in configurations if not c.static]
    if all(c.scheduled for c in growing) or not section.widths:
        return []
    if len(section.widths) <= _FEW:
        return [_in_neurons(section, configurations, palette)]
    return [_relative(section, growing), _relative_at_the_end(section, growing, palette)]


def _in_neurons(section: Section, configurations: Sequence[Configuration], palette: Palette) -> Figure:
    drawing, clock, parts = Drawing(palette.legend(configurations)), _Clock(section), panels(configurations)
    # The end of a single run is the end of its line, and many variants leave no room.
    with_ends = len(parts) <= _FEW and sum(len(c.finished) for c in configurations) > 1
    width = 560 if with_ends else 370 if len(parts) == 1 else 185
    height = 200 if len(parts) == 1 else 130
    moments = _moments(len(configurations) * len(section.widths))
    for label, some in parts:
        for layer in section.widths:
            having = [c for c in some if layer in c.widths]
            if not having:
                continue
            names = [part for part in (label, layer) if part]
            name = ", ".join(names)
            sizes = pd.concat([_sizes(c, layer, clock, moments) for c in having])
            counted = _counted(layer)
            numbers = tooltip("strategy:N", f"{clock.unit}:Q", alt.Tooltip("mean:Q", title=counted), DEVIATION)
            y = alt.Y("mean:Q", title=counted if with_ends or not drawing.charts else None, scale=_NEURONS)
            lines = line_and_band(drawing, name, sizes, clock.axis(width), y, numbers, stepped=True)
            drawing.add(*lines, width=width, height=height, title=name if with_ends else names)
            if with_ends:
                rows = drawing.rows(f"{name} at the end", pd.concat([_ends(c, layer) for c in having]))
                marks, beside = _end_marks(rows, drawing.legend, counted), max(60, 24 * len(drawing.legend.names))
                drawing.add(*marks, width=beside, height=height, title="at the end")
    spacing = {"row": 90, "column": 16 if with_ends else 50}
    what = "Number of blocks" if set(section.widths) == {"blocks"} else "Neurons of each layer"
    columns = 2 if with_ends or len(parts) == 1 else 4 if len(section.widths) == 2 else 3
    return Figure(
        f"{section.name}-widths",
        f"Widths during {'and at the end of ' if with_ends else ''}training",
        f"{what} during training{BAND if section.several_seeds else ''}."
        + (" Right: at the end of training, a dot for each run and a bar at the mean." if with_ends else ""),
        missing_note(section.configurations),
        alt.concat(*drawing.charts, columns=columns, bounds="flush", spacing=spacing).resolve_scale(y="shared"),
        drawing.data,
    )


def _counted(layer: str) -> str:
    """What the sizes of a layer count: where depth grows, the records have a size called blocks."""
    return "blocks" if layer == "blocks" else "neurons"


def _end_marks(rows: alt.Chart, legend: Legend, counted: str) -> list[alt.Chart]:
    x = legend.positions.axis(alt.Axis(labels=False, ticks=False))
    y = alt.Y("mean:Q", title=None, axis=alt.Axis(labels=False, ticks=False), scale=_NEURONS)
    dots = rows.transform_filter("isValid(datum.seed)").mark_point(filled=True, size=26, opacity=0.6)
    bars = rows.transform_filter("!isValid(datum.seed)").mark_tick(thickness=2.5, size=18)
    sizes = alt.Tooltip("mean:Q", title=counted)
    return [
        dots.encode(x=x, y=y, fill=FILL, tooltip=tooltip("strategy:N", "seed:N", sizes)),
        bars.encode(x=x, y=y, fill=FILL, tooltip=tooltip("strategy:N", sizes, DEVIATION)),
    ]


def _relative(section: Section, growing: Sequence[Configuration]) -> Figure:
    clock, layers = _Clock(section), section.widths
    shown, moments = legend_selection("layer", layers), _moments(len(growing) * len(layers))
    scheme = alt.SchemeParams(name="viridis", extent=[0, 0.88])
    color = alt.Color("layer:O", sort=layers, scale=alt.Scale(domain=layers, scheme=scheme))
    numbers = tooltip("layer:N", f"{clock.unit}:Q", alt.Tooltip("mean:Q", title="relative width"), DEVIATION)
    data = {"one": pd.DataFrame({"one": [1]})}
    charts: list[alt.LayerChart] = []
    for c in growing:
        name = ", ".join(part for part in (c.name, c.label()) if part)
        data[name] = stacked(_sizes(c, layer, clock, moments, relative=True) for layer in c.widths)
        y = alt.Y("mean:Q", title="relative width" if len(charts) % 3 == 0 else None)
        line = table(name).transform_filter(shown).mark_line(interpolate="step-after", strokeWidth=1.7)
        line = line.encode(x=clock.axis(240), y=y, color=color, tooltip=numbers)
        line = line if charts else line.add_params(shown)
        charts.append(layered(_line_at_one(), line, width=240, height=190, title=small_title(name)))
    return Figure(
        f"{section.name}-relative-widths",
        "Relative widths during training",
        f"The size of each layer relative to {section.reference}{', mean over seeds' if section.several_seeds else ''},"
        " from the first layer (dark) to the last (light). The dashed line is at 1.",
        missing_note([c for c in section.configurations if not c.static]),
        alt.concat(*charts, columns=3).resolve_scale(y="shared"),
        data,
    )


def _relative_at_the_end(section: Section, growing: Sequence[Configuration], palette: Palette) -> Figure:
    drawing, layers, parts = Drawing(palette.legend(growing)), section.widths, panels(growing)
    beside = alt.XOffset("strategy:N", scale=alt.Scale(domain=drawing.legend.names))
    numbers = tooltip("strategy:N", "layer:N", alt.Tooltip("mean:Q", title="relative width"), DEVIATION, "runs:Q")
    drawing.tables["one"] = pd.DataFrame({"one": [1]})
    for label, some in parts:
        axis = alt.Axis(labelAngle=-30) if label == parts[-1][0] else alt.Axis(labels=False, ticks=False)
        x = alt.X("layer:N", title=None, scale=alt.Scale(domain=layers), axis=axis)
        table = pd.concat([_relative_ends(c) for c in some])
        rows = drawing.rows(label or "widths", table).encode(x=x, xOffset=beside)
        bars = rows.transform_filter("isValid(datum.sd)").mark_rule(strokeWidth=1.5)
        bars = bars.encode(y=alt.Y("low:Q"), y2=HIGH, stroke=STROKE)
        dots = rows.mark_point(filled=True, size=50, opacity=1)
        dots = dots.encode(y=alt.Y("mean:Q", title="relative width"), tooltip=numbers)
        height = 230 if len(parts) == 1 else 150
        drawing.add(_line_at_one(), bars, drawing.in_colors(dots), width=800, height=height, title=label)
    return Figure(
        f"{section.name}-relative-widths-at-the-end",
        "Relative widths at the end of training",
        f"Where the networks have grown: the final size of each layer relative to {section.reference}"
        f"{', mean over seeds with one standard deviation' if section.several_seeds else ''}. The dashed line is at 1.",
        missing_note([c for c in section.configurations if not c.static]),
        alt.vconcat(*drawing.charts).resolve_scale(y="shared"),
        drawing.data,
    )


class _Clock:
    """The x axis: gradient steps, or epochs if the number of steps per epoch differs between runs."""

    def __init__(self, section: Section) -> None:
        runs = [run for run in section.runs if run.result is not None and run.epochs]
        self.unit = "step" if len({round(run.steps.count / run.epochs[-1].epoch) for run in runs}) == 1 else "epoch"
        title = "gradient step" if self.unit == "step" else "epoch"
        self._x = alt.X(f"{self.unit}:Q", title=title, scale=alt.Scale(nice=False))

    def axis(self, width: int) -> alt.X:
        """The axis of a chart of this width in pixels."""
        return self._x.axis(alt.Axis(tickCount=width // 55))

    def times(self, c: Configuration, fractions: pd.Index) -> pd.Index:
        """The steps or epochs at fractions of the first run."""
        run = c.finished[0]
        whole = run.steps.count if self.unit == "step" else run.epochs[-1].epoch if run.epochs else 1
        return (fractions * whole).map(lambda time: round(time, 2))


def _moments(lines: int) -> int:
    """The number of moments to draw of each line, by the number of lines in the figure."""
    return max(30, min(_MOST_MOMENTS, _MOST_ROWS // lines))


def _sizes(c: Configuration, layer: str, clock: _Clock, moments: int, relative: bool = False) -> pd.DataFrame:
    """Mean sizes at the moments when one changes; from stretches without a change, only the ends are kept."""
    runs = []
    for run, unit in zip(c.finished, c.reference_widths[layer], strict=True):
        sizes = run.steps.sizes[layer] / (unit if relative else 1)
        runs.append(sizes.set_axis(sizes.index / run.steps.count))
    seeds = pd.concat(runs, axis=1)
    seeds = seeds.reindex(seeds.index.union([0.0, 1.0])).ffill()
    seeds = seeds.iloc[evenly(len(seeds), 2 * moments)]
    table = bands(seeds, c)
    shown = table[["mean", "sd", "low", "high"]].fillna(-1.0)
    changes = (shown != shown.shift()) | (shown != shown.shift(-1))
    table = table.assign(**{clock.unit: clock.times(c, seeds.index)})[changes.any(axis=1)]
    return table.assign(layer=layer) if relative else table


def _ends(c: Configuration, layer: str) -> pd.DataFrame:
    """The size in each run, and the mean over runs, which has no seed."""
    each = pd.DataFrame({"strategy": c.name, "seed": c.results["seed"], "mean": c.widths[layer]})
    return pd.concat([each, bands(c.widths[[layer]].T, c)])


def _relative_ends(c: Configuration) -> pd.DataFrame:
    table = bands(c.relative_widths.T, c).rename_axis("layer").reset_index()
    return table.assign(runs=len(c.finished))


def _line_at_one() -> alt.Chart:
    rule: alt.Chart = table("one").mark_rule(strokeDash=[4, 3], color="#999").encode(y=alt.Y("one:Q"))
    return rule
