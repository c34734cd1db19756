"""Slow and obvious computations that the library's own are compared with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def insert(tensor: Tensor, axis: int, positions: Sequence[int], values: Tensor) -> Tensor:
    """Slice by slice: the new ones at their positions, the old ones in order everywhere else."""
    old, new = list(tensor.unbind(axis)), list(values.unbind(axis))
    slices = []
    for position in range(len(old) + len(new)):
        slices.append(new.pop(0) if position in positions else old.pop(0))
    return torch.stack(slices, axis)


def remove(tensor: Tensor, axis: int, positions: Sequence[int]) -> Tensor:
    """Slice by slice: all but those at the positions."""
    return torch.stack([s for i, s in enumerate(tensor.unbind(axis)) if i not in positions], axis)
