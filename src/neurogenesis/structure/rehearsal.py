"""Rehearse growth: run the model with its widths grown, and fix those that make it fail."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .axes import Structure
from .edits import adjusted, edited, grouped
from .examples import Example
from .limits import growable_atoms
from .outputs import returned
from .paths import attribute_at, set_attribute
from .reasons import Kind, Reason
from .rules import Axes
from .terms import Atom, Product, Term, concatenation, fix, leaves, product, resolve, size
from .tracing import Rejected, Tracer, trace


class Run(NamedTuple):
    """A run of the model on an example, in a mode, with its own weights or noisy ones."""

    example: int
    training: bool
    noisy: bool


def rehearse(
    structure: Structure, operations: Mapping[Any, list[tuple[str, Axes]]], attempt: Callable[..., None]
) -> None:
    """Run the model with all widths grown at once, and fix those that its code does not allow to grow.

    A single run cannot tell hard-coded shapes (`x.view(-1, 400)`) from computed ones. An operation that fails in
    the grown run identifies the width to blame; the remaining widths are tried again.
    """
    while candidates := growable_atoms(structure):
        try:
            attempt(candidates)
            return
        except Rejected as rejected:
            if not rejected.atoms:
                break
            blamed = _blamed(structure, rejected.atoms)
            heads = [atom for atom, what in structure.counts.items() if what == "heads"]
            for atom in blamed:
                fix(atom, _fixed_shape(rejected.operation, rejected.where, atom in heads))
            # Code that fails here also fails in every other instance of the same class.
            certain = rejected.certain or len(blamed) < len(rejected.atoms)
            if not certain and not rejected.key[0].__module__.startswith("torch.nn."):
                for where, terms in operations.get(rejected.key, []):
                    for atom in {leaf for term in terms for leaf in leaves(term)} & set(candidates):
                        fix(atom, _fixed_shape(rejected.operation, where, atom in heads))
        except Exception:  # raised by the model itself, without a width to blame
            break
    streams = [atom for atom in candidates if structure.compensations.is_stream(atom)]
    if 0 < len(streams) < len(candidates):  # they are the most likely to fail
        others = [atom for atom in candidates if atom not in streams]
        try:
            attempt(others)
            candidates = streams
        except Exception:  # one of them fails, too
            pass
    for atom in candidates:
        try:
            attempt([atom])
        except Exception as error:
            fix(atom, Reason(f"the model fails when it grows: {error}", Kind.FAILS))


def _blamed(structure: Structure, atoms: Sequence[Atom]) -> Sequence[Atom]:
    """The atoms to fix: if their number and the size of each are in question, heads keep their size."""
    heads = {atom for atom, what in structure.counts.items() if what == "heads"}
    return [atom for atom in atoms if atom not in heads] or atoms if heads.intersection(atoms) else atoms


def _fixed_shape(operation: str, where: str, heads: bool) -> Reason:
    """Reason for an operation that fails at other sizes."""
    if operation in ("aten.view", "aten.reshape", "aten._unsafe_view"):
        return Reason(f"reshaped to a size hard-coded in {where}", Kind.HARD_CODED_SHAPE)
    if heads and (operation in ("aten.add", "aten.mul", "aten.sub") or "attention" in operation):
        text = f"used with something made for this number of heads, as slopes of ALiBi are, by {operation} in {where}"
        return Reason(text, Kind.MADE_FOR_HEADS)
    return Reason(f"used with a hard-coded size by {operation} in {where}", Kind.HARD_CODED_SIZE)


def attempt_growth(
    model: nn.Module,
    examples: Sequence[Example],
    structure: Structure,
    perturb: Callable[[bool], dict[str, Tensor]],
    outputs: Mapping[Run, Sequence[Tensor]],
    grown: Sequence[Atom],
) -> None:
    """Run the model with the given atoms grown; raise if it fails or if outputs change, in any of the runs."""
    for noisy in dict.fromkeys(run.noisy for run in outputs):
        own = {run: expected for run, expected in outputs.items() if run.noisy == noisy}
        _attempt_runs(model, examples, structure, perturb(noisy), own, grown)


def _attempt_runs(
    model: nn.Module,
    examples: Sequence[Example],
    structure: Structure,
    current: dict[str, Tensor],
    outputs: Mapping[Run, Sequence[Tensor]],
    grown: Sequence[Atom],
) -> None:
    parameters = dict(model.named_parameters())
    generator = torch.Generator().manual_seed(0)
    sizes: dict[Atom, int] = {}
    for atom, amount in _choose_amounts(structure, grown).items():
        edits = structure.edits(atom, amount, current, generator, sizes=sizes)
        for each in structure.scales(atom, amount, sizes):
            current[each.tensor] = adjusted(current[each.tensor], each.factor, shift=each.shift)
        for name, own in grouped(edits).items():
            current[name] = edited(current[name], own)
        sizes[atom] = atom.size + amount
    copied_atoms: dict[Atom, Atom] = {}
    axes = {name: [copy_term(term, sizes, copied_atoms) for term in terms] for name, terms in structure.axes.items()}
    attributes = structure.attribute_values(sizes)
    originals = {id(new): old for old, new in copied_atoms.items()}
    modules = dict(model.named_modules(remove_duplicate=False))
    before = [(modules[path], name, attribute_at(modules[path], name)) for path, name, _ in attributes]
    try:
        for path, name, value in attributes:
            set_attribute(modules[path], name, value)
        for run, expected in outputs.items():
            copies = with_copied_buffers(current, parameters)
            tracer = Tracer(model, copies, axes, strict=True)
            found = returned(model, trace(model, examples[run.example], tracer, copies, run.training))
            check_equal_outputs(expected, found, tracer.coarsest)
    except Rejected as rejected:
        rejected.atoms = [originals[id(atom)] for atom in rejected.atoms]
        raise
    finally:
        for module, name, value in before:
            set_attribute(module, name, value)
    for old, new in copied_atoms.items():
        for reason in new.fixed if new.rigid else ():
            fix(old, reason)


def _choose_amounts(structure: Structure, grown: Sequence[Atom]) -> dict[Atom, int]:
    """Choose how much each atom grows: different amounts for atoms of one axis, large enough to survive rounding."""
    chosen: dict[Atom, int] = {}
    axes = [list(dict.fromkeys(leaves(term))) for terms in structure.axes.values() for term in terms]
    for atoms in sorted(axes, key=len, reverse=True):
        for atom in atoms:
            if atom not in chosen:
                taken = {chosen[other] for other in atoms if other in chosen}
                free = [amount for amount in _AMOUNTS if amount not in taken] or [_AMOUNTS[len(chosen) % len(_AMOUNTS)]]
                chosen[atom] = free[0]
    for term in dict.fromkeys(resolve(term) for terms in structure.axes.values() for term in terms):
        after = {atom: atom.size + chosen[atom] for atom in leaves(term) if atom in grown}
        if size(term, after) > _LONGEST * size(term):  # several small factors: channels that double stage by stage
            chosen |= {atom: 1 for atom in after if atom.size <= _SMALL}
    # Add a sixteenth: code that rounds sizes, to multiples of 8 for example, must not round the growth away.
    copied = structure.compensations.copied_atoms
    amounts = {atom: atom.size if atom in copied else chosen[atom] + atom.size // 16 for atom in grown}
    for bound in structure.bounds:  # a larger size must stay larger
        after = {atom: atom.size + amount for atom, amount in amounts.items()}
        larger = next(leaves(bound.larger.terms[0]))
        if (missing := -bound.room(after)) > 0 and not larger.fixed:
            amounts[larger] = amounts.get(larger, 0) + missing
    return amounts


_LONGEST = 16  # an axis that small factors make longer than this many times would take too much memory
_SMALL = 4
_AMOUNTS = (3, 7, 11, 5, 13, 9)  # odd and distinct, to avoid sizes that match by coincidence


def copy_term(term: Term, sizes: Mapping[Atom, int], copied: dict[Atom, Atom]) -> Term:
    """Copy a term with new atoms; atoms that are resized become rigid."""
    term = resolve(term)
    if isinstance(term, Atom):
        return copied.setdefault(term, Atom(size(term, sizes), rigid=term in sizes))
    if isinstance(term, Product):
        return product(copy_term(each, sizes, copied) for each in term.factors)
    return concatenation(copy_term(each, sizes, copied) for each in term.parts)


def check_equal_outputs(before: Sequence[Tensor], after: Sequence[Tensor], coarsest: float) -> None:
    """Raise ValueError unless outputs are equal up to rounding, which `coarsest` is at its coarsest in the model."""
    for old, new in zip(before, after, strict=True):
        if old.shape != new.shape:
            raise ValueError(f"an output changes its shape from {tuple(old.shape)} to {tuple(new.shape)}")
        finite = old.isfinite()
        same = torch.equal(finite, new.isfinite())
        if same and old.is_floating_point() and finite.any():
            scale = old[finite].double().abs().max()
            change = (old[finite].double() - new[finite].double()).abs().max()
            same = bool(change <= _tolerance(max(coarsest, torch.finfo(old.dtype).eps)) * scale)
        if not same:
            raise ValueError(
                "the outputs change although the new fan-out is zero: they depend on the size itself, or on "
                "state that the model keeps"
            )


def _tolerance(rounding: float) -> float:
    """Largest relative change attributed to rounding: reordered sums differ by tens of units in the last place.

    At least 1e-8, and at most half the digits.
    """
    return float(min(rounding**0.5, max(1e2 * rounding, 1e-8)))


def perturbed(tensors: Mapping[str, Tensor], trained: Container[str], noisy: bool) -> dict[str, Tensor]:
    """Copy tensors; if `noisy`, deterministic noise is added to those in `trained`, where zeros would hide errors."""
    return {
        name: _add_noise(own.detach()) if noisy and name in trained else own.detach().clone()
        for name, own in tensors.items()
    }


def _add_noise(tensor: Tensor) -> Tensor:
    if type(tensor) is not Tensor or not tensor.is_floating_point() or tensor.numel() == 0:  # quantized, for example
        return tensor.clone()
    spread = tensor.std(correction=0)
    # A fifth of the standard deviation moves weights off special values and keeps activations in range.
    scale = 0.2 * spread if spread > 0 else tensor.abs().max().clamp_min(1)
    # Repeat a thousand random numbers of either sign with magnitudes in [1/4, 1/2): cheaper than drawing millions.
    numbers = torch.rand(2, 1021, generator=torch.Generator().manual_seed(0))
    noise = ((1 + numbers[0]) / 4 * (numbers[1] - 0.5).sign()).to(tensor) * scale
    repeated = noise.repeat(tensor.numel() // len(noise) + 1)[: tensor.numel()]
    return repeated.view(tensor.shape).add_(tensor)


def with_copied_buffers(tensors: Mapping[str, Tensor], parameters: Container[str]) -> dict[str, Tensor]:
    """Replace buffers, which a run may change, by copies; parameters are passed through."""
    return {name: tensor if name in parameters else tensor.clone() for name, tensor in tensors.items()}
