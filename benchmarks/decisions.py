"""Does `need` decide the same when it looks at more steps, or at more would-be neurons?

    python -m benchmarks.decisions [--json] [--seeds N] [--rates R ...]

Dense networks of two hidden layers on nine tenths of the training digits, grown from 16-16 neurons by `need`: as it is
(`default`: windows of 48 steps, of which 5 to 24 are looked at; 32 would-be neurons), with looks at every step of a
window, with four times and with half as many would-be neurons, and with windows of twice as many steps. Printed are,
over seeds, the mean widths, the geometric mean of the number of parameters and the standard deviation of its logarithm,
and the ratio to the default with its standard error.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

import neurogenesis as ng
from neurogenesis import triggers
from neurogenesis.candidates.windows import Window
from neurogenesis.experiments.building import build_data
from neurogenesis.experiments.presets import Digits
from neurogenesis.experiments.training import gradient_step, sample_order, start_training

RATES = (3.3e-3, 1e-2, 3e-2)


class EveryStep(triggers.Need):
    """Looks at every step of a window."""

    def _looks(self, layer: ng.Layer, window: Window, steps: int) -> tuple[int, int]:
        looks, interval = super()._looks(layer, window, steps)
        return looks * interval, 1


WAYS = {
    "default": triggers.Need(),
    "every step": EveryStep(),
    "128 candidates": triggers.Need(candidates=128),
    "16 candidates": triggers.Need(candidates=16),
    "windows of 96": triggers.Need(window=96),
}


@dataclass(frozen=True)
class Size:
    """The outcome of one training."""

    widths: tuple[int, ...]
    parameters: int


def final_size(trigger: triggers.Need, rate: float, seed: int, epochs: int | None = None) -> Size:
    settings = Digits(strategy="need", learning_rate=rate, seed=seed, initial=16, maximum=512, holdout=0.1)
    data = build_data(settings, None)
    training = start_training(settings, data, torch.device("cpu"))
    x, y = data.train
    training.grower = ng.Grower(
        training.model,
        training.optimizer,
        ng.Strategy(trigger, ng.initializations.Random()),
        example=x[:2],
        max_width=settings.maximum,
        seed=seed,
    )
    for epoch in range(1, (epochs or settings.epochs) + 1):
        for batch in sample_order(len(x), seed, epoch).split(settings.batch):  # type: ignore[no-untyped-call]
            gradient_step(training, x[batch], y[batch], epoch)
    count = sum(parameter.numel() for parameter in training.model.parameters())
    return Size(tuple(training.grower.widths.values()), count)


def summary(sizes: Sequence[Size], default: Sequence[Size]) -> dict[str, Any]:
    logs, others = ([math.log(size.parameters) for size in each] for each in (sizes, default))
    error = math.sqrt((statistics.variance(logs) + statistics.variance(others)) / len(logs))
    return {
        "widths": [round(statistics.mean(column)) for column in zip(*(size.widths for size in sizes), strict=True)],
        "parameters": round(math.exp(statistics.mean(logs))),
        "deviation": statistics.stdev(logs),
        "ratio": math.exp(statistics.mean(logs) - statistics.mean(others)),
        "error": error,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    arguments = parser.parse_args()
    results: dict[str, dict[str, dict[str, Any]]] = {}
    for rate in arguments.rates:
        found = {
            name: [final_size(way, rate, seed) for seed in range(1, arguments.seeds + 1)] for name, way in WAYS.items()
        }
        results[str(rate)] = {name: summary(sizes, found["default"]) for name, sizes in found.items()}
    if arguments.json:
        print(json.dumps(results, indent=2))
        return
    print(f"{'rate':<8}{'way':<18}{'widths':<12}{'parameters':>10}{'deviation':>11}{'ratio to default':>19}")
    for rate, ways in results.items():
        for name, own in ways.items():
            ratio = "" if name == "default" else f"{own['ratio']:.2f} ± {own['ratio'] * own['error']:.2f}"
            widths = "-".join(map(str, own["widths"]))
            print(f"{rate:<8}{name:<18}{widths:<12}{own['parameters']:>10}{own['deviation']:>11.2f}{ratio:>19}")


if __name__ == "__main__":
    main()
