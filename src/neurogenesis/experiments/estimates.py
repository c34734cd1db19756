"""How long a sweep will take."""

from __future__ import annotations

import math
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from .presets import GROWTH_SETTINGS
from .settings import Settings
from .sweep import result_of


def plan(runs: Sequence[Settings], out: Path, workers: int, threads: int, device: str) -> str:
    """A table of what a sweep would do: each run, whether it is finished, and how long it will take."""
    estimates = estimate(runs, out, threads, device)
    rows = [(settings.label, _format_range(*estimates.get(settings.label, (0, 0)))) for settings in runs]
    column = max(len(label) for label, _ in rows)
    lines = [f"{label:{column}}  {duration or 'finished'}" for label, duration in rows]
    least, most = (sum(times) / workers for times in zip(*estimates.values(), strict=True)) if estimates else (0, 0)
    total = _format_range(least, most) or "nothing to do"
    return "\n".join([*lines, f"{len(estimates)} of {len(runs)} runs to do, {workers} at a time: {total}"])


def estimate(runs: Sequence[Settings], out: Path, threads: int, device: str) -> dict[str, tuple[float, float]]:
    """The least and the most seconds that each unfinished run will take, by label.

    A run that differs from finished ones only in its seed takes as long as those. For others some steps are timed, with
    the initial network and with the largest that it may grow to.
    """
    startup = _startup_seconds()
    results = {settings: result_of(settings, out) for settings in runs}
    known: dict[Settings, list[float]] = {}
    for settings, result in results.items():
        if result is not None:
            known.setdefault(replace(settings, seed=1), []).append(result.train_seconds + result.test_seconds)
    timed: dict[Settings, float] = {}
    estimates = {}
    for settings, result in results.items():
        if result is not None:
            continue
        times = known.get(replace(settings, seed=1))
        if times is None:
            times = [_seconds(settings, timed, threads, device)]
            if not settings.static:
                times.append(_seconds(_largest(settings), timed, threads, device))
        estimates[settings.label] = min(times) + startup, max(times) + startup
    return estimates


def _startup_seconds() -> float:
    """The time before the first step: about that of importing scikit-learn, as workers have torch already."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import sklearn.datasets"], check=False, capture_output=True)
    return time.perf_counter() - started


def _largest(settings: Settings) -> Settings:
    """The static network of the size that a run may grow to."""
    usual = type(settings)()
    unused = {name: getattr(usual, name) for name in GROWTH_SETTINGS}
    return replace(settings, **unused, strategy="big" if settings.schedule == "dynamic" else "medium")


def _seconds(settings: Settings, timed: dict[Settings, float], threads: int, device: str) -> float:
    """The seconds of a run at the speed of its first steps, on noise."""
    import torch

    from .data import SHAPES, Data
    from .training import gradient_step, start_training, torch_threads

    samples, shape, classes = SHAPES[settings.data]
    samples = min(samples, getattr(settings, "images", None) or samples)
    steps = math.ceil(samples * (1 - settings.holdout) / settings.batch) * settings.epochs
    key = replace(settings, seed=1, gamma=None, learning_rate=1.0, epochs=1)
    if key not in timed:
        x, y = torch.rand(settings.batch, *shape), torch.randint(classes, (settings.batch,))
        with torch_threads(threads), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about what happens to networks on noise
            training = start_training(settings, Data((x, y), (x, y), classes), torch.device(device))
            x, y = x.to(device), y.to(device)
            gradient_step(training, x, y, epoch=1)
            started, done = time.perf_counter(), 0
            while done == 0 or (done < 20 and time.perf_counter() - started < 0.5):
                gradient_step(training, x, y, epoch=1)
                done += 1
            timed[key] = (time.perf_counter() - started) / done
    return timed[key] * steps


def _format_range(least: float, most: float) -> str:
    first, second = _format_seconds(least), _format_seconds(most)
    return first if first == second else f"{first} to {second}"


def _format_seconds(seconds: float) -> str:
    """A duration in its largest sensible unit; nothing for 0."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        if seconds >= 1.5 * size or (unit == "s" and seconds > 0):
            return f"{max(1, round(seconds / size))} {unit}"
    return ""
