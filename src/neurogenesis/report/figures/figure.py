"""A figure of the report: a chart, its data and its texts."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import altair as alt
import pandas as pd

Data = Mapping[str, pd.DataFrame]
"""Tables by name."""

_CONFIG: dict[str, Any] = {
    "font": "Helvetica, Arial, sans-serif",
    "background": "white",
    "numberFormat": ",.6~r",  # otherwise the label of an axis with a single tick is rounded
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


@dataclass(frozen=True, eq=False)
class Choice:
    """One of the runs that a figure can show."""

    name: str
    label: str
    about: str
    data: Data


@dataclass(frozen=True, eq=False)
class Figure:
    """A chart with its data."""

    name: str
    """The name of its file, and of its element on the page."""
    title: str
    caption: str
    """How to read it."""
    note: str
    """The runs that it does not show."""
    chart: alt.TopLevelMixin
    data: Data = field(default_factory=dict)
    choices: Sequence[Choice] = ()
    """Runs to choose from; each has its own data."""
    hint: str = ""
    """What one can do with it on the page."""

    @cached_property
    def specification(self) -> dict[str, Any]:
        """The chart as Vega-Lite, without data."""
        specification: dict[str, Any] = self.chart.to_dict(validate=False)  # validation is slow; the tests do it
        specification.pop("$schema")
        return {**specification, "config": _CONFIG}

    def standalone(self, choice: Choice | None = None) -> dict[str, Any]:
        """The chart as Vega-Lite with data, title, caption and note."""
        title = f"{self.title}: {choice.label}" if choice else self.title
        texts = [self.note, choice.about if choice else "", self.caption]
        subtitle = [line for text in texts for line in textwrap.wrap(text, 150)]
        heading = {"text": textwrap.wrap(title, 90), "subtitle": subtitle, "subtitleColor": "#555"}
        data = {name: rows_of(frame) for name, frame in (choice or self).data.items()}
        return {**self.specification, "title": heading, "datasets": data}


def stacked(tables: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Tables on top of each other; an empty one if there are none."""
    found = list(tables)
    return pd.concat(found) if found else pd.DataFrame()


def rows_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table, without missing values.

    Example:
        >>> rows_of(pd.DataFrame([{"strategy": "need", "sd": 0.5}, {"strategy": "nest"}]))
        [{'strategy': 'need', 'sd': 0.5}, {'strategy': 'nest'}]
    """
    return [{name: value for name, value in row.items() if pd.notna(value)} for row in frame.to_dict("records")]
