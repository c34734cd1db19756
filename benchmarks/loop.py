"""The cost of the experiments' training loop: its steps, with records and progress bar, against bare ones.

    python -m benchmarks.loop [--json] [--rounds N]

The networks are static. Bare steps (batch, forward, backward, optimizer) and steps of the loop alternate, on data of
the preset's shape. Printed is the ratio of their medians, without checkpoints, and with one per epoch that is divided
among the epoch's steps.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from neurogenesis.experiments.data import Data
from neurogenesis.experiments.presets import PRESETS
from neurogenesis.experiments.progress import Bar
from neurogenesis.experiments.run_directory import RunDirectory
from neurogenesis.experiments.settings import Settings
from neurogenesis.experiments.shapes import SHAPES
from neurogenesis.experiments.training import gradient_step, sample_order, start_training

CASES = {
    "mnist, 64-64": PRESETS["mnist"](strategy="small"),
    "mnist, 256-256": PRESETS["mnist"](strategy="medium"),
    "mnist, 784-784": PRESETS["mnist"](strategy="big"),
    "VGG-11 / 4": PRESETS["vgg11-cifar10"](strategy="small"),
}
LIMIT = 1.05  # of the ratio


def measure(settings: Settings, rounds: int, directory: Path) -> dict[str, float]:
    """Ratios of the loop's steps to bare ones."""
    samples, shape, classes = SHAPES[settings.data_set]
    steps_per_epoch = -(-samples // settings.batch)
    samples = min(samples, 16 * settings.batch)
    x, y = torch.rand(samples, *shape), torch.randint(classes, (samples,))
    data, device = Data((x, y), (x, y), classes), torch.device("cpu")
    ours, bare = (start_training(settings, data, device) for _ in range(2))
    run_directory, display = RunDirectory(directory), Bar()
    display.on_start(settings, rounds, 0)

    def loop_step(batch: torch.Tensor) -> None:
        step = gradient_step(ours, x[batch], y[batch], epoch=1)
        run_directory.add(step)
        display.on_step(step)

    def bare_step(batch: torch.Tensor) -> None:
        loss = nn.functional.cross_entropy(bare.model(x[batch]), y[batch])
        bare.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        bare.optimizer.step()
        if bare.decay is not None:
            bare.decay.step()

    times: dict[Any, list[float]] = {loop_step: [], bare_step: []}
    batches = sample_order(samples, 1, 1).split(settings.batch)  # type: ignore[no-untyped-call]
    for number in range(rounds + 3):
        for each in times:
            started = time.perf_counter()
            each(batches[number % len(batches)])
            if number >= 3:
                times[each].append(time.perf_counter() - started)
    started = time.perf_counter()
    run_directory.save(ours.checkpoint())
    saving = (time.perf_counter() - started) / steps_per_epoch
    display.close()
    loop, plain = (statistics.median(each) for each in times.values())
    return {
        "steps": loop / plain,
        "with checkpoints": (loop + saving) / plain,
        "milliseconds of a bare step": 1e3 * plain,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    parser.add_argument("--rounds", type=int, default=300, help="steps of each kind")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    figures = {}
    for name, settings in CASES.items():
        rounds = arguments.rounds if name.startswith("mnist") else max(10, arguments.rounds // 10)
        with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(sys.stderr):  # of the progress bar
            figures[name] = measure(settings, rounds, Path(directory))
        if not arguments.json:
            told = ", ".join(f"{key} {value:.3f}" for key, value in figures[name].items())
            print(f"{name}: {told} (at most {LIMIT})", flush=True)
    if arguments.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
