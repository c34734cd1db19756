"""The widths of a model: which sizes can grow, what grows with them, and what prevents growth.

A width is a number of neurons or channels, together with every parameter axis that depends on it: the rows of
the layers that produce the neurons, the parameters of layers that act on each neuron separately (norms,
depthwise convolutions, PReLU), and the columns of the layers that consume them.
"""

from __future__ import annotations

import difflib
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from ..tables import table
from .axes import Axis, Structure
from .fills import FanIn
from .limits import current_reasons
from .reasons import Kind, Reason
from .rules import Counted
from .terms import Atom, Product, Term, leaves, positions_of, resolve, size

Kinds = Literal["neurons", "channels", "groups", "heads", "stream"]
ALL_KINDS: frozenset[Kinds] = frozenset(get_args(Kinds))
SINGLE: frozenset[Kinds] = ALL_KINDS - {"heads", "stream"}  # whose neurons work alone


class Width:
    """A number of neurons: its name, its current size, the axes it runs through, and whether it can grow."""

    def __init__(self, name: str, term: Term, structure: Structure):
        self.name = name
        self._own_term = term
        self.structure = structure
        self.initial = self.size
        self._positions: dict[Axis, tuple[tuple[int, ...], Tensor, bool]] = {}

    @property
    def _term(self) -> Term:
        if self.structure.outdated is not None:
            raise ValueError(f"{self.name}: {self.structure.outdated}")
        return self._own_term

    @property
    def size(self) -> int:
        """Current number of neurons."""
        return size(self._term)

    @property
    def atom(self) -> Atom:
        """The atom that is resized when the width grows."""
        return next(leaves(self._term))

    @property
    def kind(self) -> Kinds:
        """What the width counts: neurons, channels, groups of channels, heads, or entries that a norm runs across.

        Where heads split the entries that a norm runs across, and one more of them adds as many entries, "stream".
        """
        counted = self._counted
        if self.fixed is None and counted != "groups" and self.structure.compensations.is_stream(self.atom):
            return "stream"
        return counted or ("channels" if self.structure.counts.get(self.atom) == "channels" else "neurons")

    @property
    def _counted(self) -> Counted | None:
        """What it counts if these are no single entries."""
        counted = self.structure.counts.get(self.atom) if self.fixed is None else None
        return None if counted == "channels" else counted

    @property
    def unit(self) -> int:
        """Number of columns that a neuron, or a head, has in the consumer where it has the fewest."""
        return min((axis.per_neuron for axis in self.consumers), default=1)

    @property
    def features(self) -> int:
        """Number of neurons that a head consists of; 1 for a neuron."""
        return self.unit if self.kind == "heads" else 1

    def multiple(self, round_to: int) -> int:
        """What sizes are rounded to, if those of neurons are to multiples of `round_to`: heads and groups are whole."""
        if self.copied is not None:
            return self.size
        return round_to if self._counted is None else 1

    @property
    def copied(self) -> Reason | None:
        """Why new neurons are copies of all present ones, so that only multiples of the size are possible."""
        return self.structure.compensations.copied_atoms.get(self.atom)

    @property
    def ceiling(self) -> int | None:
        """The largest size that the present sizes of other widths allow; None if they do not matter."""
        bounds = [each for each in self.structure.bounds if self.atom in leaves(each.smaller.terms[0])]
        return min((self.size + each.room() for each in bounds), default=None)

    def collides(self, count: int) -> bool:
        """Whether kernels would mistake a size for another one, if a run had so many more neurons."""
        sizes = {self.atom: self.size + count}
        return any(each.room(sizes) == -1 for each in self.structure.bounds)

    @property
    def floor(self) -> int:
        """The smallest size that the present sizes of other widths allow."""
        bounds = [each for each in self.structure.bounds if self.atom in leaves(each.larger.terms[0])]
        return max((self.size - each.room() for each in bounds), default=1)

    @property
    def growable(self) -> bool:
        """Whether the width can grow now."""
        return self.reason is None

    @property
    def reason(self) -> str | None:
        """Why the width cannot grow now; None if it can."""
        why = self.why
        return None if why is None else why.text

    @property
    def why(self) -> Reason | None:
        """The reason why the width cannot grow now, with its kind; None if it can."""
        return self.obstacle()

    def obstacle(self, allowed: Container[Kind] = ()) -> Reason | None:
        """The reason why the width cannot grow now, apart from reasons of the `allowed` kinds; None if it can."""
        if (fixed := self._fixed) is not None:
            return fixed
        return next((each for each in current_reasons(self.structure, self.atom) if each.kind not in allowed), None)

    @property
    def fixed(self) -> str | None:
        """Why the width can never grow or shrink; None if it can."""
        why = self._fixed
        return None if why is None else why.text

    @property
    def _fixed(self) -> Reason | None:
        """The most specific of all reasons."""
        reasons = [reason for atom in leaves(self._term) for reason in atom.fixed]
        if not reasons:
            return None
        reason = self._of_hidden_layer(min(reasons, key=lambda each: each.kind.vagueness))
        term = resolve(self._term)
        return replace(reason, text=f"{reason.text} (as {term})") if isinstance(term, Product) else reason

    def _of_hidden_layer(self, reason: Reason) -> Reason:
        """Replace the reason if a hidden layer shares a size of the model's input or output: the remedy differs."""
        producers, consumers = self.producers, self.consumers
        if reason.kind is Kind.INPUT and producers:
            text = f"a size of the model's input, which is combined with what {producers[0].module} produces"
            return Reason(text, Kind.JOINED)
        if reason.kind is Kind.OUTPUT and producers and consumers:
            text = f"a size of the model's output, as the model returns what {consumers[0].module} reads"
            if reason.output is not None:
                text += f": call neurogenesis.internal_outputs(model, {reason.output!r}) if only the model reads it"
            return Reason(text, Kind.RETURNED)
        return reason

    @property
    def producers(self) -> list[Axis]:
        return self._axes("producer")

    @property
    def carriers(self) -> list[Axis]:
        return self._axes("carrier")

    @property
    def consumers(self) -> list[Axis]:
        return self._axes("consumer")

    @property
    def axes(self) -> list[Axis]:
        return self._axes("producer", "carrier", "consumer")

    def positions(self, axis: Axis) -> Tensor:
        """Positions that each neuron owns on one of the width's axes, of shape (size, per neuron)."""
        return self._cached_positions(axis)[1]

    def positions_after(self, axis: Axis, count: int) -> Tensor:
        """Positions that each neuron would own after growing by `count`, of shape (size + count, per neuron)."""
        return self.positions_with(axis, self.size + count)

    def positions_with(self, axis: Axis, size: int) -> Tensor:
        """Positions that each neuron would own if there were `size` of them, of shape (size, per neuron)."""
        return positions_of(self.structure.axes[axis.tensor][axis.axis], self.atom, {self.atom: size})

    def new_positions(self, axis: Axis, count: int) -> Tensor:
        """Positions that `count` new neurons would own on an axis, of shape (count, per neuron)."""
        return self.positions_after(axis, count)[self.size :]

    def in_order(self, axis: Axis) -> bool:
        """Whether the neurons own the whole axis, in order."""
        return self._cached_positions(axis)[2]

    def _cached_positions(self, axis: Axis) -> tuple[tuple[int, ...], Tensor, bool]:
        atom, term = self.atom, self.structure.axes[axis.tensor][axis.axis]
        sizes = tuple(leaf.size for leaf in leaves(term))
        known = self._positions.get(axis)
        if known is None or known[0] != sizes:
            positions = positions_of(term, atom)
            in_order = torch.equal(positions.flatten(), torch.arange(size(term)))
            known = self._positions[axis] = sizes, positions, in_order
        return known

    def neurons(self, axis: Axis, tensor: Tensor) -> Tensor:
        """Entries of a parameter, or of a tensor of its shape, by neuron: (size, per neuron, ...)."""
        rows, positions = tensor.movedim(axis.axis, 0), self.positions(axis)
        if self.in_order(axis):
            return rows.reshape(*positions.shape, *rows.shape[1:])
        return rows[positions.to(rows.device)]

    def norms(self, axis: Axis, tensor: Tensor) -> Tensor:
        """Norm of each neuron's entries in a parameter, or in a tensor of its shape."""
        part = self.neurons(axis, tensor)
        norms: Tensor = torch.linalg.vector_norm(part, dim=tuple(range(1, part.ndim)))
        return norms

    def new_entries(
        self, axis: Axis, count: int, tensor: Tensor, generator: torch.Generator | None, fan_in: FanIn | None = None
    ) -> Tensor:
        """Default values of `count` new neurons on one of the width's axes, ordered by position."""
        return self.structure.new_entries(self.atom, axis.tensor, axis.axis, count, tensor, generator, fan_in)

    def _axes(self, *roles: str) -> list[Axis]:
        return [axis for axis in self.structure.axes_of(self._term) if axis.role in roles]

    def __repr__(self) -> str:
        return f"Width({self.name!r}, size={self.size}, " + ("growable)" if self.growable else f"fixed: {self.reason})")


