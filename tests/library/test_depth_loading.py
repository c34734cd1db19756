"""States of another depth are loaded, and training resumes bit by bit."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

import neurogenesis as ng
from tests.library.test_depth import by_case, example, made, outputs, steps
from tests.stacks import CASES, Case, Language, perceptron

TEXT = CASES[0].example


def equal(a: nn.Module, b: nn.Module) -> bool:
    one, other = a.state_dict(), b.state_dict()
    return list(one) == list(other) and all(torch.equal(own, other[name]) for name, own in one.items())


@by_case
@pytest.mark.parametrize("shallower", [False, True])
def test_a_state_of_another_depth_loads_into_a_fresh_model(case: Case, shallower: bool) -> None:
    model, fresh = made(case), case.make().double()
    ng.deepen(model, case.stack, 2, example=example(case))
    if shallower:
        ng.load_state_dict(fresh, model.state_dict())
        ng.remove_blocks(
            model, case.stack, [0, 2] if len(ng.stacks(model, example(case))[case.stack].paths) > 3 else [0]
        )
    ng.load_state_dict(fresh, model.state_dict())
    assert equal(model, fresh)
    assert all(
        torch.equal(a, b) for a, b in zip(outputs(model, example(case)), outputs(fresh, example(case)), strict=True)
    )


def grown(kind: Any = torch.optim.AdamW) -> tuple[nn.Module, Any, nn.Module]:
    torch.manual_seed(0)
    model = Language(2, dropout=0.1)
    optimizer, average = kind(model.parameters(), lr=0.01), AveragedModel(model)
    steps(model, optimizer, TEXT)
    average.update_parameters(model)
    ng.deepen(model, "blocks", 2, at=[0, 0], optimizer=optimizer, ema=average, example=TEXT)
    steps(model, optimizer, TEXT)
    average.update_parameters(model)
    ng.deepen(model, "blocks", 1, at=[1], optimizer=optimizer, ema=average)
    steps(model, optimizer, TEXT, 1)
    return model, optimizer, average


def test_training_resumes_bit_by_bit_in_a_fresh_model() -> None:
    model, optimizer, average = grown()
    file = io.BytesIO()
    ng.save(file, model, optimizer, ema=average)
    file.seek(0)
    again = Language(2, dropout=0.1)
    other, copied = torch.optim.AdamW(again.parameters(), lr=0.01), AveragedModel(again)
    ng.load(file, again, other, ema=copied)
    for own, its, mean in ((model, optimizer, average), (again, other, copied)):
        torch.manual_seed(1)
        steps(own, its, TEXT, 3)
        mean.update_parameters(own)
    assert equal(model, again) and equal(average, copied)
    assert [block.index for block in again.blocks] == [0, 1, 2, 3, 4]


def test_settings_that_differ_from_block_to_block_are_those_of_the_copied_ones() -> None:
    def make() -> nn.Module:
        model = Language(3)
        for number, block in enumerate(model.blocks):
            block.mlp[3].p = 0.1 * number
        return model

    model, fresh = make(), make()
    ng.deepen(model, "blocks", 2, at=[0, 1], example=TEXT)
    file = io.BytesIO()
    ng.save(file, model)
    file.seek(0)
    ng.load(file, fresh)
    assert [block.mlp[3].p for block in fresh.blocks] == [0, 0, 0.1, 0.1, 0.2]


def test_going_back_to_a_snapshot_removes_blocks() -> None:
    model = Language(2)
    optimizer = torch.optim.Adam(model.parameters())
    steps(model, optimizer, TEXT)
    best, state = ng.snapshot(model, optimizer), copy.deepcopy(model.state_dict())
    ng.deepen(model, "blocks", 2, optimizer=optimizer, example=TEXT)
    steps(model, optimizer, TEXT)
    ng.restore(best, model, optimizer)
    assert list(model.state_dict()) == list(state) and len(optimizer.param_groups[0]["params"]) == len(state)
    assert all(torch.equal(own, state[name]) for name, own in model.state_dict().items())


def test_depth_and_widths_load_together(tmp_path: Path) -> None:
    model, fresh, x = perceptron(), perceptron(), torch.randn(3, 4)
    ng.deepen(model, "2", 2, example=x)
    ng.grow(model, "2", 3, example=x)
    ng.grow(model, "8", 5)
    ng.save(tmp_path / "run.pt", model)
    ng.load(tmp_path / "run.pt", fresh)
    assert equal(model, fresh) and torch.equal(model(x), fresh(x))
    torch.save(model.state_dict(), tmp_path / "state.pt")
    again = perceptron()
    ng.load_state_dict(again, tmp_path / "state.pt", example=x)
    assert equal(model, again)


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    model, fresh = Language(4), Language(2)
    state: dict[str, Tensor] = dict(model.state_dict())
    del state["head.weight"]
    names = list(fresh.state_dict())
    with pytest.raises(ValueError, match=r"it has no head\.weight"):
        ng.load_state_dict(fresh, state)
    assert list(fresh.state_dict()) == names
