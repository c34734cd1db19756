r"""What makes up for the size of an axis: parameters and attributes that are scaled when the axis is resized.

A norm across n entries divides by :math:`\sqrt{\frac1n \sum_i x_i^2 + \epsilon}`. With new entries of zero, its
other outputs stay if its gain is multiplied by :math:`(n/n')^{1/2}` and :math:`\epsilon` by :math:`n/n'`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from torch import nn

from .edits import Scale
from .fills import COPY, Fill
from .labels import AttributeValue, Maker
from .reasons import Kind, Reason
from .terms import Atom, Product, Sizes, Sum, Term, fix, leaves, resolve, size


@dataclass(frozen=True)
class Compensation:
    """A tensor, or an attribute of a module, that makes up for the size n of an axis.

    It is multiplied by ((n - minus) / (n' - minus)) ** power when the axis is resized to n'.

    Args:
        path: of the tensor, or of the module that has the attribute.
        attribute: the attribute's name.
        term: the axis.
        power: the exponent.
        where: the module that the norm runs in.
        minus: 1 where a sum over the axis is divided by n - 1.
        shift: what the model adds to the tensor before it multiplies by it, such as 1 for gains that start at zero.
        value: of the attribute, if the attribute itself is None.
    """

    path: str
    attribute: str | None
    term: Term
    power: float
    where: str
    minus: int = 0
    shift: float = 0.0
    value: float | None = None

    def __str__(self) -> str:
        return ".".join(filter(None, (self.path, self.attribute)))

    def factor(self, before: Sizes | None, after: Sizes | None) -> float:
        """The factor between two sizes of the axis."""
        old, new = size(self.term, before) - self.minus, size(self.term, after) - self.minus
        return float((old / new) ** self.power) if new > 0 else 1.0


@dataclass(frozen=True)
class NewEntries:
    """What new entries of activations along an axis must be: zero, the mean of the present ones, or copies of them.

    `maker` is one of those that add to them, which is given new entries of this kind; None for the axis itself.
    """

    term: Term
    fill: Fill
    where: str
    maker: Maker | None = None

    def __str__(self) -> str:
        kinds = {"zero": "zero", "mean": "the mean of the present ones", "copy": "copies of the present ones"}
        kind = kinds[self.fill.values]
        return f"{kind} in {self.where}"


@dataclass
class Compensations:
    """All that makes up for the sizes of a model's axes; ask about atoms once all axes are unified."""

    scaled: list[Compensation] = field(default_factory=list)
    entries: list[NewEntries] = field(default_factory=list)
    copies: list[tuple[Term, Reason]] = field(default_factory=list)  # axes that only copies of all entries leave as is
    held: dict[tuple[str, str], dict[float | None, float | None]] = field(default_factory=dict)  # values of attributes
    shifted: list[Term] = field(default_factory=list)  # axes whose new entries the norm must not leave at zero

    def add(self, other: Compensations) -> None:
        """Add what was recorded in another run."""
        self.scaled += other.scaled
        self.entries += [each for each in other.entries if each.maker is None]
        self.shifted += other.shifted
        self.copies += other.copies

    def scales(self, before: Sizes | None, after: Sizes) -> list[Scale]:
        """The factors of tensors for other sizes of axes."""
        return [
            Scale(
                each.path, factor, f"{size(each.term, before)} -> {size(each.term, after)} in {each.where}", each.shift
            )
            for each in self._distinct()
            if each.attribute is None and (factor := each.factor(before, after)) != 1
        ]

    def attribute_values(self, model: nn.Module, sizes: Sizes | None) -> list[tuple[str, str, AttributeValue]]:
        """Path of the module, name and value at other sizes of every attribute that is scaled."""
        values: dict[tuple[str, str], float | None] = {}
        for each in self._distinct():
            if each.attribute is not None:
                key = each.path, each.attribute
                present: Any = values[key] if key in values else getattr(model.get_submodule(each.path), each.attribute)
                factor = each.factor(None, sizes)
                if factor != 1:
                    number: Any = each.value if present is None else present
                    present = self._held(*key, number * factor, present)
                values[key] = present
        return [(*key, value) for key, value in values.items()]

    def _held(self, path: str, name: str, value: float, present: float | None) -> float | None:
        """The value of an attribute, or the one that it held before if it is the same up to rounding."""
        base = next(each.value for each in self.scaled if (each.path, each.attribute) == (path, name))
        self.held.setdefault((path, name), {}).setdefault(base if present is None else present, present)
        near = (own for number, own in self.held[path, name].items() if number and abs(value / number - 1) < 1e-14)
        return next(near, value)

    def _distinct(self) -> Iterator[Compensation]:
        """Every compensation once, even if it was recorded in several runs; copies need none."""
        copied = {atom for atom in self.copied_atoms if not atom.fixed}
        needed = [each for each in self.scaled if copied.isdisjoint(leaves(each.term))]
        yield from {(str(each), resolve(each.term), each.power): each for each in needed}.values()

    def is_stream(self, atom: Atom) -> bool:
        """Whether a norm runs across an axis that an atom belongs to, and something makes up for its size."""
        return atom in self._where

    @cached_property
    def copied_atoms(self) -> dict[Atom, Reason]:
        """Atoms that grow by copies of all present entries only, which leave mean and variance, and the reason."""
        return {atom: reason for term, reason in reversed(self.copies) for atom in leaves(term)}

    @cached_property
    def offset(self) -> set[Atom]:
        """Atoms whose new entries are normalized to zero and then shifted, because zeros would not learn."""
        return {atom for term in self.shifted for atom in leaves(term)}

    @cached_property
    def means(self) -> set[Atom]:
        """Atoms whose new entries are the means of the present ones."""
        return {atom for each in self.entries if each.fill.values == "mean" for atom in leaves(each.term)}

    def where(self, atom: Atom) -> str | None:
        """The module whose norm runs across an axis that an atom belongs to; None if there is none."""
        return self._where.get(atom)

    @cached_property
    def _where(self) -> dict[Atom, str]:
        records: list[Compensation | NewEntries] = [*self.scaled, *self.entries]
        return {atom: each.where for each in reversed(records) for atom in leaves(each.term)}

    def fix_contradictions(self) -> None:
        """Fix axes whose new entries would have to be zero in one place and means in another, or means of a part."""
        first: dict[Atom, NewEntries] = {}
        for each in self.entries:
            term = resolve(each.term)
            if each.fill.values == "mean" and isinstance(term, Sum):
                reason = Reason(f"normalized across together with others in {each.where}", Kind.NORMALIZED)
                self.copies.append((term, reason))
            for atom in leaves(term):
                other = first.setdefault(atom, each)
                if other.fill != each.fill and COPY not in (other.fill, each.fill):
                    self.copies.append((atom, Reason(f"new entries must be {other} and {each}", Kind.NORMALIZED)))
        across = [each.term for each in self.entries] + [term for term, _ in self.copies]
        for term in across:  # copies of one of several sizes would change the weights of all in a mean
            free = {atom: reason for atom, reason in self.copied_atoms.items() if not atom.fixed}
            parts = [set(leaves(part)) & free.keys() for part in _summed(term)]
            if any(part != parts[0] for part in parts):
                for atom in {atom for part in parts for atom in part}:
                    text = f"{free[atom].text}, where copies of one of several parts would change the mean of all"
                    fix(atom, replace(free[atom], text=text))

    def copied(self, translated: Callable[[Term], Term]) -> Compensations:
        """The same for other terms."""
        return Compensations(
            [replace(each, term=translated(each.term)) for each in self.scaled],
            [replace(each, term=translated(each.term)) for each in self.entries],
            [(translated(term), reason) for term, reason in self.copies],
            self.held,
            list(map(translated, self.shifted)),
        )


def _summed(term: Term) -> tuple[Term, ...]:
    """The parts of an axis that are concatenated, also before other axes were merged with them."""
    term = resolve(term)
    if isinstance(term, Product):
        return next((parts for parts in map(_summed, term.factors) if len(parts) > 1), (term,))
    return term.parts if isinstance(term, Sum) else (term,)
