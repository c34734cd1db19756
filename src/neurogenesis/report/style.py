"""What all figures have in common: colours, order and names of strategies, legends that hide, formats."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import altair as alt

from ..experiments.presets import STATIC
from .sections import ORDER, Configuration, display, rank
from .statistics import Statistic

Row = dict[str, Any]
Data = Mapping[str, Sequence[Row]]

# Okabe and Ito's, then of Tol's muted scheme, for any colour vision; static networks are grey, with dashed lines.
_COLOURS = {
    "north-select": "#0072B2", "north-select-least": "#332288", "north-pre": "#56B4E9", "north-random": "#009E73",
    "north-weight": "#E69F00", "north-integrated": "#CC79A7", "gradmax": "#D55E00", "firefly": "#882255",
    "nest": "#999933", "small": "#bdbdbd", "medium": "#8a8a8a", "big": "#4a4a4a",
}  # fmt: skip
_FURTHER = ("#44AA99", "#AA4499", "#DDCC77", "#117733", "#661100")
_SHAPES = (
    "circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "triangle-right", "triangle-left",
    "M0,-1L.23,-.32L.95,-.31L.38,.12L.59,.81L0,.4L-.59,.81L-.38,.12L-.95,-.31L-.23,-.32Z",  # a star
    "M.5,-.87L1,0L.5,.87L-.5,.87L-1,0L-.5,-.87Z",  # a hexagon
    "M-.6,-.9L0,-.3L.6,-.9L.9,-.6L.3,0L.9,.6L.6,.9L0,.3L-.6,.9L-.9,.6L-.3,0L-.9,-.6Z",  # an X
    "M-.9,-.9L.9,-.9L-.9,.9L.9,.9Z",  # an hourglass
)  # fmt: skip

_FONT = "Helvetica, Arial, sans-serif"
CONFIG: Row = {
    "font": _FONT,
    "background": "white",
    "numberFormat": ",.6~r",  # else the tick of an axis that has but one is rounded
    "axis": {"labelFontSize": 11, "titleFontSize": 12, "titleFontWeight": "normal", "gridColor": "#ececec",
             "domainColor": "#999", "tickColor": "#999", "labelColor": "#333", "titleColor": "#333",
             "labelFlush": False},
    "legend": {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "labelLimit": 190,
               "unselectedOpacity": 0.3, "symbolOpacity": 1},
    "title": {"fontSize": 14, "subtitleFontSize": 11, "anchor": "start", "offset": 12,
              "subtitlePadding": 5},
    "header": {"labelFontSize": 12, "titleFontSize": 12},
    "view": {"stroke": None},
    "line": {"strokeWidth": 2},
}  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """One of the runs that a figure can show, with its data."""

    name: str
    label: str
    about: str
    data: Data


@dataclass(frozen=True)
class Figure:
    """A chart with its named data, a sentence on how to read it, and a note on the runs it had to do without."""

    name: str
    title: str
    caption: str
    note: str
    chart: alt.TopLevelMixin
    data: Data = field(default_factory=dict)
    choices: Sequence[Choice] = ()
    hint: str = ""
    """What one can do with it on the page."""

    @cached_property
    def specification(self) -> Row:
        """The chart as Vega-Lite, without data."""
        specification: Row = self.chart.to_dict()
        specification.pop("$schema")
        return {**specification, "config": CONFIG}

    def titled(self, choice: Choice | None = None) -> Row:
        """The chart as Vega-Lite that stands alone: with data, title, caption and note."""
        title = f"{self.title}: {choice.label}" if choice else self.title
        told = [self.note, choice.about if choice else "", self.caption]
        subtitle = [line for text in told for line in textwrap.wrap(text, 150)]
        heading: Row = {"text": textwrap.wrap(title, 90), "subtitle": subtitle, "subtitleColor": "#555"}
        return {**self.specification, "title": heading, "datasets": choice.data if choice else self.data}


@dataclass(frozen=True)
class Look:
    """The strategies of a report in order, each with its colour."""

    colours: Mapping[str, str]  # by display name

    @classmethod
    def of(cls, strategies: Iterable[str]) -> Look:
        """Fixed colours for the strategies of the paper, further ones for others."""
        ordered = sorted(set(strategies), key=rank)
        own = [name for name in ordered if name not in _COLOURS]
        further = {name: _FURTHER[index % len(_FURTHER)] for index, name in enumerate(own)}
        return cls({display(name): _COLOURS.get(name) or further[name] for name in ordered})

    def legend(self, configurations: Sequence[Configuration]) -> Legend:
        """The legend of some configurations."""
        names = {configuration.name for configuration in configurations}
        return Legend({name: colour for name, colour in self.colours.items() if name in names})


@dataclass(frozen=True)
class Legend:
    """The strategies of a figure; a click on one hides or shows it."""

    colours: Mapping[str, str]

    @property
    def names(self) -> list[str]:
        return list(self.colours)

    @property
    def shown(self) -> alt.Parameter:
        return toggled("strategy", self.names)

    @property
    def shape(self) -> alt.Shape:
        """Shapes in addition to colours, the same ones in all figures."""
        known = [display(strategy) for strategy in (*ORDER, *STATIC)]
        own = [*known, *(name for name in self.names if name not in known)]
        shapes = [_SHAPES[own.index(name) % len(_SHAPES)] for name in self.names]
        return alt.Shape("strategy:N", title="strategy", scale=alt.Scale(domain=self.names, range=shapes))

    def rows(self, name: str) -> alt.Chart:
        """A chart of the rows of named data that are shown."""
        rows: alt.Chart = table(name).transform_filter(self.shown)
        return rows

    def owned(self, chart: alt.Chart) -> alt.Chart:
        """The one chart of a figure that has the legend; Vega-Lite loses the clicks where several have it."""
        scale = alt.Scale(domain=self.names, range=list(self.colours.values()))
        owner: alt.Chart = chart.encode(color=alt.Color("strategy:N", title="strategy", scale=scale))
        owner = owner.add_params(self.shown)
        return owner

    def painted(self, data: Data) -> Data:
        """Data with the colours of strategies, for all other charts."""
        return {name: [{**row, "colour": self.colours[row["strategy"]]} if "strategy" in row else row for row in rows]
                for name, rows in data.items()}  # fmt: skip

    @property
    def places(self) -> alt.X:
        """Strategies side by side."""
        return alt.X("strategy:N", title=None, scale=alt.Scale(domain=self.names))


def toggled(field: str, values: Sequence[str]) -> alt.Parameter:
    """Which values of a field are shown: all, until a click on one in the legend."""
    return alt.selection_point(
        name=f"shown_{field}",
        fields=[field],
        bind="legend",
        toggle="true",
        clear=False,
        value=[{field: value} for value in values],
    )


def shapes(variants: Sequence[str]) -> alt.Shape:
    """Shapes for the variants of strategies."""
    return alt.Shape("variant:N", scale=alt.Scale(domain=list(variants), range=list(_SHAPES)))


FILL, STROKE = alt.Fill("colour:N", scale=None), alt.Stroke("colour:N", scale=None)
HIGH, EACH = alt.Y2("high:Q"), alt.Detail("strategy:N")
DEVIATION = alt.Tooltip("deviation:N", title="sd")
STATIC_DASHED = alt.condition(
    alt.FieldOneOfPredicate(field="strategy", oneOf=[display(name) for name in STATIC]),
    alt.value([5, 2]),
    alt.value([1, 0]),
)
MOST_SHAPES = len(_SHAPES)


def table(name: str) -> alt.Chart:
    """A chart of named data, with the deviation in words where there is a single run."""
    rows: alt.Chart = alt.Chart(alt.NamedData(name=name)).transform_calculate(
        deviation="isValid(datum.sd) ? datum.sd : 'a single run'"
    )
    return rows


def tips(*fields: str | alt.Tooltip) -> list[alt.Tooltip]:
    """What to tell of the mark under the pointer."""
    return [alt.Tooltip(field) if isinstance(field, str) else field for field in fields]


def layered(*charts: alt.Chart | alt.LayerChart, **properties: Any) -> alt.LayerChart:
    """Charts above each other, the first at the bottom."""
    drawn: alt.LayerChart = alt.layer(*charts).properties(**properties)
    return drawn


def small_title(text: str | list[str]) -> alt.Title:
    """The title of one of several charts in a figure."""
    return alt.Title(text, fontSize=12, fontWeight="normal", offset=6, frame="group")


def brief(number: float | None, digits: int = 5) -> float | None:
    """A number with so many digits, which is all that a figure can show."""
    return None if number is None else float(f"{number:.{digits}g}")


def plus_minus(found: Statistic | None, form: str = ",.0f", scale: float = 1.0) -> str:
    """A statistic in print.

    Example:
        >>> plus_minus(Statistic(0.97853, 0.0012, 5), ".2f", 100)
        '97.85 ± 0.12'
    """
    if found is None:
        return "—"
    deviation = "" if found.sd is None else f" ± {found.sd * scale:{form}}"
    return f"{found.mean * scale:{form}}{deviation}"


def significant(found: Statistic | None, scale: float = 1.0, digits: int = 3) -> str:
    """A statistic in print, with as many decimals as its mean has significant digits, at most three.

    Example:
        >>> significant(Statistic(0.0111, 0.00031, 5), 1000)
        '11.1 ± 0.3'
    """
    if found is None or not found.mean:
        return "—" if found is None else "0"
    decimals = min(3, max(0, digits - 1 - math.floor(math.log10(abs(found.mean * scale)))))
    return plus_minus(found, f",.{decimals}f", scale)


def is_wide(values: Iterable[float]) -> bool:
    """Whether values span more than a factor of ten, which asks for a logarithmic axis."""
    found = list(values)
    return min(found) > 0 and max(found) > 10 * min(found)


def time_unit(seconds: float) -> tuple[str, float]:
    """The unit for times up to so many seconds, and how many seconds it has."""
    return ("s", 1.0) if seconds < 300 else ("min", 60.0) if seconds < 5 * 3600 else ("h", 3600.0)
