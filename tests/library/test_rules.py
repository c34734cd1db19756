"""Rules that users give: an operation or a layer that is not known can grow like any other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import neurogenesis as ng
from tests.cases import randn
from tests.growing import step
from tests.promises import check_all


@torch.library.custom_op("neurogenesis_tests::reverse", mutates_args=())
def reverse(x: Tensor) -> Tensor:
    """An operation that nothing is known of: samples in reverse order."""
    return x.flip(0)


reverse.register_autograd(lambda context, gradient: gradient.flip(0))


class Reversing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(reverse(self.a(x).tanh()))


class _Outside(torch.autograd.Function):
    """A product that is computed where no tracer sees it."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor) -> Tensor:
        context.save_for_backward(x, weight)
        return torch.from_numpy(x.detach().numpy() @ weight.detach().numpy())

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = context.saved_tensors
        return gradient @ weight.T, x.T @ gradient


class Outside(nn.Module):
    """A linear layer with transposed weights, by numpy."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.inputs, self.outputs = inputs, outputs
        self.weight = nn.Parameter(torch.randn(inputs, outputs))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = _Outside.apply(x, self.weight)
        return result


def between() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), Outside(7, 5), nn.Tanh(), nn.Linear(5, 3))


def outside(call: ng.rules.Call, module: Outside) -> list[ng.rules.Axes]:
    x, weight = call.axes(call.arguments["x"]), call.axes(module.weight)
    call.unify(x[-1], weight[0])
    call.role(module.weight, 0, "consumer", ng.rules.ZERO)
    call.role(module.weight, 1, "producer", ng.rules.RANDOM)
    call.attribute(module.weight, "inputs", weight[0])
    call.attribute(module.weight, "outputs", weight[1])
    return [[*x[:-1], weight[1]]]


@pytest.fixture
def registered() -> Iterator[None]:
    ng.rules.operation("neurogenesis_tests::reverse")(lambda call: [call.axes(call.arguments["x"])])
    ng.rules.module(Outside)(outside)
    yield
    ng.rules.forget("neurogenesis_tests::reverse")
    ng.rules.forget(Outside)


def test_without_a_rule_what_is_not_known_cannot_grow() -> None:
    assert "an operation without a rule" in (ng.widths(Reversing(), randn(4, 6))["a"].reason or "")
    assert not ng.widths(between(), randn(4, 6)).growable
    model = Reversing()
    with pytest.raises(ValueError, match="register a rule"):
        ng.Grower(model, torch.optim.SGD(model.parameters(), 0.1), example=randn(4, 6))


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(("make", "names"), [(Reversing, ["a"]), (between, ["0", "2"])])
def test_with_a_rule_every_promise_holds(make: Any, names: list[str]) -> None:
    model, x = make().double(), randn(4, 6).double()
    assert [width.name for width in ng.widths(model, x).growable] == names
    check_all(model, x)


@pytest.mark.usefixtures("registered")
def test_sizes_that_a_module_states_follow_its_growth() -> None:
    model = between()
    ng.grow(model, "2", 2, example=randn(4, 6))
    assert (model[2].inputs, model[2].outputs, model[4].in_features) == (7, 7, 7)


@pytest.mark.usefixtures("registered")
def test_a_grower_grows_a_layer_with_a_rule() -> None:
    model = between()
    optimizer = torch.optim.Adam(model.parameters())
    grower = ng.Grower(model, optimizer, "north-random", max_width=9, buffer=64)
    for _ in range(4):
        step(model, optimizer, randn(64, 6))
        grower.step()
    assert grower.widths == {"0": 9, "2": 9}


def test_a_rule_serves_subclasses_and_the_nearest_class_wins() -> None:
    class Inner(Outside):
        pass

    ng.rules.module(Outside)(outside)
    model = nn.Sequential(nn.Linear(6, 7), Inner(7, 5), nn.Linear(5, 3))
    assert [width.name for width in ng.widths(model, randn(4, 6)).growable] == ["0", "1"]

    @ng.rules.module(Inner)
    def fixed(call: ng.rules.Call, module: Outside) -> list[ng.rules.Axes]:
        axes = outside(call, module)
        call.fix(axes[0][-1], "kept by its own rule")
        return axes

    found = ng.widths(model, randn(4, 6))
    assert [width.name for width in found.growable] == ["0"]
    assert "kept by its own rule in 1 (Inner)" in (found["1"].reason or "")
    ng.rules.forget(Inner)
    ng.rules.forget(Outside)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            lambda call, module: [call.axes(call.arguments["x"])],
            r"sizes \[\[4, 7\]\] in 2 \(Outside\), not \[\[4, 5\]\]",
        ),
        (lambda call, module: [], r"returns axes of sizes \[\]"),
        (lambda call, module: [call.axes(call.arguments["y"])], "the rule for Outside fails in 2 .*KeyError: 'y'"),
    ],
)
def test_a_rule_that_does_not_fit_is_named(rule: Any, message: str) -> None:
    ng.rules.module(Outside)(rule)
    with pytest.raises(ng.rules.RuleError, match=message):
        ng.widths(between(), randn(4, 6))
    ng.rules.forget(Outside)


def test_what_a_rule_is_for_is_checked() -> None:
    with pytest.raises(ValueError, match="'mylib::scan'"):
        ng.rules.operation("scan")
    with pytest.raises(TypeError, match="expected a module class"):
        ng.rules.module(nn.Linear(2, 3))  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="no rule is registered"):
        ng.rules.forget("mylib::scan")


def test_a_rule_can_count_a_width_in_units_of_several_channels() -> None:
    @ng.rules.module(nn.GroupNorm)
    def whole_groups(call: ng.rules.Call, module: nn.GroupNorm) -> list[ng.rules.Axes]:
        x = call.axes(call.arguments["input"])
        groups, inner = ng.rules.fresh([module.num_groups, module.num_channels // module.num_groups])
        call.fix(inner, "normalized across")
        call.unify(x[1], ng.rules.product([groups, inner]))
        for parameter, fill in ((module.weight, ng.rules.ONE), (module.bias, ng.rules.ZERO)):
            call.unify(x[1], call.axes(parameter)[0])
            call.role(parameter, 0, "carrier", fill)
        call.attribute(module.weight, "num_groups", groups)
        call.attribute(module.weight, "num_channels", x[1])
        return [x]

    model = nn.Sequential(nn.Conv2d(3, 12, 3), nn.GroupNorm(4, 12), nn.ReLU(), nn.Conv2d(12, 2, 3)).double()
    x = randn(2, 3, 8, 8).double()
    found = check_all(model, x)  # which leaves it grown
    assert [width.name for width in found.growable] == ["0"]
    assert model[1].num_channels == model[0].out_channels == 3 * model[1].num_groups == 3 * found["0"].size > 12
    ng.rules.forget(nn.GroupNorm)
