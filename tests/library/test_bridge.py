"""The auxiliary gradient is what autograd gives for a bridging layer, and for a new neuron in the network itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import neurogenesis as ng
from neurogenesis.candidates.bridge import Bridge, Kernel, Pooling
from tests import oracles
from tests.cases import CASES

# A sequential model, its input, the producer's index, and whether B is exact up to the border.
SHAPES: dict[str, tuple[Callable[[], nn.Sequential], tuple[int, ...], bool]] = {
    "dense": (lambda: nn.Sequential(nn.Linear(6, 4), ng.nn.ReLU(), nn.Linear(4, 3)), (7, 6), True),
    "tokens": (lambda: nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)), (3, 5, 6), True),
    "convolution": (lambda: nn.Sequential(nn.Conv2d(2, 3, 3), ng.nn.ReLU(), nn.Conv2d(3, 2, 2)), (3, 2, 7, 8), True),
    "stride, dilation": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3, stride=2, padding=1), ng.nn.ReLU(), nn.Conv2d(3, 2, 2, stride=2, dilation=2)
        ),
        (3, 2, 15, 15),
        True,
    ),
    "max pooling": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), ng.nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 2, 3)),
        (3, 2, 10, 8),
        True,
    ),
    "mean pooling": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3), ng.nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(3, 2, 2)),
        (3, 2, 10, 10),
        True,
    ),
    "flattened": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3), ng.nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 4)),
        (3, 2, 8, 6),
        True,
    ),
    "flattened, not square": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 1), ng.nn.ReLU(), nn.Flatten(), nn.Linear(48, 4)),
        (3, 2, 8, 2),
        True,
    ),
    "global mean": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3), ng.nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 4)
        ),
        (3, 2, 6, 6),
        True,
    ),
    "one dimension": (
        lambda: nn.Sequential(nn.Conv1d(2, 3, 3), ng.nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(3, 2, 2)),
        (4, 2, 13),
        True,
    ),
    "small image": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), ng.nn.ReLU(), nn.Conv2d(3, 2, 2)),
        (4, 2, 2, 3),
        True,
    ),
    "padded consumer": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), ng.nn.ReLU(), nn.Conv2d(3, 2, 3, padding=1)),
        (3, 2, 6, 6),
        False,
    ),
    "norm": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), ng.nn.ReLU(), nn.Conv2d(3, 2, 2)),
        (3, 2, 7, 7),
        False,
    ),
}  # fmt: skip


def loss(output: Tensor) -> Tensor:
    return (output.sin() * torch.linspace(-1, 1, output.numel()).reshape(output.shape)).sum()


def watched(make: Callable[[], nn.Sequential], shape: tuple[int, ...]) -> tuple[nn.Sequential, Tensor, ng.Layer]:
    """A model after a backward pass that a gradient strategy has seen."""
    torch.manual_seed(0)
    model, x = make(), torch.randn(shape)
    grower = ng.Grower(model, torch.optim.SGD(model.parameters(), lr=0.0), "gradmax")
    loss(model(x)).backward()
    (layer,) = [layer for layer in grower.layers if layer.name == "0"]
    return model, x, layer


@pytest.mark.parametrize("name", SHAPES)
def test_it_is_the_gradient_of_a_new_neuron(name: str) -> None:
    make, shape, exact = SHAPES[name]
    model, x, layer = watched(make, shape)
    expected = oracles.bridge_matrix(model, x, loss, 0)
    assert expected.abs().max() > 0
    assert layer.bridge is not None
    if exact:
        torch.testing.assert_close(layer.bridge.matrix(layer.auxiliary_gradient()), expected, rtol=1e-4, atol=1e-4)
    found = ng.initializations.GradMax._matrix(layer)  # exact at borders and through norms too
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("name", SHAPES)
def test_norms_and_bounds_are_those_of_the_matrix(name: str) -> None:
    _, _, layer = watched(*SHAPES[name][:2])
    assert layer.bridge is not None
    gradient = layer.auxiliary_gradient()
    matrix = layer.bridge.matrix(gradient)
    assert layer.bridge.frobenius(gradient) == pytest.approx(float(matrix.norm()), rel=1e-5)
    assert layer.auxiliary_bound() >= float(torch.linalg.matrix_norm(matrix, 2))


@pytest.mark.parametrize(("length", "outputs"), [(9, 5), (3, 2), (4, 4), (12, 5)])
@pytest.mark.parametrize("stride", [1, 2])
def test_it_is_the_gradient_of_an_explicit_bridging_layer(length: int, outputs: int, stride: int) -> None:
    """Kernel k_l + k_{l+1} - 1 with the paddings of both, whichever way it is computed."""
    producer, consumer = Kernel(3, 1, 1, 1), Kernel(3, stride, 1, 1)
    bridge = Bridge((producer,) * 2, (Pooling(),) * 2, (consumer,) * 2)
    H_prev = torch.randn(4, 3, length, length)
    weight = torch.zeros(2, 3, 5, 5, requires_grad=True)
    output = F.conv2d(H_prev, weight, stride=stride, padding=2)
    D = torch.randn(output.shape)
    (expected,) = torch.autograd.grad(output, weight, D)
    torch.testing.assert_close(bridge.gradient(H_prev, D), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(bridge._gradient_by_pairs(H_prev, D), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "between",
    [nn.AdaptiveAvgPool2d(4), nn.InstanceNorm2d(3), nn.Upsample(scale_factor=2)],
    ids=lambda m: type(m).__name__,
)
def test_what_mixes_positions_is_refused(between: nn.Module) -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 1), between, ng.nn.ReLU(), nn.Conv2d(3, 2, 2))
    with pytest.raises(ValueError, match=r"mixes positions|derivative 0"):
        ng.Grower(model, torch.optim.SGD(model.parameters(), lr=0.1), "gradmax", example=torch.randn(2, 2, 10, 10))


REFUSED = {
    "instance_norm": ("0", "an operation between producer and consumer mixes positions"),
    "depthwise": ("0", "an operation between producer and consumer mixes positions"),
    "embedding": ("hidden", "positions are mixed between hidden and head"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_need_gives_the_reasons_of_strategies_with_a_bridge(name: str) -> None:
    width, reason = REFUSED[name]
    case = next(each for each in CASES if each.name == name)
    for strategy in ("need", "gradmax"):
        model = case.make()
        with pytest.raises(ValueError, match=f"{width}: {reason}"):
            ng.Grower(
                model, torch.optim.SGD(model.parameters(), lr=0.1), strategy, include=[width], example=case.example
            )


@pytest.mark.parametrize(
    "between", [nn.AdaptiveAvgPool2d(4), nn.Upsample(scale_factor=2)], ids=lambda m: type(m).__name__
)
def test_need_watches_irregular_windows_which_have_no_bridge(between: nn.Module) -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 1), nn.ReLU(), between, nn.Conv2d(3, 2, 2))
    example = torch.randn(2, 2, 10, 10)
    grower = ng.Grower(model, torch.optim.SGD(model.parameters(), lr=0.1), "need", example=example)
    model(example).sum().backward()
    (layer,) = grower.layers
    assert layer.bridge is None
    fan_ins = layer.random_fan_ins(4, torch.Generator().manual_seed(0))
    ((found,),) = layer.passes_with(fan_ins)
    torch.testing.assert_close(found.h, between(F.conv2d(example, fan_ins[0].squeeze(1)).relu()))
