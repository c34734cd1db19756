"""What becomes of new neurons: how many never fire, and what the network that has them learns.

    python -m benchmarks.newborn [--json] [--seeds N] [--rates R ...] [--data DIR]

Dense networks of two hidden layers on MNIST and on digits, grown from 64-64 to 256-256 by the batched schedule with
random fan-in: with the moments of new weights padded with zeros and nothing else (`zeros`, as in the paper), with ages,
with ages and a margin of the fan-in's length (`margin`, the default of the library), and static at the final size.
Printed are means over seeds: of each hidden layer the share of new neurons (static: of all) that fire on no test
sample, the loss on all training samples at the end, and the accuracy on the test samples.
MNIST is read from where the experiments look for it, and left out where it is not there: nothing is fetched.
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
DEAD = {1e-3: 0.02, 3e-3: 0.10}  # bars, in any layer
LOSS_OF_STATIC = {1e-3}  # where the loss must not be above that of the static network


@dataclass(frozen=True)
class Task:
    """How to train on a data set."""

    batch: int
    epochs: int


TASKS = {"mnist": Task(batch=512, epochs=20), "digits": Task(batch=64, epochs=60)}


@dataclass(frozen=True)
class Fate:
    """What came of one training."""

    dead: list[float]  # by hidden layer, the share of neurons
    loss: float  # on the training samples, at the end
    accuracy: float  # on the test samples


def fate(data: Data, task: Task, way: str, rate: float, seed: int) -> Fate:
    """Train a network and look at what became of its neurons."""
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
    """How a dense network does; its neurons are judged from the first one given on."""
    loss = nn.functional.cross_entropy(model(data.train[0]), data.train[1])
    x, dead = data.test[0], []
    for module in model:
        x = module(x)
        if isinstance(module, ng.nn.ReLU):
            dead.append(dead_share(x[:, first:]))
    correct = (x.argmax(1) == data.test[1]).double().mean()
    return Fate(dead, float(loss), float(correct))


def dead_share(activations: Tensor) -> float:
    """Of samples x neurons, the share of neurons that fire on no sample."""
    return 1 - float((activations > 0).any(0).double().mean())


def found(name: str, root: Path | None) -> Data | str:
    """A data set, or why it is left out."""
    if name not in SOURCES:
        return load(name)
    root = root or (Path(os.environ["NEUROGENESIS_DATA"]) if os.environ.get("NEUROGENESIS_DATA") else None)
    if root is None:
        return f"{name} is left out: let --data or NEUROGENESIS_DATA say where it is"
    places = (root / name, root)
    if not any(all((place / file.name).is_file() for file in SOURCES[name].files) for place in places):
        return f"{name} is left out: it is not in {root}"
    return load(name, root)


def mean(fates: Sequence[Fate]) -> Fate:
    dead = [statistics.fmean(layer) for layer in zip(*(each.dead for each in fates), strict=True)]
    return Fate(dead, statistics.fmean(each.loss for each in fates), statistics.fmean(each.accuracy for each in fates))


def verdict(rate: float, grown: Fate, static: Fate) -> str:
    """The bars at a learning rate, and whether a network that was grown meets them."""
    said = []
    if rate in DEAD:
        said.append(f"dead <= {DEAD[rate]:.0%}: {'met' if max(grown.dead) <= DEAD[rate] else 'MISSED'}")
    if rate in LOSS_OF_STATIC:
        said.append(f"loss <= static: {'met' if grown.loss <= static.loss else 'MISSED'}")
    return ", ".join(said)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="learning rates")
    parser.add_argument("--data", type=Path, help="where MNIST is; by default what NEUROGENESIS_DATA says")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # so small networks run best
    results: dict[str, Any] = {}
    if not arguments.json:
        print(f"{'data':8}{'rate':>8}  {'way':8}{'dead, %':>14}{'loss':>12}{'accuracy, %':>13}  bars")
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
                bars = verdict(rate, average, static) if way == "margin" else ""
                print(
                    f"{name:8}{rate:>8g}  {way:8}{dead:>14}{average.loss:>12.5f}{100 * average.accuracy:>13.2f}  {bars}"
                )
    if arguments.json:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
