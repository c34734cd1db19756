"""All of a growth is one plan: printed, checked, done wholly or not at all, and taken back when a state is loaded."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

import neurogenesis as ng
from neurogenesis import initializations
from tests.growing import always, failing_edits, mlp, step
from tests.promises import assert_same, everything

X = torch.randn(20, 10, generator=torch.Generator().manual_seed(1))


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-2)


def changing(changes: dict[str, Tensor]) -> Callable[..., ng.Neurons]:
    """An initialization of usual neurons that changes present ones."""
    return lambda layer, count, generator: ng.Neurons(count, changes=changes)


def two_rows() -> Tensor:
    change = torch.zeros(8, 10)
    change[[3, 7]] = 0.5
    return change


def test_changes_of_present_neurons_are_printed_with_the_plan() -> None:
    model = mlp(10, 8, 3)
    plan = ng.plan_growth(model, "0", 1, initialization=changing({"0.weight": two_rows()}), example=X)
    assert str(plan).splitlines() == [
        "grow 0 from 8 to 9",
        "  0.weight  axis 0  +1 at 8  (producer)",
        "  0.bias  axis 0  +1 at 8  (producer)",
        "  2.weight  axis 1  +1 at 8  (consumer)",
        "  0.weight  axis 0  changed at 3, 7  (producer)",
        "  0.out_features: 8 -> 9",
        "  2.in_features: 8 -> 9",
    ]


def test_changes_that_change_nothing_are_no_part_of_the_plan() -> None:
    model = mlp(10, 8, 3)
    plan = ng.plan_growth(model, "0", 1, initialization=changing({"0.weight": torch.zeros(8, 10)}), example=X)
    assert "changed" not in str(plan)


def test_changes_are_made_on_the_model_and_on_its_average() -> None:
    model = mlp(10, 8, 3)
    average = AveragedModel(model)
    before = model[0].weight.detach().clone()
    ng.grow(model, "0", 1, initialization=changing({"0.weight": two_rows()}), ema=average, example=X)
    for grown in (model, average.module):
        assert torch.equal(grown[0].weight[:8], before + two_rows())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"0.weight": torch.full((8, 10), torch.nan)}, r"changes of 0\.weight: the values are not all finite"),
        ({"0.weight": torch.ones(9, 10)}, r"changes of 0\.weight: expected shape \(8, 10\), got \(9, 10\)"),
        ({"2.bias": torch.ones(3)}, r"changes of 0: '2\.bias' does not belong to this width"),
    ],
)
def test_bad_changes_are_refused_before_anything_is_touched(changes: dict[str, Tensor], message: str) -> None:
    model = mlp(10, 8, 3)
    optimizer = adam(model)
    step(model, optimizer, X)
    before = everything(model, optimizer)
    with pytest.raises(ValueError, match=message):
        ng.grow(model, "0", 1, initialization=changing(changes), optimizer=optimizer, example=X)
    assert_same(before, everything(model, optimizer))
    grower = ng.Grower(model, optimizer, ng.Strategy(always(1), changing(changes)), example=X)
    step(model, optimizer, X)
    before = everything(model, optimizer)
    with pytest.raises(ValueError, match=message):
        grower.step()
    assert_same(before, everything(model, optimizer))


def test_a_plan_with_changes_does_not_fit_a_model_that_has_grown_since() -> None:
    model = mlp(10, 8, 7, 3)
    change = torch.zeros(7, 8)
    change[2] = 1
    plan = ng.plan_growth(model, "2", 1, initialization=changing({"2.weight": change}), example=X)
    ng.grow(model, "0", 1)
    before = everything(model)
    with pytest.raises(ValueError, match=r"2\.weight has shape \(7, 9\), which its changes do not fit"):
        plan.apply(model)
    assert_same(before, everything(model))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("at", [0, 3, 8, 12, 14, 19])
def test_when_one_of_several_widths_cannot_grow_none_does(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlp(10, 6, 5, 3)
    optimizer = adam(model)
    strategy = ng.Strategy(always(2), initializations.Firefly(candidates=10))
    grower = ng.Grower(model, optimizer, strategy, example=X)
    step(model, optimizer, X)
    before, objects = everything(model, optimizer), list(model.parameters())
    failing_edits(monkeypatch, at)
    with pytest.raises(MemoryError):
        grower.step()
    monkeypatch.undo()
    assert_same(before, everything(model, optimizer))
    assert all(now is then for now, then in zip(model.parameters(), objects, strict=True))
    assert grower.widths == {"0": 6, "2": 5}
    assert len(grower.history) == 0
    for _ in range(2):
        step(model, optimizer, X)
        grower.step()
    assert grower.widths == {"0": 10, "2": 9}
    assert len(grower.history) == 4


def test_an_average_is_taken_back_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlp(10, 6, 5, 3)
    optimizer, average = adam(model), AveragedModel(model)

    def second_fails(layer: ng.Layer, count: int, generator: torch.Generator) -> ng.Neurons:
        return ng.Neurons(count, {("4.weight", 1): torch.full((3, count), torch.nan)} if layer.name == "2" else {})

    grower = ng.Grower(model, optimizer, ng.Strategy(always(2), second_fails), ema=average)
    step(model, optimizer, X)
    before = everything(model, optimizer, average)
    with pytest.raises(ValueError, match=r"4\.weight: the new values are not all finite"):
        grower.step()
    assert_same(before, everything(model, optimizer, average))
    assert len(grower.history) == 0


# --- back to a saved state ---------------------------------------------------------------------------------


def train(model: nn.Module, grower: ng.Grower, steps: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        step(model, grower.optimizers[0], torch.randn(20, 10, generator=generator))
        if grower.ema is not None:
            grower.ema.update_parameters(model)  # type: ignore[operator]
        grower.step()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["north-random", "north-select", "north-integrated", "gradmax", "firefly", "nest"])
def test_a_model_that_has_grown_on_goes_back_to_a_saved_state(name: str) -> None:
    strategy = ng.Strategy(_often(name), _few(name))
    model = mlp(10, 6, 5, 3)
    optimizer, average = adam(model), None if name == "firefly" else AveragedModel(model)
    grower = ng.Grower(model, optimizer, strategy, ema=average, buffer=30, max_width=16, max_parameters=500)
    parts = {"model": model, "optimizer": optimizer, "average": average, "grower": grower}
    kept = {key: part for key, part in parts.items() if part is not None}
    train(model, grower, 4, seed=1)
    saved, file = dict(grower.widths), io.BytesIO()
    torch.save({key: part.state_dict() for key, part in kept.items()}, file)
    train(model, grower, 4, seed=2)
    expected, sizes = everything(model, optimizer), dict(grower.widths)
    events = [(event.step, event.width, event.after) for event in grower.history]
    assert sizes != saved

    train(model, grower, 3, seed=3)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    grower.load_state_dict(state["grower"])
    assert grower.widths == saved
    for key in kept:
        if key != "grower":
            kept[key].load_state_dict(state[key])
    train(model, grower, 4, seed=2)
    assert grower.widths == sizes
    assert_same(expected, everything(model, optimizer))
    assert [(event.step, event.width, event.after) for event in grower.history] == events


def _often(name: str) -> Any:
    return always(1) if name in ("gradmax", "firefly", "nest") else ng.strategies.strategy(name).trigger


def _few(name: str) -> Any:
    few = {"north-select": initializations.Select(candidates=10), "firefly": initializations.Firefly(candidates=10)}
    return few.get(name) or ng.strategies.strategy(name).initialization


def test_a_state_that_cannot_be_loaded_leaves_the_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlp(10, 6, 5, 3)
    optimizer = adam(model)
    grower = ng.Grower(model, optimizer, ng.Strategy(always(1)), example=X)
    state = grower.state_dict()
    train(model, grower, 2, seed=1)
    before = everything(model, optimizer)
    failing_edits(monkeypatch, 12)
    with pytest.raises(MemoryError):
        grower.load_state_dict(state)
    monkeypatch.undo()
    assert_same(before, everything(model, optimizer))
    assert grower.widths == {"0": 8, "2": 7}
