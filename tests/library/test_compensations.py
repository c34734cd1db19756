"""Widths that a norm runs across: rules that users give say what makes up for their size."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.optim import swa_utils

import neurogenesis as ng
from neurogenesis.surgery import operations
from neurogenesis.surgery.operations import EditTensor
from neurogenesis.surgery.optimizer_state import state_edits
from tests.cases import randn
from tests.growing import step
from tests.library.test_surgery import OPTIMIZERS, assert_same, everything
from tests.promises import assert_outputs, attributes, outputs_of, snapshot, unsettle

X = randn(5, 7, 6).double()
UNITS = 1e-14  # a few units in the last place of 53 bits


class Residual(nn.Module):
    """Two blocks behind norms, whose outputs are added to what they read: one width of size 8."""

    def __init__(self, norm: type[nn.Module]):
        super().__init__()
        self.embed, self.place = nn.Linear(6, 8), nn.Parameter(torch.randn(7, 8))
        self.norms = nn.ModuleList([norm(8, eps=1e-2) for _ in range(3)])
        self.up = nn.ModuleList([nn.Linear(8, 5) for _ in range(2)])
        self.down = nn.ModuleList([nn.Linear(5, 8) for _ in range(2)])
        self.mix, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x) + self.place
        x = x + self.mix(self.norms[0](x))
        for norm, up, down in zip(self.norms, self.up, self.down, strict=False):
            x = x + down(up(norm(x)).tanh())
        result: Tensor = self.head(self.norms[-1](x))
        return result


def norm_rule(call: ng.rules.Call, module: Any) -> list[ng.rules.Axes]:
    (x,) = call.tensors()
    axes = call.axes(x)
    for name, fill in (("weight", ng.rules.ONE), ("bias", ng.rules.ZERO)):
        if (parameter := getattr(module, name, None)) is not None:
            call.unify(axes[-1], call.axes(parameter)[0])
            call.role(parameter, 0, "carrier", fill)
    call.attribute(module.weight, "normalized_shape", (axes[-1],))
    call.new_entries(x, -1, ng.rules.MEAN if isinstance(module, nn.LayerNorm) else ng.rules.ZERO)
    call.compensate(module.weight, axes[-1], 1 / 2)
    call.compensate("eps", axes[-1], 1)
    return [axes]


@pytest.fixture(autouse=True, params=["given", "built in"])
def rules(request: pytest.FixtureRequest) -> Iterator[None]:
    for kind in (nn.LayerNorm, nn.RMSNorm) if request.param == "given" else ():
        ng.rules.module(kind)(norm_rule)
    yield
    if request.param == "given":
        for kind in (nn.LayerNorm, nn.RMSNorm):
            ng.rules.forget(kind)


def residual(norm: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    model = Residual(norm).double()
    unsettle(model)
    return model


def scaled(before: dict[str, Tensor]) -> set[str]:
    return {name for name in before if name.startswith("norms.") and name.endswith("weight")}


@pytest.mark.parametrize("norm", [nn.RMSNorm, nn.LayerNorm])
def test_growing_across_a_norm_leaves_the_outputs_and_shrinking_restores_the_model(norm: type[nn.Module]) -> None:
    model = residual(norm)
    before, stated = snapshot(model), attributes(model)
    expected = {training: outputs_of(model, X, training) for training in (False, True)}
    for size in (11, 12, 30):
        ng.resize(model, {"embed": size}, X)
        assert model.norms[0].normalized_shape == (size,)
        assert_outputs(model, X, expected, UNITS)
    ng.shrink(model, "embed", range(8, 30))
    for name, tensor in snapshot(model).items():
        if name in scaled(before):
            torch.testing.assert_close(tensor, before[name], rtol=UNITS, atol=0)
        else:
            assert torch.equal(tensor, before[name]), name
    for key, value in attributes(model).items():
        assert value == (pytest.approx(stated[key], rel=UNITS) if key[1] == "eps" else stated[key])
    assert_outputs(model, X, expected, UNITS)


@pytest.mark.parametrize("norm", [nn.RMSNorm, nn.LayerNorm])
def test_new_entries_are_zero_or_the_mean_of_the_present_ones_and_learn_from_the_first_step(
    norm: type[nn.Module],
) -> None:
    model = residual(norm)
    ng.resize(model, {"embed": 11}, X)
    entries = model.embed(X) + model.place
    expected = entries[..., :8].mean(-1) if norm is nn.LayerNorm else torch.zeros(5, 7).double()
    torch.testing.assert_close(entries[..., 8:], expected[..., None].expand(-1, -1, 3), rtol=0, atol=UNITS)
    model(X).square().mean().backward()
    for gradient in (model.embed.weight.grad[8:], model.place.grad[:, 8:], model.down[1].weight.grad[8:]):
        assert (gradient.abs() > 1e-8).all()
    assert (model.up[0].weight[:, 8:].abs() > 1e-8).all()


def test_a_plan_says_what_is_scaled() -> None:
    model = residual(nn.RMSNorm)
    ng.resize(model, {"embed": 16}, X)
    lines = str(ng.plan_shrinkage(model, "embed", range(4, 16))).splitlines()
    assert "  norms.0.weight  times 2  (16 -> 4 in norms.0 (RMSNorm))" in lines
    assert "  norms.0.eps: 0.005 -> 0.02" in lines
    assert "  norms.0.normalized_shape: (16,) -> (4,)" in lines
    assert [line for line in lines if "times" in line and "norms" not in line] == []


def test_strategies_that_measure_leave_such_a_width_alone_and_say_why() -> None:
    model = residual(nn.RMSNorm)
    found = ng.widths(model, X)
    assert found["embed"].growable
    assert found["embed"].kind == "stream"
    with pytest.warns(UserWarning, match=r"embed: norms\.0 \(RMSNorm\) runs across it.* grow it by a schedule"):
        grower = ng.Grower(model, optim.Adam(model.parameters()), "north-random", example=X, include=["emb*", "up.*"])
    assert set(grower.widths) == {"up.0", "up.1"}
    with pytest.raises(ValueError, match=r"embed cannot grow in this way: .* grow it by random initialization"):
        ng.grow(model, "embed", 2, initialization="twins")


@pytest.mark.parametrize("norm", [nn.RMSNorm, nn.LayerNorm])
def test_optimizer_and_average_follow(norm: type[nn.Module]) -> None:
    model = residual(norm)
    average, optimizer = swa_utils.AveragedModel(model), optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        model(X).square().mean().backward()
        optimizer.step()
        average.update_parameters(model)
    expected = [outputs_of(each, X, False) for each in (model, average)]
    state = copy.deepcopy(optimizer.state[model.norms[0].weight])
    gradient = model.norms[0].weight.grad.clone()
    ng.resize(model, {"embed": 32}, X, optimizer=optimizer, ema=average)
    for each, outputs in zip((model, average), expected, strict=True):
        torch.testing.assert_close(outputs_of(each, X, False), outputs, rtol=0, atol=UNITS)
    new, factor = optimizer.state[model.norms[0].weight], 0.5  # (8 / 32) ** (1 / 2)
    torch.testing.assert_close(new["exp_avg"][:8], state["exp_avg"] / factor)
    torch.testing.assert_close(new["exp_avg_sq"][:8], state["exp_avg_sq"] / factor**2)
    torch.testing.assert_close(model.norms[0].weight.grad[:8], gradient / factor)
    model.zero_grad()
    model(X).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("rules", ["built in"], indirect=True)
@pytest.mark.parametrize("name", sorted(OPTIMIZERS.keys() - {"Adagrad"}))  # begins with 0.1, which is not of gradients
def test_optimizer_state_is_what_it_would_be_with_scaled_gradients(name: str) -> None:
    factor, generator = 0.6, torch.Generator().manual_seed(0)
    one = nn.Parameter(torch.randn(4, 3, dtype=torch.float64, generator=generator))
    other = nn.Parameter(one.detach() * factor)
    optimizers = [OPTIMIZERS[name]([each]) for each in (one, other)]
    for optimizer in optimizers:
        group = optimizer.param_groups[0]
        group.update({"lr": 1e-9, "weight_decay": 0, **({"eps": 1e-12} if type(group.get("eps")) is float else {})})
    for _ in range(4):
        gradient = torch.randn(4, 3, dtype=torch.float64, generator=generator)
        one.grad, other.grad = gradient.clone(), gradient / factor
        for optimizer in optimizers:
            optimizer.step()
    EditTensor(one, [], state_edits("w", one, [], optimizers[:1], factor=factor), factor).apply()
    states = [optimizer.state[each] for optimizer, each in zip(optimizers, (one, other), strict=True)]
    torch.testing.assert_close(states[0], states[1], rtol=1e-5, atol=1e-9)
    torch.testing.assert_close(one.grad, other.grad)
    torch.testing.assert_close(one.detach(), other.detach(), rtol=1e-4, atol=0)


def test_a_failure_halfway_leaves_every_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    model = residual(nn.LayerNorm)
    optimizer = optim.Adam(model.parameters())
    model(X).square().mean().backward()
    optimizer.step()
    average = swa_utils.AveragedModel(model)
    ng.widths(model, X)
    before, averaged = everything(model, optimizer), everything(average)
    real, calls = operations.SetAttribute.apply, iter(range(100))

    def fail_late(self: operations.SetAttribute) -> None:
        if next(calls) == 14:
            raise RuntimeError("halfway")
        real(self)

    monkeypatch.setattr(operations.SetAttribute, "apply", fail_late)
    with pytest.raises(RuntimeError, match="halfway"):
        ng.resize(model, {"embed": 11}, optimizer=optimizer, ema=average)
    assert next(calls) == 15
    assert_same(before, everything(model, optimizer))
    assert_same(averaged, everything(average))


def test_a_plan_is_checked_before_anything_is_touched() -> None:
    model = residual(nn.RMSNorm)
    ng.widths(model, X)
    plan = ng.plan_shrinkage(model, "embed", [0])
    model.norms[2].eps = 0.5
    before = everything(model)
    with pytest.raises(ValueError, match=r"norms\.2\.eps is not 0\.01: the model has changed"):
        plan.apply(model)
    assert_same(before, everything(model))


def test_gradients_of_an_earlier_forward_pass_fit_what_was_scaled() -> None:
    model = residual(nn.RMSNorm)
    ng.widths(model, X)
    model(X).square().mean().backward()
    expected = model.norms[0].weight.grad / (8 / 32) ** 0.5
    model.zero_grad()
    loss = model(X).square().mean()
    ng.resize(model, {"embed": 32})
    loss.backward()
    torch.testing.assert_close(model.norms[0].weight.grad[:8], expected)


def test_saved_sizes_bring_what_makes_up_for_them(tmp_path: Any) -> None:
    model, fresh = residual(nn.RMSNorm), residual(nn.RMSNorm)
    ng.resize(model, {"embed": 11}, X)
    ng.save(tmp_path / "run.pt", model)
    ng.load(tmp_path / "run.pt", fresh)
    assert fresh.norms[0].eps == model.norms[0].eps
    assert torch.equal(fresh(X), model(X))
    another = residual(nn.RMSNorm)
    ng.load_state_dict(another, model.state_dict(), example=X)
    torch.testing.assert_close(another(X), model(X), rtol=UNITS, atol=UNITS)


@pytest.mark.parametrize("norm", [nn.RMSNorm, nn.LayerNorm])
def test_a_grower_goes_on_after_such_a_width_was_resized(norm: type[nn.Module]) -> None:
    model = residual(norm)
    optimizer = optim.Adam(model.parameters())
    grower = ng.Grower(model, optimizer, "north-random", max_width=9, buffer=64)
    for number in range(6):
        step(model, optimizer, randn(64, 7, 6).double())
        grower.step()
        if number in (1, 3):
            before = outputs_of(model, X, False)
            ng.resize(model, {"embed": model.embed.out_features + 5})
            assert_outputs(model, X, {False: before}, UNITS)
            assert optimizer.state[model.norms[0].weight]["exp_avg"].shape == (model.embed.out_features,)
    assert grower.widths == {"up.0": 9, "up.1": 9}
    assert model.embed.out_features == 18


class Switched(nn.Module):
    """Two branches, each with a norm of what they share."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(6, 8), nn.Linear(5, 3)
        self.norms = nn.ModuleList([nn.RMSNorm(8, eps=1e-2) for _ in range(2)])
        self.branches = nn.ModuleList([nn.Linear(8, 5) for _ in range(2)])

    def forward(self, x: Tensor, branch: int = 0) -> Tensor:
        result: Tensor = self.head(self.branches[branch](self.norms[branch](self.embed(x))).tanh())
        return result


