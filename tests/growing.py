"""Small training runs with a Grower, for the tests."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import neurogenesis as ng
from neurogenesis.structure.examples import call_model, tensors_in
from neurogenesis.surgery import operations


def mlp(*sizes: int, activation: Callable[[], nn.Module] = ng.nn.ReLU) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1])


def small_vgg() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), ng.nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 5, 3, padding=1), ng.nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(20, 8), ng.nn.ReLU(), nn.Linear(8, 3),
    )  # fmt: skip


def loss_of(model: nn.Module, example: Any) -> Tensor:
    outputs = [t for t in tensors_in(call_model(model, example)) if t.is_floating_point() or t.is_complex()]
    total: Tensor = sum((t.abs() if t.is_complex() else t).float().sin().square().mean() for t in outputs)  # type: ignore
    return total


def step(model: nn.Module, optimizer: torch.optim.Optimizer, example: Any) -> Tensor:
    optimizer.zero_grad()
    loss = loss_of(model, example)
    loss.backward()
    optimizer.step()
    return loss.detach()


def always(count: int) -> Callable[[ng.Layer], int]:
    """A trigger that adds so many neurons at every step."""

    def trigger(layer: ng.Layer) -> int:
        return count

    return trigger


def failing_edits(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Let the edit of so many tensors go well, and no more: as when memory runs out."""
    real, calls = operations.edited, iter(range(1000))

    def fails(*args: Any) -> Tensor:
        if next(calls) == at:
            raise MemoryError
        return real(*args)

    monkeypatch.setattr(operations, "edited", fails)
    monkeypatch.setattr("neurogenesis.surgery.optimizer_state.edited", fails)
