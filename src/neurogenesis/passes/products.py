r"""Products with a weight that no layer of torch applies, such as ``x @ self.w``, watched as a linear layer is.

A product of x and a weight w that sums over one axis of each is

.. math:: y_{l f} = \sum_c x_{l c} w_{c f}

with any number of axes l, such as samples and positions, and f. Its input is x with c as the last axis, and its output
is y with all f merged to the last axis: then the gradient of w is the sum over l of input times gradient, as for
``nn.Linear``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..structure.axes import Axis

Act = Callable[[Tensor], Tensor | None]


class Place(nn.Module):
    """The products with one weight of a model, as if they were a module. Actions are called with inputs and outputs.

    Attributes:
        tensor: the name of the weight.
    """

    def __init__(self, tensor: str):
        super().__init__()
        self.tensor = tensor

    def stands_for(self, axis: Axis) -> bool:
        """Whether an axis of the weight is watched here, and not at the module that has it."""
        raise NotImplementedError

    def multiplies(self, axis: Axis) -> bool:
        """Whether the latest products were sums over this axis, if it is of a consumer, or else over the other one."""
        raise NotImplementedError

    def observe(self, side: str, action: Act) -> Any:
        """Call `action` with the input or output whenever the products are computed; returns a handle with `remove`."""
        raise NotImplementedError


class Product(Place):
    """Products that a model computes by operations of torch, and not in a layer.

    Attributes:
        summed: the axis of the weight that the latest product has summed over; None before the first.
    """

    def __init__(self, tensor: str):
        super().__init__(tensor)
        self.summed: int | None = None
        self.actions: dict[str, list[Act]] = {"input": [], "output": []}

    def stands_for(self, axis: Axis) -> bool:
        return True

    def multiplies(self, axis: Axis) -> bool:
        return (self.summed == axis.axis) == (axis.role == "consumer")

    def act(self, side: str, tensor: Tensor) -> Tensor:
        """The input or output after all actions, which may replace it."""
        for action in list(self.actions[side]):
            new = action(tensor)
            tensor = tensor if new is None else new
        return tensor

    def observe(self, side: str, action: Act) -> Handle:
        """Call `action` with the input or output whenever the product runs under a `ProductWatch`."""
        self.actions[side].append(action)
        return Handle(self.actions[side], action)


@dataclass(frozen=True)
class Handle:
    """Removes an action."""

    actions: list[Act]
    action: Act

    def remove(self) -> None:
        if self.action in self.actions:
            self.actions.remove(self.action)


class ProductWatch(TorchFunctionMode):
    """Calls the actions of products while a model runs.

    Args:
        model: the model.
        products: its products.
        tensors: what it runs with in place of its parameters.
    """

    def __init__(self, model: nn.Module, products: Sequence[Product], tensors: Mapping[str, Tensor] | None = None):
        super().__init__()
        # Each weight, and permutations of its axes that the model makes: the tensor, its products, and its axes.
        self._weights: dict[int, tuple[Tensor, list[Product], tuple[int, ...]]] = {}
        for product in products:
            weight = (tensors or {}).get(product.tensor)
            weight = model.get_parameter(product.tensor) if weight is None else weight
            own = self._weights.setdefault(id(weight), (weight, [], tuple(range(weight.ndim))))
            own[1].append(product)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        operands = _operands(func, args, kwargs)
        if operands is None:
            result = func(*args, **kwargs)
            if func in _PERMUTING and args and id(args[0]) in self._weights:
                _, products, axes = self._weights[id(args[0])]
                order = func(torch.empty(_DISTINCT[: len(axes)], device="meta"), *args[1:], **kwargs).shape
                moved = tuple(axes[_DISTINCT.index(length)] for length in order)
                self._weights[id(result)] = result, products, moved
            return result
        for number, other in ((1, 0), (0, 1)):
            known = self._weights.get(id(operands.tensors[number]))
            if known is not None and id(operands.tensors[other]) not in self._weights:
                form = _form(operands, number, known[2])
                if form is not None:
                    return form.run(known[1], operands, func, args, kwargs)
        return func(*args, **kwargs)


def watching(
    model: nn.Module, places: Sequence[nn.Module], tensors: Mapping[str, Tensor] | None = None
) -> AbstractContextManager[object]:
    """A `ProductWatch` for different products among some modules; one that does nothing if there are none."""
    different = [each for each in dict.fromkeys(places) if isinstance(each, Product)]
    return ProductWatch(model, different, tensors) if different else nullcontext()


@dataclass(frozen=True)
class _Operands:
    """The factors of a product: two tensors, where they stand, and a letter for each axis of them and of the result."""

    tensors: tuple[Tensor, Tensor]
    places: tuple[int | str, int | str]
    letters: tuple[str, str]
    result: str


@dataclass(frozen=True)
class _Form:
    """How input and output follow from a factor and the result: the order of their axes, and the number of axes l."""

    place: int | str
    number: int  # of the factor that is no weight
    summed: int  # axis of the weight
    input: tuple[int, ...]
    output: tuple[int, ...]
    leading: int

    def run(self, products: Sequence[Product], operands: _Operands, func: Any, args: Any, kwargs: Any) -> Any:
        """Compute the product, with the actions on its input and its output."""
        x = operands.tensors[self.number]
        given = new = _permuted(x, self.input)
        for product in products:
            product.summed = self.summed
            new = product.act("input", new)
        if new is not given:
            x = _permuted(new, _inverse(self.input))
            args = tuple(x if place == self.place else each for place, each in enumerate(args))
            kwargs = {name: x if name == self.place else each for name, each in kwargs.items()}
        y = func(*args, **kwargs)
        if not any(product.actions["output"] for product in products):
            return y
        rows = _permuted(y, self.output)
        shape = rows.shape[self.leading :]
        flat = rows if len(shape) == 1 else rows.flatten(self.leading)
        found = flat
        for product in products:
            found = product.act("output", found)
        if found is flat and flat is y:
            return y
        # What follows must use what the actions have seen, whose gradient they get.
        sizes = (*found.shape[:-1], found.shape[-1] // prod(shape[1:]), *shape[1:])
        back = found if len(shape) == 1 else found.reshape(sizes)
        return _permuted(back, _inverse(self.output))


def _form(operands: _Operands, weight: int, axes: tuple[int, ...]) -> _Form | None:
    """The form of a product whose factor number `weight` is a weight; None if it does not sum over one axis alone."""
    w, x = operands.letters[weight], operands.letters[1 - weight]
    summed = [letter for letter in w if letter in x]
    free = [w[axes.index(axis)] for axis in range(len(w)) if w[axes.index(axis)] not in x]  # in the weight's own order
    leading = [letter for letter in x if letter not in summed]
    if len(summed) != 1 or sorted(operands.result) != sorted([*leading, *free]) or not free:
        return None
    if len(set(x)) < len(x) or len(set(w)) < len(w):
        return None
    return _Form(
        operands.places[1 - weight],
        1 - weight,
        axes[w.index(summed[0])],
        tuple(x.index(letter) for letter in [*leading, *summed]),
        tuple(operands.result.index(letter) for letter in [*leading, *free]),
        len(leading),
    )


def _operands(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Operands | None:
    """The factors of an operation that is a product of two tensors; None if it is none."""
    if func in _EINSUM:
        return _of_einsum(args)
    names = _FACTORS.get(func)
    if names is None:
        return None
    places = [number if number < len(args) else name for number, name in names]
    a, b = (args[place] if isinstance(place, int) else kwargs.get(place) for place in places)
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or not a.ndim or not b.ndim:
        return None
    if func is torch.Tensor.__rmatmul__:
        a, b, places = b, a, places[::-1]
    rows = _LETTERS[: max(a.ndim - 1, b.ndim - 2, 0)]
    if func is F.linear:
        first, second, result = f"{rows[: a.ndim - 1]}c", "fc"[-b.ndim :], f"{rows[: a.ndim - 1]}f"
    elif b.ndim <= 2:
        first, second = f"{rows[: a.ndim - 1]}c", "cf"[: b.ndim]
        result = rows[: a.ndim - 1] + "f" * (b.ndim == 2)
    elif a.ndim <= 2:
        first, second = "fc"[-a.ndim :], f"{rows[: b.ndim - 2]}cn"
        result = f"{rows[: b.ndim - 2]}{'f' * (a.ndim == 2)}n"
    else:
        return None
    return _Operands((a, b), (places[0], places[1]), (first, second), result)


def _of_einsum(args: Sequence[Any]) -> _Operands | None:
    if len(args) != 3 or not isinstance(args[0], str) or "." in args[0] or "->" not in args[0]:
        return None
    inputs, result = args[0].replace(" ", "").split("->")
    first, _, second = inputs.partition(",")
    return _Operands((args[1], args[2]), (1, 2), (first, second), result)


def _permuted(tensor: Tensor, order: tuple[int, ...]) -> Tensor:
    return tensor if order == tuple(range(len(order))) else tensor.permute(order)


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(order.index(axis) for axis in range(len(order)))


_LETTERS = "abdeghijklmopqrstuvwxyz"  # without those of the axes c, f and n
_DISTINCT = (2, 3, 5, 7, 11, 13, 17, 19)  # sizes that tell axes apart
_METHODS: Any = torch.Tensor
_EINSUM = {torch.einsum}
# By operation, the position and the name of each factor.
_FACTORS: dict[Any, tuple[tuple[int, str], tuple[int, str]]] = {
    F.linear: ((0, "input"), (1, "weight")),
    torch.matmul: ((0, "input"), (1, "other")),
    torch.mm: ((0, "input"), (1, "mat2")),
    torch.addmm: ((1, "mat1"), (2, "mat2")),
    _METHODS.matmul: ((0, "self"), (1, "other")),
    _METHODS.__matmul__: ((0, "self"), (1, "other")),
    _METHODS.__rmatmul__: ((0, "self"), (1, "other")),
    _METHODS.mm: ((0, "self"), (1, "mat2")),
    _METHODS.addmm: ((1, "mat1"), (2, "mat2")),
}
_PERMUTING = {
    torch.t, torch.transpose, torch.permute, torch.swapaxes, torch.movedim, _METHODS.t, _METHODS.transpose,
    _METHODS.permute, _METHODS.swapaxes, _METHODS.movedim, _METHODS.T.__get__, _METHODS.mT.__get__,
}  # fmt: skip
