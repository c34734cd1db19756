"""Layers for growing."""

from __future__ import annotations

from torch import Tensor, nn


class ReLU(nn.Module):
    r"""A rectifier whose derivative at 0 is 1.

    :math:`f(x) = \max(0, x)` with :math:`f'(x) = 1` for :math:`x \ge 0`, else 0. New neurons that start with zero
    fan-in get a gradient behind it, which `torch.nn.ReLU`, whose derivative at 0 is 0, would not give them.

    Example:
        >>> import torch
        >>> x = torch.zeros(1, requires_grad=True)
        >>> ReLU()(x).backward()
        >>> x.grad
        tensor([1.])

    Reference: Maile et al., "When, where, and how to add new neurons to ANNs" (AutoML 2022).
    """

    def forward(self, x: Tensor) -> Tensor:
        return x.clamp_min(0)  # which, unlike relu, passes the gradient on at 0


def replace_relu(model: nn.Module) -> int:
    """Replace every `torch.nn.ReLU` inside a model by `ReLU`; returns how many.

    Rectifiers that the model's code calls as functions, such as `torch.relu`, are not modules and stay.

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
