"""Ages: new weights are trained as if training had just begun for them, old ones as if nothing had happened."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn, optim

import neurogenesis as ng
from neurogenesis.surgery import ages, operations
from neurogenesis.surgery.ages import births, corrections
from tests import cases, oracles
from tests.cases import randn
from tests.growing import always, mlp
from tests.growing import step as train
from tests.library.test_surgery import OPTIMIZERS, X, assert_same, everything, step, trained

KEY = births.KEY


def hooks(optimizer: optim.Optimizer) -> list[Any]:
    dictionaries = (
        optimizer._optimizer_step_pre_hooks,
        optimizer._optimizer_step_post_hooks,
        optimizer._optimizer_load_state_dict_post_hooks,
    )
    return [hook for each in dictionaries for hook in each.values()]


def records(optimizer: optim.Optimizer) -> list[Any]:
    return [state[KEY] for state in optimizer.state.values() if KEY in state]


# --- against the oracle ------------------------------------------------------------------------------------


class Pair:
    """A model with its optimizer, and the oracle's count of every entry's steps, under the same gradients."""

    def __init__(self, model: nn.Module, optimizer: optim.Optimizer, kind: str):
        self.model, self.optimizer = model, optimizer
        groups = {p: group for group in optimizer.param_groups for p in group["params"]}
        oracle = oracles.OwnStepsAdafactor if kind == "Adafactor" else oracles.OwnSteps
        self.own = {name: oracle(kind, p, groups[p]) for name, p in model.named_parameters()}
        self.time = 0

    def step(self, least: float = 0.0) -> None:
        """With gradients of all sizes, or none smaller than the least."""
        self.time += 1
        generator = torch.Generator().manual_seed(self.time)
        for name, parameter in self.model.named_parameters():
            sizes, noise = torch.randn(2, *parameter.shape, generator=generator, dtype=parameter.dtype)
            gradient = 10 ** (sizes - 3) * (noise + 0.5) + least * noise.sign()
            parameter.grad = gradient + 0.01 * parameter.detach()
            self.own[name].step(gradient + 0.01 * self.own[name].value)
        self.optimizer.step()

    def grow(self, width: str, count: int) -> None:
        generator = torch.Generator().manual_seed(self.time)
        plan = ng.grow(self.model, width, count, optimizer=self.optimizer, generator=generator)
        for edit in plan.edits:
            if edit.tensor in self.own:
                assert edit.values is not None
                self.own[edit.tensor].insert(edit.axis, edit.positions.tolist(), edit.values)

    def shrink(self, width: str, neurons: list[int]) -> None:
        for edit in ng.shrink(self.model, width, neurons, optimizer=self.optimizer).edits:
            if edit.tensor in self.own:
                self.own[edit.tensor].remove(edit.axis, edit.positions.tolist())

    def check(self, rtol: float = 1e-9, atol: float = 1e-11) -> None:
        for name, parameter in self.model.named_parameters():
            torch.testing.assert_close(
                parameter.detach(), self.own[name].value, rtol=rtol, atol=atol, msg=lambda m, name=name: f"{name}: {m}"
            )


def pair(
    make: Callable[[Any], optim.Optimizer],
    kind: str = "Adam",
    network: Callable[[], nn.Module] = cases.mlp,
    x: Tensor = X,
    dtype: torch.dtype = torch.float64,
) -> Pair:
    torch.manual_seed(0)
    model = network().to(dtype)
    ng.widths(model, x.to(dtype))
    return Pair(model, make(list(model.parameters())), kind)


def two_groups(parameters: list[Tensor]) -> list[dict[str, Any]]:
    return [
        {"params": [p for p in parameters if p.ndim > 1]},
        {"params": [p for p in parameters if p.ndim == 1], "lr": 0.003, "betas": (0.7, 0.99), "weight_decay": 0.1},
    ]


TINY = 1e-30  # ages are exact but for eps
EXACT: dict[str, tuple[str, Callable[[Any], optim.Optimizer]]] = {
    "Adam": ("Adam", lambda p: optim.Adam(p, 1e-2, eps=TINY)),
    "Adam, other betas": ("Adam", lambda p: optim.Adam(p, 1e-2, betas=(0.0, 0.99), eps=TINY)),
    "Adam foreach": ("Adam", lambda p: optim.Adam(p, 1e-2, foreach=True, eps=TINY)),
    "Adam fused": ("Adam", lambda p: optim.Adam(p, 1e-2, fused=True, eps=TINY)),
    "Adam weight decay": ("Adam", lambda p: optim.Adam(p, 1e-2, weight_decay=0.1, eps=TINY)),
    "Adam maximize": ("Adam", lambda p: optim.Adam(p, 1e-2, maximize=True, weight_decay=0.1, eps=TINY)),
    "Adam tensor lr": ("Adam", lambda p: optim.Adam(p, torch.tensor(1e-2, dtype=torch.float64), eps=TINY)),
    "AdamW": ("Adam", lambda p: optim.AdamW(p, 1e-2, weight_decay=0.1, eps=TINY)),
    "AdamW fused amsgrad": (
        "Adam",
        lambda p: optim.AdamW(p, 1e-2, amsgrad=True, fused=True, weight_decay=0.1, eps=TINY),
    ),
    "Adam amsgrad": ("Adam", lambda p: optim.Adam(p, 1e-2, amsgrad=True, eps=TINY)),
    "Adam, groups": ("Adam", lambda p: optim.Adam(two_groups(p), 1e-2, eps=TINY)),
    "NAdam": ("NAdam", lambda p: optim.NAdam(p, 1e-2)),
    "NAdam weight decay": ("NAdam", lambda p: optim.NAdam(p, 1e-2, weight_decay=0.1, maximize=True)),
    "NAdamW foreach": (
        "NAdam",
        lambda p: optim.NAdam(p, 1e-2, weight_decay=0.1, decoupled_weight_decay=True, foreach=True),
    ),
    "RAdam": ("RAdam", lambda p: optim.RAdam(p, 1e-2)),
    "RAdam weight decay": ("RAdam", lambda p: optim.RAdam(p, 1e-2, weight_decay=0.1, maximize=True)),
    "RAdamW": ("RAdam", lambda p: optim.RAdam(p, 1e-2, weight_decay=0.1, decoupled_weight_decay=True)),
    "Adamax": ("Adamax", lambda p: optim.Adamax(p, 1e-2, betas=(0.99, 0.999), weight_decay=0.1)),
}


ROUNDING = {"NAdam": {"rtol": 1e-6, "atol": 1e-8}}  # torch keeps its product of momenta in single precision


@pytest.mark.parametrize("name", EXACT)
def test_every_entry_takes_the_steps_of_its_own_age(name: str) -> None:
    """Growth on both axes at several moments, and neurons of all ages removed in between."""
    kind, make = EXACT[name]
    both = pair(make, kind)
    events: dict[int, Callable[[], None]] = {
        0: lambda: both.grow("0", 1),
        20: lambda: both.grow("0", 3),
        40: lambda: both.grow("2", 2),
        41: lambda: both.grow("2", 2),
        90: lambda: both.grow("0", 4),
        120: lambda: (both.shrink("0", [0, 9, 13]), both.shrink("2", [7]))[0],
        150: lambda: both.grow("2", 5),
    }
    for number in range(200):
        events.get(number, lambda: None)()
        both.step()
    both.check(**ROUNDING.get(kind, {}))


@pytest.mark.parametrize("kind", [optim.Adam, optim.AdamW])
def test_with_the_usual_eps_and_gradients_the_difference_is_small(kind: type[optim.Optimizer]) -> None:
    """At birth eps counts as 32 times itself, 3e-7; gradients are of 1e-2 and more, and the difference 1e-4 of lr."""
    both, rate = pair(lambda p: kind(p, 1e-2)), 1e-2
    for number in range(160):
        if number in (100, 110):
            both.grow("0", 3)
            both.grow("2", 2)
        both.step(least=0.01)
        if number == 99:
            both.check()
    both.check(rtol=0, atol=2e-4 * rate)


def test_single_precision() -> None:
    both = pair(lambda p: optim.Adam(p, 1e-2, eps=TINY), dtype=torch.float32)
    for number in range(60):
        if number in (10, 20):
            both.grow("0", 3)
            both.grow("2", 3)
        both.step()
    both.check(rtol=1e-3, atol=1e-5)


def test_convolutions_with_kernels_and_norms() -> None:
    both = pair(lambda p: optim.Adam(p, 1e-2, eps=TINY), network=cases.conv_flatten, x=randn(2, 3, 8, 8))
    for number in range(60):
        if number in (10, 20, 25):
            both.grow("0", 2)
            both.grow("3", 1)
            both.grow("8", 3)
        both.step()
    both.check()


def test_channels_last_memory() -> None:
    both = pair(lambda p: optim.Adam(p, 1e-2, eps=TINY), network=cases.conv_flatten, x=randn(2, 3, 8, 8))
    both.model.to(memory_format=torch.channels_last)
    for number in range(40):
        if number in (10, 20):
            both.grow("0", 2)
            both.grow("3", 1)
        both.step()
    assert not both.model[3].weight.is_contiguous()
    both.check()


class Scattered(nn.Module):
    """Its last layer has columns of the same channel far apart, so that new ones lie scattered among the old."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.wide, self.out = nn.Conv2d(1, 2, 1), nn.Linear(32, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.wide(self.conv(x).relu().permute(0, 2, 3, 1).flatten(1)).relu())


