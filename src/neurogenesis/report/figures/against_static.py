"""Accuracy, or test loss, against parameters: the curve of static networks, and grown networks as points."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from ...experiments.settings import SHAPED
from ..against_static import AgainstStatic, Measure, Setting, StaticCurve, has_loss
from ..names import display_name, grown_by, is_shape
from ..numbers import plus_minus, rounded, signed
from ..sections import Configuration, missing_note
from .figure import Data, Figure
from .style import STROKE, Drawing, Legend, Palette, tooltip

_SAMPLES = 12  # of the curve, from one size to the next: straight lines of accuracy are bent on the axis of errors
_FAR_TICKS = (80, 50, 30, 20, 10, 7, 5, 3, 2, 1, 0.7, 0.5, 0.3, 0.2, 0.1)
_NEAR_TICKS = (90, 80, 70, 60, 50, 40, 30, 20, 15, 10, 7, 5, 4, 3, 2, 1.5, 1, 0.7, 0.5, 0.4, 0.3, 0.2, 0.1)
_STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_LEAST_ERROR = 0.05
_IN_SHORT = 2
_STATIC = display_name(SHAPED)
_PREFERRED = ("mnist", "digits")


@dataclass(frozen=True)
class _Measure:
    """What is drawn against parameters."""

    name: str
    title: str
    of: Measure
    place: Callable[[float], float]
    """The place of a value on the axis."""
    axis: Callable[[pd.DataFrame, str | None], alt.Y]
    form: str
    better: str
    """Where on the figure networks are better than the line."""
    unit: str = ""
    least: float = -math.inf
    """The lowest end of a bar, relative to the mean."""
    axes: str = "Both axes are logarithmic."
    alike: bool = False
    """Whether all settings of a preset have the same axis."""
    difference: bool = False
    """Whether tooltips tell the difference from the line."""


def against_static(comparison: AgainstStatic, palette: Palette) -> list[Figure]:
    """The usual setting of two presets, and all settings; of test losses, all settings."""
    finished = [setting for setting in comparison.settings if setting.static and setting.compared]
    settings = [setting for setting in finished if not setting.real]
    chosen = _in_short(settings)
    measure = _Measure(
        "accuracy", comparison.accuracy, "accuracy", _errors, _accuracy_axis, ".2f", "above", unit=", %", alike=True,
        axes="Both axes are logarithmic, the vertical one in errors.", difference=True,
    )  # fmt: skip
    name, title = f"{comparison.name}-accuracy", f"{comparison.accuracy.capitalize()} against parameters"
    figures = []
    if len(settings) > len(chosen) > 0:
        note = missing_note([c for setting in chosen for c in setting.section.configurations])
        figures.append(_figure(f"{name}-in-short", title, note, measure, chosen, palette, columns=2, size=(330, 260)))
    if settings:
        title, note = f"{title} in every setting", missing_note(comparison.configurations)
        figures.append(_figure(name, title, note, measure, settings, palette, columns=3, size=(235, 190)))
    with_losses = [setting for setting in finished if all(map(has_loss, (*setting.static, *setting.compared)))]
    if with_losses:
        measure = _Measure(
            "loss", "lowest test loss", "lowest_test_loss", rounded, _loss_axis, ".4f", "below", least=0.01
        )
        name, title = f"{comparison.name}-loss", "Lowest test loss against parameters"
        note = missing_note([c for setting in with_losses for c in setting.section.configurations])
        figures.append(_figure(name, title, note, measure, with_losses, palette, columns=4, size=(190, 150)))
    return figures


def _in_short(settings: Sequence[Setting]) -> list[Setting]:
    """The settings of the smaller figure: with the preset's learning rate and decay, of MNIST and digits if present."""
    found = [setting for setting in settings if setting.usual]
    counts = Counter(setting.preset for setting in found)
    usual = {setting.preset: setting for setting in found if counts[setting.preset] == 1}
    presets = [*(name for name in _PREFERRED if name in usual), *(name for name in usual if name not in _PREFERRED)]
    return [usual[name] for name in presets[:_IN_SHORT]]


def _figure(
    name: str,
    title: str,
    note: str,
    measure: _Measure,
    settings: Sequence[Setting],
    palette: Palette,
    columns: int,
    size: tuple[int, int],
) -> Figure:
    drawing = Drawing(palette.legend([c for setting in settings for c in (*setting.compared, *setting.static)]))
    data = drawing.tables
    for index, setting in enumerate(settings):
        curve = setting.curve("parameters", measure.of)
        assert curve is not None
        data[f"curve {index}"] = _curve(curve, measure)
        networks = [_network(setting, c, measure) for c in (*setting.static, *setting.compared)]
        data[f"networks {index}"] = pd.DataFrame(networks)
    for index, setting in enumerate(settings):
        same = [i for i, other in enumerate(settings)
                if other is setting or (measure.alike and other.preset == setting.preset)]  # fmt: skip
        alike = pd.concat([data[f"{kind} {i}"] for i in same for kind in ("curve", "networks")])
        first_column, last_row = index % columns == 0, index + columns >= len(settings)
        x = _parameters_axis(alike, "parameters" if last_row else None)
        y = measure.axis(alike, f"{measure.title}{measure.unit}" if first_column else None)
        layers = _layers(index, measure, drawing.legend, x, y, with_legend=index == 0)
        drawing.add(*layers, width=size[0], height=size[1], title=setting.title)
    return Figure(
        name,
        title,
        _caption(measure, settings),
        note,
        alt.concat(*drawing.charts, columns=columns, bounds="flush", spacing={"row": 62, "column": 50}),
        _styled(drawing),
        hint="Point at a mark to see its numbers.",
    )


