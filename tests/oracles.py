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


def singular_values(H: Tensor) -> Tensor:
    """Of H / sqrt(n), in double precision."""
    return torch.linalg.svdvals(H.double() / H.shape[1] ** 0.5)


def effective_rank(H: Tensor, eps: float = 0.01) -> int:
    return int((singular_values(H) > eps).sum())


def orthogonality(H: Tensor) -> float:
    """The formula as it is printed, with its n x n matrices."""
    H = H.double()
    n, total = H.shape[1], H.square().sum()
    return float(1 - (H.T @ H / total - torch.eye(n, dtype=H.dtype) / n).norm()) if total > 0 else 0.0


def best_candidates(H: Tensor, candidates: Tensor, k: int, metric: str, worst: bool = False) -> list[int]:
    """One decomposition for each candidate, appended alone."""
    scores = []
    for candidate in candidates:
        extended = torch.cat([H.double(), candidate.double()[None]])
        if metric == "orthogonality":
            scores.append((orthogonality(extended),))
        else:
            scores.append((effective_rank(extended), float(singular_values(extended).sum())))
    sign = 1 if worst else -1
    return sorted(range(len(scores)), key=lambda i: [sign * s for s in scores[i]])[:k]
