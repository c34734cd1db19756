"""The sizes of a model's widths as plain data that travels with its weights, so that no example is needed to load them.

They say which axes of which tensors may differ in a fresh model, and which attributes of modules store a size.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..files import replace_file
from ..structure.axes import named_tensors
from ..structure.edits import Edit
from ..structure.finding import last_widths
from ..structure.labels import AttributeValue
from ..structure.solving import sizes_from_shapes
from ..structure.terms import leaves
from ..surgery.optimizer_state import Optimizers
from ..surgery.plan import Plan, Surgery


@dataclass(frozen=True)
class SavedSizes:
    """Sizes of widths, and what depends on them.

    Args:
        widths: sizes by name.
        axes: for each tensor, the axes whose lengths depend on widths that can be resized.
        attributes: path of a module, name and value of each attribute that depends on such a length.
    """

    widths: dict[str, int]
    axes: dict[str, list[int]]
    attributes: list[tuple[str, str, AttributeValue]]

    @staticmethod
    def of(model: nn.Module, shapes: Mapping[str, Sequence[int]] | None = None) -> SavedSizes:
        """The sizes of a model, or those that give its tensors other shapes; empty if its widths are not known."""
        found = last_widths(model)
        if found is None or found.differs_from(model) is not None:
            return SavedSizes({}, {}, [])
        structure = found.structure
        others = {} if shapes is None else sizes_from_shapes(found, shapes)
        atoms = {found[name].atom: number for name, number in others.items()}
        free = {atom for terms in structure.axes.values() for term in terms for atom in leaves(term) if not atom.fixed}
        axes = {
            name: own
            for name, terms in structure.axes.items()
            if (own := [axis for axis, term in enumerate(terms) if not free.isdisjoint(leaves(term))])
        }
        terms = [(each.module, each.name, term) for each in structure.attributes for term in each.terms]
        terms += [(each.path, each.attribute, each.term) for each in structure.compensations.scaled if each.attribute]
        dependent = {(path, name) for path, name, term in terms if not free.isdisjoint(leaves(term))}
        values = dict.fromkeys(each for each in structure.attribute_values(atoms) if each[:2] in dependent)
        sizes = {width.name: others.get(width.name, width.size) for width in found if width.fixed is None}
        return SavedSizes(sizes, axes, list(values))

    def state(self) -> dict[str, Any]:
        """The sizes as dicts and lists."""
        return asdict(self)

    @staticmethod
    def from_state(state: Any) -> SavedSizes:
        """Read what `state` returned; raises ValueError if it is something else."""
        try:
            widths = {str(name): int(number) for name, number in state["widths"].items()}
            axes = {str(name): [int(axis) for axis in own] for name, own in state["axes"].items()}
            attributes = [(str(path), str(name), _as_value(value)) for path, name, value in state["attributes"]]
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise ValueError(f"the sizes of widths cannot be read: {error!r}") from None
        return SavedSizes(widths, axes, attributes)

    def write(self, path: Path) -> None:
        """Write the sizes to a JSON file."""
        text = json.dumps(self.state(), indent=1)
        replace_file(path, lambda partial: partial.write_text(text, "utf-8"))

    @staticmethod
    def read(path: Path) -> SavedSizes:
        """Read what `write` wrote."""
        try:
            return SavedSizes.from_state(json.loads(path.read_text("utf-8")))
        except ValueError as error:
            raise ValueError(f"{path} is damaged: {error}") from None

    def inside(self, prefix: str) -> SavedSizes:
        """The sizes of the module whose parameters have this prefix."""
        return SavedSizes(
            {name.removeprefix(prefix): number for name, number in self.widths.items()},
            {name[len(prefix) :]: own for name, own in self.axes.items() if name.startswith(prefix)},
            [
                (path[len(prefix) :], name, value)
                for path, name, value in self.attributes
                if f"{path}.".startswith(prefix)
            ],
        )

    def below(self, path: str) -> SavedSizes:
        """The same sizes, for the model in which this one is the submodule at a path."""
        if not path:
            return self
        return SavedSizes(
            {f"{path}.{name}": number for name, number in self.widths.items()},
            {f"{path}.{name}": own for name, own in self.axes.items()},
            [(f"{path}.{inner}" if inner else path, name, value) for inner, name, value in self.attributes],
        )

    def joined(self, other: SavedSizes) -> SavedSizes:
        """These sizes and those of another part of the model."""
        attributes = list(dict.fromkeys([*self.attributes, *other.attributes]))
        return SavedSizes({**self.widths, **other.widths}, {**self.axes, **other.axes}, attributes)

    def resize(self, model: nn.Module, shapes: Mapping[str, Sequence[int]], optimizer: Optimizers = None) -> None:
        """Give the tensors of a model these shapes, with arbitrary values that the caller then loads over.

        Raises:
            ValueError: as `plan` does. Nothing is changed then.
        """
        with Surgery(model, optimizer, ages=False) as surgery:
            surgery.apply(self.plan(model, shapes))

    def plan(self, model: nn.Module, shapes: Mapping[str, Sequence[int]]) -> Plan:
        """Plan to give the tensors of a model these shapes.

        Raises:
            ValueError: if other axes than those of widths differ, or the model has other attributes.
        """
        tensors = named_tensors(model)
        edits = [edit for name, shape in shapes.items() for edit in self._edits(name, tensors[name], shape)]
        modules = dict(model.named_modules(remove_duplicate=False))
        attributes: list[tuple[str, str, AttributeValue, AttributeValue]] = []
        for path, name, value in self.attributes:
            present: Any = getattr(modules.get(path), name, None)
            if type(present) not in ((tuple,) if isinstance(value, tuple) else (int, float)):
                raise ValueError(f"the sizes are of another model: {path or 'the model'} has no attribute {name}")
            if present != value:
                attributes.append((path, name, present, value))
        return Plan("all widths", 0, 0, tuple(edits), tuple(attributes))

    def _edits(self, name: str, tensor: Tensor, shape: Sequence[int]) -> list[Edit]:
        if tensor.ndim != len(shape):
            raise ValueError(f"{name} has shape {tuple(shape)} in the state, but {tuple(tensor.shape)} in the model")
        edits: list[Edit] = []
        for axis, (before, after) in enumerate(zip(tensor.shape, shape, strict=True)):
            if before == after:
                continue
            if axis not in self.axes.get(name, ()):
                raise ValueError(
                    f"{name} has shape {tuple(shape)} in the state, but {tuple(tensor.shape)} in the model, and axis "
                    f"{axis} does not belong to a width that can be resized: the state is of another architecture"
                )
            new = [after - before if dim == axis else length for dim, length in enumerate(tensor.shape)]
            values = tensor.new_zeros(new) if after > before else None
            positions = torch.arange(min(before, after), max(before, after))
            edits.append(Edit(name, axis, before, positions, values, "loaded"))
        return edits


def _as_value(saved: Any) -> AttributeValue:
    """The value of an attribute; JSON has lists for tuples."""
    if isinstance(saved, (list, tuple)):
        return tuple(map(int, saved))
    return saved if isinstance(saved, float) else int(saved)
