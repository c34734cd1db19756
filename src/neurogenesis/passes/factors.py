"""The factors of products, as letters for their axes: ``...c, cf -> ...f``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Position = int | str | tuple[int, int]  # of an argument: its position or name, or positions in a list of arguments


@dataclass(frozen=True)
class Operands:
    """The factors of a product: two tensors, where they stand, and a letter for each axis of them and of the result."""

    tensors: tuple[Tensor, Tensor]
    places: tuple[Position, Position]
    letters: tuple[str, str]
    result: str

    @staticmethod
    def replaced(place: Position, tensor: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
        """The arguments with another tensor as a factor."""
        if isinstance(place, tuple):
            number, within = place
            new = [tensor if each == within else old for each, old in enumerate(args[number])]
            return tuple(new if each == number else old for each, old in enumerate(args)), kwargs
        positional = tuple(tensor if each == place else old for each, old in enumerate(args))
        return positional, {name: tensor if name == place else old for name, old in kwargs.items()}


def operands_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Operands | None:
    """The factors of an operation that is a product of two tensors; None if it is none."""
    if func is torch.einsum:
        return _of_einsum(args)
    names = _FACTORS.get(func)
    if names is None or kwargs.get("alpha", 1) != 1:  # alpha multiplies the product
        return None
    places = [number if number < len(args) else name for number, name in names]
    a, b = (args[place] if isinstance(place, int) else kwargs.get(place) for place in places)
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or not a.ndim or not b.ndim:
        return None
    if func is torch.Tensor.__rmatmul__:
        a, b, places = b, a, places[::-1]
    if func is F.linear:
        rows = _ROWS[: a.ndim - 1]
        letters, result = (f"{rows}c", "fc"[-b.ndim :]), f"{rows}{'f' * (b.ndim == 2)}"
    else:
        letters, result = _of_matmul(a.ndim, b.ndim)
    return Operands((a, b), (places[0], places[1]), letters, result)


def _of_matmul(left: int, right: int) -> tuple[tuple[str, str], str]:
    """The letters of a product of matrices, or of batches of them, and of its result.

    Example:
        >>> _of_matmul(4, 3)
        (('abnc', 'bcf'), 'abnf')
        >>> _of_matmul(1, 2)
        (('c', 'cf'), 'f')
    """
    batch = _ROWS[: max(left - 2, right - 2, 0)]

    def of_batch(ndim: int) -> str:
        return batch[len(batch) - max(ndim - 2, 0) :]

    first, second = "nc"[-left:], "cf"[: min(right, 2)]
    free = "n" * (left > 1) + "f" * (right > 1)
    return (of_batch(left) + first, of_batch(right) + second), batch + free


def _of_einsum(args: Sequence[Any]) -> Operands | None:
    listed = len(args) == 2 and isinstance(args[1], (list, tuple))
    tensors = list(args[1]) if listed else list(args[1:])
    if len(tensors) != 2 or not isinstance(args[0], str) or not all(isinstance(each, Tensor) for each in tensors):
        return None
    written = args[0].replace(" ", "")
    inputs, arrow, result = written.partition("->")
    parts = inputs.split(",")
    if len(parts) != 2:
        return None
    fresh = [letter for letter in _ALL if letter not in written]
    letters, longest = list[str](), ""
    for part, tensor in zip(parts, tensors, strict=True):
        missing = tensor.ndim - len(part.replace("...", ""))
        dots = "".join(fresh[len(fresh) - missing :]) if missing > 0 else ""  # aligned at the last axis
        longest = max(longest, dots, key=len)
        letters.append(part.replace("...", dots))
    if not arrow:  # letters that occur once, in the order of the alphabet
        result = "".join(["...", *sorted(each for each in set(inputs) - set(".,") if inputs.count(each) == 1)])
    places: tuple[Position, Position] = ((1, 0), (1, 1)) if listed else (1, 2)
    return Operands((tensors[0], tensors[1]), places, (letters[0], letters[1]), result.replace("...", longest))


def _letters() -> Iterator[str]:
    yield from (chr(ord(first) + number) for first in "aA" for number in range(26))


_ALL = "".join(_letters())
_ROWS = "abdeghijklmopqrstuvwxyz"  # without those of the axes c, f and n
_METHODS: Any = torch.Tensor
# By operation, the position and the name of each factor.
_FACTORS: dict[Any, tuple[tuple[int, str], tuple[int, str]]] = {
    F.linear: ((0, "input"), (1, "weight")),
    torch.matmul: ((0, "input"), (1, "other")),
    torch.mm: ((0, "input"), (1, "mat2")),
    torch.bmm: ((0, "input"), (1, "mat2")),
    torch.addmm: ((1, "mat1"), (2, "mat2")),
    torch.baddbmm: ((1, "batch1"), (2, "batch2")),
    _METHODS.matmul: ((0, "self"), (1, "other")),
    _METHODS.__matmul__: ((0, "self"), (1, "other")),
    _METHODS.__rmatmul__: ((0, "self"), (1, "other")),
    _METHODS.mm: ((0, "self"), (1, "mat2")),
    _METHODS.bmm: ((0, "self"), (1, "mat2")),
    _METHODS.addmm: ((1, "mat1"), (2, "mat2")),
    _METHODS.baddbmm: ((1, "batch1"), (2, "batch2")),
}