def test_new_entries_scattered_among_old_ones() -> None:
    both = pair(lambda p: optim.AdamW(p, 1e-2, eps=TINY), network=Scattered, x=randn(2, 1, 4, 4))
    for number in range(40):
        if number in (10, 20):
            both.grow("conv", 1)
            both.grow("wide", 2)
        both.step()
    both.check()


@settings(max_examples=8, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["0", "2"]), st.integers(-2, 3), st.integers(0, 6)), min_size=1, max_size=5),
    st.sampled_from(["Adam", "Adam amsgrad", "AdamW fused amsgrad", "RAdam", "NAdam"]),
)
def test_any_order_of_growth_and_shrinkage(events: list[tuple[str, int, int]], name: str) -> None:
    kind, make = EXACT[name]
    both = pair(make, kind)
    for width, change, pause in events:
        size = {"0": both.model[0], "2": both.model[2]}[width].out_features
        if change > 0:
            both.grow(width, change)
        elif change < 0:
            both.shrink(width, [abs(pause) % size, size - 1])
        for _ in range(pause):
            both.step()
    both.step()
    both.check(**ROUNDING.get(kind, {}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_an_update_has_the_size_it_has_at_the_beginning(dtype: torch.dtype) -> None:
    """Without ages, Adam moves new weights 3.2 times too far in their first step."""
    for own, size in ((True, 1.0), (False, 0.1 / 0.001**0.5)):
        torch.manual_seed(0)
        model = cases.mlp().to(dtype)
        optimizer = optim.Adam(model.parameters(), 1e-3, eps=1e-5)
        for number in range(2):
            if number == 1:
                for state in optimizer.state.values():
                    state["step"].fill_(1e6)
                ng.grow(model, "0", 2, optimizer=optimizer, ages=own, example=X.to(dtype))
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
        moved = model[2].weight.detach()[:, 8:].float() / -1e-3  # from 0
        torch.testing.assert_close(moved, torch.full_like(moved, size), rtol=0.02, atol=0)


def test_adafactor_weights_averages_by_the_age_of_rows_and_columns() -> None:
    both = pair(lambda p: optim.Adafactor(p, 1e-2, weight_decay=0.1), "Adafactor")
    for number in range(80):
        if number in (20, 30, 31):
            both.grow("0", 3)
            both.grow("2", 2)
        both.step()
    both.check(rtol=1e-8, atol=1e-10)


# --- old entries -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "Adafactor"])  # it clips a tensor as a whole
def test_old_weights_are_bit_identical_to_those_without_ages(name: str) -> None:
    def run(own: bool) -> nn.Module:
        model, optimizer = trained(OPTIMIZERS[name])
        for number in range(12):
            if number in (2, 5):
                ng.grow(model, "0", 3, optimizer=optimizer, generator=torch.Generator().manual_seed(1), ages=own)
                ng.grow(model, "2", 2, optimizer=optimizer, generator=torch.Generator().manual_seed(1), ages=own)
            generator = torch.Generator().manual_seed(number)
            for parameter in model.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=generator)
            optimizer.step()
        return model

    new, usual = run(True), run(False)
    assert_same(usual[0].weight[:8], new[0].weight[:8])
    assert_same(usual[0].bias[:8], new[0].bias[:8])
    assert_same(usual[2].weight[:7, :8], new[2].weight[:7, :8])
    assert_same(usual[4].weight[:, :7], new[4].weight[:, :7])
    young = corrections.rule_of(trained(OPTIMIZERS[name], 0)[1]).needed  # type: ignore[union-attr]
    assert torch.equal(usual[0].weight[8:], new[0].weight[8:]) is not young


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_is_said_of_every_optimizer_what_it_needs(name: str) -> None:
    model, optimizer = trained(OPTIMIZERS[name])
    rule = corrections.RULES[type(optimizer)]
    assert len(rule.why) > 20
    ng.grow(model, "0", 2, optimizer=optimizer)
    assert bool(records(optimizer)) is bool(hooks(optimizer)) is rule.needed


# --- steps that are none -----------------------------------------------------------------------------------


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_the_scaler_skips_does_not_age(fused: bool) -> None:
    def run(skips: bool) -> nn.Module:
        model, optimizer = trained(lambda p: optim.Adam(p, fused=fused), steps=0)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000)
        for number in range(8):
            if number == 3:
                ng.grow(model, "0", 2, optimizer=optimizer, generator=torch.Generator().manual_seed(0))
            for bad in [True, False] if skips and number in (3, 5) else [False]:
                optimizer.zero_grad()
                scaler.scale((model(X) ** 2).mean()).backward()
                if bad:
                    model[0].weight.grad[0, 0] = torch.inf
                    before = everything(model, optimizer)
                scaler.step(optimizer)
                if bad:
                    after = everything(model, optimizer)
                    assert_same((before["tensors"], before["others"]), (after["tensors"], after["others"]))
                scaler.update(4.0)
        return model

    assert_same(dict(run(False).named_parameters()), dict(run(True).named_parameters()))


