"""What watching costs: training steps with a `Grower` that looks at every step and never grows, against plain ones.

    python -m benchmarks.overhead [--json] [--rounds N]

VGG-11 at a quarter of its width at batch 128, and a dense network 784-256-256-10 at batch 512 with a buffer of 1,568
samples; plain and watched steps alternate in one run, on the same data, and the ratio of their medians is printed.
Then the peak memory of training steps of VGG-11, of all tensors that are alive.
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


class _Never:
    """The same trigger, asked at every step and never obeyed."""

    def __init__(self, trigger: Any):
        self.trigger, self.needs = trigger, trigger.needs
        if hasattr(trigger, "start"):
            self.start = trigger.start

    def __call__(self, layer: ng.Layer) -> ng.Decision:
        return replace(self.trigger(layer), count=0)


def trained(network: str, strategy: str | None) -> Callable[[int], None]:
    torch.manual_seed(0)
    model = vgg11(0.25) if network.startswith("VGG") else mlp(784, 256, 256, 10)
    xavier(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4 if network.startswith("VGG") else 3e-3)
    batches = list(zip(*data(network), strict=True))
    grower = None if strategy is None else ng.Grower(model, optimizer, without_growth(strategy))

    def step(number: int) -> None:
        images, labels = batches[number % len(batches)]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        if grower is not None:
            grower.step(lambda: nn.functional.cross_entropy(model(images), labels))

    return step


def overhead(network: str, rounds: int) -> dict[str, float]:
    result = {}
    for name in STRATEGIES:
        runs = trained(network, None), trained(network, name)
        times: tuple[list[float], list[float]] = [], []
        warm = max(3, rounds // 5)
        for number in range(rounds + warm):
            for step, own in zip(runs, times, strict=True):
                start = time.perf_counter()
                step(number)
                if number >= warm:
                    own.append(time.perf_counter() - start)
        plain, watched = map(statistics.median, times)
        result[name] = watched / plain
    return result


def memory(strategy: str | None) -> int:
    step = trained("VGG-11 / 4", strategy)
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
    parser.add_argument("--rounds", type=int, default=40, help="steps of VGG-11; ten times as many of the dense one")
    arguments = parser.parse_args()
    results: dict[str, Any] = {
        "VGG-11 / 4": overhead("VGG-11 / 4", arguments.rounds),
        "784-256-256-10": overhead("784-256-256-10", 10 * arguments.rounds),
    }
    plain = memory(None)
    results["peak memory"] = {name: memory(name) / plain for name in ("north-random", "north-select")}
    if arguments.json:
        print(json.dumps(results, indent=2))
        return
    print("training steps with growth watched at every step, in plain training steps (bar in brackets)")
    print("                " + "  ".join(f"{network:>16}" for network in BARS))
    for name in STRATEGIES:
        cells = []
        for network, bars in BARS.items():
            bar = bars.get(name, bars["gradients"])
            cells.append(f"{results[network][name]:>8.3f} ({bar:.2f})".rjust(16))
        print(f"{name:16}" + "  ".join(cells))
    print("peak memory of VGG-11's training steps, in that of plain ones (bar: 1.15)")
    for name, ratio in results["peak memory"].items():
        print(f"{name:16}{ratio:>8.3f}")


if __name__ == "__main__":
    main()
