"""The sizes of widths as plain data that is saved with the weights, so that no example is needed to load them.

They say which axes of which tensors may differ in a fresh model, and which attributes of modules store a size.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from ..files import replace_file
from .finding import last_widths
from .interfaces import interfaces_at, resized_interfaces
from .labels import AttributeValue
from .origins import Origins, origins_of
from .solving import shapes_in, sizes_from_shapes
from .terms import leaves, size


@dataclass(frozen=True)
class SavedSizes:
    """Sizes of widths, and what depends on them; false if no sizes were saved.

    Args:
        widths: sizes by name.
        axes: for each tensor, the axes whose lengths depend on widths that can be resized.
        attributes: path of a module, name and value of each attribute that depends on such a length.
        interfaces: tensor, axis and length of each axis that was resized by hand although it has a size of the model's
            inputs or outputs.
        stacks: stacks that have got other blocks.
    """

    widths: dict[str, int] = field(default_factory=dict)
    axes: dict[str, list[int]] = field(default_factory=dict)
    attributes: list[tuple[str, str, AttributeValue]] = field(default_factory=list)
    interfaces: list[tuple[str, int, int]] = field(default_factory=list)
    stacks: list[Origins] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.widths or self.interfaces)

    @staticmethod
    def of(model: nn.Module, state: Mapping[str, Any] | None = None) -> SavedSizes:
        """The sizes of a model, or those in a state of it; no sizes of widths if these are not known."""
        found, stacks = last_widths(model), list(origins_of(model))
        if found is None:
            return SavedSizes(stacks=stacks)
        structure, shapes = found.structure, shapes_in(model, model.state_dict() if state is None else state)
        resized = {(name, axis): shapes[name][axis] for name, axis in resized_interfaces(model) if name in shapes}
        interfaces = interfaces_at(structure, resized)
        others = {} if state is None else sizes_from_shapes(found, shapes, fixed=interfaces)
        atoms = {found[name].atom: number for name, number in others.items()} | interfaces
        free = {atom for terms in structure.axes.values() for term in terms for atom in leaves(term) if not atom.fixed}
        free |= interfaces.keys()
        axes = {
            name: own
            for name, terms in structure.axes.items()
            if (own := [axis for axis, term in enumerate(terms) if not free.isdisjoint(leaves(term))])
        }
        terms = [(each.module, each.name, term) for each in structure.attributes for term in each.terms]
        terms += [(each.path, each.attribute, each.term) for each in structure.compensations.scaled if each.attribute]
        dependent = {(path, name) for path, name, term in terms if not free.isdisjoint(leaves(term))}
        values = dict.fromkeys(each for each in structure.attribute_values(atoms) if each[:2] in dependent)
        places = [
            (name, axis, size(structure.axes[name][axis], atoms))
            for atom in interfaces
            for name, axis in structure.places[atom]
        ]
        return SavedSizes({**found.sizes, **others}, axes, list(values), places, stacks)

    def state(self) -> dict[str, Any]:
        """The sizes as dicts and lists."""
        return {**asdict(self), "stacks": [each.state() for each in self.stacks]}

    @staticmethod
    def from_state(state: Any) -> SavedSizes:
        """Read what `state` returned; raises ValueError if it is something else."""
        try:
            widths = {str(name): int(number) for name, number in state["widths"].items()}
            axes = {str(name): [int(axis) for axis in own] for name, own in state["axes"].items()}
            attributes = [(str(path), str(name), _as_value(value)) for path, name, value in state["attributes"]]
            interfaces = [(str(name), int(axis), int(length)) for name, axis, length in state.get("interfaces", ())]
            stacks = [Origins.from_state(each) for each in state.get("stacks", ())]
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise ValueError(f"the sizes of widths cannot be read: {error!r}") from None
        return SavedSizes(widths, axes, attributes, interfaces, stacks)

    def write(self, path: Path) -> None:
        """Write the sizes to a JSON file."""
        text = json.dumps(self.state(), indent=1)
        replace_file(path, lambda partial: partial.write_text(text, "utf-8"))

    @staticmethod
    def read(path: Path) -> SavedSizes:
        """Read what `write` wrote; empty if there is no such file."""
        if not path.exists():
            return SavedSizes()
        try:
            return SavedSizes.from_state(json.loads(path.read_text("utf-8")))
        except ValueError as error:
            raise ValueError(f"{path} is damaged: {error}") from None

    def without_prefix(self, prefix: str) -> SavedSizes:
        """The sizes of the module whose parameters have this prefix."""
        return SavedSizes(
            {name.removeprefix(prefix): number for name, number in self.widths.items()},
            {name[len(prefix) :]: own for name, own in self.axes.items() if name.startswith(prefix)},
            [
                (path[len(prefix) :], name, value)
                for path, name, value in self.attributes
                if f"{path}.".startswith(prefix)
            ],
            [(name[len(prefix) :], axis, length) for name, axis, length in self.interfaces if name.startswith(prefix)],
            [
                replace(each, parent=each.parent[len(prefix) :])
                for each in self.stacks
                if f"{each.parent}.".startswith(prefix)
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
            [(f"{path}.{name}", axis, length) for name, axis, length in self.interfaces],
            [each.below(path) for each in self.stacks],
        )

    def joined(self, other: SavedSizes) -> SavedSizes:
        """These sizes and those of another submodule of the same model."""
        attributes = list(dict.fromkeys([*self.attributes, *other.attributes]))
        return SavedSizes(
            {**self.widths, **other.widths},
            {**self.axes, **other.axes},
            attributes,
            [*self.interfaces, *other.interfaces],
            list(dict.fromkeys([*self.stacks, *other.stacks])),
        )


def _as_value(saved: Any) -> AttributeValue:
    """The value of an attribute; JSON has lists for tuples."""
    if isinstance(saved, (list, tuple)):
        return tuple(map(int, saved))
    return saved if saved is None or isinstance(saved, float) else int(saved)