def test_a_parameter_without_a_gradient_does_not_age() -> None:
    model, optimizer = trained(OPTIMIZERS["Adam"])
    ng.grow(model, "0", 2, optimizer=optimizer)
    step(model, optimizer)
    before = model[0].weight.detach().clone()
    optimizer.zero_grad()
    (model[2](torch.ones(1, 10)) ** 2).mean().backward()
    optimizer.step()
    assert optimizer.state[model[0].weight][KEY]["seen"] == 4
    assert optimizer.state[model[2].weight][KEY]["seen"] == 5
    assert_same(before, model[0].weight.detach())


# --- what is kept ------------------------------------------------------------------------------------------


def test_births_are_cut_with_the_neurons() -> None:
    model, optimizer = trained(OPTIMIZERS["Adam"])
    ng.grow(model, "0", 2, optimizer=optimizer)
    step(model, optimizer)
    ng.grow(model, "0", 3, optimizer=optimizer)
    assert optimizer.state[model[2].weight][KEY]["axes"] == [[], [[8, 10, 3], [10, 13, 4]]]
    plan = ng.plan_shrinkage(model, "0", [1, 9, 12])
    plan.apply(model, optimizer)
    assert optimizer.state[model[2].weight][KEY]["axes"] == [[], [[7, 8, 3], [8, 10, 4]]]
    assert optimizer.state[model[0].bias][KEY]["axes"] == [[[7, 8, 3], [8, 10, 4]]]
    ng.shrink(model, "0", [7, 8, 9], optimizer=optimizer)
    assert not records(optimizer)


