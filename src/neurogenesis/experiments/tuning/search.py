"""The trials of a search: Optuna proposes settings, an engine trains them, and Optuna is told what came out.

Optuna's own storage keeps what was proposed, the directories of the trials what came out. Both survive a kill at any
moment: a search goes on where it was. Every proposal has its own random numbers, so that it depends on the seed and on
the results before it alone.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..building import derived_seed
from ..engines import Job
from ..progress import SweepProgress
from ..record import FAILURE_FILE, STORAGE_FILE
from .choice import Goal
from .space import Domain, Range, Space, initial_parameters
from .trials import Trial, trial_name

if TYPE_CHECKING:
    import optuna

_AT_RANDOM = 5  # trials before Optuna's model has something to go by; its default of 10 is for longer searches
_MOST_REDRAWS = 200
_STUDY = "search"


class Search:
    """The trials of a search in a directory. `next_job` and `ended` are those of an engine.

    Args:
        space: what is searched.
        out: the directory of the search.
        goal: what it looks for.
        count: the number of trials, those that are there included.
        at_once: trials that may run at the same time; None for as many as the engine has room for.
        show: called whenever a trial starts or ends.
    """

    def __init__(
        self,
        space: Space,
        out: Path,
        goal: Goal,
        count: int,
        at_once: int | None = None,
        show: Callable[[SweepProgress], None] = lambda progress: None,
    ):
        self.space, self.out, self.goal, self.count = space, out, goal, count
        self.trials: list[Trial] = []
        self.too_large = 0
        """Proposals that were not trained."""
        self.progress = SweepProgress(count)
        self._at_once, self._show = at_once, show
        self._waiting: list[Trial] = []  # trials of an earlier process that are not finished
        self._numbers: dict[str, int] = {}  # Optuna's, by name
        self._study = _open_study(out, goal)
        self._load()

    def next_job(self) -> Job | None:
        """The next trial; None if none can start now."""
        if self._at_once is not None and len(self.progress.running) >= self._at_once:
            return None
        trial = self._waiting.pop(0) if self._waiting else self._propose()
        if trial is None:
            return None
        (self.out / trial.name / FAILURE_FILE).unlink(missing_ok=True)
        self.progress.running.append(trial.name)
        self._show(self.progress)
        return Job(trial.name, trial.settings, self.out / trial.name)

    def ended(self, job: Job, reason: str | None) -> None:
        """Tell Optuna how a trial ended."""
        self.progress.running.remove(job.name)
        if reason is None:
            self.progress.finished.append(job.name)
        else:
            self.progress.failed[job.name] = reason
        self._tell(Trial(job.name, job.settings))
        self._show(self.progress)

    def _propose(self) -> Trial | None:
        """The next trial; None if there are enough, or if too many proposals in a row are too large."""
        import optuna

        for _ in range(_MOST_REDRAWS if len(self.trials) < self.count else 0):
            seed = derived_seed(self.space.base.seed, f"proposal {len(self.trials) + self.too_large}")
            self._study.sampler = optuna.samplers.TPESampler(n_startup_trials=_AT_RANDOM, seed=seed)
            asked = self._study.ask({name: _distribution(domain) for name, domain in self.space.domains.items()})
            if (trial := self._add(asked.number, asked.params)) is not None:
                return trial
        return None

    def _add(self, number: int, point: dict[str, Any]) -> Trial | None:
        """Add what was proposed to the trials, unless it is too large."""
        settings = self.space.at(point)
        if not self.goal.allows(initial_parameters(settings)):
            self.too_large += 1
            self._study.tell(number, state=_states().PRUNED, skip_if_finished=True)
            return None
        trial = Trial(trial_name(len(self.trials)), settings)
        self.trials.append(trial)
        self._numbers[trial.name] = number
        return trial

    def _tell(self, trial: Trial) -> None:
        result, number = trial.result(self.out), self._numbers[trial.name]
        if result is None:
            self._study.tell(number, state=_states().FAIL, skip_if_finished=True)
        elif not self.goal.allows(result.parameters):  # it grew
            self._study.tell(number, state=_states().PRUNED, skip_if_finished=True)
        else:
            values = [result.accuracy, *([result.parameters] if self.goal.objective == "pareto" else [])]
            self._study.tell(number, values, skip_if_finished=True)

    def _load(self) -> None:
        """Take up what an earlier process has done; a trial that it was still proposing is proposed again."""
        states = _states()
        for asked in self._study.trials:
            if asked.params.keys() != self.space.domains.keys():
                self._study.tell(asked.number, state=states.FAIL, skip_if_finished=True)
                continue
            trial = self._add(asked.number, asked.params)
            if trial is None or len(self.trials) > self.count:
                continue
            if trial.result(self.out) is not None:
                self._tell(trial)
                self.progress.finished.append(trial.name)
            elif asked.state == states.FAIL:
                self.progress.failed[trial.name] = trial.failure(self.out)
            else:
                self._waiting.append(trial)


def _open_study(out: Path, goal: Goal) -> optuna.Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path = str(out / STORAGE_FILE)
    storage = optuna.storages.RDBStorage(  # a connection, because an address cannot have every path
        f"sqlite:///{STORAGE_FILE}", engine_kwargs={"creator": lambda: sqlite3.connect(path, check_same_thread=False)}
    )
    directions = ["maximize", "minimize"] if goal.objective == "pareto" else ["maximize"]
    return optuna.create_study(storage=storage, study_name=_STUDY, directions=directions, load_if_exists=True)


def _states() -> Any:
    from optuna.trial import TrialState

    return TrialState


def _distribution(domain: Domain) -> optuna.distributions.BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if not isinstance(domain, Range):
        return CategoricalDistribution(domain.values)
    if domain.whole:
        return IntDistribution(int(domain.low), int(domain.high), log=domain.log)
    return FloatDistribution(domain.low, domain.high, log=domain.log)
