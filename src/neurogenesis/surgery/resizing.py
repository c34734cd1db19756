"""Resize a model to given sizes, or to what was saved.

If the widths of the model are known, each is resized by a plan of its own, so that all that watches them stays up to
date, and tensors that the state lacks are resized too. A fresh model has no known widths: to find them would need an
example. Then one plan gives its tensors the shapes in the state, along the axes that were saved with the sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import index
from typing import Any

import torch
from torch import Tensor, nn

from ..structure.axes import Structure, named_tensors, unwrapped
from ..structure.edits import Edit
from ..structure.examples import Examples
from ..structure.finding import known_widths, last_widths
from ..structure.interfaces import interfaces_at, resized_interfaces
from ..structure.labels import AttributeValue
from ..structure.modes import ordinary_tensors
from ..structure.paths import attribute_at
from ..structure.saved_sizes import SavedSizes
from ..structure.solving import shapes_in, sizes_from_shapes
from ..structure.widths import Width, Widths
from .optimizer_state import Optimizers
from .plan import Plan, Surgery
from .planning import check_copies, plan_edits, plan_shrinkage


def resize(
    model: nn.Module,
    sizes: Mapping[str, int],
    example: Examples | None = None,
    *,
    optimizer: Optimizers = None,
    ema: nn.Module | None = None,
    generator: torch.Generator | None = None,
) -> list[Plan]:
    """Resize widths: new neurons have random fan-in and zero fan-out, and neurons are removed from the end.

    Where a rule says what makes up for a size (see `neurogenesis.rules`), it is scaled with it.

    Args:
        model: the model, changed in place; its parameters remain the same objects.
        sizes: sizes by name, as in `widths(model, example)`. Other widths are not changed.
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
        return _applied(surgery, _plans_of_widths(surgery.model, found, sizes, generator))


def resize_to_saved(
    surgery: Surgery,
    state: Mapping[str, Any],
    saved: SavedSizes,
    example: Examples | None = None,
    known: Widths | None = None,
) -> dict[str, int]:
    """Resize a model to a state that is loaded afterwards: new values are arbitrary.

    Args:
        surgery: of the model, which is reverted if anything in it fails.
        state: the state of the model. The shapes of its tensors decide on the sizes; if it is empty, because it is not
            at hand yet, `saved` does.
        saved: the sizes that were saved with the state, if any.
        example: an input of the model, to find its widths if they are not known.
        known: the widths of the model; by default those that were found last.

    Returns:
        The new sizes of the widths that were resized, by name; of all widths if only `saved` has them.

    Raises:
        ValueError: if there are no such sizes, or the widths must be known and are not.
    """
    model, generator = unwrapped(surgery.model), torch.Generator().manual_seed(0)
    tensors, shapes = named_tensors(model), shapes_in(model, state)
    differing = [name for name, shape in shapes.items() if tensors[name].shape != shape]
    if not differing and (state or not saved):
        return {}
    known = last_widths(model) if known is None else known
    if known is None and example is None:
        if not saved:
            raise ValueError(
                f"{_difference(differing[0], shapes, tensors)}, and the sizes of widths were not saved with it: pass "
                "an input of the model as example=, as in neurogenesis.load_state_dict(model, state, example=x), or "
                "call neurogenesis.widths(model, x) first, so that its widths can be resized"
            )
        surgery.apply(plan_of_shapes(model, shapes, saved))
        return saved.widths
    if known is None:
        with ordinary_tensors(), torch.enable_grad():
            known = known_widths(model, example)
    if unused := [name for name in differing if name in known.structure.unused]:
        raise ValueError(
            f"{_difference(unused[0], shapes, tensors)}, and no example uses it: switch it on before the state is "
            "loaded, or pass a list of inputs that together use all layers, as example=[...]"
        )
    lengths = {(name, axis): length for name, axis, length in saved.interfaces}
    lengths |= {place: shapes[place[0]][place[1]] for place in resized_interfaces(model) if place[0] in shapes}
    _applied(surgery, _plans_of_interfaces(model, known.structure, lengths, generator))
    sizes = sizes_from_shapes(known, shapes, saved.widths) if state else saved.widths
    resized = {name: number for name, number in sizes.items() if known[name].size != number}
    _applied(surgery, _plans_of_widths(model, known, resized, generator))
    return resized


