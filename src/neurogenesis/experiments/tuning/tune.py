"""A search: check the request, do the trials, and train the chosen ones on the whole training split."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

from ..engines import HERE, Engine, Place
from ..errors import UsageError
from ..presets import NAMES
from ..progress import SweepProgress
from ..record import SearchRecord
from ..settings import Settings
from ..signals import sigterm_as_ctrl_c
from ..sweep import sweep
from .choice import OBJECTIVES, Goal, Sampler
from .directory import record_too_large, writing_search
from .space import Space, initial_parameters, make_space
from .trials import Trial, choice

HOLDOUT = 0.1
"""The fraction of the training split to choose by, where none is set."""


def plan_search(
    settings: Settings, searched: Sequence[str], goal: Goal, trials: int, sampler: Sampler = "optuna"
) -> Space:
    """The space of a search whose trials hold data out; UsageError if no trial would be valid."""
    if trials < 1:
        raise UsageError(f"--trials: expected a positive number, not {trials}")
    if goal.objective not in OBJECTIVES:
        raise UsageError(f"--objective {goal.objective}: choose {' or '.join(OBJECTIVES)}")
    if goal.max_parameters is not None and goal.max_parameters < 1:
        raise UsageError(f"--max-parameters: expected a positive number, not {goal.max_parameters}")
    space = make_space(replace(settings, holdout=settings.holdout or HOLDOUT), searched)
    smallest = min(
        initial_parameters(space.at({name: domain.examples[end] for name, domain in space.domains.items()}))
        for end in (0, -1)
    )
    if not goal.allows(smallest):
        raise UsageError(f"--max-parameters {goal.max_parameters}: the smallest network has {smallest}")
    if sampler == "asha":
        _check_asha(space, goal)
    return space


def require_optuna() -> None:
    """UsageError if Optuna is not installed."""
    try:
        import_module("optuna")
    except ImportError:
        raise UsageError("searching needs Optuna: pip install 'torch-neurogenesis[tune]'") from None


def _check_asha(space: Space, goal: Goal) -> None:
    """UsageError if trials of such a search cannot be stopped by their accuracy after the same number of epochs."""
    if goal.objective != "accuracy":
        raise UsageError(f"--objective {goal.objective} needs --sampler optuna: ASHA stops trials by accuracy alone")
    if NAMES.epochs in space.settings:
        raise UsageError("--search epochs needs --sampler optuna: ASHA compares trials after the same number of epochs")
    if space.base.patience is not None:
        raise UsageError(f"{space.base.name} needs --sampler optuna: trainings end after different numbers of epochs")


def record_of(space: Space, goal: Goal, sampler: Sampler, budgets: Sequence[int]) -> SearchRecord:
    """The record that identifies a search."""
    return SearchRecord(
        settings=space.base.record(),
        space={name: str(domain) for name, domain in space.domains.items()},
        objective=goal.objective,
        max_parameters=goal.max_parameters,
        sampler=sampler,
        budgets=list(budgets),
    )


@dataclass(frozen=True)
class Outcome:
    """The outcome of a search."""

    out: Path
    trials: Sequence[Trial]
    chosen: Sequence[Trial]
    failed: Mapping[str, str]
    """Why runs failed, by name."""
    too_large: int
    """The number of candidates that were not trained."""

    @property
    def trial_seconds(self) -> float:
        """Seconds of training of all trials."""
        return sum(trial.train_seconds(self.out) for trial in self.trials)


def tune(
    space: Space,
    out: Path,
    goal: Goal,
    trials: int,
    engine: Engine,
    place: Place = HERE,
    show: Callable[[SweepProgress], None] = lambda progress: None,
    sampler: Sampler = "optuna",
) -> Outcome:
    """Search with Optuna, and train the chosen trials on the whole training split.

    Args:
        space: the space, from `plan_search`.
        out: the directory of the search; a search that is there is resumed.
        goal: the objective and the limit of parameters.
        trials: the number of trials, including those of earlier processes.
        engine: does the runs.
        place: data, device and number of threads of all runs.
        show: called whenever a run starts or ends.
        sampler: how trials are proposed.
    """
    require_optuna()
    from .search import Search

    with writing_search(out, record_of(space, goal, sampler, [trials])):
        search = Search(space, out, goal, trials, sampler, show=show)
        try:
            with sigterm_as_ctrl_c():
                engine(search.next_job, search.ended, place)
        finally:
            record_too_large(out, search.too_large)
        tried, chosen = search.progress, choice(search.trials[:trials], out, goal)
        finals = {trial.final_name: trial.final_settings for trial in chosen}
        total = len(tried.finished) + len(tried.failed) + len(finals)

        def shown(now: SweepProgress) -> None:
            show(SweepProgress(total, now.running, [*tried.finished, *now.finished], {**tried.failed, **now.failed}))

        progress = sweep(finals, out, engine, place, shown) if finals else SweepProgress(0)
    return Outcome(out, search.trials[:trials], chosen, {**tried.failed, **progress.failed}, search.too_large)
