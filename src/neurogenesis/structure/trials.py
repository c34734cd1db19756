"""Try other sizes of a model's inputs and outputs: what it returned before must stay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .axes import Structure
from .edits import edited, grouped
from .examples import Example, copied_example
from .labels import AttributeValue
from .outputs import returned
from .paths import attribute_at, set_attribute
from .rehearsal import check_equal_outputs, copy_term, with_copied_buffers
from .rules import Axes
from .terms import Atom, Sizes, Term, leaves, owners, size
from .tracing import Tracer, trace


@dataclass(frozen=True)
class Pass:
    """A pass of the model: its inputs and outputs, with the terms of their axes, over copies of the structure's atoms.

    `rounding` is that of the least precise activations.
    """

    example: Example
    training: bool
    inputs: list[tuple[Tensor, Axes]]
    outputs: list[tuple[Tensor, Axes]]
    copies: Mapping[Atom, Atom]
    rounding: float

    def example_at(self, sizes: Sizes) -> Example:
        """The example with zeros for new features."""
        grown: dict[Tensor, Tensor] = {}
        for tensor, terms in self.inputs:
            new = tensor
            for axis, term in enumerate(terms):
                if any(atom in sizes for atom in leaves(term)):
                    wider = new.new_zeros([size(term, sizes) if n == axis else own for n, own in enumerate(new.shape)])
                    new = wider.index_copy(axis, _kept(term, sizes, new.device), new)
            grown[tensor] = new
        result: Example = copied_example(self.example, grown)
        return result

    def difference(self, other: Pass, sizes: Sizes, free: bool) -> str | None:
        """How the outputs of a pass at other sizes differ, but for new entries; None if they do not.

        Args:
            other: the pass.
            sizes: the sizes of copied atoms.
            free: whether outputs without such an axis may differ.
        """
        for (old, terms), (new, _) in zip(self.outputs, other.outputs, strict=True):
            own = any(atom in sizes for term in terms for atom in leaves(term))
            if free and not own:
                continue
            if list(new.shape) != [size(term, sizes) for term in terms]:
                return f"an output changes its shape from {tuple(old.shape)} to {tuple(new.shape)}"
            for axis, term in enumerate(terms):
                new = new.index_select(axis, _kept(term, sizes, new.device))
            try:
                check_equal_outputs([old], [new], self.rounding)
            except ValueError:
                return "present entries of an output change: an operation of the model runs across all of them"
        return None


def _kept(term: Term, sizes: Sizes, device: torch.device) -> Tensor:
    """Positions of the present entries on an axis at other sizes."""
    kept = torch.ones(size(term, sizes), dtype=torch.bool)
    for atom in sizes:
        kept &= owners(term, atom, sizes) < atom.size
    return kept.nonzero().flatten().to(device)


def run(
    model: nn.Module, example: Example, tensors: Mapping[str, Tensor], structure: Structure, training: bool
) -> Pass:
    """Run the model with other tensors in place of its own, and label what it reads and returns."""
    copies: dict[Atom, Atom] = {}
    axes: dict[str, Axes] = {
        name: [copy_term(term, {}, copies) for term in terms]
        if tuple(map(size, terms)) == tensors[name].shape
        else list(map(Atom, tensors[name].shape))
        for name, terms in structure.axes.items()
    }
    own = with_copied_buffers(tensors, dict(model.named_parameters()))
    tracer = Tracer(model, own, axes, strict=False)
    outputs = returned(model, trace(model, example, tracer, own, training))
    originals: dict[Tensor, Tensor] = {}
    copied_example(example, originals)
    inputs = [(tensor, tracer.label(copy).axes) for tensor, copy in zip(originals, tracer.inputs, strict=True)]
    labelled = [(tensor, list(tracer.label(tensor).axes)) for tensor in outputs]
    return Pass(example, training, inputs, labelled, copies, tracer.coarsest)


def grown_tensors(
    structure: Structure, atoms: Sequence[Atom], amount: int, tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Tensors of a model with some sizes grown, by the usual values."""
    result, sizes = dict(tensors), dict[Atom, int]()
    generator = torch.Generator().manual_seed(0)
    for atom in atoms:
        for name, own in grouped(structure.edits(atom, amount, result, generator, sizes=sizes)).items():
            result[name] = edited(result[name], own)
        sizes[atom] = atom.size + amount
    return result


@contextmanager
def attributes_set(model: nn.Module, values: Sequence[tuple[str, str, AttributeValue]]) -> Iterator[None]:
    """Set attributes of modules for a while."""
    before = [(path, name, attribute_at(model.get_submodule(path), name)) for path, name, _ in values]
    try:
        for path, name, value in values:
            set_attribute(model.get_submodule(path), name, value)
        yield
    finally:
        for path, name, value in before:
            set_attribute(model.get_submodule(path), name, value)
