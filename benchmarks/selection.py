"""Cost of selecting among candidates, and of whole growth events.

    python -m benchmarks.selection [--json]

Selection: 1,000 candidates for a width of 256 on 1,568 samples, all at once and with one singular value decomposition
each (20 of them are timed and scaled up). Both must select the same candidates.

Growth events (trigger, initialization, surgery and optimizer state) that add one neuron to the first layer of
784-64-64-10 at batch 512 with Adam and a buffer of 1,568 samples, relative to plain training steps; and a growth event
of gromo, if it is installed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import neurogenesis as ng
from neurogenesis import metrics
from neurogenesis.experiments.models import mlp
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


def event(strategy: ng.Strategy, buffer: int, rounds: int = 15) -> float:
    """Time of `Grower.step` with growth, relative to plain training steps that alternate with it."""
    torch.manual_seed(0)
    model = mlp(784, 64, 64, 10)
    optimizer = torch.optim.Adam(model.parameters())
    batches = [(torch.rand(512, 784), torch.randint(10, (512,))) for _ in range(4)]

    class One(ng.triggers.Trigger):
        needs = strategy.trigger.needs

        def __call__(self, layer: ng.Layer) -> ng.Decision:
            return replace(strategy.trigger(layer), count=1)  # type: ignore[type-var]

    one = ng.Strategy(One(), strategy.initialization)
    grower = ng.Grower(model, optimizer, one, include=["hidden1"], buffer=buffer)
    plain = mlp(784, 64, 64, 10)
    plain_optimizer = torch.optim.Adam(plain.parameters())
    steps, events = [], []
    for number in range(rounds + 4):
        images, labels = batches[number % 4]
        step(model, optimizer, images, labels)
        events.append(seconds(grower.step))
        steps.append(seconds(lambda: step(plain, plain_optimizer, images, labels)))  # noqa: B023
    assert grower.widths["hidden1"] >= 64 + rounds
    events, steps = events[4:], steps[4:]  # the buffer is full after four steps
    return statistics.median(events) / statistics.median(steps)


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


EVENTS = {
    "random": (ng.Strategy(ng.triggers.Activation(), "random"), 1568, 1.5),
    "gradmax": (ng.Strategy(ng.triggers.Gradient(), "gradmax"), 1568, 3.0),
    "select, 1,000 candidates": (ng.Strategy(ng.triggers.Activation(), "select"), 1568, 15.0),
    "select, buffer of a batch": (ng.Strategy(ng.triggers.Activation(), "select"), 512, 15.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    result = selection()
    result["events"] = {name: event(strategy, buffer) for name, (strategy, buffer, _) in EVENTS.items()}
    result["gromo"] = gromo_event()
    if parser.parse_args().json:
        print(json.dumps(result))
        return
    print(f"{CANDIDATES} candidates, width {WIDTH}, {SAMPLES} samples, compared with one decomposition each")
    print(f"  {result['times_faster']:.0f} times faster (target: 500); same candidates: {result['same_picked']}")
    print("time of a growth event of 784-64-64-10 at batch 512, relative to plain training steps")
    for name, (_, _, limit) in EVENTS.items():
        print(f"  {name:26}{result['events'][name]:6.2f}  (limit: {limit:g})")
    shown = "not installed" if result["gromo"] is None else f"{result['gromo']:6.2f}"
    print(f"  {'gromo':26}{shown}")


if __name__ == "__main__":
    main()
