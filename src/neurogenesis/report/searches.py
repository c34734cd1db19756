"""Searches for settings next to grown networks: what was chosen after some trials, and what it took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import pandas as pd

from ..experiments.presets import NAMES
from ..experiments.record import RecordedSettings, Result
from ..experiments.tuning.choice import Goal, choose
from .names import display_name, search_name, strategy_rank
from .runs import Run, Search, Study
from .sections import Configuration, results_frame


@dataclass(frozen=True, eq=False)
class Budget:
    """A search after some of its trials."""

    search: Search
    count: int
    """Trials that there were to be."""

    @property
    def name(self) -> str:
        return search_name(self.count)

    @property
    def preset(self) -> str:
        return str(self.search.settings.preset)

    @property
    def trials(self) -> list[Run]:
        return [run for run in self.search.trials if trial_number(run) <= self.count]

    @property
    def complete(self) -> bool:
        """Whether all trials have ended."""
        return max(map(trial_number, self.trials), default=0) == self.count and not self.number("unfinished")

    def number(self, state: str) -> int:
        """The number of trials in a state."""
        return sum(run.state == state for run in self.trials)

    @cached_property
    def chosen(self) -> list[tuple[Run, Run | None]]:
        """The trials that are chosen, each with its final training, if that was started."""
        trials = {run.path.name: run for run in self.trials}
        results = {name: run.result for name, run in trials.items() if run.result is not None}
        finals = {run.path.name: run for run in self.search.chosen}
        goal = Goal(self.search.record.objective, self.search.record.max_parameters)
        return [(trials[name], finals.get(name)) for name in choose(results, goal)]

    @property
    def tested(self) -> list[Run]:
        """The finished final trainings of what is chosen."""
        return [final for _, final in self.chosen if final is not None and final.result is not None]

    @property
    def trial_seconds(self) -> float:
        """Seconds of training of all trials, stopped ones included."""
        return sum(run.train_seconds for run in self.trials)

    @property
    def final_seconds(self) -> float:
        """Seconds of the final training of what is chosen."""
        return sum(final.train_seconds for _, final in self.chosen if final is not None)


def trial_number(run: Run) -> int:
    """The number of a trial, from 1, by its directory."""
    digits = run.path.name.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else 0


class Network(NamedTuple):
    """A network that can be used: it is tested, and what it took to get it is known."""

    result: Result
    seconds: float
    """The time of all training that was necessary, trials included."""


@dataclass(frozen=True, eq=False)
class Approach:
    """A way to get a network on a preset, with several seeds."""

    name: str
    """The name in print."""
    preset: str
    networks: Sequence[Network]
    searched: bool
    """Whether it is a search."""

    @cached_property
    def results(self) -> pd.DataFrame:
        """The results of the networks; their seconds are those of all training that was necessary."""
        frame = results_frame(list(enumerate(network.result for network in self.networks)))
        return frame.assign(seconds=[float(network.seconds) for network in self.networks])


@dataclass(frozen=True, eq=False)
class Searches:
    """Searches on one or several presets, and the networks that were grown beside them."""

    name: str
    """The name as part of file names."""
    title: str
    searches: Sequence[Search]
    grown: Sequence[Run]

    @property
    def runs(self) -> list[Run]:
        return [*self.grown, *(run for search in self.searches for run in search.runs)]

    @property
    def configurations(self) -> list[Configuration]:
        """Runs by strategy, without those that a search stopped on purpose."""
        groups: dict[str, list[Run]] = {}
        for run in self.runs:
            if run.state != "stopped":
                groups.setdefault(run.strategy, []).append(run)
        return [Configuration(strategy, {}, {}, runs) for strategy, runs in groups.items()]

    @property
    def presets(self) -> list[str]:
        return list(dict.fromkeys(search.settings.preset for search in self.searches))

    @cached_property
    def budgets(self) -> list[Budget]:
        """Every search after every number of trials at which a choice is made."""
        ordered = sorted(self.searches, key=lambda s: (self.presets.index(s.settings.preset), s.settings.seed))
        return [Budget(search, count) for search in ordered for count in search.record.budgets]

    @cached_property
    def approaches(self) -> list[Approach]:
        """Growing, and searching with each number of trials, by preset; only what was tested on the test split."""
        return [found for preset in self.presets for found in (*self._grown(preset), *self._searched(preset))]

    def _grown(self, preset: str) -> list[Approach]:
        groups: dict[str, list[Network]] = {}
        for run in self.grown:
            if run.settings.preset == preset and run.result is not None and not run.settings.holdout:
                groups.setdefault(run.strategy, []).append(Network(run.result, run.train_seconds))
        ordered = sorted(groups, key=strategy_rank)
        return [Approach(display_name(strategy), preset, groups[strategy], searched=False) for strategy in ordered]

    def _searched(self, preset: str) -> list[Approach]:
        groups: dict[int, list[Network]] = {}
        for budget in self.budgets:
            if budget.preset == preset and budget.complete and len(budget.chosen) == 1:
                for final in budget.tested:
                    assert final.result is not None
                    network = Network(final.result, budget.trial_seconds + final.train_seconds)
                    groups.setdefault(budget.count, []).append(network)
        return [Approach(search_name(count), preset, groups[count], searched=True) for count in sorted(groups)]


def make_searches(study: Study, name: str) -> Searches:
    """The searches of a study, and its grown networks."""
    searched = {run.path for search in study.searches for run in search.runs}
    grown = [run for run in study.runs if run.path not in searched and run.grows]
    return Searches(name, study.title, study.searches, grown)


def searched_values(search: Search, settings: RecordedSettings) -> str:
    """The values of a trial for the settings that are searched."""
    values = {name: settings.get(name) for name in search.record.space if name in settings}
    texts = [f"{name.replace('_', ' ')} {value:g}" if isinstance(value, float) else f"{name.replace('_', ' ')} {value}"
             for name, value in values.items()]  # fmt: skip
    if len(values) < len(search.record.space):
        texts.insert(0, str(settings.get(NAMES.shape)))
    return ", ".join(texts)
