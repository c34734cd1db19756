r"""Products with a weight that no layer of torch applies, such as ``x @ self.w``, watched as a linear layer is.

A product of x and a weight w that sums over one axis of each is

.. math:: y_{l f} = \sum_c x_{l c} w_{c f}

with any number of axes l, such as samples and positions, and f. Its input is x with c as the last axis, and its output
is y with all f merged to the last axis: then the gradient of w is the sum over l of input times gradient, as for
``nn.Linear``.

In products of batches, w may have axes g that x and y have, too, such as experts:

.. math:: y_{l g f} = \sum_c x_{l g c} w_{g c f}

These are merged to an axis before the last, and each group g has a sum and a gradient of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..structure.axes import Axis
from .factors import Operands, Position, operands_of

Axes = tuple[int | None, ...]  # of a weight, for each axis of a view of it; None if the view is expanded there
Act = Callable[[Tensor], Tensor | None]


Wanted = Callable[[], bool]


def always() -> bool:
    return True


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

    def observe(self, side: str, action: Act, wanted: Wanted = always) -> Any:
        """Call `action` with the input or output whenever the products are computed; returns a handle with `remove`.

        Where that takes another run, there is none unless `wanted()`.
        """
        raise NotImplementedError


class Product(Place):
    """Products that a model computes by operations of torch, and not in a layer.

    Attributes:
        form: that of the latest product with the parameter itself; None before the first.
    """

    def __init__(self, tensor: str):
        super().__init__(tensor)
        self.form: Form | None = None
        self.actions: dict[str, list[Act]] = {"input": [], "output": []}

    def stands_for(self, axis: Axis) -> bool:
        return True

    def multiplies(self, axis: Axis) -> bool:
        if self.form is None or axis.axis in self.form.group_axes:
            return False
        return (self.form.summed == axis.axis) == (axis.role == "consumer")

    @property
    def groups(self) -> int:
        """The number of groups, each with a sum of its own; 0 if inputs and outputs have no axis of groups."""
        return 0 if self.form is None or not self.form.groups else prod(self.form.groups)

    def as_fan_out(self, gradient: Tensor) -> Tensor:
        """Gradients of fan-outs with the axes of the weight, from those with groups and f before and after columns.

        Args:
            gradient: ... x groups x columns x f.
        """
        assert self.form is not None
        form, leading = self.form, gradient.ndim - 3
        by_axis = gradient.movedim(-2, -3).reshape(*gradient.shape[:-3], gradient.shape[-2], *form.groups, *form.free)
        order = [*range(leading + 1), *(leading + 1 + place for place in form.fan_out)]
        return by_axis.permute(order).flatten(leading + 1)

    def act(self, side: str, tensor: Tensor) -> Tensor:
        """The input or output after all actions, which may replace it."""
        for action in list(self.actions[side]):
            new = action(tensor)
            tensor = tensor if new is None else new
        return tensor

    def observe(self, side: str, action: Act, wanted: Wanted = always) -> Handle:
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
        # Each weight, and views of it that the model makes: the tensor, its products, and its axes.
        self._weights: dict[int, tuple[Tensor, list[Product], Axes]] = {}
        self._resized = set[str]()
        for product in products:
            present: Tensor = model.get_parameter(product.tensor)
            weight = (tensors or {}).get(product.tensor, present)
            if weight.shape != present.shape:
                self._resized.add(product.tensor)
            own = self._weights.setdefault(id(weight), (weight, [], tuple(range(weight.ndim))))
            own[1].append(product)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        operands = operands_of(func, args, kwargs)
        if operands is None:
            result = func(*args, **kwargs)
            if func in _VIEWS and args and id(args[0]) in self._weights:
                _, products, axes = self._weights[id(args[0])]
                moved = _axes_of_view(func, axes, args, kwargs)
                if moved is not None:
                    self._weights[id(result)] = result, products, moved
            return result
        for number, other in ((1, 0), (0, 1)):
            known = self._weights.get(id(operands.tensors[number]))
            if known is not None and id(operands.tensors[other]) not in self._weights:
                form = Form.of(operands, number, known[2])
                if form is not None:
                    for product in known[1]:
                        if product.tensor not in self._resized:
                            product.form = form
                    return form.run(known[1], operands, func, args, kwargs)
        return func(*args, **kwargs)


def _axes_of_view(func: Any, axes: Axes, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Axes | None:
    """The axes of a view of a weight, by those of what it is a view of; None if it is not of the whole weight."""
    if func is torch.Tensor.__getitem__ and not all(
        each is None or each is Ellipsis or isinstance(each, slice)
        for each in (args[1] if isinstance(args[1], tuple) else (args[1],))
    ):
        return None
    strides = [0 if axis is None else _STRIDE + place for place, axis in enumerate(axes)]
    like = torch.empty_strided(args[0].shape, strides, device="meta")
    view = func(like, *args[1:], **kwargs)
    if not isinstance(view, Tensor) or view._base is not like:
        return None

    def axis_of(stride: int, length: int) -> int | None:
        place = stride - _STRIDE
        return axes[place] if 0 <= place < len(axes) and length == like.shape[place] else None

    found = tuple(map(axis_of, view.stride(), view.shape))
    kept, whole = (sorted(axis for axis in each if axis is not None) for each in (found, axes))
    return found if kept == whole else None


def watching(
    model: nn.Module, places: Sequence[nn.Module], tensors: Mapping[str, Tensor] | None = None
) -> AbstractContextManager[object]:
    """A `ProductWatch` for different products among some modules; one that does nothing if there are none."""
    different = [each for each in dict.fromkeys(places) if isinstance(each, Product)]
    return ProductWatch(model, different, tensors) if different else nullcontext()


@dataclass(frozen=True)
class Form:
    """How input and output follow from the factors of a product and the result.

    Attributes:
        place: where the factor that is no weight stands among the arguments.
        number: its number.
        summed: the axis of the weight that is summed over.
        input: the order of that factor's axes: l, g and c.
        output: the order of the result's axes: l, g and f.
        leading: the number of axes l.
        group_axes: the axes g of the weight.
        groups: their lengths.
        free: the lengths of the axes f.
        fan_out: for each axis of the weight but the one that is summed over, its place among the axes g and f.
    """

    place: Position
    number: int
    summed: int
    input: tuple[int, ...]
    output: tuple[int, ...]
    leading: int
    group_axes: tuple[int, ...]
    groups: tuple[int, ...]
    free: tuple[int, ...]
    fan_out: tuple[int, ...]

    @staticmethod
    def of(operands: Operands, weight: int, axes: Axes) -> Form | None:
        """The form of a product whose factor number `weight` is a weight, or a view of one with these axes of it.

        None if it does not sum over one axis alone.
        """
        x = operands.letters[1 - weight]
        own = {letter: axis for letter, axis in zip(operands.letters[weight], axes, strict=True) if axis is not None}
        expanded = set(operands.letters[weight]) - set(own)
        w = sorted(own, key=lambda letter: own[letter])  # in the weight's own order
        summed = [letter for letter in w if letter in x and letter not in operands.result]
        groups = [letter for letter in w if letter in x and letter in operands.result]
        free = [letter for letter in w if letter not in x]
        leading = [letter for letter in x if letter not in own]
        unlike = any(len(set(each)) < len(each) for each in (*operands.letters, operands.result))
        if unlike or len(summed) != 1 or not (free or groups):
            return None
        if sorted(operands.result) != sorted([*leading, *groups, *free]):
            return None
        lengths = dict(zip(operands.letters[weight], operands.tensors[weight].shape, strict=True))
        others = dict(zip(x, operands.tensors[1 - weight].shape, strict=True))
        if any(lengths[letter] != others[letter] for letter in own.keys() & others.keys()):
            return None  # one of them is repeated
        if any(letter not in others or lengths[letter] not in (1, others[letter]) for letter in expanded):
            return None
        return Form(
            operands.places[1 - weight],
            1 - weight,
            own[summed[0]],
            tuple(x.index(letter) for letter in [*leading, *groups, *summed]),
            tuple(operands.result.index(letter) for letter in [*leading, *groups, *free]),
            len(leading),
            tuple(own[letter] for letter in groups),
            tuple(lengths[letter] for letter in groups),
            tuple(lengths[letter] for letter in free),
            tuple([*groups, *free].index(letter) for letter in w if letter != summed[0]),
        )

    def run(self, products: Sequence[Product], operands: Operands, func: Any, args: Any, kwargs: Any) -> Any:
        """Compute the product, with the actions on its input and its output."""
        x = operands.tensors[self.number]
        given = new = self._merged(_permuted(x, self.input))
        for product in products:
            new = product.act("input", new)
        if new is not given:
            unmerged = new if len(self.groups) <= 1 else new.unflatten(self.leading, self.groups)  # type: ignore
            x = _permuted(unmerged, _inverse(self.input))
            args, kwargs = operands.replaced(self.place, x, args, kwargs)
        y = func(*args, **kwargs)
        if not any(product.actions["output"] for product in products):
            return y
        rows = self._merged(_permuted(y, self.output))
        last = self.leading + bool(self.groups)
        flat = rows if len(self.free) == 1 else rows.reshape(*rows.shape[:last], -1)
        found = flat
        for product in products:
            found = product.act("output", found)
        if found is flat and flat is y:
            return y
        # What follows must use what the actions have seen, whose gradient they get. It may have more neurons.
        lengths = y.permute(self.output).shape
        sizes = [*lengths[: self.leading], *self.groups, *lengths[self.leading + len(self.groups) :]]
        if self.free:
            sizes[-len(self.free)] = -1
        return _permuted(found.reshape(sizes), _inverse(self.output))

    def _merged(self, tensor: Tensor) -> Tensor:
        """The axes g as one."""
        stop = self.leading + len(self.groups) - 1
        return tensor if len(self.groups) <= 1 else tensor.flatten(self.leading, stop)


def _permuted(tensor: Tensor, order: tuple[int, ...]) -> Tensor:
    return tensor if order == tuple(range(len(order))) else tensor.permute(order)


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(order.index(axis) for axis in range(len(order)))


_STRIDE = 1001  # and more: strides by which the axes of a view are known, none of them a multiple of another
_METHODS: Any = torch.Tensor
_VIEWS = {
    torch.t, torch.transpose, torch.permute, torch.swapaxes, torch.movedim, torch.unsqueeze, _METHODS.t,
    _METHODS.transpose, _METHODS.permute, _METHODS.swapaxes, _METHODS.movedim, _METHODS.T.__get__, _METHODS.mT.__get__,
    _METHODS.unsqueeze, _METHODS.expand, _METHODS.__getitem__,
}  # fmt: skip
