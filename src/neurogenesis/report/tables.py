"""The tables of a section: the results of each configuration, and the cost of its steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..experiments.presets import NAMES, default_gamma
from ..experiments.record import Result
from .names import STRATEGY_ORDER, format_value, heading
from .numbers import NONE, plus_minus, significant, time_unit
from .sections import Configuration, Section
from .statistics import Statistic, statistic
from .steps import Cost

_FEW = 3  # up to this many layers have a column each


@dataclass(frozen=True)
class Cell:
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


def results_table(section: Section) -> Table:
    """For each configuration its accuracy, parameters, final widths and training time."""
    unit, seconds = time_unit(max((result.train_seconds for result in section.results), default=0.0))
    columns: dict[str, Callable[[Configuration], Cell]] = {
        "runs": lambda c: _count(len(c.finished), len(c.runs)),
        f"{section.accuracy}, %": lambda c: _of(c, lambda result: 100 * result.accuracy, ".2f"),
        "parameters": lambda c: _of(c, lambda result: result.parameters, ",.0f"),
        **_widths(section),
        f"training time, {unit}": lambda c: _measured(c.statistic(lambda result: result.train_seconds / seconds)),
    }
    caption = "Mean ± standard deviation over seeds." if section.several_seeds else "Results at the end of training."
    if len(section.widths) > _FEW:
        caption += f" Widths are relative to {section.reference}, from the first layer to the last."
    return _table("Results", caption, section, columns, section.configurations)


def cost_table(section: Section) -> Table | None:
    """For each configuration the time of a step, its parts for growth, and the ratio to the small static network."""
    costs = {id(c): found for c in section.finished if (found := _cost(c)) is not None}
    if not costs:
        return None
    small = [c for c in section.finished if c.strategy == "small" and id(c) in costs]

    def ratio(c: Configuration) -> Cell:
        alike = [other for other in small if all(c.values.get(key) == value for key, value in other.values.items())]
        if not alike:
            return Cell(NONE, -1.0)
        times = costs[id(c)].seconds.mean / costs[id(alike[0])].seconds.mean
        return Cell(f"{times:.2f}", times)

    columns: dict[str, Callable[[Configuration], Cell]] = {
        "step, ms": lambda c: _measured(costs[id(c)].seconds, 1000),
        "trigger, ms": lambda c: _measured(costs[id(c)].trigger, 1000),
        "initialization, ms": lambda c: _measured(costs[id(c)].initialization, 1000),
        **({"relative to Small static": ratio} if small else {}),
    }
    caption = (
        "Time of a gradient step, which includes trigger and initialization: mean ± standard deviation over runs, or "
        "over steps if there is a single run. The first step is not counted. Larger networks take longer anyway."
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
            *(_setting(c, name) for name in section.varied),
            *(cell(c) for cell in columns.values()),
        ]
        for place, c in enumerate(configurations)
    ]
    return Table(title, caption, ["strategy", *map(heading, section.varied), *columns], rows)


def _setting(c: Configuration, name: str) -> Cell:
    if name not in c.values:
        return Cell(NONE, "")
    value = c.values[name]
    if name == NAMES.gamma and value is None and c.strategy in STRATEGY_ORDER:
        settings = c.runs[0].settings
        gamma = default_gamma(settings.strategy, settings.convolutional)
        return Cell(f"{format_value(gamma)} (default)", gamma)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return Cell(format_value(value), float(value) if number else format_value(value))


def _widths(section: Section) -> dict[str, Callable[[Configuration], Cell]]:
    layers = section.widths
    if len(layers) <= _FEW:
        return {layer: lambda c, layer=layer: _width(c, layer) for layer in layers}  # type: ignore[misc]
    return {"relative widths": lambda c: Cell(_relative(c, layers), _mean_relative(c, layers))}


def _width(c: Configuration, layer: str) -> Cell:
    if not c.finished or not c.has(layer):
        return Cell(NONE, -1.0)
    return _of(c, lambda result: result.widths[layer], ".0f" if len(c.finished) == 1 else ".1f")


def _relative(c: Configuration, layers: Sequence[str]) -> str:
    def mean(layer: str) -> str:
        found = c.statistic(lambda result: result.relative_size(layer))
        return NONE if found is None else f"{found.mean:.2f}"

    return " ".join(mean(layer) for layer in layers if c.has(layer))


def _mean_relative(c: Configuration, layers: Sequence[str]) -> float:
    found = [c.statistic(lambda result: result.relative_size(layer)) for layer in layers if c.has(layer)]  # noqa: B023
    means = [mean.mean for mean in found if mean is not None]
    return sum(means) / len(means) if means else -1.0


def _of(c: Configuration, value: Callable[[Result], float], form: str) -> Cell:
    found = c.statistic(value)
    return Cell(plus_minus(found, form), -1.0 if found is None else found.mean)


def _measured(found: Statistic | None, scale: float = 1.0) -> Cell:
    return Cell(significant(found, scale), -1.0 if found is None else found.mean)


def _count(finished: int, total: int) -> Cell:
    return Cell(str(total) if finished == total else f"{finished} of {total}", float(finished))


def _cost(c: Configuration) -> Cost | None:
    costs = [run.steps.cost for run in c.finished if run.steps.cost is not None]
    if len(costs) < 2:
        return costs[0] if costs else None
    seconds = statistic([found.seconds.mean for found in costs])
    trigger = statistic([found.trigger.mean for found in costs])
    initialization = statistic([found.initialization.mean for found in costs])
    assert seconds is not None and trigger is not None and initialization is not None
    return Cost(seconds, trigger, initialization)
