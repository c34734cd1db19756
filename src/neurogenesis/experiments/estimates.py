"""How long a sweep will take."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

from .presets import Settings, settings_from
from .sweep import result_of


def estimate(runs: Sequence[Settings], out: Path, threads: int, device: str) -> dict[str, tuple[float, float]]:
    """Seconds that each unfinished run will take, at least and at most, by label.

    From finished runs that differ in their seed only, where there are any; else from steps timed here, of the network
    as it begins and of the largest that it may become.
    """
    beginning = _seconds_to_begin()
    known: dict[str, list[float]] = {}
    for settings in runs:
        result = result_of(settings, out)
        if result is not None:
            known.setdefault(_but_seed(settings), []).append(result["train_seconds"] + result["test_seconds"])
    timed: dict[str, float] = {}
    estimates = {}
    for settings in runs:
        if result_of(settings, out) is not None:
            continue
        if times := known.get(_but_seed(settings)):
            estimates[settings.label] = min(times) + beginning, max(times) + beginning
            continue
        first = _seconds(settings, timed, threads, device)
        last = first
        if not settings.static:
            of_growth = ("schedule", "gamma", "metric", "scale", "least")
            rest = {key: value for key, value in settings.record().items() if key not in of_growth}
            largest = {**rest, "strategy": "big" if settings.schedule == "dynamic" else "medium"}
            last = _seconds(settings_from(largest), timed, threads, device)
        estimates[settings.label] = min(first, last) + beginning, max(first, last) + beginning
    return estimates


def _seconds_to_begin() -> float:
    """What a process takes before its first step: about an import of scikit-learn, as it has torch already."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import sklearn.datasets"], check=False, capture_output=True)
    return time.perf_counter() - started


def _but_seed(settings: Settings) -> str:
    return json.dumps({**settings.record(), "seed": None})


def plan(runs: Sequence[Settings], out: Path, workers: int, threads: int, device: str) -> str:
    """What a sweep would do, as a table: every run, whether it is finished, and how long it will take."""
    estimates = estimate(runs, out, threads, device)
    rows = [(settings.label, _between(*estimates.get(settings.label, (0, 0)))) for settings in runs]
    broad = max(len(label) for label, _ in rows)
    lines = [f"{label:{broad}}  {time or 'finished'}" for label, time in rows]
    least, most = (sum(times) / workers for times in zip(*estimates.values(), strict=True)) if estimates else (0, 0)
    total = _between(least, most) or "nothing to do"
    return "\n".join([*lines, f"{len(estimates)} of {len(runs)} runs to do, {workers} at a time: {total}"])


def _between(least: float, most: float) -> str:
    first, second = _time(least), _time(most)
    return first if first == second else f"{first} to {second}"


def _time(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        if seconds >= 1.5 * size or (unit == "s" and seconds > 0):
            return f"{max(1, round(seconds / size))} {unit}"
    return ""


SHAPES = {
    "digits": (1348, (64,), 10),
    "generated": (4500, (64,), 2),
    "mnist": (60_000, (784,), 10),
    "fashion-mnist": (60_000, (784,), 10),
    "cifar10": (50_000, (3, 32, 32), 10),
    "cifar100": (50_000, (3, 32, 32), 100),
}  # training samples, their shape, and classes


def _seconds(settings: Settings, timed: dict[str, float], threads: int, device: str) -> float:
    """Seconds of a run at the pace of its first steps, on noise."""
    import torch

    from .data import Data
    from .training import beginning, gradient_step, threads_of_torch

    samples, shape, classes = SHAPES[settings.data]
    samples = min(samples, getattr(settings, "images", None) or samples)
    steps = math.ceil(samples * (1 - settings.holdout) / settings.batch) * settings.epochs
    key = json.dumps({**settings.record(), "seed": None, "gamma": None, "learning_rate": None, "epochs": None})
    if key not in timed:
        x, y = torch.rand(settings.batch, *shape), torch.randint(classes, (settings.batch,))
        with threads_of_torch(threads), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what happens to networks on noise
            training = beginning(settings, Data((x, y), (x, y), classes), torch.device(device))
            x, y = x.to(device), y.to(device)
            gradient_step(training, x, y)
            started, done = time.perf_counter(), 0
            while done == 0 or (done < 20 and time.perf_counter() - started < 0.5):
                gradient_step(training, x, y)
                done += 1
            timed[key] = (time.perf_counter() - started) / done
    return timed[key] * steps
