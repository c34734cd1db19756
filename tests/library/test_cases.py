"""Every promise of widths and surgery, on every case."""

from __future__ import annotations

import pytest
import torch
from torch.utils._pytree import tree_map_only

import neurogenesis as ng
from tests.cases import CASES, Case
from tests.promises import check_all


@pytest.mark.parametrize("case", CASES, ids=str)
def test_widths_are_found(case: Case) -> None:
    found = ng.widths(case.make(), case.example, **case.options)
    assert {width.name: width.size for width in found.growable} == case.growable
    for name, reason in case.fixed.items():
        assert not found[name].growable
        assert reason in (found[name].reason or "")
    for width in found.growable:
        assert width.producers
        assert width.consumers


@pytest.mark.parametrize("case", CASES, ids=str)
def test_growth_keeps_outputs_and_can_be_undone(case: Case) -> None:
    example = tree_map_only(torch.Tensor, lambda t: t.double() if t.is_floating_point() else t, case.example)
    found = check_all(case.make().double(), example, 1e-10, options=case.options)
    assert {width.name for width in found.growable} == set(case.growable)
