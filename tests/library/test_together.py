"""Fits that are recorded together, against one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from neurogenesis.candidates.looks import Pass
from neurogenesis.candidates.record import Record
from neurogenesis.candidates.together import can_be_together, recorded_together
from neurogenesis.passes.processes import ALONE, summed
from neurogenesis.passes.samples import mixed

Sizes = Sequence[Sequence[Sequence[int]]]
"""Rows of the passes of each step of each group."""

SIZES: dict[str, Sizes] = {
    "one size": [[[32], [32], [32]]] * 3,
    "several sizes": [[[32], [32], [30]], [[40, 50]], [[100]]],
    "large": [[[630]]] * 2,
}


def groups_of(sizes: Sizes, dtype: torch.dtype = torch.float32) -> list[list[list[Pass]]]:
    def new(rows: int) -> Pass:
        H, h, D = (torch.randn(rows, columns).to(dtype) for columns in (4, 3, 6))
        return Pass(H + 1, h + H[:, :1], 3 * D, mixed(torch.randint(0, 300, (rows,))))

    torch.manual_seed(0)
    result = [[[new(rows) for rows in step] for step in group] for group in sizes]
    result[-1][-1] = [each._replace(D=torch.zeros_like(each.D)) for each in result[-1][-1]]
    return result


@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_groups_that_are_recorded_together_are_as_one_after_the_other(kind: str, dtype: torch.dtype) -> None:
    consumer, groups = nn.Linear(4, 6).to(dtype), groups_of(SIZES[kind], dtype)
    assert can_be_together(consumer, groups)
    record = expected = Record()
    for part in (groups[:1], groups):
        record = recorded_together(record, consumer, part)
        for group in part:
            (expected,) = summed([expected.after(consumer, group)], ALONE)
    assert (record.steps, record.items, record.new_rows) == (expected.steps, expected.items, expected.new_rows)
    for name in ("sums", "counts", "energy", "variance", "coefficients"):
        assert_close(getattr(record, name), getattr(expected, name))
    assert record.products is not None and expected.products is not None
    for name in ("centre", "count", "squares"):
        assert_close(getattr(record.products, name), getattr(expected.products, name))


def assert_close(found: Tensor, expected: Tensor) -> None:
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("consumer", "sizes"),
    [(nn.Conv1d(4, 6, 1), [[[32]]]), (nn.Linear(4, 6), [[[32]], [[20]]]), (nn.Linear(4, 6), [[[32]], [[2000]]])],
    ids=["no linear layer", "too few rows for a fit", "more rows than a fit needs"],
)
def test_other_groups_are_recorded_one_after_the_other(consumer: nn.Module, sizes: Sizes) -> None:
    assert not can_be_together(consumer, groups_of(sizes))


def test_rows_of_unknown_samples_are_not_recorded_together() -> None:
    ((step,),) = groups_of([[[32]]])
    assert not can_be_together(nn.Linear(4, 6), [[[each._replace(samples=None) for each in step]]])
    assert not can_be_together(nn.Linear(4, 6), [[]])
