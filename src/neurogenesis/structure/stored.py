"""Where the sizes in a model's code come from: numbers that know which attribute or which axis they are the size of.

While a model is traced, the integers among the attributes of its modules are instances of `Stored`, and the lengths in
shapes of tensors are instances of `Length`. Where code passes one to a reshape, the axis that it becomes is known,
however many other sizes have the same value. ``x.reshape(batch, tokens, channels)`` says that the heads of attention
and the channels of its input have one size, if the shape of the input gave the number of channels.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from .labels import Attribute
from .reasons import Reason
from .rules import Axes
from .terms import Atom, Conflict, Product, Term, factor, fix, product, resolve, size, unify

Place = tuple[str, str]  # path of a module, name of an attribute


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
    sources: Sources
    place: int | None  # in the tuple
    length: int  # of the tuple

    @staticmethod
    def of(value: int, path: str, name: str, sources: Sources, place: int | None = None, length: int = 0) -> Stored:
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
    """

    def __init__(self, axes_of: Callable[[Tensor], Axes | None], attributes: list[Attribute], reads: set[Place]):
        self.axes_of, self._attributes, self.reads = axes_of, attributes, reads
        self._stored: dict[tuple[str, str, int | None], Term] = {}  # axes with their size from an attribute
        self._tuples: dict[tuple[str, str], int] = {}  # lengths of the attributes that are tuples of such sizes
        self.quotients: list[Quotient] = []  # of attributes, such as the size of a head
        self.equal: list[tuple[Stored, Length]] = []  # attributes that were compared with lengths, and equal them

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
            # Otherwise the rehearsal shows where the model fails.

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
            whole, part = _key(quotient.dividend), _key(quotient.divisor)
            if whole[:2] not in known and part in self._stored:
                self._source(quotient.dividend, product([self._stored[part], Atom(int(quotient))]))
            elif whole in self._stored and part[:2] not in known:
                outer = _without_inner(self._stored[whole], int(quotient))
                if outer is not None and isinstance(quotient.divisor, Known):
                    self._source(quotient.divisor, outer)
        for (path, name), length in self._tuples.items():
            value = getattr(modules[path], name)
            terms = (self._stored.get((path, name, place), Atom(value[place])) for place in range(length))
            self._attributes.append(Attribute(path, name, tuple(terms)))

    def _source(self, number: Known, term: Term) -> Term:
        """The axis that a number is the size of; `term` if none is known yet."""
        if isinstance(number, Length):
            return number.term
        if isinstance(number, Stored):
            first = self._stored.setdefault(_key(number), term)
            if number.place is None:
                self._attributes.append(Attribute(number.path, number.name, first))
            else:
                self._tuples[number.path, number.name] = number.length
            return first
        assert isinstance(number, Quotient)
        divisor = number.divisor
        own = self._source(divisor, Atom(int(divisor))) if isinstance(divisor, Known) else Atom(divisor)
        whole = product([own, term])
        unify(self._source(number.dividend, whole), whole)
        return term


def _without_inner(term: Term, inner: int) -> Term | None:
    """The outer factors of an axis, if the inner ones have a size."""
    factors = term.factors if isinstance(term := resolve(term), Product) else ()
    number = next((n for n in range(1, len(factors)) if prod(map(size, factors[n:])) == inner), None)
    return None if number is None else product(factors[:number])


def _key(number: Any) -> tuple[str, str, int | None]:
    return number.path, number.name, number.place


def store(model: nn.Module, sources: Sources) -> None:
    """Replace the integers among the attributes of modules, and in tuples of them; the caller restores them."""
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if name.startswith("_"):
                continue
            if type(value) is int:
                vars(module)[name] = Stored.of(value, path, name, sources)
            elif type(value) is tuple and value and all(type(each) is int for each in value):
                numbers = (Stored.of(each, path, name, sources, place, len(value)) for place, each in enumerate(value))
                vars(module)[name] = tuple(numbers)


class SizeWatch(TorchFunctionMode):
    """Notes each axis that gets its size from an attribute, or from the shape of another tensor."""

    def __init__(self, sources: Sources):
        super().__init__()
        self.sources = sources

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        for given in (*args, *kwargs.values()):
            if isinstance(given, Stored):
                given.note()
        name = getattr(func, "__name__", "")
        if name == "size" or func == _SHAPE:
            return self._measured(result, *args, **kwargs)
        if name in _SIZES or name in _FACTORIES or name in ("repeat", "split", "unflatten"):
            for found in _sizes(name, args, kwargs, result):
                if isinstance(found.number, Known) and found.fits:
                    self.sources.note(found)
        elif func is functional.multi_head_attention_forward:
            self._note_heads(*args, **kwargs)
        return result

    def _measured(self, result: Any, tensor: Tensor, dim: int | None = None) -> Any:
        axes = self.sources.axes_of(tensor)
        if axes is None or len(axes) != tensor.ndim:
            return result
        if isinstance(result, int):
            return result if dim is None else Length.of(axes[dim], result)
        return torch.Size(map(Length.of, axes, result))

    def _note_heads(self, *args: Any, **kwargs: Any) -> None:
        """Note that queries have as many entries as all heads together, which the function asserts."""
        given = inspect.signature(functional.multi_head_attention_forward).bind(*args, **kwargs).arguments
        query, out, heads = given["query"], given["out_proj_weight"], given["num_heads"]
        axes = self.sources.axes_of(query)
        size, path = given["embed_dim_to_check"], getattr(given["embed_dim_to_check"], "path", None)
        if axes is not None:
            separate = (given.get(f"{name}_proj_weight") for name in "qkv")
            for weight, axis in ((out, 1), *((each, 0) for each in separate if each is not None)):
                self.sources.note(Found(weight, axis, Length.of(axes[-1], size)))
        if isinstance(heads, Stored):
            self.sources.note(Found(out, 1, heads, inner=int(size) // int(heads)))
        if path is not None:
            self.sources.note(Found(query, query.ndim - 1, size))
            for name, tensor in (("kdim", given["key"]), ("vdim", given["value"])):
                self.sources.note_attribute(path, name, tensor, tensor.ndim - 1)


_SHAPE: Any = Tensor.shape.__get__  # type: ignore[attr-defined]
_SIZES = {"view", "reshape", "expand", "new_empty", "new_full", "new_ones", "new_zeros"}
_FACTORIES = {"empty", "full", "ones", "rand", "randn", "zeros"}


def _sizes(name: str, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Iterator[Found]:
    """The axes of results and the numbers that were given for them."""
    if name == "split":
        number = args[1] if len(args) > 1 else kwargs.get("split_size_or_sections", kwargs.get("split_size"))
        axis = args[2] if len(args) > 2 else kwargs.get("dim", 0)
        numbers = number if isinstance(number, list | tuple) else [number] * len(result)
        yield from (Found(piece, axis % piece.ndim, each) for piece, each in zip(result, numbers, strict=True))
        return
    if name == "unflatten":
        axis, numbers = (args[1], args[2]) if len(args) > 2 else (kwargs["dim"], kwargs["sizes"])
        axis = axis % (result.ndim - len(numbers) + 1)
    else:
        axis, rest = 0, args if name in _FACTORIES else args[1:]
        given = rest or [kwargs.get("size", kwargs.get("shape", kwargs.get("repeats", ())))]
        numbers = given[0] if isinstance(given[0], list | tuple) else list(given)
    yield from (Found(result, axis + offset, number) for offset, number in enumerate(numbers))
