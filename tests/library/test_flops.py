"""Operations are those that torch counts, before growth and after it, and are known beforehand."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.flop_counter import FlopCounterMode

import neurogenesis as ng
from neurogenesis.structure.examples import call_model
from neurogenesis.structure.finding import find_widths
from tests.cases import CASES, Case, randn
from tests.growing import always, loss_of, mlp, step


def counted(model: nn.Module, example: Any) -> int:
    """What torch counts. It knows neither fused attention on processors nor fused recurrent layers."""
    for module in model.modules():
        module.train(not isinstance(module, _BatchNorm))
    one_dnn: Any = torch.backends.mkldnn
    before, one_dnn.enabled = one_dnn.enabled, False
    try:
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            call_model(model, example)
    finally:
        one_dnn.enabled = before
        model.train()
    return int(counter.get_total_flops())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_operations_are_those_that_torch_counts(case: Case) -> None:
    model = case.make().train()
    found = ng.widths(model, case.example, **case.options)
    work = found.structure.work
    assert work is not None
    assert work.flops(found.structure.axes) == counted(model, case.example) == ng.flops(model, case.example)
    more = {width.name: width.size if width.copied else 3 for width in found.growable}
    predicted = work.flops(found.structure.axes, {found[name].atom: found[name].size + n for name, n in more.items()})
    for name, count in more.items():
        ng.grow(model, name, count)
    assert (
        predicted == work.flops(found.structure.axes) == counted(model, case.example) == ng.flops(model, case.example)
    )


@pytest.mark.parametrize(
    ("module", "shape", "operations"),
    [
        (nn.Linear(4, 8), (10, 4), 2 * 10 * 4 * 8),
        (nn.Conv2d(4, 8, 3, stride=2, groups=2), (2, 4, 9, 9), 2 * 2 * 8 * 2 * 9 * 16),
        (nn.ConvTranspose1d(4, 8, 3, stride=2), (2, 4, 5), 2 * 2 * 4 * 8 * 3 * 5),
        (nn.Conv1d(4, 8, 3), (4, 9), 2 * 8 * 4 * 3 * 7),
        (nn.LSTM(4, 8), (5, 3, 4), 2 * 5 * 3 * 32 * (4 + 8)),
        (nn.ReLU(), (5, 3), 0),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_operations_are_two_per_multiplication(module: nn.Module, shape: tuple[int, ...], operations: int) -> None:
    assert ng.flops(module, randn(*shape)) == operations


def test_attention_is_counted_whatever_kernel_runs_it() -> None:
    class Attention(nn.Module):
        def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)

    query, key, value = randn(2, 4, 6, 8), randn(2, 4, 6, 8), randn(2, 4, 6, 5)
    operations = 2 * 2 * 4 * 6 * 6 * (8 + 5)
    assert ng.flops(Attention(), (query, key, value)) == operations
    with sdpa_kernel(SDPBackend.MATH):
        assert ng.flops(Attention(), (query, key, value)) == operations


def test_counting_changes_nothing() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 2))
    model[0].weight.grad = torch.ones(8, 4)
    before = {name: own.clone() for name, own in chain(model.named_parameters(), model.named_buffers())}
    state, example = torch.get_rng_state(), randn(6, 4)
    seen: list[bool] = []
    handle = model[3].register_forward_hook(lambda *_: seen.append(torch.is_grad_enabled()))
    assert ng.flops(model, example) == 2 * 6 * (32 + 16)
    handle.remove()
    assert torch.equal(torch.get_rng_state(), state) and model.training and torch.backends.mkldnn.enabled
    after = dict(chain(model.named_parameters(), model.named_buffers()))
    assert all(torch.equal(before[name], own) for name, own in after.items())
    assert torch.equal(model[0].weight.grad, torch.ones(8, 4))


def test_operations_inside_a_module_with_a_rule_grow_with_its_weights() -> None:
    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(randn(8, 4))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight.T

    @ng.rules.module(Dense)
    def dense(call: ng.rules.Call, module: Dense) -> list[Any]:
        x = call.tensors()[0]
        call.unify(call.axes(x)[1], call.axes(module.weight)[1])
        call.role(module.weight, 0, "producer", ng.rules.RANDOM)
        return [[call.axes(x)[0], call.axes(module.weight)[0]]]

    try:
        model = nn.Sequential(Dense(), nn.ReLU(), nn.Linear(8, 2))
        found = find_widths(model, [randn(5, 4)])
        assert found.structure.flops_with() == 2 * (32 + 16)
        assert found.structure.flops_with({found["0"].atom: 16}) == 4 * (32 + 16)
    finally:
        ng.rules.forget(Dense)


def test_a_grower_counts_training_passes_with_the_sizes_of_their_time() -> None:
    model = mlp(10, 8, 8, 3)
    optimizer = torch.optim.Adam(model.parameters())
    grower = ng.Grower(model, optimizer, ng.Strategy(always(2)), max_width=12)
    assert grower.flops == grower.training_flops == 0
    expected = 0
    for number in range(16):  # the widths are at their maximum after two steps
        sizes = 7, 4 + number % 3  # of batches whose gradients are accumulated
        for size in sizes:
            loss_of(model, randn(size, 10)).backward()
        model.eval()(randn(9, 10))  # no training pass
        model.train()
        expected += 3 * ng.flops(model, randn(sum(sizes), 10))
        optimizer.step()
        grower.step()
        assert grower.training_flops == expected
    assert grower.widths == {"0": 12, "2": 12}


def test_a_resumed_grower_goes_on_counting() -> None:
    def make() -> tuple[nn.Module, torch.optim.Optimizer, ng.Grower]:
        torch.manual_seed(0)
        model = mlp(10, 8, 3)
        optimizer = torch.optim.Adam(model.parameters())
        return model, optimizer, ng.Grower(model, optimizer, ng.Strategy(always(1)), example=randn(2, 10))

    model, optimizer, grower = make()
    for _ in range(3):
        step(model, optimizer, randn(5, 10))
        grower.step()
    _, _, resumed = make()
    resumed.load_state_dict(grower.state_dict())
    assert resumed.training_flops == grower.training_flops == 3 * 5 * sum(2 * 13 * (8 + n) for n in range(3))
    resumed.load_state_dict({name: own for name, own in grower.state_dict().items() if name != "training_flops"})
    assert resumed.training_flops == 0  # of an earlier version
