"""Edits of single tensors: which positions of which axis are new or go, and what the new ones hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from itertools import product as combinations
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class Edit:
    """New positions of one axis of a parameter or buffer with their values, or positions to remove.

    `positions` count in the grown tensor for an insertion and in the present one for a removal. `values`
    holds the new entries stacked along `axis`; it is None for a removal.
    """

    tensor: str
    axis: int
    length: int  # of the axis, before
    positions: Tensor
    values: Tensor | None
    role: str

    @property
    def change(self) -> int:
        """By how much the axis becomes longer."""
        return len(self.positions) if self.values is not None else -len(self.positions)

    @property
    def at_end(self) -> bool:
        """Whether it appends to the axis."""
        return self.values is not None and int(self.positions[0]) == self.length


@dataclass(frozen=True)
class Change:
    """What is added to present entries of a parameter or buffer; `added` has its whole shape."""

    tensor: str
    axis: int  # of the width
    added: Tensor
    role: str

    @property
    def positions(self) -> Tensor:
        """The positions on the axis that are not left as they are."""
        rows = self.added.movedim(self.axis, 0)
        return rows.reshape(len(rows), -1).any(1).nonzero().flatten()


def grouped(edits: Sequence[Edit]) -> dict[str, list[Edit]]:
    """Edits by tensor."""
    result: dict[str, list[Edit]] = {}
    for edit in edits:
        result.setdefault(edit.tensor, []).append(edit)
    return result


def new_shape(shape: Sequence[int], edits: Sequence[Edit]) -> list[int]:
    """The shape of a tensor after edits."""
    result = list(shape)
    for edit in edits:
        result[edit.axis] += edit.change
    return result


def edited(old: Tensor, edits: Sequence[Edit], fills: Mapping[int, Tensor | float] | None = None) -> Tensor:
    """A copy of a tensor with its edits made; `fills` gives other new values by axis (0 for optimizer state).

    Later edits overwrite earlier ones where new rows and new columns cross.
    """
    if len(edits) == 1 and edits[0].at_end and old.is_contiguous():  # the usual case, in a fraction of the time
        (edit,) = edits
        fill = edit.values if fills is None else fills[edit.axis]
        assert fill is not None
        if not isinstance(fill, Tensor):
            fill = old.new_full([edit.change if d == edit.axis else n for d, n in enumerate(old.shape)], fill)
        return torch.cat([old, fill.to(old)], edit.axis)
    new = _empty_as(old, new_shape(old.shape, edits))
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
            _put(new, edit, fill, [other for other in edits if other is not edit and other.axis != edit.axis])
    return new


def _empty_as(old: Tensor, shape: Sequence[int]) -> Tensor:
    for ndim, memory_format in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if old.ndim == ndim and not old.is_contiguous() and old.is_contiguous(memory_format=memory_format):
            return torch.empty(shape, dtype=old.dtype, device=old.device, memory_format=memory_format)
    return old.new_empty(shape)


def _put(new: Tensor, edit: Edit, fill: Tensor | float, others: Sequence[Edit]) -> None:
    positions = edit.positions.to(new.device)
    if not isinstance(fill, Tensor):
        new.index_fill_(edit.axis, positions, fill)
        return
    # Values made for the tensor as it was are shorter along axes that other edits lengthen: zeros there.
    for other in others:
        if fill.shape[other.axis] != new.shape[other.axis]:
            fill = edited(fill, [other], {other.axis: 0.0})
    new.index_copy_(edit.axis, positions, fill.to(new))


def _kept_runs(length: int, edits: Sequence[Edit]) -> list[tuple[int, int, int]]:
    """The stretches (old start, new start, length) of an axis that are kept, as few as possible."""
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


class FanIn(NamedTuple):
    """What random fan-in is like: its norm, and what it has in common with the present neurons' inputs.

    `common` is a vector, of the shape of a fan-in, of how strong each input is; new fan-ins are balanced against it.
    """

    length: float
    common: Tensor | None = None


def balanced(new: Tensor, common: Tensor) -> Tensor:
    r"""Vectors w (first axis) without what makes them respond to all inputs alike, all but 1/d of it.

    .. math:: w - (1 - 1/d) \frac{w \cdot s}{s \cdot s} s
    """
    flat, s = new.flatten(1), common.flatten()
    square = s @ s
    if len(s) == 1 or not square > 0:
        return new
    return (flat - (1 - 1 / len(s)) * torch.outer(flat @ s / square, s)).reshape(new.shape)


def new_values(
    old: Tensor, axis: int, count: int, fill: str, generator: torch.Generator | None, fan_in: FanIn | None = None
) -> Tensor:
    """What `count` new positions of an axis hold.

    * ``zero``, ``one``: constants;
    * ``statistic zero``, ``statistic one``: what a norm's running statistics start with;
    * ``mean``: the mean of the present ones;
    * ``random``: Xavier-uniform vectors scaled to the mean norm of the present ones, or as `fan_in` says;
    * ``random except 3``: the same, but zero in entry 3 of each.
    """
    rows = old.detach().movedim(axis, 0)
    shape = (count, *rows.shape[1:])
    constant = fill.removeprefix("statistic ")
    if constant in ("zero", "one") or not (old.is_floating_point() or old.is_complex()):
        one = torch.full((1,) * len(shape), int(constant == "one"), dtype=old.dtype, device=old.device)
        return one.expand(shape).movedim(0, axis)  # a single number in memory
    rows = rows.to(torch.promote_types(old.dtype, torch.float32))
    if fill == "mean":
        new = rows.mean(0, keepdim=True).expand(shape)
    else:
        new = _random_rows(rows, shape, generator, fan_in)
        if exception := fill.partition(" except ")[2]:
            new[:, int(exception)] = 0
    return new.to(old.dtype).movedim(0, axis)


def _random_rows(
    rows: Tensor, shape: tuple[int, ...], generator: torch.Generator | None, fan_in: FanIn | None
) -> Tensor:
    device = "cpu" if generator is None else generator.device
    parts = (*shape, 2) if rows.is_complex() else shape
    noise = torch.rand(parts, generator=generator, device=device) * 2 - 1
    noise = (torch.view_as_complex(noise) if rows.is_complex() else noise).to(rows)
    inputs, receptive = rows[0].numel(), rows[0, 0].numel() if rows.ndim > 1 else 1
    noise *= (6 / (inputs + rows.shape[0] * receptive)) ** 0.5
    wanted = rows.reshape(rows.shape[0], -1).norm(dim=1).mean() if fan_in is None else fan_in.length
    if fan_in is not None and fan_in.common is not None:
        noise = balanced(noise, fan_in.common.to(noise))
    if wanted > 0:  # a layer that starts at zero gives no scale: Xavier's stands
        norms = noise.reshape(shape[0], -1).norm(dim=1).clamp_min(torch.finfo(noise.dtype).tiny)
        noise *= (wanted / norms).reshape(-1, *[1] * (len(shape) - 1))
    return noise
