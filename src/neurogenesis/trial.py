"""Try out growth before it is promised: run the model with its widths grown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from .axes import Atom, Product, Term, concatenation, fix, leaves, product, resolve
from .edits import edited, grouped
from .rules import Axes
from .structure import Structure, growable_atoms, named_tensors
from .tracing import Example, Rejected, Tracer, tensors_in, trace


def try_out(
    structure: Structure, operations: Mapping[Any, list[tuple[str, Axes]]], attempt: Callable[..., None]
) -> None:
    """Run the model with all widths grown at once and fix those that its code does not let grow.

    Shapes written out in the code (`x.view(-1, 400)`) cannot be told from shapes it computes by looking at
    one run. Operations that fail in the grown run name the width to blame; the others are tried again.
    """
    while candidates := growable_atoms(structure):
        try:
            attempt(candidates)
            return
        except Rejected as rejected:
            if not rejected.atoms:
                break
            for atom in rejected.atoms:
                fix(atom, _fixed_shape(rejected.operation, rejected.where))
            # A line of the user's code that fails here fails in every other instance of its class too.
            if not rejected.certain and not rejected.key[0].__module__.startswith("torch.nn."):
                for where, terms in operations.get(rejected.key, []):
                    for atom in {leaf for term in terms for leaf in leaves(term)} & set(candidates):
                        fix(atom, _fixed_shape(rejected.operation, where))
        except Exception:  # raised by the model's own code, which names no width
            break
    for atom in candidates:
        try:
            attempt([atom])
        except Exception as error:
            fix(atom, f"the model fails when it grows: {error}")


def _fixed_shape(operation: str, where: str) -> str:
    if operation in ("aten.view", "aten.reshape", "aten._unsafe_view"):
        return f"reshaped to a size written out in the code of {where}"
    return f"has a size that {operation} fixes in {where}"


def attempt_growth(
    model: nn.Module,
    example: Example,
    structure: Structure,
    outputs: Any,
    modes: Sequence[bool],
    grown: Sequence[Atom],
) -> None:
    """Run the model with the given atoms grown; raise where that fails or changes the outputs."""
    tensors = named_tensors(model)
    current = {name: tensor.detach() for name, tensor in tensors.items()}
    generator = torch.Generator().manual_seed(0)
    sizes = [atom.size for atom in grown]
    try:
        for number, atom in enumerate(grown):
            edits = structure.edits(atom, 3 + number % 3, current, generator)
            for name, own in grouped(edits).items():
                current[name] = edited(current[name], own)
            atom.size += 3 + number % 3
        twins: dict[Atom, Atom] = {}
        axes = {name: [_twin(term, set(grown), twins) for term in terms] for name, terms in structure.axes.items()}
        attributes = structure.attribute_values()
    finally:
        for atom, original in zip(grown, sizes, strict=True):
            atom.size = original
    originals = {id(new): old for old, new in twins.items()}
    replaced = {name: tensor for name, tensor in current.items() if tensor.shape != tensors[name].shape}
    modules = dict(model.named_modules(remove_duplicate=False))

    def call(*args: Any, **kwargs: Any) -> Any:
        return torch.func.functional_call(model, replaced, args, kwargs, strict=False)

    before = [(modules[path], name, getattr(modules[path], name)) for path, name, _ in attributes]
    try:
        for path, name, value in attributes:
            setattr(modules[path], name, value)
        for training in modes:
            tracer = Tracer(model, current, axes, strict=True)
            result = trace(model, example, tracer, call, training)
            if not training:
                _check_same(outputs, result)
    except Rejected as rejected:
        rejected.atoms = [originals[id(atom)] for atom in rejected.atoms]
        raise
    finally:
        for module, name, value in before:
            setattr(module, name, value)
    for old, new in twins.items():
        for reason in new.fixed if new.rigid else ():
            fix(old, reason)


def _twin(term: Term, rigid: set[Atom], twins: dict[Atom, Atom]) -> Term:
    term = resolve(term)
    if isinstance(term, Atom):
        return twins.setdefault(term, Atom(term.size, rigid=term in rigid))
    if isinstance(term, Product):
        return product(_twin(each, rigid, twins) for each in term.factors)
    return concatenation(_twin(each, rigid, twins) for each in term.parts)


def _check_same(before: Any, after: Any) -> None:
    for old, new in zip(tensors_in(before), tensors_in(after), strict=True):
        if old.shape != new.shape:
            raise ValueError(f"an output changes its shape from {tuple(old.shape)} to {tuple(new.shape)}")
        if old.is_floating_point() and old.numel():
            tolerance = torch.finfo(old.dtype).eps ** 0.5
            old, new = old.double().nan_to_num(), new.double().nan_to_num()
            if (old - new).abs().max() > tolerance * old.abs().max().clamp_min(1e-6):
                raise ValueError("the outputs change although the new fan-out is zero")
