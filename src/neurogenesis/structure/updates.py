"""Keep every `Structure` of a model up to date when a width is resized; their ties may differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from .axes import Structure, unwrapped
from .edits import Edit
from .kept import kept_of
from .terms import Atom, leaves, new_positions, owners, size


def register(structure: Structure, model: nn.Module) -> None:
    """Update the structure from now on whenever the model is resized."""
    kept_of(model).structures.add(structure)


def belongs(structure: Structure, model: nn.Module) -> bool:
    """Whether a structure describes this model, and not a copy of it."""
    return structure in kept_of(unwrapped(model)).structures


class StructureUpdate:
    """Operation that updates all structures of a model after one width was resized by `change` neurons.

    Structures with other ties may not be able to describe the new model: they are marked as outdated.
    """

    def __init__(self, model: nn.Module, width: str, edits: Sequence[Edit], change: int):
        self.model, self.width, self.edits, self.change = unwrapped(model), width, edits, change
        self.resized: list[tuple[Atom, int]] = []
        self.outdated: list[Structure] = []
        self.logged: list[tuple[Structure, list[tuple[Atom, int | list[int]]]]] = []

    def apply(self) -> None:
        live = [each for each in kept_of(self.model).structures if each.outdated is None and _fits(each, self.edits)]
        unused = [each for each in live if all(edit.tensor in each.unused for edit in self.edits)]
        live = [each for each in live if each not in unused]
        resized = [(each, _resized(each, self.edits, self.change)) for each in live]
        # That with the fewest atoms: each of them is one or several of the others' atoms.
        reference = min(((each, atoms) for each, atoms in resized if atoms), key=lambda own: len(own[1]), default=None)
        # Compute all parts before resizing any atom: they depend on the current sizes.
        parts = [None if reference is None else _all_parts(each, *reference) for each in live]
        self.resized = [(atom, self.change) for own in parts for atom in own or ()]
        # What no example uses is part of no width: its axes stand for themselves.
        self.resized += [
            (atom, edit.change)
            for each in unused
            for edit in self.edits
            for atom in leaves(each.axes[edit.tensor][edit.axis])
        ]
        self.outdated = [each for each, own in zip(live, parts, strict=True) if own is None]
        self.logged = [
            (each, [(atom, _change(each, atom, self.edits, self.change)) for atom in own or ()])
            for each, own in zip(live, parts, strict=True)
            if each.unused
        ]
        for each, resizes in self.logged:
            each.resizes += resizes
        for atom, change in self.resized:
            atom.size += change
        for each in self.outdated:
            each.outdated = (
                f"{self.width} was resized under other ties than those of this Widths or Grower: call "
                "widths(model, example) again, or create a new Grower"
            )

    def revert(self) -> None:
        for each, resizes in self.logged:
            del each.resizes[len(each.resizes) - len(resizes) :]
        for atom, change in self.resized:
            atom.size -= change
        for each in self.outdated:
            each.outdated = None

    def commit(self) -> None:
        pass


def _change(structure: Structure, atom: Atom, edits: Sequence[Edit], change: int) -> int | list[int]:
    """The number of neurons that edits append to a width, or the indices of those that they remove."""
    if change > 0:
        return change
    edit = next(each for each in edits if (each.tensor, each.axis) in structure.places[atom])
    return sorted(set(owners(structure.axes[edit.tensor][edit.axis], atom)[edit.positions].tolist()))


def _fits(structure: Structure, edits: Sequence[Edit]) -> bool:
    """Whether a structure has the sizes that the edits expect; if not, the model was changed by hand."""
    axes = structure.axes
    return all(edit.tensor in axes and size(axes[edit.tensor][edit.axis]) == edit.length for edit in edits)


def _resized(structure: Structure, edits: Sequence[Edit], change: int) -> list[Atom]:
    """The atoms that the edits resize completely, and no others; none if there are no such atoms."""
    places = {(edit.tensor, edit.axis): edit for edit in edits}
    found: list[Atom] = []
    while places:
        name, axis = next(iter(places))
        for atom in leaves(structure.axes[name][axis]):
            own = {place: places[place] for place in structure.places[atom] if place in places}
            if len(own) == len(structure.places[atom]) and _is_resized(structure, atom, own, change):
                break
        else:
            return []
        found.append(atom)
        places = {place: edit for place, edit in places.items() if place not in own}
    return found


def _is_resized(structure: Structure, atom: Atom, places: Mapping[tuple[str, int], Edit], change: int) -> bool:
    removed: Tensor | None = None
    for (name, axis), edit in places.items():
        term = structure.axes[name][axis]
        if edit.values is not None:
            expected = new_positions(term, atom, change).flatten().sort().values
        else:
            owner = owners(term, atom)
            removed = owner[edit.positions] if removed is None else removed
            if (removed < 0).any():
                return False
            expected = torch.isin(owner, removed).nonzero().flatten()
        if not torch.equal(expected, edit.positions):
            return False
    return True


def _all_parts(structure: Structure, of: Structure, atoms: Sequence[Atom]) -> list[Atom] | None:
    """The atoms that together make up those of another structure; None if there are none."""
    parts = [_parts(structure, of, atom) for atom in atoms]
    return None if any(each is None for each in parts) else [atom for own in parts for atom in own or ()]


def _parts(structure: Structure, of: Structure, atom: Atom) -> list[Atom] | None:
    """The atoms that together make up an atom of another structure of the same model; None if there are none."""
    if structure is of:
        return [atom]
    owned = {(name, axis): owners(of.axes[name][axis], atom) for name, axis in of.places[atom]}
    candidates = dict.fromkeys(leaf for name, axis in owned for leaf in leaves(structure.axes[name][axis]))
    parts, left = [], {place: owner.clone() for place, owner in owned.items()}
    for candidate in candidates:
        places = structure.places[candidate]
        own = {(name, axis): owners(structure.axes[name][axis], candidate) for name, axis in places}
        if all(place in owned and _agree(owner, owned[place]) for place, owner in own.items()):
            parts.append(candidate)
            for place, owner in own.items():
                left[place][owner >= 0] = -1
    return parts if all(bool((rest < 0).all()) for rest in left.values()) else None


def _agree(owner: Tensor, other: Tensor) -> bool:
    """Whether all positions that have an owner have the same owner in `other`."""
    return len(owner) == len(other) and bool((owner == other)[owner >= 0].all())


def outdate(model: nn.Module, reason: str) -> list[Structure]:
    """Mark all structures of a model as outdated, which others than resizing have changed; returns those marked now."""
    live = [each for each in kept_of(unwrapped(model)).structures if each.outdated is None]
    for each in live:
        each.outdated = reason
    return live


def restore_dated(structures: Sequence[Structure]) -> None:
    """Undo `outdate`."""
    for each in structures:
        each.outdated = None
