"""The report as one HTML page that works offline."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from html import escape
from importlib.metadata import version
from importlib.resources import files
from typing import Any

import altair as alt
import pandas as pd
import vl_convert

from ..experiments.parsing import to_json
from ..experiments.presets import NAMES
from ..experiments.record import Environment
from .against_static import AgainstStatic
from .against_static_tables import against_static_tables
from .figures import Figure, Palette
from .figures.figure import Data
from .names import format_value, heading
from .pictures import VEGA_LITE
from .runs import STATES, Found, Run
from .searches import Searches
from .searches_tables import searches_tables
from .sections import Section, missing_note
from .tables import Table, cost_table, results_table

# Nothing is loaded from elsewhere. Vega compiles expressions to functions, which needs unsafe-eval.
_POLICY = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:"
_LONG = 24  # tables with more rows come after the figures


Chapter = Section | AgainstStatic | Searches
"""The runs of a preset, a comparison with static networks, or searches for settings."""


def make_page(found: Found, drawn: Sequence[tuple[Chapter, Sequence[Figure]]], palette: Palette) -> str:
    """The whole page."""
    sections = "".join(_chapter(chapter, figures, palette, len(drawn) > 1) for chapter, figures in drawn)
    contents = {figure.name: _content(figure) for _, figures in drawn for figure in figures}
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(_title(drawn))}</title>
<link rel="icon" href="data:,">
<style>{_asset("page.css")}</style>
</head>
<body>
<header><h1>{escape(_title(drawn))}</h1>{_counts(found.runs)}</header>
{_navigation(drawn, found)}
<main>{sections}{_skipped(found)}</main>
<footer>{_footer(found)}</footer>
<script type="application/json" id="figures">{_json(contents)}</script>
<script>{{{_bundle()}}}</script>
<script>{_asset("page.js")}</script>
</body>
</html>
"""


