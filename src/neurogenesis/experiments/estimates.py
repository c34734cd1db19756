"""How long a sweep will take."""

from __future__ import annotations

import math
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from .presets import GROWTH_SETTINGS
from .settings import Language, Settings
from .shapes import SHAPES
from .sweep import result_of, with_shape

if TYPE_CHECKING:
    from torch import Tensor


def plan(runs: Mapping[str, Settings], out: Path, workers: int, threads: int, device: str) -> str:
    """A table of all runs of a sweep: finished, or how long it will take."""
    estimates = estimate(runs, out, threads, device)
    column = max(map(len, runs))
    durations = {name: _format_range(*estimates.get(name, (0, 0))) for name in runs}
    lines = [f"{name:{column}}  {duration or 'finished'}" for name, duration in durations.items()]
    least, most = (sum(times) / workers for times in zip(*estimates.values(), strict=True)) if estimates else (0, 0)
    total = _format_range(least, most) or "nothing to do"
    return "\n".join([*lines, f"{len(estimates)} of {len(runs)} runs to do, {workers} at a time: {total}"])


def estimate(runs: Mapping[str, Settings], out: Path, threads: int, device: str) -> dict[str, tuple[float, float]]:
    """The least and the most seconds that each unfinished run will take, by name.

    A run that differs from finished ones only in its seed takes as long as those. For others some steps are timed,
    with the initial network and with the largest that it may grow to. A shape that is not grown
    yet may have any size in between.
    """
    startup = startup_seconds()
    results = {name: result_of(with_shape(settings, out / name), out / name) for name, settings in runs.items()}
    known: dict[Settings, list[float]] = {}
    for name, result in results.items():
        if result is not None:
            known.setdefault(replace(runs[name], seed=1), []).append(result.train_seconds + result.test_seconds)
    timed: dict[Settings, float] = {}
    estimates = {}
    for name, result in results.items():
        if result is not None:
            continue
        times = known.get(replace(runs[name], seed=1))
        if times is None:
            settings = with_shape(runs[name], out / name)
            times = [_seconds(extreme, timed, threads, device) for extreme in _extremes(settings)]
            times.append(_least_part(settings) * min(times))
        estimates[name] = min(times) + startup, max(times) + startup
    return estimates


def _extremes(settings: Settings) -> list[Settings]:
    """The smallest and the largest network of a run, or the only one."""
    if settings.source is not None and settings.shape is None:
        return [replace(settings, strategy=size, shape_of=None) for size in ("small", "big")]
    return [settings] if settings.static else [settings, _largest(settings)]


def startup_seconds() -> float:
    """The time before the first step: about as long as importing scikit-learn, as workers have imported torch."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import sklearn.datasets"], check=False, capture_output=True)
    return time.perf_counter() - started


def _largest(settings: Settings) -> Settings:
    """The static network of the size that a run may grow to."""
    usual = type(settings)()
    unused = {name: getattr(usual, name) for name in GROWTH_SETTINGS if hasattr(usual, name)}
    return replace(settings, **unused, strategy="big" if settings.schedule == "dynamic" else "medium")


def _seconds(settings: Settings, timed: dict[Settings, float], threads: int, device: str) -> float:
    """The seconds of a run at the speed of its first steps, on noise."""
    import torch

    from .data import Data
    from .training import gradient_step, start_training, torch_threads

    samples, shape, classes = SHAPES[settings.data_set]
    samples = min(samples, getattr(settings, "images", None) or samples)
    steps = settings.epoch_steps(math.ceil(samples * (1 - settings.holdout))) * settings.epochs
    key = replace(settings, seed=1, gamma=None, learning_rate=1.0, epochs=1)
    if key not in timed:
        batch = min(settings.batch, samples)
        x, y = _noise(settings, batch, shape, classes)
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


def _noise(settings: Settings, batch: int, shape: tuple[int, ...], classes: int) -> tuple[Tensor, Tensor]:
    """Random samples like those of the data set."""
    import torch

    if isinstance(settings, Language):
        x, y = torch.randint(classes, (2, batch, settings.length))
        return x, y
    return torch.rand(batch, *shape), torch.randint(classes, (batch,)) if classes > 1 else torch.randn(batch, 1)


def _least_part(settings: Settings) -> float:
    """The least part of the steps that a training with early stopping may take."""
    return 1.0 if settings.patience is None else 0.15


def _format_range(least: float, most: float) -> str:
    first, second = _format_seconds(least), _format_seconds(most)
    return first if first == second else f"{first} to {second}"


def _format_seconds(seconds: float) -> str:
    """A duration in its largest sensible unit; nothing for 0."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        if seconds >= 1.5 * size or (unit == "s" and seconds > 0):
            return f"{max(1, round(seconds / size))} {unit}"
    return ""
