"""The cost of growth in compiled models: graphs and seconds per growth, against the same training without compilation.

    python -m benchmarks.compile [--json] [--backend NAME]

An MLP grows by one neuron per width: at each of 14 steps, and at one step in 16. It is compiled by `torch.compile`, by
its method `compile`, and as part of a function around it. Seconds per growth are those that the run takes longer than
the eager run, divided by the number of steps with growth. Caches of earlier runs are not used.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

import neurogenesis as ng

WAYS = ("eager", "torch.compile(model)", "model.compile()", "function")
CASES = {"growth at each of 14 steps": (14, 1), "growth at 3 of 48 steps": (48, 16)}  # steps, interval of growth


def one_neuron(layer: ng.Layer) -> int:
    return 1


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def measure(way: str, steps: int, every: int, backend: str) -> dict[str, float]:
    """Graphs, seconds and steps with growth of a training run."""
    torch._dynamo.reset()
    counters.clear()
    model = called = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    if way == "torch.compile(model)":
        called = torch.compile(model, backend=backend)  # type: ignore[assignment]
    elif way == "model.compile()":
        model.compile(backend=backend)
    grower = ng.Grower(called, optimizer, ng.Strategy(one_neuron, "random"), every=every, buffer=128)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(called(x), y)

    compiled_loss: Callable[[Tensor, Tensor], Tensor] = torch.compile(loss, backend=backend)
    generator, compiled = torch.Generator().manual_seed(0), 0
    started = time.perf_counter()
    for _ in range(steps):
        x, y = torch.rand(128, 784, generator=generator), torch.randint(10, (128,), generator=generator)
        compiled += not grower.eager
        chosen = compiled_loss if way == "function" and not grower.eager else loss
        optimizer.zero_grad()
        chosen(x, y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        grower.step()
    seconds = time.perf_counter() - started
    grown = len({event.step for event in grower.history})
    return {"graphs": counters["stats"]["unique_graphs"], "seconds": seconds, "growths": grown, "compiled": compiled}


def run(backend: str) -> dict[str, dict[str, dict[str, float]]]:
    """Figures by case and way."""
    result = {}
    torch.compile(nn.Linear(4, 4), backend=backend)(torch.ones(2, 4)).sum().backward()  # loads the compiler
    for case, (steps, every) in CASES.items():
        figures = {way: measure(way, steps, every, backend) for way in WAYS}
        for each in figures.values():
            each["seconds per growth"] = (each["seconds"] - figures["eager"]["seconds"]) / each["growths"]
        result[case] = figures
    return result


def table(result: dict[str, Any]) -> str:
    lines = []
    for case, figures in result.items():
        lines += [case, f"  {'':22}{'graphs':>8}{'compiled steps':>16}{'seconds':>9}{'seconds per growth':>20}"]
        for way, each in figures.items():
            numbers = f"{each['graphs']:8}{each['compiled']:16}{each['seconds']:9.2f}{each['seconds per growth']:20.2f}"
            lines.append(f"  {way:22}{numbers}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--backend", default="inductor")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch._inductor.config.compile_threads = 1
    with torch._inductor.utils.fresh_cache():
        result = run(options.backend)
    print(json.dumps(result) if options.json else table(result))


if __name__ == "__main__":
    main()
