"""Find more widths of a model when a layer runs that no example used, also if widths have been resized since.

Such a layer still has its initial size, so the model is traced at initial sizes, at which all layers fit each other.
Then the layer must be resized in the same way as the widths that it turns out to share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from .axes import Structure, named_tensors
from .examples import Example
from .finding import find_widths
from .limits import hold_unused
from .paths import set_attribute
from .reasons import Kind
from .terms import Atom, Product, Term, concatenation, product, resolve, size
from .widths import Widths

Resize = tuple[Atom, int | list[int]]  # neurons added at the end of a width, or the indices of those removed
_FOUND_AGAIN = (Kind.NOT_PRODUCED, Kind.NOT_CONSUMED, Kind.ONLY_BUFFERS)  # reasons that more layers may remove


def more_widths(
    model: nn.Module, known: Structure, example: Example, tie: Sequence[str | Sequence[str]]
) -> tuple[Widths, list[Resize]]:
    """The widths at their initial sizes, and how these widths have been resized since.

    Args:
        model: the model.
        known: the structure found with earlier examples.
        example: an input that may use other layers.
        tie: groups of widths that grow together, as in `widths`.

    Raises:
        ValueError: if the layers that run only now connect widths that have been resized independently.
    """
    initial = initial_sizes(known)
    tensors = {name: _with_shape(own, known, name, initial) for name, own in named_tensors(model).items()}
    copy, atoms = _copied(known, model, initial)
    with _attributes(model, known, initial):
        found = find_widths(model, [example], tie, tensors, copy)
    if found.structure.by_values != known.by_values:  # by which it was decided that widths may be resized
        found.structure.by_values = known.by_values
        hold_unused(found.structure, model)
    return found, _translated(known.resizes, atoms)


def initial_sizes(structure: Structure) -> dict[Atom, int]:
    """The sizes, before that, of the widths that have been resized."""
    sizes: dict[Atom, int] = {}
    for atom, change in structure.resizes:
        sizes[atom] = sizes.get(atom, atom.size) - (change if isinstance(change, int) else -len(change))
    return sizes


def _with_shape(tensor: Tensor, structure: Structure, name: str, sizes: Mapping[Atom, int]) -> Tensor:
    """A tensor as it was at other sizes, with arbitrary ones of its values."""
    tensor = tensor.detach()
    for axis, term in enumerate(structure.axes[name]):
        if tensor.shape[axis] != size(term, sizes):
            chosen = torch.arange(size(term, sizes), device=tensor.device) % tensor.shape[axis]
            tensor = tensor.index_select(axis, chosen)
    return tensor


@contextmanager
def _attributes(model: nn.Module, structure: Structure, sizes: Mapping[Atom, int]) -> Iterator[None]:
    """Set the attributes of modules that store sizes."""
    present = structure.attribute_values()
    try:
        for path, name, value in structure.attribute_values(sizes):
            set_attribute(model.get_submodule(path), name, value)
        yield
    finally:
        for path, name, value in present:
            set_attribute(model.get_submodule(path), name, value)


def _copied(known: Structure, model: nn.Module, sizes: Mapping[Atom, int]) -> tuple[Structure, dict[Atom, Atom]]:
    """A copy of a structure at other sizes, to be extended, and its atoms by those of the structure."""
    atoms: dict[Atom, Atom] = {}
    axes = {
        name: [Atom(size(term)) if name in known.unused else _copied_term(term, sizes, atoms) for term in terms]
        for name, terms in known.axes.items()
    }
    copy = Structure(model, axes)
    copy.unused, copy.not_called, copy.by_values = known.unused, known.not_called, known.by_values
    copy.reads, copy.plain = set(known.reads), known.plain
    copy.masks, copy.both_ways = set(known.masks), set(known.both_ways)
    copy.normed_along, copy.normed_across = set(known.normed_along), set(known.normed_across)
    copy.roles = {place: role for place, role in known.roles.items() if place[0] not in known.unused}
    copied = partial(_copied_term, sizes=sizes, atoms=atoms)
    copy.attributes = [
        replace(each, term=tuple(map(copied, each.term)) if isinstance(each.term, tuple) else copied(each.term))
        for each in known.attributes
    ]
    copy.compensations = known.compensations.copied(copied)
    for place, given in known.given.items():
        copy.given[place] = [each._replace(across=copied(each.across)) for each in given]
    copy.behind_norm = dict(known.behind_norm)
    copy.counted = [(copied(term), what) for term, what in known.counted]
    return copy, atoms


def _copied_term(term: Term, sizes: Mapping[Atom, int], atoms: dict[Atom, Atom]) -> Term:
    term = resolve(term)
    if isinstance(term, Atom):
        if term not in atoms:
            reasons = [reason for reason in term.fixed if reason.kind not in _FOUND_AGAIN]
            beside = None if term.beside is None else _copied_term(term.beside, sizes, atoms)
            atoms[term] = Atom(size(term, sizes), fixed=reasons, beside=beside, own=term.own)
        return atoms[term]
    if isinstance(term, Product):
        return product(_copied_term(each, sizes, atoms) for each in term.factors)
    return concatenation(_copied_term(each, sizes, atoms) for each in term.parts)


def _translated(resizes: Sequence[Resize], atoms: Mapping[Atom, Atom]) -> list[Resize]:
    """The same resizes for the atoms of a copy, some of which may have been unified since."""
    changes: dict[Atom, list[int | list[int]]] = {}
    for atom, change in resizes:
        changes.setdefault(atom, []).append(change)
    first: dict[Term, Atom] = {}
    result: list[Resize] = []
    for atom, copy in atoms.items():
        found = resolve(copy)
        other = first.setdefault(found, atom)
        if changes.get(atom) != changes.get(other) or (atom in changes and not isinstance(found, Atom)):
            raise ValueError(
                "a layer that the example does not use connects widths that have been resized independently: pass a "
                "list of inputs that together use all layers from the start, as example=[...]"
            )
    for atom, change in resizes:
        found = resolve(atoms[atom])
        assert isinstance(found, Atom)
        if first[found] is atom:  # once, if several are one by now
            result.append((found, change))
    return result
