"""The tables of a section: the results of each configuration, and the cost of its steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from ..experiments.presets import NAMES, default_gamma
from .names import STRATEGY_ORDER, format_value, heading
from .numbers import NONE, plus_minus, significant, time_unit
from .sections import Configuration, Section

_FEW = 3  # up to this many layers have a column each


class Cell(NamedTuple):
    """A text and its sort key."""

    text: str
    sort_key: float | str


@dataclass(frozen=True)
class Table:
    """Rows with a cell for each column."""

    title: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


def markdown(tables: Iterable[Table]) -> str:
    """Tables with their titles and captions as Markdown, for documents.

    Example:
        >>> print(markdown([Table("Results", "Of one run.", ["strategy", "runs"], [[Cell("NeST", 0), Cell("1", 1)]])]))
        ### Results
        <BLANKLINE>
        Of one run.
        <BLANKLINE>
        | strategy | runs |
        |---|---|
        | NeST | 1 |
        <BLANKLINE>
    """
    texts = []
    for table in tables:
        lines = [table.columns, *([cell.text for cell in row] for row in table.rows)]
        first, *rows = (f"| {' | '.join(map(_escaped, line))} |" for line in lines)
        rule = "|" + "---|" * len(table.columns)
        texts.append("\n".join([f"### {table.title}\n\n{table.caption}\n", first, rule, *rows, ""]))
    return "\n".join(texts)


def _escaped(text: str) -> str:
    return " ".join(text.replace("\\", "\\\\").replace("|", "\\|").split())


def make_table(title: str, caption: str, rows: Sequence[Mapping[str, Cell]]) -> Table:
    """A table of rows that have the same columns."""
    return Table(title, caption, list(rows[0]) if rows else [], [list(row.values()) for row in rows])


def mean_cell(values: pd.Series, form: str) -> Cell:
    """The mean of values and their standard deviation."""
    return Cell(plus_minus(values, form), values.mean() if len(values) else -1.0)


def time_cell(seconds: pd.Series, length: float) -> Cell:
    """The mean of times and their standard deviation, in a unit of this many seconds."""
    return Cell(significant(seconds, 1 / length), seconds.mean() if len(seconds) else -1.0)


def number(value: float | None, form: str) -> Cell:
    """A number, or none."""
    return Cell(NONE, -1.0) if value is None or math.isnan(value) else Cell(f"{value:{form}}", value)


def setting_cell(value: Any) -> Cell:
    """The value of a setting."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return Cell(format_value(value), float(value) if is_number else format_value(value))


def seeds(c: Configuration) -> Cell:
    """The number of finished runs, and of all if there are more."""
    finished, every = len(c.finished), len(c.runs)
    return Cell(str(every) if finished == every else f"{finished} of {every}", float(finished))


def results_table(section: Section) -> Table:
    """For each configuration its accuracy, parameters, final widths and training time."""
    unit, length = time_unit(max(section.results["seconds"], default=0.0))
    layers = section.widths
    measured = [each for each in _MEASURED if section.results[each[1]].notna().any()]
    rows = []
    for place, c in enumerate(section.configurations):
        rows.append(
            {
                **_identity(section, place, c),
                "runs": seeds(c),
                f"{section.accuracy}, %": mean_cell(c.results["accuracy"], ".2f"),
                **{title: _known(c.results[name] / scale, form) for title, name, scale, form in measured},
                "parameters": mean_cell(c.results["parameters"], ",.0f"),
                **(_each_width(c, layers) if len(layers) <= _FEW else {"relative widths": _relative_widths(c, layers)}),
                f"training time, {unit}": time_cell(c.results["seconds"], length),
            }
        )
    caption = "Mean ± standard deviation over seeds." if section.several_seeds else "Results at the end of training."
    if len(layers) > _FEW:
        caption += f" Widths are relative to {section.reference}, from the first layer to the last."
    return make_table("Results", caption, rows)


_MEASURED = (
    ("bits per character", "bits_per_character", 1, ".3f"),
    ("a sample, MFLOPs", "flops", 1e6, ",.3g"),
    ("training, GFLOPs", "training_flops", 1e9, ",.4g"),
)
"""What only some runs have: title, name, scale and form."""


def _known(values: pd.Series, form: str) -> Cell:
    return mean_cell(values.dropna(), form)


def cost_table(section: Section) -> Table | None:
    """For each configuration the time of a step, its parts for growth, and the ratio to the small static network."""
    costs = [(c, times) for c in section.finished if len(times := _times(c))]
    if not costs:
        return None
    small = [(c.values, times["seconds"].mean()) for c, times in costs if c.strategy == "small"]
    rows = []
    for place, (c, times) in enumerate(costs):
        row = _identity(section, place, c)
        for part, title in (("seconds", "step"), ("trigger", "trigger"), ("initialization", "initialization")):
            row[f"{title}, ms"] = time_cell(times[part], 0.001)
        if small:
            alike = [mean for values, mean in small if all(c.values.get(name) == values[name] for name in values)]
            row["relative to Small static"] = number(times["seconds"].mean() / alike[0] if alike else None, ".2f")
        rows.append(row)
    caption = (
        "Time of a gradient step, which includes trigger and initialization: mean ± standard deviation over runs, or "
        "over steps if there is a single run. The first step is not counted. Larger networks take longer anyway."
    )
    return make_table("Cost of a step", caption, rows)


def _identity(section: Section, place: int, c: Configuration) -> dict[str, Cell]:
    """The strategy and the settings that vary."""
    return {"strategy": Cell(c.name, float(place))} | {heading(name): _setting(c, name) for name in section.varied}


def _setting(c: Configuration, name: str) -> Cell:
    if name not in c.values:
        return Cell(NONE, "")
    if name == NAMES.gamma and c.values[name] is None and c.strategy in STRATEGY_ORDER:
        settings = c.runs[0].settings
        gamma = default_gamma(settings.strategy, settings.convolutional)
        return Cell(f"{format_value(gamma)} (default)", gamma)
    return setting_cell(c.values[name])


def _each_width(c: Configuration, layers: Iterable[str]) -> dict[str, Cell]:
    form, nothing = ".0f" if len(c.finished) == 1 else ".1f", pd.Series(dtype=float)
    return {layer: mean_cell(c.widths.get(layer, nothing), form) for layer in layers}


def _relative_widths(c: Configuration, layers: Sequence[str]) -> Cell:
    means = c.relative_widths.mean().reindex(layers).dropna()
    return Cell(" ".join(f"{mean:.2f}" for mean in means), means.mean() if len(means) else -1.0)


def _times(c: Configuration) -> pd.DataFrame:
    """The mean times of the steps of each run, or the time of each step if there is a single run."""
    times = [run.steps.times for run in c.finished if len(run.steps.times)]
    return times[0] if len(times) == 1 else pd.DataFrame([each.mean() for each in times])
