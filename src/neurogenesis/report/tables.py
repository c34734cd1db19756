"""Tables of a section: what each configuration reached, and what its steps cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .records import Result
from .sections import ORDER, Configuration, Section, gamma_of, heading, shown
from .statistics import Statistic, statistic
from .style import plus_minus, significant, time_unit
from .trace import Cost

NOTHING = "—"
_FEW = 3  # layers that have a column each


@dataclass(frozen=True)
class Cell:
    """A text and what it is sorted by."""

    text: str
    order: float | str


@dataclass(frozen=True)
class Table:
    """Columns by name, and rows of as many cells."""

    title: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


def summary(section: Section) -> Table:
    """A row per configuration: accuracy, parameters, final widths and training time."""
    times = [run.result.train_seconds for run in section.runs if run.result is not None]
    unit, seconds = time_unit(max(times, default=0.0))
    columns: dict[str, Callable[[Configuration], Cell]] = {
        "runs": lambda c: _count(len(c.finished), len(c.runs)),
        f"{section.accuracy}, %": lambda c: _of(c, lambda result: 100 * result.accuracy, ".2f"),
        "parameters": lambda c: _of(c, lambda result: result.parameters, ",.0f"),
        **_widths(section),
        f"training time, {unit}": lambda c: _measured(c.statistic(lambda result: result.train_seconds / seconds)),
    }
    caption = "Mean ± standard deviation over runs that differ in their seeds." if section.seeds else "How runs ended."
    if len(section.layers) > _FEW:
        caption += f" Widths are relative to {section.standard}, from the first layer to the last."
    return _table("Summary", caption, section, columns, section.configurations)


def cost(section: Section) -> Table | None:
    """A row per configuration: seconds of a step, of these for growth, and the ratio to the small static network."""
    costs = {id(c): found for c in section.finished if (found := _cost(c)) is not None}
    if not costs:
        return None
    small = [c for c in section.finished if c.strategy == "small" and id(c) in costs]

    def ratio(c: Configuration) -> Cell:
        alike = [other for other in small if all(c.values.get(key) == value for key, value in other.values.items())]
        if not alike:
            return Cell(NOTHING, -1.0)
        times = costs[id(c)].seconds.mean / costs[id(alike[0])].seconds.mean
        return Cell(f"{times:.2f}", times)

    columns: dict[str, Callable[[Configuration], Cell]] = {
        "step, ms": lambda c: _measured(costs[id(c)].seconds, 1000),
        "of it trigger, ms": lambda c: _measured(costs[id(c)].trigger, 1000),
        "of it initialization, ms": lambda c: _measured(costs[id(c)].initialization, 1000),
        **({"relative to Small static": ratio} if small else {}),
    }
    caption = (
        "Time of a gradient step on one mini-batch, the first step left out: mean ± standard deviation over runs, or "
        "over the steps where there is one run. A network that has grown takes longer by itself."
    )
    return _table("Cost of a step", caption, section, columns, [c for c in section.finished if id(c) in costs])


def _table(
    title: str,
    caption: str,
    section: Section,
    columns: Mapping[str, Callable[[Configuration], Cell]],
    configurations: Sequence[Configuration],
) -> Table:
    rows = [
        [
            Cell(c.name, float(place)),
            *(_setting(c, key) for key in section.keys),
            *(cell(c) for cell in columns.values()),
        ]
        for place, c in enumerate(configurations)
    ]
    return Table(title, caption, ["strategy", *map(heading, section.keys), *columns], rows)


def _setting(c: Configuration, key: str) -> Cell:
    if key not in c.values:
        return Cell(NOTHING, "")
    value = c.values[key]
    if key == "gamma" and value is None and c.strategy in ORDER:
        gamma = gamma_of(c.runs[0].settings)
        return Cell(f"{shown(gamma)} (default)", gamma)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return Cell(shown(value), float(value) if number else shown(value))


def _widths(section: Section) -> dict[str, Callable[[Configuration], Cell]]:
    layers = section.layers
    if len(layers) <= _FEW:
        return {layer: lambda c, layer=layer: _width(c, layer) for layer in layers}  # type: ignore[misc]
    return {"relative widths": lambda c: Cell(_relative(c, layers), _mean_relative(c, layers))}


def _width(c: Configuration, layer: str) -> Cell:
    if not c.finished or not c.has(layer):
        return Cell(NOTHING, -1.0)
    return _of(c, lambda result: result.widths[layer], ".0f" if len(c.finished) == 1 else ".1f")


def _relative(c: Configuration, layers: Sequence[str]) -> str:
    def mean(layer: str) -> str:
        found = c.statistic(lambda result: result.relative(layer))
        return NOTHING if found is None else f"{found.mean:.2f}"

    return " ".join(mean(layer) for layer in layers if c.has(layer))


def _mean_relative(c: Configuration, layers: Sequence[str]) -> float:
    found = [c.statistic(lambda result: result.relative(layer)) for layer in layers if c.has(layer)]  # noqa: B023
    means = [one.mean for one in found if one is not None]
    return sum(means) / len(means) if means else -1.0


def _of(c: Configuration, value: Callable[[Result], float], form: str) -> Cell:
    found = c.statistic(value)
    return Cell(plus_minus(found, form), -1.0 if found is None else found.mean)


def _measured(found: Statistic | None, scale: float = 1.0) -> Cell:
    return Cell(significant(found, scale), -1.0 if found is None else found.mean)


def _count(finished: int, known: int) -> Cell:
    return Cell(str(known) if finished == known else f"{finished} of {known}", float(finished))


def _cost(c: Configuration) -> Cost | None:
    costs = [run.trace.cost for run in c.finished if run.trace.cost is not None]
    if len(costs) < 2:
        return costs[0] if costs else None
    seconds = statistic([found.seconds.mean for found in costs])
    trigger = statistic([found.trigger.mean for found in costs])
    initialization = statistic([found.initialization.mean for found in costs])
    assert seconds is not None and trigger is not None and initialization is not None
    return Cost(seconds, trigger, initialization)