def test_a_growth_that_fails_leaves_births_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = trained(OPTIMIZERS["Adam"])
    ng.grow(model, "0", 2, optimizer=optimizer)
    before, present = everything(model, optimizer), hooks(optimizer)
    original = operations.SetAttribute.apply

    def fail(self: operations.SetAttribute) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(operations.SetAttribute, "apply", fail)
    with pytest.raises(RuntimeError, match="no"):
        ng.grow(model, "0", 3, optimizer=optimizer)
    monkeypatch.setattr(operations.SetAttribute, "apply", original)
    assert_same(before, everything(model, optimizer))
    assert hooks(optimizer) == present


def continued(model: nn.Module, optimizer: optim.Optimizer) -> list[Tensor]:
    for _ in range(5):
        step(model, optimizer)
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("name", ["Adam", "AdamW fused amsgrad", "NAdam", "RAdam", "Adamax", "Adafactor"])
def test_a_loaded_state_goes_on_bit_for_bit(name: str) -> None:
    model, optimizer = trained(OPTIMIZERS[name])
    ng.grow(model, "0", 2, optimizer=optimizer)
    step(model, optimizer)
    file = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict()], file)
    expected = continued(model, optimizer)

    def fresh(grown: bool) -> tuple[nn.Module, optim.Optimizer]:
        model = cases.mlp() if grown else nn.Sequential(
            nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 7), nn.Tanh(), nn.Linear(7, 3)
        )  # fmt: skip
        optimizer = OPTIMIZERS[name](model.parameters())
        if grown:
            ng.grow(model, "0", 2, optimizer=optimizer, example=X)
        file.seek(0)
        state, of_optimizer = torch.load(file, weights_only=True)
        model.load_state_dict(state)
        optimizer.load_state_dict(of_optimizer)
        return model, optimizer

    assert_same(expected, continued(*fresh(grown=True)))
    model, optimizer = fresh(grown=False)
    ages.resume(optimizer)
    ages.resume(optimizer)  # twice is once
    assert_same(expected, continued(model, optimizer))
    assert any(not torch.equal(a, b) for a, b in zip(expected, continued(*fresh(grown=False)), strict=True))


