"""Cost of selecting among candidates, and of whole growth events.

    python -m benchmarks.selection [--json]

Selection: 1,000 candidates for a width of 256 on 1,568 samples, all at once and with one singular value decomposition
each (20 of them are timed and scaled up). Both must select the same candidates.

Growth events (trigger, initialization, surgery and optimizer state) that add one neuron to the first layer of
784-64-64-10 at batch 512 with Adam and a buffer of 1,568 samples, relative to plain training steps; beside the time the
matrix products of the event, relative to those of a step: what no way of computing saves without fewer candidates or
samples. Then the forward passes that every look at activations takes, of these four batches up to the first layer; the
time of an event at which nothing has to be computed; and a growth event of gromo, if it is installed.

Growth events of Select that add one neuron to each width of VGG-11 at 1/4 and 1/16 of its size, on images of 3 x 32 x
32 at batch 128 with a buffer of 128 samples, relative to plain training steps of the same network.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import neurogenesis as ng
from neurogenesis import metrics
from neurogenesis.experiments.models import VGG11, mlp, vgg11, xavier
from tests import oracles

WIDTH, SAMPLES, CANDIDATES, TIMED, PICKED = 256, 1568, 1000, 20, 8


def selection(rounds: int = 3) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(784, SAMPLES, generator=generator)
    present = (torch.randn(WIDTH, 784, generator=generator) @ inputs / 28).relu()
    candidates = (torch.randn(CANDIDATES, 784, generator=generator) @ inputs / 28).relu()
    some = candidates[:TIMED]
    ratios = []
    for _ in range(rounds):
        start = time.perf_counter()
        metrics.best_candidates(present, candidates, PICKED)
        fast = time.perf_counter() - start
        start = time.perf_counter()
        for candidate in some:  # the direct way: singular values of the matrix with the candidate appended
            torch.linalg.svdvals(torch.cat([present, candidate[None]]) / SAMPLES**0.5)
        slow = (time.perf_counter() - start) * CANDIDATES / TIMED
        ratios.append(slow / fast)
    picked = metrics.best_candidates(present, some, PICKED).tolist()
    same = picked == oracles.best_candidates(present, some, PICKED, "effective_dimension")
    return {"times_faster": statistics.median(ratios), "same_picked": same}


def step(model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor) -> None:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()


def seconds(action: Callable[[], Any]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def batches_of(size: int, *shape: int) -> list[tuple[Tensor, Tensor]]:
    return [(torch.rand(size, *shape), torch.randint(10, (size,))) for _ in range(4)]


def event(strategy: ng.Strategy, buffer: int, rounds: int = 15) -> float:
    """Time of `Grower.step` with growth of 784-64-64-10, relative to plain training steps that alternate with it."""
    torch.manual_seed(0)
    return relative_time(strategy, buffer, rounds, lambda: mlp(784, 64, 64, 10), "hidden1", batches_of(512, 784))


def vgg_events(scale: float, rounds: int = 5, names: Sequence[str] = tuple(VGG11)) -> dict[str, float]:
    """Time of a growth event of Select in each width of VGG-11, relative to plain training steps."""
    torch.manual_seed(0)
    batches = batches_of(128, 3, 32, 32)
    strategy = ng.Strategy(ng.triggers.Activation(), "select")
    return {
        name: relative_time(strategy, 128, rounds, lambda: xavier(vgg11(scale)), name, batches, warmup=2)
        for name in names
    }


def growing_one_by_one(
    model: nn.Module, optimizer: torch.optim.Optimizer, strategy: ng.Strategy, width: str, buffer: int
) -> ng.Grower:
    """A grower that adds one neuron to a width at every step, after all that the strategy computes."""

    class One(ng.triggers.Trigger):
        needs = strategy.trigger.needs

        def __call__(self, layer: ng.Layer) -> ng.Decision:
            return replace(strategy.trigger(layer), count=1)  # type: ignore[type-var]

    one = ng.Strategy(One(), strategy.initialization)
    return ng.Grower(model, optimizer, one, include=[width], buffer=buffer)


def relative_products(strategy: ng.Strategy, buffer: int) -> float:
    """Floating point operations in matrix products of an event in 784-64-64-10, relative to a plain training step."""
    torch.manual_seed(0)
    model, batches = mlp(784, 64, 64, 10), batches_of(512, 784)
    optimizer = torch.optim.Adam(model.parameters())
    grower = growing_one_by_one(model, optimizer, strategy, "hidden1", buffer)
    for images, labels in batches:
        with FlopCounterMode(display=False) as plain:
            step(model, optimizer, images, labels)
        with FlopCounterMode(display=False) as grown:
            grower.step()
    return grown.get_total_flops() / plain.get_total_flops()


def relative_time(
    strategy: ng.Strategy,
    buffer: int,
    rounds: int,
    make: Callable[[], nn.Module],
    width: str,
    batches: Sequence[tuple[Tensor, Tensor]],
    warmup: int = 4,
) -> float:
    """Time of a `Grower.step` that adds one neuron, relative to plain training steps that alternate with it."""
    model = make()
    optimizer = torch.optim.Adam(model.parameters())
    grower = growing_one_by_one(model, optimizer, strategy, width, buffer)
    before = model.get_submodule(width).weight.shape[0]  # type: ignore[union-attr]
    plain = make()
    plain_optimizer = torch.optim.Adam(plain.parameters())
    steps, events = [], []
    for number in range(rounds + warmup):  # the buffer is full after the warmup
        images, labels = batches[number % len(batches)]
        step(model, optimizer, images, labels)
        events.append(seconds(grower.step))
        steps.append(seconds(lambda: step(plain, plain_optimizer, images, labels)))  # noqa: B023
    assert grower.widths[width] >= before + rounds
    return statistics.median(events[warmup:]) / statistics.median(steps[warmup:])


def forward_passes(rounds: int = 15) -> float:
    """Time of forward passes of the first layer on four batches, relative to plain training steps."""
    torch.manual_seed(0)
    model = mlp(784, 64, 64, 10)
    optimizer = torch.optim.Adam(model.parameters())
    batches = batches_of(512, 784)

    @torch.no_grad()
    def run() -> None:
        for images, _ in batches:
            model[:2](images)

    passes, steps = [], []
    for number in range(rounds + 4):
        images, labels = batches[number % 4]
        steps.append(seconds(lambda: step(model, optimizer, images, labels)))  # noqa: B023
        passes.append(seconds(run))
    return statistics.median(passes[4:]) / statistics.median(steps[4:])


def gromo_event(rounds: int = 5) -> float | None:
    """Time of a growth event of gromo's network of the same shape, relative to its steps; None without gromo."""
    try:
        from gromo.containers.growing_mlp import GrowingMLP
    except ImportError:
        return None
    ratios = []
    for _ in range(rounds):
        torch.manual_seed(0)
        model = GrowingMLP(784, 10, 64, 2, nn.ReLU())
        images, labels = torch.rand(512, 784), torch.randint(10, (512,))
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            step(model, optimizer, images, labels)
        plain = statistics.median(seconds(lambda: step(model, optimizer, images, labels)) for _ in range(5))  # noqa: B023

        def grow(model: Any = model, images: Tensor = images, labels: Tensor = labels) -> None:
            model.init_computation()
            model.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            model.update_computation()
            model.compute_optimal_updates()
            model.select_best_update()
            model.currently_updated_layer.scaling_factor = 1.0
            model.apply_change()
            model.reset_computation()

        ratios.append(seconds(grow) / plain)
    return statistics.median(ratios)


