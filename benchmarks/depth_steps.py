"""Time of a gradient step of `gpt-stdlib` at every depth, and of networks that have grown to it, side by side.

    python -m benchmarks.depth_steps

One thread, processor time. Every round trains each network for one step, in turn, so that what disturbs one disturbs
all; medians over the rounds, relative to the static network of six blocks. A training that grows after half of its
steps takes the mean of the steps before and after, and once what deepening takes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

import neurogenesis as ng
from neurogenesis.experiments.building import HEAD_SIZE
from neurogenesis.experiments.language import Transformer
from neurogenesis.experiments.presets import PRESETS
from neurogenesis.experiments.settings import Language
from neurogenesis.tables import table

CHARACTERS, DEPTHS, HOPS = 97, (1, 2, 3, 4, 5, 6), ((3, 6), (2, 6), (2, 4))
STEPS = 2000


def transformer(settings: Language, blocks: int) -> nn.Module:
    """The network of the preset with so many blocks."""
    torch.manual_seed(0)
    return Transformer(
        characters=CHARACTERS, length=settings.length, size=settings.stream, head_size=HEAD_SIZE,
        heads=[settings.heads] * blocks, neurons=[settings.neurons] * blocks,
    )  # fmt: skip


def stepper(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> Callable[[], float]:
    """A function that trains for one step and returns its seconds of processor time."""

    def step() -> float:
        started = time.process_time()
        optimizer.zero_grad()
        F.cross_entropy(model(x).flatten(0, -2), x.flatten()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return time.process_time() - started

    return step


def grown(settings: Language, first: int, last: int, x: torch.Tensor) -> tuple[Callable[[], float], float]:
    """The steps of a network that has grown, and the seconds that growing took."""
    model = transformer(settings, first)
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)
    stepper(model, optimizer, x)()  # the optimizer has a state
    started = time.process_time()
    ng.deepen(model, "blocks", last - first, optimizer=optimizer, example=x[:2])
    return stepper(model, optimizer, x), time.process_time() - started


def seconds(rounds: int, settings: Language) -> dict[str, float]:
    """Median seconds of a step of each network, and of deepening, which has "deepening" before its name."""
    x = torch.randint(CHARACTERS, (settings.batch, settings.length))
    steps: dict[str, Callable[[], float]] = {}
    found: dict[str, float] = {}
    for depth in DEPTHS:
        model = transformer(settings, depth)
        steps[f"{depth}"] = stepper(model, torch.optim.Adam(model.parameters(), lr=settings.learning_rate), x)
    for first, last in HOPS:
        name = f"{first} to {last}"
        steps[name], found[f"deepening {name}"] = grown(settings, first, last, x)
    for step in steps.values():
        step()
    times = [{name: step() for name, step in steps.items()} for _ in range(rounds)]
    return {name: statistics.median(each[name] for each in times) for name in steps} | found


def rows(found: dict[str, float]) -> list[tuple[str, ...]]:
    """The table: static networks, then those that have grown, with a training that grows after half of its steps."""
    whole = found[str(DEPTHS[-1])]
    lines = [
        (f"{depth}", f"{1000 * found[str(depth)]:.1f}", f"{found[str(depth)] / whole:.2f}", "") for depth in DEPTHS
    ]
    for first, last in HOPS:
        step, once = found[f"{first} to {last}"], found[f"deepening {first} to {last}"]
        half = (found[str(first)] + step) / 2 + once / STEPS
        shares = f"{step / whole:.2f}", f"{half / found[str(last)]:.2f}"
        lines.append((f"{first} to {last}", f"{1000 * step:.1f}", *shares))
    return lines


def main() -> None:
    torch.set_num_threads(1)
    settings = PRESETS["gpt-stdlib"]()
    assert isinstance(settings, Language)
    head = ("blocks", "step, ms", "of 6 blocks", "a training, of its final depth")
    print(table(head, rows(seconds(60, settings))))


if __name__ == "__main__":
    main()
