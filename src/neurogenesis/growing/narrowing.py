"""Make an untrained model small, so that growth finds its widths."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from ..structure.axes import named_tensors, unwrapped
from ..structure.modes import ordinary_tensors
from ..structure.tracing import Example
from ..structure.widths import Width, widths
from ..surgery.optimizer_state import Optimizers
from ..surgery.plan import Surgery, plan_shrinkage
from .choosing import choose_widths

LEAST = 4  # neurons, where a fraction would be fewer


def narrow(
    model: nn.Module,
    example: Example,
    size: int | float = 1 / 16,
    *,
    include: Sequence[str] = ("*",),
    exclude: Sequence[str] = (),
    tie: Sequence[str | Sequence[str]] = (),
    optimizer: Optimizers = None,
) -> dict[str, int]:
    r"""Reduce every growable width of an untrained model to a small start, from which a `Grower` can grow it.

    The first neurons stay. The weights of layers with fewer inputs are multiplied by

    .. math:: \sqrt{\text{inputs before} / \text{inputs after}}

    so that their outputs keep their variance, as if the smaller model had been initialized in the same way.

    Args:
        model: any module, before training.
        example: an input the model accepts, as in `neurogenesis.widths`.
        size: number of neurons of each width (an int), or factor of its size (a float), of which at least 4 neurons
            are left; widths that are smaller are not changed.
        include: patterns of widths to reduce, as in `Grower`.
        exclude: patterns of widths not to reduce.
        tie: groups of patterns of widths that change together, as in `neurogenesis.widths`.
        optimizer: the optimizer of the model, if it exists already.

    Returns:
        The new sizes by name.

    Example:
        >>> import torch, neurogenesis as ng
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 512), torch.nn.ReLU(), torch.nn.Linear(512, 2))
        >>> ng.narrow(model, torch.randn(1, 4))
        {'0': 32}
        >>> grower = ng.Grower(model, torch.optim.Adam(model.parameters()), "need")
    """
    if isinstance(size, bool) or not isinstance(size, (int, float)) or not 0 < size < math.inf:
        raise ValueError(f"size: expected a number of neurons, such as 16, or a factor, such as 1 / 16, not {size!r}")
    model = unwrapped(model)
    chosen = choose_widths(widths(model, example, tie=tie), include, exclude)
    with ordinary_tensors(), torch.no_grad():
        before = {name: tensor.shape for name, tensor in named_tensors(model).items()}
        with Surgery(model, optimizer) as surgery:
            for width in chosen:
                target = _target(width, size)
                if target < width.size:
                    surgery.apply(plan_shrinkage(model, width, range(target, width.size)))
        weights = {name: weight for name, weight in model.named_parameters() if weight.ndim > 1}  # no masks
        for tensor, axis in {(axis.tensor, axis.axis) for width in chosen for axis in width.consumers}:
            if tensor in weights:
                weights[tensor].mul_((before[tensor][axis] / weights[tensor].shape[axis]) ** 0.5)
    for width in chosen:
        width.initial = width.size
    return {width.name: width.size for width in chosen}


def _target(width: Width, size: int | float) -> int:
    return size if isinstance(size, int) else max(math.floor(size * width.size), min(LEAST, width.size))
