"""Does `need` find the right size on small tables, with no option set, with full batches and with small ones?

    python -m benchmarks.tabular [--out FILE] [--seeds N] [--data NAME ...] [--steps N]

Networks of two hidden layers on scikit-learn's small data sets: static ones of seven sizes, and one of 64-64 neurons
that `neurogenesis.narrow` makes small and a `Grower` without any option grows. Adam at 3e-3; 70 % of the samples are
trained on, in full batches or in batches of 32, and the loss on the others is measured every 20 steps. Each result is
appended to the file (JSON lines), and what is there already is not trained again.

Printed are, for each data set and batch: the lowest validation loss of the grown network, mean over seeds, and its
difference to the static size that has the lowest, with the standard error of the latter; the grown sizes; and their
parameters as a multiple of those of the smallest static network within one standard error of the best. `random` has
targets without any relation to the inputs: nothing should grow.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch
from sklearn import datasets
from torch import Tensor, nn

import neurogenesis as ng

SIZES = (4, 8, 16, 32, 64, 128, 256)
USER_SIZE = 64  # of the network that is narrowed, and then grows
BATCH = 32
LEARNING_RATE = 3e-3
NOISE = {1: 1.0, 2: 125.0, 3: 0.1}  # of Friedman's problems


class Table(NamedTuple):
    """Inputs and targets, for training and for validation."""

    train: tuple[Tensor, Tensor]
    valid: tuple[Tensor, Tensor]
    outputs: int

    @property
    def classes(self) -> bool:
        return self.train[1].dtype == torch.int64

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return (nn.functional.cross_entropy if self.classes else nn.functional.mse_loss)(model(x), y)


def _friedman(number: int, seed: int) -> tuple[Any, Any]:
    make = getattr(datasets, f"make_friedman{number}")
    found: tuple[Any, Any] = make(2500, noise=NOISE[number], random_state=seed)
    return found


def _random(seed: int) -> tuple[Any, Any]:
    numbers = numpy.random.RandomState(seed)
    return numbers.randn(900, 10), numbers.randn(900)


DATA = {
    "diabetes": lambda seed: datasets.load_diabetes(return_X_y=True),
    "cancer": lambda seed: datasets.load_breast_cancer(return_X_y=True),
    "wine": lambda seed: datasets.load_wine(return_X_y=True),
    "friedman1": lambda seed: _friedman(1, seed),
    "friedman2": lambda seed: _friedman(2, seed),
    "friedman3": lambda seed: _friedman(3, seed),
    "digits": lambda seed: datasets.load_digits(return_X_y=True),
    "random": _random,
}


def table(name: str, seed: int) -> Table:
    """A data set, divided at random, with inputs and real targets of mean 0 and standard deviation 1."""
    inputs, targets = DATA[name](seed)
    x, y = torch.tensor(inputs, dtype=torch.float32), torch.tensor(targets)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1000 + seed))
    train, valid = order[: int(0.7 * len(x))], order[int(0.7 * len(x)) :]
    x = (x - x[train].mean(0)) / x[train].std(0).clamp_min(0.1)
    if y.is_floating_point():
        y = ((y - y[train].mean()) / y[train].std()).float()[:, None]
    outputs = 1 if y.is_floating_point() else int(y.max()) + 1
    return Table((x[train], y[train]), (x[valid], y[valid]), outputs)


def batches(samples: int, batch: int | None, seed: int) -> Iterator[Tensor]:
    """Indices of the samples of each step: all, or parts of a random order."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(samples, generator=generator)
        yield from [order] if batch is None else order[: samples - samples % batch].split(batch)


def trained(name: str, size: int | None, batch: int | None, seed: int, steps: int) -> dict[str, Any]:
    """Train a static network of a size, or let one grow if it is None."""
    data = table(name, seed)
    (x, y), width = data.train, size or USER_SIZE
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(x.shape[1], width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, data.outputs)
    )
    if size is None:
        ng.narrow(model, x[:2])
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    grower = ng.Grower(model, optimizer) if size is None else None
    losses = []
    for step, chosen in zip(range(1, steps + 1), batches(len(x), batch, seed), strict=False):
        optimizer.zero_grad()
        data.loss(model, x[chosen], y[chosen]).backward()
        optimizer.step()
        if grower is not None:
            grower.step()
        if step % 20 == 0:
            with torch.no_grad():
                losses.append(float(data.loss(model, *data.valid)))
    return {
        "best": min(losses),
        "last": losses[-1],
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "widths": [model[0].out_features, model[2].out_features],
    }


Key = tuple[str, int | None, int | None, int, int]


def results(path: Path, wanted: Sequence[Key]) -> dict[Key, dict[str, Any]]:
    """The results of trainings, of which only those are done that the file does not have."""
    lines = path.read_text().splitlines() if path.exists() else []
    found: dict[Key, dict[str, Any]] = {tuple(key): result for key, result in map(json.loads, lines)}
    for number, key in enumerate(wanted):
        if key not in found:
            print(f"\r{number + 1} of {len(wanted)}", end="", file=sys.stderr)
            found[key] = trained(*key)
            with path.open("a") as file:
                file.write(json.dumps([key, found[key]]) + "\n")
    return found


def line_of(name: str, batch: int | None, seeds: int, steps: int, found: dict[Key, dict[str, Any]]) -> str:
    """The line of a data set: see above."""

    def losses(size: int | None) -> list[float]:
        return [found[name, size, batch, seed, steps]["best"] for seed in range(seeds)]

    means = {size: statistics.mean(losses(size)) for size in SIZES}
    best = min(SIZES, key=means.__getitem__)
    error = statistics.stdev(losses(best)) / seeds**0.5
    smallest = next(size for size in SIZES if means[size] <= means[best] + error)
    grown = [found[name, None, batch, seed, steps] for seed in range(seeds)]
    loss = statistics.mean(each["best"] for each in grown)
    parameters = statistics.mean(each["parameters"] for each in grown)
    relative = parameters / found[name, smallest, batch, 0, steps]["parameters"]
    sizes = " ".join("-".join(map(str, each["widths"])) for each in grown)
    return (
        f"| {name} | {batch or 'all'} | {loss:.4f} | {loss - means[best]:+.4f} | {error:.4f} | {best} | {smallest} | "
        f"{relative:.1f} | {sizes} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--out", type=Path, default=Path("tabular.jsonl"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--data", nargs="+", choices=list(DATA), default=list(DATA))
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    wanted = [
        (name, size, batch, seed, options.steps)
        for seed in range(options.seeds)
        for name in options.data
        for batch in (BATCH, None)
        for size in (None, *SIZES)
    ]
    found = results(options.out, wanted)
    columns = ("data", "batch", "loss", "above the best static", "standard error", "best size", "smallest as good")
    print("\n|", " | ".join((*columns, "parameters", "grown sizes")), "|")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in options.data:
        for batch in (BATCH, None):
            print(line_of(name, batch, options.seeds, options.steps, found))


if __name__ == "__main__":
    main()