def repeated(measure: Callable[[], float], times: int = 5) -> float:
    """Median of several measurements: steps of a few milliseconds vary with what else the machine does."""
    return statistics.median(measure() for _ in range(times))


class Always(ng.triggers.Trigger):
    """Grows at every step, and looks at nothing."""

    needs = frozenset()

    def __call__(self, layer: ng.Layer) -> ng.Decision:
        return ng.Decision(1, 0.0)


EVENTS = {
    "nothing to compute": (ng.Strategy(Always(), "random"), 1568, 1.5),
    "random": (ng.Strategy(ng.triggers.Activation(), "random"), 1568, 1.5),
    "gradmax": (ng.Strategy(ng.triggers.Gradient(), "gradmax"), 1568, 3.0),
    "select, 1,000 candidates": (ng.Strategy(ng.triggers.Activation(), "select"), 1568, 15.0),
    "opt, 1,000 candidates": (ng.Strategy(ng.triggers.Activation(), "opt"), 1568, 300.0),
    "select, buffer of a batch": (ng.Strategy(ng.triggers.Activation(), "select"), 512, 15.0),
}
SCALES, VGG_LIMIT = (0.25, 0.0625), 3.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    result = selection()
    result["events"] = {name: repeated(partial(event, *each[:2])) for name, each in EVENTS.items()}
    result["products"] = {name: relative_products(*each[:2]) for name, each in EVENTS.items()}
    result["forward_passes"] = repeated(forward_passes)
    result["gromo"] = gromo_event()
    result["vgg11"] = {str(scale): vgg_events(scale) for scale in SCALES}
    if parser.parse_args().json:
        print(json.dumps(result))
        return
    print(f"{CANDIDATES} candidates, width {WIDTH}, {SAMPLES} samples, compared with one decomposition each")
    print(f"  {result['times_faster']:.0f} times faster (target: 500); same candidates: {result['same_picked']}")
    print("growth event of 784-64-64-10 at batch 512, relative to plain training steps: time, matrix products")
    for name, (_, _, limit) in EVENTS.items():
        print(f"  {name:26}{result['events'][name]:6.2f}  (limit: {limit:g}){result['products'][name]:8.2f}")
    shown = "not installed" if result["gromo"] is None else f"{result['gromo']:6.2f}"
    print(f"  {'forward passes alone':26}{result['forward_passes']:6.2f}")
    print(f"  {'gromo':26}{shown}")
    for scale, ratios in result["vgg11"].items():
        print(f"time of a growth event of Select in VGG-11 x {scale} at batch 128, relative to plain training steps")
        for name, ratio in ratios.items():
            print(f"  {name:26}{ratio:6.2f}  (limit: {VGG_LIMIT:g})")
        print(f"  {'median over widths':26}{statistics.median(ratios.values()):6.2f}")
        print(f"  {'maximum over widths':26}{max(ratios.values()):6.2f}  (limit: {VGG_LIMIT:g})")


if __name__ == "__main__":
    main()
