"""How `need` grows where samples depend on each other, or change while the network learns.

    python -m benchmarks.dependent [--seeds N]

Each network starts with 16 neurons per hidden layer. Printed are the widths at the end and the step of the last growth,
by seed.

- `series`: overlapping windows of 24 values predict the mean of the next 12. The series is white noise, or three sines
  with noise. Windows are recognized by their values, or the blocks of 64 that they begin in are passed as samples.
- `graph`: a graph convolution on 900 nodes in 24 communities, all nodes in each step, 60 % of them with labels. Labels
  are random, or one of four, the same for a whole community. Features are noise with a hint of the community. Nodes are
  recognized by their features, or communities are passed as samples.
- `replay`: Q-learning of a swing-up of a pendulum, from a replay buffer of the latest 5,000 transitions, with a target
  network. For comparison, the same steps on the transitions of the last buffer with targets that stay (`fixed`).
"""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import neurogenesis as ng
from neurogenesis.experiments.models import mlp

WIDTH, RATE = 16, 3e-3
Growth = tuple[tuple[int, ...], int]  # widths at the end, and the step of the last growth, or 0


def growth(grower: ng.Grower) -> Growth:
    return tuple(grower.widths.values()), max((event.step for event in grower.history), default=0)


# --- a time series -------------------------------------------------------------------------------------------

LENGTH, SEEN, AHEAD, BLOCK = 1500, 24, 12, 64


