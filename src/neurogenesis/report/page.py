"""The report as one HTML file that opens offline."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.metadata import version
from importlib.resources import files
from typing import Any

import altair as alt
import vl_convert

from .figures import VEGA_LITE
from .records import STATES, Records, Run
from .sections import Section, heading, lost, shown
from .style import Data, Figure, Look, Row
from .tables import Table, cost, summary

# Nothing may be loaded from anywhere. Vega makes functions of expressions.
_POLICY = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:"
_LONG = 24  # rows of a table that would keep one from the figures


def page(records: Records, drawn: Sequence[tuple[Section, Sequence[Figure]]], look: Look) -> str:
    """The whole page."""
    sections = "".join(_section(section, figures, look, len(drawn) > 1) for section, figures in drawn)
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
<header><h1>{escape(_title(drawn))}</h1>{_counts(records.runs)}</header>
{_navigation(drawn, records)}
<main>{sections}{_left_out(records)}</main>
<footer>{_footer(records)}</footer>
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
    """Vega, Vega-Lite and Vega-Embed, which put themselves into the window."""
    bundle: str = vl_convert.javascript_bundle(vl_version=VEGA_LITE)  # type: ignore[call-arg]
    return bundle


def _title(drawn: Sequence[tuple[Section, object]]) -> str:
    return drawn[0][0].title if len(drawn) == 1 else "Growing networks: report"


def _counts(runs: Sequence[Run]) -> str:
    finished = sum(run.state == "finished" for run in runs)
    told = f"{finished} finished run{'' if finished == 1 else 's'}"
    for state in STATES[1:]:
        if number := sum(run.state == state for run in runs):
            told += f", {number} {state}"
    hints = (
        "Click on a strategy in a legend to hide or show it in all figures, on the head of a column to sort by it. "
        "The three dots beside a figure save it."
    )
    return f'<p>{told}</p><p class="soft screen">{hints}</p>'


def _navigation(drawn: Sequence[tuple[Section, object]], records: Records) -> str:
    if len(drawn) == 1:
        return ""
    links = [(section.name, section.title) for section, _ in drawn]
    links += [("left-out", "Left out")] if records.left_out else []
    items = "".join(f'<li><a href="#{escape(name)}">{escape(title)}</a></li>' for name, title in links)
    return f"<nav><ul>{items}</ul></nav>"


def _section(section: Section, figures: Sequence[Figure], look: Look, several: bool) -> str:
    title = f"<h2>{escape(section.title)}</h2>" if several else ""
    found, measured = summary(section), cost(section)
    results, costs = [_table(found, look)], [_table(measured, look)] if measured else []
    if all(run.settings.get("epochs") == 1 for run in section.runs):  # too short for results: a study of cost
        first, last = costs, results
    elif len(found.rows) > _LONG:
        first, last = [], results + costs
    else:
        first, last = results, costs
    timeline = [figure for figure in figures if figure.choices]
    parts = [
        f'<section id="{escape(section.name)}">{title}',
        f'<p class="soft">{escape(_common(section))}</p>',
        _lost(section),
        *first,
        *(_figure(figure) for figure in figures if figure not in timeline),
        *last,
        *(_figure(figure) for figure in timeline),
        "</section>",
    ]
    return "".join(parts)


def _common(section: Section) -> str:
    """What all runs of a section have in common."""
    every = [run.settings for run in section.runs]
    hidden = ("strategy", "seed", "preset")
    same = {
        key: value
        for key, value in every[0].items()
        if key not in hidden and value is not None and all(other.get(key) == value for other in every)
    }
    return ", ".join(
        [f"preset {every[0]['preset']}", *(f"{heading(key)} {shown(value)}" for key, value in same.items())]
    )


def _lost(section: Section) -> str:
    told = lost(section.configurations, limit=0)
    gone = [run for run in section.runs if run.state != "finished"]
    if not gone:
        return ""
    items = "".join(f"<li><code>{escape(str(run.path))}</code> {escape(_why(run))}</li>" for run in gone)
    return f'<details><summary class="note">{escape(told)}</summary><ul>{items}</ul></details>'


def _why(run: Run) -> str:
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
    # Browsers remember the choice of a form, which would then not be the one that is drawn.
    return f'<label>Run <select autocomplete="off">{options}</select></label> '


def _table(table: Table, look: Look) -> str:
    head = "".join(f'<th scope="col" tabindex="0">{escape(column)}</th>' for column in table.columns)
    body = ""
    for row in table.rows:
        cells = [f'<td data-order="{escape(str(cell.order))}">{escape(cell.text)}</td>' for cell in row]
        swatch = f'<span class="swatch" style="background:{look.colours[row[0].text]}"></span>'
        cells[0] = cells[0].replace(">", f">{swatch}", 1)
        body += f"<tr>{''.join(cells)}</tr>"
    return (
        f'<div class="table"><h3>{escape(table.title)}</h3><p class="how">{escape(table.caption)}</p>'
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></div>'
    )


def _left_out(records: Records) -> str:
    if not records.left_out:
        return ""
    items = "".join(
        f"<li><code>{escape(str(left.path))}</code> {escape(left.reason)}</li>" for left in records.left_out
    )
    return f'<section id="left-out"><h2>Left out</h2><p>The report does without these.</p><ul>{items}</ul></section>'


def _footer(records: Records) -> str:
    command = shlex.join(["neurogenesis", "report", *map(str, records.paths)])
    made = f"neurogenesis {version('torch-neurogenesis')}, Altair {alt.__version__}, Vega-Lite {VEGA_LITE[1:]}"
    found: dict[str, dict[str, None]] = {}
    for run in records.runs:
        for key, value in _flat(run.environment):
            found.setdefault(key, {})[value] = None
    rows = [("command", f"<code>{escape(command)}</code>"), ("made with", escape(made))]
    rows += [(escape(key), escape(_several(sorted(values)))) for key, values in found.items()]
    return f"<dl>{''.join(f'<dt>{key}</dt><dd>{value}</dd>' for key, value in rows)}</dl>"


def _flat(environment: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """What is known of the places a run was at, the earlier ones included."""
    for key, value in environment.items():
        if key == "earlier" and isinstance(value, list):
            for earlier in value:
                yield from _flat(earlier) if isinstance(earlier, Mapping) else ()
        elif value is not None:
            yield str(key), str(value)


def _several(values: Sequence[str]) -> str:
    return ", ".join(values) if len(values) <= 3 else f"{values[0]} to {values[-1]}"


def _content(figure: Figure) -> Row:
    choices = [{"about": choice.about, "data": _packed(choice.data)} for choice in figure.choices]
    return {"specification": figure.specification, "data": _packed(figure.data), "choices": choices}


def _packed(data: Data) -> Row:
    """Tables as columns: names of fields once, and texts that are repeated once."""
    return {name: {"length": len(rows), "columns": _columns(rows)} for name, rows in data.items()}


def _columns(rows: Sequence[Row]) -> Row:
    columns: Row = {}
    for name in dict.fromkeys(key for row in rows for key in row):
        values = [row.get(name) for row in rows]
        if any(isinstance(value, str) for value in values):
            levels = list(dict.fromkeys(values))
            places = {level: place for place, level in enumerate(levels)}
            columns[name] = {"levels": levels, "values": [places[value] for value in values]}
        elif any(value is not None for value in values):
            columns[name] = {"values": [_shortest(value) for value in values]}
    return columns


def _shortest(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _json(content: object) -> str:
    # As text within a page, "<" could end the script.
    return json.dumps(content, separators=(",", ":"), allow_nan=False, ensure_ascii=False).replace("<", "\\u003c")
