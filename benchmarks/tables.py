"""What growing costs on small tables: processor time of `need`, relative to the network of its final size.

    python -m benchmarks.tables [--tables NAME ...] [--seeds N ...] [--rounds N]

Each setting of the study `tabular` is trained as there, which tells its number of gradient steps and its final widths.
Then the same training and that of a static network with these widths go on side by side, a step of each at a time, for
some rounds, which are equal to the last bit. Printed are the processor time of all steps of the grown network relative
to the static one, the milliseconds of a step of the static one, those that growing adds in the whole training, and how
many of the steps were looked at. Of each step, the fastest round counts, as other work on the machine slows it down.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any, get_args

import torch
from torch import Tensor

from neurogenesis.experiments.building import build_data
from neurogenesis.experiments.presets import Table, Tabular
from neurogenesis.experiments.run import run
from neurogenesis.experiments.training import Training, gradient_step, sample_order, start_training, torch_threads

BATCHES = (32, 2500)  # the second is a full one
_CPU = torch.device("cpu")


def batches(data: tuple[Tensor, Tensor], size: int, seed: int, steps: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """The epoch, the inputs and the targets of each gradient step, as in a run."""
    inputs, targets = data
    epoch = done = 0
    while True:
        epoch += 1
        for chosen in sample_order(len(inputs), seed, epoch).split(size):  # type: ignore[no-untyped-call]
            if done == steps:
                return
            done += 1
            yield epoch, inputs[chosen], targets[chosen]


def cost(table: Table, batch: int, seed: int, rounds: int = 3, epochs: int | None = None) -> dict[str, Any]:
    """The processor time of the grown network relative to the static one, and what it was measured on."""
    settings = Tabular(table=table, batch=batch, seed=seed, epochs=epochs)
    data = build_data(settings, None)
    with TemporaryDirectory() as directory:
        result = run(settings, Path(directory) / "run", threads=1)
    shape = "-".join(map(str, result.widths.values()))
    static = replace(settings, strategy="static", shape=shape)
    fastest = [[float("inf")] * result.steps for _ in range(2)]
    with torch_threads(1):
        for _ in range(rounds):
            trainings = [start_training(each, data, _CPU) for each in (settings, static)]
            looks = 0
            for step, (epoch, x, y) in enumerate(batches(data.train, batch, seed, result.steps)):
                for training, own in zip(trainings, fastest, strict=True):
                    started = time.process_time()
                    gradient_step(training, x, y, epoch)
                    own[step] = min(own[step], time.process_time() - started)
                looks += looked(trainings[0])
            if trainings[0].widths != result.widths:
                raise AssertionError(f"{table}, {batch}: {trainings[0].widths} at the end instead of {result.widths}")
    grown, alone = map(sum, fastest)
    milliseconds = {"step": 1000 * alone / result.steps, "more": 1000 * (grown - alone)}
    return {"ratio": grown / alone, "steps": result.steps, "looks": looks, "widths": shape, **milliseconds}


def looked(training: Training) -> bool:
    """Whether the latest step was looked at."""
    assert training.grower is not None
    return any(each.step == training.step for each in training.grower.history.latest.values())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tables", nargs="+", default=get_args(Table), help="names of tables")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2], help="seeds")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds")
    arguments = parser.parse_args()
    print("table           batch   time  steps  ms/step  more ms  looks  widths, by seed")
    for table in arguments.tables:
        for batch in BATCHES:
            found = [cost(table, batch, seed, arguments.rounds) for seed in arguments.seeds]
            names = "ratio", "steps", "step", "more", "looks"
            ratio, steps, step, more, looks = (mean(each[what] for each in found) for what in names)
            widths = "  ".join(each["widths"] for each in found)
            print(
                f"{table:15}{batch:6}{ratio:7.2f}{steps:7.0f}{step:9.3f}{more:9.0f}{looks:7.0f}  {widths}", flush=True
            )


if __name__ == "__main__":
    main()
