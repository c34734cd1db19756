"""Slow and obvious computations that the library's own are compared with."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

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


def means(tensor: Tensor, axis: int, count: int) -> Tensor:
    """The sum of all slices along an axis, divided by their number, as many times as asked."""
    slices = tensor.unbind(axis)
    return torch.stack([sum(slices[1:], slices[0]) / len(slices)] * count, axis)


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


class OwnSteps:
    """Optimizers of Adam's kind with a count of steps for every entry, as written in their papers.

    `group` has the settings of torch's optimizer of that name; resize it with `insert` and `remove`.
    """

    def __init__(self, kind: str, value: Tensor, group: Mapping[str, Any]):
        self.kind, self.group = kind, group
        self.value = value.detach().clone()
        self.steps, self.m, self.v, self.largest = (torch.zeros_like(self.value) for _ in range(4))
        self.product = torch.ones_like(self.value)

    def insert(self, axis: int, positions: Sequence[int], values: Tensor) -> None:
        self.value = insert(self.value, axis, positions, values)
        for name, start in (("steps", 0.0), ("m", 0.0), ("v", 0.0), ("largest", 0.0), ("product", 1.0)):
            setattr(self, name, insert(getattr(self, name), axis, positions, torch.full_like(values, start)))

    def remove(self, axis: int, positions: Sequence[int]) -> None:
        for name in ("value", "steps", "m", "v", "largest", "product"):
            setattr(self, name, remove(getattr(self, name), axis, positions))

    def step(self, gradient: Tensor) -> None:
        lr, (b1, b2), eps = float(self.group["lr"]), self.group["betas"], self.group["eps"]
        g = -gradient if self.group.get("maximize") else gradient
        decay = self.group.get("weight_decay", 0.0)
        if self.group.get("decoupled_weight_decay"):
            self.value = self.value * (1 - lr * decay)
        else:
            g = g + decay * self.value
        self.steps = n = self.steps + 1
        self.m = b1 * self.m + (1 - b1) * g
        first, second = 1 - b1**n, 1 - b2**n
        if self.kind == "Adamax":
            self.v = torch.maximum(b2 * self.v, g.abs() + eps)
            self.value = self.value - lr * self.m / first / self.v
            return
        self.v = b2 * self.v + (1 - b2) * g * g
        if self.kind == "Adam":
            self.largest = torch.maximum(self.largest, self.v)
            v = self.largest if self.group["amsgrad"] else self.v
            self.value = self.value - lr * (self.m / first) / ((v / second).sqrt() + eps)
        elif self.kind == "NAdam":
            mu = b1 * (1 - 0.5 * 0.96 ** (n * self.group["momentum_decay"]))
            following = b1 * (1 - 0.5 * 0.96 ** ((n + 1) * self.group["momentum_decay"]))
            self.product = self.product * mu
            mean = following * self.m / (1 - self.product * following) + (1 - mu) * g / (1 - self.product)
            self.value = self.value - lr * mean / ((self.v / second).sqrt() + eps)
        elif self.kind == "RAdam":
            limit = 2 / (1 - b2) - 1
            rho = limit - 2 * n * b2**n / second
            rectified = ((rho - 4) * (rho - 2) * limit / ((limit - 4) * (limit - 2) * rho)).sqrt()
            plain = torch.ones_like(n)
            factor = torch.where(rho > 5, rectified * second.sqrt() / (self.v.sqrt() + eps), plain)
            self.value = self.value - lr * self.m / first * factor
        else:
            raise ValueError(self.kind)


class OwnStepsAdafactor(OwnSteps):
    """Adafactor with a count of steps for every row and column of a matrix, or entry of a vector."""

    def __init__(self, kind: str, value: Tensor, group: Mapping[str, Any]):
        super().__init__(kind, value, group)
        self.time = 0
        self.rows, self.columns = [0.0] * value.shape[0], [0.0] * value.shape[-1]
        if value.ndim == 2:
            self.row_var, self.column_var = torch.zeros_like(self.value[:, :1]), torch.zeros_like(self.value[:1])

    def insert(self, axis: int, positions: Sequence[int], values: Tensor) -> None:
        """At the end only."""
        self.value = torch.cat([self.value, values], axis)
        count = len(positions)
        if axis == 0:
            self.rows += [0.0] * count
            if self.value.ndim == 2:
                self.row_var = torch.cat([self.row_var, torch.zeros_like(self.row_var[:1].expand(count, -1))])
            else:
                self.v = torch.cat([self.v, torch.zeros_like(values)])
        if axis == 1:
            self.columns += [0.0] * count
            new = torch.zeros_like(self.column_var[:, :1].expand(-1, count))
            self.column_var = torch.cat([self.column_var, new], 1)

    def step(self, gradient: Tensor) -> None:
        self.time += 1
        decay, (eps1, eps2) = self.group["beta2_decay"], self.group["eps"]
        eps1 = torch.finfo(gradient.dtype).eps if eps1 is None else eps1
        self.rows, self.columns = [n + 1 for n in self.rows], [n + 1 for n in self.columns]
        rows, columns = (torch.tensor(each, dtype=gradient.dtype) ** decay for each in (self.rows, self.columns))
        lr, square = self.group["lr"], gradient.square()
        size = max(eps2, float(self.value.square().mean().sqrt())) * min(lr, self.time**-0.5)
        self.value = self.value * (1 - lr * self.group["weight_decay"])
        if gradient.ndim == 1:
            variance = self.v = self.v + (square - self.v) * rows
        else:
            self.row_var = self.row_var + (square.mean(1, keepdim=True) - self.row_var) * rows[:, None]
            self.column_var = self.column_var + (square.mean(0, keepdim=True) - self.column_var) * columns
            variance = self.row_var @ self.column_var / self.row_var.mean(0, keepdim=True).clamp(min=eps1)
        update = gradient / variance.clamp(min=eps1 * eps1).sqrt()
        clipped = max(1.0, float(update.square().mean().sqrt()) / self.group["d"])
        self.value = self.value - size / clipped * update


def pruned(
    consumers: Sequence[tuple[Tensor, Tensor, bool]], left: int
) -> tuple[list[int], list[tuple[Tensor, Tensor]]]:
    """Neurons removed one after the other, each with the least loss, and the weights and constants after folding.

    A consumer is what it gets (neurons x rows), its weights (neurons x outputs), and whether it takes a constant. For
    every neuron that might go, all others are fitted to it again.
    """
    stays, removed = list(range(len(consumers[0][0]))), []
    weights = [double(weight).clone() for _, weight, _ in consumers]
    constants = [torch.zeros(weight.shape[1], dtype=torch.float64) for weight in weights]
    variances = []
    for H, weight, constant in consumers:
        rows = double(H) - double(H).mean(1, keepdim=True) if constant else double(H)
        variances.append((rows.T @ double(weight)).square().sum(1).mean())

    def fit(H: Tensor, constant: bool, neuron: int) -> tuple[Tensor, Tensor]:
        others = double(H)[[each for each in stays if each != neuron]].T
        columns = torch.cat([others, torch.ones(len(others), 1, dtype=torch.float64)], 1) if constant else others
        solution = torch.linalg.lstsq(columns, double(H)[neuron][:, None], driver="gelsd").solution[:, 0]
        return solution, double(H)[neuron] - columns @ solution

    while len(stays) > left:
        losses = {}
        for neuron in stays:
            fits = [fit(H, constant, neuron) for H, _, constant in consumers]
            parts = zip(fits, weights, variances, strict=True)
            losses[neuron] = sum(
                float(rest.square().mean() * weight[neuron].square().sum() / variance)
                for (_, rest), weight, variance in parts
            )
        gone = min(losses, key=lambda neuron: losses[neuron])
        for number, (H, _, constant) in enumerate(consumers):
            solution, _ = fit(H, constant, gone)
            others = [each for each in stays if each != gone]
            weights[number][others] += solution[: len(others), None] * weights[number][gone]
            if constant:
                constants[number] += solution[-1] * weights[number][gone]
        stays.remove(gone)
        removed.append(gone)
    return removed, [(weight[stays], constant) for weight, constant in zip(weights, constants, strict=True)]
