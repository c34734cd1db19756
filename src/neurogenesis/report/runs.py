"""Runs and studies as the report sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

import pandas as pd

from ..experiments.record import Environment, Epoch, RecordedSettings, Result, SearchRecord
from .names import is_static, strategy_name
from .steps import StepSummary

State = Literal["finished", "stopped", "failed", "unfinished", "unreadable", "missing"]
STATES: tuple[State, ...] = get_args(State)


@dataclass(frozen=True, eq=False)
class Run:
    """The record of a run. A run that a study lists and that does not exist has settings only."""

    path: Path
    settings: RecordedSettings
    state: State
    epochs: Sequence[Epoch] = ()
    result: Result | None = None
    environment: Environment | None = None
    steps: StepSummary = field(default_factory=StepSummary)
    failure: str = ""
    """The last line of failure.txt, or of stopped.txt."""

    @cached_property
    def epoch_table(self) -> pd.DataFrame:
        """Steps, loss, and accuracy in percent after each epoch."""
        rows = [(epoch.epoch, epoch.step, epoch.loss, epoch.accuracy) for epoch in self.epochs]
        table = pd.DataFrame(rows, columns=["epoch", "step", "loss", "accuracy"])
        return table.astype({"loss": float}).assign(accuracy=100 * table["accuracy"].astype(float))

    @property
    def strategy(self) -> str:
        return strategy_name(self.settings)

    @property
    def grows(self) -> bool:
        return not is_static(self.strategy)

    @property
    def train_seconds(self) -> float:
        """Seconds of training so far."""
        return self.result.train_seconds if self.result else sum(epoch.train_seconds for epoch in self.epochs)


@dataclass(frozen=True, eq=False)
class Search:
    """A search for settings."""

    path: Path
    record: SearchRecord
    trials: Sequence[Run]
    """In the order in which they were proposed; those that have no record yet are left out."""
    chosen: Sequence[Run]
    """The final training of trials that were chosen, in directories of the same name."""

    @property
    def settings(self) -> RecordedSettings:
        """What all trials have in common."""
        return RecordedSettings(self.record.settings)

    @property
    def runs(self) -> list[Run]:
        return [*self.trials, *self.chosen]


@dataclass(frozen=True, eq=False)
class Study:
    """Runs that are compared: those of a study.json, or else of a preset."""

    name: str
    title: str
    runs: Sequence[Run]
    against_static: bool = False
    """Whether it compares grown networks with static ones of several sizes, on any number of presets."""
    searches: Sequence[Search] = ()
    """Searches for settings, whose runs are among `runs`."""


@dataclass(frozen=True)
class Skipped:
    """A file or directory that is not in the report, and why."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True, eq=False)
class Found:
    """Everything that was found in some directories."""

    paths: Sequence[Path]
    studies: Sequence[Study]
    skipped: Sequence[Skipped]

    @property
    def runs(self) -> list[Run]:
        """The runs of all studies; grown ones may be part of two."""
        return list({run.path: run for study in self.studies for run in study.runs}.values())
