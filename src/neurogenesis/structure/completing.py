"""Find the widths of a model again when a layer runs that no example used, although widths have been resized since.

That layer still has the sizes of the beginning. So the model is traced with these: at the sizes of the beginning, all
its parts fit each other. What has been resized since then tells how the layer must be resized.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from .axes import Structure, named_tensors
from .terms import Atom, leaves, size
from .tracing import Example
from .widths import Widths, find_widths

Resize = tuple[Atom, int | list[int]]  # neurons added at the end of a width, or the indices of those removed


def complete_widths(
    model: nn.Module, known: Structure, examples: Sequence[Example], tie: Sequence[str | Sequence[str]]
) -> tuple[Widths, list[Resize]]:
    """The widths at the sizes of the beginning, and what has been resized since, in terms of these widths.

    Args:
        model: the model.
        known: the structure that the earlier examples have shown.
        examples: all examples, the latest included.
        tie: groups of widths that grow together, as in `widths`.

    Raises:
        ValueError: if the layers that run only now connect widths that have been resized independently.
    """
    initial = initial_sizes(known)
    tensors = {name: _with_shape(own, known, name, initial) for name, own in named_tensors(model).items()}
    with _attributes(model, known, initial):
        found = find_widths(model, examples, tie, tensors)
    return found, [(_same_width(known, found.structure, atom), change) for atom, change in known.resizes]


def initial_sizes(structure: Structure) -> dict[Atom, int]:
    """The sizes of the widths that have been resized before they were."""
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
            setattr(model.get_submodule(path), name, value)
        yield
    finally:
        for path, name, value in present:
            setattr(model.get_submodule(path), name, value)


def _same_width(known: Structure, found: Structure, atom: Atom) -> Atom:
    """The atom that runs through the same axes and, besides, only through those that were not used before."""
    places = known.places[atom]
    tensor, axis = places[0]
    for leaf in leaves(found.axes[tensor][axis]):
        if set(places) <= set(found.places[leaf]):
            others = {name for name, _ in set(found.places[leaf]) - set(places)}
            if others <= known.unused:
                return leaf
    raise ValueError(
        f"a layer that the example does not use connects {tensor} with other widths, and they have been resized "
        "independently: pass a list of inputs that together use all layers from the start, as example=[...]"
    )
