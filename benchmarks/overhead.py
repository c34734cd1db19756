"""Overhead of watching: training steps with a `Grower` that looks but never grows, relative to plain training steps.

    python -m benchmarks.overhead [--json] [--rounds N]

VGG-11 at a quarter of its width at batch 128, and a dense network 784-256-256-10 at batch 512 with a buffer of 1,568
samples, each with Xavier weights and with PyTorch's default weights. Plain and watched steps alternate in one run, on
the same data. The grower looks less often at widths that do not grow, in the end at every twelfth step, so the ratio is
that of the median times of twelve consecutive steps. It is printed with the fraction of looks at which the trigger
asked for neurons.

`need` is measured on labels that are random at each step, so that no neurons are needed: over the first 1,000 steps,
over those of its windows, some of which it looks at, and over those between windows.

Also measured: steps while half of all neurons are young, so that the optimizer corrects their updates, relative to
steps of the same network without ages; and the peak memory of all live tensors in training steps of VGG-11.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import neurogenesis as ng
from benchmarks.memory import LiveBytes
from neurogenesis.experiments.models import mlp, vgg11, xavier

STRATEGIES = ("north-random", "north-select", "north-weight", "gradmax", "firefly", "nest")
LIMITS = {
    "VGG-11 / 4": {"north-random": 1.06, "north-select": 1.06, "north-weight": 1.04, "gradients": 1.5},
    "784-256-256-10": {"north-random": 1.35, "north-select": 1.35, "north-weight": 1.35, "gradients": 1.15},
}


NEED_LIMITS = {"VGG-11 / 4": (1.05, 1.30, 1.01), "784-256-256-10": (1.05, 1.30, 1.01)}
"""All steps, those of windows, and those between windows."""
AGES_LIMITS = {"VGG-11 / 4": 1.03, "784-256-256-10": 1.05}


def data(network: str) -> tuple[Tensor, Tensor]:
    """Noisy prototypes, which the network can learn, so that activations evolve as in real training."""
    generator = torch.Generator().manual_seed(0)
    shape, batch = ((3, 32, 32), 128) if network.startswith("VGG") else ((784,), 512)
    labels = torch.randint(10, (8 * batch,), generator=generator)
    prototypes = torch.rand((10, *shape), generator=generator)
    noise = torch.rand((8 * batch, *shape), generator=generator)
    return ((prototypes[labels] + noise) / 2).split(batch), labels.split(batch)  # type: ignore[return-value]


def without_growth(name: str) -> ng.Strategy:
    """Strategy whose trigger is evaluated as usual but never adds neurons."""
    strategy = ng.strategies.strategy(name)
    return replace(strategy, trigger=_Never(strategy.trigger))


class _Never(ng.triggers.Trigger):
    """Wrapper of a trigger that counts its decisions and always returns 0 neurons."""

    def __init__(self, trigger: ng.triggers.Trigger):
        self.trigger, self.needs, self.patient = trigger, trigger.needs, trigger.patient  # type: ignore[misc]
        self.asked = self.asked_for_growth = 0

    def start(self, layer: ng.Layer) -> None:
        self.trigger.start(layer)

    def decide(self, layers: Sequence[ng.Layer]) -> list[ng.Decision]:
        decisions = self.trigger.decide(layers)  # at once, as several processes exchange what all layers need
        self.asked += len(decisions)
        self.asked_for_growth += sum(decision.count > 0 for decision in decisions)
        return [replace(decision, count=0) for decision in decisions]


def training_step(
    network: str, strategy: ng.Strategy | None, weights: str = "Xavier", random_labels: bool = False
) -> Callable[[int], None]:
    torch.manual_seed(0)
    model = vgg11(0.25) if network.startswith("VGG") else mlp(784, 256, 256, 10)
    if weights == "Xavier":
        xavier(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4 if network.startswith("VGG") else 3e-3)
    batches = list(zip(*data(network), strict=True))
    grower = None if strategy is None else ng.Grower(model, optimizer, strategy)

    def step(number: int) -> None:
        images, labels = batches[number % len(batches)]
        if random_labels:
            labels = torch.randint(10, labels.shape, generator=torch.Generator().manual_seed(number))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        if grower is not None:
            grower.step(lambda: nn.functional.cross_entropy(model(images), labels))

    return step


TIMED_TOGETHER = 12  # steps timed together, which is the longest interval between two looks at a width
WARM_UP = 78  # steps after which the interval between looks has reached its maximum


def overhead(network: str, weights: str, rounds: int) -> dict[str, tuple[float, float]]:
    """By strategy: time of watched steps relative to plain ones, and fraction of looks that asked for neurons."""
    result = {}
    for name in STRATEGIES:
        strategy = without_growth(name)
        runs = training_step(network, None, weights), training_step(network, strategy, weights)
        times: tuple[list[float], list[float]] = [], []
        for number in range(WARM_UP + rounds):
            for step, own in zip(runs, times, strict=True):
                start = time.perf_counter()
                step(number)
                own.append(time.perf_counter() - start)
        plain, watched = (
            statistics.median(
                sum(own[i : i + TIMED_TOGETHER]) for i in range(WARM_UP, WARM_UP + rounds, TIMED_TOGETHER)
            )
            for own in times
        )
        trigger: Any = strategy.trigger
        result[name] = watched / plain, trigger.asked_for_growth / trigger.asked
    return result


NEED_STEPS = 1000


def need_overhead(network: str, steps: int = NEED_STEPS) -> tuple[float, float, float]:
    """Time of steps watched by `need` relative to plain ones: of all, in windows, and between windows."""
    strategy = without_growth("need")
    runs = training_step(network, None, random_labels=True), training_step(network, strategy, random_labels=True)
    times: tuple[list[float], list[float]] = [], []
    looks: list[int] = []
    trigger: Any = strategy.trigger
    for number in range(steps):
        for step, own in zip(runs, times, strict=True):
            start = time.perf_counter()
            step(number)
            own.append(time.perf_counter() - start)
        looks.append(trigger.asked)
    plain, watched = times
    looked = [number for number in range(3, steps) if looks[number] > looks[number - 1]]
    others = [number for number in range(3, steps) if looks[number] == looks[number - 1]]
    inside = {number for a, b in itertools.pairwise(looked) if b - a <= LONGEST_INTERVAL for number in range(a, b + 1)}

    def relative(numbers: Collection[int], middle: Callable[[Iterable[float]], float]) -> float:
        return middle(watched[i] for i in numbers) / middle(plain[i] for i in numbers)

    # Some steps are disturbed, so medians of those without a look; but looks differ, and the mean counts.
    look, no_look = relative(looked, statistics.mean), relative(others, statistics.median) if others else 1.0
    of_all, of_windows = len(looked) / (steps - 3), len(inside.intersection(looked)) / len(inside)
    return no_look + of_all * (look - no_look), no_look + of_windows * (look - no_look), no_look


LONGEST_INTERVAL = 10  # steps from one look to the next in a window


def grown_training_step(network: str, ages: bool, parts: int = 8) -> Callable[[int], None]:
    """Training step of a network that has just been doubled, with a part of the new neurons added after each step."""
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


def ages_overhead(network: str, rounds: int) -> float:
    """Time of steps with half of all neurons young, relative to steps of the same network without ages.

    Both networks are grown, because the memory layout of grown tensors makes steps up to 8 % slower. Steps alternate.
    """
    runs = grown_training_step(network, ages=False), grown_training_step(network, ages=True)
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


def peak_memory(strategy: str | None) -> int:
    step = training_step("VGG-11 / 4", None if strategy is None else without_growth(strategy))
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
    parser.add_argument(
        "--rounds", type=int, default=50, help="steps of VGG-11; the dense network takes ten times as many"
    )
    parser.add_argument("--need", type=int, default=NEED_STEPS, help="steps of need, more than one window")
    arguments = parser.parse_args()
    steps = {"VGG-11 / 4": arguments.rounds, "784-256-256-10": 10 * arguments.rounds}
    results: dict[str, Any] = {
        f"{network}, {weights}": overhead(network, weights, steps[network])
        for network in LIMITS
        for weights in ("Xavier", "default")
    }
    results["need"] = {network: need_overhead(network, arguments.need) for network in NEED_LIMITS}
    results["ages"] = {network: ages_overhead(network, steps[network]) for network in AGES_LIMITS}
    plain = peak_memory(None)
    results["peak memory"] = {name: peak_memory(name) / plain for name in ("north-random", "north-select")}
    if arguments.json:
        print(json.dumps(results, indent=2))
        return
    print("time of watched training steps relative to plain ones (limit in brackets); looks that ask for neurons")
    print(" " * 16 + "".join(f"{name:>25}" for name in results if name not in ("need", "ages", "peak memory")))
    for name in STRATEGIES:
        cells = []
        for network, limits in LIMITS.items():
            limit = limits.get(name, limits["gradients"])
            for weights in ("Xavier", "default"):
                ratio, asked_for_growth = results[f"{network}, {weights}"][name]
                cells.append(f"{ratio:.3f} ({limit:.2f}) {asked_for_growth:5.0%}".rjust(25))
        print(f"{name:16}" + "".join(cells))
    print("time of training steps watched by need relative to plain ones: all, in windows, between them (limits)")
    for network, limits in NEED_LIMITS.items():
        cells = (f"{r:.3f} ({limit:.2f})" for r, limit in zip(results["need"][network], limits, strict=True))
        print(f"{network:16}" + "".join(f"{cell:>25}" for cell in cells))
    print("time of training steps with half of all neurons young relative to steps without ages (limit in brackets)")
    print(
        ", ".join(f"{network}: {results['ages'][network]:.3f} ({limit:.2f})" for network, limit in AGES_LIMITS.items())
    )
    print("peak memory of training steps of VGG-11 relative to plain ones (limit: 1.15)")
    for name, figure in results["peak memory"].items():
        print(f"{name:16}{figure:>8.3f}")


if __name__ == "__main__":
    main()
