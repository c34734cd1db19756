"""Products with weights that no layer of torch applies, watched as linear layers are."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim
from torch.overrides import _get_current_function_mode_stack

import neurogenesis as ng
from neurogenesis.candidates.fits import unexplained
from neurogenesis.candidates.folds import fan_out_gradient, fold_gradients
from neurogenesis.candidates.looks import Pass, sampled_rows
from neurogenesis.candidates.record import Record
from neurogenesis.passes.context import StepContext
from neurogenesis.passes.processes import ALONE, summed
from neurogenesis.passes.products import Product, ProductWatch
from neurogenesis.passes.samples import FOLDS, folds, mixed
from tests.cases import randn


class Weights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.u = nn.Parameter(randn(4, 3).double()), nn.Parameter(randn(2, 4, 3).double())
        self.v = nn.Parameter(randn(4, 2, 5, 3, 2).double())


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
    "bmm": (lambda m, x: torch.bmm(x, m.u), (2, 5, 4), ("u", 1)),
    "bmm, w first": (lambda m, x: m.u.bmm(mat2=x), (2, 3, 5), ("u", 2)),
    "bmm, expanded": (lambda m, x: x.bmm(m.w.expand(5, 4, 3)), (5, 6, 4), ("w", 0)),
    "bmm, expanded in front": (lambda m, x: m.w[None].expand(5, -1, -1).bmm(x), (5, 3, 6), ("w", 1)),
    "baddbmm": (lambda m, x: torch.baddbmm(torch.ones(2, 1, 3).double(), x, m.u), (2, 5, 4), ("u", 1)),
    "batch @ batch": (lambda m, x: x @ m.u, (2, 5, 4), ("u", 1)),
    "batches @ batch": (lambda m, x: x @ m.u, (7, 2, 5, 4), ("u", 1)),
    "batch @ weights without one": (lambda m, x: x @ m.w.unsqueeze(0).mT, (2, 5, 3), ("w", 1)),
    "ellipsis": (lambda m, x: torch.einsum("...i,io->...o", x, m.w), (5, 7, 4), ("w", 0)),
    "ellipsis, w first": (lambda m, x: torch.einsum("i o, ... o -> ... i", m.w, x), (2, 5, 3), ("w", 1)),
    "ellipsis in the middle": (lambda m, x: torch.einsum("b...i,kio->bk...o", [x, m.u]), (2, 5, 4), ("u", 1)),
    "ellipsis of both": (lambda m, x: torch.einsum("n...i,...io->...no", x, m.u), (6, 2, 4), ("u", 1)),
    "no result": (lambda m, x: torch.einsum("zi,io", x, m.w), (5, 4), ("w", 0)),
    "groups": (lambda m, x: torch.einsum("nei,eio->neo", x, m.u), (6, 2, 4), ("u", 1)),
    "groups in another order": (lambda m, x: torch.einsum("oin,bio->nib", m.u, x), (5, 4, 2), ("u", 0)),
    "groups alone": (lambda m, x: torch.einsum("bei,ie->be", x, m.w), (6, 3, 4), ("w", 0)),
    "several groups": (lambda m, x: torch.einsum("apgqr,bcgpr->bpgqac", m.v, x), (6, 3, 5, 2, 2), ("v", 4)),
    "scaled": (lambda m, x: torch.baddbmm(torch.ones(2, 1, 3).double(), x, m.u, alpha=2), (2, 5, 4), None),
    "views": (lambda m, x: x @ m.w.view(2, 6), (5, 2), None),
    "a part": (lambda m, x: x @ m.w[:, :2], (5, 4), None),
    "one of several": (lambda m, x: x @ m.u[1], (5, 4), None),
    "chosen": (lambda m, x: x.bmm(m.u[torch.tensor([0, 0, 1])]), (3, 5, 4), None),
    "repeated inputs": (lambda m, x: x @ m.u, (1, 5, 4), None),
    "repeated weights": (lambda m, x: torch.einsum("bi,bio->bo", x, m.u[:1].expand(5, 4, 3)), (5, 4), None),
}


@pytest.mark.parametrize("name", FORMS)
def test_inputs_times_gradients_are_the_gradient_of_the_weight(name: str) -> None:
    multiply, shape, expected = FORMS[name]
    model, x, seen = Weights(), randn(*shape).double(), dict[str, Tensor]()
    products = list(map(Product, "wuv"))

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
    (product,) = [each for each in products if each.form is not None]
    assert product.form is not None
    assert (product.tensor, product.form.summed) == expected
    gradient = model.get_parameter(weight).grad
    assert gradient is not None
    gradient = gradient.movedim(axis, 0).flatten(1)
    torch.testing.assert_close(fan_out_gradient(product, seen["H"], seen["D"]), gradient, rtol=0, atol=1e-13)
    by_fold, counts = fold_gradients(product, seen["H"], seen["D"], None)
    torch.testing.assert_close(by_fold.sum(0), gradient, rtol=0, atol=1e-13)
    assert counts.sum() == seen["H"][..., 0].numel()


@pytest.mark.parametrize("name", [name for name, form in FORMS.items() if form[2] is not None])
def test_an_action_replaces_what_is_multiplied(name: str) -> None:
    multiply, shape, _ = FORMS[name]
    model, x = Weights(), randn(*shape).double()
    products = list(map(Product, "wuv"))
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


class Experts(nn.Module):
    """Two layers of each of some experts, which all get the same inputs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Parameter(randn(3, 6, 4).double()), nn.Parameter(randn(3, 4, 2).double())

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.bmm(x.expand(3, -1, -1), self.first).tanh()
        return torch.baddbmm(torch.ones(()).double(), hidden, self.second).prod(0)


