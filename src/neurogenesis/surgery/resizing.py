"""Resize widths to given sizes."""

from __future__ import annotations

from collections.abc import Mapping
from operator import index

import torch
from torch import nn

from ..structure.axes import named_tensors, unwrapped
from ..structure.examples import Examples
from ..structure.finding import known_widths
from ..structure.modes import ordinary_tensors
from ..structure.widths import Width, Widths
from .optimizer_state import Optimizers
from .plan import Plan, Surgery
from .planning import plan_edits, plan_shrinkage


def resize(
    model: nn.Module,
    sizes: Mapping[str, int],
    example: Examples | None = None,
    *,
    optimizer: Optimizers = None,
    ema: nn.Module | None = None,
    generator: torch.Generator | None = None,
) -> list[Plan]:
    """Give widths the sizes of a dict: new neurons are random and have no fan-out, and the last ones are removed.

    Where a rule says what makes up for a size (see `neurogenesis.rules`), it is scaled with it.

    Args:
        model: the model, changed in place; its parameters remain the same objects.
        sizes: sizes by the names of `widths(model, example)`. Other widths are not changed.
        example: an input of the model; required if `widths` has not been called for this model.
        optimizer: the optimizers that train the model; their state is resized too.
        ema: an averaged copy of the model; it is resized too.
        generator: source of the random weights; torch's global generator by default.

    Returns:
        The plans that were applied. If one of the sizes is not possible, nothing is changed.

    Example:
        >>> import torch, neurogenesis as ng
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> plans = ng.resize(model, {"0": 12}, torch.randn(1, 4))
        >>> model[2].weight.shape
        torch.Size([2, 12])
    """
    if not isinstance(sizes, Mapping):
        raise TypeError(f"sizes: expected sizes by names of widths, such as {{'0': 64}}, not {sizes!r}")
    found = known_widths(model, example)
    with Surgery(model, optimizer, ema) as surgery:
        return resize_widths(surgery, found, sizes, generator)


def resize_widths(
    surgery: Surgery, found: Widths, sizes: Mapping[str, int], generator: torch.Generator | None = None
) -> list[Plan]:
    """Resize widths of the surgery's model."""
    plans = []
    for name, size in sizes.items():
        width = found[name]
        if isinstance(size, bool) or not hasattr(size, "__index__") or index(size) < 1:
            raise ValueError(f"{name}: expected a positive number of neurons, not {size!r}")
        if size != width.size:
            plan = _plan_size(surgery.model, width, index(size), generator)
            surgery.apply(plan)
            plans.append(plan)
    return plans


def _plan_size(model: nn.Module, width: Width, size: int, generator: torch.Generator | None) -> Plan:
    """Plan to append or remove neurons at the end, also where training could not use new ones (frozen consumers)."""
    if width.fixed is not None:
        raise ValueError(f"{width.name} has {width.size} neurons and cannot be resized to {size}: {width.fixed}")
    if size < width.size:
        return plan_shrinkage(model, width, range(size, width.size))
    with ordinary_tensors(), torch.no_grad():
        tensors = named_tensors(unwrapped(model))
        edits = width.structure.edits(width.atom, size - width.size, tensors, generator)
    return plan_edits(width, size - width.size, edits)
