"""A model has one grower, and everything that resizes the model knows that grower's optimizers and average."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import neurogenesis as ng
from tests.growing import always, mlp, step

X = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))


def hooks(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Number of hooks on a model, its parameters and its optimizer."""
    own = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
    own += [len(parameter._post_accumulate_grad_hooks or ()) for parameter in model.parameters()]  # type: ignore
    own += [len(getattr(optimizer, name)) for name in vars(optimizer) if name.endswith("_hooks")]
    return sum(own)


@pytest.mark.parametrize("strategy", ["need", "north-random", "gradmax"])
@pytest.mark.parametrize("same_optimizer", [True, False])
def test_a_second_grower_replaces_the_first(strategy: str, same_optimizer: bool) -> None:
    model = mlp(6, 8, 8, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    first = ng.Grower(model, optimizer, strategy, buffer=64, max_width=16)
    for _ in range(2):
        step(model, optimizer, X)
        first.step()
    alone, other = hooks(model, optimizer), torch.optim.Adam(model.parameters(), lr=1e-2)
    second = ng.Grower(model, optimizer if same_optimizer else other, strategy, buffer=64, max_width=16, example=X)
    assert hooks(model, optimizer) <= alone
    for _ in range(4):
        step(model, second.optimizers[0], X)
        second.step()
    with pytest.warns(UserWarning, match="the grower is detached, or another one has replaced it"):
        assert first.step() == []
    assert second.steps == 4
    second.detach()
    assert hooks(model, optimizer) == hooks(model, second.optimizers[0]) == 0


def test_a_grower_that_cannot_be_made_leaves_the_present_one_attached() -> None:
    model = mlp(6, 8, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    grower = ng.Grower(model, optimizer, ng.Strategy(always(1)))
    with pytest.raises(ValueError, match="max_width"):
        ng.Grower(model, optimizer, ng.Strategy(always(1)), max_width=3, example=X)
    for size in (9, 10):
        step(model, optimizer, X)
        assert [event.after for event in grower.step()] == [size]
    young = [state["births"] for state in optimizer.state.values() if "births" in state]
    with pytest.raises(ValueError, match="max_width"):
        ng.Grower(model, optimizer, ng.Strategy(always(1)), max_width=3, example=X)
    assert young and [state["births"] for state in optimizer.state.values() if "births" in state] == young


def test_a_detached_grower_leaves_the_ages_of_another_model_in_the_same_optimizer() -> None:
    models = [mlp(6, 8, 3), mlp(6, 8, 3)]
    optimizer = torch.optim.Adam([own for model in models for own in model.parameters()], lr=1e-2)
    growers = [ng.Grower(model, optimizer, ng.Strategy(always(1))) for model in models]
    for _ in range(3):
        optimizer.zero_grad()
        sum(model(X).sin().mean() for model in models).backward()
        optimizer.step()
        for grower in growers:
            grower.step()
    growers[0].detach()
    young = ["births" in optimizer.state[model[0].weight] for model in models]
    assert young == [False, True]


def test_young_weights_stay_young_when_a_grower_is_replaced() -> None:
    def trained(replace: bool) -> dict[str, torch.Tensor]:
        model = mlp(6, 8, 3)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        grower = ng.Grower(model, optimizer, ng.Strategy(always(1)), max_width=10)
        for number in range(12):
            if replace and number == 6:
                grower = ng.Grower(model, optimizer, ng.Strategy(always(1)), max_width=10)
            step(model, optimizer, X)
            grower.step()
        return model.state_dict()

    kept, replaced = trained(False), trained(True)
    assert all(torch.equal(value, replaced[name]) for name, value in kept.items())


CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "grow": lambda model, state: ng.grow(model, "0", 3),
    "shrink": lambda model, state: ng.shrink(model, "0", [0, 2]),
    "resize": lambda model, state: ng.resize(model, {"0": 12, "2": 4}),
    "prune": lambda model, state: ng.prune(model, X, to=0.5),
    "plan": lambda model, state: ng.plan_growth(model, "0", 2).apply(model),
    "load_state_dict": lambda model, state: ng.load_state_dict(model, state),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_grower_tells_which_optimizer_and_average_to_resize(change: Callable[[Any, Any], Any]) -> None:
    model = mlp(6, 8, 8, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    average = AveragedModel(model)
    state = copy.deepcopy(model.state_dict())
    grower = ng.Grower(model, optimizer, ng.Strategy(always(1)), ema=average, max_width=20)
    for _ in range(2):
        step(model, optimizer, X)
        grower.step()
    change(model, state)
    for parameter, averaged in zip(model.parameters(), average.module.parameters(), strict=True):
        assert optimizer.state[parameter]["exp_avg"].shape == averaged.shape == parameter.shape
    before = grower.widths
    for _ in range(2):
        step(model, optimizer, X)
        average.update_parameters(model)
        grower.step()
    assert all(grower.widths[name] > size for name, size in before.items())


def test_after_detaching_nothing_is_known_of_the_optimizer() -> None:
    model = mlp(6, 8, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    ng.Grower(model, optimizer, example=X).detach()
    step(model, optimizer, X)
    ng.grow(model, "0", 1)
    assert optimizer.state[model[0].weight]["exp_avg"].shape == (8, 6)


def test_restoring_the_model_alone_resizes_what_its_grower_knows() -> None:
    model = mlp(6, 8, 8, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    average = AveragedModel(model)
    grower = ng.Grower(model, optimizer, ng.Strategy(always(1)), ema=average, max_width=20)
    step(model, optimizer, X)
    grower.step()
    best, before = ng.snapshot(model), copy.deepcopy(model.state_dict())
    for _ in range(3):
        step(model, optimizer, X)
        grower.step()
    ng.restore(best, model)
    assert grower.widths == {"0": 9, "2": 9}
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    for parameter, averaged in zip(model.parameters(), average.module.parameters(), strict=True):
        assert optimizer.state[parameter]["exp_avg"].shape == averaged.shape == parameter.shape
    step(model, optimizer, X)
    grower.step()
    assert grower.widths == {"0": 10, "2": 10}