def _caption(measure: _Measure, settings: Sequence[Setting]) -> str:
    shapes = sorted({c.name for setting in settings for c in setting.compared if is_shape(c.strategy)})
    several = any(setting.section.several_seeds for setting in settings)
    bars = (
        " The band and vertical bars are one standard error of the mean over seeds; horizontal bars go from the "
        "smallest to the largest network."
        if several
        else ""
    )
    hollow = f" Hollow, with dashed bars: {', '.join(shapes)}." if shapes else ""
    return (
        f"The line is the {measure.title} of static networks; points {measure.better} it are grown networks that are "
        f"better than static ones of their size.{bars}{hollow} {measure.axes}"
    )


def _layers(index: int, measure: _Measure, legend: Legend, x: alt.X, y: alt.Y, with_legend: bool) -> list[alt.Chart]:
    curve, networks = legend.rows(f"curve {index}"), legend.rows(f"networks {index}")
    low, high = alt.Y("low:Q", scale=y["scale"], axis=y["axis"], title=y["title"]), alt.Y2("high:Q")
    grey = legend.colors[_STATIC]
    band = curve.mark_area(opacity=0.22, clip=True, color=grey).encode(x=x, y=low, y2=high)
    line = curve.mark_line(strokeWidth=1.6, clip=True, color=grey).encode(x=x, y=y)
    bars = networks.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=1.3, clip=True)
    ranges = networks.transform_filter("datum.most > datum.least").mark_rule(strokeWidth=1.3, clip=True)
    least = alt.X("least:Q", scale=x["scale"], axis=x["axis"], title=x["title"])
    shapes = alt.FieldOneOfPredicate(field="strategy", oneOf=[name for name in legend.names if grown_by(name) != name])
    dashed = alt.condition(shapes, alt.value([2, 2]), alt.value([1, 0]))
    numbers = tooltip(
        "strategy:N", "widths:N", "seeds:Q", alt.Tooltip(f"{measure.name}:N", title=f"{measure.title}{measure.unit}"),
        alt.Tooltip("parameters:Q", format=",.0f"),
        *([alt.Tooltip("difference:N", title="minus static, points")] if measure.difference else []),
    )  # fmt: skip
    points = networks.mark_point(opacity=1, strokeWidth=1.5, clip=True).encode(
        x=x, y=y, shape=_shape(legend), size=alt.Size("area:Q", scale=None), tooltip=numbers
    )
    if with_legend:
        domain = alt.Scale(domain=legend.names, range=list(legend.colors.values()))
        fills = alt.Scale(domain=legend.names, range=[_fill(name, color) for name, color in legend.colors.items()])
        points = points.encode(
            stroke=alt.Stroke("strategy:N", title="strategy", scale=domain),
            fill=alt.Fill("strategy:N", title="strategy", scale=fills),
        ).add_params(legend.shown)
    else:
        points = points.encode(stroke=STROKE, fill=alt.Fill("fill:N", scale=None))
    return [
        band,
        line,
        bars.encode(x=x, y=low, y2=high, stroke=STROKE, strokeDash=dashed),
        ranges.encode(x=least, x2=alt.X2("most:Q"), y=y, stroke=STROKE, strokeDash=dashed),
        points,
    ]


def _shape(legend: Legend) -> alt.Shape:
    """The shapes of strategies; static networks are dots on their line."""
    scale = legend.shape["scale"]
    shapes = ["circle" if name == _STATIC else shape for name, shape in zip(scale.domain, scale.range, strict=True)]
    return alt.Shape("strategy:N", title="strategy", scale=alt.Scale(domain=scale.domain, range=shapes))


def _fill(name: str, color: str) -> str:
    return "#ffffff" if grown_by(name) != name else color


def _styled(drawing: Drawing) -> Data:
    """The tables with the columns of colors, for charts without the legend."""
    fills = {name: _fill(name, color) for name, color in drawing.legend.colors.items()}
    return {name: table.assign(fill=table["strategy"].map(fills)) for name, table in drawing.data.items()}


def _curve(curve: StaticCurve, measure: _Measure) -> pd.DataFrame:
    """The curve and its band, with enough points for a logarithmic axis."""
    sizes = len(curve.positions)
    indices = np.linspace(0, sizes - 1, (sizes - 1) * _SAMPLES + 1)
    rows = []
    for place in np.interp(indices, range(sizes), curve.positions):
        places = _places(measure, curve.at([place])[0], np.nan_to_num(curve.error_at([place])))
        rows.append({"strategy": _STATIC, "parameters": rounded(math.exp(place)), **places})
    return pd.DataFrame(rows)


