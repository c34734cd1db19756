"""Activations give the rank and orthogonality of the latest samples, by whatever short cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from neurogenesis import metrics
from neurogenesis.passes.activations import Activations, Batch, SharedActivations
from neurogenesis.passes.processes import Processes
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
    seen = batches(seed, sizes, neurons, positions, kind)
    scale = torch.rand(neurons, generator=torch.Generator().manual_seed(seed)) if scaled else None
    latest = torch.cat(seen)[-limit:].movedim(1, 0).flatten(1)
    found = Activations(seen).latest(limit)
    assert found.columns == latest.shape[1]
    exact = oracles.effective_rank(latest if scale is None else latest * scale[:, None])
    assert found.rank(0.01, scale) == exact
    for enough in (exact - 1, exact, exact + 2):  # a bound is never below the rank, and settles what it claims
        bound = found.rank(0.01, scale, enough)
        assert bound >= exact
        assert bound == exact or bound <= enough


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


@pytest.mark.parametrize(("positions", "by_sample"), [(1, False), (4, True)])
def test_orthogonality_is_that_of_the_latest_samples(positions: int, by_sample: bool) -> None:
    seen = batches(0, [30, 30, 7], 12, positions, "rectified")
    expected = oracles.orthogonality(torch.cat(seen)[-50:].flatten(1).T)
    assert Activations(seen).latest(50).orthogonality(by_sample=by_sample) == pytest.approx(expected, abs=1e-6)


def test_batches_may_have_different_numbers_of_positions() -> None:
    seen = [*batches(0, [9], 6, 4, "rectified"), *batches(1, [8], 6, 7, "rectified")]
    together = torch.cat([values.movedim(1, 0).flatten(1) for values in seen], 1)
    assert Activations(seen).rank(0.5) == oracles.effective_rank(together, 0.5)
    alone = oracles.orthogonality(seen[1].flatten(1).T)
    assert Activations(seen).orthogonality(by_sample=True) == pytest.approx(alone, abs=1e-6)


def test_half_precision_does_not_overflow() -> None:
    assert Activations([torch.ones(512, 256, 1, dtype=torch.float16)]).finite
    assert not Activations([torch.full((5, 2, 1), float("nan"))]).finite


@dataclass(frozen=True)
class Simulated(Processes):
    """One of several processes, which gets the batches of all of them."""

    number: int = 0
    batches: list[list[Tensor]] = field(default_factory=list)

    @property
    def rank(self) -> int:
        return self.number

    def tensors(self, own: Sequence[Tensor]) -> list[list[Tensor]]:
        return self.batches


@given(
    seed=st.integers(0, 999),
    calls=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30)), min_size=1, max_size=6),
    neurons=st.sampled_from([1, 5, 40]),
    positions=st.sampled_from([1, 4]),
    limit=st.integers(1, 100),
    kind=st.sampled_from(KINDS),
)
def test_activations_of_several_processes_are_those_of_one(
    seed: int, calls: list[tuple[int, int]], neurons: int, positions: int, limit: int, kind: str
) -> None:
    """Each call is made by a process, and has a number of samples; none if it does not reach the layer."""
    seen = batches(seed, [samples for _, samples in calls], neurons, positions, kind)
    alone = Activations([batch for batch in seen if len(batch)]).latest(limit)
    described = [
        Batch.of(rank, Batch.numbers(batch if len(batch) else None))
        for (rank, _), batch in zip(calls, seen, strict=True)
    ]
    kept: list[list[Tensor]] = [[], [], []]

    def shared(rank: int) -> SharedActivations | None:
        own = [batch if len(batch) else None for (of, _), batch in zip(calls, seen, strict=True) if of == rank]
        processes = Simulated(number=rank, batches=kept)
        return SharedActivations.latest_of(own, described, limit, processes, torch.device("cpu"))

    for rank in range(3):
        found = shared(rank)
        assert (found is None) == (not alone.batches)
        kept[rank] = [] if found is None else found._batches
    for rank in range(3):
        if (found := shared(rank)) is not None:
            assert (found.columns, found.neurons, found.dtype) == (alone.columns, alone.neurons, alone.dtype)
            assert all(torch.equal(a, b) for a, b in zip(found.batches, alone.batches, strict=True))
