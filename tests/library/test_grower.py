"""The Grower: right in every loop, the same for the same seed, resumable, and gone without a trace."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
import warnings
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import neurogenesis as ng
from neurogenesis import initializations, triggers
from neurogenesis.experiments.models import vgg11, wrn28
from neurogenesis.strategies import STRATEGIES
from tests import oracles
from tests.growing import always, mlp, small_vgg, step

ROOT = Path(__file__).parents[2]
PAPER = ("north-select", "north-pre", "north-opt", "north-random", "north-weight", "gradmax", "firefly", "nest")


def adam(model: nn.Module, lr: float = 1e-2) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=lr)


def eager(name: str) -> ng.Strategy:
    """A strategy of the paper, with a threshold low enough and candidates few enough for tests."""
    strategy = STRATEGIES[name]()
    if name in ("gradmax", "firefly", "nest"):
        few = {"gradmax": initializations.GradMax(), "firefly": initializations.Firefly(candidates=10)}
        return ng.Strategy(triggers.Gradient(0.02), few.get(name, initializations.NeST(candidates=2)))
    if isinstance(strategy.initialization, initializations.Select):
        return ng.Strategy(strategy.trigger, type(strategy.initialization)(candidates=10))
    return strategy


def train(model: nn.Module, grower: ng.Grower, steps: int, shape: tuple[int, ...], seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    sizes = []
    for _ in range(steps):
        x = torch.randn(shape, generator=generator)
        step(model, grower.optimizers[0], x)
        grower.step(lambda x=x: model(x).sin().square().mean())
        sizes.append(list(grower.widths.values()))
    return sizes


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PAPER)
@pytest.mark.parametrize("network", ["mlp", "vgg11", "wrn28"])
def test_every_strategy_trains_and_grows_every_network(name: str, network: str) -> None:
    torch.manual_seed(0)
    shape: tuple[int, ...] = (8, 3, 32, 32)
    if network == "mlp":
        model, shape = mlp(12, 6, 5, 3), (32, 12)
    else:
        model = vgg11(1 / 16) if network == "vgg11" else wrn28(1 / 4)
    if name == "north-pre" and network != "mlp":
        with pytest.raises(ValueError, match="convolution"):
            ng.Grower(model, adam(model), name, example=torch.randn(shape))
        return
    options: dict[str, Any] = {"tie": [["group1.*"], ["group2.*"], ["group3.*"]]} if network == "wrn28" else {}
    grower = ng.Grower(model, adam(model), eager(name), max_width=1.5, buffer=shape[0], **options)
    sizes = train(model, grower, 3, shape)
    assert len(grower.history) > 0
    assert all(event.after > event.before for event in grower.history)
    assert sizes[-1] != [layer.initial for layer in grower.layers]
    assert all(layer.size <= 1.5 * layer.initial for layer in grower.layers)


# --- loops -------------------------------------------------------------------------------------------------


def test_passes_that_are_no_training_leave_no_trace() -> None:
    results = []
    for disturbed in (False, True):
        model = mlp(10, 6, 5, 3)
        optimizer = adam(model)
        grower = ng.Grower(model, optimizer, "north-random", buffer=40)
        generator = torch.Generator().manual_seed(0)
        for _ in range(6):
            x = torch.randn(25, 10, generator=generator)
            if disturbed:
                with torch.no_grad():
                    model(100 * torch.randn(7, 10))
                model.eval()
                model(100 * torch.randn(7, 10))
                model.train()
            step(model, optimizer, x)
            if disturbed:
                with torch.no_grad():
                    model(torch.full((3, 10), float("nan")))
            grower.step()
        results.append((grower.widths, model.state_dict(), [(e.step, e.metric) for e in grower.history]))
    assert results[0][0] == results[1][0] != {"0": 6, "2": 5}
    assert results[0][2] == results[1][2]
    for name, tensor in results[0][1].items():
        assert torch.equal(tensor, results[1][1][name])


@pytest.mark.parametrize("name", ["north-random", "gradmax"])
def test_accumulated_gradients_grow_as_one_batch_does(name: str) -> None:
    x = torch.randn(40, 10)
    seen = []
    for parts in (1, 4):
        model = mlp(10, 6, 5, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        grower = ng.Grower(model, optimizer, eager(name), buffer=40)
        for _ in range(3):
            optimizer.zero_grad()
            for part in x.split(40 // parts):
                (model(part).sin().square().mean() / parts).backward()
            optimizer.step()
            grower.step()
        seen.append([(e.step, e.width, e.after) for e in grower.history])
    assert seen[0] == seen[1] != []


def test_skipped_steps_are_not_looked_at_and_do_no_harm() -> None:
    model = mlp(10, 6, 3)
    optimizer = adam(model)
    grower = ng.Grower(model, optimizer, "north-random", buffer=20)
    model(torch.full((20, 10), float("inf"))).sum().backward()  # as a gradient scaler sees and skips
    with pytest.warns(UserWarning, match="no optimizer step"):
        assert grower.step() == []
    assert grower.steps == 0
    step(model, optimizer, torch.randn(10, 10))
    with pytest.warns(UserWarning, match="activations of 0 are not finite"):
        assert grower.step() == []
    train(model, grower, 4, (20, 10))
    assert grower.widths["0"] > 6


@pytest.mark.parametrize("every", [1, 3])
def test_every_thins_out_what_is_looked_at(every: int) -> None:
    model = mlp(10, 4, 3)
    grower = ng.Grower(model, adam(model), ng.Strategy(always(1)), every=every)
    train(model, grower, 7, (20, 10))
    assert [event.step for event in grower.history] == list(range(1, 8, every))


def test_a_width_that_asks_for_nothing_is_asked_less_often_and_at_least_at_every_twelfth_step() -> None:
    asked: list[int] = []

    class Rare(ng.triggers.Trigger):
        patient = True

        def __call__(self, layer: ng.Layer) -> int:
            asked.append(layer.step)
            return int(layer.step in (4, 61))

    model = mlp(10, 4, 3)
    grower = ng.Grower(model, adam(model), ng.Strategy(Rare()))
    train(model, grower, 95, (5, 10))
    gaps = [b - a for a, b in pairwise(asked)]
    assert gaps[:6] == [1, 2, 1, 1, 2, 3]  # no, no, yes: from then on as at the beginning
    assert max(gaps) == 12
    assert [event.step for event in grower.history] == [4]
    every = ng.Grower(model, adam(model), ng.Strategy(Rare()), every=1)
    asked.clear()
    train(model, every, 12, (5, 10))
    assert asked == list(range(1, 13))


def test_activations_of_a_measurement_are_all_of_the_present_network() -> None:
    model = mlp(10, 6, 5, 3)
    inputs: list[Tensor] = []

    def same(layer: ng.Layer) -> int:
        expected = model[: int(layer.consumer.module)](torch.cat(inputs)[-50:]).T
        torch.testing.assert_close(layer.activations, expected)
        return 1

    grower = ng.Grower(model, adam(model, 0.1), ng.Strategy(same), buffer=50, max_width=9)
    for _ in range(6):
        inputs.append(torch.randn(20, 10))
        step(model, grower.optimizers[0], inputs[-1])
        grower.step()
    assert grower.widths == {"0": 9, "2": 9}


def test_widths_are_measured_as_soon_as_there_are_twice_as_many_samples_as_neurons() -> None:
    model = mlp(10, 6, 25, 3)
    grower = ng.Grower(model, adam(model), "north-random", every=1)
    with pytest.warns(UserWarning, match=r"0: 8 of 12 activations per neuron seen; 2: 8 of 50 .*fill") as caught:
        train(model, grower, 8, (8, 10))
    assert len(caught) == 1
    first = {seen.width: seen.step for seen in reversed(grower.history.observations) if seen.metric is not None}
    assert first == {"0": 2, "2": 7}


def test_a_filled_buffer_lets_the_first_step_decide_against_the_untrained_network() -> None:
    model = mlp(10, 6, 3)
    untrained = copy.deepcopy(model)
    grower = ng.Grower(model, adam(model, 0.5), ng.Strategy(triggers.Activation(eps=0.5)), buffer=40)
    x = torch.randn(80, 10)
    for part in x[:40].split(20):
        grower.fill(part)
    assert grower.widths == {"0": 6}
    step(model, grower.optimizers[0], x[60:])
    grower.step()
    rank = oracles.effective_rank(untrained[:2](torch.cat([x[20:40], x[60:]])).detach().T, 0.5)
    seen = grower.history.observations[0]
    assert (seen.step, seen.threshold) == (1, pytest.approx(0.97 * rank / 6))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["north-select", "north-random", "north-integrated", "orthogonality"])
def test_inputs_may_change_their_size_from_batch_to_batch(name: str) -> None:
    images = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 5, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(5, 3),
    )  # fmt: skip
    text = nn.Sequential(nn.Linear(10, 6), nn.ReLU(), nn.Linear(6, 3))
    shapes = {images: [(7, 2, 8, 8), (7, 2, 6, 9), (7, 2, 8, 8)], text: [(8, 5, 10), (8, 9, 10), (3, 2, 10)]}
    for model, sizes in shapes.items():
        strategy: Any = name
        if name == "orthogonality":
            strategy = ng.Strategy(triggers.Activation(metric=name), initializations.Select(metric=name))
        grower = ng.Grower(model, adam(model), strategy, buffer=20, max_width=8)
        for shape in sizes * 2:
            step(model, grower.optimizers[0], torch.randn(shape))
            grower.step()
        assert len(grower.history) > 0


def test_north_pre_takes_text_of_any_length() -> None:
    model = nn.Sequential(nn.Linear(10, 6), nn.ReLU(), nn.Linear(6, 3))
    grower = ng.Grower(model, adam(model), "north-pre", buffer=20, max_width=8)
    for length in (5, 9, 2, 7):
        step(model, grower.optimizers[0], torch.randn(8, length, 10))
        grower.step()
    assert grower.widths == {"0": 8}


class Counting(nn.Sequential):
    """Keeps something of each call."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.last = x
        out: Tensor = super().forward(x)
        return out


