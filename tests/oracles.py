"""Slow and obvious computations that the library's own are compared with."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


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
    return torch.linalg.svdvals(double(H) / H.shape[1] ** 0.5)


def double(H: Tensor) -> Tensor:
    return H.to(torch.complex128 if H.is_complex() else torch.float64)


def effective_rank(H: Tensor, eps: float = 0.01) -> int:
    return int((singular_values(H) > eps).sum())


def orthogonality(H: Tensor) -> float:
    """The formula as it is printed, with its n x n matrices."""
    H = double(H)
    n, total = H.shape[1], H.abs().square().sum()
    return float(1 - (H.mH @ H / total - torch.eye(n, dtype=H.dtype) / n).norm()) if total > 0 else 0.0


def best_candidates(H: Tensor, candidates: Tensor, k: int, metric: str, worst: bool = False) -> list[int]:
    """One decomposition for each candidate, appended alone."""
    scores = []
    for candidate in candidates:
        extended = torch.cat([double(H), double(candidate)[None]])
        if metric == "orthogonality":
            scores.append((orthogonality(extended),))
        else:
            scores.append((effective_rank(extended), float(singular_values(extended).sum())))
    sign = 1 if worst else -1
    return sorted(range(len(scores)), key=lambda i: [sign * s for s in scores[i]])[:k]


def bridge_matrix(model: nn.Sequential, x: Tensor, loss: Callable[[Tensor], Tensor], producer: int) -> Tensor:
    """Fan-out x fan-in of a new neuron, entry by entry: autograd through the model with that neuron in it.

    The neuron is appended to the layer `producer` of a sequential model with zero fan-in and each unit of fan-out in
    turn; the gradient of its fan-in is a row.
    """
    layers = copy.deepcopy(model)
    later = range(producer + 1, len(layers))
    consumer = next(i for i in later if isinstance(layers[i], (nn.Linear, nn.Conv1d, nn.Conv2d)))
    first, second = layers[producer], layers[consumer]
    columns = second.weight.shape[1] // first.weight.shape[0]  # of each neuron, behind a flattened image
    fan_out = (second.weight.shape[0], columns, *second.weight.shape[2:])
    rows = []
    for unit in range(torch.Size(fan_out).numel()):
        new = torch.zeros(fan_out)
        new.reshape(-1)[unit] = 1
        fan_in = torch.zeros_like(first.weight[:1]).requires_grad_()
        weights = {f"{producer}.weight": torch.cat([first.weight.detach(), fan_in])}
        if first.bias is not None:
            weights[f"{producer}.bias"] = torch.cat([first.bias.detach(), torch.zeros(1)])
        for i in range(producer + 1, consumer):  # norms between
            for name, tensor in {**dict(layers[i].named_parameters()), **dict(layers[i].named_buffers())}.items():
                if tensor.ndim == 1:
                    one = 1.0 if name in ("weight", "running_var") else 0.0
                    weights[f"{i}.{name}"] = torch.cat([tensor.detach(), torch.full((1,), one)])
        weights[f"{consumer}.weight"] = torch.cat([second.weight.detach(), new], 1)
        output = torch.func.functional_call(layers, weights, (x,))
        rows.append(torch.autograd.grad(loss(output), fan_in)[0].flatten())
    return torch.stack(rows)
