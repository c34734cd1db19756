"""The axes of a model's parameters and buffers, as terms, and the role of each axis."""

from __future__ import annotations

import re
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .compensations import Compensations
from .edits import Average, Copies, Edit, Scale
from .fills import COPY, MEAN, ONE, RANDOM, RMS, ZERO, FanIn, Fill, new_values
from .flops import Work
from .known import Place
from .labels import Attribute, AttributeValue, Site
from .paths import attribute_at, tensor_at
from .reasons import Reason
from .recurrent import Bound, bounds_of
from .rules import Axes, Counted, Role
from .terms import (
    Atom,
    Sizes,
    Term,
    fix,
    leaves,
    new_positions,
    owners,
    positions_of,
    resolve,
    size,
)
from .tracing import Tracer
from .wrappers import remember_wrapper


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside the wrappers of `torch.compile` and `DistributedDataParallel`."""
    while True:
        inner = getattr(model, "_orig_mod", model)
        inner = inner if isinstance(inner, nn.Module) else model
        if isinstance(inner, nn.parallel.DistributedDataParallel):
            wrapper, inner = inner, unwrapped(inner.module)
            remember_wrapper(inner, wrapper)
        if inner is model:
            break
        model = inner
    if isinstance(model, nn.DataParallel):
        raise TypeError("the model is wrapped in DataParallel: pass the model inside, its .module")
    return model


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers by name; shared ones appear once, under their first name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


@dataclass(frozen=True)
class Axis:
    """One axis of a parameter or buffer that a width runs through.

    `per_neuron` is the number of positions each neuron owns (49 after flattening a 7 x 7 image), `offset` the first
    position of the width (nonzero after a concatenation). `role` is producer, carrier or consumer.
    """

    tensor: str
    axis: int
    role: str
    per_neuron: int = field(compare=False)  # like offset, changes when other widths on the same axis grow
    offset: int = field(compare=False)

    @property
    def module(self) -> str:
        """Path of the layer that the parameter belongs to."""
        return layer_of(self.tensor)

    def __str__(self) -> str:
        times = f" x{self.per_neuron}" if self.per_neuron > 1 else ""
        return f"{self.module}{times}" + (f" @{self.offset}" if self.offset else "")


def layer_of(tensor: str) -> str:
    """Path of the layer of a parameter: its module, or the parameter itself if it is not a usual weight or bias."""
    path, _, name = tensor.rpartition(".")
    if ".parametrizations." in f".{path}":
        path, _, name = f".{path}".partition(".parametrizations.")
        path = path.removeprefix(".")
    return path if path and _LAYER_TENSORS.fullmatch(name) else tensor


_LAYER_TENSORS = re.compile(
    r"weight|bias|running_mean|running_var|weight_g|weight_v"
    r"|(weight|bias)_(ih|hh|hr)(_l\d+(_reverse)?)?"  # of recurrent layers
)


class Given(NamedTuple):
    """What new entries of a tensor must be, as a norm runs across what they add to, and the tensors that scale it."""

    across: Term  # the axis that the norm runs across
    fill: Fill
    factors: frozenset[str]


class Structure:
    """The axes of all parameters and buffers as terms, and the role of each axis."""

    def __init__(self, model: nn.Module, axes: dict[str, Axes]):
        self.axes = axes
        self.outdated: str | None = None  # why it no longer describes the model
        self.buffers = frozenset(name for name, _ in model.named_buffers())
        self.masks: set[str] = set()  # buffers that weights are multiplied by
        self.unused: frozenset[str] = frozenset()  # parameters and buffers that no example uses
        self.not_called: frozenset[str] = frozenset()  # parameters of modules that no example calls
        self.resizes: list[tuple[Atom, int | list[int]]] = []  # neurons added or removed, if something is unused
        self.by_values = False  # whether the values of tensors decide what runs, as in mixtures of experts
        self.held: dict[Atom, Reason] = {}  # widths that these may be connected to
        self.complete: set[Atom] = set()  # sizes that they cannot be connected to
        self.model = weakref.ref(model)
        self.roles: dict[tuple[str, int], tuple[Role, Fill]] = {}
        self.both_ways: set[tuple[str, int]] = set()  # axes that are producer in one place and consumer in another
        self.attributes: list[Attribute] = []
        self.reads: set[Place] = set()  # attributes of modules from which something else than a size is computed
        self.compensations = Compensations()
        # Axes whose new entries are stated by norms.
        self.given: dict[tuple[str, int], list[Given]] = {}
        self.behind_norm: dict[tuple[str, int], bool] = {}  # of consumers, whether all they read comes from a norm
        self.counted: list[tuple[Term, Counted]] = []  # axes that count something else than neurons
        self.singles: dict[Site, Term] = {}  # axes of size 1 that reshapes add as factors
        self.plain: frozenset[Site] = frozenset()  # where they are none
        self.work: Work | None = None  # of a forward pass on the first example
        # Axes of weights under weight norm: the axis that indexes the normalized slices, and the axes within a slice.
        self.normed_along: set[tuple[str, int]] = set()
        self.normed_across: set[tuple[str, int]] = set()

    def add(self, tracer: Tracer, tensors: Mapping[str, Tensor]) -> None:
        """Add the roles, norms and attributes that a tracer has recorded."""
        for record in tracer.roles:
            places = self._used_axes(record.sources, record.term, record.stride, tensors)
            for place in places:
                present = self.roles.get(place)
                if present is not None and {present[0], record.role} == {"producer", "consumer"}:
                    self.both_ways.add(place)
                if present is None or _PRECEDENCE[record.role] > _PRECEDENCE[present[0]]:
                    self.roles[place] = record.role, record.fill
                if record.role == "consumer":
                    self.behind_norm[place] = record.behind_norm and self.behind_norm.get(place, True)
            if record.role == "consumer" and not places:
                fix(record.term, Reason("consumed by a tensor that is not a parameter"))
        for norm in tracer.weight_norms:
            for axis, (term, stride) in enumerate(zip(norm.terms, norm.strides, strict=True)):
                places = self._used_axes(norm.sources, term, stride, tensors)
                (self.normed_along if axis == norm.axis else self.normed_across).update(places)
        self.compensations.add(tracer.compensations)
        self._add_given(tracer.compensations, tensors)
        self.counted += tracer.counted
        self.singles |= tracer.singles
        self.masks |= tracer.masks & self.buffers
        self.reads |= tracer.reads
        known = set(self.attributes)
        for attribute in tracer.attributes:
            module = tracer.modules[attribute.module]
            value = attribute_at(module, attribute.name)
            if isinstance(value, int | tuple) and value == attribute.value() and attribute not in known:
                known.add(attribute)
                self.attributes.append(attribute)

    def _add_given(self, found: Compensations, tensors: Mapping[str, Tensor]) -> None:
        """Add which new entries of tensors are stated by norms."""
        for each in found.entries:
            if each.maker is None:
                continue
            for place in self._used_axes(each.maker.sources, each.maker.term, each.maker.stride, tensors):
                self.given.setdefault(place, []).append(Given(each.term, each.fill, each.maker.factors))

    def _used_axes(
        self, sources: Iterable[str], term: Term, stride: int | None, tensors: Mapping[str, Tensor]
    ) -> list[tuple[str, int]]:
        """The axes of `sources` that an operation used, as pairs of tensor name and axis."""
        atoms, result = set(leaves(term)), []
        for name in sources:
            axes = [axis for axis, own in enumerate(self.axes[name]) if not atoms.isdisjoint(leaves(own))]
            counts = Counter(atom for axis in axes for atom in set(leaves(self.axes[name][axis])))
            if max(counts.values(), default=0) > 1:
                # If input and output axes are the same width, the stride tells which one was used.
                axes = [axis for axis in axes if tensors[name].stride(axis) == stride] or axes
            result += [(name, axis) for axis in axes]
        return result

    def role(self, name: str, axis: int) -> tuple[Role, Fill]:
        """Role of an axis, and the default fill for new neurons."""
        role, fill = self.roles.get((name, axis), ("carrier", MEAN))
        return role, RANDOM if (name, axis) in self.normed_along else fill

    @cached_property
    def counts(self) -> dict[Atom, Counted]:
        """What atoms count that do not count neurons; valid once all axes are unified."""
        order = sorted(self.counted, key=lambda own: own[1] != "channels")  # convolutions may make heads, too
        return {atom: what for term, what in order for atom in leaves(term)}

    @cached_property
    def bounds(self) -> list[Bound]:
        """Sizes that must stay below others; valid once all axes are unified."""
        return bounds_of(self.attributes)

    def out_of_bounds(self, sizes: Sizes) -> str | None:
        """What is wrong if atoms have other sizes; None if nothing is."""
        return next((why for bound in self.bounds if (why := bound.obstacle(sizes)) is not None), None)

    @cached_property
    def places(self) -> dict[Atom, list[tuple[str, int]]]:
        """The axes that each atom occurs on; valid once all axes are unified."""
        result: dict[Atom, list[tuple[str, int]]] = {}
        for name, axes in self.axes.items():
            for number, term in enumerate(axes):
                for atom in dict.fromkeys(leaves(term)):
                    result.setdefault(atom, []).append((name, number))
        return result

    def axes_of(self, term: Term) -> Iterator[Axis]:
        """Yield the axes of a width, or of a fixed product or sum of sizes."""
        term = resolve(term)
        for name, number in self.places[next(leaves(term))]:
            whole, role = self.axes[name][number], self.role(name, number)[0]
            if isinstance(term, Atom):
                owned = (owners(whole, term) == 0).nonzero().flatten()
                yield Axis(name, number, role, per_neuron=len(owned), offset=int(owned[0]))
            elif resolve(whole) == term:
                yield Axis(name, number, role, per_neuron=1, offset=0)

    def edits(
        self,
        atom: Atom,
        change: int | Sequence[int],
        tensors: Mapping[str, Tensor],
        generator: Any,
        fan_ins: Mapping[str, FanIn] | None = None,
        sizes: Sizes | None = None,
    ) -> list[Edit]:
        """Edits that append `change` neurons to a width, or remove the neurons with the given indices.

        `sizes` overrides the sizes of other widths, for tensors that have already been resized.
        """
        result = []
        for name, axis in self.places[atom]:
            term, role = self.axes[name][axis], self.role(name, axis)[0]
            values = None
            if isinstance(change, int) and self._fill(atom, name, axis) == COPY:
                result.append(self._copies(atom, name, axis, change, tensors[name], sizes))
                continue
            if isinstance(change, int):
                positions = new_positions(term, atom, change, sizes).flatten().sort().values
                fan_in = (fan_ins or {}).get(name) if role == "producer" else None
                values = self.new_entries(atom, name, axis, change, tensors[name], generator, fan_in, sizes)
                if self._fill(atom, name, axis) == MEAN and self._is_given(atom, name, axis):
                    scales = self._scales(atom, name, axis)
                    average = Average(name, axis, size(term, sizes), positions, values, role, scales)
                    result.append(average.within(tensors))
                    continue
            else:
                positions = torch.isin(owners(term, atom, sizes), torch.tensor(change)).nonzero().flatten()
            result.append(Edit(name, axis, size(term, sizes), positions, values, role))
        # Consumers last: where new rows and new columns cross, the zero fan-out wins.
        return sorted(result, key=lambda edit: edit.role == "consumer")

    def _copies(self, atom: Atom, name: str, axis: int, count: int, tensor: Tensor, sizes: Sizes | None) -> Edit:
        """The edit that appends copies of the present neurons, one after the other."""
        term = self.axes[name][axis]
        present, positions = positions_of(term, atom, sizes), new_positions(term, atom, count, sizes)
        order = positions.flatten().argsort()
        sources = present[torch.arange(count) % len(present)].flatten()[order]
        values = tensor.detach().index_select(axis, sources.to(tensor.device))
        length, role = size(term, sizes), self.role(name, axis)[0]
        return Copies(name, axis, length, positions.flatten()[order], values, role, sources)

    def scales(self, atom: Atom, change: int, sizes: Sizes | None = None) -> list[Scale]:
        """Factors of tensors that make up for `change` more neurons of a width."""
        return self.compensations.scales(sizes, {**(sizes or {}), atom: size(atom, sizes) + change})

    def new_entries(
        self,
        atom: Atom,
        name: str,
        axis: int,
        count: int,
        tensor: Tensor,
        generator: torch.Generator | None,
        fan_in: FanIn | None = None,
        sizes: Sizes | None = None,
    ) -> Tensor:
        """Default values of `count` new neurons on one axis of a width, ordered by position."""
        fill, positions = self._fill(atom, name, axis), new_positions(self.axes[name][axis], atom, count, sizes)
        if self.is_untrained(name, axis) and not self._is_given(atom, name, axis):
            rows = self.rows(atom, name, axis, tensor, sizes)
            drawn = fill.values == "random" and rows.is_floating_point() and name not in self.masks
            common = None if drawn and len(rows) == 1 else common_row(rows)  # a single neuron shows no pattern
            if common is not None:
                order = positions.flatten().argsort().to(common.device)
                return common.expand(count, *common.shape[1:]).flatten(0, 1)[order].movedim(0, axis)
            if name in self.masks:  # a mask must not zero out new neurons
                fill = ONE if is_binary(rows) else MEAN
        return new_values(tensor, axis, positions.numel(), fill, generator, fan_in)

    def _fill(self, atom: Atom, name: str, axis: int) -> Fill:
        """How new positions of a tensor are filled: as usual, unless a norm runs across the width."""
        role, usual = self.role(name, axis)
        if atom in self.compensations.copied_atoms:
            return ZERO if role == "consumer" else COPY
        if not self.compensations.is_stream(atom):
            return usual
        if given := self._given(atom, name, axis):
            return given[0].fill
        offset = atom in self.compensations.offset
        if role == "consumer":  # the norm maps new entries to zero
            return RANDOM if self.behind_norm.get((name, axis)) and not offset else usual
        if role == "carrier" and usual == ZERO and offset:
            return ONE
        return RMS if (name, axis) in self._scale_places(atom) and atom in self.compensations.means else usual

    def _given(self, atom: Atom, name: str, axis: int) -> list[Given]:
        """What norms across a width state of new entries on an axis."""
        return [each for each in self.given.get((name, axis), ()) if atom in leaves(each.across)]

    def _is_given(self, atom: Atom, name: str, axis: int) -> bool:
        copied = atom in self.compensations.copied_atoms
        return self.compensations.is_stream(atom) and not copied and bool(self._given(atom, name, axis))

    def _scales(self, atom: Atom, name: str, axis: int) -> tuple[tuple[str, int], ...]:
        """The tensors that multiply what an axis produces, and their axes."""
        own = set(leaves(self.axes[name][axis]))
        return tuple(
            (factor, number)
            for factor in sorted(frozenset[str]().union(*(each.factors for each in self._given(atom, name, axis))))
            for number, term in enumerate(self.axes[factor])
            if not own.isdisjoint(leaves(term)) and size(term) == prod(map(size, self.axes[factor]))
        )

    def _scale_places(self, atom: Atom) -> set[tuple[str, int]]:
        """The axes of the tensors that multiply the entries of a width before a norm runs across it."""
        return {place for name, axis in self.given for place in self._scales(atom, name, axis)}

    def tensor(self, name: str) -> Tensor:
        """A parameter or buffer of the model."""
        model = self.model()
        assert model is not None
        try:
            return tensor_at(model, name)
        except AttributeError:
            raise ValueError(f"{name} no longer exists: the model has changed since its widths were found") from None

    def is_untrained(self, name: str, axis: int) -> bool:
        """Whether an axis holds untrained values per neuron: one of a buffer or of a frozen carrier.

        Weights of frozen producers and consumers do not count, nor do running statistics, which start from scratch.
        """
        role, fill = self.role(name, axis)
        if role == "consumer" or fill.statistic:
            return False
        if name in self.buffers:
            return True
        return role == "carrier" and self.model() is not None and not self.tensor(name).requires_grad

    def rows(self, atom: Atom, name: str, axis: int, tensor: Tensor, sizes: Sizes | None = None) -> Tensor:
        """Entries of a tensor by neuron of a width, of shape (neurons, per neuron, ...)."""
        term = self.axes[name][axis]
        if tensor.ndim <= axis or tensor.shape[axis] != size(term, sizes):
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}: the model has changed since its widths were found"
            )
        return tensor.detach().movedim(axis, 0)[positions_of(term, atom, sizes).to(tensor.device)]

    def differs_from(self, model: nn.Module) -> str | None:
        """What has changed in the model since its widths were found, other than by growing or shrinking."""
        if self.outdated is not None:
            return self.outdated
        tensors = named_tensors(model)
        for name in {**tensors, **self.axes}:
            actual = tuple(tensors[name].shape) if name in tensors else None
            expected = tuple(map(size, self.axes[name])) if name in self.axes else None
            if actual != expected:
                other = "is missing" if actual is None else "is new"
                known = actual is not None and expected is not None
                return f"the model has changed ({name} {f'has shape {actual}, not {expected}' if known else other})"
        return None

    def attribute_values(self, sizes: Sizes | None = None) -> list[tuple[str, str, AttributeValue]]:
        """Module path, name and expected value of every attribute that stores a size, or makes up for one."""
        model, values = self.model(), list[tuple[str, str, AttributeValue]]()
        values += [(each.module, each.name, each.value(sizes)) for each in self.attributes]
        return values if model is None else values + self.compensations.attribute_values(model, sizes)

    def attribute_changes(self, sizes: Sizes) -> list[tuple[str, str, AttributeValue, AttributeValue]]:
        """Attributes that other sizes of widths alter: module path, name, old and new value."""
        pairs = zip(self.attribute_values(), self.attribute_values(sizes), strict=True)
        return list(dict.fromkeys((path, name, old, new) for (path, name, old), (_, _, new) in pairs if old != new))

    def parameters_with(self, model: nn.Module, sizes: Sizes) -> int:
        """Number of parameters the model would have at other widths."""
        return sum(
            prod(size(term, sizes) for term in self.axes[name]) if name in self.axes else own.numel()
            for name, own in model.named_parameters()
        )

    def flops_with(self, sizes: Sizes | None = None, inside: str = "") -> int:
        """Floating-point operations of a forward pass of one sample at other widths, in a module or the whole model."""
        return 0 if self.work is None else self.work.flops(self.axes, sizes, inside) // self.work.samples


_PRECEDENCE = {"carrier": 0, "producer": 1, "consumer": 2}


def common_row(rows: Tensor) -> Tensor | None:
    """The row that all neurons share, of shape (1, per neuron, ...); None if they differ."""
    return rows[:1] if bool((rows == rows[:1]).all()) else None


def is_binary(rows: Tensor) -> bool:
    """Whether all entries are 0 or 1."""
    return bool(((rows == 0) | (rows == 1)).all())
