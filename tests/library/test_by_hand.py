"""Growing by hand takes the initializations that a Grower takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import neurogenesis as ng
from neurogenesis import initializations as how
from tests.growing import always, mlp, small_vgg, step

X = torch.randn(30, 10, generator=torch.Generator().manual_seed(1))
IMAGES = torch.randn(6, 2, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("initialization", ["select", how.Select(candidates=20), "opt", "pre", "weight", how.Random()])
def test_names_and_objects_of_initializations_are_taken(initialization: Any) -> None:
    model = mlp(10, 6, 5, 3)
    before = model(X)
    plan = ng.grow(model, "0", 2, initialization=initialization, example=X)
    assert (plan.before, plan.after, model[0].out_features) == (6, 8, 8)
    torch.testing.assert_close(model(X), before)
    assert model[0].weight[6:].norm(dim=1).min() > 0.1


def test_it_gives_the_neurons_that_a_grower_would_add_on_the_same_activations() -> None:
    by_hand, watched = small_vgg(), small_vgg()
    optimizer = torch.optim.SGD(watched.parameters(), lr=0.0)
    select = how.Select(candidates=20)
    grower = ng.Grower(watched, optimizer, ng.Strategy(always(2), select), include=["3"], buffer=6)
    step(watched, optimizer, IMAGES)
    seeds = torch.Generator().manual_seed(0)
    torch.randint(2**31, (1,), generator=seeds)  # which the Grower draws for trials
    grower.step()
    ng.grow(by_hand, "3", 2, initialization=lambda layer, count, _: select(layer, count, seeds), example=IMAGES)
    assert torch.equal(by_hand[3].weight, watched[3].weight)


def test_random_is_what_it_was_with_and_without_a_generator() -> None:
    grown = []
    for initialization in ("random", how.Random(), {}):
        model = mlp(10, 6, 3)
        ng.widths(model, X)
        torch.manual_seed(3)
        ng.grow(model, "0", 2, initialization=initialization)
        ng.grow(model, "0", 2, initialization=initialization, generator=torch.Generator().manual_seed(4))
        grown.append(model[0].weight)
    assert torch.equal(grown[0], grown[1])
    assert torch.equal(grown[0], grown[2])


def test_the_generator_decides_what_is_selected() -> None:
    def selected(seed: int) -> Tensor:
        model = mlp(10, 6, 3)
        ng.widths(model, X)
        state = torch.get_rng_state()
        ng.grow(model, "0", 2, initialization="select", example=X, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(torch.get_rng_state(), state)
        return model[0].weight.detach()

    assert torch.equal(selected(1), selected(1))
    assert not torch.equal(selected(1), selected(2))


def test_a_function_sees_the_layer_with_its_activations() -> None:
    model = mlp(10, 6, 3)
    seen: list[Any] = []

    def function(layer: ng.Layer, count: int, generator: torch.Generator) -> ng.Neurons:
        seen.append((layer.name, count, tuple(layer.activations.shape), layer.rank(), layer.fan_in))
        return ng.Neurons(count, {("0.weight", 0): torch.ones(count, 10)})

    ng.grow(model, "0", 2, initialization=function, example=X)
    assert seen == [("0", 2, (6, 30), 6, 10)]
    assert torch.equal(model[0].weight[6:], torch.ones(2, 10))


def test_a_function_that_needs_no_activations_needs_no_example() -> None:
    model = mlp(10, 6, 3)
    ng.widths(model, X)
    ng.grow(model, "0", 1, initialization=lambda layer, count, _: ng.Neurons(count, {("0.bias", 0): torch.ones(1)}))
    assert model[0].bias[-1].item() == 1


@pytest.mark.parametrize(
    ("initialization", "error", "message"),
    [
        ("selct", ValueError, "unknown initialization 'selct' \\(did you mean 'select'\\?\\)"),
        ("select", ValueError, "needs activations: pass an input as example="),
        ("gradmax", ValueError, "GradMax.* needs gradients of the loss.*use a Grower"),
        (how.Firefly(), ValueError, "needs gradients of the loss.*use a Grower"),
        ("nest", ValueError, "needs gradients of the loss.*use a Grower"),
        (lambda layer, count, _: {"0.weight": torch.ones(count, 10)}, TypeError, "returned a dict: .*-> Neurons"),
        (7, TypeError, "an initialization is a function or one of random, twins, select"),
    ],
)
def test_what_cannot_serve_says_why_and_changes_nothing(initialization: Any, error: Any, message: str) -> None:
    model = mlp(10, 6, 3)
    ng.widths(model, X)
    with pytest.raises(error, match=message):
        ng.grow(model, "0", 1, initialization=initialization)
    assert model[0].out_features == 6


def test_pre_refuses_a_convolution_by_hand_too() -> None:
    with pytest.raises(ValueError, match="'pre' supports only linear layers, and 0 is a convolution"):
        ng.grow(small_vgg(), "0", 1, initialization="pre", example=IMAGES)


def test_fewer_neurons_than_asked_for_are_named_and_none_is_an_error() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    x = torch.randn(8, 4)
    with pytest.warns(UserWarning, match="0: 1 new neurons, not 2: its weights leave only 1 of 4"):
        ng.grow(model, "0", 2, initialization="weight", example=x)
    assert model[0].out_features == 4
    with pytest.raises(ValueError, match="0: no neurons to add: its weights leave only 0 of 4"):
        ng.grow(model, "0", 2, initialization="weight")
    assert model[0].out_features == 4