class Widths:
    """All widths of a model: iterate over them, look one up by name, or print them as a table.

    Sizes stay current while `neurogenesis.grow` and `neurogenesis.shrink` change the model.
    """

    def __init__(self, widths: Sequence[Width], structure: Structure):
        self._widths = {width.name: width for width in widths}
        self.structure = structure

    def __getitem__(self, name: str) -> Width:
        if name in self._widths:
            return self._widths[name]
        found = [w for w in self if any(axis.module == name for axis in w.producers)]
        found = [w for w in found if w.growable] or found
        if len(found) == 1:
            return found[0]
        if found:
            raise KeyError(f"{name!r} produces several widths: {', '.join(repr(w.name) for w in found)}")
        near = difflib.get_close_matches(name, self._widths, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "see print(widths) for the names"
        raise KeyError(f"no width is called {name!r}; {hint}")

    def __contains__(self, name: object) -> bool:
        return name in self._widths

    def __iter__(self) -> Iterator[Width]:
        return iter(self._widths.values())

    def __len__(self) -> int:
        return len(self._widths)

    @property
    def growable(self) -> list[Width]:
        return [width for width in self if width.growable]

    @property
    def sizes(self) -> dict[str, int]:
        """Size of each width that can be resized."""
        return {width.name: width.size for width in self if width.fixed is None}

    @property
    def resizes(self) -> list[tuple[str, int | list[int]]]:
        """Numbers of added neurons or indices of removed ones, as they were resized, in a model with unused layers."""
        names = {width.atom: width.name for width in self if width.fixed is None}
        return [(names[atom], change) for atom, change in self.structure.resizes if atom in names]

    @resizes.setter
    def resizes(self, saved: Sequence[tuple[str, int | list[int]]]) -> None:
        self.structure.resizes = [(self[name].atom, change) for name, change in saved]

    def differs_from(self, model: nn.Module) -> str | None:
        """What has changed in the model since its widths were found, other than by growing or shrinking."""
        return self.structure.differs_from(model)

    @property
    def why_none(self) -> str | None:
        """Why the model has no widths at all; None if it has some."""
        if self._widths:
            return None
        fixed = {atom: name for name, axes in self.structure.axes.items() for term in axes for atom in leaves(term)}
        unknown = [
            f"; {name} is {why}" for atom, name in fixed.items() for why in atom.fixed if why.kind is Kind.NO_RULE
        ]
        what = "no layer reads the output of another one: put a hidden layer between input and output"
        return what + "".join(dict.fromkeys(unknown))

    def __str__(self) -> str:
        if self.why_none is not None:
            return f"no widths: {self.why_none}"
        rows = []
        told = any(width.kind not in ("neurons", "channels") for width in self)
        for width in self:
            lists = [_join_names(axes) for axes in (width.producers, width.carriers, width.consumers)]
            kind = f"{width.kind} of {width.unit}" if width.kind in ("heads", "groups") else width.kind
            if width.kind == "stream" and width.unit > 1:
                kind += f", heads of {width.unit}"
            can_grow = "yes" if width.growable else f"no: {width.reason}"
            rows.append((width.name, str(width.size), *[kind] * told, *lists, can_grow))
        return table(("width", "size", *["kind"] * told, "producers", "carriers", "consumers", "can grow"), rows)

    __repr__ = __str__


def _join_names(axes: Sequence[Axis]) -> str:
    names = list(dict.fromkeys(map(str, axes)))
    return ", ".join(names) if len(names) <= 3 else f"{names[0]}, {names[1]} and {len(names) - 2} more"
