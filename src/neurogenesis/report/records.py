"""What a run's files hold, as plain records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from .trace import Step, Trace

State = Literal["finished", "failed", "unfinished", "unreadable", "missing"]
STATES: tuple[State, ...] = get_args(State)


@dataclass(frozen=True)
class Epoch:
    """A line of epochs.jsonl; what is not finite is None."""

    epoch: int
    step: int
    loss: float | None
    accuracy: float | None
    widths: Mapping[str, int]


@dataclass(frozen=True)
class Result:
    """What a finished run ended with."""

    accuracy: float
    parameters: int
    train_seconds: float
    widths: Mapping[str, int]
    initial_widths: Mapping[str, int]
    standard_widths: Mapping[str, int] | None

    def unit(self, layer: str) -> int:
        """The size that a width is relative to: of the standard network where there is one."""
        return (self.standard_widths or self.initial_widths)[layer]

    def relative(self, layer: str) -> float:
        """A final width relative to it."""
        return self.widths[layer] / self.unit(layer)


@dataclass(frozen=True)
class Run:
    """The records of a run; one that a study lists and that is not there has its settings alone."""

    path: Path
    settings: Mapping[str, Any]
    state: State
    epochs: Sequence[Epoch] = ()
    result: Result | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    trace: Trace = field(default_factory=Trace)
    failure: str = ""  # the last line of the traceback


@dataclass(frozen=True)
class Study:
    """Runs that belong together, by a study.json above them or else by their preset."""

    name: str
    title: str
    runs: Sequence[Run]


@dataclass(frozen=True)
class LeftOut:
    """A file or directory that the report does without, and why."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True)
class Records:
    """Everything that was found below some paths."""

    paths: Sequence[Path]
    studies: Sequence[Study]
    left_out: Sequence[LeftOut]

    @property
    def runs(self) -> list[Run]:
        """The runs of all studies."""
        return [run for study in self.studies for run in study.runs]


def parse_settings(content: Any) -> Mapping[str, Any]:
    """What settings.json holds."""
    for key, kind in (("preset", str), ("strategy", str), ("seed", int)):
        if not isinstance(content[key], kind):
            raise TypeError(f"{key} is {content[key]!r}")
    return dict(content)


def parse_study(content: Any) -> Mapping[str, Any]:
    """What study.json holds."""
    runs = {str(name): parse_settings(settings) for name, settings in content["runs"].items()}
    return {"study": str(content["study"]), "title": str(content.get("title") or content["study"]), "runs": runs}


def parse_result(content: Any) -> Result:
    """What result.json holds."""
    widths, initial = _sizes(content["widths"]), _sizes(content["initial_widths"])
    standard = _sizes(content["standard_widths"]) if content.get("standard_widths") else None
    for known in (initial, standard or initial):
        if not widths.keys() <= known.keys() or not all(known.values()):
            raise ValueError("its widths have no initial or no standard size")
    accuracy, seconds = _needed(content["accuracy"]), _needed(content["train_seconds"])
    return Result(accuracy, int(content["parameters"]), seconds, widths, initial, standard)


def parse_epoch(line: Any) -> Epoch:
    """A line of epochs.jsonl."""
    loss, accuracy = finite(line["loss"]), finite(line["accuracy"])
    return Epoch(int(line["epoch"]), int(line["step"]), loss, accuracy, _sizes(line["widths"]))


def parse_step(line: Any) -> Step:
    """A line of steps.jsonl."""
    metric, threshold = _measured(line.get("metric")), _measured(line.get("threshold"))
    times = [finite(line.get(key)) or 0.0 for key in ("seconds", "trigger_seconds", "initialization_seconds")]
    return Step(int(line["step"]), _sizes(line["widths"]), metric, threshold, *times)


def _sizes(content: Any) -> dict[str, int]:
    return {str(name): int(size) for name, size in content.items()}


def _measured(content: Any) -> dict[str, float]:
    numbers: Iterable[tuple[Any, float | None]] = ((name, finite(value)) for name, value in (content or {}).items())
    return {str(name): value for name, value in numbers if value is not None}


def _needed(value: Any) -> float:
    number = finite(value)
    if number is None:
        raise ValueError(f"{value!r} is not a finite number")
    return number


def finite(value: Any) -> float | None:
    """A number, or None of what is missing or not finite, as losses of diverged runs are."""
    number = float(value) if value is not None else math.nan
    return number if math.isfinite(number) else None
