"""What watching costs: training steps with a `Grower` that looks and never grows, against plain ones.

    python -m benchmarks.overhead [--json] [--rounds N]

VGG-11 at a quarter of its width at batch 128, and a dense network 784-256-256-10 at batch 512 with a buffer of 1,568
samples, each with Xavier weights and with those that PyTorch's layers start with; plain and watched steps alternate in
one run, on the same data. Widths that ask for nothing are looked at less often, at every twelfth step in the end: the
ratio is that of the medians of twelve steps together. Beside it stands in which part of the looks the trigger would
have grown some width. Then steps while half of all neurons are young, so that the optimizer must correct their
updates, against those of the same network without ages. Then the peak memory of training steps of VGG-11, of all
tensors that are alive.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import neurogenesis as ng
from benchmarks.memory import LiveBytes
from neurogenesis.experiments.models import mlp, vgg11, xavier

STRATEGIES = ("north-random", "north-select", "north-weight", "gradmax", "firefly", "nest")
BARS = {
    "VGG-11 / 4": {"north-random": 1.06, "north-select": 1.06, "north-weight": 1.04, "gradients": 1.5},
    "784-256-256-10": {"north-random": 1.35, "north-select": 1.35, "north-weight": 1.35, "gradients": 1.15},
}


AGES = {"VGG-11 / 4": 1.03, "784-256-256-10": 1.05}


def data(network: str) -> tuple[Tensor, Tensor]:
    """Something that can be learned, so that activations become what they become in training: noisy prototypes."""
    generator = torch.Generator().manual_seed(0)
    shape, batch = ((3, 32, 32), 128) if network.startswith("VGG") else ((784,), 512)
    labels = torch.randint(10, (8 * batch,), generator=generator)
    prototypes = torch.rand((10, *shape), generator=generator)
    noise = torch.rand((8 * batch, *shape), generator=generator)
    return ((prototypes[labels] + noise) / 2).split(batch), labels.split(batch)  # type: ignore[return-value]


def without_growth(name: str) -> ng.Strategy:
    """A strategy whose trigger decides as ever and is not obeyed."""
    strategy = ng.strategies.strategy(name)
    return replace(strategy, trigger=_Never(strategy.trigger))


class _Never(ng.triggers.Trigger):
    """The same trigger, asked as often as ever and never obeyed."""

    def __init__(self, trigger: ng.triggers.Trigger):
        self.trigger, self.needs, self.patient = trigger, trigger.needs, trigger.patient  # type: ignore[misc]
        self.asked = self.granted = 0

    def start(self, layer: ng.Layer) -> None:
        self.trigger.start(layer)

    def __call__(self, layer: ng.Layer) -> ng.Decision:
        decision: Any = self.trigger(layer)
        self.asked += 1
        self.granted += decision.count > 0
        return replace(decision, count=0)


def trained(network: str, strategy: ng.Strategy | None, weights: str = "Xavier") -> Callable[[int], None]:
    torch.manual_seed(0)
    model = vgg11(0.25) if network.startswith("VGG") else mlp(784, 256, 256, 10)
    if weights == "Xavier":
        xavier(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4 if network.startswith("VGG") else 3e-3)
    batches = list(zip(*data(network), strict=True))
    grower = None if strategy is None else ng.Grower(model, optimizer, strategy)

    def step(number: int) -> None:
        images, labels = batches[number % len(batches)]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        if grower is not None:
            grower.step(lambda: nn.functional.cross_entropy(model(images), labels))

    return step


TOGETHER = 12  # steps that are timed together: one of them has a look at a width that has long asked for nothing
WARM = 78  # steps after which looks are that rare


def overhead(network: str, weights: str, rounds: int) -> dict[str, tuple[float, float]]:
    """By strategy: watched steps in plain ones, and the part of looks that would have grown something."""
    result = {}
    for name in STRATEGIES:
        strategy = without_growth(name)
        runs = trained(network, None, weights), trained(network, strategy, weights)
        times: tuple[list[float], list[float]] = [], []
        for number in range(WARM + rounds):
            for step, own in zip(runs, times, strict=True):
                start = time.perf_counter()
                step(number)
                own.append(time.perf_counter() - start)
        plain, watched = (
            statistics.median(sum(own[i : i + TOGETHER]) for i in range(WARM, WARM + rounds, TOGETHER)) for own in times
        )
        trigger: Any = strategy.trigger
        result[name] = watched / plain, trigger.granted / trigger.asked
    return result


def grown(network: str, ages: bool, parts: int = 8) -> Callable[[int], None]:
    """Training steps of a network half of whose neurons have just been added, a part of them after each step."""
    torch.manual_seed(0)
    model = vgg11(0.125) if network.startswith("VGG") else mlp(784, 128, 128, 10)
    xavier(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4 if network.startswith("VGG") else 3e-3)
    batches = list(zip(*data(network), strict=True))

    def step(number: int) -> None:
        images, labels = batches[number % len(batches)]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    widths = [(width, width.size) for width in ng.widths(model, batches[0][0][:2]).growable]
    for part in range(parts):
        step(part)
        for width, size in widths:
            count = size * (part + 1) // parts - size * part // parts
            if count:
                ng.grow(model, width, count, optimizer=optimizer, ages=ages)
    return step


def cost_of_ages(network: str, rounds: int) -> float:
    """Steps with half of all neurons young, in those of the same network with none, by turns.

    Grown both, since where its tensors lie in memory makes steps of a network up to 8 % slower.
    """
    runs = grown(network, ages=False), grown(network, ages=True)
    times: tuple[list[float], list[float]] = [], []
    warm = max(3, rounds // 5)
    for number in range(rounds + warm):
        for step, own in zip(runs, times, strict=True):
            start = time.perf_counter()
            step(number)
            if number >= warm:
                own.append(time.perf_counter() - start)
    plain, other = map(statistics.median, times)
    return other / plain


def memory(strategy: str | None) -> int:
    step = trained("VGG-11 / 4", None if strategy is None else without_growth(strategy))
    for number in range(3):
        step(number)
    gc.collect()
    with LiveBytes([each for each in gc.get_objects() if isinstance(each, Tensor)]) as live:
        for number in range(3):
            step(number)
    return live.peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--rounds", type=int, default=50, help="steps of VGG-11; ten times as many of the dense one")
    arguments = parser.parse_args()
    steps = {"VGG-11 / 4": arguments.rounds, "784-256-256-10": 10 * arguments.rounds}
    results: dict[str, Any] = {
        f"{network}, {weights}": overhead(network, weights, steps[network])
        for network in BARS
        for weights in ("Xavier", "default")
    }
    results["ages"] = {network: cost_of_ages(network, steps[network]) for network in AGES}
    plain = memory(None)
    results["peak memory"] = {name: memory(name) / plain for name in ("north-random", "north-select")}
    if arguments.json:
        print(json.dumps(results, indent=2))
        return
    print(
        "training steps with growth watched, in plain training steps (bar in brackets); part of looks that would grow"
    )
    print(" " * 16 + "".join(f"{name:>25}" for name in results if name != "peak memory"))
    for name in STRATEGIES:
        cells = []
        for network, bars in BARS.items():
            bar = bars.get(name, bars["gradients"])
            for weights in ("Xavier", "default"):
                ratio, granted = results[f"{network}, {weights}"][name]
                cells.append(f"{ratio:.3f} ({bar:.2f}) {granted:5.0%}".rjust(25))
        print(f"{name:16}" + "".join(cells))
    print("training steps with half of all neurons young, in those without ages (bar in brackets)")
    print(", ".join(f"{network}: {results['ages'][network]:.3f} ({bar:.2f})" for network, bar in AGES.items()))
    print("peak memory of VGG-11's training steps, in that of plain ones (bar: 1.15)")
    for name, figure in results["peak memory"].items():
        print(f"{name:16}{figure:>8.3f}")


if __name__ == "__main__":
    main()