def test_gradients_of_would_be_neurons_of_experts_are_those_of_neurons_that_are_there_in_each_fold() -> None:
    model, x = Experts(), randn(10, 6).double()
    grower = ng.Grower(model, optim.SGD(model.parameters(), lr=0.0), "need", example=x, seed=0)

    def loss(model: nn.Module, chosen: Tensor) -> Tensor:
        return model(x).sin().square()[chosen].sum()

    loss(model, torch.ones(10, dtype=torch.bool)).backward()
    grower.optimizers[0].step()
    (layer,) = grower.layers
    fan_ins = layer.random_fan_ins(2, torch.Generator().manual_seed(1))
    with layer.during(StepContext(samples=grower.samples)):
        ((seen,),) = layer.passes_with(fan_ins)
    place = layer.records[0].route.place(model, layer.consumer)
    found, _ = fold_gradients(place, seen.h, seen.D, seen.samples)
    assert seen.samples is not None
    fold_of = folds(seen.samples)
    assert len(fold_of.unique()) > 2
    grown = copy.deepcopy(model)
    values = {layer.producer.tensor: layer.values(layer.producer, fan_ins[0])}
    ng.grow(grown, layer.name, 2, initialization=values, example=x)
    for fold in range(FOLDS):
        grown.zero_grad()
        loss(grown, fold_of == fold).backward()
        gradient = grown.get_parameter("second").grad
        assert gradient is not None
        torch.testing.assert_close(found[fold], gradient[:, 4:].movedim(1, 0).flatten(1), rtol=1e-10, atol=1e-14)


def test_what_the_present_neurons_of_an_expert_explain_is_a_fit_of_its_own() -> None:
    """As of a layer for each, with all rows and with some of them."""
    product = Product("u")
    product.observe("input", lambda tensor: None)
    weights = Weights()
    with ProductWatch(weights, [product]):
        torch.bmm(randn(2, 5, 4).double(), weights.u)
    assert product.groups == 2
    H, h, D = (torch.randn(60, 2, size, generator=torch.Generator().manual_seed(size)).double() for size in (4, 5, 3))
    h = h + H.sum(-1, keepdim=True) * torch.tensor([1.0, -2.0]).double()[:, None]
    ids = mixed(torch.arange(60))
    (record,) = summed([Record().after(product, [[Pass(H, h, D, ids)]])], ALONE)
    assert record.sums is not None
    assert record.coefficients is not None
    for group in range(2):
        one = Pass(*(each[:, group] for each in (H, h, D)), ids)  # type: ignore[misc]
        (own,) = summed([Record().after(nn.Linear(4, 3), [[one]])], ALONE)
        assert own.coefficients is not None
        torch.testing.assert_close(record.coefficients[group], own.coefficients, rtol=1e-9, atol=1e-12)
    rest = unexplained(product, H, h, record.coefficients)
    expected, _ = fold_gradients(product, rest, D, ids)
    scale = (D.square().sum() / len(D) / 2) ** 0.5
    torch.testing.assert_close(record.sums[:, :5] * scale, expected, rtol=1e-9, atol=1e-12)
    assert sampled_rows(product, one._replace(H=H, h=h), 40).shape == (2, 20, 9)
    few = Pass(*(each[:7] for each in (H, h, D)), ids[:7])  # type: ignore[misc]
    (waiting,) = summed([Record().after(product, [[few]])], ALONE)
    assert waiting.coefficients is None


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
