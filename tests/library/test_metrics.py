"""Metrics against singular values, one decomposition at a time."""

from __future__ import annotations

import math
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import neurogenesis as ng
from neurogenesis import metrics
from tests import oracles


def activations(width: int, samples: int, kind: str) -> Tensor:
    """Activations as layers have them: with dead neurons, with doubles, of low rank, tiny, huge."""
    generator = torch.Generator().manual_seed(width * 1000 + samples)
    H = torch.randn(width, samples, generator=generator)
    if kind == "relu":
        return H.relu()
    if kind == "dead":
        H[::2] = 0
    elif kind == "double":
        H[width // 2 :] = H[: width - width // 2] * 1.5
    elif kind == "low rank":
        rank = max(1, width // 3)
        H = torch.randn(width, rank, generator=generator) @ torch.randn(rank, samples, generator=generator)
    elif kind == "small":
        H *= 0.01 * torch.rand(width, 1, generator=generator) * 2
    elif kind == "decaying":
        H *= torch.logspace(1, -4, width)[:, None]
    return H


KINDS = ["normal", "relu", "dead", "double", "low rank", "small", "decaying"]
SHAPES = [(1, 1), (1, 50), (2, 3), (4, 40), (7, 3), (16, 16), (50, 20), (64, 300), (300, 150), (300, 700)]
CASES = [(width, samples, kind) for width, samples in SHAPES for kind in KINDS]


@pytest.mark.parametrize(("width", "samples", "kind"), CASES)
def test_metrics_equal_singular_values(width: int, samples: int, kind: str) -> None:
    H = activations(width, samples, kind)
    assert ng.metrics.effective_rank(H) == oracles.effective_rank(H)
    assert ng.metrics.effective_dimension(H) == oracles.effective_rank(H) / width
    assert ng.metrics.effective_rank(H, eps=0.5) == oracles.effective_rank(H, 0.5)
    assert math.isclose(ng.metrics.orthogonality(H), oracles.orthogonality(H), abs_tol=1e-7)


@settings(max_examples=200)
@given(eigenvalues=st.lists(st.floats(-3, 3), min_size=1, max_size=12), threshold=st.floats(-2, 2))
def test_inertia_counts_eigenvalues(eigenvalues: list[float], threshold: float) -> None:
    """Also of indefinite matrices, whose factorization has blocks of two."""
    values = torch.tensor([v for v in eigenvalues if abs(v - threshold) > 1e-6] or [threshold + 1], dtype=torch.double)
    basis = torch.linalg.qr(torch.randn(len(values), len(values), dtype=torch.double))[0]
    assert metrics.eigenvalues_above(basis * values @ basis.T, threshold) == int((values > threshold).sum())


def candidates_for(H: Tensor, count: int) -> Tensor:
    """Inside and outside of the span, near the threshold, zero, and equal to a present neuron."""
    generator = torch.Generator().manual_seed(7)
    inside = torch.randn(count, len(H), generator=generator) @ H / len(H)
    outside = torch.randn(count, H.shape[1], generator=generator) * torch.logspace(0, -4, count)[:, None]
    new = inside + outside
    new[0], new[1] = 0, H[0]
    return new.relu() if count % 2 else new


@pytest.mark.parametrize("metric", metrics.METRICS)
@pytest.mark.parametrize(("width", "samples", "kind"), [case for case in CASES if case[0] < 300])
def test_picked_candidates_are_those_of_brute_force(
    width: int, samples: int, kind: str, metric: Literal["effective_dimension", "orthogonality"]
) -> None:
    H = activations(width, samples, kind)
    candidates = candidates_for(H, 31 if width % 2 else 30)
    for k, worst in ((1, False), (5, False), (30, False), (4, True)):
        picked = ng.metrics.best_candidates(H, candidates, k, metric, worst=worst).tolist()
        expected = oracles.best_candidates(H, candidates, k, metric, worst)
        # Candidates of equal metric, such as two that are zero, may stand in any order.
        assert [_score(H, candidates[i], metric) for i in picked] == [
            pytest.approx(_score(H, candidates[i], metric), rel=1e-9, abs=1e-9) for i in expected
        ]


def _score(H: Tensor, candidate: Tensor, metric: str) -> tuple[float, ...]:
    extended = torch.cat([oracles.double(H), oracles.double(candidate)[None]])
    if metric == "orthogonality":
        return (oracles.orthogonality(extended),)
    return oracles.effective_rank(extended), float(oracles.singular_values(extended).sum())


@pytest.mark.parametrize("kind", KINDS)
def test_increments_of_the_sum_are_those_of_singular_values(kind: str) -> None:
    H = activations(64, 300, kind)
    candidates = candidates_for(H, 30)
    raises, sums = metrics.rank_and_sum_with(H, candidates)
    before = oracles.singular_values(H)
    after = [oracles.singular_values(torch.cat([H, candidate[None]])) for candidate in candidates]
    assert raises.tolist() == [int((s > 0.01).sum()) > int((before > 0.01).sum()) for s in after]
    increments = torch.stack([s.sum() for s in after]) - before.sum()
    torch.testing.assert_close(sums, increments, rtol=1e-6, atol=1e-7 * float(before.max()))


COMPLEX = [(4, 40), (7, 3), (16, 16), (64, 300)]


def complex_activations(width: int, samples: int, kind: str) -> Tensor:
    """With phases that differ, also of neurons whose real parts are the same, or nothing."""
    phases = torch.rand(width, samples, generator=torch.Generator().manual_seed(3)) * 2 * math.pi
    H = torch.polar(torch.ones(width, samples), phases) * activations(width, samples, kind)
    H[0].real = 0
    if width > 2:
        H[2] = H[1].conj()
    return H


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("width", "samples"), COMPLEX)
def test_metrics_of_complex_activations_equal_singular_values(width: int, samples: int, kind: str) -> None:
    H = complex_activations(width, samples, kind)
    assert ng.metrics.effective_rank(H) == metrics.quick_rank(H, 0.01) == oracles.effective_rank(H)
    assert ng.metrics.effective_rank(H, eps=0.5) == oracles.effective_rank(H, 0.5)
    assert math.isclose(ng.metrics.orthogonality(H), oracles.orthogonality(H), abs_tol=1e-7)


@pytest.mark.parametrize("metric", metrics.METRICS)
@pytest.mark.parametrize(("width", "samples"), COMPLEX)
def test_picked_complex_candidates_are_those_of_brute_force(
    width: int, samples: int, metric: Literal["effective_dimension", "orthogonality"]
) -> None:
    H = complex_activations(width, samples, "normal")
    candidates = torch.polar(candidates_for(H.real, 30).abs(), candidates_for(H.imag, 30))
    for k, worst in ((1, False), (5, False), (4, True)):
        picked = ng.metrics.best_candidates(H, candidates, k, metric, worst=worst).tolist()
        expected = oracles.best_candidates(H, candidates, k, metric, worst)
        assert [_score(H, candidates[i], metric) for i in picked] == [
            pytest.approx(_score(H, candidates[i], metric), rel=1e-9, abs=1e-9) for i in expected
        ]
    _, sums = metrics.rank_and_sum_with(H, candidates)
    after = [oracles.singular_values(torch.cat([H, candidate[None]])).sum() for candidate in candidates]
    before = oracles.singular_values(H)
    torch.testing.assert_close(sums, torch.stack(after) - before.sum(), rtol=1e-6, atol=1e-7 * float(before.max()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_every_precision_gives_numbers(dtype: torch.dtype) -> None:
    H = activations(20, 50, "relu").to(dtype)
    assert ng.metrics.effective_rank(H) == oracles.effective_rank(H)
    assert math.isclose(ng.metrics.orthogonality(H), oracles.orthogonality(H), abs_tol=1e-7)
    assert ng.metrics.best_candidates(H, H[:5], 2).tolist() == oracles.best_candidates(
        H, H[:5], 2, "effective_dimension"
    )


@pytest.mark.parametrize("metric", metrics.METRICS)
def test_silent_layers_give_zero_and_no_nan(metric: Literal["effective_dimension", "orthogonality"]) -> None:
    silent = torch.zeros(4, 10)
    assert ng.metrics.effective_rank(silent) == 0
    assert ng.metrics.effective_dimension(silent) == 0.0
    assert ng.metrics.orthogonality(silent) == 0.0
    assert ng.metrics.best_candidates(silent, torch.stack([silent[0], torch.ones(10)]), 1, metric).tolist() == [1]
    assert len(ng.metrics.best_candidates(silent, silent, 3, metric)) == 3


def test_bad_input_is_named() -> None:
    H = torch.randn(3, 5)
    with pytest.raises(ValueError, match=r"neurons x samples, got shape \(3, 5, 2\)"):
        ng.metrics.effective_rank(torch.randn(3, 5, 2))
    with pytest.raises(ValueError, match="unknown metric 'good': expected effective_dimension or orthogonality"):
        ng.metrics.best_candidates(H, H, 1, "good")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cannot pick 4 of 3 candidates"):
        ng.metrics.best_candidates(H, H, 4)
