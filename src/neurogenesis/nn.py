"""Modules for networks that grow."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def _clamp_passes_zero() -> bool:
    """Whether the derivative of `clamp_min` at its bound is 1, as it was until torch 2.14; `where` is slower."""
    with torch.enable_grad():
        x = torch.zeros(1, requires_grad=True, device="cpu")
        (gradient,) = torch.autograd.grad(x.clamp_min(0), x)
    return bool(gradient == 1)


class ReLU(nn.Module):
    r"""ReLU with derivative 1 at 0.

    :math:`f(x) = \max(0, x)` with :math:`f'(x) = 1` for :math:`x \ge 0`, else 0. New neurons with zero fan-in get a
    gradient through it; `torch.nn.ReLU`, whose derivative at 0 is 0, would block it.

    Example:
        >>> import torch
        >>> x = torch.zeros(1, requires_grad=True)
        >>> ReLU()(x).backward()
        >>> x.grad
        tensor([1.])

    Reference: Maile et al., "When, where, and how to add new neurons to ANNs" (AutoML 2022).
    """

    _clamps = _clamp_passes_zero()
    __constants__ = ("_clamps",)  # for torch.jit.script

    def forward(self, x: Tensor) -> Tensor:
        return x.clamp_min(0) if self._clamps else torch.where(x < 0, 0, x)


def replace_relu(model: nn.Module) -> int:
    """Replace every `torch.nn.ReLU` inside a model by `ReLU`; returns the number replaced.

    Function calls such as `torch.relu` in the model's code are not modules and are not replaced.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
        >>> replace_relu(model)
        1
        >>> model[1]
        ReLU()
    """
    places = [
        (parent, name)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is nn.ReLU
    ]
    for parent, name in places:
        replacement = ReLU()
        replacement.training = getattr(parent, name).training
        setattr(parent, name, replacement)
    return len(places)
