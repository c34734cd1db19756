"""The rectifier with a derivative at zero."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import neurogenesis as ng
from tests.cases import randn


def test_it_is_a_relu_with_derivative_one_at_zero() -> None:
    x = torch.tensor([-2.0, -0.0, 0.0, 3.0], requires_grad=True)
    y = ng.nn.ReLU()(x)
    assert torch.equal(y, x.relu())
    y.sum().backward()
    assert torch.equal(x.grad, torch.tensor([0.0, 1.0, 1.0, 1.0]))


def test_nan_and_precision_pass_through() -> None:
    x = torch.tensor([float("nan"), float("inf"), -1.0], dtype=torch.bfloat16)
    assert ng.nn.ReLU()(x).dtype == torch.bfloat16
    assert ng.nn.ReLU()(x)[0].isnan()
    assert ng.nn.ReLU()(x)[1:].tolist() == [float("inf"), 0.0]


def test_replacing_keeps_a_models_outputs_and_widths() -> None:
    shared = nn.ReLU(inplace=True)
    model = nn.Sequential(nn.Linear(6, 8), shared, nn.Sequential(nn.Linear(8, 7), shared), nn.ReLU6(), nn.Linear(7, 2))
    before = model(randn(4, 6))
    assert ng.nn.replace_relu(model) == 2
    assert not any(type(module) is nn.ReLU for module in model.modules())
    assert torch.equal(model(randn(4, 6)), before)
    assert [width.size for width in ng.widths(model, randn(4, 6)).growable] == [8, 7]


def test_it_is_the_same_where_clamp_passes_no_gradient_at_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neurogenesis.nn.ReLU._clamps", False)
    test_it_is_a_relu_with_derivative_one_at_zero()
    assert ng.nn.ReLU()(torch.tensor(float("nan"))).isnan()
    assert ng.nn.ReLU()(torch.ones(2, dtype=torch.bfloat16)).dtype == torch.bfloat16
