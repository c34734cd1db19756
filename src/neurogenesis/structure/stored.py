"""Where the sizes in a model's code come from: which attribute or which axis gives an axis its size.

While a model is traced, the integers among the attributes of its modules are instances of `Stored`, and the lengths in
shapes of tensors are instances of `Length`. Where code passes one to a reshape, the axis that it becomes is known,
however many other sizes have the same value. ``x.reshape(batch, tokens, channels)`` says that the heads of attention
and the channels of its input have one size, if the shape of the input gave the number of channels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import prod
from typing import Any, NamedTuple

from torch import Tensor, nn

from .known import Key, Known, Length, Multiple, Place, Position, Quotient, Stored, key_of
from .labels import Attribute
from .reasons import Reason
from .rules import Axes
from .terms import Atom, Conflict, Product, Term, factor, fix, leaves, product, resolve, size, unify, without


class Found(NamedTuple):
    """An axis, and the number that gives it its size; `inner` if it gives the size of an outer factor only."""

    tensor: Tensor
    axis: int
    number: Any
    inner: int = 1

    @property
    def fits(self) -> bool:
        """Whether the axis exists and has the size."""
        return self.axis < self.tensor.ndim and self.tensor.shape[self.axis] == self.number


class Sources:
    """What is known in a trace about where sizes come from; axes whose size comes from one place are the same.

    Args:
        axes_of: the axes of a tensor; None if it has not been seen.
        attributes: that store sizes; completed here.
        reads: attributes from which something is computed.
        relabel: gives a tensor other axes.
        count_heads: notes that an axis counts heads.
    """

    def __init__(
        self,
        axes_of: Callable[[Tensor], Axes | None],
        attributes: list[Attribute],
        reads: set[Place],
        relabel: Callable[[Tensor, Axes], None],
        count_heads: Callable[[Term], None],
    ):
        self.axes_of, self._attributes, self.reads = axes_of, attributes, reads
        self.relabel, self.count_heads = relabel, count_heads
        self.stored: dict[Key, Term] = {}  # axes with their size from an attribute
        self._tuples: dict[tuple[str, str], int] = {}  # lengths of the attributes that are tuples of such sizes
        self.quotients: list[Quotient] = []  # of attributes, such as the size of a head
        self.equal: list[tuple[Stored, Length]] = []  # attributes that were compared with lengths, and equal them
        self.given: Sequence[int] | None = None  # to the operation that runs, as lengths of its output
        self.batched = False  # whether it is a product with batches

    def note(self, found: Found) -> None:
        """Note that an axis has its size from an attribute or from another axis."""
        axes = self.axes_of(found.tensor)
        if axes is None:
            return
        first = term = axes[found.axis]
        try:
            term = factor(term, found.inner)[0] if found.inner > 1 else term
            first = self._source(found.number, term)
            unify(first, term)
        except Conflict:
            if isinstance(found.number, Stored):
                text = f"tied to others by {'.'.join(filter(None, (found.number.path, found.number.name)))}"
                for each in (first, term):
                    fix(each, Reason(text))
            elif isinstance(found.number, Length) and Counter(leaves(first)) != Counter(leaves(term)):
                text = f"divided in two ways, as {resolve(first)} and as {resolve(term)}"
                for each in (first, term):
                    fix(each, Reason(text))
            # Otherwise the rehearsal shows where the model fails.

    def note_slice(self, tensor: Tensor, axis: int, length: Multiple) -> None:
        """Note that a slice has so many entries, the number of heads first."""
        axes = self.axes_of(tensor)
        factors = [each for each in length.factors if isinstance(each, Known)]
        if axes is not None and len(factors) == len(length.factors):
            with suppress(Conflict):  # the rehearsal shows where the model fails
                unify(axes[axis], product(self._source(each, Atom(int(each))) for each in factors))

    def note_attribute(self, path: str, name: str, tensor: Tensor, axis: int) -> None:
        """Note that an attribute of a module, if it has the size of an axis, stores it."""
        axes = self.axes_of(tensor)
        if axes is not None:
            self._attributes.append(Attribute(path, name, axes[axis]))

    def complete(self, modules: Mapping[str, nn.Module]) -> None:
        """Add the attributes that are tuples of sizes, products or only compared, once all sizes have been seen."""
        known = {(each.module, each.name) for each in self._attributes}
        for stored, other in self.equal:
            if (stored.path, stored.name) not in known:
                self._source(stored, other.term)
        for quotient in self.quotients:  # which stay, as in ``(self.dim // self.num_heads) ** -0.5``
            assert isinstance(quotient.dividend, Stored) and isinstance(quotient.divisor, Stored)
            whole, part = key_of(quotient.dividend), key_of(quotient.divisor)
            if whole[:2] not in known and part in self.stored:
                self._source(quotient.dividend, product([self.stored[part], Atom(int(quotient))]))
            elif whole in self.stored and part[:2] not in known:
                outer = _without_inner(self.stored[whole], int(quotient))
                if outer is not None:
                    self._source(quotient.divisor, outer)
        for (path, name), length in self._tuples.items():
            value = getattr(modules[path], name)
            terms = (self.stored.get((path, name, place), Atom(value[place])) for place in range(length))
            self._attributes.append(Attribute(path, name, tuple(terms)))

    def _source(self, number: Known, term: Term) -> Term:
        """The axis that a number is the size of; `term` if none is known yet."""
        if isinstance(number, Length):
            return number.term
        if isinstance(number, Stored):
            first = self.stored.setdefault(key_of(number), term)
            if number.place is None:
                self._attributes.append(Attribute(number.path, number.name, first))
            else:
                self._tuples[number.path, number.name] = number.length
            return first
        if isinstance(number, Multiple):
            self._note_factor(number, term)
            return term
        if isinstance(number, Position):
            return term
        assert isinstance(number, Quotient)
        divisor = number.divisor
        own = self._source(divisor, Atom(int(divisor))) if isinstance(divisor, Known) else Atom(divisor)
        whole = product([own, term])
        unify(self._source(number.dividend, whole), whole)
        return term

    def _note_factor(self, number: Multiple, term: Term) -> None:
        """Note what gives a product of two sizes its second factor, if the other one is known to be an axis."""
        for given, other in (number.factors, number.factors[::-1]):
            if isinstance(given, Length) and isinstance(other, Stored | Quotient):
                rest = without(term, given.term)
                if rest is not None and size(rest) == other:
                    unify(self._source(other, rest), rest)


def _without_inner(term: Term, inner: int) -> Term | None:
    """The outer factors of an axis, if the inner ones have a size."""
    factors = term.factors if isinstance(term := resolve(term), Product) else ()
    number = next((n for n in range(1, len(factors)) if prod(map(size, factors[n:])) == inner), None)
    return None if number is None else product(factors[:number])


def store(model: nn.Module, sources: Sources) -> Callable[[], None]:
    """Replace the integers among the attributes of modules, also in lists and tuples, and in configs.

    The caller restores the modules; what is returned restores the configs.
    """
    configs: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if name.startswith("_"):
                continue
            if hasattr(value, "to_dict") and not isinstance(value, nn.Module | type) and id(value) not in configs:
                fields = vars(value)
                own = {field: each for field, each in fields.items() if type(each) is int and not field.startswith("_")}
                configs[id(value)] = fields, own
                for field, each in own.items():  # once, however many modules have the config
                    fields[field] = Stored.of(each, path, f"{name}.{field}", sources)
            if type(value) is int:
                vars(module)[name] = Stored.of(value, path, name, sources)
            elif type(value) in (list, tuple) and value and all(type(each) is int for each in value):
                numbers = (Stored.of(each, path, name, sources, place, len(value)) for place, each in enumerate(value))
                vars(module)[name] = type(value)(numbers)

    def restore() -> None:
        for fields, own in configs.values():
            fields.update({field: each for field, each in own.items() if isinstance(fields.get(field), Stored)})

    return restore
