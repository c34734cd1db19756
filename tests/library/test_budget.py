"""Budgets: limits are kept, spent where neurons are wanted most per parameter, and sizes are multiples."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import neurogenesis as ng
from neurogenesis.growing.budget import Budget, shares
from neurogenesis.layer import Layer
from tests.cases import randn
from tests.growing import always, mlp, step


def layers_of(model: nn.Module, inputs: int) -> list[Layer]:
    return [Layer(model, width) for width in ng.widths(model, randn(2, inputs)).growable]


def parameters(sizes: list[int], inputs: int) -> int:
    return sum(p.numel() for p in mlp(inputs, *sizes, 3).parameters())


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_limit_is_kept_and_nothing_that_fits_is_left(data: st.DataObject) -> None:
    inputs, sizes = data.draw(st.integers(1, 6)), data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    counts = data.draw(st.lists(st.integers(1, 9), min_size=len(sizes), max_size=len(sizes)))
    round_to = data.draw(st.sampled_from([1, 1, 2, 4]))
    counts = [-(-(size + count) // round_to) * round_to - size for size, count in zip(sizes, counts, strict=True)]
    model = mlp(inputs, *sizes, 3)
    before = sum(p.numel() for p in model.parameters())
    limit = before + data.draw(st.integers(0, 200))
    chosen = shares(model, Budget(limit), list(zip(layers_of(model, inputs), counts, strict=True)), round_to)
    after = [size + count for size, count in zip(sizes, chosen, strict=True)]
    assert parameters(after, inputs) <= limit
    for number, (size, requested) in enumerate(zip(sizes, counts, strict=True)):
        assert 0 <= chosen[number] <= requested
        assert chosen[number] == 0 or (size + chosen[number]) % round_to == 0
        if chosen[number] < requested:
            more = list(after)
            more[number] = (more[number] // round_to + 1) * round_to
            assert parameters(more, inputs) > limit
    assert [layer.size for layer in layers_of(model, inputs)] == sizes  # only asked


def test_without_a_limit_or_below_it_everything_is_granted() -> None:
    model = mlp(4, 5, 6, 3)
    requests = list(zip(layers_of(model, 4), [7, 8], strict=True))
    assert shares(model, Budget(), requests) == [7, 8]
    assert shares(model, Budget(10_000, 10_000), requests) == [7, 8]


def test_neurons_go_where_they_are_wanted_most_per_parameter() -> None:
    model = mlp(100, 8, 8, 3)  # a neuron of the first layer costs 109 parameters, one of the second 12
    layers, before = layers_of(model, 100), sum(p.numel() for p in model.parameters())
    assert shares(model, Budget(before + 60), [(layers[0], 4), (layers[1], 4)]) == [0, 4]
    assert shares(model, Budget(before + 120), [(layers[0], 8), (layers[1], 1)])[1] == 1
    first = shares(model, Budget(before + 12), [(layers[0], 8), (layers[1], 1)])
    assert first == [0, 1]


def test_among_equal_costs_the_larger_wish_comes_first() -> None:
    class Parallel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 6), nn.Linear(4, 6)
            self.c, self.d = nn.Linear(6, 3), nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.c(self.a(x).relu()) + self.d(self.b(x).relu())
            return result

    model = Parallel()
    layers = [Layer(model, width) for width in ng.widths(model, randn(2, 4)).growable]
    before = sum(p.numel() for p in model.parameters())
    assert shares(model, Budget(before + 3 * 8), [(layers[0], 2), (layers[1], 5)]) == [0, 3]


def test_a_limit_on_operations_counts_what_a_neuron_computes() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3, 4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)
    )
    found = ng.widths(model, randn(2, 1, 14, 14))
    layers, before = [Layer(model, width) for width in found.growable], ng.flops(model, randn(1, 1, 14, 14))
    # A channel of the first layer takes 2 * 9 * 144 + 2 * 4 * 9 * 9 operations, one of the second 2 * 4 * 9 * 9 + 54.
    assert found.structure.flops_with({layers[0].width.atom: 5}) == before + 3240
    assert found.structure.flops_with({layers[1].width.atom: 5}) == before + 702
    requests = [(layers[0], 4), (layers[1], 4)]
    assert shares(model, Budget(max_flops=before + 3 * 702), requests) == [0, 3]
    # The first one has 46 parameters, the second 64.
    parameters = sum(p.numel() for p in model.parameters())
    assert shares(model, Budget(parameters + 3 * 46), requests)[0] == 3
    chosen = shares(model, Budget(parameters + 150, before + 5000), requests)
    sizes = {layer.width.atom: layer.size + count for layer, count in zip(layers, chosen, strict=True)}
    assert found.structure.parameters_with(model, sizes) <= parameters + 150
    assert before < found.structure.flops_with(sizes) <= before + 5000


def test_growth_stays_within_a_budget_of_operations() -> None:
    model = mlp(10, 8, 8, 3)
    limit = ng.flops(model, randn(1, 10)) + 600
    optimizer = torch.optim.Adam(model.parameters())
    grower = ng.Grower(model, optimizer, ng.Strategy(always(2)), max_flops=limit, example=randn(5, 10))
    for _ in range(12):
        step(model, optimizer, randn(5, 10))
        grower.step()
    assert all(layer.full for layer in grower.layers)
    assert limit - 2 * (10 + max(grower.widths.values())) < grower.flops == ng.flops(model, randn(1, 10)) <= limit


def test_a_budget_below_the_present_operations_is_refused() -> None:
    model = mlp(10, 8, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(
        ValueError, match="max_flops=100, but a forward pass of one sample already takes 208 operations"
    ):
        ng.Grower(model, optimizer, max_flops=100, example=randn(5, 10))
    with pytest.raises(ValueError, match=r"max_flops: expected a positive integer, not 1\.5"):
        ng.Grower(model, optimizer, max_flops=1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(("round_to", "maximum"), list(product([1, 4, 8], [None, 21, 32])))
def test_widths_grow_to_multiples(round_to: int, maximum: int | None) -> None:
    model = mlp(10, 6, 5, 3)
    optimizer = torch.optim.Adam(model.parameters())
    grower = ng.Grower(model, optimizer, ng.Strategy(always(3)), max_width=maximum, round_to=round_to)
    for _ in range(12):
        step(model, optimizer, randn(5, 10))
        grower.step()
        assert all(event.after % round_to == 0 for event in grower.history)
    last = {event.width: event.after for event in grower.history}
    if maximum is not None:
        assert set(last.values()) == {maximum // round_to * round_to}
        assert all(layer.full for layer in grower.layers)
    else:
        assert min(last.values()) > 30


def test_a_budget_of_parameters_keeps_multiples() -> None:
    model = mlp(10, 8, 8, 3)
    limit = sum(p.numel() for p in model.parameters()) + 300
    optimizer = torch.optim.Adam(model.parameters())
    grower = ng.Grower(model, optimizer, ng.Strategy(always(2)), max_parameters=limit, round_to=4)
    for _ in range(12):
        step(model, optimizer, randn(5, 10))
        grower.step()
    assert sum(p.numel() for p in model.parameters()) <= limit
    assert all(size % 4 == 0 and size > 8 for size in grower.widths.values())


def test_bad_multiples_are_named() -> None:
    model = mlp(10, 6, 3)
    with pytest.raises(ValueError, match="round_to: expected a positive integer, not 0"):
        ng.Grower(model, torch.optim.SGD(model.parameters(), 0.1), round_to=0)


@pytest.mark.parametrize("strategy", [ng.Strategy(always(1)), "north-random"], ids=["function", "north"])
def test_a_width_without_parameters_left_is_not_watched(strategy: Any) -> None:
    model = mlp(10, 8, 8, 3)
    limit = sum(p.numel() for p in model.parameters()) + 13  # a neuron of the second width takes 12, of the first 19
    optimizer = torch.optim.Adam(model.parameters())
    grower = ng.Grower(model, optimizer, strategy, max_parameters=limit, example=randn(5, 10))
    first, second = grower.layers
    assert first.full and not second.full
    for number in range(30):
        step(model, optimizer, randn(64, 10) + number)
        grower.step()
        if second.full:
            break
    assert grower.widths == {"0": 8, "2": 9}
    assert str(grower).count("nothing left of the budget") == 2
    seen = len(grower.history.observations)
    step(model, optimizer, randn(64, 10))
    grower.step()
    assert len(grower.history.observations) == seen
    again = mlp(10, 8, 8, 3)
    resumed = ng.Grower(
        again, torch.optim.Adam(again.parameters()), strategy, max_parameters=limit, example=randn(5, 10)
    )
    resumed.load_state_dict(grower.state_dict())
    assert all(layer.full for layer in resumed.layers)