@pytest.mark.filterwarnings("ignore:the example does not use")
def test_a_norm_that_is_first_called_later_follows() -> None:
    model = Switched().double()
    unsettle(model)
    expected = model(X), model(X, 1)
    grower = ng.Grower(model, optim.Adam(model.parameters()), "north-random", example=X)
    for size in (12, 15):
        ng.resize(model, {"embed": size})
        for branch in (0, 1):
            torch.testing.assert_close(model(X, branch), expected[branch], rtol=0, atol=UNITS)
            assert model.norms[branch].eps == pytest.approx(1e-2 * 8 / size)
            assert model.norms[branch].normalized_shape == (size,)
    grower.detach()


class Mean(nn.Module):
    """A linear layer that divides by its number of inputs."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.T / self.weight.shape[1]


def mean_rule(call: ng.rules.Call, module: Mean) -> list[ng.rules.Axes]:
    x, weight = call.axes(call.arguments["x"]), call.axes(module.weight)
    call.unify(x[-1], weight[1])
    call.role(module.weight, 1, "consumer", ng.rules.ZERO)
    call.role(module.weight, 0, "producer", ng.rules.RANDOM)
    call.compensate(module.weight, weight[1], -1)
    return [[*x[:-1], weight[0]]]


@pytest.mark.parametrize("rules", ["built in"], indirect=True)
def test_a_weight_can_make_up_for_the_number_of_inputs_while_others_grow() -> None:
    ng.rules.module(Mean)(mean_rule)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), Mean(8, 7), nn.Tanh(), nn.Linear(7, 3)).double()
    x = randn(5, 6).double()
    expected = model(x)
    ng.resize(model, {"0": 12, "2": 9}, x)
    torch.testing.assert_close(model(x), expected, rtol=0, atol=UNITS)
    ng.resize(model, {"2": 7, "0": 8})
    torch.testing.assert_close(model(x), expected, rtol=0, atol=UNITS)
    ng.rules.forget(Mean)


@pytest.mark.parametrize("rules", ["given"], indirect=True)
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda call, module, x: call.compensate("name", call.axes(x)[-1], 1),
            "made up for by name, which is no number, in 1",
        ),
        (
            lambda call, module, x: call.compensate(module.weight * 2, call.axes(x)[-1], 1),
            "made up for by a tensor that is computed",
        ),
        (lambda call, module, x: call.compensate(module.weight, call.axes(x)[-1], 3), "the outputs change"),
        (
            lambda call, module, x: call.new_entries(x, -1, ng.rules.MEAN),
            "new entries must be zero in 1 (RMSNorm) and the mean of the present ones in 1 (RMSNorm)",
        ),
    ],
)
def test_what_cannot_be_made_up_for_is_fixed_with_the_reason(change: Any, reason: str) -> None:
    @ng.rules.module(nn.RMSNorm)
    def rule(call: ng.rules.Call, module: Any) -> list[ng.rules.Axes]:
        result = norm_rule(call, module)
        change(call, module, call.tensors()[0])
        return result

    model = nn.Sequential(nn.Linear(6, 8), nn.RMSNorm(8, eps=1e-2), nn.Linear(8, 3))
    model[1].name = "norm"
    width = ng.widths(model, randn(4, 6))["0"]
    assert reason in (width.fixed or str(width.copied))


@pytest.mark.parametrize("rules", ["given"], indirect=True)
def test_new_entries_other_than_zeros_and_means_are_an_error_of_the_rule() -> None:
    ng.rules.module(nn.RMSNorm)(lambda call, module: call.new_entries(call.tensors()[0], -1, ng.rules.ONE))
    with pytest.raises(ng.rules.RuleError, match="can be ZERO, MEAN or COPY"):
        ng.widths(nn.Sequential(nn.Linear(6, 8), nn.RMSNorm(8), nn.Linear(8, 3)), randn(4, 6))
