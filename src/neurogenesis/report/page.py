"""The report as one HTML page that works offline."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any

import altair as alt
import jinja2
import pandas as pd
import vl_convert

from ..experiments.parsing import to_json
from ..experiments.presets import NAMES
from .against_static import AgainstStatic
from .against_static_tables import against_static_tables
from .compute_tables import compute_tables
from .figures import Figure, Palette
from .figures.figure import Data
from .names import format_value, heading
from .pictures import VEGA_LITE
from .runs import STATES, Found, Run
from .searches import Searches
from .searches_tables import searches_tables
from .sections import Section, missing_note
from .tables import Table, cost_table, results_table

_LONG = 24  # tables with more rows come after the figures

Chapter = Section | AgainstStatic | Searches
"""The runs of a preset, a comparison with static networks, or searches for settings."""


def make_page(found: Found, drawn: Sequence[tuple[Chapter, Sequence[Figure]]], palette: Palette) -> str:
    """The whole page."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    made_with = f"neurogenesis {version('torch-neurogenesis')}, Altair {alt.__version__}, Vega-Lite {VEGA_LITE[1:]}"
    return (
        environment.from_string(_asset("page.html"))
        .render(
            title=drawn[0][0].title if len(drawn) == 1 else "Growing networks: report",
            counts=_counts(found.runs),
            chapters=[_content(chapter, figures) for chapter, figures in drawn],
            colors=palette.colors,
            skipped=found.skipped,
            command=shlex.join(["neurogenesis", "report", *map(str, found.paths)]),
            made_with=made_with,
            environments=_environments(found.runs),
            figures=_json({figure.name: _packed_figure(figure) for _, figures in drawn for figure in figures}),
            style=_asset("page.css"),
            script=_asset("page.js"),
            bundle=_bundle(),
        )
        .lstrip()
    )


def tables_of(chapter: Chapter) -> list[Table]:
    """All tables of a chapter."""
    if isinstance(chapter, AgainstStatic):
        return against_static_tables(chapter)
    if isinstance(chapter, Searches):
        return searches_tables(chapter)
    cost = cost_table(chapter)
    return [results_table(chapter), *compute_tables(chapter), *([cost] if cost else [])]


def _asset(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


@cache
def _bundle() -> str:
    """Vega, Vega-Lite and Vega-Embed, which add themselves to the window."""
    bundle: str = vl_convert.javascript_bundle(vl_version=VEGA_LITE)  # type: ignore[call-arg]
    return bundle


def _counts(runs: Sequence[Run]) -> str:
    counts = {state: sum(run.state == state for run in runs) for state in STATES}
    finished = f"{counts['finished']} finished run{'' if counts['finished'] == 1 else 's'}"
    return ", ".join([finished, *(f"{counts[state]} {state}" for state in STATES[1:] if counts[state])])


def _content(chapter: Chapter, figures: Sequence[Figure]) -> Mapping[str, Any]:
    """What the template needs of a chapter."""
    section = isinstance(chapter, Section)
    return {
        "name": chapter.name,
        "title": chapter.title,
        "note": missing_note(chapter.configurations, limit=0),
        "missing": [run for run in chapter.runs if run.state != "finished"],
        "common": _common(chapter.runs) if section else "",
        "blocks": _in_order(chapter, figures),
    }


def _in_order(chapter: Chapter, figures: Sequence[Figure]) -> list[Table | Figure]:
    """The tables and figures of a chapter; timelines, which have choices, come last."""
    tables = tables_of(chapter)
    if not isinstance(chapter, Section):
        return [*tables[:1], *figures, *tables[1:]]
    first, *others = tables
    timelines = [figure for figure in figures if figure.choices]
    rest = [figure for figure in figures if not figure.choices]
    if all(run.settings.epochs == 1 for run in chapter.runs):  # too short for results: a study of cost
        return [*others, *rest, first, *timelines]
    if len(first.rows) > _LONG:
        return [*rest, first, *others, *timelines]
    return [first, *rest, *others, *timelines]


def _common(runs: Sequence[Run]) -> str:
    """The settings that all runs of a section have in common."""
    first, *others = (run.settings for run in runs)
    omitted = (NAMES.strategy, NAMES.seed, NAMES.preset)
    same = [
        f"{heading(name)} {format_value(value)}"
        for name, value in first.items()
        if name not in omitted and value is not None and all(other.get(name) == value for other in others)
    ]
    return ", ".join([f"preset {first.preset}", *same])


def _environments(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Names and values of the environments of all runs, including earlier ones."""
    found: dict[str, set[str]] = {}
    for environment in (run.environment for run in runs if run.environment is not None):
        for place in (to_json(replace(environment, earlier=())), *environment.earlier):
            for name, value in place.items():
                if value is not None:
                    found.setdefault(str(name), set()).add(str(value))
    return {name: sorted(values) for name, values in found.items()}


def _packed_figure(figure: Figure) -> dict[str, Any]:
    choices = [{"about": choice.about, "data": _packed(choice.data)} for choice in figure.choices]
    return {"specification": figure.specification, "data": _packed(figure.data), "choices": choices}


def _packed(data: Data) -> dict[str, Any]:
    """Tables by column, in which each different text occurs only once."""
    return {name: {"length": len(table), "columns": _columns(table)} for name, table in data.items()}


def _columns(table: pd.DataFrame) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for name, values in table.dropna(axis=1, how="all").items():
        if values.map(lambda value: isinstance(value, str)).any():
            indices, levels = pd.factorize(values, use_na_sentinel=False)
            texts = [None if pd.isna(level) else level for level in levels]
            columns[name] = {"levels": texts, "values": indices.tolist()}
        else:
            columns[name] = {"values": [_shortened(value) for value in values.tolist()]}
    return columns


def _shortened(value: Any) -> Any:
    if isinstance(value, float):
        return None if math.isnan(value) else int(value) if value.is_integer() else value
    return value


def _json(content: object) -> str:
    # A "<" in the text could end the script element.
    return json.dumps(content, separators=(",", ":"), allow_nan=False, ensure_ascii=False).replace("<", "\\u003c")
