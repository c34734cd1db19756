"""Accuracy after pruning: `neurogenesis.prune` against the magnitude and random criteria of Torch-Pruning.

    python -m benchmarks.pruning [--seeds N] [--tasks mnist cifar10] [--data DIR]

A dense network of 256-256 neurons on MNIST and a VGG-11 of an eighth of the usual size on 5,000 images of CIFAR-10 are
trained, and every layer is cut to 1/2, 1/4 and 1/8 of its neurons, to the same sizes in four ways: by `prune`, by the
same choice of neurons without folding, and by Torch-Pruning. Printed are the accuracy on the test samples directly
afterwards and after one more epoch of training with a new optimizer, as mean and standard error over seeds.
Needs the package torch-pruning. Nothing is downloaded: a data set that is not in the directory is skipped.
"""

from __future__ import annotations

import argparse
import copy
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

import neurogenesis as ng
from benchmarks.newborn import found
from neurogenesis.experiments.data import Data
from neurogenesis.experiments.models import mlp, vgg11, xavier

PARTS = (1 / 2, 1 / 4, 1 / 8)
MEASURED = 4096  # training samples on which activations are measured


@dataclass(frozen=True)
class Task:
    """A network, and how to train it."""

    make: Callable[[], nn.Sequential]
    batch: int
    epochs: int
    rate: float
    images: int | None = None
    test_images: int | None = None


TASKS = {
    "mnist": Task(lambda: mlp(784, 256, 256, 10), batch=512, epochs=5, rate=1e-3),
    "cifar10": Task(lambda: vgg11(0.125), batch=64, epochs=10, rate=3e-4, images=5000, test_images=2000),
}
WAYS = ("prune", "prune, not folded", "magnitude", "random")


@dataclass(frozen=True)
class Outcome:
    """Accuracy on the test samples, directly after pruning and after one more epoch, and the number of parameters."""

    cut: float
    tuned: float
    parameters: int


def train(model: nn.Module, data: Data, task: Task, epochs: int) -> None:
    """Train with a new optimizer."""
    inputs, labels = data.train
    optimizer = torch.optim.Adam(model.parameters(), lr=task.rate)
    model.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(labels)).split(task.batch):  # type: ignore[no-untyped-call]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[batch]), labels[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()


@torch.no_grad()
def accuracy(model: nn.Module, data: Data) -> float:
    model.eval()
    inputs, labels = data.test
    outputs = torch.cat([model(part) for part in inputs.split(1000)])  # type: ignore[no-untyped-call]
    return float((outputs.argmax(1) == labels).double().mean())


def cut_by_torch_pruning(model: nn.Sequential, example: Tensor, part: float, way: str) -> None:
    """Cut every layer but the last one, with each layer's own part of its neurons."""
    import torch_pruning as tp  # type: ignore[import-untyped]

    importance = tp.importance.MagnitudeImportance(p=2) if way == "magnitude" else tp.importance.RandomImportance()
    tp.pruner.BasePruner(model, example, importance, pruning_ratio=1 - part, ignored_layers=[model.output]).step()


def cut(model: nn.Sequential, data: Data, part: float) -> dict[str, nn.Sequential]:
    """Copies of a model, cut in all ways."""
    inputs = list(data.train[0][:MEASURED].split(256))  # type: ignore[no-untyped-call]
    copies = {way: copy.deepcopy(model) for way in WAYS}
    plans = ng.prune(copies["prune"], inputs, to=part)
    ng.widths(copies["prune, not folded"], inputs[0][:2])
    for plan in plans:
        replace(plan, changes=()).apply(copies["prune, not folded"])
    for way in ("magnitude", "random"):
        cut_by_torch_pruning(copies[way], inputs[0][:2], part, way)
    return copies


def outcomes(data: Data, task: Task, seed: int, parts: Sequence[float] = PARTS) -> dict[tuple[str, float], Outcome]:
    """Train one network, cut it to all sizes in all ways, and train it on."""
    torch.manual_seed(seed)
    model = task.make()
    xavier(model)
    train(model, data, task, task.epochs)
    whole = accuracy(model, data)
    result = {}
    for part in (1.0, *parts):
        copies = cut(model, data, part) if part < 1 else {"whole": copy.deepcopy(model)}
        for way, own in copies.items():
            own.zero_grad(set_to_none=True)
            before = accuracy(own, data) if part < 1 else whole
            torch.manual_seed(seed)
            train(own, data, task, 1)
            parameters = sum(parameter.numel() for parameter in own.parameters())
            result[way, part] = Outcome(before, accuracy(own, data), parameters)
        assert len({result[way, part].parameters for way in copies}) == 1, "the ways must give the same sizes"
    return result


def percent(values: Sequence[float]) -> str:
    """Mean and standard error in percent."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{100 * statistics.fmean(values):.1f} ± {100 * error:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS), help="data sets")
    parser.add_argument("--data", type=Path, help="directory of the data sets; by default $NEUROGENESIS_DATA")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| data | neurons | parameters | way | accuracy, % | after one epoch, % |")
    print("|---|---|---|---|---|---|")
    for name in arguments.tasks:
        data = found(name, arguments.data)
        if isinstance(data, str):
            print(data, file=sys.stderr)
            continue
        task = TASKS[name]
        data = data.first(task.images, task.test_images)
        runs = [outcomes(data, task, seed) for seed in range(1, arguments.seeds + 1)]
        for way, part in runs[0]:
            own = [run[way, part] for run in runs]
            size = "all" if part == 1 else f"1/{round(1 / part)}"
            numbers = f"{percent([each.cut for each in own])} | {percent([each.tuned for each in own])}"
            print(f"| {name} | {size} | {own[0].parameters:,} | {way} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
