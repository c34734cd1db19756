"""The record of a run: the names of its files, and the fields of each.

==================  =========================================================================================
settings.json       the settings of the run: the preset's name and all fields of `settings.Settings`
environment.json    `Environment`: versions, device, threads, commit
steps.jsonl         a `Step` per line
epochs.jsonl        an `Epoch` per line
checkpoint.pt       the latest `Checkpoint`, from which the run resumes
result.json         the `Result`, written last: its presence marks a finished run
failure.txt         the reason of a failure, if there was one
stopped.txt         why a search stopped the run before its last epoch, if it did
log.txt             output of a run that is part of a sweep
lock                locked by the process that writes to the directory
tensorboard/        scalars for TensorBoard, if requested
==================  =========================================================================================

A sweep's directory has `study.json` (a `StudyRecord`), a lock, and a directory for each run. A search's directory has
`search.json` (a `SearchRecord`), a lock, Optuna's storage `search.db`, a directory for each trial, and `chosen/` with a
directory for each trial that was chosen: the same settings, trained on the whole training split.

Each record is declared here once, for the code that writes it and the report that reads it; `parsing` converts it to
and from JSON. Fields with a default may be missing or null in files of other versions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .presets import DEFAULTS, NAMES

SETTINGS_FILE = "settings.json"
ENVIRONMENT_FILE = "environment.json"
STEPS_FILE = "steps.jsonl"
EPOCHS_FILE = "epochs.jsonl"
CHECKPOINT_FILE = "checkpoint.pt"
RESULT_FILE = "result.json"
FAILURE_FILE = "failure.txt"
STOPPED_FILE = "stopped.txt"
LOG_FILE = "log.txt"
LOCK_FILE = "lock"
TENSORBOARD_DIRECTORY = "tensorboard"
STUDY_FILE = "study.json"
SEARCH_FILE = "search.json"
STORAGE_FILE = "search.db"
CHOSEN_DIRECTORY = "chosen"

REPORTED_FILES = (SETTINGS_FILE, ENVIRONMENT_FILE, STEPS_FILE, EPOCHS_FILE, RESULT_FILE, FAILURE_FILE, STOPPED_FILE)
"""What a report reads."""
RUN_FILES = (*REPORTED_FILES, CHECKPOINT_FILE, LOG_FILE, LOCK_FILE)
"""The files that a run may have."""

Sizes = Mapping[str, int]
"""Numbers of neurons by width."""
Measurements = Mapping[str, float | None]
"""Measured values by width; None if one is not finite."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A gradient step."""

    epoch: int = 0
    step: int
    """The number of the step, from 1."""
    loss: float | None = None
    """The loss of the batch, before the step."""
    parameters: int = 0
    """The number of parameters of the whole network, after growth."""
    widths: Sizes
    """The sizes after growth."""
    metric: Measurements = field(default_factory=dict)
    """What the trigger measured, for each width that it looked at."""
    threshold: Measurements = field(default_factory=dict)
    """What the metric was compared with."""
    seconds: float = 0.0
    """The time of the whole step, growth included."""
    trigger_seconds: float = 0.0
    """Part of `seconds`: asking the trigger, after the optimizer's step."""
    initialization_seconds: float = 0.0
    """Part of `seconds`: initializing and adding neurons."""


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """A pass through the training data, or several of a small one, and the test after it."""

    epoch: int
    """The number of the epoch, from 1."""
    step: int
    """Gradient steps so far."""
    loss: float | None = None
    """The mean over the training samples since the latest test."""
    accuracy: float | None = None
    """The fraction of test (or held-out) samples that are classified correctly, or of the variance explained."""
    test_loss: float | None = None
    """The mean over the same samples."""
    parameters: int = 0
    flops: int | None = None
    """Floating-point operations of a forward pass of one sample."""
    training_flops: int | None = None
    """Floating-point operations of the training so far: three times the forward passes of all steps."""
    bits_per_character: float | None = None
    """The test loss of networks that predict characters, in bits."""
    widths: Sizes
    train_seconds: float = 0.0
    trigger_seconds: float = 0.0
    initialization_seconds: float = 0.0
    test_seconds: float = 0.0
    fastest_seconds: float | None = None
    """The seconds of the fastest step, which other work on the machine has disturbed least."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """The outcome of a finished run."""

    accuracy: float
    """This and the following eight are measured after the last epoch."""
    loss: float | None = None
    test_loss: float | None = None
    parameters: int
    flops: int | None = None
    training_flops: int | None = None
    bits_per_character: float | None = None
    """These three as of an `Epoch`."""
    widths: Sizes
    initial_widths: Sizes
    standard_widths: Sizes | None = None
    """The sizes in the standard network, where the preset has one."""
    steps: int = 0
    """Gradient steps."""
    lowest_test_loss: float | None = None
    """The lowest test loss after any epoch."""
    train_seconds: float
    """This and the following three are sums over all epochs."""
    trigger_seconds: float = 0.0
    initialization_seconds: float = 0.0
    test_seconds: float = 0.0

    def __post_init__(self) -> None:
        for reference in (self.initial_widths, self.standard_widths or self.initial_widths):
            if not self.widths.keys() <= reference.keys() or not all(reference.values()):
                raise ValueError("a width has no initial or no standard size")

    def reference_size(self, width: str) -> int:
        """The size in the standard network, or the initial size where there is no standard network."""
        return (self.standard_widths or self.initial_widths)[width]


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Where a run was trained: everything besides its settings that may affect the result."""

    neurogenesis: str | None = None
    """The version of the library."""
    commit: str | None = None
    """The commit of the library, with a + if files were changed; None if it is not in a repository."""
    torch: str | None = None
    python: str | None = None
    platform: str | None = None
    device: str | None = None
    threads: int | None = None
    data: str | None = None
    """The digest of the data, if it differs between machines."""
    started: str | None = None
    """UTC time."""
    earlier: Sequence[Mapping[str, Any]] = ()
    """Environments of the run before it was resumed in this one."""


