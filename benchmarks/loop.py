"""What the experiments' training loop costs: its steps, with records and progress, against bare ones.

    python -m benchmarks.loop [--json] [--rounds N]

Static networks of the presets, so that nothing grows. Bare steps (batch, forward, backward, optimizer) and those of the
loop alternate in one run, on data of the preset's shape; the ratio of their medians is printed, with a checkpoint per
epoch shared out among its steps and without.
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
from neurogenesis.experiments.estimates import SHAPES
from neurogenesis.experiments.presets import PRESETS, Settings
from neurogenesis.experiments.records import Records
from neurogenesis.experiments.training import beginning, gradient_step, order
from neurogenesis.experiments.watchers import Bar

CASES = {
    "mnist, 64-64": PRESETS["mnist"](strategy="small"),
    "mnist, 256-256": PRESETS["mnist"](strategy="medium"),
    "mnist, 784-784": PRESETS["mnist"](strategy="big"),
    "VGG-11 / 4": PRESETS["vgg11-cifar10"](strategy="small"),
}
BAR = 1.05


def measure(settings: Settings, rounds: int, directory: Path) -> dict[str, float]:
    """Ratios of the loop's steps to bare ones."""
    samples, shape, classes = SHAPES[settings.data]
    steps_of_epoch = -(-samples // settings.batch)
    samples = min(samples, 16 * settings.batch)
    x, y = torch.rand(samples, *shape), torch.randint(classes, (samples,))
    data, device = Data((x, y), (x, y), classes), torch.device("cpu")
    ours, bare = (beginning(settings, data, device) for _ in range(2))
    records, watcher = Records(directory), Bar()
    watcher.started(settings, rounds, 0)

    def step(batch: torch.Tensor) -> None:
        line = {"epoch": 1, **gradient_step(ours, x[batch], y[batch])}
        records.add("steps.jsonl", line)
        watcher.stepped(line)

    def bare_step(batch: torch.Tensor) -> None:
        loss = nn.functional.cross_entropy(bare.model(x[batch]), y[batch])
        bare.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        bare.optimizer.step()
        if bare.decay is not None:
            bare.decay.step()

    times: dict[Any, list[float]] = {step: [], bare_step: []}
    batches = order(samples, 1, 1).split(settings.batch)  # type: ignore[no-untyped-call]
    for number in range(rounds + 3):
        for each in times:
            started = time.perf_counter()
            each(batches[number % len(batches)])
            if number >= 3:
                times[each].append(time.perf_counter() - started)
    started = time.perf_counter()
    records.save(ours.state())
    saving = (time.perf_counter() - started) / steps_of_epoch
    watcher.close()
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
        with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(sys.stderr):  # for the bar
            figures[name] = measure(settings, rounds, Path(directory))
        if not arguments.json:
            told = ", ".join(f"{key} {value:.3f}" for key, value in figures[name].items())
            print(f"{name}: {told} (at most {BAR})", flush=True)
    if arguments.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
