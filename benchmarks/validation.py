"""Whether a training set shows that wider networks generalize better: cross-validation inside it.

    python -m benchmarks.validation [--table NAME] [--sizes N N] [--seeds N] [--starts N]

Static networks of two sizes, trained as in the study `tabular` with batches of 32, on divisions of a table, each from
several initial weights. For each division is printed how much lower the loss of the wider network is

- on the test part, after training on the whole training part, with the standard error over initial weights;
- in five-fold cross-validation inside the training part, with the standard error over its samples, and the share of the
  three samples with the largest differences in the sum of all.

Losses are those after the number of steps at which their mean is lowest, which favors neither size. The last line is
the mean over divisions of the first, with its standard error.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NamedTuple, get_args

import torch
from torch import Tensor, nn

from neurogenesis.experiments.data import table
from neurogenesis.experiments.models import mlp
from neurogenesis.experiments.presets import Table

RATE, BATCH, FOLDS, BETWEEN_TESTS = 3e-3, 32, 5, 20
Samples = tuple[Tensor, Tensor]


def losses(train: Samples, test: Samples, size: int, seed: int, steps: int) -> Tensor:
    """The loss of each test sample after every 20 steps, tests x samples."""
    torch.manual_seed(seed)
    (inputs, targets), real = train, train[1].is_floating_point()
    model = mlp(inputs.shape[1], size, size, 1 if real else int(targets.max()) + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    function = nn.functional.mse_loss if real else nn.functional.cross_entropy
    found: list[Tensor] = []
    done = 0
    while done < steps:
        for chosen in torch.randperm(len(inputs)).split(BATCH):  # type: ignore[no-untyped-call]
            optimizer.zero_grad()
            function(model(inputs[chosen]), targets[chosen]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            done += 1
            if done % BETWEEN_TESTS == 0:
                with torch.no_grad():
                    each = function(model(test[0]), test[1], reduction="none")
                found.append(each.reshape(len(test[1])).double())
    return torch.stack(found)


def lowest(losses: Tensor) -> Tensor:
    """The losses of samples at the time when their mean is lowest.

    Example:
        >>> lowest(torch.tensor([[2.0, 3.0], [1.0, 2.0], [0.0, 9.0]]))
        tensor([1., 2.])
    """
    return losses[losses.mean(1).argmin()]


class Found(NamedTuple):
    """How much lower the losses of the wider network are, with standard errors.

    Args:
        test: on the test part.
        test_error: over initial weights.
        inside: in cross-validation inside the training part.
        inside_error: over samples.
        share: the share of the three largest differences in the sum of all, without signs.
    """

    test: float
    test_error: float
    inside: float
    inside_error: float
    share: float


def differences(name: Table, sizes: Sequence[int], seed: int, starts: int, steps: int = 800) -> Found:
    """Compare two sizes on a division of a table."""
    data = table(name, seed)
    inputs, targets = data.train
    parts = torch.arange(len(inputs)) % FOLDS  # the order of the samples is random
    tested, validated = [], []
    for size in sizes:
        own = [losses(data.train, data.test, size, start, steps) for start in range(starts)]
        tested.append(torch.stack([lowest(each).mean() for each in own]))
        folds = []
        for fold in range(FOLDS):
            left, out = parts != fold, parts == fold
            train, others = (inputs[left], targets[left]), (inputs[out], targets[out])
            folds.append(torch.stack([losses(train, others, size, start, steps) for start in range(starts)]).mean(0))
        validated.append(lowest(torch.cat(folds, 1)))
    test, inside = tested[0] - tested[1], validated[0] - validated[1]
    largest = inside.abs().sort(descending=True).values
    share = float(largest[:3].sum() / largest.sum())
    return Found(*_mean(test), *_mean(inside), share)


def _mean(values: Tensor) -> tuple[float, float]:
    """The mean and its standard error."""
    return float(values.mean()), float(values.std()) / len(values) ** 0.5


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--table", choices=get_args(Table), default="wine", help="name of the table")
    parser.add_argument("--sizes", nargs=2, type=int, default=[16, 256], help="neurons per layer of both networks")
    parser.add_argument("--seeds", type=int, default=6, help="number of divisions")
    parser.add_argument("--starts", type=int, default=4, help="number of initial weights, at least 2")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # fastest for such small networks
    print("division               test   cross-validation   three samples")
    found = []
    for seed in range(1, arguments.seeds + 1):
        own = differences(arguments.table, arguments.sizes, seed, arguments.starts)
        found.append(own.test)
        print(
            f"{seed:8}   {own.test:+.4f} ± {own.test_error:.4f}   {own.inside:+.4f} ± {own.inside_error:.4f}"
            f"{100 * own.share:14.0f} %",
            flush=True,
        )
    mean, error = _mean(torch.tensor(found))
    print(f"all        {mean:+.4f} ± {error:.4f}")


if __name__ == "__main__":
    main()
