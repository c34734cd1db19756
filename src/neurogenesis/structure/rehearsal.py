"""Try out growth before it is promised: run the model with its widths grown."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .axes import Structure
from .edits import edited, grouped
from .limits import growable_atoms
from .reasons import Kind, Reason
from .rules import Axes
from .terms import Atom, Product, Term, concatenation, fix, leaves, product, resolve, size
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
            fix(atom, Reason(f"the model fails when it grows: {error}", Kind.FAILS))


def _fixed_shape(operation: str, where: str) -> Reason:
    if operation in ("aten.view", "aten.reshape", "aten._unsafe_view"):
        return Reason(f"reshaped to a size written out in the code of {where}", Kind.WRITTEN_SHAPE)
    return Reason(f"has a size that {operation} fixes in {where}", Kind.WRITTEN_SIZE)


def attempt_growth(
    model: nn.Module,
    example: Example,
    structure: Structure,
    shake: Callable[[], dict[str, Tensor]],
    outputs: Mapping[bool, Any],
    grown: Sequence[Atom],
) -> None:
    """Run the model with the given atoms grown; raise where that fails or changes the outputs of either mode."""
    current, parameters = shake(), dict(model.named_parameters())
    generator = torch.Generator().manual_seed(0)
    sizes: dict[Atom, int] = {}
    for atom, amount in _amounts(structure, grown).items():
        edits = structure.edits(atom, amount, current, generator, sizes=sizes)
        for name, own in grouped(edits).items():
            current[name] = edited(current[name], own)
        sizes[atom] = atom.size + amount
    twins: dict[Atom, Atom] = {}
    axes = {name: [_twin(term, sizes, twins) for term in terms] for name, terms in structure.axes.items()}
    attributes = structure.attribute_values(sizes)
    originals = {id(new): old for old, new in twins.items()}
    modules = dict(model.named_modules(remove_duplicate=False))
    before = [(modules[path], name, getattr(modules[path], name)) for path, name, _ in attributes]
    try:
        for path, name, value in attributes:
            setattr(modules[path], name, value)
        for training, expected in outputs.items():
            copies = with_own_buffers(current, parameters)
            tracer = Tracer(model, copies, axes, strict=True)
            check_same(expected, trace(model, example, tracer, copies, training))
    except Rejected as rejected:
        rejected.atoms = [originals[id(atom)] for atom in rejected.atoms]
        raise
    finally:
        for module, name, value in before:
            setattr(module, name, value)
    for old, new in twins.items():
        for reason in new.fixed if new.rigid else ():
            fix(old, reason)


def _amounts(structure: Structure, grown: Sequence[Atom]) -> dict[Atom, int]:
    """By how much each atom grows: parts of one axis differently, by more than rounding in the code hides."""
    chosen: dict[Atom, int] = {}
    axes = [list(dict.fromkeys(leaves(term))) for terms in structure.axes.values() for term in terms]
    for atoms in sorted(axes, key=len, reverse=True):
        for atom in atoms:
            if atom not in chosen:
                taken = {chosen[other] for other in atoms if other in chosen}
                free = [amount for amount in _STEPS if amount not in taken] or [_STEPS[len(chosen) % len(_STEPS)]]
                chosen[atom] = free[0]
    # A sixteenth more: code that rounds sizes, to multiples of 8 for example, must not round the growth away.
    return {atom: chosen[atom] + atom.size // 16 for atom in grown}


_STEPS = (3, 7, 11, 5, 13, 9)  # odd and different, so that no sum or product of two gives the size of a third by chance


def _twin(term: Term, sizes: Mapping[Atom, int], twins: dict[Atom, Atom]) -> Term:
    """The same term over new atoms, of which those with another size are rigid."""
    term = resolve(term)
    if isinstance(term, Atom):
        return twins.setdefault(term, Atom(size(term, sizes), rigid=term in sizes))
    if isinstance(term, Product):
        return product(_twin(each, sizes, twins) for each in term.factors)
    return concatenation(_twin(each, sizes, twins) for each in term.parts)


def check_same(before: Any, after: Any) -> None:
    """Raise unless outputs are equal up to rounding."""
    for old, new in zip(tensors_in(before), tensors_in(after), strict=True):
        if old.shape != new.shape:
            raise ValueError(f"an output changes its shape from {tuple(old.shape)} to {tuple(new.shape)}")
        finite = old.isfinite()
        same = torch.equal(finite, new.isfinite())
        if same and old.is_floating_point() and finite.any():
            scale = old[finite].double().abs().max()
            change = (old[finite].double() - new[finite].double()).abs().max()
            same = bool(change <= _tolerance(torch.finfo(old.dtype).eps) * scale)
        if not same:
            raise ValueError(
                "the outputs change although its new fan-out is zero: they depend on the size itself, or on "
                "state that the model keeps"
            )


def _tolerance(rounding: float) -> float:
    """The relative change that rounding may cause: sums in another order give some tens of units in the last place.

    At least 1e-8 in double precision, whose models may compute parts in single, and never more than half the digits.
    """
    return float(min(rounding**0.5, max(1e2 * rounding, 1e-8)))


def shaken(tensors: Mapping[str, Tensor], trained: Container[str]) -> dict[str, Tensor]:
    """Copies of tensors, the same every time, with noise on those that are trained: zeros they start with would
    hide mistakes."""
    return {name: _shaken(t.detach()) if name in trained else t.detach().clone() for name, t in tensors.items()}


def _shaken(tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return tensor.clone()
    spread = tensor.std(correction=0)
    # A fifth of the spread moves weights away from special values and keeps activations in their range.
    scale = 0.2 * spread if spread > 0 else tensor.abs().max().clamp_min(1)
    # A thousand random numbers between 1/4 and 1/2 of either sign, over and over: as good as millions, and cheap.
    numbers = torch.rand(2, 1021, generator=torch.Generator().manual_seed(0))
    noise = ((1 + numbers[0]) / 4 * (numbers[1] - 0.5).sign()).to(tensor) * scale
    repeated = noise.repeat(tensor.numel() // len(noise) + 1)[: tensor.numel()]
    return repeated.view(tensor.shape).add_(tensor)


def with_own_buffers(tensors: Mapping[str, Tensor], parameters: Container[str]) -> dict[str, Tensor]:
    """The tensors with copies of those that a run may change: what is no parameter."""
    return {name: tensor if name in parameters else tensor.clone() for name, tensor in tensors.items()}
