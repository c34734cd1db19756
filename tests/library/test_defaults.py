"""A grower that is given a model and an optimizer, and nothing else."""

from __future__ import annotations

import inspect
import warnings

import pytest
import torch
from torch import nn

import neurogenesis as ng
from neurogenesis.defaults import FACTOR, STRATEGY
from tests.growing import always, mlp, step


def test_need_is_the_default_everywhere() -> None:
    from neurogenesis.experiments.presets import PRESETS
    from neurogenesis.integrations.huggingface import GrowerCallback as TrainerCallback
    from neurogenesis.integrations.lightning import GrowerCallback as LightningCallback

    model = mlp(4, 8, 2)
    assert STRATEGY == "need"
    assert ng.Grower(model, torch.optim.Adam(model.parameters())).strategy == ng.strategies.strategy("need")
    assert LightningCallback().strategy == ng.strategies.strategy("need")
    callback = TrainerCallback()
    given = inspect.signature(ng.Grower).bind(None, None, *callback.arguments, **callback.named)
    given.apply_defaults()
    assert given.arguments["strategy"] == "need"
    assert {preset().strategy for preset in PRESETS.values()} == {"need"}


def train(grower: ng.Grower, optimizer: torch.optim.Optimizer, steps: int, inputs: int) -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        step(grower.model, optimizer, torch.randn(64, inputs, generator=generator))
        grower.step()


@pytest.mark.parametrize("strategy", ["north-select", "north-random", ng.Strategy(always(3))], ids=str)
def test_a_strategy_without_an_end_stops_at_a_multiple_of_the_initial_size_with_one_warning(
    strategy: str | ng.Strategy,
) -> None:
    model = mlp(20, 2, 2, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    grower = ng.Grower(model, optimizer, strategy, buffer=256)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(grower, optimizer, 60, 20)
    assert max(grower.widths.values()) == 2 * FACTOR
    told = [str(each.message) for each in caught if "times the initial size" in str(each.message)]
    assert len(told) == 1
    assert "max_width" in told[0] and "max_parameters" in told[0]


@pytest.mark.parametrize(
    ("limits", "size"), [({"max_width": float("inf")}, 80), ({"max_parameters": 3000}, 80), ({"max_width": 50}, 50)]
)
def test_a_limit_of_the_user_holds_instead(limits: dict[str, float], size: int) -> None:
    model = mlp(5, 2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    grower = ng.Grower(model, optimizer, ng.Strategy(always(2)), **limits)  # type: ignore[arg-type]
    train(grower, optimizer, 39, 5)
    assert grower.widths == {"0": size}


@pytest.mark.parametrize(
    ("strategy", "maximum"),
    [("need", 128), ("north-integrated", None), ("north-weight", None), ("north-random", 2 * FACTOR)],
)
def test_strategies_that_stop_by_themselves_have_a_wide_limit_or_none(strategy: str, maximum: int | None) -> None:
    model = mlp(5, 2, 3)
    grower = ng.Grower(model, torch.optim.Adam(model.parameters()), strategy, example=torch.randn(2, 5))
    assert [layer.maximum for layer in grower.layers] == [maximum]


def test_widths_without_a_limit_of_their_own_have_the_default_one() -> None:
    model = mlp(5, 2, 2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    grower = ng.Grower(model, optimizer, ng.Strategy(always(8)), max_width={"0": 60})
    with pytest.warns(UserWarning, match=f"2 stopped at {FACTOR} times the initial size"):
        train(grower, optimizer, 10, 5)
    assert grower.widths == {"0": 60, "2": 2 * FACTOR}


def test_a_small_regression_ends_small_by_default() -> None:
    torch.manual_seed(0)
    x = torch.randn(2000, 10)
    y = (x[:, :1] * x[:, 1:2]).sin() + 0.1 * torch.randn(2000, 1)
    model = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    grower = ng.Grower(model, optimizer)
    for batch in torch.randperm(2000).repeat(3).split(64):
        loss = nn.functional.mse_loss(model(x[batch]), y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        grower.step()
    assert sum(parameter.numel() for parameter in model.parameters()) < 50_000
