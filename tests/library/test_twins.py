"""Twins: new neurons in pairs with opposite fan-outs, which cancel out until training parts them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import neurogenesis as ng
from tests import promises
from tests.growing import mlp

EXAMPLE = torch.randn(32, 6, generator=torch.Generator().manual_seed(0))


def grow(model: nn.Module, count: int, width: str = "0") -> None:
    ng.grow(model, width, count, initialization="twins", example=EXAMPLE, frozen=True)


def weight(model: nn.Module, layer: str) -> Tensor:
    return model.get_parameter(f"{layer}.weight")


@pytest.mark.parametrize("count", [1, 4, 5])
def test_pairs_are_equal_with_opposite_fan_outs_and_an_odd_one_has_none(count: int) -> None:
    torch.manual_seed(0)
    model = mlp(6, 8, 3)
    fan_in_norm, fan_out_norm = (own.norm(dim=1).mean() for own in (weight(model, "0"), weight(model, "2").T))
    grow(model, count)
    pairs, fan_in, fan_out = count // 2, weight(model, "0")[8:], weight(model, "2").T[8:]
    assert len(fan_in) == len(fan_out) == count
    assert torch.equal(fan_in[:pairs], fan_in[pairs : 2 * pairs])
    assert torch.equal(fan_out[:pairs], -fan_out[pairs : 2 * pairs])
    assert not fan_out[2 * pairs :].any()
    if pairs:
        torch.testing.assert_close(fan_in.norm(dim=1), fan_in_norm.expand(count))
        torch.testing.assert_close(fan_out[:pairs].norm(dim=1), fan_out_norm.expand(pairs) * (8 / (8 + count)) ** 0.5)
        assert len(fan_in[:pairs].unique(dim=0)) == len(fan_out[:pairs].unique(dim=0)) == pairs


def test_outputs_do_not_change_and_the_first_step_parts_the_twins() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    promises.unsettle(model)
    before = promises.outputs_of(model, EXAMPLE, training=True)
    grow(model, 6)
    assert promises.difference(before, promises.outputs_of(model, EXAMPLE, training=True)) < 1e-5
    optimizer = torch.optim.Adam(model.parameters())
    model(EXAMPLE).square().sum().backward()
    optimizer.step()
    first, second = weight(model, "0")[8:11], weight(model, "0")[11:]
    assert ((first - second).norm(dim=1) > 1e-3).all()


class Sum(nn.Module):
    """A width that two layers consume."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.one, self.other = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        result: Tensor = self.one(h) + self.other(h)
        return result


def _frozen(layer: nn.Module) -> None:
    layer.requires_grad_(False)


def _weight_norm(layer: nn.Module) -> None:
    nn.utils.parametrizations.weight_norm(layer)


@pytest.mark.parametrize("change", [None, _frozen, _weight_norm])
def test_neurons_have_no_fan_out_where_they_may_not_cancel_out(change: Callable[[nn.Module], None] | None) -> None:
    torch.manual_seed(0)
    model = Sum()
    if change is not None:
        change(model.other)
    before = model(EXAMPLE)
    grow(model, 4, "first")
    assert bool(model.one.weight[:, 8:].any()) == bool(model.other.weight[:, 8:].any()) == (change is None)
    torch.testing.assert_close(model(EXAMPLE), before)


def test_a_consumer_without_weights_gets_none() -> None:
    model = mlp(6, 8, 3)
    nn.init.zeros_(weight(model, "2"))
    grow(model, 4)
    assert not weight(model, "2").any()