def _asset(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


@cache
def _bundle() -> str:
    """Vega, Vega-Lite and Vega-Embed, which add themselves to the window."""
    bundle: str = vl_convert.javascript_bundle(vl_version=VEGA_LITE)  # type: ignore[call-arg]
    return bundle


def tables_of(chapter: Chapter) -> list[Table]:
    """All tables of a chapter."""
    if isinstance(chapter, AgainstStatic):
        return against_static_tables(chapter)
    if isinstance(chapter, Searches):
        return searches_tables(chapter)
    cost = cost_table(chapter)
    return [results_table(chapter), *([cost] if cost else [])]


def _title(drawn: Sequence[tuple[Chapter, object]]) -> str:
    return drawn[0][0].title if len(drawn) == 1 else "Growing networks: report"


def _counts(runs: Sequence[Run]) -> str:
    finished = sum(run.state == "finished" for run in runs)
    counts = f"{finished} finished run{'' if finished == 1 else 's'}"
    for state in STATES[1:]:
        if number := sum(run.state == state for run in runs):
            counts += f", {number} {state}"
    hints = (
        "Click a strategy in a legend to hide or show it in all figures, or the heading of a column to sort by it. "
        "The menu with three dots next to a figure saves it."
    )
    return f'<p>{counts}</p><p class="soft screen">{hints}</p>'


def _navigation(drawn: Sequence[tuple[Chapter, object]], found: Found) -> str:
    if len(drawn) == 1:
        return ""
    links = [(section.name, section.title) for section, _ in drawn]
    links += [("skipped", "Skipped")] if found.skipped else []
    items = "".join(f'<li><a href="#{escape(name)}">{escape(title)}</a></li>' for name, title in links)
    return f"<nav><ul>{items}</ul></nav>"


def _chapter(chapter: Chapter, figures: Sequence[Figure], palette: Palette, several: bool) -> str:
    title = f"<h2>{escape(chapter.title)}</h2>" if several else ""
    if isinstance(chapter, Section):
        shown = _section(chapter, figures, palette)
    else:
        first, *others = (_table(table, palette) for table in tables_of(chapter))
        shown = [first, *map(_figure, figures), *others]
    return f'<section id="{escape(chapter.name)}">{title}{_missing_runs(chapter)}{"".join(shown)}</section>'


def _section(section: Section, figures: Sequence[Figure], palette: Palette) -> list[str]:
    result, cost = results_table(section), cost_table(section)
    results, costs = [_table(result, palette)], [_table(cost, palette)] if cost else []
    if all(run.settings.epochs == 1 for run in section.runs):  # too short for results: a study of cost
        first, last = costs, results
    elif len(result.rows) > _LONG:
        first, last = [], results + costs
    else:
        first, last = results, costs
    timeline = [figure for figure in figures if figure.choices]
    return [
        f'<p class="soft">{escape(_common(section))}</p>',
        *first,
        *(_figure(figure) for figure in figures if figure not in timeline),
        *last,
        *(_figure(figure) for figure in timeline),
    ]


def _common(section: Section) -> str:
    """The settings that all runs of a section have in common."""
    every = [run.settings for run in section.runs]
    omitted = (NAMES.strategy, NAMES.seed, NAMES.preset)
    same = {
        key: value
        for key, value in every[0].items()
        if key not in omitted and value is not None and all(other.get(key) == value for other in every)
    }
    return ", ".join(
        [f"preset {every[0].preset}", *(f"{heading(key)} {format_value(value)}" for key, value in same.items())]
    )


def _missing_runs(chapter: Chapter) -> str:
    note = missing_note(chapter.configurations, limit=0)
    missing = [run for run in chapter.runs if run.state != "finished"]
    if not missing:
        return ""
    items = "".join(f"<li><code>{escape(str(run.path))}</code> {escape(_reason(run))}</li>" for run in missing)
    return f'<details><summary class="note">{escape(note)}</summary><ul>{items}</ul></details>'


def _reason(run: Run) -> str:
    return f"{run.state}: {run.failure}" if run.failure else run.state


def _figure(figure: Figure) -> str:
    note = f'<p class="note">{escape(figure.note)}</p>' if figure.note else ""
    about = f'<p class="soft">{_select(figure)}<span class="about"></span></p>' if figure.choices else ""
    return (
        f'<figure id="{escape(figure.name)}"><h3>{escape(figure.title)}</h3>'
        f'<p class="how">{escape(figure.caption)} <span class="screen">{escape(figure.hint)}</span></p>'
        f'{note}{about}<div class="chart" data-figure="{escape(figure.name)}"></div></figure>'
    )


def _select(figure: Figure) -> str:
    if len(figure.choices) == 1:
        return ""
    options = "".join(f"<option>{escape(choice.label)}</option>" for choice in figure.choices)
    # Otherwise browsers restore the last choice after a reload, while the first one is drawn.
    return f'<label>Run <select autocomplete="off">{options}</select></label> '


def _table(table: Table, palette: Palette) -> str:
    head = "".join(f'<th scope="col" tabindex="0">{escape(column)}</th>' for column in table.columns)
    body = ""
    for row in table.rows:
        cells = [f'<td data-order="{escape(str(cell.sort_key))}">{escape(cell.text)}</td>' for cell in row]
        swatch = f'<span class="swatch" style="background:{palette.colors[row[0].text]}"></span>'
        cells[0] = cells[0].replace(">", f">{swatch}", 1)
        body += f"<tr>{''.join(cells)}</tr>"
    return (
        f'<div class="table"><h3>{escape(table.title)}</h3><p class="how">{escape(table.caption)}</p>'
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></div>'
    )


def _skipped(found: Found) -> str:
    if not found.skipped:
        return ""
    items = "".join(
        f"<li><code>{escape(str(skipped.path))}</code> {escape(skipped.reason)}</li>" for skipped in found.skipped
    )
    return f'<section id="skipped"><h2>Skipped</h2><p>These are not in the report.</p><ul>{items}</ul></section>'


def _footer(found: Found) -> str:
    command = shlex.join(["neurogenesis", "report", *map(str, found.paths)])
    made = f"neurogenesis {version('torch-neurogenesis')}, Altair {alt.__version__}, Vega-Lite {VEGA_LITE[1:]}"
    environments: dict[str, set[str]] = {}
    for run in found.runs:
        for name, value in _flat(run.environment):
            environments.setdefault(name, set()).add(value)
    rows = [("command", f"<code>{escape(command)}</code>"), ("made with", escape(made))]
    rows += [(escape(name), escape(_list(sorted(values)))) for name, values in environments.items()]
    return f"<dl>{''.join(f'<dt>{key}</dt><dd>{value}</dd>' for key, value in rows)}</dl>"


def _flat(environment: Environment | None) -> Iterator[tuple[str, str]]:
    """Names and values of all environments of a run, including earlier ones."""
    if environment is None:
        return
    for place in (to_json(replace(environment, earlier=())), *environment.earlier):
        for name, value in place.items():
            if value is not None:
                yield str(name), str(value)


def _list(values: Sequence[str]) -> str:
    return ", ".join(values) if len(values) <= 3 else f"{values[0]} to {values[-1]}"


def _content(figure: Figure) -> dict[str, Any]:
    choices = [{"about": choice.about, "data": _packed(choice.data)} for choice in figure.choices]
    return {"specification": figure.specification, "data": _packed(figure.data), "choices": choices}


def _packed(data: Data) -> dict[str, Any]:
    """Tables by column, in which each different text occurs only once."""
    return {name: {"length": len(table), "columns": _columns(table)} for name, table in data.items()}


def _columns(table: pd.DataFrame) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for name, values in table.items():
        if values.map(lambda value: isinstance(value, str)).any():
            indices, levels = pd.factorize(values, use_na_sentinel=False)
            columns[name] = {
                "levels": [None if pd.isna(level) else level for level in levels],
                "values": indices.tolist(),
            }
        elif values.notna().any():
            columns[name] = {"values": [_shortened(value) for value in values.tolist()]}
    return columns


def _shortened(value: Any) -> Any:
    if isinstance(value, float):
        return None if math.isnan(value) else int(value) if value.is_integer() else value
    return value


def _json(content: object) -> str:
    # A "<" in the text could end the script element.
    return json.dumps(content, separators=(",", ":"), allow_nan=False, ensure_ascii=False).replace("<", "\\u003c")