def series(signal: bool, blocks: bool, seed: int, steps: int = 1500) -> Growth:
    """Train on overlapping windows of a series."""
    torch.manual_seed(seed)
    time = torch.arange(LENGTH + SEEN + AHEAD)
    values = torch.randn(len(time))
    if signal:
        values = 0.3 * values + sum(torch.sin(2 * math.pi * time / period) for period in (9.0, 31.0, 77.0))
    windows = values.unfold(0, SEEN + AHEAD, 1)
    x, y = windows[:, :SEEN], windows[:, SEEN:].mean(1, keepdim=True)
    model = mlp(SEEN, WIDTH, WIDTH, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    grower = ng.Grower(model, optimizer)
    for _ in range(steps):
        starts = torch.randint(len(x), (32,))
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[starts]), y[starts]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        grower.step(samples=starts // BLOCK if blocks else None)
    return growth(grower)


# --- a graph -------------------------------------------------------------------------------------------------

NODES, COMMUNITIES, LABELS = 900, 24, 4


class GraphNetwork(nn.Module):
    """Two graph convolutions."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(features, WIDTH), nn.Linear(WIDTH, LABELS)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        result: Tensor = adjacency @ self.second(torch.relu(adjacency @ self.first(x)))
        return result


def graph(random_labels: bool, blocks: bool, seed: int, steps: int = 500) -> Growth:
    """Train on the nodes of a graph that have labels."""
    torch.manual_seed(seed)
    community = torch.randint(COMMUNITIES, (NODES,))
    same = community[:, None] == community
    edges = (torch.rand(NODES, NODES) < torch.where(same, 0.3, 0.004)).triu(1)
    adjacency = (edges | edges.T).float() + torch.eye(NODES)
    adjacency /= adjacency.sum(1, keepdim=True)
    x = torch.randn(NODES, COMMUNITIES) + nn.functional.one_hot(community, COMMUNITIES)
    labels = torch.randint(LABELS, (NODES,)) if random_labels else community % LABELS
    known = torch.rand(NODES) < 0.6
    model = GraphNetwork(COMMUNITIES)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    grower = ng.Grower(model, optimizer)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x, adjacency)[known], labels[known]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        grower.step(samples=community if blocks else None)
    return growth(grower)


# --- reinforcement learning ----------------------------------------------------------------------------------

KEPT, ACTORS, DISCOUNT = 5000, 16, 0.97
TORQUES = torch.tensor([-2.0, 0.0, 2.0])


def pendulum(state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """The next states (angle and speed) of pendulums, and the rewards: 0 upright and at rest, else negative."""
    angle, speed = state.unbind(1)
    speed = (speed + 0.05 * (15 * angle.sin() + 3 * TORQUES[action])).clamp(-8, 8)
    angle = torch.remainder(angle + 0.05 * speed + math.pi, 2 * math.pi) - math.pi
    return torch.stack([angle, speed], 1), -(angle.square() + 0.1 * speed.square()) / 10


def observed(state: Tensor) -> Tensor:
    angle, speed = state.unbind(1)
    return torch.stack([angle.cos(), angle.sin(), speed / 8], 1)


def replay(seed: int, steps: int = 2000) -> tuple[Growth, Growth]:
    """Train with a replay buffer, and then another network on what is in the buffer, with targets that stay."""
    torch.manual_seed(seed)
    model, start = mlp(3, WIDTH, WIDTH, len(TORQUES)), torch.tensor([math.pi, 0.0])
    fresh = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    grower = ng.Grower(model, optimizer)
    target, state = copy.deepcopy(model), start.repeat(ACTORS, 1)
    buffer: tuple[Tensor, ...] = ()
    for step in range(steps):
        with torch.no_grad():
            best, random = target(observed(state)).argmax(1), torch.randint(len(TORQUES), (ACTORS,))
        action = torch.where(torch.rand(ACTORS) < 0.2, random, best)
        after, reward = pendulum(state, action)
        new = observed(state), action, reward, observed(after)
        buffer = tuple(torch.cat([old, each])[-KEPT:] for old, each in zip(buffer, new, strict=True)) if buffer else new
        state = start.repeat(ACTORS, 1) if step % 200 == 199 else after
        chosen = torch.randint(len(buffer[0]), (64,))
        _q_step(model, optimizer, target, [each[chosen] for each in buffer])
        grower.step()
        if step % 50 == 49:
            target = copy.deepcopy(model)
    supervised = torch.optim.Adam(fresh.parameters(), lr=RATE)
    fixed = ng.Grower(fresh, supervised)
    for _ in range(steps):
        chosen = torch.randint(len(buffer[0]), (64,))
        _q_step(fresh, supervised, target, [each[chosen] for each in buffer])
        fixed.step()
    return growth(grower), growth(fixed)


def _q_step(model: nn.Module, optimizer: torch.optim.Optimizer, target: nn.Module, batch: list[Tensor]) -> None:
    now, action, reward, after = batch
    with torch.no_grad():
        wanted = reward + DISCOUNT * target(after).amax(1)
    optimizer.zero_grad()
    chosen = model(now).gather(1, action[:, None])[:, 0]
    nn.functional.mse_loss(chosen, wanted).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    seeds = range(1, parser.parse_args().seeds + 1)
    torch.set_num_threads(1)  # fastest for such small networks
    ways: dict[str, Callable[[int], Any]] = {
        "series, noise": lambda seed: series(signal=False, blocks=False, seed=seed),
        "series, noise, blocks": lambda seed: series(signal=False, blocks=True, seed=seed),
        "series, sines": lambda seed: series(signal=True, blocks=False, seed=seed),
        "series, sines, blocks": lambda seed: series(signal=True, blocks=True, seed=seed),
        "graph, random": lambda seed: graph(random_labels=True, blocks=False, seed=seed),
        "graph, random, blocks": lambda seed: graph(random_labels=True, blocks=True, seed=seed),
        "graph, communities": lambda seed: graph(random_labels=False, blocks=False, seed=seed),
        "graph, communities, blocks": lambda seed: graph(random_labels=False, blocks=True, seed=seed),
    }
    for name, run in ways.items():
        _print(name, [run(seed) for seed in seeds])
    both = [replay(seed) for seed in seeds]
    for number, name in enumerate(("replay", "replay, fixed")):
        _print(name, [each[number] for each in both])


def _print(name: str, found: list[Growth]) -> None:
    print(f"{name:28}", ", ".join(f"{'-'.join(map(str, widths))} (step {step})" for widths, step in found), flush=True)


if __name__ == "__main__":
    main()
