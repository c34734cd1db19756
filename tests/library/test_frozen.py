"""Frozen parts stay as they are, unless the user asks for growth there."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import neurogenesis as ng
from tests.growing import always, mlp, step

X = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))


class Pretrained(nn.Sequential):
    """A frozen backbone and a new head with a hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.head = mlp(6, 8, 7), mlp(7, 5, 3)
        self.backbone.requires_grad_(False)


def trained_by(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam([parameter for parameter in model.parameters() if parameter.requires_grad], lr=1e-2)


def test_a_frozen_backbone_still_loads_its_own_checkpoint_after_growth() -> None:
    model = Pretrained()
    checkpoint = copy.deepcopy(model.backbone.state_dict())
    optimizer = trained_by(model)
    grower = ng.Grower(model, optimizer, ng.Strategy(always(1)))
    for _ in range(3):
        step(model, optimizer, X)
        grower.step()
    assert grower.widths == {"head.0": 8}
    model.backbone.load_state_dict(checkpoint)


def test_a_width_between_frozen_and_trained_layers_is_refused_with_the_remedy() -> None:
    model = Pretrained()
    reason = ng.widths(model, X)["backbone.2"].reason or ""
    assert "backbone.2.weight" in reason and "is frozen (requires_grad is False)" in reason
    with pytest.raises(ValueError, match=r"backbone\.2 cannot grow: .* requires_grad_\(True\), or pass frozen=True"):
        ng.grow(model, "backbone.2", 1)
    assert model.backbone[2].out_features == 7


@pytest.mark.parametrize(
    "change",
    [
        lambda model: ng.grow(model, "backbone.2", 1, example=X, frozen=True),
        lambda model: ng.narrow(model, X, 0.5, frozen=True),
        lambda model: ng.prune(model, X, to={"backbone.2": 6}, frozen=True),
    ],
    ids=["grow", "narrow", "prune"],
)
def test_frozen_parts_change_if_asked_for(change: Callable[[Any], Any]) -> None:
    model = Pretrained()
    change(model)
    assert model.backbone[2].out_features == model.head[0].in_features != 7


def test_a_grower_grows_frozen_parts_if_asked_for() -> None:
    model = Pretrained()
    optimizer = trained_by(model)
    grower = ng.Grower(model, optimizer, ng.Strategy(always(1)), frozen=True)
    step(model, optimizer, X)
    grower.step()
    assert grower.widths == {"backbone.2": 8, "head.0": 6}  # the consumer of backbone.0 cannot learn


@pytest.mark.parametrize("change", [lambda model: ng.narrow(model, X, 2), lambda model: ng.prune(model, X, to=0.5)])
def test_frozen_parts_are_neither_narrowed_nor_pruned(change: Callable[[Any], Any]) -> None:
    model = Pretrained()
    change(model)
    assert [each.out_features for each in (model.backbone[0], model.backbone[2])] == [8, 7]
    assert model.head[0].out_features < 5


@pytest.mark.parametrize(
    "strategy", [ng.Strategy(always(1)), "need", "north-random"], ids=["function", "need", "north"]
)
def test_widths_grow_once_they_are_unfrozen(strategy: Any) -> None:
    model = Pretrained()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    grower = ng.Grower(model, optimizer, strategy, buffer=64, max_width=20)
    for _ in range(3):
        step(model, optimizer, X)
        grower.step()
    assert list(grower.widths) == ["head.0"]
    model.backbone.requires_grad_(True)
    for _ in range(30):
        step(model, optimizer, X)
        grower.step()
    assert list(grower.widths) == ["backbone.0", "backbone.2", "head.0"]
    assert set(grower.history.latest) == set(grower.widths)
    if strategy != "need":  # which sees that there is nothing to learn
        assert any(event.width.startswith("backbone") for event in grower.history)


def test_a_linear_head_on_a_frozen_backbone_is_waited_for_with_a_warning() -> None:
    model = mlp(6, 8, 3)
    model[0].requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    grower = ng.Grower(model, optimizer, ng.Strategy(always(1)))
    with pytest.warns(UserWarning, match=r"no width can grow yet .*0\.weight.* requires_grad_\(True\)"):
        step(model, optimizer, X)
    grower.step()
    assert grower.widths == {}
    model[0].requires_grad_(True)
    for _ in range(2):
        step(model, optimizer, X)
        grower.step()
    assert grower.widths == {"0": 9}


def test_states_from_before_and_after_unfreezing_load() -> None:
    model = Pretrained()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    grower = ng.Grower(model, optimizer, ng.Strategy(always(1)), max_width=20)

    def train(steps: int) -> None:
        for _ in range(steps):
            step(model, optimizer, X)
            grower.step()

    train(2)
    frozen = ng.snapshot(model, optimizer, grower)
    model.backbone.requires_grad_(True)
    train(3)
    unfrozen, sizes = ng.snapshot(model, optimizer, grower), grower.widths
    assert sizes["backbone.0"] > 8
    ng.restore(frozen, model, optimizer, grower)
    assert grower.widths == {"backbone.0": 8, "backbone.2": 7, "head.0": 7}
    train(2)
    model, optimizer = Pretrained(), torch.optim.Adam(model.parameters(), lr=1e-2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    grower = ng.Grower(model, optimizer, ng.Strategy(always(1)), max_width=20)
    ng.restore(unfrozen, model, optimizer, grower)
    assert grower.widths == {"head.0": sizes["head.0"]}
    assert model.backbone[0].out_features == sizes["backbone.0"]
    model.backbone.requires_grad_(True)
    train(2)
    assert list(grower.widths) == ["backbone.0", "backbone.2", "head.0"]


def test_an_unfrozen_width_may_be_larger_than_the_maximum() -> None:
    model = Pretrained()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    grower = ng.Grower(model, optimizer, ng.Strategy(always(1)), max_width=7)
    for frozen in (True, False, False, False):
        model.backbone.requires_grad_(not frozen)
        step(model, optimizer, X)
        grower.step()
    assert grower.widths == {"backbone.0": 8, "backbone.2": 7, "head.0": 7}


def test_a_model_that_is_frozen_for_a_step_is_not_taken_for_unfrozen() -> None:
    model = Pretrained()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    grower = ng.Grower(model, optimizer, ng.Strategy(always(1)), max_width=20)
    step(model, optimizer, X)
    grower.step()
    step(model, optimizer, X)
    model.head.requires_grad_(False)
    grower.step()
    assert list(grower.widths) == ["head.0"]
