r"""What makes up for the size of an axis: parameters and attributes that are scaled when the axis is resized.

A norm across n entries divides by :math:`\sqrt{\frac1n \sum_i x_i^2 + \epsilon}`. With new entries of zero, its
other outputs stay if its gain is multiplied by :math:`(n/n')^{1/2}` and :math:`\epsilon` by :math:`n/n'`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import nn

from .edits import Scale
from .fills import MEAN, RANDOM, Fill
from .labels import AttributeValue
from .reasons import Kind, Reason
from .rules import Role
from .terms import Atom, Sizes, Term, fix, leaves, resolve, size


@dataclass(frozen=True)
class Compensation:
    """A tensor, or an attribute of a module, that is multiplied by (n / n') ** power when an axis is resized."""

    path: str  # of the tensor, or of the module that has the attribute
    attribute: str | None
    term: Term
    power: float
    where: str

    def __str__(self) -> str:
        return ".".join(filter(None, (self.path, self.attribute)))

    def factor(self, before: Sizes | None, after: Sizes | None) -> float:
        """The factor between two sizes of the axis."""
        return float((size(self.term, before) / size(self.term, after)) ** self.power)


@dataclass(frozen=True)
class NewEntries:
    """What new entries of activations along an axis must be: zero, or the mean of the present ones."""

    term: Term
    fill: Fill
    where: str

    def __str__(self) -> str:
        kind = {"zero": "zero", "mean": "the mean of the present ones"}[self.fill.values]
        return f"{kind} in {self.where}"


@dataclass
class Compensations:
    """All that makes up for the sizes of a model's axes; ask about atoms once all axes are unified."""

    scaled: list[Compensation] = field(default_factory=list)
    entries: list[NewEntries] = field(default_factory=list)

    def add(self, other: Compensations) -> None:
        """Add what was recorded in another run."""
        self.scaled += other.scaled
        self.entries += other.entries

    def scales(self, before: Sizes | None, after: Sizes) -> list[Scale]:
        """The factors of tensors for other sizes of axes."""
        return [
            Scale(each.path, factor, f"{size(each.term, before)} -> {size(each.term, after)} in {each.where}")
            for each in self._distinct()
            if each.attribute is None and (factor := each.factor(before, after)) != 1
        ]

    def attribute_values(self, model: nn.Module, sizes: Sizes | None) -> list[tuple[str, str, AttributeValue]]:
        """Path of the module, name and value at other sizes of every attribute that is scaled."""
        values: dict[tuple[str, str], float] = {}
        for each in self._distinct():
            if each.attribute is not None:
                key = each.path, each.attribute
                present = values.get(key) or getattr(model.get_submodule(each.path), each.attribute)
                values[key] = present * each.factor(None, sizes)
        return [(*key, value) for key, value in values.items()]

    def _distinct(self) -> Iterator[Compensation]:
        """Every compensation once, even if it was recorded in several runs."""
        yield from {(str(each), resolve(each.term), each.power): each for each in self.scaled}.values()

    def fill(self, atom: Atom, role: Role, usual: Fill) -> Fill:
        """How new positions of a tensor are filled: as usual, unless a rule states the new entries of activations.

        Consumers need no zeros then: they read new entries behind a norm that maps them to zero.
        """
        given = self._given.get(atom)
        if given is None:
            return usual
        if role == "consumer":
            return RANDOM
        return given if role == "producer" or usual.shift else usual

    def is_average(self, atom: Atom, role: Role, usual: Fill) -> bool:
        """Whether new positions of a tensor are means because a rule states so for activations."""
        return self.fill(atom, role, usual) == MEAN != usual

    @cached_property
    def _given(self) -> dict[Atom, Fill]:
        return {atom: each.fill for each in self.entries for atom in leaves(each.term)}

    def why_by_hand(self, atom: Atom) -> Reason | None:
        """Why a width is resized by hand only; None if nothing makes up for its size."""
        if atom not in self._where:
            return None
        return Reason(f"not grown in training: {self._where[atom]} is adjusted with it", Kind.COMPENSATED)

    @cached_property
    def _where(self) -> dict[Atom, str]:
        records: list[Compensation | NewEntries] = [*self.scaled, *self.entries]
        return {atom: each.where for each in reversed(records) for atom in leaves(each.term)}

    def fix_contradictions(self) -> None:
        """Fix axes whose new entries would have to be zero in one place and means in another."""
        first: dict[Atom, NewEntries] = {}
        for each in self.entries:
            for atom in leaves(each.term):
                other = first.setdefault(atom, each)
                if other.fill != each.fill:
                    fix(atom, Reason(f"new entries must be {other} and {each}"))

    def copied(self, translated: Callable[[Term], Term]) -> Compensations:
        """The same for other terms."""
        return Compensations(
            [replace(each, term=translated(each.term)) for each in self.scaled],
            [replace(each, term=translated(each.term)) for each in self.entries],
        )
