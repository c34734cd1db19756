"""Edits of single tensors, against inserting and removing slice by slice."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neurogenesis.structure.edits import Average, Edit, Scale, adjusted, edited, total_factor
from neurogenesis.structure.fills import RANDOM, FanIn, new_values
from tests import oracles


@given(data=st.data(), shape=st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_insertions_and_removals_equal_the_oracle(data: st.DataObject, shape: list[int]) -> None:
    old = torch.randn(shape)
    axis = data.draw(st.integers(0, len(shape) - 1))
    count = data.draw(st.integers(1, 6))
    places = st.lists(st.integers(0, shape[axis] + count - 1), min_size=count, max_size=count, unique=True)
    positions = sorted(data.draw(places))
    values = torch.randn([count if i == axis else n for i, n in enumerate(shape)])
    growth = Edit("w", axis, shape[axis], torch.tensor(positions), values, "producer")
    new = edited(old, [growth])
    assert torch.equal(new, oracles.insert(old, axis, positions, values))
    removal = Edit("w", axis, new.shape[axis], torch.tensor(positions), None, "producer")
    assert torch.equal(edited(new, [removal]), oracles.remove(new, axis, positions))
    assert torch.equal(edited(new, [removal]), old)


@given(data=st.data(), rows=st.integers(1, 5), columns=st.integers(1, 5))
def test_two_axes_at_once_equal_one_after_the_other(data: st.DataObject, rows: int, columns: int) -> None:
    old = torch.randn(rows, columns, 2)
    places = [
        sorted(data.draw(st.lists(st.integers(0, n + 1), min_size=2, max_size=2, unique=True))) for n in (rows, columns)
    ]
    first = Edit("w", 0, rows, torch.tensor(places[0]), torch.randn(2, columns, 2), "producer")
    second = Edit("w", 1, columns, torch.tensor(places[1]), torch.zeros(rows, 2, 2), "consumer")
    expected = oracles.insert(old, 0, places[0], first.values)
    expected = oracles.insert(expected, 1, places[1], torch.zeros(rows + 2, 2, 2))
    assert torch.equal(edited(old, [first, second]), expected)


def test_many_short_runs_on_two_axes_equal_one_after_the_other() -> None:
    """As where a factor grows inside of merged axes."""
    old, places = torch.randn(60, 50, 2), [list(range(0, 3 * n // 2, 3)) for n in (60, 50)]
    first = Edit("w", 0, 60, torch.tensor(places[0]), torch.randn(30, 50, 2), "producer")
    second = Edit("w", 1, 50, torch.tensor(places[1]), torch.zeros(60, 25, 2), "consumer")
    new = edited(old, [first, second])
    expected = oracles.insert(oracles.insert(old, 0, places[0], first.values), 1, places[1], torch.zeros(90, 25, 2))
    assert torch.equal(new, expected)
    removals = [
        Edit("w", axis, new.shape[axis], torch.tensor(places[axis]), None, "producer") for axis in range(old.ndim - 1)
    ]
    assert torch.equal(edited(new, removals), old)


@given(data=st.data(), shape=st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_averages_equal_the_oracle_and_are_removed_without_a_trace(data: st.DataObject, shape: list[int]) -> None:
    old, copy = torch.randn(shape, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)
    axis = data.draw(st.integers(0, len(shape) - 1))
    count = data.draw(st.integers(1, 3))
    places = st.lists(st.integers(0, shape[axis] + count - 1), min_size=count, max_size=count, unique=True)
    positions = sorted(data.draw(places))
    values = oracles.means(old, axis, count)
    average = Average("w", axis, shape[axis], torch.tensor(positions), values, "producer")
    for tensor in (old, copy):  # in a copy they are the means of its own entries
        new = edited(tensor, [average])
        expected = oracles.insert(tensor, axis, positions, oracles.means(tensor, axis, count))
        torch.testing.assert_close(new, expected, rtol=0, atol=1e-15)
        assert torch.equal(edited(new, [average.removal]), tensor)
    assert str(average).endswith("(producer, the mean of the present ones)")


@given(factors=st.lists(st.floats(0.1, 10), min_size=1, max_size=3))
def test_a_tensor_is_scaled_by_all_its_factors_and_back_up_to_rounding(factors: list[float]) -> None:
    old = torch.randn(4, 3, dtype=torch.float64)
    scales = [Scale("w", factor, "") for factor in factors] + [Scale("another", 100.0, "")]
    back = [Scale("w", 1 / factor, "") for factor in factors]
    new = adjusted(old, total_factor(scales, "w")[0])
    expected = old.clone()
    for factor in factors:
        for i in range(4):
            for j in range(3):
                expected[i, j] = expected[i, j].item() * factor
    torch.testing.assert_close(new, expected, rtol=1e-14, atol=0)
    torch.testing.assert_close(adjusted(new, total_factor(back, "w")[0]), old, rtol=1e-14, atol=0)


def test_what_is_added_is_scaled_too_and_the_present_tensor_stays() -> None:
    old, added = torch.randn(4, 3), torch.randn(4, 3)
    before = old.clone()
    torch.testing.assert_close(adjusted(old, 3.0, added), (old + added) * 3)
    assert torch.equal(old, before)


def test_a_tensor_of_integers_cannot_be_scaled() -> None:
    assert Scale("w", 2.0, "").misfit(torch.ones(2)) is None
    assert "int64" in (Scale("w", 2.0, "").misfit(torch.ones(2, dtype=torch.int64)) or "")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_random_values_have_the_mean_norm_of_the_present_ones(dtype: torch.dtype) -> None:
    old = torch.randn(6, 5, 3).to(dtype)
    new = new_values(old, 1, 4, RANDOM, torch.Generator().manual_seed(0))
    assert new.shape == (6, 4, 3)
    assert new.dtype == dtype
    norms = [t.double().movedim(1, 0).flatten(1).norm(dim=1) for t in (old, new)]
    torch.testing.assert_close(norms[1], norms[0].mean().expand(4), rtol=2e-2, atol=0)


def test_random_values_are_balanced_against_what_inputs_have_in_common() -> None:
    common = torch.rand(6, 3)
    new = new_values(torch.randn(5, 6, 3), 0, 40, RANDOM, torch.Generator().manual_seed(0), FanIn(2.0, common))
    torch.testing.assert_close(new.flatten(1).norm(dim=1), torch.full((40,), 2.0))
    cosine = new.flatten(1) @ common.flatten() / common.norm() / 2
    assert cosine.abs().max() < 0.06
    assert cosine.abs().max() > 0  # one input alone, of the strength of all, leaves something


def test_random_values_have_the_length_that_is_given() -> None:
    new = new_values(torch.randn(5, 6, 3), 0, 4, RANDOM, torch.Generator().manual_seed(0), FanIn(7.0))
    torch.testing.assert_close(new.flatten(1).norm(dim=1), torch.full((4,), 7.0))


def test_a_layer_of_zeros_gets_random_values_all_the_same() -> None:
    assert new_values(torch.zeros(6, 5), 0, 2, RANDOM, None).abs().min() > 0


def test_channels_last_tensors_stay_channels_last() -> None:
    old = torch.randn(4, 5, 3, 3).to(memory_format=torch.channels_last)
    edit = Edit("w", 0, 4, torch.tensor([4]), torch.zeros(1, 5, 3, 3), "producer")
    assert edited(old, [edit]).is_contiguous(memory_format=torch.channels_last)