def _network(setting: Setting, c: Configuration, measure: _Measure) -> dict[str, Any]:
    found, sizes, static = c.results[measure.of], c.results["parameters"], c.strategy == SHAPED
    difference = setting.difference(c, "parameters") if measure.difference and not static else None
    error = found.sem()
    bar = {} if static or math.isnan(error) else _places(measure, found.mean(), error)
    return {
        "strategy": c.name, "parameters": rounded(math.exp(np.log(sizes).mean())),
        "least": sizes.min(), "most": sizes.max(), "value": measure.place(found.mean()), **bar,
        measure.name: plus_minus(found, measure.form), "seeds": len(found), "area": 22 if static else 70,
        "widths": ", ".join(dict.fromkeys("-".join(map(str, sizes)) for sizes in c.widths.to_numpy().tolist())),
        "difference": signed(difference.mean, difference.error) if difference else "",
    }  # fmt: skip


def _places(measure: _Measure, mean: float, error: float) -> dict[str, float]:
    """The places of a mean and of the ends of its bar."""
    low = max(mean - error, measure.least * mean)
    return {"value": measure.place(mean), "low": measure.place(low), "high": measure.place(mean + error)}


def _errors(percent: float) -> float:
    """The percentage of samples that are not classified correctly."""
    return rounded(max(_LEAST_ERROR, 100 - percent))


def _parameters_axis(rows: pd.DataFrame, title: str | None) -> alt.X:
    domain = _padded(rows[["parameters", "least", "most"]], 0.05)
    axis = alt.Axis(format="~s", values=round_numbers(*domain))
    return alt.X("parameters:Q", title=title, scale=alt.Scale(type="log", domain=domain, nice=False), axis=axis)


def round_numbers(low: float, high: float) -> list[float]:
    """A few round numbers between two others.

    Example:
        >>> round_numbers(800, 40_000), round_numbers(900, 4000)
        ([1000.0, 3000.0, 10000.0, 30000.0], [1000.0, 2000.0])
    """
    steps = (1, 2, 5) if high < 10 * low else (1, 3) if high < 1000 * low else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [10.0**power * step for power in powers for step in steps if low <= 10.0**power * step <= high]


def _accuracy_axis(rows: pd.DataFrame, title: str | None) -> alt.Y:
    """An axis of accuracies at equal distances for equal ratios of errors."""
    domain = _domain(rows)
    top = domain[0] * (domain[1] / domain[0]) ** 0.04  # a label at the very top would move the title of the chart
    axis = alt.Axis(values=_error_ticks(top, domain[1]), labelExpr="format(100 - datum.value, '.4~r')")
    return alt.Y(
        "value:Q", title=title, axis=axis, scale=alt.Scale(type="log", domain=domain, nice=False, reverse=True)
    )


def _loss_axis(rows: pd.DataFrame, title: str | None) -> alt.Y:
    domain = _domain(rows)
    axis = alt.Axis(format="~g", values=_loss_ticks(*domain))
    return alt.Y("value:Q", title=title, axis=axis, scale=alt.Scale(type="log", domain=domain, nice=False))


def _loss_ticks(low: float, high: float) -> list[float]:
    """A few round numbers between two others, however near they are.

    Example:
        >>> _loss_ticks(0.04, 0.9), _loss_ticks(0.101, 0.118)
        ([0.1, 0.3], [0.105, 0.11, 0.115])
    """
    if high > 6 * low:
        return [round(number, 10) for number in round_numbers(low, high)]
    steps = (number * 10.0**power for power in range(-6, 6) for number in (1, 2, 5))
    step = next(step for step in steps if (high - low) / step <= 5)
    return [round(number * step, 10) for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _domain(rows: pd.DataFrame) -> list[float]:
    return _padded(rows[["value", "low", "high"]], 0.05)


def _error_ticks(low: float, high: float) -> list[float]:
    """A few percentages of errors between two others, whose accuracies are round numbers.

    Example:
        >>> _error_ticks(1.3, 42), _error_ticks(1.3, 5.2), _error_ticks(2.05, 2.9)
        ([30, 20, 10, 7, 5, 3, 2], [5, 4, 3, 2, 1.5], [2.8, 2.6, 2.4, 2.2])
    """
    if high > 2 * low:
        return [tick for tick in (_FAR_TICKS if high > 8 * low else _NEAR_TICKS) if low <= tick <= high]
    step = next(step for step in _STEPS if (high - low) / step <= 6)
    return [round(number * step, 6) for number in range(math.floor(high / step), math.ceil(low / step) - 1, -1)]


def _padded(values: pd.DataFrame, part: float) -> list[float]:
    """The range of values on a logarithmic axis, with some space at both ends."""
    low, high = math.log(values.min(axis=None)), math.log(values.max(axis=None))
    space = max(part * (high - low), 0.02)
    return [math.exp(low - space), math.exp(high + space)]
