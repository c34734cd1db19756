"""Growing or searching: networks that grow once, next to searches for widths with several budgets.

The searches of all seeds go on side by side, each one trial at a time. So a trial depends only on those before it,
whatever the number of workers, and the first trials of a search are those of a search with a smaller budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..engines import Engine, Job, Place
from ..errors import UsageError, unknown_name
from ..presets import PRESETS
from ..progress import SweepProgress
from ..settings import Settings
from ..signals import sigterm_as_ctrl_c
from ..studies import NORTH
from ..sweep import record_study, sweep
from .choice import Goal
from .directory import writing_search
from .space import Space
from .trials import choice
from .tune import plan_search, record_of, require_optuna

if TYPE_CHECKING:
    from .search import Search

NAME = "growing-or-searching"
TITLE = "Growing once, or searching for widths"
Show = Callable[[SweepProgress], None]


@dataclass(frozen=True)
class Comparison:
    """The runs and searches on one preset."""

    grown: dict[str, Settings]
    """Growing runs by name."""
    spaces: dict[str, Space]
    """Spaces of the searches by name."""


def plan_comparisons(
    presets: Sequence[str], seeds: Sequence[int], budgets: Sequence[int], epochs: int | None
) -> list[Comparison]:
    """The runs and searches of each preset: the default strategy, north-select, and a search for each seed."""
    if not budgets or list(budgets) != sorted(set(budgets)):
        raise UsageError("--trials: expected increasing numbers, such as 5 10 20")
    comparisons = []
    for preset in dict.fromkeys(presets):
        if preset not in PRESETS:
            raise unknown_name("preset", preset, PRESETS)
        kind = PRESETS[preset]
        usual = [kind(seed=seed, epochs=epochs or kind().epochs) for seed in dict.fromkeys(seeds)]
        grown = [*usual, *(replace(settings, strategy=NORTH[0]) for settings in usual)]
        comparisons.append(
            Comparison(
                {f"{preset}/{settings.label}": settings for settings in grown},
                {f"{preset}/search-seed{each.seed}": plan_search(each, (), Goal(), budgets[0]) for each in usual},
            )
        )
    return comparisons


def compare(
    comparisons: Sequence[Comparison], out: Path, budgets: Sequence[int], engine: Engine, place: Place, show: Show
) -> dict[str, str]:
    """Do everything that is not done yet; why runs failed, by name."""
    require_optuna()
    from .search import Search

    record_study(out, NAME, TITLE, {name: settings for each in comparisons for name, settings in each.grown.items()})
    failed: dict[str, str] = {}
    done: list[str] = []
    total = sum(len(each.grown) + len(each.spaces) * (budgets[-1] + len(budgets)) for each in comparisons)

    def shown(now: SweepProgress) -> None:
        show(SweepProgress(total, list(now.running), [*done, *now.finished], {**failed, **now.failed}))

    def keep(progress: SweepProgress) -> None:
        done.extend(progress.finished)
        failed.update(progress.failed)

    for each in comparisons:
        keep(sweep(each.grown, out, engine, place, shown))
        with ExitStack() as stack:
            for name, space in each.spaces.items():
                stack.enter_context(writing_search(out / name, record_of(space, Goal(), "optuna", budgets)))
            tried = SweepProgress(len(each.spaces) * budgets[-1])
            searches = {
                name: Search(space, out / name, Goal(), budgets[-1], show=shown, at_once=1, progress=tried, name=name)
                for name, space in each.spaces.items()
            }
            _side_by_side(searches, engine, place)
            keep(tried)
            chosen = {
                f"{name}/{trial.final_name}": trial.final_settings
                for name, search in searches.items()
                for budget in budgets
                for trial in choice(search.trials[:budget], out / name, Goal())
            }
            total -= len(searches) * len(budgets) - len(chosen)  # what several budgets choose is trained once
            keep(sweep(chosen, out, engine, place, shown) if chosen else SweepProgress(0))
    return failed


def _side_by_side(searches: dict[str, Search], engine: Engine, place: Place) -> None:
    """Do the trials of several searches with one engine."""

    def next_job() -> Job | None:
        behind = sorted(searches.values(), key=lambda search: len(search.trials))  # so that all end at about one time
        return next((job for search in behind if (job := search.next_job()) is not None), None)

    def ended(job: Job, reason: str | None) -> None:
        searches[job.name.rpartition("/")[0]].ended(job, reason)

    with sigterm_as_ctrl_c():
        engine(next_job, ended, place)
