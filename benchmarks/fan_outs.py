"""What the fan-outs of new neurons mean for generalization.

    python -m benchmarks.fan_outs [--seeds N] [--batch N]

Two hidden layers on scikit-learn's digits, divided as in the study `tabular`, grown by `need` from 16-16 neurons: with
fan-outs of zero (`zero`), and in pairs of opposite fan-outs (`twins`, the default). For comparison, the shape that
`zero` ends with from scratch (`shape`), and the same, where the neurons after the first 16 of each layer have a fan-out
of zero at the start (`shape-zero`). Printed are the lowest test losses, means over seeds, and how much they are above
those of `shape`, with the standard error of the difference, paired by seed.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

import neurogenesis as ng
from neurogenesis.experiments.data import Data, table
from neurogenesis.experiments.models import mlp

INITIAL, RATE = 16, 3e-3
GROWN = {"zero": "random", "twins": "twins"}
WAYS = (*GROWN, "shape", "shape-zero")


def trained(
    data: Data, widths: tuple[int, ...], way: str, seed: int, batch: int = 32, steps: int = 1500
) -> tuple[float, tuple[int, ...]]:
    """The lowest test loss of a training, and the widths at its end."""
    torch.manual_seed(seed)
    (inputs, labels), test = data.train, data.test
    model = mlp(inputs.shape[1], *widths, data.classes)
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if way == "shape-zero":
        for consumer in linear[1:]:
            nn.init.zeros_(consumer.weight[:, INITIAL:])
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    grower = None
    if way in GROWN:
        strategy = ng.Strategy(ng.triggers.Need(), GROWN[way])
        grower = ng.Grower(model, optimizer, strategy, example=inputs[:2], seed=seed)
    lowest, done = float("inf"), 0
    while done < steps:
        for chosen in torch.randperm(len(labels)).split(batch):  # type: ignore[no-untyped-call]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[chosen]), labels[chosen]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if grower is not None:
                grower.step()
            done += 1
        with torch.no_grad():
            lowest = min(lowest, float(nn.functional.cross_entropy(model(test[0]), test[1])))
    return lowest, tuple(module.out_features for module in linear[:-1])


def losses(seed: int, batch: int, steps: int = 1500) -> dict[str, float]:
    """The lowest test loss of each way."""
    data = table("digits", seed)
    found = {}
    shape: tuple[int, ...] = (INITIAL, INITIAL)
    for way in WAYS:
        found[way], widths = trained(data, (INITIAL, INITIAL) if way in GROWN else shape, way, seed, batch, steps)
        shape = widths if way == "zero" else shape
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=10, help="number of seeds")
    parser.add_argument("--batch", type=int, default=32, help="batch size")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # fastest for such small networks
    every = [losses(seed, arguments.batch) for seed in range(1, arguments.seeds + 1)]
    for way in WAYS:
        own, above = (
            torch.tensor([each[way] - without * each["shape"] for each in every], dtype=torch.float64)
            for without in (0, 1)
        )
        print(f"{way:12}{own.mean():8.4f}{above.mean():+10.4f} ± {above.std() / len(above) ** 0.5:.4f}")


if __name__ == "__main__":
    main()
