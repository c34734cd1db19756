"""Which sizes are the same: numbers that know where they come from.

While a model is traced, the integers among the attributes of its modules are instances of `Stored`, and the lengths in
the shapes of tensors are instances of `Length`. Where code passes one to a reshape, the axis that it becomes is known,
however many other attributes and axes have the same value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .terms import Term


class Stored(int):
    """The value of an attribute of a module."""

    path: str
    name: str

    @staticmethod
    def of(value: int, path: str, name: str) -> Stored:
        """A value with its place."""
        result = Stored(value)
        result.path, result.name = path, name
        return result

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)

    def __deepcopy__(self, memo: dict[int, Any]) -> int:
        return int(self)


class Length(int):
    """The length of an axis of a tensor."""

    term: Term

    @staticmethod
    def of(value: int, term: Term) -> Length:
        """A length with its axis."""
        result = Length(value)
        result.term = term
        return result

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)

    def __deepcopy__(self, memo: dict[int, Any]) -> int:
        return int(self)


def store(model: nn.Module) -> None:
    """Replace the integers among the attributes of modules; the caller restores them."""
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if type(value) is int and not name.startswith("_"):
                vars(module)[name] = Stored.of(value, path, name)


class SizeWatch(TorchFunctionMode):
    """Calls `found(tensor, axis, number)` for each axis that gets its size from an attribute or from another axis.

    `axes` gives the axes of a tensor, None if they are unknown.
    """

    def __init__(
        self, found: Callable[[Tensor, int, Stored | Length], None], axes: Callable[[Tensor], list[Term] | None]
    ):
        super().__init__()
        self.found, self.axes = found, axes

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if func is _SHAPE or name == "size":
            return self._lengths(args, kwargs or {}, result)
        if name in _SIZES or name in _FACTORIES or name in ("split", "unflatten"):
            for tensor, axis, number in _sizes(name, args, kwargs or {}, result):
                if isinstance(number, Stored | Length) and axis < tensor.ndim and tensor.shape[axis] == number:
                    self.found(tensor, axis, number)
        return result

    def _lengths(self, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Any:
        """The shape of a tensor, or one length of it, as numbers that know their axes."""
        axes = self.axes(args[0])
        if axes is None:
            return result
        if isinstance(result, int):
            return Length.of(result, axes[args[1] if len(args) > 1 else kwargs["dim"]])
        return torch.Size([Length.of(length, term) for length, term in zip(result, axes, strict=True)])


_SHAPE: Any = Tensor.shape.__get__  # type: ignore[attr-defined]
_SIZES = {"view", "reshape", "expand", "new_empty", "new_full", "new_ones", "new_zeros"}
_FACTORIES = {"empty", "full", "ones", "rand", "randn", "zeros"}


def _sizes(name: str, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Iterator[tuple[Tensor, int, Any]]:
    """The axes of results and the numbers that were given for them."""
    if name == "split":
        number = args[1] if len(args) > 1 else kwargs.get("split_size_or_sections", kwargs.get("split_size"))
        axis = args[2] if len(args) > 2 else kwargs.get("dim", 0)
        numbers = number if isinstance(number, list | tuple) else [number] * len(result)
        yield from ((piece, axis % piece.ndim, each) for piece, each in zip(result, numbers, strict=True))
        return
    if name == "unflatten":
        axis, numbers = (args[1], args[2]) if len(args) > 2 else (kwargs["dim"], kwargs["sizes"])
        axis = axis % (result.ndim - len(numbers) + 1)
    else:
        axis, rest = 0, args if name in _FACTORIES else args[1:]
        given = rest or [kwargs.get("size", kwargs.get("shape", ()))]
        numbers = given[0] if isinstance(given[0], list | tuple) else list(given)
    yield from ((result, axis + offset, number) for offset, number in enumerate(numbers))