def test_what_a_model_keeps_of_its_calls_is_of_the_users_own() -> None:
    model = Counting(nn.Linear(10, 6), nn.Dropout(0.2), nn.ReLU(), nn.Linear(6, 3))
    grower = ng.Grower(model, adam(model), "north-select", buffer=40, max_width=9)
    for number in range(1, 5):
        x = torch.randn(20, 10)
        step(model, grower.optimizers[0], x)
        model.eval()  # as a loop might before it asks the grower
        grower.step()
        assert not model.training
        model.train()
        assert model.calls == number
        assert model.last is x
    assert grower.widths == {"0": 9}


class Written(nn.Sequential):
    """Writes into its input."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = super().forward(x.sub_(x.mean()))
        return out


def test_inputs_that_are_written_into_are_copied() -> None:
    torch.manual_seed(0)
    model = Written(nn.Linear(10, 6), nn.ReLU(), nn.Linear(6, 3))
    grower = ng.Grower(model, adam(model), "north-select", example=torch.randn(4, 10), buffer=40, max_width=9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(model, grower, 6, (20, 10))
    assert grower.widths == {"0": 9}
    still = torch.randn(20, 10)
    model2 = mlp(10, 6, 3)
    grower2 = ng.Grower(model2, adam(model2), "north-select", buffer=40, max_width=9)
    for _ in range(6):
        step(model2, grower2.optimizers[0], still)
        grower2.step()
        still.normal_()
    assert grower2.widths == {"0": 9}


def test_growing_by_hand_beside_the_grower_is_followed() -> None:
    model = mlp(10, 6, 5, 3)
    optimizer = adam(model)
    grower = ng.Grower(model, optimizer, "north-random", buffer=40, max_width=30)
    train(model, grower, 3, (20, 10))
    before = grower.widths["0"]
    ng.grow(model, "0", 2, optimizer=optimizer)
    assert grower.widths["0"] == before + 2
    train(model, grower, 3, (20, 10))


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.calls = nn.Linear(10, 6), nn.Linear(10, 6), nn.Linear(6, 3), 0
        self.d = nn.Linear(6, 3)

    def forward(self, x: Tensor, skip: bool = False) -> Tensor:
        first: Tensor = self.c(self.a(x).relu())
        return first if skip else first + self.d(self.b(x).relu())


def test_layers_that_some_passes_leave_out_wait_for_theirs() -> None:
    torch.manual_seed(0)
    model = Branching()
    optimizer = adam(model)
    grower = ng.Grower(model, optimizer, "north-random", example=torch.randn(2, 10), buffer=20)
    for i in range(4):
        optimizer.zero_grad()
        model(torch.randn(20, 10), skip=i < 3).square().mean().backward()
        optimizer.step()
        grower.step()
        assert (grower.widths["b"] > 6) == (i == 3)
    assert grower.widths["a"] > 6


# --- the same every time -----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*PAPER, "north-integrated"])
def test_same_seed_same_growth_and_the_global_random_state_is_left_alone(name: str) -> None:
    weights = []
    for disturbance in (1, 2):
        model = mlp(10, 6, 5, 3)
        torch.manual_seed(disturbance)
        grower = ng.Grower(model, adam(model), eager(name), buffer=30, max_width=12, seed=7)
        before = torch.get_rng_state()
        train(model, grower, 5, (30, 10))
        assert torch.equal(torch.get_rng_state(), before)
        weights.append(model.state_dict())
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    other = mlp(10, 6, 5, 3)
    grower = ng.Grower(other, adam(other), eager(name), buffer=30, max_width=12, seed=8)
    train(other, grower, 5, (30, 10))
    if name != "gradmax":  # which has nothing random
        assert any(
            weights[0][key].shape != tensor.shape or not torch.equal(weights[0][key], tensor)
            for key, tensor in other.state_dict().items()
        )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("with_example", [True, False])
@pytest.mark.parametrize("name", [*PAPER, "north-integrated"])
@pytest.mark.parametrize("network", ["mlp", "vgg"])
def test_a_resumed_run_is_bit_identical(name: str, network: str, with_example: bool) -> None:
    if (name, network) == ("north-pre", "vgg"):
        pytest.skip("not for convolutions")
    shape = (12, 10) if network == "mlp" else (12, 2, 8, 8)

    def begin() -> tuple[nn.Module, torch.optim.Optimizer, ng.Grower]:
        model = mlp(10, 6, 5, 3) if network == "mlp" else small_vgg()
        optimizer = adam(model)
        example = torch.randn(2, *shape[1:]) if with_example else None
        options: dict[str, Any] = {"buffer": 20, "max_width": 12, "every": 2, "example": example}
        return model, optimizer, ng.Grower(model, optimizer, eager(name), **options)

    model, optimizer, grower = begin()
    train(model, grower, 5, shape, seed=1)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "grower": grower.state_dict()}, file)
    train(model, grower, 5, shape, seed=2)

    file.seek(0)
    state = torch.load(file, weights_only=True)
    again, optimizer2, grower2 = begin()
    grower2.load_state_dict(state["grower"])
    again.load_state_dict(state["model"])
    optimizer2.load_state_dict(state["optimizer"])
    train(again, grower2, 5, shape, seed=2)
    assert grower2.widths == grower.widths
    assert len(grower.history) > 0
    for key, tensor in model.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[key]), key
    untimed = [[(e.step, e.width, e.before, e.after, e.metric) for e in g.history] for g in (grower, grower2)]
    assert untimed[0] == untimed[1]
    assert grower.history.observations == grower2.history.observations


@pytest.mark.parametrize(("name", "since"), [("firefly", ", apart=1.0"), ("gradmax", "pairs=True")])
def test_a_state_from_before_neurons_parted_goes_on_with_the_present_strategy(name: str, since: str) -> None:
    model = mlp(10, 6, 3)
    grower = ng.Grower(model, adam(model), name, example=torch.randn(2, 10))
    state = grower.state_dict()
    earlier = state["strategy"].replace(since, "")
    assert earlier != state["strategy"]
    _load(mlp(10, 6, 3), name, {**state, "strategy": earlier})


def test_a_state_of_something_else_is_refused() -> None:
    model, other = mlp(10, 6, 3), mlp(10, 6, 5, 3)
    grower = ng.Grower(model, adam(model), "north-random", example=torch.randn(2, 10))
    state = grower.state_dict()
    with pytest.raises(ValueError, match="another strategy"):
        _load(mlp(10, 6, 3), "north-weight", state)
    with pytest.raises(ValueError, match="other widths"):
        _load(other, "north-random", state)


def _load(model: nn.Module, strategy: str, state: dict[str, Any]) -> None:
    ng.Grower(model, adam(model), strategy, example=torch.randn(2, 10)).load_state_dict(state)


# --- nothing left behind -----------------------------------------------------------------------------------


def hooks(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Any]:
    for module in model.modules():
        for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
            yield from getattr(module, kind).values()
    for parameter in model.parameters():
        yield from (parameter._backward_hooks or {}).values()
        yield from (getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values()
    yield from optimizer._optimizer_step_post_hooks.values()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PAPER)
def test_detach_leaves_nothing(name: str) -> None:
    model = mlp(10, 6, 5, 3)
    attributes = [set(vars(module)) for module in model.modules()]
    optimizer = adam(model)
    grower = ng.Grower(model, optimizer, eager(name), buffer=20, max_width=12)
    train(model, grower, 4, (20, 10))
    assert list(hooks(model, optimizer))
    widths = [layer.size for layer in grower.layers]
    grower.detach()
    assert not list(hooks(model, optimizer))
    assert [set(vars(module)) for module in model.modules()] == attributes
    step(model, optimizer, torch.randn(20, 10))
    assert [model[0].out_features, model[2].out_features] == widths


def test_copies_and_pickles_of_a_watched_model_are_not_watched() -> None:
    model = mlp(10, 6, 3)
    grower = ng.Grower(model, adam(model), "north-random", buffer=20)
    train(model, grower, 1, (20, 10))
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        before = len(grower.buffer.calls)
        twin(torch.randn(20, 10)).sum().backward()
        assert len(grower.buffer.calls) == before


@pytest.mark.parametrize("name", ["random", "select", "gradmax"])
def test_an_average_grows_along(name: str) -> None:
    model = mlp(10, 6, 5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    average = torch.optim.swa_utils.AveragedModel(model)
    grower = ng.Grower(model, optimizer, ng.Strategy(always(2), name), ema=average)
    x = torch.randn(20, 10)
    before = average(x).detach()
    train(model, grower, 1, (20, 10))
    torch.testing.assert_close(average(x), before, atol=1e-3, rtol=1e-3)
    average.update_parameters(model)
    with pytest.raises(ValueError, match="changes present neurons"):
        ng.Grower(model, optimizer, "firefly", ema=average)


# --- limits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "expected"), [(9, [9, 9]), (1.5, [9, 7]), ({"0": 8, "2": 2.0}, [8, 10]), ({"0": 7}, [7, 35])]
)
def test_no_width_passes_its_maximum(limit: Any, expected: list[int]) -> None:
    model = mlp(10, 6, 5, 3)
    grower = ng.Grower(model, adam(model), ng.Strategy(always(3)), max_width=limit)
    sizes = train(model, grower, 10, (5, 10))
    assert sizes[-1] == expected


def test_no_more_parameters_than_allowed() -> None:
    model = mlp(10, 6, 5, 4, 3)
    limit = sum(p.numel() for p in model.parameters()) + 100
    grower = ng.Grower(model, adam(model), ng.Strategy(always(2)), max_parameters=limit)
    train(model, grower, 8, (5, 10))
    total = sum(p.numel() for p in model.parameters())
    assert limit - 20 < total <= limit


def test_include_exclude_and_tie_choose_what_grows() -> None:
    for options, names in (
        ({"include": ["2"]}, {"2"}),
        ({"exclude": ["0", "4"]}, {"2"}),
        ({"exclude": ["6"]}, {"0", "2", "4"}),  # a width that cannot grow anyway
        ({"include": ["[02]"], "exclude": ["2"]}, {"0"}),
        ({}, {"0", "2", "4"}),
    ):
        model = mlp(10, 6, 6, 6, 3)
        assert set(_attached(model, **options).widths) == names
    model = mlp(10, 6, 6, 6, 3)
    grower = _attached(model, tie=[["0", "2"]])
    train(model, grower, 2, (5, 10))
    assert model[0].out_features == model[2].out_features == 8


def _attached(model: nn.Module, **options: Any) -> ng.Grower:
    return ng.Grower(model, adam(model), ng.Strategy(always(1)), example=torch.randn(2, 10), **options)


# --- one's own ---------------------------------------------------------------------------------------------


def test_a_trigger_of_ones_own_sees_activations_and_gradients() -> None:
    seen = []

    def alive(layer: ng.Layer) -> int:
        seen.append((layer.activations.shape, layer.auxiliary_gradient().shape, layer.weight.shape))
        return int((layer.activations > 0).any(1).all())

    model = mlp(10, 6, 3)
    grower = ng.Grower(model, adam(model), ng.Strategy(alive), max_width=7)
    train(model, grower, 3, (20, 10))
    assert seen[0] == ((6, 20), (3, 10), (6, 10))
    assert grower.widths == {"0": 7}


def test_an_initialization_of_ones_own_gives_the_weights() -> None:
    def ones(layer: ng.Layer, count: int, generator: torch.Generator) -> ng.Neurons:
        new = torch.ones(count, 1, 10)
        return ng.Neurons(count, {("0.weight", 0): layer.values(layer.producer, new)})

    model = mlp(10, 6, 3)
    grower = ng.Grower(model, adam(model), ng.Strategy(always(2), ones))
    train(model, grower, 1, (20, 10))
    assert torch.equal(model[0].weight[6:], torch.ones(2, 10))
    assert not model[2].weight[:, 6:].any()


def test_a_strategy_of_ones_own_has_a_name() -> None:
    ng.strategies.register("two-each-time", lambda: ng.Strategy(always(2)))
    try:
        model = mlp(10, 6, 3)
        grower = ng.Grower(model, adam(model), "two-each-time")
        train(model, grower, 2, (20, 10))
        assert grower.widths == {"0": 10}
        with pytest.raises(ValueError, match="'nest' is a built-in strategy"):
            ng.strategies.register("nest", lambda: ng.Strategy(always(2)))
    finally:
        del STRATEGIES["two-each-time"]


def test_history_says_what_grew_when_and_why() -> None:
    model = mlp(10, 6, 5, 3)
    grower = ng.Grower(model, adam(model), "north-random", buffer=20, max_width=8)
    train(model, grower, 4, (20, 10))
    first = next(iter(grower.history))
    assert (first.step, first.width, first.before) == (1, "0", 6)
    assert first.metric is not None
    assert first.threshold is not None
    assert first.metric > first.threshold
    assert str(first).startswith("step 1: 0 6 -> ")
    assert [event.width for event in grower.history.of("2")] == ["2"] * len(grower.history.of("2"))
    assert grower.history.latest["0"].count >= 1
    assert str(ng.History()) == "no growth yet"


# --- bad input ---------------------------------------------------------------------------------------------


def test_unknown_strategies_are_listed() -> None:
    model = mlp(10, 6, 3)
    with pytest.raises(ValueError, match=r"unknown strategy 'north-selct' \(did you mean 'north-select'\?\).*gradmax"):
        ng.Grower(model, adam(model), "north-selct")
    with pytest.raises(ValueError, match="unknown initialization 'rand'"):
        ng.Strategy(always(1), "rand")
    with pytest.raises(TypeError, match="a trigger is a function"):
        ng.Strategy("activation")  # type: ignore[arg-type]


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(10, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(x).relu())
        return out


def test_gradmax_behind_a_plain_relu_names_it_and_the_remedy() -> None:
    model = mlp(10, 6, 3, activation=nn.ReLU)
    with pytest.raises(ValueError, match=r"ReLU '1' between '0' and '2' has derivative 0.*replace_relu"):
        ng.Grower(model, adam(model), "gradmax", example=torch.randn(2, 10))
    assert not list(hooks(model, adam(model)))
    ng.nn.replace_relu(model)
    ng.Grower(model, adam(model), "gradmax", example=torch.randn(2, 10))
    functional = Functional()
    with pytest.raises(ValueError, match="between 'first' and 'second' has derivative 0"):
        ng.Grower(functional, adam(functional), "gradmax", example=torch.randn(2, 10))
    sigmoid = mlp(10, 6, 3, activation=nn.Sigmoid)
    with pytest.raises(ValueError, match="not 0 at 0"):
        ng.Grower(sigmoid, adam(sigmoid), "gradmax", example=torch.randn(2, 10))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_width": 5}, "max_width of 0 is 5, below its current size of 6"),
        ({"max_width": 0.5}, "below its current size"),
        ({"max_width": {"1": 9}}, "no width is called '1'"),
        ({"max_width": "9"}, "expected an int"),
        ({"max_parameters": 3}, "already has 87 parameters"),
        ({"every": 0}, "every: expected a positive integer"),
        ({"buffer": -1}, "buffer: expected a positive integer"),
        ({"include": ["x"]}, "include: 'x' matches no width; growable widths: 0"),
        ({"include": ["0", "00"]}, "include: '00' matches no width; did you mean '0'"),
        ({"exclude": ["00"]}, "exclude: '00' matches no width; did you mean '0'"),
        ({"exclude": ["0"]}, "leave no width to grow; growable widths: 0"),
        ({"include": "0"}, "expected a list of patterns"),
    ],
)
def test_bad_options_are_refused_before_anything_is_touched(options: dict[str, Any], message: str) -> None:
    model = mlp(10, 6, 3)
    optimizer = adam(model)
    with pytest.raises((ValueError, TypeError, KeyError), match=message):
        ng.Grower(model, optimizer, "north-random", example=torch.randn(2, 10), **options)
    assert not list(hooks(model, optimizer))


class Wrapping(torch.optim.Optimizer):
    """An optimizer around another one, as some libraries make them."""

    def __init__(self, inner: torch.optim.Optimizer):
        self.inner = inner

    @property
    def param_groups(self) -> Any:
        return self.inner.param_groups


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m: ([adam(m), Wrapping(adam(m))], {}), "Wrapping has no step hooks.* pass that one"),
        (lambda m: (adam(m), {"example": torch.randn(2, 7)}), "the model rejects the example"),
        (lambda m: (adam(m), {"ema": mlp(10, 7, 3)}), r"no average of this model: 0\.weight .* \(7, 10\) there"),
        (lambda m: (adam(m), {"ema": nn.Linear(10, 3)}), r"no average of this model: 0\.weight .* is not there"),
        (lambda m: (adam(m), {"ema": {"0.weight": m[0].weight}}), "ema: expected a module"),
        (lambda m: (torch.optim.LBFGS(m.parameters()), {}), "use another optimizer, such as Adam, while"),
    ],
)  # fmt: skip
def test_a_constructor_that_fails_leaves_no_hooks(make: Any, message: str) -> None:
    model = mlp(10, 6, 3)
    optimizers, options = make(model)
    with pytest.raises((ValueError, TypeError), match=message):
        ng.Grower(model, optimizers, "north-random", **options)
    for optimizer in optimizers if isinstance(optimizers, list) else [optimizers]:
        if not isinstance(optimizer, Wrapping):
            assert not list(hooks(model, optimizer))


def test_hooks_are_gone_when_a_later_optimizer_takes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlp(10, 6, 3)
    first, second = adam(model), adam(model)
    monkeypatch.setattr(second, "register_step_post_hook", None)
    with pytest.raises(TypeError, match="not callable"):
        ng.Grower(model, [first, second], "north-random")
    assert not list(hooks(model, first))


def test_a_wrapper_that_keeps_copies_of_parameters_is_refused() -> None:
    kind = nn.parallel.DistributedDataParallel
    wrapped: Any = kind.__new__(kind)  # without a process group
    nn.Module.__init__(wrapped)
    wrapped.module, wrapped.mixed_precision = mlp(10, 6, 3), object()
    with pytest.raises(ValueError, match="mixed_precision= keeps copies of parameters"):
        ng.Grower(wrapped, adam(wrapped.module))
    assert not wrapped.module._forward_hooks


def test_a_model_wrapped_for_several_devices_is_named_with_what_to_pass() -> None:
    model, x = mlp(10, 6, 3), torch.randn(2, 10)
    wrapped = nn.DataParallel(model)
    for act in (
        lambda: ng.widths(wrapped, x),
        lambda: ng.grow(wrapped, "0", 1, example=x),
        lambda: ng.shrink(wrapped, "0", [1], example=x),
        lambda: ng.Grower(wrapped, adam(model)),
    ):
        with pytest.raises(TypeError, match=r"wrapped in DataParallel: pass the model inside, its \.module"):
            act()


@pytest.mark.parametrize("name", ["north-random", "north-select", "gradmax"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_none_stop_growth_for_a_step_with_one_warning(name: str, bad: float) -> None:
    model = mlp(10, 6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    grower = ng.Grower(model, optimizer, eager(name), buffer=20)
    healthy = copy.deepcopy(model.state_dict())
    with pytest.warns(UserWarning, match="of 0 are not finite") as caught:  # noqa: PT031
        for _ in range(3):
            step(model, optimizer, torch.full((20, 10), bad))
            assert grower.step() == []
    assert len([w for w in caught if "not finite" in str(w.message)]) == 1
    model.load_state_dict(healthy)
    train(model, grower, 2, (20, 10))
    assert grower.widths["0"] > 6


def test_steps_without_anything_to_look_at_are_named() -> None:
    model = mlp(10, 6, 3)
    optimizer = adam(model)
    grower = ng.Grower(model, optimizer, "north-random", buffer=20)
    with pytest.warns(UserWarning, match="has not run in training mode"):
        assert grower.step() == []
    train(model, grower, 1, (20, 10))
    before = grower.widths
    optimizer.step()
    with pytest.warns(UserWarning, match="has not run in training mode with gradients since"):
        assert grower.step() == []
    model(torch.randn(20, 10))
    optimizer.step()
    with pytest.warns(UserWarning, match="without a backward pass through the model"):
        assert grower.step() == []
    assert grower.widths == before


def test_nest_on_convolutions_asks_for_the_loss() -> None:
    model = small_vgg()
    grower = ng.Grower(model, adam(model), "nest")
    step(model, grower.optimizers[0], torch.randn(4, 2, 8, 8))
    with pytest.raises(TypeError, match=r"grower.step\(closure\)"):
        grower.step()


def test_nest_takes_closures_that_go_backward() -> None:
    model = small_vgg()
    grower = ng.Grower(model, adam(model), eager("nest"), max_width=2.0)
    x = torch.randn(4, 2, 8, 8)

    def closure() -> Tensor:
        loss = model(x).sin().square().mean()
        loss.backward()
        return loss.detach()

    grower.optimizers[0].zero_grad()
    closure()
    grower.optimizers[0].step()
    before = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    events = grower.step(closure)
    assert events
    assert all(
        a.sum() == pytest.approx(float(b.grad.sum()), abs=1e-5) for a, b in zip(before, model.parameters(), strict=True)
    )


def test_few_samples_are_warned_about_once() -> None:
    model = mlp(10, 30, 3)
    grower = ng.Grower(model, adam(model), "north-random", buffer=20)
    with pytest.warns(UserWarning, match=r"more neurons than samples.*0 \(30 on 20\)") as caught:
        train(model, grower, 3, (20, 10))
    assert len(caught) == 1


def test_mixed_precision_grows() -> None:
    for name in PAPER:
        model = mlp(10, 6, 3) if name != "north-random" else mlp(10, 6, 6, 3)
        optimizer = adam(model)
        grower = ng.Grower(model, optimizer, eager(name), buffer=20, max_width=9)
        for _ in range(3):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model(torch.randn(20, 10)).float().sin().square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            grower.step()
        assert grower.widths["0"] > 6


class Keywords(Functional):
    def forward(self, x: Tensor, *, factor: Tensor, **more: Tensor) -> Tensor:
        return super().forward(x * factor + more["shift"])


def test_keyword_arguments_are_understood() -> None:
    model = Keywords()
    optimizer = adam(model)
    grower = ng.Grower(model, optimizer, "north-select", buffer=20, max_width=8)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(20, 10), factor=torch.ones(()), shift=torch.zeros(10)).square().mean().backward()
        optimizer.step()
        grower.step()
    assert grower.widths == {"first": 8}


def test_checkpointed_passes_count_once() -> None:
    model = mlp(10, 6, 3)
    optimizer = adam(model)
    grower = ng.Grower(model, optimizer, "north-random", buffer=40, max_width=8)
    for _ in range(3):
        optimizer.zero_grad()
        torch.utils.checkpoint.checkpoint(model, torch.randn(20, 10), use_reentrant=False).square().mean().backward()
        optimizer.step()
        assert grower._recorder.since.forward == 1
        grower.step()
    assert grower.widths == {"0": 8}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["north-random", "north-select", "north-integrated"])
def test_a_bad_batch_before_anything_is_measured_only_costs_time(name: str) -> None:
    model = mlp(10, 6, 3)
    optimizer = adam(model)
    grower = ng.Grower(model, optimizer, name, buffer=40)
    step(model, optimizer, torch.randn(5, 10))
    grower.step()
    model(torch.full((5, 10), float("nan"))).sum().backward()
    grower.step()  # skipped
    state = grower.state_dict()
    train(model, grower, 4, (20, 10))
    assert grower.widths["0"] > 6
    fresh = mlp(10, 6, 3)
    again = ng.Grower(fresh, adam(fresh), name, buffer=40)
    again.load_state_dict(state)
    assert again.widths == {"0": 6}


def test_widths_can_be_asked_for_while_a_grower_watches() -> None:
    model = mlp(10, 6, 5, 3)
    grower = ng.Grower(model, adam(model), "north-random", buffer=40)
    train(model, grower, 1, (20, 10))
    calls = len(grower.buffer.calls)
    assert [width.name for width in ng.widths(model, torch.randn(2, 10)).growable] == ["0", "2"]
    assert len(grower.buffer.calls) == calls
    assert grower._recorder.since.forward == 0


@pytest.mark.parametrize("name", ["gradmax", "firefly"])
def test_gradients_of_other_sizes_are_not_used(name: str) -> None:
    model = mlp(10, 6, 5, 3)
    optimizer = adam(model)
    grower = ng.Grower(model, optimizer, ng.Strategy(always(1), name), example=torch.randn(2, 10))
    step(model, optimizer, torch.randn(20, 10))
    ng.grow(model, "0", 2, optimizer=optimizer)
    with pytest.warns(UserWarning, match="no gradient has reached it|widths resized"):
        grower.step()
    train(model, grower, 2, (20, 10))
    assert grower.widths["0"] > 8


def test_a_further_pass_before_the_step_does_not_take_the_gradients_away() -> None:
    model = mlp(10, 6, 3)
    optimizer = adam(model)
    grower = ng.Grower(model, optimizer, eager("gradmax"), max_width=9)
    for _ in range(3):
        step(model, optimizer, torch.randn(20, 10))
        model(torch.randn(20, 10)).sum().item()
        grower.step()
    assert grower.widths["0"] > 6


def one_at_a_time(layer: ng.Layer) -> int:
    return 1


class OneMore(ng.triggers.Trigger):
    def __init__(self, count: int):
        self.count = count

    def __call__(self, layer: ng.Layer) -> int:
        return self.count


def test_a_strategy_of_plain_functions_is_the_same_in_every_process() -> None:
    code = (
        "import tests.library.test_grower as t; "
        "print(t.ng.Strategy(t.one_at_a_time), t.ng.Strategy(t.OneMore(2)), sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines() == [str(ng.Strategy(one_at_a_time)), str(ng.Strategy(OneMore(2)))]
    assert "one_at_a_time" in done.stdout and "OneMore" in done.stdout


class Centred(nn.Module):
    """Calls its layers with constants before it calls them with its input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        middle = self.second(self.first(torch.eye(4)).tanh()).detach().mean(0)
        return self.second(self.first(x).tanh()) - middle


def test_layers_are_watched_on_data_if_they_are_first_called_with_constants() -> None:
    model, x, seen = Centred(), torch.randn(16, 4), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def look(layer: ng.Layer) -> int:
        seen.append((layer.activations, layer.has_gradients))
        return 0

    grower = ng.Grower(model, optimizer, ng.Strategy(look, "random"))
    model(x).square().mean().backward()
    optimizer.step()
    grower.step()
    assert torch.equal(seen[0][0], model.first(x).tanh().detach().T) and seen[0][1]
