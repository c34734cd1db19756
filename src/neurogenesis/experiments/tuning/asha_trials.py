"""What a search with ASHA does on the nodes of a cluster: trials, each in a process of Ray Tune.

A trial reports every epoch to Ray Tune, which answers by stopping it or not. What the trial wrote goes with the report
if the driver's directory cannot be seen from its node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray import tune

from ..engines import Job, Place
from ..engines.ray_cluster import one_line
from ..engines.ray_nodes import directory_here, unseen
from ..engines.transfer import Changes, Part
from ..errors import UsageError
from ..presets import settings_from
from ..progress import NoDisplay
from ..record import EPOCHS_FILE, Epoch
from ..run_directory import RunDirectory
from ..settings import Settings

ACCURACY, EPOCH, FILES, FAILURE = "accuracy", "epoch", "files", "failure"
"""What a trial reports. The driver takes the last two out before Ray Tune keeps the report."""


@dataclass(frozen=True)
class Start:
    """What the driver tells a trial that starts."""

    parts: Sequence[Part] | None = None
    """Its files, if the driver's directory may not be seen from its node."""
    recorded: Sequence[Epoch] | None = None
    """Its epochs, if it has ended before."""


class Starts:
    """An actor that passes on what trials are told: Ray Tune itself starts a lost trial with what it knew at first."""

    def __init__(self) -> None:
        self._starts: dict[str, Start | None] = {}

    def put(self, name: str, start: Start | None) -> None:
        """Keep what a trial is told; None if it is not to be done."""
        self._starts[name] = start

    def take(self, name: str) -> Start | None:
        """What a trial is told."""
        return self._starts.pop(name)


def do_trial(config: dict[str, Any], starts: Any, place: Place) -> None:
    """Do what the driver says about a trial; what Ray Tune calls."""
    told = config["job"]
    start: Start | None = ray.get(starts.take.remote(told["name"]))
    if start is None:
        _report_nothing()
    else:
        follow(Job(told["name"], settings_from(told["settings"]), Path(told["directory"])), start, place)


def follow(job: Job, start: Start, place: Place) -> None:
    """Do a trial and report every epoch. One that has ended before reports its recorded epochs without training."""
    if start.recorded is not None:
        for epoch in start.recorded:
            tune.report({ACCURACY: epoch.accuracy, EPOCH: epoch.epoch})
    elif (problem := unseen(job, start.parts)) is not None:
        _report_nothing(failure=problem)
    else:
        _train(job, start.parts, place)


def _train(job: Job, parts: Sequence[Part] | None, place: Place) -> None:
    from ..run import run

    with directory_here(job, parts) as directory:
        changes = Changes(directory)

        def report(epoch: int, accuracy: float) -> None:
            tune.report({ACCURACY: accuracy, EPOCH: epoch, FILES: [] if parts is None else changes.take()})

        try:
            display = _Reports(directory, report)
            result = run(
                job.settings, directory, root=place.root, device=place.device, threads=place.threads, display=display
            )
        except Exception as error:  # reported, so that Ray Tune does not repeat it as if its worker had been lost
            reason = " ".join(str(error).split()) if isinstance(error, UsageError) else one_line(error)
            written = [] if parts is None else changes.take()
            _report_nothing(files=written, failure=reason.replace(str(directory), str(job.directory)))
        else:
            report(job.settings.epochs, result.accuracy)


def _report_nothing(**besides: Any) -> None:
    """Report epoch 0, which is compared with no other trial: Ray Tune needs a report from every one."""
    tune.report({ACCURACY: 0.0, EPOCH: 0, **besides})


class _Reports(NoDisplay):
    """Reports every epoch but the last one: that is reported when the result is written."""

    def __init__(self, directory: Path, report: Callable[[int, float], None]):
        self._directory, self._report = directory, report

    def on_start(self, settings: Settings, steps: int, done: int) -> None:
        self._last = settings.epochs
        if (self._directory / EPOCHS_FILE).exists():
            for epoch in RunDirectory(self._directory).epochs():
                if epoch.epoch < self._last:
                    tune.report({ACCURACY: epoch.accuracy, EPOCH: epoch.epoch})

    def on_epoch(self, epoch: Epoch) -> None:
        if epoch.epoch < self._last:
            assert epoch.accuracy is not None
            self._report(epoch.epoch, epoch.accuracy)