def test_a_copied_optimizer_can_go_on_too() -> None:
    model, optimizer = trained(OPTIMIZERS["Adam"])
    ng.grow(model, "0", 2, optimizer=optimizer)
    step(model, optimizer)
    other, copied = copy.deepcopy((model, optimizer))
    ages.resume(copied)
    assert_same(continued(model, optimizer), continued(other, copied))


def test_births_of_another_size_are_refused() -> None:
    model, optimizer = trained(OPTIMIZERS["Adam"])
    ng.grow(model, "0", 2, optimizer=optimizer)
    optimizer.state[model[0].weight][KEY]["axes"] = [[[9, 12, 3]], []]
    with pytest.raises(ValueError, match=r"births that do not fit a parameter of shape \(10, 6\)"):
        step(model, optimizer)


@pytest.mark.parametrize("own", [True, False])
def test_the_growers_checkpoint_goes_on_bit_for_bit(own: bool) -> None:
    trigger = always(1)

    def begin() -> tuple[nn.Module, optim.Optimizer, ng.Grower]:
        model = mlp(6, 5, 4, 2)
        optimizer = optim.Adam(model.parameters(), 1e-2)
        return model, optimizer, ng.Grower(model, optimizer, ng.Strategy(trigger), max_width=9, ages=own)

    def go_on(model: nn.Module, optimizer: optim.Optimizer, grower: ng.Grower, first: int) -> list[Tensor]:
        for number in range(first, first + 6):
            train(model, optimizer, randn(20, 6) * (1 + number))
            grower.step()
        return [parameter.detach().clone() for parameter in model.parameters()]

    model, optimizer, grower = begin()
    go_on(model, optimizer, grower, 0)
    assert bool(records(optimizer)) is own
    saved = copy.deepcopy([model.state_dict(), optimizer.state_dict(), grower.state_dict()])
    expected = go_on(model, optimizer, grower, 6)
    model, optimizer, grower = begin()
    grower.load_state_dict(saved[2])
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    assert_same(expected, go_on(model, optimizer, grower, 6))


