"""Edits of single tensors: positions to insert or remove along an axis, and the values of inserted ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from itertools import product as combinations

import torch
from torch import Tensor


@dataclass(frozen=True)
class Edit:
    """Positions to insert into, or remove from, one axis of a parameter or buffer.

    `positions` are indices into the grown tensor for an insertion and into the current one for a removal.
    `values` holds the new entries stacked along `axis`; it is None for a removal.
    """

    tensor: str
    axis: int
    length: int  # of the axis before the edit
    positions: Tensor
    values: Tensor | None
    role: str

    @property
    def change(self) -> int:
        """Change in the length of the axis; negative for a removal."""
        return len(self.positions) if self.values is not None else -len(self.positions)

    @property
    def at_end(self) -> bool:
        """Whether the edit appends to the axis."""
        return self.values is not None and int(self.positions[0]) == self.length


@dataclass(frozen=True)
class Change:
    """A tensor to add to the existing entries of a parameter or buffer; `added` has the full shape."""

    tensor: str
    axis: int  # the axis of the width
    added: Tensor
    role: str

    @property
    def positions(self) -> Tensor:
        """Positions along the axis where `added` is nonzero."""
        rows = self.added.movedim(self.axis, 0)
        return rows.reshape(len(rows), -1).any(1).nonzero().flatten()


def grouped(edits: Sequence[Edit]) -> dict[str, list[Edit]]:
    """Group edits by tensor name."""
    result: dict[str, list[Edit]] = {}
    for edit in edits:
        result.setdefault(edit.tensor, []).append(edit)
    return result


def new_shape(shape: Sequence[int], edits: Sequence[Edit]) -> list[int]:
    """Shape of a tensor after the edits."""
    result = list(shape)
    for edit in edits:
        result[edit.axis] += edit.change
    return result


def edited(old: Tensor, edits: Sequence[Edit], fills: Mapping[int, Tensor | float] | None = None) -> Tensor:
    """Return a copy of a tensor with edits applied.

    `fills` overrides the new values by axis (0 for optimizer state). Where new rows and new columns cross, later
    edits overwrite earlier ones.
    """
    if len(edits) == 1 and edits[0].at_end and old.is_contiguous():  # fast path for the common case
        (edit,) = edits
        fill = edit.values if fills is None else fills[edit.axis]
        assert fill is not None
        if not isinstance(fill, Tensor):
            fill = old.new_full([edit.change if d == edit.axis else n for d, n in enumerate(old.shape)], fill)
        return torch.cat([old, fill.to(old)], edit.axis)
    new = _empty_like(old, new_shape(old.shape, edits))
    runs = [_kept_runs(old.shape[axis], [e for e in edits if e.axis == axis]) for axis in range(old.ndim)]
    edited_axes = [axis for axis in range(old.ndim) if any(edit.axis == axis for edit in edits)]
    for chosen in combinations(*(runs[axis] for axis in edited_axes)):
        source, target = old, new
        for axis, (old_start, new_start, length) in zip(edited_axes, chosen, strict=True):
            source = source.narrow(axis, old_start, length)
            target = target.narrow(axis, new_start, length)
        target.copy_(source)
    for edit in edits:
        if edit.values is not None:
            fill = edit.values if fills is None else fills[edit.axis]
            _insert(new, edit, fill, [other for other in edits if other is not edit and other.axis != edit.axis])
    return new


def _empty_like(old: Tensor, shape: Sequence[int]) -> Tensor:
    for ndim, memory_format in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if old.ndim == ndim and not old.is_contiguous() and old.is_contiguous(memory_format=memory_format):
            return torch.empty(shape, dtype=old.dtype, device=old.device, memory_format=memory_format)
    return old.new_empty(shape)


def _insert(new: Tensor, edit: Edit, fill: Tensor | float, others: Sequence[Edit]) -> None:
    positions = edit.positions.to(new.device)
    if not isinstance(fill, Tensor):
        new.index_fill_(edit.axis, positions, fill)
        return
    # Values have the old length along axes that other edits grow: pad with zeros there.
    for other in others:
        if fill.shape[other.axis] != new.shape[other.axis]:
            fill = edited(fill, [other], {other.axis: 0.0})
    new.index_copy_(edit.axis, positions, fill.to(new))


def _kept_runs(length: int, edits: Sequence[Edit]) -> list[tuple[int, int, int]]:
    """Contiguous runs (old start, new start, length) of positions that are kept."""
    if not edits:
        return [(0, 0, length)]
    (edit,) = edits
    keep = torch.ones(max(length, length + edit.change), dtype=torch.bool)
    keep[edit.positions] = False
    kept, rank = keep.nonzero().flatten(), torch.arange(int(keep.sum()))
    old, new = (rank, kept) if edit.values is not None else (kept, rank)
    return list(_runs(old, new))


def _runs(old: Tensor, new: Tensor) -> Iterator[tuple[int, int, int]]:
    breaks = ((old.diff() != 1) | (new.diff() != 1)).nonzero().flatten() + 1
    bounds = [0, *breaks.tolist(), len(old)]
    for start, stop in pairwise(bounds):
        if stop > start:
            yield int(old[start]), int(new[start]), stop - start
