"""Need asks whether the gradients of would-be neurons last: exact gradients, an exact statistic, and what follows."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import neurogenesis as ng
from neurogenesis.candidates.windows import fan_out_gradient
from neurogenesis.surgery.plan import plan_neurons
from tests.cases import CASES, Case
from tests.growing import loss_of
from tests.promises import unsettle, without_chance

COUNT = 3


def watched(model: nn.Module, example: Any) -> ng.Grower | None:
    """A grower after a step that changes nothing, with what it recorded; None if need supports no width."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            grower = ng.Grower(model, optimizer, "need", example=example)
        except ValueError:
            return None
    model.train()
    loss_of(model, example).backward()
    optimizer.step()
    return grower


def prepared(case: Case) -> nn.Module:
    torch.manual_seed(0)
    model = case.make()
    unsettle(model)
    without_chance(model)
    return model


def supported_layers() -> Iterator[tuple[Case, str, bool]]:
    for case in CASES:
        if "tie" in case.options:
            continue
        grower = watched(prepared(case), case.example)
        if grower is not None:
            for layer in grower.layers:
                if layer.has_gradients and not layer.tensor(layer.consumer).is_complex():
                    yield case, layer.name, layer._has_chain


SUPPORTED = list(supported_layers())
IDS = [f"{case}-{name}" for case, name, _ in SUPPORTED]


def layer_of(case: Case, name: str) -> tuple[nn.Module, ng.Layer]:
    model = prepared(case)
    grower = watched(model, case.example)
    assert grower is not None
    return model, next(layer for layer in grower.layers if layer.name == name)


@pytest.mark.parametrize(("case", "name", "chained"), SUPPORTED, ids=IDS)
def test_fan_out_gradients_are_those_of_an_explicit_run_with_the_neurons(case: Case, name: str, chained: bool) -> None:
    model, layer = layer_of(case, name)
    others = [axis for axis in layer.width.producers if axis.module != layer.producer.module]
    if others:
        pytest.skip("other producers add random values to the new neurons")
    fan_in = layer.random_fan_in(COUNT, torch.Generator().manual_seed(1))
    with torch.no_grad():
        passes = layer.passes_with(fan_in)
    consumer = model.get_submodule(layer.consumer.module)
    found = sum(fan_out_gradient(consumer, each.h.to(each.D), each.D) for each in passes)

    grown = copy.deepcopy(model)
    grown.zero_grad()
    width = ng.widths(grown, case.example)[name]
    zeros = torch.zeros(
        COUNT, layer.consumer.per_neuron, *layer.tensor(layer.consumer).movedim(layer.consumer.axis, 0)[0].shape
    )
    values = {
        (layer.producer.tensor, layer.producer.axis): layer.values(layer.producer, fan_in),
        (layer.consumer.tensor, layer.consumer.axis): layer.values(layer.consumer, zeros),
    }
    for bias in layer.biases:
        if bias != layer.producer:
            values[bias.tensor, bias.axis] = torch.zeros(len(layer.values(bias, torch.zeros(COUNT, bias.per_neuron))))
    plan_neurons(grown, width, COUNT, values, generator=torch.Generator().manual_seed(0)).apply(grown)
    grown.train()
    loss_of(grown, case.example).backward()
    gradient = grown.get_parameter(layer.consumer.tensor).grad
    assert gradient is not None
    rows = gradient.movedim(layer.consumer.axis, 0)
    positions = width.positions(layer.consumer)[-COUNT:].flatten()
    expected = rows[positions].flatten(1)
    scale = float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5 * max(scale, 1e-6))


def test_most_models_take_the_shortcut() -> None:
    """Otherwise the equality of both ways would say little."""
    chained = [case.name for case, _, chained in SUPPORTED if chained]
    assert len(chained) > len(SUPPORTED) // 2
    assert len(SUPPORTED) > 30


@pytest.mark.parametrize(
    ("case", "name", "chained"),
    [s for s in SUPPORTED if s[2]],
    ids=[i for i, s in zip(IDS, SUPPORTED, strict=True) if s[2]],
)
def test_the_shortcut_gives_the_same_as_a_run_of_the_model(case: Case, name: str, chained: bool) -> None:
    _, layer = layer_of(case, name)
    fan_in = layer.random_fan_in(COUNT, torch.Generator().manual_seed(1))
    with torch.no_grad():
        short = layer.passes_with(fan_in)
        layer.__dict__["_has_chain"] = False
        full = layer.passes_with(fan_in)
    for a, b in zip(short, full, strict=True):
        torch.testing.assert_close(a.h, b.h, rtol=1e-4, atol=1e-6)
