"""What growing has added can be trained alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import neurogenesis as ng
from tests.stacks import CASES, Language, perceptron

TEXT = CASES[0].example


def test_the_parameters_of_new_blocks_are_new() -> None:
    model = Language(2)
    before = dict(model.named_parameters())
    known = {id(own) for own in before.values()}
    ng.deepen(model, "blocks", 2, example=TEXT)
    new = ng.new_parameters(model)
    assert set(new) == {name for name, own in model.named_parameters() if id(own) not in known}
    assert all(bool(mask.all()) for mask in new.values())
    assert new.count == sum(own.numel() for own in new.parameters)


def test_new_rows_and_columns_are_those_since_a_moment() -> None:
    model, x = perceptron(1), torch.randn(3, 4)
    ng.grow(model, "0", 2, example=x)
    since = ng.moment(model)
    ng.grow(model, "2", 3)
    new = ng.new_parameters(model, since)
    assert set(new) == {"2.weight", "2.bias", "4.weight"}
    expected = torch.zeros(11, 10, dtype=torch.bool)
    expected[8:] = True
    assert torch.equal(new["2.weight"], expected)
    assert ng.new_parameters(model).count == 2 * (4 + 1 + 8) + 3 * (10 + 1 + 2)
    ng.shrink(model, "2", [0, 9])
    assert torch.equal(ng.new_parameters(model, since)["2.weight"][:, 0].nonzero().flatten(), torch.tensor([7, 8]))


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_only_what_is_new_trains_until_the_handle_is_removed(kind: Any) -> None:
    model, x = perceptron(), torch.randn(16, 4)
    optimizer = kind(model.parameters(), 0.1, weight_decay=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    step()
    ng.deepen(model, "2", 1, optimizer=optimizer, example=x)
    ng.grow(model, "2", 3, optimizer=optimizer, example=x)
    new = ng.new_parameters(model)
    before = {name: own.detach().clone() for name, own in model.named_parameters()}
    handle = new.train_alone(optimizer)
    step()
    step()
    for name, own in model.named_parameters():
        changed = own.detach() != before[name]
        assert not bool((changed & ~new.get(name, torch.zeros_like(changed))).any())
    assert bool((model[8].weight != before["8.weight"]).any()) and bool(
        (model[2].weight[8:] != before["2.weight"][8:]).any()
    )
    handle.remove()
    step()
    assert all(own.requires_grad for own in model.parameters())
    assert bool((model[4].weight != before["4.weight"]).any())


def test_entries_that_are_new_in_part_need_the_optimizer() -> None:
    model = perceptron()
    ng.grow(model, "2", 3, example=torch.randn(2, 4))
    with pytest.raises(ValueError, match="is new only in part: pass the optimizer"):
        ng.new_parameters(model).train_alone()
    assert all(own.requires_grad for own in model.parameters())