def plan_of_shapes(model: nn.Module, shapes: Mapping[str, Sequence[int]], saved: SavedSizes) -> Plan:
    """Plan to give the tensors of a model other shapes, with arbitrary values, although its widths are not known.

    Raises:
        ValueError: if they differ on other axes than the saved ones, or the model lacks an attribute.
    """
    tensors, modules = named_tensors(model), dict(model.named_modules(remove_duplicate=False))
    edits: list[Edit] = []
    for name, shape in shapes.items():
        if tensors[name].ndim != len(shape):
            raise ValueError(_difference(name, shapes, tensors))
        for axis, (before, after) in enumerate(zip(tensors[name].shape, shape, strict=True)):
            if before == after:
                continue
            if axis not in saved.axes.get(name, ()):
                raise ValueError(
                    f"{_difference(name, shapes, tensors)}, and axis {axis} does not belong to a width that can be "
                    "resized: the state is of another architecture"
                )
            edits.append(_edit_of_length(name, axis, tensors[name], after))
    attributes: list[tuple[str, str, AttributeValue, AttributeValue]] = []
    for path, name, value in saved.attributes:
        present: Any = attribute_at(modules.get(path), name, "missing")
        if not isinstance(present, tuple if isinstance(value, tuple) else int | float | None):
            raise ValueError(f"the sizes are of another model: {path or 'the model'} has no attribute {name}")
        if present != value:
            attributes.append((path, name, present, value))
    places = tuple((name, axis) for name, axis, _ in saved.interfaces)
    return Plan("all widths", 0, 0, tuple(edits), tuple(attributes), interfaces=places)


def _edit_of_length(name: str, axis: int, tensor: Tensor, length: int) -> Edit:
    """Edit that gives an axis another length, at its end."""
    before = tensor.shape[axis]
    new = [length - before if each == axis else number for each, number in enumerate(tensor.shape)]
    positions = torch.arange(min(before, length), max(before, length))
    with ordinary_tensors():
        return Edit(name, axis, before, positions, tensor.new_zeros(new) if length > before else None, "loaded")


def _difference(name: str, shapes: Mapping[str, Sequence[int]], tensors: Mapping[str, Tensor]) -> str:
    return f"{name} has shape {tuple(shapes[name])} in the state, but {tuple(tensors[name].shape)} in the model"


def _applied(surgery: Surgery, plans: Iterable[Plan]) -> list[Plan]:
    """Apply plans, each of which is made for the model that the previous one left."""
    result = []
    for plan in plans:
        surgery.apply(plan)
        result.append(plan)
    return result


def _plans_of_interfaces(
    model: nn.Module, structure: Structure, lengths: Mapping[tuple[str, int], int], generator: torch.Generator
) -> Iterator[Plan]:
    """Plans to give axes of interfaces these lengths, with arbitrary values."""
    for atom, length in interfaces_at(structure, lengths).items():
        change = length - atom.size
        if not change:
            continue
        which = change if change > 0 else range(length, atom.size)
        edits = tuple(structure.edits(atom, which, named_tensors(model), generator))
        attributes = tuple(structure.attribute_changes({atom: length}))
        places = tuple((edit.tensor, edit.axis) for edit in edits)
        yield Plan("an interface", atom.size, length, edits, attributes, interfaces=places)


def _plans_of_widths(
    model: nn.Module, found: Widths, sizes: Mapping[str, int], generator: torch.Generator | None
) -> Iterator[Plan]:
    """Plans to resize widths, each made when the previous one has been applied."""
    for name, size in sizes.items():
        width = found[name]
        if isinstance(size, bool) or not hasattr(size, "__index__") or index(size) < 1:
            raise ValueError(f"{name}: expected a positive number of neurons, not {size!r}")
        if size != width.size:
            yield _plan_of_width(model, width, index(size), generator)


def _plan_of_width(model: nn.Module, width: Width, size: int, generator: torch.Generator | None) -> Plan:
    """Plan to append or remove neurons at the end, even if frozen consumers could never use new ones."""
    if width.fixed is not None:
        raise ValueError(f"{width.name} has {width.size} neurons and cannot be resized to {size}: {width.fixed}")
    if size < width.size:
        return plan_shrinkage(model, width, range(size, width.size))
    check_copies(width, size - width.size)
    with ordinary_tensors(), torch.no_grad():
        tensors = named_tensors(unwrapped(model))
        edits = width.structure.edits(width.atom, size - width.size, tensors, generator)
    return plan_edits(width, size - width.size, edits)
