"""Runs and studies as the report sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from ..experiments.record import Environment, Epoch, RecordedSettings, Result
from .steps import StepSummary

State = Literal["finished", "failed", "unfinished", "unreadable", "missing"]
STATES: tuple[State, ...] = get_args(State)


@dataclass(frozen=True)
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
    """The last line of failure.txt."""


@dataclass(frozen=True)
class Study:
    """Runs that are compared: those of a study.json, or else of a preset."""

    name: str
    title: str
    runs: Sequence[Run]
    against_static: bool = False
    """Whether it compares grown networks with static ones of several sizes, on any number of presets."""


@dataclass(frozen=True)
class Skipped:
    """A file or directory that is not in the report, and why."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True)
class Found:
    """Everything that was found in some directories."""

    paths: Sequence[Path]
    studies: Sequence[Study]
    skipped: Sequence[Skipped]

    @property
    def runs(self) -> list[Run]:
        """The runs of all studies."""
        return [run for study in self.studies for run in study.runs]
