"""Products with weights that no layer of torch applies, watched as linear layers are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim
from torch.overrides import _get_current_function_mode_stack

import neurogenesis as ng
from neurogenesis.passes.products import Product, ProductWatch
from tests.cases import randn


class Weights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.u = nn.Parameter(randn(4, 3).double()), nn.Parameter(randn(2, 4, 3).double())


# The operation, the shape of its other factor, and the weight and axis that it sums over; None if it is not followed.
FORMS: dict[str, tuple[Callable[[Weights, Tensor], Tensor], tuple[int, ...], tuple[str, int] | None]] = {
    "x @ w": (lambda m, x: x @ m.w, (5, 7, 4), ("w", 0)),
    "x @ w.T": (lambda m, x: x @ m.w.T, (5, 3), ("w", 1)),
    "vector @ w": (lambda m, x: x @ m.w, (4,), ("w", 0)),
    "w @ vector": (lambda m, x: m.w @ x, (3,), ("w", 1)),
    "w @ x": (lambda m, x: m.w @ x, (3, 6), ("w", 1)),
    "w @ batch": (lambda m, x: m.w @ x, (2, 3, 6), ("w", 1)),
    "linear": (lambda m, x: F.linear(x, m.w), (5, 7, 3), ("w", 1)),
    "linear, named": (lambda m, x: F.linear(input=x, weight=m.w.t(), bias=torch.ones(3).double()), (7, 4), ("w", 0)),
    "mm": (lambda m, x: x.mm(m.w), (6, 4), ("w", 0)),
    "matmul": (lambda m, x: torch.matmul(x, other=m.w.transpose(0, 1)), (6, 3), ("w", 1)),
    "addmm": (lambda m, x: torch.addmm(torch.ones(3).double(), x, m.w), (6, 4), ("w", 0)),
    "einsum": (lambda m, x: torch.einsum("tib,io->bto", x, m.w), (5, 4, 2), ("w", 0)),
    "einsum, several": (lambda m, x: torch.einsum("bi,kio->obk", x, m.u), (6, 4), ("u", 1)),
    "einsum, w first": (lambda m, x: torch.einsum("kio,bo->bik", m.u, x), (6, 3), ("u", 2)),
    "permuted": (lambda m, x: torch.einsum("bi,iok->bko", x, m.u.permute(1, 2, 0)), (6, 4), ("u", 1)),
    "two axes": (lambda m, x: torch.einsum("bio,io->b", x, m.w), (5, 4, 3), None),
    "by batch": (lambda m, x: torch.einsum("bi,bo->bio", x, m.w), (4, 5), None),
    "summed": (lambda m, x: torch.einsum("bti,io->bo", x, m.w), (5, 2, 4), None),
    "views": (lambda m, x: x @ m.w.view(2, 6), (5, 2), None),
    "batch @ batch": (lambda m, x: x @ m.u, (2, 5, 4), None),
}


@pytest.mark.parametrize("name", FORMS)
def test_inputs_times_gradients_are_the_gradient_of_the_weight(name: str) -> None:
    multiply, shape, expected = FORMS[name]
    model, x, seen = Weights(), randn(*shape).double(), dict[str, Tensor]()
    products = [Product("w"), Product("u")]

    def keep(tensor: Tensor) -> None:
        tensor.register_hook(lambda gradient: seen.__setitem__("D", gradient))

    for each in products:
        each.observe("input", lambda tensor: seen.__setitem__("H", tensor))
        each.observe("output", keep)
    plain = multiply(model, x)
    with ProductWatch(model, products):
        result = multiply(model, x)
    assert torch.equal(plain, result)
    result.sin().sum().backward()
    if expected is None:
        assert not seen
        return
    weight, axis = expected
    found = seen["H"].reshape(-1, seen["H"].shape[-1]).T @ seen["D"].reshape(-1, seen["D"].shape[-1])
    gradient = model.get_parameter(weight).grad
    assert gradient is not None
    torch.testing.assert_close(found, gradient.movedim(axis, 0).flatten(1), rtol=0, atol=1e-13)
    assert [each.summed for each in products if each.summed is not None] == [axis]


@pytest.mark.parametrize("name", [name for name, form in FORMS.items() if form[2] is not None])
def test_an_action_replaces_what_is_multiplied(name: str) -> None:
    multiply, shape, _ = FORMS[name]
    model, x = Weights(), randn(*shape).double()
    products = [Product("w"), Product("u")]
    for each in products:
        each.observe("input", lambda tensor: 2 * tensor)
    with ProductWatch(model, products):
        found = multiply(model, x)
    torch.testing.assert_close(found, multiply(model, 2 * x))


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first: Any = nn.Linear(6, 2, bias=False)
        self.second: Any = nn.Linear(2, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).tanh())


class Raw(Layers):
    """The same without layers."""

    def __init__(self) -> None:
        super().__init__()
        first, second = self.first.weight, nn.Parameter(self.second.weight.detach().T.clone())
        del self.first, self.second
        self.first, self.second = first, second

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.first).tanh() @ self.second


def test_need_measures_the_same_as_with_layers() -> None:
    """What would-be neurons would learn, and the threshold, in the first window."""
    seen = []
    for kind in (Layers, Raw):
        model: Any = kind().double()
        optimizer = optim.Adam(model.parameters(), lr=0.03)
        grower = ng.Grower(model, optimizer, "need", example=randn(2, 6).double(), seed=0)
        (layer,) = grower.layers
        for number in range(10):
            x = torch.randn(512, 6, generator=torch.Generator().manual_seed(number)).double()
            optimizer.zero_grad()
            (model(x) - (3 * x[:, :3]).sin()).square().mean().backward()
            optimizer.step()
            grower.step()
            assert not _get_current_function_mode_stack()
        seen.append(layer.memory["latest"])
    assert seen[0] == pytest.approx(seen[1], rel=1e-9)
    assert seen[0][0] and seen[0][1]


def test_a_pass_that_fails_leaves_nothing_on() -> None:
    class Failing(Raw):
        failing = False

        def forward(self, x: Tensor) -> Tensor:
            x = super().forward(x)
            if self.failing:
                raise RuntimeError("on purpose")
            return x

    model = Failing()
    grower = ng.Grower(model, optim.SGD(model.parameters(), lr=0.1), "need", example=randn(2, 6))
    model.failing = True
    with pytest.raises(RuntimeError, match="on purpose"):
        model(randn(4, 6))
    assert not _get_current_function_mode_stack()
    model.failing = False
    model(randn(4, 6)).sum().backward()
    assert not _get_current_function_mode_stack()
    grower.detach()


def test_weights_in_other_products_say_so() -> None:
    class Flattened(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.w, self.last = nn.Linear(6, 5), nn.Parameter(randn(5, 2, 2)), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last((self.first(x).tanh() @ self.w.flatten(1)).tanh())

    model = Flattened()
    with pytest.raises(ValueError, match="its consumer w is not called as a module with a weight, nor in a product"):
        ng.Grower(model, optim.SGD(model.parameters(), lr=0.1), "need", example=randn(3, 6))
