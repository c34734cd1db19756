"""The loss with one more neuron is that of the network really grown, and the user's model stays as it is."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

import neurogenesis as ng
from neurogenesis.candidates.losses import loss_with
from neurogenesis.structure.axes import named_tensors
from neurogenesis.structure.examples import call_model, tensors_in
from tests import promises
from tests.cases import CASES, Case
from tests.growing import small_vgg

Values = dict[tuple[str, int], Tensor]


def in_double(case: Case) -> Any:
    return tree_map_only(Tensor, lambda t: t.double() if t.is_floating_point() else t, case.example)


def double_loss(model: nn.Module, example: Any) -> Tensor:
    outputs = [t for t in tensors_in(call_model(model, example)) if t.is_floating_point() or t.is_complex()]
    return torch.stack([t.abs().double().sin().square().mean() for t in outputs]).sum()


def values_of(model: nn.Module, example: Any, width: ng.Width, **options: Any) -> Values:
    """Random values of one new neuron, in all places where it has weights."""
    twin = copy.deepcopy(model)
    own = ng.widths(twin, example, **options)[width.name]
    plan = ng.plan_growth(twin, own, 1, generator=torch.Generator().manual_seed(5))
    generator = torch.Generator().manual_seed(5)
    values = {}
    for edit in plan.edits:
        assert edit.values is not None
        noise = torch.rand(edit.values.shape, generator=generator, dtype=torch.float64) - 0.5
        values[edit.tensor, edit.axis] = edit.values if edit.role == "carrier" else noise.to(edit.values)
    return values


def grown_loss(
    model: nn.Module, example: Any, name: str, values: Values, loss: Callable[[nn.Module], Any], **options: Any
) -> float:
    """The loss of a copy of the model that has really been grown."""
    twin = copy.deepcopy(model)
    width = ng.widths(twin, example, **options)[name]
    ng.grow(twin, width, 1, initialization=values)
    return float(torch.as_tensor(loss(twin)).detach())


def state_of(model: nn.Module) -> dict[str, Any]:
    """Everything that a user can see of a model: tensors and their gradients, attributes, hooks, random states."""
    return {
        "tensors": {name: (id(own), own.detach().clone()) for name, own in named_tensors(model).items()},
        "gradients": {name: None if own.grad is None else own.grad.clone() for name, own in model.named_parameters()},
        "attributes": promises.attributes(model),
        "hooks": [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()],
        "random": torch.get_rng_state(),
    }


def assert_unchanged(model: nn.Module, before: dict[str, Any]) -> None:
    now = state_of(model)
    assert now["attributes"] == before["attributes"]
    assert now["hooks"] == before["hooks"]
    assert torch.equal(now["random"], before["random"])
    for name, (number, own) in before["tensors"].items():
        found, present = now["tensors"][name]
        assert found == number, name
        assert torch.equal(own, present), name
    for name, own in before["gradients"].items():
        present = now["gradients"][name]
        assert (own is None) == (present is None), name
        assert own is None or torch.equal(own, present), name


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_the_loss_of_the_network_really_grown(case: Case) -> None:
    torch.manual_seed(0)
    model = case.make()
    promises.without_chance(model)
    promises.unsettle(model)
    model, example = model.double(), in_double(case)
    try:
        copy.deepcopy(model)
    except RuntimeError:
        pytest.skip("cannot be copied")
    growable = [each for each in ng.widths(model, example, **case.options).growable if each.copied is None]
    if not growable:
        pytest.skip("nothing can grow")
    for training in (True, False):
        model.train(training)
        for width in growable:
            values = values_of(model, example, width, **case.options)
            expected = grown_loss(
                model, example, width.name, values, lambda own: double_loss(own, example), **case.options
            )
            before = state_of(model)
            found = loss_with(model, width, lambda: double_loss(model, example), values)
            assert_unchanged(model, before)
            assert found == pytest.approx(expected, rel=1e-12, abs=1e-12), width.name


def test_a_closure_may_call_parts_of_the_model_and_read_its_weights() -> None:
    model, x = small_vgg().double(), torch.randn(4, 2, 8, 8).double()
    width = ng.widths(model, x)["0"]

    def loss(own: Any) -> Tensor:
        penalty = sum(parameter.square().sum() for parameter in own.parameters())
        assert own[0].weight.shape[0] == 5
        out: Tensor = own[3:](own[:3](x)).sin().sum() + penalty
        return out

    values = values_of(model, x, width)
    expected = grown_loss(model, x, "0", values, loss)
    assert loss_with(model, width, lambda: loss(model), values) == pytest.approx(expected, rel=1e-12)


class Remembers(nn.Module):
    """Counts its passes, keeps its latest output, and draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 3, 3)
        self.passes = 0
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.first(x)).relu()
        self.passes += 1
        self.mean = h.mean((0, 2, 3)).detach()
        out: Tensor = self.second(F.dropout(h, 0.5))
        return out


def test_nothing_of_the_model_changes_even_if_the_closure_fails() -> None:
    torch.manual_seed(0)
    model, x = Remembers(), torch.randn(4, 2, 8, 8)
    optimizer = torch.optim.Adam(model.parameters())
    model(x).sum().backward()
    optimizer.step()
    width = ng.widths(model, x)["first"]
    values = values_of(model, x, width)
    before, moments = state_of(model), copy.deepcopy(optimizer.state_dict())

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(x).sin().mean()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1.0)
        return loss

    def fails() -> Tensor:
        closure()
        raise ArithmeticError("on purpose")

    first = loss_with(model, width, closure, values)
    assert_unchanged(model, before)
    assert loss_with(model, width, closure, values) == first  # the same random numbers each time
    with pytest.raises(ArithmeticError, match="on purpose"):
        loss_with(model, width, fails, values)
    assert_unchanged(model, before)
    assert str(optimizer.state_dict()) == str(moments)
    assert width.size == 4


class Scaled(torch.autograd.Function):
    """A product whose derivatives are its own, so that no operation on the weights is seen in a backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return gradients[0] @ weight, gradients[0].T @ x


class OwnDerivatives(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        out: Tensor = Scaled.apply(input, self.weight)
        return out


@pytest.mark.parametrize("compiled", [False, True])
def test_layers_with_derivatives_of_their_own_and_compiled_models_are_followed(compiled: bool) -> None:
    torch.manual_seed(0)
    model, x = (
        nn.Sequential(OwnDerivatives(6, 5, False), nn.ReLU(), nn.Linear(5, 3)).double(),
        torch.randn(7, 6).double(),
    )
    width = ng.widths(model, x)["0"]
    values = values_of(model, x, width)
    expected = grown_loss(model, x, "0", values, lambda own: own(x).sin().sum())
    called = torch.compile(model, backend="eager") if compiled else model

    def closure() -> Tensor:
        loss: Tensor = called(x).sin().sum()
        loss.backward()
        return loss

    before = state_of(model)
    assert loss_with(model, width, closure, values) == pytest.approx(expected, rel=1e-12)
    assert_unchanged(model, before)