@dataclass(kw_only=True)
class Totals:
    """Sums over the steps since the latest test."""

    loss: float = 0.0
    """The sum over samples."""
    seconds: float = 0.0
    trigger_seconds: float = 0.0
    initialization_seconds: float = 0.0
    fastest_seconds: float = math.inf


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The state of a run after a step. State dictionaries are None for parts that the run does not have."""

    model: Mapping[str, Any]
    optimizer: Mapping[str, Any]
    decay: Mapping[str, Any] | None
    """The state of the scheduler of the learning rate."""
    grower: Mapping[str, Any] | None
    step: int
    """Gradient steps so far."""
    epoch: Mapping[str, float]
    """`Totals` of the current epoch."""
    flops: int | None = None
    """Floating-point operations of the training so far; None if the run began in a version that did not count them."""
    sizes: Mapping[str, int] | None = None
    """Bytes of steps.jsonl and epochs.jsonl when the checkpoint was saved."""


@dataclass(frozen=True, kw_only=True)
class StudyRecord:
    """The runs of a study."""

    study: str
    title: str = ""
    runs: Mapping[str, Mapping[str, Any]]
    """The settings of each run, by the name of its directory."""

    def __post_init__(self) -> None:
        for settings in self.runs.values():
            RecordedSettings(settings)


@dataclass(frozen=True, kw_only=True)
class SearchRecord:
    """A search for settings."""

    settings: Mapping[str, Any]
    """The settings that all trials have in common, and those that are searched at their defaults."""
    space: Mapping[str, str]
    """What is searched: a range or choices by name."""
    objective: str
    """Either accuracy, or pareto, which means accuracy and parameters."""
    max_parameters: int | None = None
    sampler: str = "optuna"
    """What proposes trials: optuna, or asha. Where they are done is not recorded: it may change."""
    budgets: Sequence[int] = ()
    """The numbers of trials after which a choice was, or will be, made."""
    too_large: int = 0
    """Candidates beyond `max_parameters`, which were not trained."""

    def __post_init__(self) -> None:
        RecordedSettings(self.settings)


class RecordedSettings(Mapping[str, Any]):
    """The content of settings.json, of any version and any preset.

    As a mapping it has what the file has. Every setting of every preset is also an attribute, with its default where
    the file does not have it.

    Example:
        >>> settings = RecordedSettings({"preset": "mnist", "strategy": "gradmax", "seed": 1})
        >>> settings.strategy, settings.schedule, list(settings)
        ('gradmax', 'dynamic', ['preset', 'strategy', 'seed'])
    """

    def __init__(self, content: Any):
        self._values = dict(content)
        for name, kind in ((NAMES.preset, str), (NAMES.strategy, str), (NAMES.seed, int)):
            if not isinstance(self._values.get(name), kind):
                raise ValueError(f"{name} is {self._values[name]!r}" if name in self._values else f"it has no {name}")

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getattr__(self, name: str) -> Any:
        if name in self._values:
            return self._values[name]
        if name not in DEFAULTS:
            raise AttributeError(f"no preset has a setting {name!r}")
        return DEFAULTS[name]

    @property
    def convolutional(self) -> bool:
        """Whether the network has convolutions: only presets of such networks have this setting."""
        return NAMES.images in self._values

    @property
    def language(self) -> bool:
        """Whether the network predicts characters: only presets of such networks have this setting."""
        return NAMES.stream in self._values
