"""Make plans to resize an interface of a model: new classes, new tokens, new features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn

from ..structure.axes import named_tensors
from ..structure.edits import Average, Edit
from ..structure.fills import MEAN, RANDOM, ZERO, new_values
from ..structure.interfaces import Interface
from ..structure.modes import ordinary_tensors
from .checks import as_count, as_indices, with_values
from .plan import Plan

STARTS = ("mean", "zero", "random")


def plan_interface(
    model: nn.Module,
    interface: Interface,
    count: int,
    start: object = None,
    *,
    generator: torch.Generator | None = None,
    frozen: bool = False,
) -> Plan:
    """Plan to append features, classes or tokens to an interface.

    Args:
        model: the model.
        interface: the interface.
        count: how many.
        start: values of new rows: the mean of the present ones (default), zeros, or random ones; a number is the bias
            of new outputs, whose rows are then zero. New columns, of input features, are zero by default. Or the
            values themselves, as for neurons.
        generator: source of random values.
        frozen: whether frozen parameters may be resized.
    """
    count = as_count(count, interface.name)
    _check(model, interface, frozen)
    given: dict[Any, Tensor] = dict(start) if isinstance(start, Mapping) else {}
    how: Any = None if isinstance(start, Mapping) else start
    tensors = named_tensors(model)
    with ordinary_tensors(), torch.no_grad():
        usual = [
            edit for atom in interface.atoms for edit in interface.structure.edits(atom, count, tensors, generator)
        ]
        _check_start(interface, how, usual)
        edits = [with_values(_started(edit, interface, how, tensors[edit.tensor], generator), given) for edit in usual]
    known = {key for edit in edits for key in (edit.tensor, (edit.tensor, edit.axis))}
    if unknown := [key for key in given if key not in known]:
        raise ValueError(f"initialization of {interface.name}: {unknown} do not belong to it")
    return _plan(interface, count, edits)


def plan_smaller_interface(model: nn.Module, interface: Interface, which: Sequence[int]) -> Plan:
    """Plan to remove features, classes or tokens with the given indices."""
    chosen = as_indices(which, interface.name, interface.size)
    _check(model, interface, frozen=True)
    tensors = named_tensors(model)
    edits = [edit for atom in interface.atoms for edit in interface.structure.edits(atom, chosen, tensors, None)]
    return _plan(interface, -len(chosen), edits)


def _plan(interface: Interface, change: int, edits: Sequence[Edit]) -> Plan:
    before = interface.size
    sizes = dict.fromkeys(interface.atoms, before + change)
    attributes = tuple(interface.structure.attribute_changes(sizes))
    places = tuple((edit.tensor, edit.axis) for edit in edits)
    return Plan(interface.name, before, before + change, tuple(edits), attributes, interfaces=places)


def _check(model: nn.Module, interface: Interface, frozen: bool) -> None:
    if interface.reason is not None:
        raise ValueError(f"{interface.name} cannot be resized: {interface.reason}")
    own = {axis.tensor for axis in interface.axes}
    still = [name for name, each in model.named_parameters() if name in own and not each.requires_grad]
    if still and not frozen:
        raise ValueError(
            f"{interface.name} cannot grow: {', '.join(still)} would be resized, but is frozen (requires_grad is "
            "False), so that new entries would not be trained: unfreeze with requires_grad_(True), or pass frozen=True"
        )


def _check_start(interface: Interface, start: Any, edits: Sequence[Edit]) -> None:
    if start is None or start in STARTS:
        return
    number = isinstance(start, int | float) and not isinstance(start, bool)
    if not number:
        raise ValueError(
            f"initialization of {interface.name}: expected one of {', '.join(map(repr, STARTS))}, the bias of new "
            f"outputs, or a dict of values by parameter, not {start!r}"
        )
    if not isfinite(start):
        raise ValueError(f"initialization of {interface.name}: {start!r} is not finite")
    if not any(_is_bias(edit, interface) for edit in edits):
        raise ValueError(
            f"initialization of {interface.name}: {start!r} would be a bias, and it has none: use 'mean' or 'zero'"
        )


def _is_bias(edit: Edit, interface: Interface) -> bool:
    return edit.role == "producer" and interface.structure.role(edit.tensor, edit.axis)[1] == ZERO


def _started(
    edit: Edit, interface: Interface, start: str | float | None, tensor: Tensor, generator: torch.Generator | None
) -> Edit:
    """An edit with the values that new entries start at."""
    structure, count = interface.structure, edit.change
    if edit.tensor in structure.buffers:
        return edit
    if start is None:
        start = "zero" if edit.role == "consumer" else "mean"
    bias, looked_up = _is_bias(edit, interface), edit.role == "carrier"
    if start == "mean" or (looked_up and not isinstance(start, str)):
        values = new_values(tensor, edit.axis, count, MEAN, generator)
        return Average(edit.tensor, edit.axis, edit.length, edit.positions, values, edit.role)
    if start == "random" and not bias:
        return replace(edit, values=new_values(tensor, edit.axis, count, RANDOM, generator))
    values = new_values(tensor, edit.axis, count, ZERO, None)
    return replace(edit, values=torch.full_like(values, start) if bias and not isinstance(start, str) else values)