# --- the end -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("others", [0, 1])
def test_nothing_stays_on_the_optimizer_when_all_are_grown_up(others: int) -> None:
    """Also where somebody else has registered hooks before and after ours, which stay."""
    model, optimizer = trained(lambda p: optim.Adam(p, betas=(0.5, 0.8)))
    calls: list[str] = []
    for _ in range(others):
        optimizer.register_step_post_hook(lambda *_: calls.append("first"))
        optimizer.register_step_pre_hook(lambda *_: None)
    ng.grow(model, "0", 2, optimizer=optimizer)
    late = [optimizer.register_step_post_hook(lambda *_: calls.append("late")) for _ in range(others)]
    ages_of = corrections.lifetime(corrections.RULES[optim.Adam], optimizer.param_groups[0])
    assert 0.8**ages_of / 2 < 1e-3 <= 0.8 ** (ages_of - 1) / 2
    for number in range(ages_of):
        assert records(optimizer), number
        step(model, optimizer)
    assert not records(optimizer)
    for _ in range(2 * others):
        step(model, optimizer)
    assert len(hooks(optimizer)) == 3 * others
    assert calls.count("late") == calls.count("first") == others * (ages_of + 2)
    for handle in late:
        handle.remove()


def test_runs_grow_up_one_after_the_other() -> None:
    model, optimizer = trained(lambda p: optim.Adam(p, betas=(0.5, 0.8)))
    ng.grow(model, "0", 2, optimizer=optimizer)
    for _ in range(10):
        step(model, optimizer)
    ng.grow(model, "0", 2, optimizer=optimizer)
    for _ in range(20):
        step(model, optimizer)
    assert optimizer.state[model[0].bias][KEY]["axes"] == [[[10, 12, 13]]]


def test_betas_of_torch_take_some_thousand_steps() -> None:
    def years(optimizer: type[optim.Optimizer]) -> int:
        group = optimizer([nn.Parameter(torch.ones(1))]).param_groups[0]
        return corrections.lifetime(corrections.RULES[optimizer], group)

    assert years(optim.Adam) == 6212
    assert years(optim.Adamax) == 66
    assert 6212 < years(optim.RAdam) < 10_000
    assert 30_000 < years(optim.NAdam) < 50_000


def test_detach_leaves_nothing_on_the_optimizer() -> None:
    model = mlp(6, 5, 4, 2)
    optimizer = optim.Adam(model.parameters())
    grower = ng.Grower(model, optimizer, ng.Strategy(always(1)))
    for _ in range(3):
        train(model, optimizer, randn(20, 6))
        grower.step()
    assert records(optimizer)
    grower.detach()
    assert not records(optimizer)
    assert not hooks(optimizer)


def test_growing_before_the_first_step_leaves_nothing_after_it() -> None:
    model, optimizer = trained(OPTIMIZERS["Adam"], steps=0)
    ng.grow(model, "0", 2, optimizer=optimizer)
    step(model, optimizer)
    assert not records(optimizer)
    assert not hooks(optimizer)


def test_growth_in_a_closure_of_the_step_is_corrected_from_the_next_step_on() -> None:
    model, optimizer = trained(OPTIMIZERS["Adam"])

    def closure() -> Tensor:
        ng.grow(model, "0", 1, optimizer=optimizer)
        optimizer.zero_grad()
        loss = (model(X) ** 2).mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    step(model, optimizer)
    assert all(parameter.isfinite().all() for parameter in model.parameters())


# --- optimizers of others ----------------------------------------------------------------------------------


