"""New fan-ins are as long as the optimizer that trains them asks for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import neurogenesis as ng
from neurogenesis.surgery.reach import reaches
from tests.growing import always, mlp, step

OPTIMIZERS: list[tuple[Any, dict[str, Any], float]] = [
    (torch.optim.Adam, {"lr": 1e-3}, 1e-3 / 0.001**0.5),
    (torch.optim.AdamW, {"lr": torch.tensor(1e-3), "betas": (0.9, 0.99)}, 1e-2),
    (torch.optim.NAdam, {"lr": 1e-3}, 1e-3 / 0.001**0.5),
    (torch.optim.RMSprop, {"lr": 1e-3, "alpha": 0.99}, 1e-2),
    (torch.optim.Adamax, {"lr": 1e-3}, 1e-3),
    (torch.optim.Adagrad, {"lr": 1e-3}, 1e-3),
    (torch.optim.SGD, {"lr": 1.0, "momentum": 0.9}, 0.0),
    (torch.optim.Adadelta, {}, 0.0),
    (torch.optim.Adafactor, {}, 0.0),
]


@pytest.mark.parametrize(("kind", "options", "expected"), OPTIMIZERS, ids=lambda value: getattr(value, "__name__", ""))
def test_reach_is_the_furthest_that_one_gradient_carries_an_entry(
    kind: Any, options: dict[str, Any], expected: float
) -> None:
    model = nn.Linear(3, 2)
    optimizer = kind(model.parameters(), **options)
    assert reaches(model, [optimizer])["weight"] == pytest.approx(expected)
    if expected == 0 or kind is torch.optim.NAdam:  # whose momentum has a schedule
        return
    # After long silence, a gradient, then silence again: momentum carries the entry on.
    weight = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = kind([weight], **{**options, "eps": 1e-30})
    for number, gradient in enumerate([0.0, 1.0, *[0.0] * 200]):
        weight.grad = torch.full_like(weight, gradient)
        optimizer.step()
        if number == 0:
            optimizer.state[weight]["step"].fill_(1e6)
    assert float(weight.detach()[0].abs()) == pytest.approx(expected, rel=0.06)


@pytest.mark.parametrize(("rate", "factor"), [(1e-9, 1.0), (1e-3, 1 + 1e-3 * (30 / 0.001) ** 0.5), (1.0, 2.0)])
def test_new_fan_ins_are_longer_by_that_reach_and_at_most_twice_as_long(rate: float, factor: float) -> None:
    model = mlp(30, 6, 3)
    with torch.no_grad():
        model[0].weight /= model[0].weight.norm(dim=1, keepdim=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    ng.grow(model, "0", 2, optimizer=optimizer, example=torch.randn(2, 30))
    torch.testing.assert_close(model[0].weight[6:].detach().norm(dim=1), torch.full((2,), factor))


def test_neurons_that_come_one_after_the_other_are_not_each_longer_than_the_last() -> None:
    for by_hand in (True, False):
        model = mlp(30, 6, 3)
        optimizer = torch.optim.Adam(model.parameters(), lr=1.0)
        grower = ng.Grower(model, optimizer, ng.Strategy(always(1)), example=torch.randn(2, 30), max_width=20)
        mean = model[0].weight.detach().norm(dim=1).mean()
        optimizer.param_groups[0]["lr"] = 1e-12  # present neurons stay as they are
        for _ in range(14):
            step(model, optimizer, torch.randn(20, 30))
            optimizer.param_groups[0]["lr"] = 1.0
            if by_hand:
                ng.grow(model, "0", 1, optimizer=optimizer)
            else:
                grower.step()
            optimizer.param_groups[0]["lr"] = 1e-12
        torch.testing.assert_close(model[0].weight[6:].detach().norm(dim=1), (2 * mean).expand(14), rtol=1e-3, atol=0)


@pytest.mark.parametrize("name", ["random", "select", "pre", "weight", "opt"])
@pytest.mark.parametrize("margin", [True, False])
def test_a_grower_gives_new_neurons_a_fan_in_of_that_length(name: str, margin: bool) -> None:
    model = mlp(30, 6, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    grower = ng.Grower(model, optimizer, ng.Strategy(always(2), name), margin=margin)
    step(model, optimizer, torch.randn(20, 30))
    mean = model[0].weight.norm(dim=1).mean()
    grower.step()
    longer = 1e-3 * (30 / 0.001) ** 0.5 if margin else 0.0
    torch.testing.assert_close(model[0].weight[6:].norm(dim=1), (mean + longer).expand(2).detach())


def test_new_fan_ins_are_balanced_against_the_strength_of_inputs_and_layers_grow_together() -> None:
    model = mlp(30, 6, 6, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    grower = ng.Grower(model, optimizer, ng.Strategy(always(20)))
    step(model, optimizer, torch.rand(20, 30) * torch.linspace(0.1, 3, 30))
    strength = optimizer.state[model[0].weight]["exp_avg_sq"].sqrt().mean(0)
    grower.step()
    assert grower.widths == {"0": 26, "2": 26}
    new = model[0].weight[6:].detach()
    cosine = (new @ strength).abs() / new.norm(dim=1) / strength.norm()
    assert cosine.max() < 0.03


def test_growing_by_hand_too_and_only_what_the_optimizer_trains() -> None:
    norms: list[Tensor] = []
    for options in ({}, {"optimizer": True}, {"optimizer": True, "margin": False}):
        model = mlp(30, 6, 3)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        given: dict[str, Any] = {**options, "optimizer": optimizer if options else None}
        mean = model[0].weight.norm(dim=1).mean()
        ng.grow(model, "0", 2, example=torch.randn(2, 30), **given)
        norms.append((model[0].weight[6:].norm(dim=1) / mean).detach())
    torch.testing.assert_close(torch.stack(norms), torch.tensor([1.0, 2.0, 1.0])[:, None].expand(3, 2))
