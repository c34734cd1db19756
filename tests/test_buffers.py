"""The buffer gives the rank and orthogonality of the latest samples, however they came, by whatever short cut."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from neurogenesis import metrics
from neurogenesis.buffers import Buffer
from tests import oracles


def batches(seed: int, sizes: list[int], neurons: int, positions: int, kind: str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(neurons, max(1, neurons // 2), generator=generator)
    result = []
    for n in sizes:
        values = torch.randn(n, neurons, positions, generator=generator)
        if kind == "low rank":
            values = torch.einsum(
                "mk,nkp->nmp", mixing, torch.randn(n, mixing.shape[1], positions, generator=generator)
            )
        elif kind == "decaying":
            values = values * torch.logspace(0, -4, neurons)[:, None]
        elif kind == "dead":
            values[:, ::3] = 0
        elif kind == "double":
            values[:, : neurons // 2] = values[:, -(neurons // 2) :] if neurons > 1 else values[:, :0]
        result.append(values.relu() if kind == "rectified" else values)
    return result


KINDS = ("random", "rectified", "low rank", "decaying", "dead", "double")


@given(
    seed=st.integers(0, 999),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    neurons=st.integers(1, 80),
    positions=st.sampled_from([1, 1, 4]),
    limit=st.integers(1, 100),
    kind=st.sampled_from(KINDS),
    scaled=st.booleans(),
)
def test_rank_is_that_of_the_latest_samples(
    seed: int, sizes: list[int], neurons: int, positions: int, limit: int, kind: str, scaled: bool
) -> None:
    buffer = Buffer(limit)
    seen: list[Tensor] = []
    scale = torch.rand(neurons, generator=torch.Generator().manual_seed(seed)) if scaled else None
    for values in batches(seed, sizes, neurons, positions, kind):
        buffer.add(values)
        seen = [*seen, *values.unbind()]
        latest = torch.stack(seen[-buffer.samples :]).movedim(1, 0).flatten(1)
        latest = latest if scale is None else latest * scale[:, None]
        assert buffer.rank(0.01, scale) == oracles.effective_rank(latest)
        assert positions > 1 or buffer.samples == min(len(seen), limit)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("neurons", [40, 96])
def test_a_bound_is_never_below_the_rank_and_settles_what_it_claims(kind: str, neurons: int) -> None:
    buffer, seen = Buffer(160), []
    for values in batches(1, [64] * 12, neurons, 1, kind):
        values = values * (1 + 0.01 * len(seen) / 64)  # activations that drift
        buffer.add(values)
        seen += values.unbind()
        exact = oracles.effective_rank(torch.stack(seen[-160:]).squeeze(2).T)
        for enough in (exact - 1, exact, exact + 2):
            found = buffer.rank(0.01, enough=enough)
            assert found >= exact
            assert (found <= enough) == (exact <= enough)
            assert found == exact or found <= enough


def test_single_precision_is_within_the_error_it_is_given() -> None:
    generator = torch.Generator().manual_seed(0)
    for neurons, samples in (
        (16, 100),
        (16, 4096),
        (32, 100),
        (32, 4096),
        (64, 512),
        (256, 512),
        (256, 4096),
        (784, 1568),
    ):
        noise = torch.randn(samples, neurons, generator=generator)
        constant = torch.rand(1, neurons, generator=generator) + 1e-3 * noise
        for rows in (noise, noise.relu(), torch.rand(samples, neurons, generator=generator), constant, constant + 5):
            gram = sum(part.double() for part in metrics.products(rows))
            exact = rows.double().T @ rows.double()
            assert isinstance(gram, Tensor)
            assert torch.linalg.matrix_norm(gram - exact, 2) < 0.6 * metrics.rounding(gram)


@given(seed=st.integers(0, 999), neurons=st.integers(32, 70), n=st.integers(32, 200), kind=st.sampled_from(KINDS))
def test_quick_rank_is_the_rank(seed: int, neurons: int, n: int, kind: str) -> None:
    matrix = batches(seed, [n], neurons, 1, kind)[0].squeeze(2).T
    assert metrics.quick_rank(matrix, 0.01) == oracles.effective_rank(matrix)


@pytest.mark.parametrize(("positions", "whole"), [(1, False), (4, True)])
def test_orthogonality_is_that_of_the_latest_samples(positions: int, whole: bool) -> None:
    buffer, seen = Buffer(50, whole), []
    for values in batches(0, [30, 30, 7], 12, positions, "rectified"):
        buffer.add(values)
        seen += values.unbind()
    expected = oracles.orthogonality(torch.stack(seen[-50:]).flatten(1).T)
    assert buffer.orthogonality() == pytest.approx(expected, abs=1e-6)


def test_activations_of_images_are_let_go_after_a_step() -> None:
    buffer = Buffer(8)
    buffer.add(torch.randn(8, 3, 100))
    buffer.settle()
    assert buffer.samples == 8
    assert not buffer.complete
    buffer.add(torch.randn(8, 3, 100))
    assert buffer.complete


def test_numbers_that_are_none_are_dropped_with_their_batch() -> None:
    buffer = Buffer(100)
    buffer.add(torch.randn(10, 4, 1))
    buffer.add(torch.full((10, 4, 1), float("nan")))
    assert buffer.drop_nonfinite()
    assert buffer.samples == 10
    assert not buffer.drop_nonfinite()
    half = Buffer(2000)
    half.add(torch.ones(512, 256, 1, dtype=torch.float16))
    assert not half.drop_nonfinite()
