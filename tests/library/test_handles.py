"""Everything that a user may hold of a model's widths stays right, whoever grows the model."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from torch import nn, optim

import neurogenesis as ng
from neurogenesis.structure.kept import kept_of
from tests import cases
from tests.cases import CASES, Case, randn
from tests.growing import always, mlp, step
from tests.promises import amount


def sizes(found: ng.Widths) -> dict[str, int]:
    return {width.name: width.size for width in found}


def grower_of(model: nn.Module, count: int = 2, **options: object) -> tuple[ng.Grower, optim.Optimizer]:
    optimizer = optim.Adam(model.parameters(), lr=1e-2)
    strategy = ng.Strategy(always(count), "random")
    return ng.Grower(model, optimizer, strategy, **options), optimizer  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", ["north-random", "north-select", "north-weight", "gradmax", "firefly"])
def test_widths_found_again_leave_an_attached_grower_right(strategy: str) -> None:
    model, x = mlp(20, 8, 8, 3), randn(64, 20)
    optimizer = optim.Adam(model.parameters())
    grower = ng.Grower(model, optimizer, ng.Strategy(always(2), ng.strategies.strategy(strategy).initialization))
    for _ in range(3):
        step(model, optimizer, x)
        grower.step()
        found = ng.widths(model, x)
        assert grower.widths == {width.name: width.size for width in found.growable}
    assert model[0].out_features > 8


@pytest.mark.parametrize("case", CASES, ids=str)
def test_all_widths_ever_found_follow_every_growth_and_shrinkage(case: Case) -> None:
    model = case.make()
    first = ng.widths(model, case.example, **case.options)
    second = ng.widths(model, case.example, **case.options)
    for name in case.growable:
        ng.grow(model, first[name], amount(first[name], 3))
        ng.grow(model, second[name], amount(first[name], 2))
        ng.shrink(model, first[name], [0, first[name].size - 1])
    fresh = ng.widths(model, case.example, **case.options)
    assert sizes(first) == sizes(second) == sizes(fresh)
    for width in fresh.growable:
        for axis in width.axes:
            for other in (first, second):
                assert torch.equal(other[width.name].positions(axis), width.positions(axis))
    assert first.differs_from(model) is None
    assert second.differs_from(model) is None


def test_a_grower_follows_growth_and_shrinkage_by_hand() -> None:
    model, x = mlp(4, 8, 8, 3), randn(64, 4)
    grower, optimizer = grower_of(model)
    step(model, optimizer, x)
    grower.step()
    found = ng.widths(model, x)
    ng.grow(model, found["0"], 5, optimizer=optimizer)
    ng.shrink(model, "2", [0, 3], optimizer=optimizer)
    assert grower.widths == {"0": 15, "2": 8}
    step(model, optimizer, x)
    grower.step()
    assert grower.widths == {"0": 17, "2": 10} == {width.name: width.size for width in found.growable}


def two_of_one_size() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))


def test_widths_without_a_tie_follow_growth_of_those_that_are_tied() -> None:
    model, x = two_of_one_size(), randn(3, 4)
    tied, free = ng.widths(model, x, tie=[["0", "2"]]), ng.widths(model, x)
    ng.grow(model, tied["0"], 3)
    ng.shrink(model, tied["0"], [1, 7])
    assert (tied["0"].size, free["0"].size, free["2"].size) == (7, 7, 7)
    assert free.differs_from(model) is None
    model(x)


def test_halves_of_one_layer_follow_growth_of_both_at_once() -> None:
    model, x = cases.sliced_in_halves(), randn(2, 6)
    free, tied = ng.widths(model, x), ng.widths(model, x, tie=[["up"]])
    ng.grow(model, tied["up"], 2)
    assert free.differs_from(model) is None
    assert sizes(free) == sizes(ng.widths(model, x))


def test_tied_widths_that_were_torn_apart_say_so_when_used() -> None:
    model, x = two_of_one_size(), randn(3, 4)
    tied, free = ng.widths(model, x, tie=[["0", "2"]]), ng.widths(model, x)
    ng.grow(model, free["2"], 1)
    assert (free["0"].size, free["2"].size) == (6, 7)
    for use in (lambda: tied["0"].size, lambda: tied.growable, lambda: str(tied), lambda: ng.grow(model, tied["0"], 1)):
        with pytest.raises(
            ValueError, match=r"2 was resized under other ties than those of this Widths.*widths\(model, example\)"
        ):
            use()
    model(x)


def test_a_growers_ties_hold_although_widths_were_found_without_them() -> None:
    model, x = two_of_one_size(), randn(64, 4)
    grower, optimizer = grower_of(model, tie=[["0", "2"]], example=x)
    found = ng.widths(model, x)
    step(model, optimizer, x)
    grower.step()
    assert grower.widths == {"0": 8}
    assert (found["0"].size, found["2"].size) == (8, 8)
    assert model[2].weight.shape == (8, 8)


def test_a_grower_whose_tie_was_torn_says_so_and_leaves_the_model_alone() -> None:
    model, x = two_of_one_size(), randn(64, 4)
    grower, optimizer = grower_of(model, tie=[["0", "2"]], example=x)
    ng.grow(model, ng.widths(model, x)["0"], 1, optimizer=optimizer)
    with pytest.raises(ValueError, match="create a new Grower"):
        step(model, optimizer, x)
    assert [parameter.shape[0] for parameter in model.parameters()] == [7, 7, 6, 6, 2, 2]
    grower.detach()
    step(model, optimizer, x)


def test_a_plan_for_a_copy_leaves_the_original_widths_alone() -> None:
    model, x = mlp(4, 8, 3), randn(3, 4)
    found = ng.widths(model, x)
    copied = copy.deepcopy(model)
    of_copy = ng.widths(copied, x)
    ng.plan_growth(model, "0", 2).apply(copied)
    assert (found["0"].size, of_copy["0"].size) == (8, 10)


def test_widths_of_an_average_follow_it() -> None:
    model, x = mlp(4, 8, 3), randn(3, 4)
    average = optim.swa_utils.AveragedModel(model)
    of_average = ng.widths(average.module, x)
    ng.grow(model, "0", 2, ema=average, example=x)
    assert of_average["0"].size == 10


def test_widths_that_nobody_holds_are_forgotten() -> None:
    model, x = mlp(4, 8, 3), randn(3, 4)
    for _ in range(5):
        ng.widths(model, x)
    gc.collect()
    assert len(kept_of(model).structures) == 1
