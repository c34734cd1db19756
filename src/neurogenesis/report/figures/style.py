"""What figures have in common: colors and shapes of strategies, legends that hide them, encodings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import pandas as pd

from ...experiments.settings import STATIC
from ..names import STRATEGY_ORDER, display_name, grown_by, strategy_rank
from ..sections import Configuration
from .figure import Data

# From Okabe and Ito, then from Tol's muted scheme: distinguishable with any color vision. Static networks are grey.
_COLORS = {
    "north-select": "#0072B2", "north-select-least": "#332288", "north-pre": "#56B4E9", "north-opt": "#44AA99",
    "north-random": "#009E73",
    "north-weight": "#E69F00", "north-integrated": "#CC79A7", "gradmax": "#D55E00", "firefly": "#882255",
    "nest": "#999933", "need": "#000000", "need's shape": "#000000",
    "deepen-zero": "#AA4499", "deepen-copy": "#117733", "deepen-random": "#661100",
    "static": "#8a8a8a", "small": "#bdbdbd", "medium": "#8a8a8a", "big": "#4a4a4a",
}  # fmt: skip
_FURTHER_COLORS = ("#AA4499", "#DDCC77", "#117733", "#661100")
_SHAPES = (
    "circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "triangle-right", "triangle-left",
    "M0,-1L.23,-.32L.95,-.31L.38,.12L.59,.81L0,.4L-.59,.81L-.38,.12L-.95,-.31L-.23,-.32Z",  # star
    "M.5,-.87L1,0L.5,.87L-.5,.87L-1,0L-.5,-.87Z",  # hexagon
    "M-.6,-.9L0,-.3L.6,-.9L.9,-.6L.3,0L.9,.6L.6,.9L0,.3L-.6,.9L-.9,.6L-.3,0L-.9,-.6Z",  # X
    "M-.9,-.9L.9,-.9L-.9,.9L.9,.9Z",  # hourglass
    "M-.9,-.9L-.9,.9L.9,-.9L.9,.9Z",  # hourglass on its side
    "M0,-1L.95,-.31L.59,.81L-.59,.81L-.95,-.31Z",  # pentagon
)  # fmt: skip
MOST_SHAPES = len(_SHAPES)

FILL, STROKE = alt.Fill("color:N", scale=None), alt.Stroke("color:N", scale=None)


@dataclass(frozen=True)
class Palette:
    """The strategies of a report in order, each with its color."""

    colors: Mapping[str, str]
    """Colors by the name of the strategy in print."""

    @classmethod
    def of(cls, strategies: Iterable[str]) -> Palette:
        """Fixed colors for the strategies of the paper, further ones for others."""
        ordered = sorted(set(strategies), key=strategy_rank)
        others = [name for name in ordered if name not in _COLORS]
        further = {name: _FURTHER_COLORS[index % len(_FURTHER_COLORS)] for index, name in enumerate(others)}
        return cls({display_name(name): _COLORS.get(name) or further[name] for name in ordered})

    def legend(self, configurations: Sequence[Configuration]) -> Legend:
        """The legend of some configurations."""
        names = {configuration.name for configuration in configurations}
        return Legend({name: color for name, color in self.colors.items() if name in names})


@dataclass(frozen=True)
class Legend:
    """The strategies of a figure; a click on one hides or shows it."""

    colors: Mapping[str, str]

    @property
    def names(self) -> list[str]:
        return list(self.colors)

    @property
    def shown(self) -> alt.Parameter:
        """The selection of strategies that are shown."""
        return legend_selection("strategy", self.names)

    @property
    def shape(self) -> alt.Shape:
        """A shape for each strategy, the same in all figures."""
        known = [display_name(strategy) for strategy in (*STRATEGY_ORDER, *STATIC)]
        grown = [grown_by(name) for name in self.names]
        names = [*known, *(name for name in grown if name not in known)]
        shapes = [_SHAPES[names.index(name) % len(_SHAPES)] for name in grown]
        return alt.Shape("strategy:N", title="strategy", scale=alt.Scale(domain=self.names, range=shapes))

    @property
    def positions(self) -> alt.X:
        """Strategies side by side."""
        return alt.X("strategy:N", title=None, scale=alt.Scale(domain=self.names))

    def rows(self, name: str) -> alt.Chart:
        """A chart of the rows of a table whose strategies are shown."""
        rows: alt.Chart = table(name).transform_filter(self.shown)
        return rows

    def attach(self, chart: alt.Chart) -> alt.Chart:
        """Add the legend to a chart: only one per figure, or Vega-Lite loses clicks."""
        scale = alt.Scale(domain=self.names, range=list(self.colors.values()))
        chart = chart.encode(color=alt.Color("strategy:N", title="strategy", scale=scale))
        chart = chart.add_params(self.shown)
        return chart


class Drawing:
    """The charts of a figure and their data, while it is drawn."""

    def __init__(self, legend: Legend) -> None:
        self.legend = legend
        self.tables: dict[str, pd.DataFrame] = {}
        self.charts: list[alt.LayerChart] = []
        self._has_legend = False

    def rows(self, name: str, rows: pd.DataFrame | None = None) -> alt.Chart:
        """A chart of the rows of a table whose strategies are shown; the rows are given once."""
        if rows is not None:
            self.tables[name] = rows
        return self.legend.rows(name)

    def in_colors(self, chart: alt.Chart, channel: alt.Fill | alt.Stroke = FILL) -> alt.Chart:
        """A chart in the colors of strategies; the first one of a figure gets the legend."""
        if not self._has_legend:
            self._has_legend = True
            return self.legend.attach(chart)
        drawn: alt.Chart = chart.encode(channel)
        return drawn

    def add(self, *layers: alt.Chart, title: str | list[str] | None = None, **size: int) -> None:
        """Add a chart of layers, the first one at the bottom."""
        titled = {} if title is None else {"title": small_title(title)}
        self.charts.append(layered(*layers, **titled, **size))

    @property
    def data(self) -> Data:
        """The tables, with a column of colors for charts without the legend."""
        colors = self.legend.colors
        return {
            name: rows.assign(color=rows["strategy"].map(colors)) if "strategy" in rows else rows
            for name, rows in self.tables.items()
        }


def legend_selection(field: str, values: Sequence[str]) -> alt.Parameter:
    """The values of a field that are shown: all of them, until one is clicked in the legend."""
    return alt.selection_point(
        name=f"shown_{field}",
        fields=[field],
        bind="legend",
        toggle="true",
        clear=False,
        value=[{field: value} for value in values],
    )


def variant_shapes(variants: Sequence[str]) -> alt.Shape:
    """A shape for each variant of the strategies."""
    return alt.Shape("variant:N", scale=alt.Scale(domain=list(variants), range=list(_SHAPES)))


HIGH, PER_STRATEGY = alt.Y2("high:Q"), alt.Detail("strategy:N")
DEVIATION = alt.Tooltip("deviation:N", title="sd")
STATIC_DASHED = alt.condition(
    alt.FieldOneOfPredicate(field="strategy", oneOf=[display_name(name) for name in STATIC]),
    alt.value([5, 2]),
    alt.value([1, 0]),
)


def table(name: str) -> alt.Chart:
    """A chart of a table; `deviation` is the standard deviation, or says that there is a single run."""
    rows: alt.Chart = alt.Chart(alt.NamedData(name=name)).transform_calculate(
        deviation="isValid(datum.sd) ? datum.sd : 'a single run'"
    )
    return rows


def tooltip(*fields: str | alt.Tooltip) -> list[alt.Tooltip]:
    """What to show about the mark under the pointer."""
    return [alt.Tooltip(field) if isinstance(field, str) else field for field in fields]


def layered(*charts: alt.Chart | alt.LayerChart, **properties: Any) -> alt.LayerChart:
    """Charts on top of each other, the first one at the bottom."""
    chart: alt.LayerChart = alt.layer(*charts).properties(**properties)
    return chart


def small_title(text: str | list[str]) -> alt.Title:
    """The title of one of several charts in a figure."""
    return alt.Title(text, fontSize=12, fontWeight="normal", offset=6, frame="group")
