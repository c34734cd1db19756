"""Activations of a layer on buffered inputs, and what is measured of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from .. import metrics
from ..explained import Moments
from .processes import Processes


class Activations:
    """Activations of one layer: per batch, samples x neurons x positions. Batches may differ in size."""

    def __init__(self, batches: list[Tensor]):
        self._batches = batches

    @property
    def batches(self) -> list[Tensor]:
        return self._batches

    @property
    def neurons(self) -> int:
        return self.batches[0].shape[1]

    @property
    def dtype(self) -> torch.dtype:
        return self.batches[0].dtype

    @property
    def columns(self) -> int:
        """Number of activations per neuron."""
        return sum(batch.shape[0] * batch.shape[2] for batch in self.batches)

    @cached_property
    def finite(self) -> bool:
        return all(_all_finite(batch) for batch in self.batches)

    @property
    def matrix(self) -> Tensor:
        """All activations as one matrix, neurons x columns."""
        return torch.cat([metrics.by_neuron(batch) for batch in self.batches], 1)

    @property
    def moments(self) -> Moments:
        """Sums and products of the neurons in double precision."""
        sums = torch.stack([batch.sum((0, 2), dtype=torch.float64) for batch in self.batches]).sum(0)
        return Moments(self.columns, sums, self._gram)

    def of(self, neuron: int) -> Tensor:
        """All activations of one neuron."""
        return torch.cat([batch[:, neuron].flatten() for batch in self.batches])

    def products(self, candidates: Activations) -> metrics.Products:
        """Products of these neurons and of candidates on the same samples, in batches of the same sizes."""
        parts = zip(self.batches, candidates.batches, strict=True)
        return metrics.products_of((metrics.by_neuron(own), metrics.by_neuron(new)) for own, new in parts)

    def latest(self, samples: int) -> Activations:
        """Keep only the latest samples."""
        kept: list[Tensor] = []
        for batch in reversed(self.batches):
            if samples <= 0:
                break
            kept.insert(0, batch[-samples:])
            samples -= len(batch)
        return Activations(kept)

    def rank(self, eps: float, scale: Tensor | None = None, enough: int | None = None) -> int:
        """Effective rank, with each neuron's row multiplied by its entry of `scale` if given.

        If a cheaper bound shows that the rank is at most `enough`, returns that bound. Uses single precision unless an
        eigenvalue is too close to eps².
        """
        if self.columns <= self.neurons:
            matrix = self.matrix
            return metrics.quick_rank(matrix if scale is None else matrix * scale[:, None].to(matrix), eps)
        if self._single:
            gram = _scale_gram(self._single_gram, scale)
            found = metrics.eigenvalues_surely_above(gram, self.columns * eps**2, metrics.rounding(gram), enough)
            if found is not None:
                return found
        return metrics.eigenvalues_above(_scale_gram(self._gram, scale) / self.columns, eps**2)

    def orthogonality(self, scale: Tensor | None = None, by_sample: bool = False) -> float:
        """Orthogonality of neurons x columns or, if `by_sample`, of (neurons x positions) x samples.

        The latter uses only batches with as many positions as the latest.
        """
        if not by_sample:
            return metrics.orthogonality_of_gram(_scale_gram(self._gram, scale), self.columns)
        rows = self.samples
        return metrics.orthogonality(metrics.by_sample(rows if scale is None else rows * scale[:, None].to(rows)))

    @property
    def samples(self) -> Tensor:
        """Samples x neurons x positions, from the batches with as many positions as the latest."""
        positions = self.batches[-1].shape[2]
        return torch.cat([batch for batch in self.batches if batch.shape[2] == positions])

    @property
    def _single(self) -> bool:
        """Whether products in single precision save time."""
        return self.neurons >= metrics.MIN_NEURONS_FLOAT32 and self.dtype == torch.float32

    @cached_property
    def _gram(self) -> Tensor:
        """Gram matrix of the neurons in double precision, summed over chunks of columns to save memory."""
        total: Tensor | None = None
        for batch in self.batches:
            matrix = metrics.by_neuron(batch)
            wide = torch.promote_types(matrix.dtype, torch.float64)
            for part in matrix.split(max(1, _CHUNK_ENTRIES // len(matrix)), 1):  # type: ignore[no-untyped-call]
                part = part.to(wide)
                total = part @ part.mH if total is None else total.addmm_(part, part.mH)
        assert total is not None
        return total

    @cached_property
    def _single_gram(self) -> Tensor:
        """Gram matrix of the neurons from products in single precision."""
        parts = [part for batch in self.batches for part in metrics.products(metrics.by_neuron(batch).T)]
        return parts[0].double() if len(parts) == 1 else torch.stack(parts).sum(0, dtype=torch.float64)


_CHUNK_ENTRIES = 2**18  # entries per chunk: 2 MB in double precision, which fits in the cache


def _all_finite(values: Tensor) -> bool:
    wide = torch.promote_types(values.dtype, torch.float32)  # half precision would overflow
    return math.isfinite(float(torch.linalg.vector_norm(values.detach(), dtype=wide)))


def _scale_gram(gram: Tensor, scale: Tensor | None) -> Tensor:
    return gram if scale is None else gram * torch.outer(scale, scale).to(gram)


@dataclass(frozen=True)
class Batch:
    """The activations of a layer in one call of the model, which ran in one of several processes.

    Args:
        rank: the process.
        samples, neurons, positions: the shape; no samples if the call has not reached the layer.
        dtype: the type.
        finite: whether all activations are finite.
    """

    rank: int
    samples: int
    neurons: int
    positions: int
    dtype: torch.dtype
    finite: bool

    @staticmethod
    def numbers(batch: Tensor | None) -> list[int]:
        """Describe activations by five numbers, to be sent to other processes."""
        return [0] * 5 if batch is None else [*batch.shape, _DTYPES.index(batch.dtype), _all_finite(batch)]

    @staticmethod
    def of(rank: int, numbers: Sequence[int]) -> Batch:
        samples, neurons, positions, dtype, finite = numbers
        return Batch(rank, samples, neurons, positions, _DTYPES[dtype], bool(finite))


_DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128, torch.complex32,
)  # fmt: skip


class SharedActivations(Activations):
    """Activations on the inputs of several processes, each of which has computed its own.

    Sums over samples are added up. Only what needs all activations exchanges them. All processes must do the same.

    Args:
        own: the batches of this process.
        described: the batches of all processes, in order.
        processes: the processes.
        device: where the model is.
    """

    def __init__(self, own: list[Tensor], described: Sequence[Batch], processes: Processes, device: torch.device):
        super().__init__(own)
        self.described, self.processes, self.device = described, processes, device
        self.together: Sequence[SharedActivations] = [self]  # of several layers, whose products are exchanged at once
        self._summed: Tensor | None = None

    @staticmethod
    def latest_of(
        own: Sequence[Tensor | None],
        described: Sequence[Batch],
        samples: int,
        processes: Processes,
        device: torch.device,
    ) -> SharedActivations | None:
        """The latest samples of the batches of all processes; None if there is none.

        Args:
            own: the batches of this process, None for calls that have not reached the layer.
            described: the batches of all processes, in order.
            samples: the number of samples.
            processes: the processes.
            device: where the model is.
        """
        mine = list(own)
        kept: list[Batch] = []
        kept_own: list[Tensor] = []
        for each in reversed(described):
            batch = mine.pop() if each.rank == processes.rank else None
            taken = min(each.samples, samples)
            if taken > 0:
                samples -= taken
                kept.insert(0, replace(each, samples=taken))
                if batch is not None:
                    kept_own.insert(0, batch[-taken:])
        return SharedActivations(kept_own, kept, processes, device) if kept else None

    @cached_property
    def batches(self) -> list[Tensor]:
        found = [iter(theirs) for theirs in self.processes.tensors(self._batches)]
        return [next(found[each.rank]) for each in self.described]

    @property
    def neurons(self) -> int:
        return self.described[0].neurons

    @property
    def dtype(self) -> torch.dtype:
        return self.described[0].dtype

    @property
    def columns(self) -> int:
        return sum(each.samples * each.positions for each in self.described)

    @cached_property
    def finite(self) -> bool:
        if all(each.finite for each in self.described):
            return True
        # What is not finite may be among the samples that were left out.
        (in_all,) = self.processes.least([all(_all_finite(batch) for batch in self._batches)])
        return bool(in_all)

    @cached_property
    def _gram(self) -> Tensor:
        return self.processes.sums([self._own("_gram", torch.promote_types(self.dtype, torch.float64))])[0]

    @property
    def _single_gram(self) -> Tensor:
        if self._summed is None:
            missing = [each for each in self.together if each is self or (each._single and each._summed is None)]
            sums = self.processes.sums([each._own("_single_gram", torch.float64) for each in missing])
            for each, total in zip(missing, sums, strict=True):
                each._summed = total
        assert self._summed is not None
        return self._summed

    def _own(self, name: Literal["_gram", "_single_gram"], dtype: torch.dtype) -> Tensor:
        """Products of the neurons on the samples of this process, which may be none."""
        if not self._batches:
            return torch.zeros(self.neurons, self.neurons, dtype=dtype, device=self.device)
        products: Tensor = getattr(Activations(self._batches), name)
        return products
