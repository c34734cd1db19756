"""What tracing records: the axes of tensors, the roles of axes of parameters, norms and attributes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from torch import nn

from .fills import Fill
from .reasons import Reason
from .rules import Axes, Role
from .terms import Atom, Sizes, Term, leaves, size

Site = tuple[str, int, int]  # of an axis that a reshape adds: path of the module, number of the operation there, axis
AttributeValue = float | tuple[int, ...] | None  # of an attribute that depends on sizes


@dataclass(eq=False)
class Norm:
    """A norm across an axis, as far as it is recognized; if it is not in the end, the axis is fixed.

    Args:
        term: the axis.
        reason: why the axis cannot change if no norm is recognized.
        where: the module it runs in.
        minus: 1 if the sum of squares is divided by n - 1.
        power: the gain is multiplied by (n / n') ** power.
        divided: whether activations have been divided.
        read: whether an operation uses its results, or the model returns them.
        scaled: whether a parameter has been multiplied by since, which can make up for the size.
        broken: whether its intermediate results are used for something else.
        shifted: whether a parameter has been added since.
        within: the norm that it is a part of, for a mean that is subtracted first.
        averages: whether it takes means, which stay if all entries are copied.
        flat: an operation that its output has reached which maps zero to zero with a gradient of zero, such as relu.
    """

    term: Term
    reason: Reason
    where: str
    minus: int = 0
    power: float = 0.5
    divided: bool = False
    read: bool = False
    scaled: bool = False
    broken: bool = False
    shifted: bool = False
    within: Norm | None = None
    averages: bool = False
    flat: str | None = None

    @property
    def obstacle(self) -> Reason | None:
        """Why the axis cannot change; None if it can."""
        if not self.read and not self.divided:  # such as the mean of attention weights over heads
            return None
        if self.within is not None and not self.broken:
            return self.within.obstacle
        if self.broken or not self.divided:
            return self.reason
        if self.power and not self.scaled:
            return Reason(f"normalized across in {self.where}, with no gain that could make up for another size")
        if self.flat is not None and not self.shifted:
            return Reason(f"normalized to zero in {self.where}, where {self.flat} would keep new entries from learning")
        return None


@dataclass(frozen=True)
class Value:
    """What a tensor is in a norm that is written out.

    Args:
        kind: a step of it.
        of: origin of the activations that it was computed of.
        base: the activations across which the norm runs, before their mean was subtracted.
        norm: the norm; None for squares, of which there is no mean yet.
        centered: whether the mean was subtracted.
        mean: the mean that was subtracted, as a norm.
    """

    kind: Literal["mean", "centered", "square", "moment", "root", "inverse"]
    of: object
    base: Label
    norm: Norm | None = None
    centered: bool = False
    mean: Norm | None = None


@dataclass(frozen=True)
class Maker:
    """What entries of activations come from: an axis of a tensor computed from `sources` only, or the output of a norm.

    Args:
        sources: names of these parameters and buffers; none for a norm.
        term: the axis.
        stride: of the axis; None if it is not a view of a parameter.
        factors: tensors that the entries have been multiplied by since, along the axis.
        linear: whether nothing but sums and products with constants lies between.
        zero: whether zeros stay zeros on the way, with a gradient.
        twice: whether the entries are products of two that it makes, so that zeros get no gradient.
    """

    sources: frozenset[str]
    term: Term
    stride: int | None
    factors: frozenset[str] = frozenset()
    linear: bool = True
    zero: bool = True
    twice: bool = False


@dataclass(frozen=True)
class Label:
    """The axes of a tensor, what its entries come from and, if these are parameters and buffers only, which ones."""

    axes: Axes
    static: bool  # computed from parameters and buffers only
    sources: frozenset[str] = frozenset()  # names of these parameters and buffers
    zeros: frozenset[str] = frozenset()  # sources whose zeros make entries zero
    weight: bool = False  # a parameter, or a view or cast of one
    zero_lost_in: str | None = None  # operation that does not map zero to zero with a nonzero gradient
    makers: frozenset[Maker] = frozenset()  # of activations
    norms: frozenset[Norm] = frozenset()  # of which it is the output, up to factors and shifts
    scaled: frozenset[Norm] = frozenset()  # those of the norms by whose gains it has been multiplied
    value: Value | None = None  # what it is in a norm that is written out, such as the mean of squares
    noise: bool = False  # drawn at random, or the same for all entries
    shift: float = 0.0  # added to the parameter that it is otherwise
    origin: object = field(default_factory=object)  # the same for tensors with the same values


@dataclass
class Frame:
    """A running module, and the number of operations it has executed itself."""

    module: nn.Module
    path: str
    operations: int = 0
    opaque: bool = False  # a rule describes the whole module
    kernels: tuple[bool, bool] | None = None  # whether those that run a recurrent layer as one operation were on

    @property
    def where(self) -> str:
        return f"{self.path or 'the model'} ({type(self.module).__name__})"

    @property
    def key(self) -> tuple[type, int]:
        """Identifies an operation across all instances of a module class."""
        return type(self.module), self.operations


@dataclass(frozen=True)
class RoleRecord:
    """The role of one axis of a tensor computed from `sources` only."""

    sources: frozenset[str]
    term: Term
    stride: int | None  # None if it is not a view of a parameter
    role: Role
    fill: Fill
    behind_norm: bool = False  # whether it consumes what a norm across the axis returns


@dataclass(frozen=True)
class NormRecord:
    """A weight whose slices along one axis are divided by their norms."""

    sources: frozenset[str]
    terms: Axes
    strides: tuple[int | None, ...]
    axis: int


@dataclass(frozen=True)
class Attribute:
    """An attribute of a module that stores the size of an axis, or a tuple of the sizes of several."""

    module: str
    name: str
    term: Term | tuple[Term, ...]

    @property
    def terms(self) -> tuple[Term, ...]:
        return self.term if isinstance(self.term, tuple) else (self.term,)

    def value(self, sizes: Sizes | None = None) -> int | tuple[int, ...]:
        """What it stores, at other sizes if they are given."""
        lengths = tuple(size(term, sizes) for term in self.terms)
        return lengths if isinstance(self.term, tuple) else lengths[0]


def rigid(terms: Iterable[Term]) -> list[Atom]:
    return [atom for term in terms for atom in leaves(term) if atom.rigid]