class Theirs(optim.Optimizer):
    """Somebody's Adam, with the count of steps wherever they like."""

    def __init__(self, params: Any, in_group: bool = False, elsewhere: bool = False, **settings: Any):
        super().__init__(params, {"lr": 1e-2, "betas": (0.9, 0.999), "eps": 0.0, **settings})
        self.in_group, self.elsewhere = in_group, elsewhere

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        if closure is not None:
            with torch.enable_grad():
                closure()
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state.update(exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
                    if not self.in_group:
                        state["step"] = 0
                if not self.in_group:
                    state["step"] += 1
                b1, b2 = group["betas"]
                m, v, n = state["exp_avg"], state["exp_avg_sq"], group["step"]
                m.lerp_(p.grad, 1 - b1)
                v.lerp_(p.grad.square(), 1 - b2)
                if self.elsewhere:
                    p.data = p.data.clone()
                p.sub_(group["lr"] * m / (1 - b1**n) / ((v / (1 - b2**n)).sqrt() + group["eps"]))


@pytest.mark.parametrize(("in_group", "elsewhere"), [(False, False), (True, False), (False, True)])
def test_an_optimizer_that_looks_like_adam_is_treated_as_such_and_named(in_group: bool, elsewhere: bool) -> None:
    """Also where each of its steps leaves the parameters in other memory."""
    both = pair(lambda p: Theirs(p, in_group, elsewhere))
    for own in both.own.values():
        own.group = {**own.group, "amsgrad": False}
    for _ in range(10):
        both.step()
    with pytest.warns(UserWarning, match="Theirs looks like Adam") as caught:
        both.grow("0", 2)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(10):
            both.step()
        both.grow("2", 2)
        for _ in range(10):
            both.step()
    both.check(rtol=1e-7, atol=1e-9)


def test_one_that_does_not_correct_its_moments_is_left_alone() -> None:
    model, optimizer = trained(lambda p: Theirs(p, correct_bias=False, eps=1e-8))
    ng.grow(model, "0", 2, optimizer=optimizer)
    assert not records(optimizer)
    assert not hooks(optimizer)


class Renamed(optim.AdamW):
    """Makes the steps of torch's."""


class Overridden(optim.Adam):
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def test_subclasses_are_known_unless_they_make_steps_of_their_own() -> None:
    both = pair(lambda p: Renamed(p, 1e-2, weight_decay=0.1, eps=TINY))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(20):
            if number == 10:
                both.grow("0", 2)
            both.step()
    both.check()
    both = pair(lambda p: Overridden(p, 1e-2, eps=1e-15, weight_decay=0.1, decoupled_weight_decay=True))
    for _ in range(10):
        both.step()
    with pytest.warns(UserWarning, match="Overridden looks like Adam"):
        both.grow("0", 2)
    for _ in range(10):
        both.step()
    both.check(rtol=1e-7, atol=1e-9)  # but for eps


def test_sparse_adam_corrects_rows_that_have_a_gradient() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.out = nn.Embedding(6, 4, sparse=True), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.embedding(x).relu())

    torch.manual_seed(0)
    model = Words().double()
    embedding = model.embedding.weight
    optimizer = optim.SparseAdam([embedding], lr=1e-2)
    rest = optim.Adam(model.out.parameters())
    ng.widths(model, torch.tensor([[0, 1]]))
    own = {row: oracles.OwnSteps("Adam", embedding[row], {**optimizer.defaults, "amsgrad": False}) for row in range(6)}
    for number in range(20):
        if number == 5:
            model.zero_grad()
            plan = ng.grow(model, "embedding", 2, optimizer=[optimizer, rest])
            values = next(edit.values for edit in plan.edits if edit.tensor == "embedding.weight")
            assert values is not None
            for row, each in own.items():
                each.insert(0, [4, 5], values[row])
                each.v[:4] = optimizer.state[embedding]["exp_avg_sq"][row, :4]
        before = embedding.detach().clone()
        rows = [0, 1] if number % 2 else [1, 2, 3]
        optimizer.zero_grad()
        (model.embedding(torch.tensor(rows)).sin() * (1 + number)).sum().backward()
        gradient = embedding.grad.to_dense()
        optimizer.step()
        assert_same(before[[4, 5]], embedding.detach()[[4, 5]])
        if number == 5:
            for row in rows:
                expected = before[row] - 1e-2 * gradient[row].sign()  # a first step is one of lr
                torch.testing.assert_close(embedding.detach()[row, 4:], expected[4:], rtol=1e-5, atol=1e-8)


def walk(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for each in value.values():
            yield from walk(each)
    elif isinstance(value, list):
        for each in value:
            yield from walk(each)
    else:
        yield value


def test_births_are_plain_integers() -> None:
    model, optimizer = trained(OPTIMIZERS["Adam"])
    ng.grow(model, "0", 2, optimizer=optimizer)
    step(model, optimizer)
    assert {type(each) for each in walk(records(optimizer))} == {int}
