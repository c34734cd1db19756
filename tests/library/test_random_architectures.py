"""Every promise of widths and surgery, on random networks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings

from tests.architectures import HEADS, SPECS, Network, Spec
from tests.promises import check_all


def check(specs: list[Spec], head: tuple[str, list[int]]) -> None:
    torch.manual_seed(0)
    model = Network(specs, head).double()
    found = check_all(model, torch.randn(5, 3, 4, 4, dtype=torch.float64), tolerance=1e-8)
    # Between the linear layers of the head nothing can forbid growth.
    assert [found[f"head.{2 * number}"].growable for number in range(len(head[1]))] == [True] * len(head[1])


@settings(max_examples=60)
@given(specs=SPECS, head=HEADS)
def test_growth_keeps_outputs_and_can_be_undone(specs: list[Spec], head: tuple[str, list[int]]) -> None:
    check(specs, head)


@pytest.mark.long
@settings(max_examples=2000, derandomize=False)
@given(specs=SPECS, head=HEADS)
def test_growth_keeps_outputs_on_thousands_of_networks(specs: list[Spec], head: tuple[str, list[int]]) -> None:
    check(specs, head)
