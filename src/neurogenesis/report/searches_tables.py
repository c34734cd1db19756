"""The tables of searches: growing next to searching, and what each search chose and took."""

from __future__ import annotations

from collections.abc import Sequence

from .numbers import NONE, plus_minus, significant, time_unit
from .runs import Run
from .searches import Approach, Budget, Searches, searched_values
from .tables import Cell, Table


def searches_tables(searches: Searches) -> list[Table]:
    """Approaches side by side, if networks were grown or there are several seeds, and every search."""
    compared = len(searches.approaches) > len(searches.presets)
    return [*([approaches_table(searches)] if compared else []), budgets_table(searches)]


def approaches_table(searches: Searches) -> Table:
    """For each preset and approach: accuracy, parameters and total time of training."""
    unit, length = time_unit(max(found.seconds.mean for found in searches.approaches))
    columns = [
        "approach", "preset", "seeds", "test accuracy, %", "parameters", "widths", f"training time, {unit}",
        "times as long",
    ]  # fmt: skip
    rows = []
    for place, found in enumerate(searches.approaches):
        first = next(other for other in searches.approaches if other.preset == found.preset)
        ratio = found.seconds.mean / max(first.seconds.mean, 1e-9)
        rows.append(
            [
                Cell(found.name, float(place)),
                Cell(found.preset, float(searches.presets.index(found.preset))),
                Cell(str(len(found.networks)), len(found.networks)),
                Cell(plus_minus(found.accuracy, ".2f"), found.accuracy.mean),
                Cell(plus_minus(found.parameters, ",.0f"), found.parameters.mean),
                Cell(_widths(found), found.parameters.mean),
                Cell(significant(found.seconds, 1 / length), found.seconds.mean),
                Cell(f"{ratio:.1f}", ratio),
            ]
        )
    caption = (
        "Mean ± standard deviation over seeds. Time is that of all training that was necessary: of a search, its "
        "trials and the final training of what it chose; in the last column as a multiple of that of the preset's "
        "first row. The first trials of a search are those of a shorter one."
    )
    return Table("Growing once, or searching", caption, columns, rows)


def budgets_table(searches: Searches) -> Table:
    """For each search, number of trials and chosen trial: what was chosen, and the budget spent."""
    unit, length = time_unit(max((budget.trial_seconds for budget in searches.budgets), default=0.0))
    stopped = any(budget.number("stopped") for budget in searches.budgets)
    too_large = any(search.record.max_parameters for search in searches.searches)
    columns = [
        "search", "preset", "seed", "trials finished", *(["stopped"] if stopped else []), "failed",
        *(["too large, not trained"] if too_large else []), "chosen", "settings", "validation accuracy, %",
        "test accuracy, %", "parameters", f"time of trials, {unit}", f"of final training, {unit}",
    ]  # fmt: skip
    rows = []
    for budget in searches.budgets:
        chosen: Sequence[tuple[Run | None, Run | None]] = budget.chosen or [(None, None)]
        for trial, final in chosen:
            rows.append(
                [
                    Cell(budget.name, budget.count),
                    Cell(budget.search.settings.preset, budget.search.settings.preset),
                    Cell(str(budget.search.settings.seed), budget.search.settings.seed),
                    _count(budget, "finished"),
                    *([_count(budget, "stopped")] if stopped else []),
                    _count(budget, "failed"),
                    *([_number(budget.search.record.too_large)] if too_large else []),
                    Cell(trial.path.name if trial else NONE, trial.path.name if trial else ""),
                    Cell(searched_values(budget.search, trial.settings) if trial else NONE, ""),
                    _accuracy(trial),
                    _accuracy(final),
                    _number(trial.result.parameters if trial and trial.result else None),
                    _seconds(budget.trial_seconds / length),
                    _seconds(budget.final_seconds / length),
                ]
            )
    caption = (
        "What each search chose by its validation accuracy, on data held out of the training split, and what that "
        "reached on the test split after training on the whole training split. Times are sums of training."
    )
    return Table("Searches", caption, columns, rows)


def _widths(found: Approach) -> str:
    """Final sizes, as means over seeds."""
    sizes = [list(network.result.widths.values()) for network in found.networks]
    if len({len(each) for each in sizes}) > 1:
        return NONE
    return "-".join(f"{sum(each) / len(each):.0f}" for each in zip(*sizes, strict=True))


def _count(budget: Budget, state: str) -> Cell:
    number = budget.number(state)
    return Cell(f"{number} of {budget.count}" if state == "finished" else str(number), number)


def _accuracy(run: Run | None) -> Cell:
    if run is None or run.result is None:
        return Cell(NONE, -1.0)
    return Cell(f"{100 * run.result.accuracy:.2f}", run.result.accuracy)


def _number(number: int | None) -> Cell:
    return Cell(NONE, -1.0) if number is None else Cell(f"{number:,}", number)


def _seconds(seconds: float) -> Cell:
    return Cell(f"{seconds:.3g}" if seconds < 1000 else f"{seconds:,.0f}", seconds)
