"""The trials of a search: Optuna proposes settings, an engine trains them, and Optuna is told the results.

Optuna's storage keeps the proposals, the directories of the trials keep the results. Both survive a kill at any moment:
a search goes on where it was. Every proposal has its own random numbers, so that it depends only on the seed and on the
results before it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import SuccessiveHalvingPruner
from optuna.samplers import RandomSampler, TPESampler
from optuna.storages import RDBStorage
from optuna.trial import TrialState

from ..building import derived_seed
from ..engines import Job
from ..files import write_text
from ..progress import SweepProgress
from ..record import FAILURE_FILE, STOPPED_FILE, STORAGE_FILE
from ..settings import Settings
from .choice import Goal, Sampler
from .space import Domain, Range, Space, initial_parameters
from .trials import Trial, trial_name

_AT_RANDOM = 5  # trials before Optuna's model has something to go by; its default of 10 is for longer searches
_MOST_REDRAWS = 200
_STUDY = "search"
_REDUCTION = 3  # of the trials that are compared at an epoch, one in three goes on


class Search:
    """The trials of a search in a directory; `next_job` and `ended` are called by an engine.

    Args:
        space: the space to search.
        out: the directory of the search.
        goal: the objective and the limit of parameters.
        count: the number of trials, including those of earlier processes.
        sampler: how trials are proposed.
        show: called whenever a trial starts or ends.
        at_once: maximum number of trials at a time; by default as many as the engine has room for.
        progress: the common progress of several searches, by default one of its own.
        name: the name of this search among several, put before the names of its trials.
    """

    def __init__(
        self,
        space: Space,
        out: Path,
        goal: Goal,
        count: int,
        sampler: Sampler = "optuna",
        show: Callable[[SweepProgress], None] = lambda progress: None,
        at_once: int | None = None,
        progress: SweepProgress | None = None,
        name: str | None = None,
    ):
        self.space, self.out, self.goal, self.count = space, out, goal, count
        self.trials: list[Trial] = []
        self.too_large = 0
        """The number of proposals that were not trained."""
        self.progress = progress or SweepProgress(count)
        self._sampler, self._show, self._at_once, self._name = sampler, show, at_once, name
        self._running = 0
        self._waiting: list[Trial] = []  # trials to go on with
        self._numbers: dict[str, int] = {}  # Optuna's, by name
        self._study = _open_study(out, goal)
        self._study.pruner = SuccessiveHalvingPruner(_first_comparison(space.base), _REDUCTION)
        self._load()

    def next_job(self) -> Job | None:
        """The next trial; None if none can start now."""
        if self._running == self._at_once:
            return None
        trial = self._waiting.pop(0) if self._waiting else self._propose()
        if trial is None:
            return None
        (self.out / trial.name / FAILURE_FILE).unlink(missing_ok=True)
        self._running += 1
        self.progress.running.append(self._shown(trial))
        self._show(self.progress)
        return Job(self._shown(trial), trial.settings, self.out / trial.name, self._until(trial))

    def ended(self, job: Job, reason: str | None) -> None:
        """Tell Optuna how a trial ended, or how it is doing."""
        self._running -= 1
        self.progress.running.remove(job.name)
        trial = Trial(job.directory.name, job.settings)
        if reason is None and job.until is not None and trial.result(self.out) is None:
            if not self._is_behind(trial, job.until):
                self._waiting.insert(0, trial)
                return
            self._stop(trial, job.until)
        if reason is None:
            self.progress.finished.append(job.name)
        else:
            self.progress.failed[job.name] = reason
        self._tell(trial)
        self._show(self.progress)

    def _shown(self, trial: Trial) -> str:
        """The name of a trial among all that are shown."""
        return trial.name if self._name is None else f"{self._name}/{trial.name}"

    def _until(self, trial: Trial) -> int | None:
        """The next epoch after which a trial is compared with others, if there is one."""
        if self._sampler == "optuna":
            return None
        seen = self._study.get_trials(deepcopy=False)[self._numbers[trial.name]].last_step or 0
        until = _first_comparison(trial.settings)
        while until <= seen:
            until *= _REDUCTION
        return until if until < trial.settings.epochs else None

    def _is_behind(self, trial: Trial, epoch: int) -> bool:
        """Whether a trial that has done so many epochs is too far behind to go on."""
        frozen = self._study.get_trials(deepcopy=False)[self._numbers[trial.name]]
        asked = optuna.Trial(self._study, frozen._trial_id)  # it may have been asked for by an earlier process
        asked.report(trial.accuracy(self.out), epoch)
        return bool(asked.should_prune())

    def _stop(self, trial: Trial, epoch: int) -> None:
        text = f"stopped after epoch {epoch} of {trial.settings.epochs}, because other trials were ahead\n"
        write_text(self.out / trial.name / STOPPED_FILE, text)

    def _propose(self) -> Trial | None:
        """The next trial; None if there are enough, or if too many proposals in a row are too large."""
        for _ in range(_MOST_REDRAWS if len(self.trials) < self.count else 0):
            seed = derived_seed(self.space.base.seed, f"proposal {len(self.trials) + self.too_large}")
            if self._sampler == "asha":
                self._study.sampler = RandomSampler(seed=seed)
            else:
                self._study.sampler = TPESampler(n_startup_trials=_AT_RANDOM, seed=seed)
            asked = self._study.ask({name: _distribution(domain) for name, domain in self.space.domains.items()})
            if (trial := self._add(asked.number, asked.params)) is not None:
                return trial
        return None

    def _add(self, number: int, point: dict[str, Any]) -> Trial | None:
        """Add a proposal to the trials, unless its network is too large."""
        settings = self.space.at(point)
        if not self.goal.allows(initial_parameters(settings)):
            self.too_large += 1
            self._study.tell(number, state=TrialState.PRUNED, skip_if_finished=True)
            return None
        trial = Trial(trial_name(len(self.trials)), settings)
        self.trials.append(trial)
        self._numbers[trial.name] = number
        return trial

    def _tell(self, trial: Trial) -> None:
        result, number = trial.result(self.out), self._numbers[trial.name]
        if trial.is_stopped(self.out) or (result is not None and not self.goal.allows(result.parameters)):  # it grew
            self._study.tell(number, state=TrialState.PRUNED, skip_if_finished=True)
        elif result is None:
            self._study.tell(number, state=TrialState.FAIL, skip_if_finished=True)
        else:
            values = [result.accuracy, *([result.parameters] if self.goal.objective == "pareto" else [])]
            self._study.tell(number, values, skip_if_finished=True)

    def _load(self) -> None:
        """Go on with the trials of an earlier process; one that it had not completely proposed is proposed again."""
        for asked in self._study.trials:
            if asked.params.keys() != self.space.domains.keys():
                self._study.tell(asked.number, state=TrialState.FAIL, skip_if_finished=True)
                continue
            trial = self._add(asked.number, asked.params)
            if trial is None or len(self.trials) > self.count:
                continue
            if trial.result(self.out) is not None or trial.is_stopped(self.out):
                self._tell(trial)
                self.progress.finished.append(self._shown(trial))
            elif asked.state == TrialState.FAIL:
                self.progress.failed[self._shown(trial)] = trial.failure(self.out)
            else:
                self._waiting.append(trial)


def _first_comparison(settings: Settings) -> int:
    """The first epoch after which trials are compared."""
    return max(1, settings.epochs // _REDUCTION**2)


def _open_study(out: Path, goal: Goal) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path = str(out / STORAGE_FILE)
    storage = RDBStorage(  # a connection, because an address cannot have every path
        f"sqlite:///{STORAGE_FILE}", engine_kwargs={"creator": lambda: sqlite3.connect(path, check_same_thread=False)}
    )
    directions = ["maximize", "minimize"] if goal.objective == "pareto" else ["maximize"]
    return optuna.create_study(storage=storage, study_name=_STUDY, directions=directions, load_if_exists=True)


def _distribution(domain: Domain) -> BaseDistribution:
    if not isinstance(domain, Range):
        return CategoricalDistribution(domain.values)
    if domain.whole:
        return IntDistribution(int(domain.low), int(domain.high), log=domain.log)
    return FloatDistribution(domain.low, domain.high, log=domain.log)
