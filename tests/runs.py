"""Short runs for tests, and comparisons of runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from neurogenesis.experiments.engines import Ended, NextJob, Place
from neurogenesis.experiments.engines.processes import epochs_of
from neurogenesis.experiments.errors import UsageError
from neurogenesis.experiments.presets import PRESETS
from neurogenesis.experiments.record import (
    CHECKPOINT_FILE,
    ENVIRONMENT_FILE,
    EPOCHS_FILE,
    RESULT_FILE,
    SETTINGS_FILE,
    STEPS_FILE,
)
from neurogenesis.experiments.settings import Settings


def tiny(preset: str = "digits", **changes: Any) -> Settings:
    """Settings of a run that takes a second."""
    chosen = {"epochs": 3, "batch": 256, **changes}
    settings = PRESETS[preset](**chosen)
    dynamic = settings.schedule == "dynamic" and not settings.static
    looks = settings.strategy in ("north-select", "north-pre", "north-opt") or (
        settings.strategy in ("north-random", "north-integrated") and dynamic
    )
    every = {"every": 3 if settings.strategy == "north-opt" else 1}  # whose looks take longest
    return PRESETS[preset](**(every if dynamic else {}) | ({"buffer": 256} if looks else {}) | chosen)


def by_name(*runs: Settings) -> dict[str, Settings]:
    """Runs by their labels, which are their names in a study of one preset."""
    return {settings.label: settings for settings in runs}


def here(next_job: NextJob, ended: Ended, place: Place) -> None:
    """An engine that does one run after the other in this process."""
    while (job := next_job()) is not None:
        try:
            for _ in epochs_of(job, place):
                pass
        except UsageError as error:
            ended(job, str(error))
        else:
            ended(job, None)


def command(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command in a process."""
    call = [sys.executable, "-m", "neurogenesis", *map(str, words)]
    return subprocess.run(call, capture_output=True, text=True, check=False, **options)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def without_times(value: Any) -> Any:
    """A record without times."""
    if isinstance(value, dict):
        times = ("started", "seconds")
        return {key: without_times(each) for key, each in value.items() if not str(key).endswith(times)}
    return [without_times(each) for each in value] if isinstance(value, list) else value


def records(run: Path) -> dict[str, Any]:
    """The record of a run, without times and the commit."""
    names = (SETTINGS_FILE, ENVIRONMENT_FILE, RESULT_FILE)
    texts = {name: json.loads((run / name).read_text()) for name in names}
    texts[ENVIRONMENT_FILE].pop("commit")  # one may be made meanwhile
    return without_times(texts | {name: lines(run / name) for name in (STEPS_FILE, EPOCHS_FILE)})


def assert_same_run(first: Path, second: Path) -> None:
    """Records and checkpoints are equal to the last bit: weights, moments, the state of the grower."""
    assert records(first) == records(second)
    one, other = (without_times(torch.load(run / CHECKPOINT_FILE, weights_only=True)) for run in (first, second))
    assert_same(one | {"sizes": None, "epoch": None}, other | {"sizes": None, "epoch": None}, "")


def assert_same(one: Any, other: Any, where: str) -> None:
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), where
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key, value in one.items():
            assert_same(value, other[key], f"{where}/{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for number, (left, right) in enumerate(zip(one, other, strict=True)):
            assert_same(left, right, f"{where}/{number}")
    else:
        assert one == other, where
