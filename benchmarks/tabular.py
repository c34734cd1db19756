"""Does `need` find the right size on small tables, with no option set, with full batches and with small ones?

    python -m benchmarks.tabular [--out FILE] [--seeds N ...] [--data NAME ...]

Networks of two hidden layers on scikit-learn's small data sets: static ones of seven sizes; one of 64-64 neurons that
`neurogenesis.narrow` makes small and a `Grower` without any option grows; and one of the shape that has grown, from
scratch and for as many steps. Adam at 3e-3; 70 % of the samples are trained on, in full batches or in batches of 32,
and the loss on the others is measured every 20 steps. Training ends after 3,000 steps, or before if the lowest loss
is long ago: when there have been 300 steps and 2.5 times as many as until the lowest. Each result is appended to the
file (JSON lines), and what is there already is not trained again, so that several processes may share the work: one for
each half of the seeds, say.

Printed are, for each data set and batch, means over seeds: the lowest and the last validation loss of the grown
network; the lowest loss of the static size that has the lowest one, with its standard error; those of the shape from
scratch; the grown sizes, and their parameters as a multiple of those of the smallest static network within one standard
error of the best; and the time of training as a multiple of that of the shape from scratch. `random` has targets
without any relation to the inputs: nothing should grow.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
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
STEPS = 3000
EVERY = 20  # steps from one validation to the next
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


Shape = tuple[int, int] | None  # None: grown
Key = tuple[str, Shape, int | None, int, int]  # data set, shape, batch, seed, steps


def trained(name: str, shape: Shape, batch: int | None, seed: int, steps: int) -> dict[str, Any]:
    """Train a network of a shape, or let one grow if it is None, for at most so many steps."""
    data = table(name, seed)
    (x, y), sizes = data.train, shape or (USER_SIZE, USER_SIZE)
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(x.shape[1], sizes[0]), nn.ReLU(), nn.Linear(*sizes), nn.ReLU(), nn.Linear(sizes[1], data.outputs)
    )
    started = time.perf_counter()
    if shape is None:
        ng.narrow(model, x[:2])
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    grower = ng.Grower(model, optimizer) if shape is None else None
    losses: list[float] = []
    step, seconds = 0, time.perf_counter() - started
    for step, chosen in zip(range(1, steps + 1), batches(len(x), batch, seed), strict=False):
        started = time.perf_counter()
        optimizer.zero_grad()
        data.loss(model, x[chosen], y[chosen]).backward()
        optimizer.step()
        if grower is not None:
            grower.step()
        seconds += time.perf_counter() - started
        if step % EVERY == 0:
            with torch.no_grad():
                losses.append(float(data.loss(model, *data.valid)))
            if step > 300 + 2.5 * EVERY * (1 + losses.index(min(losses))):
                break
    return {
        "best": min(losses),
        "last": losses[-1],
        "steps": step,
        "seconds": seconds,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "widths": [model[0].out_features, model[2].out_features],
    }


class Results:
    """The results of trainings, of which only those are done that the file does not have."""

    def __init__(self, path: Path):
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.found = {self._key(*key): result for key, result in map(json.loads, lines)}

    def __getitem__(self, key: Key) -> dict[str, Any]:
        if key not in self.found:
            print(f"{key}", file=sys.stderr)
            self.found[key] = trained(*key)
            with self.path.open("a") as file:
                file.write(json.dumps([key, self.found[key]]) + "\n")
        return self.found[key]

    @staticmethod
    def _key(name: str, shape: list[int] | None, batch: int | None, seed: int, steps: int) -> Key:
        return name, None if shape is None else (shape[0], shape[1]), batch, seed, steps

    def grown(self, name: str, batch: int | None, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """A grown network, and its shape from scratch for as many steps."""
        grown = self[name, None, batch, seed, STEPS]
        first, second = grown["widths"]
        return grown, self[name, (first, second), batch, seed, grown["steps"]]


def line_of(name: str, batch: int | None, seeds: Sequence[int], results: Results) -> str:
    """The line of a data set: see above."""
    static = {size: [results[name, (size, size), batch, seed, STEPS] for seed in seeds] for size in SIZES}
    means = {size: statistics.mean(each["best"] for each in own) for size, own in static.items()}
    best = min(SIZES, key=means.__getitem__)
    error = statistics.stdev(each["best"] for each in static[best]) / len(seeds) ** 0.5
    smallest = next(size for size in SIZES if means[size] <= means[best] + error)
    grown, shapes = zip(*(results.grown(name, batch, seed) for seed in seeds), strict=True)

    def mean(of: Sequence[dict[str, Any]], what: str) -> float:
        return statistics.mean(each[what] for each in of)

    cells = (
        name, str(batch or "all"), f"{mean(grown, 'best'):.4f}", f"{mean(grown, 'last'):.4f}",
        f"{means[best]:.4f} ± {error:.4f}", str(best), str(smallest), f"{mean(shapes, 'best'):.4f}",
        " ".join("-".join(map(str, each["widths"])) for each in grown),
        f"{mean(grown, 'parameters') / static[smallest][0]['parameters']:.1f}",
        f"{mean(grown, 'seconds') / mean(shapes, 'seconds'):.2f}",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--out", type=Path, default=Path("tabular.jsonl"))
    parser.add_argument("--seeds", type=int, nargs="+", default=range(5))
    parser.add_argument("--data", nargs="+", choices=list(DATA), default=list(DATA))
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = Results(options.out)
    lines = [line_of(name, batch, options.seeds, results) for name in options.data for batch in (BATCH, None)]
    columns = (
        "data", "batch", "grown", "at the end", "best static", "its size", "smallest as good", "shape from scratch",
        "grown sizes", "parameters", "time",
    )  # fmt: skip
    print("|", " | ".join(columns), "|")
    print("|", " | ".join("---" for _ in columns), "|")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
