"""Numbers that know what they are the size of: an attribute, an axis, or products and quotients of these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .terms import Atom, Term, is_single, leaves, resolve

Place = tuple[str, str]  # path of a module, name of an attribute
Key = tuple[str, str, int | None]  # the same, with the place of a number in a tuple


class Notes(Protocol):
    """What numbers note about their use."""

    reads: set[Place]
    quotients: list[Quotient]
    equal: list[tuple[Stored, Length]]

    @property
    def stored(self) -> Mapping[Key, Term]:
        """The axes of which attributes are the sizes."""


class Known(int):
    """A size that knows what it is the size of; its quotients know what they are a factor of."""

    def __floordiv__(self, other: int) -> Any:
        number = int(self) // int(other)
        if number * other != int(self):
            return number
        quotient = Quotient.of(self, other)
        if isinstance(self, Stored) and isinstance(other, Stored):
            self.sources.quotients.append(quotient)
        return quotient

    def __mul__(self, other: int) -> Any:
        return self._times(other, (self, other))

    def __rmul__(self, other: int) -> Any:
        return self._times(other, (other, self))

    def _times(self, other: int, factors: tuple[int, int]) -> Any:
        number = int.__mul__(self, other)
        return Multiple.of(factors, number) if isinstance(other, int) else number

    def __add__(self, other: Any) -> Any:
        found = int.__add__(self, other)
        return Position.of(self, other, found) if isinstance(other, Known) else found

    def __eq__(self, other: object) -> bool:
        equal = int(self) == other
        if equal:
            for stored, length in ((self, other), (other, self)):
                if isinstance(stored, Stored) and isinstance(length, Length):
                    stored.sources.equal.append((stored, length))
        return equal

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return int.__hash__(self)

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)

    def __deepcopy__(self, memo: dict[int, Any]) -> int:
        return int(self)


class Stored(Known):
    """The value of an attribute of a module, or of an entry of a tuple of numbers.

    The attribute is noted in `reads` of its sources once something is computed from it.
    """

    path: str
    name: str
    sources: Notes
    place: int | None  # in the tuple
    length: int  # of the tuple

    @staticmethod
    def of(value: int, path: str, name: str, sources: Notes, place: int | None = None, length: int = 0) -> Stored:
        """A value with its place."""
        result = Stored(value)
        result.sources, result.path, result.name, result.place, result.length = sources, path, name, place, length
        return result

    def note(self) -> None:
        """Note that something is computed from the attribute."""
        self.sources.reads.add((self.path, self.name))


def _noting(operation: str) -> Callable[..., Any]:
    """An operation of integers that notes what it is computed from."""
    compute = getattr(Known, operation)

    def noting(self: Stored, *others: Any) -> Any:
        self.note()
        return compute(self, *others)

    return noting


_OPERATIONS = (
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod divmod rdivmod pow rpow lshift rlshift "
    "rshift rrshift neg abs eq ne lt le gt ge bool float"
).split()
for _operation in _OPERATIONS:
    setattr(Stored, f"__{_operation}__", _noting(f"__{_operation}__"))
Stored.__hash__ = int.__hash__  # type: ignore[method-assign]


class Length(Known):
    """The length of an axis of a tensor."""

    term: Term

    @staticmethod
    def of(term: Term, value: int) -> Length:
        """A length with its axis."""
        result = Length(value)
        result.term = term
        return result


class Multiple(Known):
    """The product of a known size and another number, such as that of images and heads."""

    factors: tuple[int, int]

    @staticmethod
    def of(factors: tuple[int, int], value: int) -> Multiple:
        """A product with its factors."""
        result = Multiple(value)
        result.factors = factors
        return result


class Position(Known):
    """A place that is so many entries behind another one."""

    start: Known
    length: Known

    @staticmethod
    def of(start: Known, length: Known, value: int) -> Position:
        """A place with the one before it."""
        result = Position(value)
        result.start, result.length = start, length
        return result


class Quotient(Known):
    """A known size divided by a number, such as the number of heads."""

    dividend: Known
    divisor: int

    @staticmethod
    def of(dividend: Known, divisor: int) -> Quotient:
        """A quotient without a remainder."""
        result = Quotient(int(dividend) // int(divisor))
        result.dividend, result.divisor = dividend, divisor
        return result


def key_of(number: Stored) -> Key:
    """Where a number is stored."""
    return number.path, number.name, number.place


@dataclass(frozen=True)
class Wanted:
    """A length that the code wants an axis to have, or a factor of it, if it is a product with a factor of 1.

    Args:
        axis: the axis.
        length: the length.
        number: what the code gives for it: a number that may know where it comes from, -1 for what remains, or None if
            that is not known, as inside an operation that is made of others.
    """

    axis: int
    length: int
    number: int | None

    @property
    def written(self) -> bool:
        """Whether it is a number written in the code."""
        return self.number is not None and self.number != -1 and not isinstance(self.number, Known)

    @property
    def may_change(self) -> bool:
        """Whether the code knows that it may be another one."""
        if isinstance(self.number, Length):
            return any(map(is_single, leaves(self.number.term)))
        return self.number == -1 or isinstance(self.number, Known)

    def is_that_of(self, term: Term) -> bool:
        """Whether it is the length of just this axis."""
        return isinstance(self.number, Length) and resolve(self.number.term) == resolve(term)

    def includes(self, atom: Atom) -> int:
        """Whether the axis has an atom as a factor: `NO`, `PERHAPS`, `PROBABLY` or `YES`."""
        return _includes(self.number, atom)


def wanted(lengths: Sequence[int], numbers: Sequence[int] | None) -> list[Wanted]:
    """The lengths that the code wants, by the numbers that it gives for them, if they are known."""
    if numbers is None or len(numbers) != len(lengths):
        return [Wanted(axis, length, None) for axis, length in enumerate(lengths)]
    result = []
    for axis, (length, number) in enumerate(zip(lengths, numbers, strict=True)):
        factors = [Wanted(axis, int(each), each) for each in _factors(number)]
        single = [each.length == 1 and each.may_change for each in factors]
        if len(factors) == 1 or not any(single) or number != length:
            result.append(Wanted(axis, length, number))
            continue
        first = single.index(False) if False in single else -1
        for place, each in enumerate(factors):
            if single[place]:
                result.append(each)
            elif place == first:
                result.append(Wanted(axis, length, number))
    return result


def _factors(number: int) -> list[int]:
    return [one for each in number.factors for one in _factors(each)] if isinstance(number, Multiple) else [number]


NO, PERHAPS, PROBABLY, YES = range(4)


def _includes(number: int | None, atom: Atom) -> int:
    if isinstance(number, Length):
        return YES if atom in leaves(number.term) else NO
    if isinstance(number, Stored):
        term = number.sources.stored.get(key_of(number))
        return PERHAPS if term is None else YES if atom in leaves(term) else NO
    if isinstance(number, Multiple):
        return max(_includes(each, atom) if isinstance(each, Known) else NO for each in number.factors)
    if isinstance(number, Quotient):
        divided = isinstance(number.divisor, Known) and _includes(number.divisor, atom) == YES
        return NO if divided else _includes(number.dividend, atom)
    return PROBABLY if number == -1 else PERHAPS
