"""What becomes of new neurons: how many never fire, and how well their network learns.

    python -m benchmarks.newborn [--json] [--seeds N] [--rates R ...] [--data DIR]

Dense networks of two hidden layers on MNIST and on digits, grown from 64-64 to 256-256 neurons by the batched schedule
with random fan-in: with the moments of new weights padded with zeros (`zeros`, as in the paper), with ages, with ages
and a margin of the fan-in's length (`margin`, the default of the library), and static at the final size.
Printed are means over seeds: for each hidden layer the share of new neurons (static: of all) that fire on no test
sample, the final loss on all training samples, and the accuracy on the test samples.
MNIST is read from the directory of the experiments' data sets, and skipped if it is not there: nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import neurogenesis as ng
from neurogenesis.experiments.data import SOURCES, Data, load
from neurogenesis.experiments.models import mlp, xavier

WAYS: dict[str, Mapping[str, Any] | None] = {
    "zeros": {"ages": False, "margin": False},
    "ages": {"margin": False},
    "margin": {},
    "static": None,
}
INITIAL, FINAL = 64, 256
RATES = (1e-3, 3e-3)
MOST_DEAD = {1e-3: 0.02, 3e-3: 0.10}  # share of neurons in any layer, by learning rate
LOSS_OF_STATIC = {1e-3}  # learning rates at which the loss must not exceed that of the static network


@dataclass(frozen=True)
class Task:
    """How to train on a data set."""

    batch: int
    epochs: int


TASKS = {"mnist": Task(batch=512, epochs=20), "digits": Task(batch=64, epochs=60)}


@dataclass(frozen=True)
class Fate:
    """The outcome of one training."""

    dead: list[float]  # share of neurons, by hidden layer
    loss: float  # on the training samples
    accuracy: float  # on the test samples


def fate(data: Data, task: Task, way: str, rate: float, seed: int) -> Fate:
    """Train a network, and count its dead neurons."""
    torch.manual_seed(seed)
    (inputs, labels), options = data.train, WAYS[way]
    width = FINAL if options is None else INITIAL
    model = mlp(inputs.shape[1], width, width, data.classes)
    xavier(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    steps = task.epochs * -(-len(labels) // task.batch)
    grower = None
    if options is not None:
        schedule = ng.Strategy(ng.triggers.Batched(steps, final=FINAL), "random")
        grower = ng.Grower(model, optimizer, schedule, example=inputs[:2], seed=seed, **options)
    for _ in range(task.epochs):
        for batch in torch.randperm(len(labels)).split(task.batch):  # type: ignore[no-untyped-call]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[batch]), labels[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if grower is not None:
                grower.step()
    return outcome(model, data, first=0 if options is None else INITIAL)


@torch.no_grad()
def outcome(model: nn.Sequential, data: Data, first: int) -> Fate:
    """Evaluate a dense network; neurons before `first` are not counted as dead."""
    loss = nn.functional.cross_entropy(model(data.train[0]), data.train[1])
    x, dead = data.test[0], []
    for module in model:
        x = module(x)
        if isinstance(module, ng.nn.ReLU):
            dead.append(dead_share(x[:, first:]))
    correct = (x.argmax(1) == data.test[1]).double().mean()
    return Fate(dead, float(loss), float(correct))


def dead_share(activations: Tensor) -> float:
    """The share of neurons that fire on no sample, from activations of samples x neurons."""
    return 1 - float((activations > 0).any(0).double().mean())


def found(name: str, root: Path | None) -> Data | str:
    """A data set, or why it is skipped."""
    if name not in SOURCES:
        return load(name)
    root = root or (Path(os.environ["NEUROGENESIS_DATA"]) if os.environ.get("NEUROGENESIS_DATA") else None)
    if root is None:
        return f"{name} is skipped: set --data or NEUROGENESIS_DATA to its directory"
    places = (root / name, root)
    if not any(all((place / file.name).is_file() for file in SOURCES[name].files) for place in places):
        return f"{name} is skipped: it is not in {root}"
    return load(name, root)


def mean(fates: Sequence[Fate]) -> Fate:
    dead = [statistics.fmean(layer) for layer in zip(*(each.dead for each in fates), strict=True)]
    return Fate(dead, statistics.fmean(each.loss for each in fates), statistics.fmean(each.accuracy for each in fates))


def verdict(rate: float, grown: Fate, static: Fate) -> str:
    """The limits at a learning rate, and whether a grown network meets them."""
    verdicts = []
    if rate in MOST_DEAD:
        verdicts.append(f"dead <= {MOST_DEAD[rate]:.0%}: {'met' if max(grown.dead) <= MOST_DEAD[rate] else 'MISSED'}")
    if rate in LOSS_OF_STATIC:
        verdicts.append(f"loss <= static: {'met' if grown.loss <= static.loss else 'MISSED'}")
    return ", ".join(verdicts)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="learning rates")
    parser.add_argument("--data", type=Path, help="directory of MNIST; by default $NEUROGENESIS_DATA")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # fastest for such small networks
    results: dict[str, Any] = {}
    if not arguments.json:
        print(f"{'data':8}{'rate':>8}  {'way':8}{'dead, %':>14}{'loss':>12}{'accuracy, %':>13}  limits")
    for name, task in TASKS.items():
        data = found(name, arguments.data)
        if isinstance(data, str):
            print(data, file=sys.stderr)
            continue
        for rate in arguments.rates:
            fates = {way: [fate(data, task, way, rate, seed) for seed in range(1, arguments.seeds + 1)] for way in WAYS}
            results.setdefault(name, {})[f"{rate:g}"] = {
                way: [vars(each) for each in own] for way, own in fates.items()
            }
            if arguments.json:
                continue
            static = mean(fates["static"])
            for way, own in fates.items():
                average = mean(own)
                dead = " + ".join(f"{100 * share:.1f}" for share in average.dead)
                limits = verdict(rate, average, static) if way == "margin" else ""
                numbers = f"{dead:>14}{average.loss:>12.5f}{100 * average.accuracy:>13.2f}"
                print(f"{name:8}{rate:>8g}  {way:8}{numbers}  {limits}")
    if arguments.json:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
