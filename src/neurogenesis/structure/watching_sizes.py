"""Watch the functions that a model calls, for the sizes that it gives them."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from .known import Known, Length, Multiple, Position, Stored
from .stored import Found, Sources
from .terms import Conflict, is_single, size, unify


class SizeWatch(TorchFunctionMode):
    """Notes each axis that gets its size from an attribute, or from the shape of another tensor."""

    def __init__(self, sources: Sources):
        super().__init__()
        self.sources = sources

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        result = self._run(name, func, args, kwargs)
        for given in (*args, *kwargs.values()):
            if isinstance(given, Stored):
                given.note()
        if name == "size" or func == _SHAPE:
            return self._measured(result, *args, **kwargs)
        if name in _SIZES or name in _FACTORIES or name in ("repeat", "split", "unflatten"):
            for found in _sizes(name, args, kwargs, result):
                if isinstance(found.number, Known) and found.fits:
                    self.sources.note(found)
        elif func is functional.multi_head_attention_forward:
            self._note_heads(*args, **kwargs)
        elif name == "__getitem__":
            for axis, length in _sliced(result, args[1]):
                self.sources.note_slice(result, axis, length)
        elif name == "chunk":
            self._note_chunks(result, *args[1:], **kwargs)
        elif name in _PRODUCTS:
            self._restore_singles(name, args, result)
        return result

    def _run(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function; the rules of its operations know the lengths that it was given."""
        sources = self.sources
        before = sources.given, sources.batched
        sources.given, sources.batched = self._lengths(name, args, kwargs), name in _PRODUCTS
        try:
            if func is functional.multi_head_attention_forward:
                with self:
                    return _attention_forward()(*args, **kwargs)
            return func(*args, **kwargs)
        finally:
            sources.given, sources.batched = before

    def _lengths(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int] | None:
        """The lengths that a reshape is given; None for other functions."""
        if name not in _RESHAPES:
            return None
        x, *rest = args if args else (kwargs["input"],)
        old: list[int] = list(self._measured(x.shape, x))
        if name in ("view_as", "reshape_as"):
            (other,) = rest or kwargs.values()
            return list(self._measured(other.shape, other))
        if name == "flatten":
            given = dict(zip(("start_dim", "end_dim"), rest, strict=False)) | kwargs
            start, end = (given.get(key, value) % max(x.ndim, 1) for key, value in (("start_dim", 0), ("end_dim", -1)))
            return [*old[:start], -1, *old[end + 1 :]]
        numbers = _numbers(name, args, kwargs)
        if name == "unflatten":
            axis = (args[1] if len(args) > 1 else kwargs["dim"]) % max(x.ndim, 1)
            numbers = [*old[:axis], *numbers, *old[axis + 1 :]]
        return numbers if all(isinstance(each, int) for each in numbers) else None

    def _restore_singles(self, name: str, args: tuple[Any, ...], result: Tensor) -> None:
        """Name the axes of size 1 of a product with batches that are factors of others, such as a single head."""
        operands = [tensor for tensor in args if isinstance(tensor, Tensor)] if name != "einsum" else _operands(args)
        letters = _letters(name, args, [tensor.ndim for tensor in operands])
        axes = [self.sources.axes_of(tensor) for tensor in (*operands, result)]
        if letters is None or any(own is None for own in axes):
            return
        *inputs, outputs = [dict(zip(each, own or (), strict=False)) for each, own in zip(letters, axes, strict=True)]
        for letter, term in outputs.items():
            singles = [own[letter] for own in inputs if letter in own and is_single(own[letter])]
            if singles and size(term) == 1:
                for other in singles[1:]:
                    unify(singles[0], other)
                outputs[letter] = singles[0]
                self.sources.count_heads(singles[0])
        self.sources.relabel(result, list(outputs.values()))

    def _measured(self, result: Any, tensor: Tensor, dim: int | None = None) -> Any:
        axes = self.sources.axes_of(tensor)
        if axes is None or len(axes) != tensor.ndim:
            return result
        if isinstance(result, int):
            return result if dim is None else Length.of(axes[dim], result)
        return torch.Size(map(Length.of, axes, result))

    def _note_chunks(self, pieces: Sequence[Tensor], chunks: int, dim: int = 0) -> None:
        """Note that chunks, which are as long as each other, remain so."""
        axes = [self.sources.axes_of(piece) for piece in pieces]
        terms = [own[dim] for own in axes if own is not None]
        if len({size(term) for term in terms}) == 1:
            with suppress(Conflict):
                for term in terms[1:]:
                    unify(terms[0], term)

    def _note_heads(self, *args: Any, **kwargs: Any) -> None:
        """Note that queries have as many entries as all heads together, which the function asserts."""
        given = inspect.signature(functional.multi_head_attention_forward).bind(*args, **kwargs).arguments
        query, out, heads = given["query"], given["out_proj_weight"], given["num_heads"]
        axes = self.sources.axes_of(query)
        whole, path = given["embed_dim_to_check"], getattr(given["embed_dim_to_check"], "path", None)
        if axes is not None:
            separate = (given.get(f"{name}_proj_weight") for name in "qkv")
            for weight, axis in ((out, 1), *((each, 0) for each in separate if each is not None)):
                self.sources.note(Found(weight, axis, Length.of(axes[-1], whole)))
        if isinstance(heads, Stored) and heads > 1:
            self.sources.note(Found(out, 1, heads, inner=int(whole) // int(heads)))
        if path is not None:
            self.sources.note(Found(query, query.ndim - 1, whole))
            for name, tensor in (("kdim", given["key"]), ("vdim", given["value"])):
                self.sources.note_attribute(path, name, tensor, tensor.ndim - 1)


@cache
def _attention_forward() -> Callable[..., Any]:
    """`torch.nn.functional.multi_head_attention_forward` as it runs without a watch, whose own calls are watched."""
    code = functional.multi_head_attention_forward.__code__
    names = {**vars(functional), "has_torch_function": lambda _: False}
    defaults = functional.multi_head_attention_forward.__defaults__
    return FunctionType(code, names, argdefs=defaults)


_SHAPE: Any = Tensor.shape.__get__  # type: ignore[attr-defined]
_SIZES = {"view", "reshape", "expand", "new_empty", "new_full", "new_ones", "new_zeros"}
_RESHAPES = {"view", "reshape", "view_as", "reshape_as", "flatten", "unflatten"}
_PRODUCTS = {"matmul", "__matmul__", "einsum"}
_FACTORIES = {"empty", "full", "ones", "rand", "randn", "zeros"}


def _sizes(name: str, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Iterator[Found]:
    """The axes of results and the numbers that were given for them."""
    if name == "split":
        number = args[1] if len(args) > 1 else kwargs.get("split_size_or_sections", kwargs.get("split_size"))
        axis = args[2] if len(args) > 2 else kwargs.get("dim", 0)
        numbers = number if isinstance(number, list | tuple) else [number] * len(result)
        yield from (Found(piece, axis % piece.ndim, each) for piece, each in zip(result, numbers, strict=True))
        return
    numbers, axis = _numbers(name, args, kwargs), 0
    if name == "unflatten":
        axis = (args[1] if len(args) > 1 else kwargs["dim"]) % (result.ndim - len(numbers) + 1)
    yield from (Found(result, axis + offset, number) for offset, number in enumerate(numbers))


def _numbers(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The lengths that are given to a function."""
    if name == "unflatten":
        return list(args[2] if len(args) > 2 else kwargs["sizes"])
    rest = args if name in _FACTORIES else args[1:]
    given = rest or [kwargs.get("size", kwargs.get("shape", kwargs.get("repeats", ())))]
    return list(given[0] if isinstance(given[0], list | tuple) else given)


def _operands(args: Sequence[Any]) -> list[Tensor]:
    """The tensors that are given to `torch.einsum`."""
    return [each for one in args[1:] for each in (one if isinstance(one, list | tuple) else [one])]


def _letters(name: str, args: Sequence[Any], ranks: Sequence[int]) -> list[str] | None:
    """A letter for each axis of the operands of a product and of its result; None if there is none."""
    if name != "einsum":
        if min(ranks) < 2:
            return None
        batches = [_BATCHES[len(_BATCHES) - rank + 2 :] for rank in ranks]
        return [batches[0] + "ij", batches[1] + "jk", max(batches, key=len) + "ik"]
    if not isinstance(args[0], str):
        return None
    given, arrow, output = args[0].replace(" ", "").partition("->")
    inputs = given.split(",")
    numbers = [rank - len(each.replace("...", "")) for each, rank in zip(inputs, ranks, strict=True)]
    expanded = [each.replace("...", _BATCHES[len(_BATCHES) - n :]) for each, n in zip(inputs, numbers, strict=True)]
    if not arrow:
        counts = Counter("".join(inputs).replace(".", ""))
        output = "..." * ("." in given) + "".join(sorted(letter for letter, n in counts.items() if n == 1))
    return [*expanded, output.replace("...", _BATCHES[len(_BATCHES) - max(numbers) :])]


_BATCHES = "0123456789"


def _sliced(result: Any, index: Any) -> Iterator[tuple[int, Multiple]]:
    """The axes of a slice whose length is a product of known sizes, such as the queries in a fused projection."""
    places = index if isinstance(index, tuple) else (index,)
    if not isinstance(result, Tensor) or not all(each is Ellipsis or isinstance(each, slice) for each in places):
        return
    for place, each in enumerate(places):
        if not isinstance(each, slice) or not isinstance(each.stop, Multiple | Position):
            continue
        behind = isinstance(each.stop, Position) and each.stop.start is each.start
        length = each.stop.length if isinstance(each.stop, Position) else each.stop
        axis = place - len(places) + result.ndim if Ellipsis in places[:place] else place
        if isinstance(length, Multiple) and (behind or not each.start) and result.shape[axis] == length:
            yield axis, length
