"""Several fits of a window at one consumer, and the gradients of what they leave, by few operations.

Equal to recording one group of steps after the other (`Record.after`), which takes many small operations. Each group
needs enough rows for a fit of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, groupby
from operator import itemgetter

import torch
from torch import Tensor, nn

from .fits import Products
from .folds import fold_gradients
from .looks import Pass
from .record import ENOUGH_ROWS, MAX_ROWS, Record
from .rows import wide

MOST_ROWS = 2**12  # at once, which stay in the cache
Group = Sequence[Sequence[Pass]]
"""The passes of each of some steps."""


def can_be_together(consumer: nn.Module, groups: Sequence[Group]) -> bool:
    """Whether groups of steps can be recorded together: rows of known samples, in each group enough for a fit."""
    if not isinstance(consumer, nn.Linear):
        return False
    passes = [each for group in groups for step in group for each in step]
    if not passes or not all(map(_are_rows, passes)):
        return False
    enough = ENOUGH_ROWS * passes[0].H.shape[1]
    rows = [sum(len(each.H) for step in group for each in step) for group in groups]
    return enough <= min(rows) and max(rows) <= max(enough, MAX_ROWS)


def _are_rows(each: Pass) -> bool:
    known = each.of_rows is None and each.samples is not None and len(each.samples) == len(each.H)
    return known and all(own.ndim == 2 and own.is_floating_point() for own in (each.H, each.h, each.D))


def recorded_together(record: Record, consumer: nn.Module, groups: Sequence[Group]) -> Record:
    """The record after groups of steps, each with a fit of its own."""
    rows = (sum(len(each.H) for step in group for each in step) for group in groups)
    numbers = [end // MOST_ROWS for end in accumulate(rows)]  # of the part that each group is in
    for _, part in groupby(zip(numbers, groups, strict=True), key=itemgetter(0)):
        record = _recorded_at_once(record, consumer, [group for _, group in part])
    return record


def _recorded_at_once(record: Record, consumer: nn.Module, groups: Sequence[Group]) -> Record:
    steps = [step for group in groups for step in group]
    passes = [each for step in steps for each in step]
    H, h, D = (torch.cat(parts) for parts in list(zip(*passes, strict=True))[:3])
    samples = torch.cat([each.samples.to(H.device) for each in passes if each.samples is not None])
    rows = Rows([sum(len(each.H) for step in group for each in step) for group in groups], H.device)
    (H, H_means), (h, h_means) = (rows.centred(each.to(wide(each))) for each in (H, h))
    products = Products(
        torch.cat([H_means, h_means], 1),
        rows.counts.double(),
        torch.cat([H.sum(1), h.sum(1)], 1),
        torch.cat([H.mT @ H, h.mT @ H], 1),
    )
    coefficients = products.fit()
    both = torch.cat([torch.baddbmm(h, H, coefficients[:, 1:], alpha=-1), h], 2)
    looks = torch.tensor([len(group) for group in groups], device=H.device)
    squares = (looks / rows.counts).to(both.dtype) @ torch.linalg.vector_norm(both, dim=1).square()
    weighted = D.to(both.dtype) * _factors(D, [sum(len(each.D) for each in step) for step in steps])[:, None]
    gradient, counts = fold_gradients(consumer, rows.joined(both), weighted.to(both.dtype), samples)
    known = (record.sums, record.counts, record.energy, record.variance)
    new = (gradient, counts, *squares.chunk(2))
    sums, counts_by_fold, energy, variance = (
        each if old is None else old + each for old, each in zip(known, new, strict=True)
    )
    return replace(
        record, products=products.last, new_rows=0, coefficients=coefficients[-1],
        sums=sums, counts=counts_by_fold, energy=energy, variance=variance,
        steps=record.steps + len(steps), items=record.items + len(D),
    )  # fmt: skip


def _factors(D: Tensor, lengths: Sequence[int]) -> Tensor:
    """One over the root mean square norm of the rows of each step, for each row; 1 for a step of zeros."""
    counts = torch.tensor(lengths, device=D.device)
    step = torch.arange(len(lengths), device=D.device).repeat_interleave(counts, output_size=len(D))
    squares = D.to(wide(D)).square().sum(1)
    scales = (squares.new_zeros(len(lengths)).index_add_(0, step, squares) / counts).sqrt()
    return torch.where(scales > 0, scales, 1).reciprocal()[step]


class Rows:
    """Rows of groups, in one tensor after the other, or side by side with zeros after the last row of each.

    Args:
        counts: number of rows of each group.
        device: the device.
    """

    def __init__(self, counts: Sequence[int], device: torch.device):
        self.shape, self.equal = (len(counts), max(counts)), min(counts) == max(counts)
        self.counts = torch.tensor(counts, dtype=torch.float32, device=device)
        self._present = torch.arange(max(counts), device=device) < self.counts[:, None]

    def centred(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Rows minus the means of their groups, as groups x rows x columns with zeros for absent rows; the means."""
        if self.equal:
            padded: Tensor = rows.unflatten(0, self.shape)  # type: ignore[no-untyped-call]
            means = padded.mean(1)
            return padded - means[:, None], means
        padded = rows.new_zeros(*self.shape, rows.shape[1])
        padded[self._present] = rows
        means = padded.sum(1) / self.counts[:, None]
        return (padded - means[:, None]).masked_fill_(~self._present[..., None], 0), means

    def joined(self, padded: Tensor) -> Tensor:
        """The rows of one group after the other."""
        return padded.flatten(0, 1) if self.equal else padded[self._present]
