"""Edits of single tensors, which plans consist of.

| edit | of the parameter | of its gradient | of optimizer state | when the width shrinks again |
|---|---|---|---|---|
| `Edit` | entries are inserted | zeros are inserted | fresh state is inserted, of age 0 | the entries are removed |
| `Average` | means of the present entries are inserted | as above | as above | the entries are removed |
| `Copies` | copies of the present entries are inserted | as above | as above | the entries are removed |
| `Scale` | times f | divided by f | as if gradients had been divided by f | times 1 / f |
| `Change` | a tensor is added | stays | stays | stays |

`str` of an edit is its line in a printed plan. `misfit` says why a tensor does not fit it, and is asked for all edits
before any is made. An averaged copy of the model gets the same edits, with means of its own entries. `edited` and
`adjusted` make new tensors, so that an edit is undone, with every bit, by putting the old ones back. Shrinking again is
a plan of its own, which restores scaled entries up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from itertools import product as combinations
from math import prod
from typing import Protocol

import torch
from torch import Tensor


class TensorEdit(Protocol):
    """What a plan does to one parameter or buffer."""

    @property
    def tensor(self) -> str:
        """The name of the parameter or buffer."""

    def misfit(self, tensor: Tensor) -> str | None:
        """Why the edit cannot be applied to a tensor; None if it can."""


Run = tuple[int, int, int]  # old start, new start, length


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

    @property
    def removal(self) -> Edit:
        """The edit that removes what this one inserts."""
        return Edit(self.tensor, self.axis, self.length + self.change, self.positions, None, self.role)

    def __str__(self) -> str:
        sign = "+" if self.change > 0 else "-"
        return f"{self.tensor}  axis {self.axis}  {sign}{abs(self.change)} at {_ranges(self.positions)}  ({self._kind})"

    @property
    def _kind(self) -> str:
        return self.role

    def misfit(self, tensor: Tensor) -> str | None:
        shape = tuple(tensor.shape)
        if tensor.ndim <= self.axis or shape[self.axis] != self.length:
            return f"of shape {shape} should have {self.length} on axis {self.axis}"
        if self.values is not None:
            expected = list(self.values.shape)
            expected[self.axis] = self.length
            if list(shape) != expected:
                return f"has shape {shape}, which new values do not fit"
        return None

    def new_entries(self, present: Tensor) -> Tensor | None:
        """The new entries of a tensor, given the present ones."""
        return self.values


@dataclass(frozen=True)
class Average(Edit):
    r"""New entries that are the mean of the present ones: in a copy of the model, of those that are present there.

    If a layer scale :math:`\gamma` multiplies the entries, the mean of the products must be kept:

    .. math:: \frac1n \sum_i \frac{\gamma_i}{\gamma'} w_i, \quad \gamma' = \sqrt{\frac1n \sum_i \gamma_i^2}

    `scales` are such tensors, and the axis of each; `weights` are :math:`\gamma / \gamma'`.
    """

    scales: tuple[tuple[str, int], ...] = ()
    weights: Tensor | None = None

    @property
    def _kind(self) -> str:
        return f"{self.role}, the mean of the present ones"

    def within(self, tensors: Mapping[str, Tensor]) -> Average:
        """The same with the weights of a model."""
        weights: Tensor | None = None
        for name, axis in self.scales:
            gain = tensors[name].detach().movedim(axis, 0).flatten().double()
            norm = gain.square().mean().sqrt()
            if norm > 0:
                weights = gain / norm if weights is None else weights * gain / norm
        return replace(self, weights=weights)

    def new_entries(self, present: Tensor) -> Tensor:
        assert self.values is not None
        rows = present.detach().to(torch.promote_types(present.dtype, torch.float32))
        if self.weights is not None:
            rows = rows * self.weights.to(rows).reshape(-1, *[1] * (rows.ndim - 1 - self.axis))
        return rows.mean(self.axis, keepdim=True).to(present.dtype).expand(self.values.shape)


@dataclass(frozen=True)
class Copies(Edit):
    """New entries that are copies of present ones: in a copy of the model, of those that are present there.

    `sources` are the positions that they are copied from.
    """

    sources: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))

    @property
    def _kind(self) -> str:
        return f"{self.role}, copies of the present ones"

    def new_entries(self, present: Tensor) -> Tensor:
        return present.detach().index_select(self.axis, self.sources.to(present.device))


@dataclass(frozen=True)
class Scale:
    """A factor f for the present entries of a parameter or buffer; `reason` says what it makes up for.

    If the model adds a shift c to them before it uses them, entries p become (p + c) f - c.
    """

    tensor: str
    factor: float
    reason: str
    shift: float = 0.0

    def __str__(self) -> str:
        what = f"({self.tensor} + {self.shift:g})" if self.shift else self.tensor
        return f"{what}  times {self.factor:.6g}  ({self.reason})"

    def misfit(self, tensor: Tensor) -> str | None:
        if tensor.is_floating_point() or tensor.is_complex():
            return None
        return f"holds integers ({str(tensor.dtype).removeprefix('torch.')}), which cannot be scaled"


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

    def __str__(self) -> str:
        return f"{self.tensor}  axis {self.axis}  changed at {_ranges(self.positions)}  ({self.role})"

    def misfit(self, tensor: Tensor) -> str | None:
        if self.added.shape == tensor.shape:
            return None
        return f"has shape {tuple(tensor.shape)}, which its changes do not fit"


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
        fill = edit.new_entries(old) if fills is None else fills[edit.axis]
        assert fill is not None
        if not isinstance(fill, Tensor):
            fill = old.new_full([edit.change if d == edit.axis else n for d, n in enumerate(old.shape)], fill)
        return torch.cat([old, fill.to(old)], edit.axis)
    new = _empty_like(old, new_shape(old.shape, edits))
    runs = [_kept_runs(old.shape[axis], [e for e in edits if e.axis == axis]) for axis in range(old.ndim)]
    edited_axes = [axis for axis in range(old.ndim) if any(edit.axis == axis for edit in edits)]
    if prod(len(runs[axis]) for axis in edited_axes) > _MANY_RUNS:
        _copy_by_positions(old, new, {axis: runs[axis] for axis in edited_axes})
    else:
        _copy_by_runs(old, new, {axis: runs[axis] for axis in edited_axes})
    for edit in edits:
        if edit.values is not None:
            fill = edit.new_entries(old) if fills is None else fills[edit.axis]
            assert fill is not None
            _insert(new, edit, fill, [other for other in edits if other is not edit and other.axis != edit.axis])
    return new


_MANY_RUNS = 256


def _copy_by_runs(old: Tensor, new: Tensor, runs: Mapping[int, Sequence[Run]]) -> None:
    """Copy what is kept, run by run."""
    for chosen in combinations(*runs.values()):
        source, target = old, new
        for axis, (old_start, new_start, length) in zip(runs, chosen, strict=True):
            source = source.narrow(axis, old_start, length)
            target = target.narrow(axis, new_start, length)
        target.copy_(source)


def _copy_by_positions(old: Tensor, new: Tensor, runs: Mapping[int, Sequence[Run]]) -> None:
    """Copy what is kept, axis by axis, where entries inserted between present ones leave many short runs of them."""
    for number, (axis, own) in enumerate(runs.items()):
        sources, targets = (
            torch.cat([torch.arange(each[place], each[place] + each[2]) for each in own]).to(old.device)
            for place in (0, 1)
        )
        shape = [length if each != axis else new.shape[axis] for each, length in enumerate(old.shape)]
        wider = new if number == len(runs) - 1 else old.new_zeros(shape)
        wider.index_copy_(axis, targets, old.index_select(axis, sources))
        old = wider


def adjusted(present: Tensor, factor: float = 1.0, added: Tensor | None = None, shift: float = 0.0) -> Tensor:
    """Entries p of a tensor after other edits than of axes: (p + added + shift) * factor - shift."""
    present = present if added is None else present + added.to(present)
    if factor == 1:
        return present
    return present * factor if not shift else (present + shift) * factor - shift


def total_factor(scales: Iterable[Scale], tensor: str) -> tuple[float, float]:
    """The factor by which scales multiply a tensor, and the shift."""
    own = [each for each in scales if each.tensor == tensor]
    return prod(each.factor for each in own), own[0].shift if own else 0.0


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


def _kept_runs(length: int, edits: Sequence[Edit]) -> list[Run]:
    """Contiguous runs of positions that are kept."""
    if not edits:
        return [(0, 0, length)]
    (edit,) = edits
    keep = torch.ones(max(length, length + edit.change), dtype=torch.bool)
    keep[edit.positions] = False
    kept, rank = keep.nonzero().flatten(), torch.arange(int(keep.sum()))
    old, new = (rank, kept) if edit.values is not None else (kept, rank)
    return list(_runs(old, new))


def _runs(old: Tensor, new: Tensor) -> Iterator[Run]:
    breaks = ((old.diff() != 1) | (new.diff() != 1)).nonzero().flatten() + 1
    bounds = [0, *breaks.tolist(), len(old)]
    for start, stop in pairwise(bounds):
        if stop > start:
            yield int(old[start]), int(new[start]), stop - start


def _ranges(positions: Tensor) -> str:
    """Format positions as ranges: 8-9, 24-25."""
    numbers = positions.tolist()
    starts = [n for i, n in enumerate(numbers) if i == 0 or numbers[i - 1] != n - 1]
    stops = [n for i, n in enumerate(numbers) if i == len(numbers) - 1 or numbers[i + 1] != n + 1]
    pieces = [str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, stops, strict=True)]
    return ", ".join(pieces[:3]) + (f" and {len(pieces) - 3} more ranges" if len(pieces) > 3 else "")
