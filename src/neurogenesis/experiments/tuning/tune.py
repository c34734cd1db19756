"""`neurogenesis tune`: check what is asked for, search, and train what is chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Literal

from ..engines import HERE, Engine, Place
from ..errors import UsageError
from ..presets import NAMES
from ..progress import SweepProgress
from ..record import SearchRecord
from ..settings import Settings
from ..signals import sigterm_as_ctrl_c
from ..sweep import sweep
from .choice import OBJECTIVES, Goal
from .directory import record_too_large, writing_search
from .search import Search
from .space import Space, initial_parameters, make_space
from .trials import Trial, choice

Sampler = Literal["optuna", "asha"]
"""What proposes the trials of a search: Optuna, or chance, with Ray Tune stopping those that are behind."""
_PACKAGES = {"optuna": ("Optuna", "optuna", "tune"), "asha": ("Ray Tune", "ray.tune", "ray")}
"""Of each sampler, what it needs, its module and our extra."""
HOLDOUT = 0.1
"""The fraction of the training split to choose by, where none is set."""


def plan_search(settings: Settings, searched: Sequence[str], goal: Goal, trials: int) -> Space:
    """The space of a search, all of whose trials hold data out; UsageError if nothing can come of it."""
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
    return space


def require_sampler(sampler: Sampler) -> None:
    """UsageError if what the sampler needs is not installed."""
    package, module, extra = _PACKAGES[sampler]
    try:
        import_module(module)
    except ImportError:
        raise UsageError(f"searching needs {package}: pip install 'torch-neurogenesis[{extra}]'") from None


def check_asha(space: Space, goal: Goal) -> None:
    """UsageError if trials of such a search cannot be stopped by their accuracy after the same number of epochs."""
    if goal.objective != "accuracy":
        raise UsageError(f"--objective {goal.objective} needs --sampler optuna: ASHA stops trials by accuracy alone")
    if NAMES.epochs in space.settings:
        raise UsageError("--search epochs needs --sampler optuna: ASHA compares trials after the same number of epochs")
    if space.base.patience is not None:
        raise UsageError(f"{space.base.name} needs --sampler optuna: trainings end after different numbers of epochs")


def record_of(space: Space, goal: Goal, sampler: Sampler, budgets: Sequence[int]) -> SearchRecord:
    """What identifies a search."""
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
    """What came of a search."""

    out: Path
    trials: Sequence[Trial]
    chosen: Sequence[Trial]
    failed: Mapping[str, str]
    """Why runs failed, by name."""
    too_large: int
    """Candidates that were not trained."""

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
) -> Outcome:
    """Search with Optuna until there are so many trials, and train what is chosen on the whole training split.

    Args:
        space: what is searched, from `plan_search`.
        out: the directory of the search; the same call goes on with what is there.
        goal: what to look for.
        trials: the number of trials, those that are there included.
        engine: does the runs.
        place: what all runs use: data, device and number of threads.
        show: called whenever a run starts or ends.
    """
    require_sampler("optuna")
    with writing_search(out, record_of(space, goal, "optuna", [trials])):
        search = Search(space, out, goal, trials, show=show)
        try:
            with sigterm_as_ctrl_c():
                engine(search.next_job, search.ended, place)
        finally:
            record_too_large(out, search.too_large)
        return train_chosen(out, search.trials[:trials], goal, engine, place, show, search.progress, search.too_large)


def train_chosen(
    out: Path,
    trials: Sequence[Trial],
    goal: Goal,
    engine: Engine,
    place: Place,
    show: Callable[[SweepProgress], None],
    tried: SweepProgress,
    too_large: int,
) -> Outcome:
    """Train what is chosen among trials on the whole training split, and test it."""
    chosen = choice(trials, out, goal)
    finals = {trial.final_name: trial.final_settings for trial in chosen}
    total = len(tried.finished) + len(tried.failed) + len(finals)

    def shown(now: SweepProgress) -> None:
        show(SweepProgress(total, now.running, [*tried.finished, *now.finished], {**tried.failed, **now.failed}))

    progress = sweep(finals, out, engine, place, shown) if finals else SweepProgress(0)
    return Outcome(out, trials, chosen, {**tried.failed, **progress.failed}, too_large)
