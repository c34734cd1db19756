"""The tables of searches: growing next to searching, and what each search chose and took."""

from __future__ import annotations

from .numbers import NONE, time_unit
from .runs import Run
from .searches import Approach, Searches, searched_values
from .tables import Cell, Table, make_table, mean_cell, number, time_cell


def searches_tables(searches: Searches) -> list[Table]:
    """Approaches side by side, if networks were grown or there are several seeds, and every search."""
    compared = len(searches.approaches) > len(searches.presets)
    tables = [*([approaches_table(searches)] if compared else []), budgets_table(searches)]
    return [table for table in tables if table.rows]


def approaches_table(searches: Searches) -> Table:
    """For each preset and approach: accuracy, parameters and total time of training."""
    unit, length = time_unit(max(found.results["seconds"].mean() for found in searches.approaches))
    rows = []
    for place, found in enumerate(searches.approaches):
        first = next(other for other in searches.approaches if other.preset == found.preset)
        rows.append(
            {
                "approach": Cell(found.name, float(place)),
                "preset": Cell(found.preset, float(searches.presets.index(found.preset))),
                "seeds": number(len(found.networks), ""),
                "test accuracy, %": mean_cell(found.results["accuracy"], ".2f"),
                "parameters": mean_cell(found.results["parameters"], ",.0f"),
                "widths": Cell(_widths(found), found.results["parameters"].mean()),
                f"training time, {unit}": time_cell(found.results["seconds"], length),
                "times as long": number(
                    found.results["seconds"].mean() / max(first.results["seconds"].mean(), 1e-9), ".1f"
                ),
            }
        )
    caption = (
        "Mean ± standard deviation over seeds. Time is that of all training that was necessary: of a search, its "
        "trials and the final training of what it chose; in the last column as a multiple of that of the preset's "
        "first row. The first trials of a search are those of a shorter one."
    )
    return make_table("Growing once, or searching", caption, rows)


def budgets_table(searches: Searches) -> Table:
    """For each search, number of trials and chosen trial: what was chosen, and the budget spent."""
    unit, length = time_unit(max((budget.trial_seconds for budget in searches.budgets), default=0.0))
    stopped = any(budget.number("stopped") for budget in searches.budgets)
    too_large = any(search.record.max_parameters for search in searches.searches)
    nothing: list[tuple[Run | None, Run | None]] = [(None, None)]
    rows = []
    for budget in searches.budgets:
        settings, finished = budget.search.settings, budget.number("finished")
        for trial, final in budget.chosen or nothing:
            rows.append(
                {
                    "search": Cell(budget.name, budget.count),
                    "preset": Cell(budget.preset, budget.preset),
                    "seed": Cell(str(settings.seed), settings.seed),
                    "trials finished": Cell(f"{finished} of {budget.count}", finished),
                    **({"stopped": number(budget.number("stopped"), "")} if stopped else {}),
                    "failed": number(budget.number("failed"), ""),
                    **({"too large, not trained": number(budget.search.record.too_large, ",")} if too_large else {}),
                    "chosen": Cell(trial.path.name if trial else NONE, trial.path.name if trial else ""),
                    "settings": Cell(searched_values(budget.search, trial.settings) if trial else NONE, ""),
                    "validation accuracy, %": _accuracy(trial),
                    "test accuracy, %": _accuracy(final),
                    "parameters": number(trial.result.parameters if trial and trial.result else None, ","),
                    f"time of trials, {unit}": _seconds(budget.trial_seconds / length),
                    f"of final training, {unit}": _seconds(budget.final_seconds / length),
                }
            )
    caption = (
        "What each search chose by its validation accuracy, on data held out of the training split, and what that "
        "reached on the test split after training on the whole training split. Times are sums of training."
    )
    return make_table("Searches", caption, rows)


def _widths(found: Approach) -> str:
    """Final sizes, as means over seeds."""
    sizes = [list(network.result.widths.values()) for network in found.networks]
    if len({len(each) for each in sizes}) > 1:
        return NONE
    return "-".join(f"{sum(each) / len(each):.0f}" for each in zip(*sizes, strict=True))


def _accuracy(run: Run | None) -> Cell:
    return number(run.result.accuracy * 100 if run and run.result else None, ".2f")


def _seconds(seconds: float) -> Cell:
    return number(seconds, ".3g" if seconds < 1000 else ",.0f")
