"""Make plans: to append neurons to a width, or to remove some of them."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..structure.axes import layer_of, named_tensors, unwrapped
from ..structure.edits import Change, Edit, edited, grouped
from ..structure.examples import Examples
from ..structure.fills import FanIn
from ..structure.finding import example_for, known_widths, widths
from ..structure.interfaces import Interface, find_interface
from ..structure.modes import ordinary_tensors
from ..structure.reasons import Kind
from ..structure.updates import belongs
from ..structure.widths import Width
from .checks import Values, as_count, as_indices, with_values
from .interfaces import plan_smaller_interface
from .optimizer_state import Optimizers
from .plan import Plan


def find_growable(
    model: nn.Module,
    width: str | Width,
    count: int,
    example: Examples | None = None,
    allowed: Container[Kind] = (),
) -> tuple[Width, int]:
    """Look up a width and check that it can grow by `count` neurons; return both.

    Reasons of the kinds in `allowed` do not count.
    """
    found = _find_width(model, width, example)
    count = as_count(count, found.name)
    if (why := found.obstacle(allowed)) is not None:
        remedy = "" if why.kind.remedy is None else f": {why.kind.remedy}"
        raise ValueError(f"{found.name} cannot grow: {why}{remedy}")
    check_copies(found, count)
    check_bounds(found, count)
    return found, count


def check_bounds(width: Width, change: int) -> None:
    """Raise ValueError if a size would no longer be below another one that must be larger."""
    if (why := width.structure.out_of_bounds({width.atom: width.size + change})) is not None:
        verb = "grow" if change > 0 else "shrink"
        raise ValueError(f"{width.name} cannot {verb} by {abs(change)}: {why}: resize the other one first")


def check_copies(width: Width, count: int) -> None:
    """Raise ValueError if new neurons must be copies of all present ones, and the number of new ones is not right."""
    if width.copied is not None and count % width.size:
        raise ValueError(
            f"{width.name} cannot grow by {count}, only by multiples of its size, {width.size}, with copies of all its "
            f"entries: it is {width.copied}"
        )


def plan_neurons(
    model: nn.Module,
    width: str | Width,
    count: int,
    values: Values | None = None,
    changes: Mapping[str, Tensor] | None = None,
    *,
    generator: torch.Generator | None = None,
    fan_ins: Mapping[str, FanIn] | None = None,
    allowed: Container[Kind] = (),
) -> Plan:
    """Plan to append neurons to a width of a model whose widths are known.

    Args:
        model: the model.
        width: the width.
        count: number of new neurons.
        values: their values, where these differ from the defaults.
        changes: tensors to add to existing parameters of the width, by name.
        generator: random generator for new weights; torch's global one by default.
        fan_ins: norm and balance of random fan-ins by parameter; by default the mean norm of the existing ones.
        allowed: kinds of reasons not to grow that do not count.
    """
    model = unwrapped(model)
    found, count = find_growable(model, width, count, allowed=allowed)
    tensors, given = named_tensors(model), dict(values or {})
    with ordinary_tensors():
        edits = found.structure.edits(found.atom, count, tensors, generator, fan_ins)
        edits = [with_values(edit, given) for edit in edits]
    known_keys = {key for edit in edits for key in (edit.tensor, (edit.tensor, edit.axis))}
    if unknown := [key for key in given if key not in known_keys]:
        raise ValueError(f"initialization of {found.name}: {unknown} do not belong to this width")
    places = [(edit.tensor, edit.axis, edit.role) for edit in edits]
    return plan_edits(found, count, edits, _changes(found, changes or {}, places, tensors))


def plan_shrinkage(
    model: nn.Module,
    width: str | Width | Interface,
    neurons: Sequence[int],
    changes: Mapping[str, Tensor] | None = None,
    *,
    averaged: Mapping[str, Tensor] | None = None,
    example: Examples | None = None,
) -> Plan:
    """Plan to remove neurons from a width.

    Args:
        model: the model.
        width: the width, or its name; or an interface of the model.
        neurons: the indices of the neurons.
        changes: tensors to add to existing parameters of the width, or of layers that consume it, by name; in their
            present shape.
        averaged: the same for an averaged copy of the model; by default the same changes.
        example: an input of the model, required if its widths are not known.
    """
    model = unwrapped(model)
    if (interface := find_interface(model, width, example)) is not None:
        return plan_smaller_interface(model, interface, neurons)
    assert not isinstance(width, Interface)
    found = _find_width(model, width, example)
    if found.fixed is not None:
        raise ValueError(f"{found.name} cannot shrink: {found.fixed}")
    chosen = as_indices(neurons, found.name, found.size)
    check_bounds(found, -len(chosen))
    tensors = named_tensors(model)
    edits = found.structure.edits(found.atom, chosen, tensors, None)
    consumers = {axis.module for axis in found.consumers}
    places = [(edit.tensor, edit.axis, edit.role) for edit in edits]
    places += [(name, 0, "consumer") for name in tensors.keys() - grouped(edits) if layer_of(name) in consumers]
    plan = plan_edits(found, -len(chosen), edits, _changes(found, changes or {}, places, tensors))
    return plan if averaged is None else replace(plan, averaged=_changes(found, averaged, places, tensors))


def shrink(
    model: nn.Module,
    width: str | Width | Interface,
    neurons: Sequence[int],
    *,
    optimizer: Optimizers = None,
    ema: nn.Module | None = None,
    example: Examples | None = None,
) -> Plan:
    """Remove the neurons with the given indices from a width.

    The other arguments and the result are those of `neurogenesis.grow`.

    Example:
        >>> import torch, neurogenesis as ng
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> plan = ng.shrink(model, "0", [0, 5], example=torch.randn(1, 4))
        >>> model[0].weight.shape, model[2].in_features
        (torch.Size([6, 4]), 6)
    """
    model = unwrapped(model)
    interface = find_interface(model, width, example)
    found = interface or _find_width(model, width, example)  # type: ignore[arg-type]
    if isinstance(neurons, int):
        raise TypeError(f"{found.name}: expected the indices of the neurons to remove, such as [{neurons}] or range(2)")
    if isinstance(found, Width) and found.fixed is None and (why := found.structure.held.get(found.atom)) is not None:
        raise ValueError(f"{found.name} cannot shrink: {why}: {why.kind.remedy}")
    plan = plan_shrinkage(model, found, neurons)
    plan.apply(model, optimizer, ema)
    return plan


def _find_width(model: nn.Module, width: str | Width, example: Examples | None) -> Width:
    if not isinstance(width, Width):
        return known_widths(model, example)[width]
    if not belongs(width.structure, model):
        return known_widths(model, example)[width.name]
    problem = width.structure.differs_from(model)
    if problem is None:
        return width  # even if widths() was called with other ties since
    return widths(model, example_for(example, problem))[width.name]


def _changes(
    width: Width,
    given: Mapping[str, Tensor],
    places: Sequence[tuple[str, int, str]],
    tensors: Mapping[str, Tensor],
) -> tuple[Change, ...]:
    """Changes of existing parameters, without those that change nothing.

    `places` are the name, axis and role of all that may be changed; of several axes of a tensor, the one is reported
    along which the fewest positions change.
    """
    made = [_change(width, name, added, places, tensors) for name, added in given.items()]
    return tuple(change for change in made if len(change.positions))


def _change(
    width: Width,
    name: str,
    added: Tensor,
    places: Sequence[tuple[str, int, str]],
    tensors: Mapping[str, Tensor],
) -> Change:
    own = [(axis, role) for tensor, axis, role in places if tensor == name]
    if not own:
        raise ValueError(f"changes of {width.name}: {name!r} does not belong to this width")
    if added.shape != tensors[name].shape:
        shapes = f"expected shape {tuple(tensors[name].shape)}, got {tuple(added.shape)}"
        raise ValueError(f"changes of {name}: {shapes}")
    if not added.isfinite().all():
        raise ValueError(f"changes of {name}: the values are not all finite")
    made = [Change(name, axis, added.detach(), role) for axis, role in own]
    return min(made, key=lambda change: len(change.positions))


def plan_edits(width: Width, change: int, edits: Sequence[Edit], changes: Sequence[Change] = ()) -> Plan:
    """Plan to resize a width by edits of its axes, with what makes up for it, and the attributes that follow."""
    structure = width.structure
    return Plan(
        width.name,
        width.size,
        width.size + change,
        tuple(edits),
        tuple(structure.attribute_changes({width.atom: width.size + change})),
        tuple(changes),
        scales=tuple(structure.scales(width.atom, change)),
    )


def pad_for_growth(key: tuple[str, int], values: Tensor, plans: Sequence[Plan]) -> Tensor:
    """Pad values that were computed before other widths grew with zeros at the new neurons of these widths.

    Args:
        key: the parameter, and the axis along which the values are stacked, or -1 if they cover the whole parameter.
        values: the values.
        plans: the plans applied since.
    """
    name, axis = key
    for plan in plans:
        for edit in plan.edits:
            if edit.tensor == name and edit.axis != axis:
                values = edited(values, [edit], {edit.axis: 0.0})
    return values
