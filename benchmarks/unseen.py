"""Whether `need` finds the right size on data that played no part when it was made.

    python -m benchmarks.unseen [--sets NAME ...] [--seeds N]

Two hidden layers of 256 neurons are narrowed to 16-16 by `ng.narrow` and grown, with no option set, on data sets that
scikit-learn generates or has: `moons`, two noisy half circles; `linear`, a regression on 8 of 20 features with noise;
`clusters`, four classes of three clusters each in 10 dimensions; `iris`; and `labels`, which are random. Static
networks of seven sizes are trained for comparison. As in the study `tabular`, 70 % of the samples are trained on, with
batches of 32 and full ones, and training ends after 3,000 steps, or when the lowest loss is long ago.

Printed are the lowest losses on the other samples, means over seeds; those of the best static size, with the standard
error and the size; the smallest static size within one standard error of it; and how many parameters the grown network
has for one of that.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import mean, stdev
from typing import Any, NamedTuple

import torch
from torch import nn

import neurogenesis as ng
from neurogenesis.experiments.data import Data, divided
from neurogenesis.experiments.data.fetching import import_optional
from neurogenesis.experiments.models import mlp
from neurogenesis.experiments.training import loss_of

SIZES = (4, 8, 16, 32, 64, 128, 256)
BATCHES = (32, 2500)  # the second is a full one
RATE, STEPS, BETWEEN_TESTS = 3e-3, 3000, 20
LEAST_STEPS, PATIENCE = 300, 2.5  # training ends after so many steps, plus so many times those to the lowest loss


datasets: Any = import_optional("sklearn.datasets")


def _linear(seed: int) -> Any:
    return datasets.make_regression(700, 20, n_informative=8, noise=60, random_state=seed)


def _clusters(seed: int) -> Any:
    return datasets.make_classification(
        1500, 10, n_informative=6, n_redundant=2, n_classes=4, n_clusters_per_class=3, flip_y=0.05, random_state=seed
    )


def _labels(seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(600, 12, generator=generator), torch.randint(3, (600,), generator=generator)


SETS: dict[str, Callable[[int], Any]] = {
    "moons": lambda seed: datasets.make_moons(1000, noise=0.25, random_state=seed),
    "linear": _linear,
    "clusters": _clusters,
    "iris": lambda seed: datasets.load_iris(return_X_y=True),
    "labels": _labels,
}


class Trained(NamedTuple):
    """The lowest test loss of a training, and the parameters and widths at its end."""

    loss: float
    parameters: int
    widths: tuple[int, ...]


def trained(data: Data, batch: int, seed: int, size: int | None, steps: int = STEPS) -> Trained:
    """Train a static network of two layers of a size, or a narrowed one that grows if the size is None."""
    torch.manual_seed(seed)
    (inputs, targets), test = data.train, data.test
    width = SIZES[-1] if size is None else size
    model = mlp(inputs.shape[1], width, width, data.classes)
    if size is None:
        ng.narrow(model, inputs[:2])
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    grower = ng.Grower(model, optimizer) if size is None else None
    lowest, best, done = float("inf"), 0, 0
    while done < min(steps, LEAST_STEPS + PATIENCE * best):
        for chosen in torch.randperm(len(inputs)).split(batch):  # type: ignore[no-untyped-call]
            loss = loss_of(model(inputs[chosen]), targets[chosen])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if grower is not None:
                grower.step()
            done += 1
            if done % BETWEEN_TESTS == 0:
                with torch.no_grad():
                    now = float(loss_of(model(test[0]), test[1]))
                lowest, best = (now, done) if now < lowest else (lowest, best)
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Trained(lowest, parameters, tuple(layer.out_features for layer in layers[:-1]))


def compared(name: str, batch: int, seeds: int, steps: int = STEPS, sizes: tuple[int, ...] = SIZES) -> dict[str, Any]:
    """The grown networks of a data set, and the static ones that they have to match."""
    data = {}
    for seed in range(1, seeds + 1):
        inputs, targets = SETS[name](seed)
        data[seed] = divided(inputs, targets, seed)
    grown = [trained(own, batch, seed, None, steps) for seed, own in data.items()]
    static = {size: [trained(own, batch, seed, size, steps) for seed, own in data.items()] for size in sizes}
    losses = {size: mean(each.loss for each in own) for size, own in static.items()}
    best = min(losses, key=losses.__getitem__)
    error = stdev(each.loss for each in static[best]) / seeds**0.5
    smallest = min(size for size in sizes if losses[size] <= losses[best] + error)
    return {
        "grown": mean(each.loss for each in grown),
        "static": losses[best],
        "error": error,
        "best": best,
        "smallest": smallest,
        "parameters": mean(each.parameters for each in grown) / static[smallest][0].parameters,
        "widths": ["-".join(map(str, each.widths)) for each in grown],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS), help="names of data sets")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, at least 2")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # fastest for such small networks
    print("| set | batch size | grown | best static | its size | smallest as good | parameters | widths |")
    print("|---|---|---|---|---|---|---|---|")
    for name in arguments.sets:
        for batch in BATCHES:
            found = compared(name, batch, arguments.seeds)
            print(
                f"| {name} | {batch} | {found['grown']:.4f} | {found['static']:.4f} ± {found['error']:.4f} "
                f"| {found['best']} | {found['smallest']} | {found['parameters']:.2f} | {', '.join(found['widths'])} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
