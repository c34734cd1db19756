"""Probes follow a new neuron from producer to consumer, which shows what kind of bridge the width has."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.utils.parametrize import is_parametrized

from ..passes.products import Place
from ..passes.replay import ModelCall, Watch, replay
from ..passes.routes import Route, select_neurons
from ..structure.axes import Axis
from ..structure.edits import Edit, edited
from ..structure.recurrent import is_recurrent
from ..structure.widths import Width
from .bridge import Bridge, Kernel, Pooling, pooling_from
from .grown import grown_tensors


def find_bridge(model: nn.Module, width: Width, route: Route, call: ModelCall) -> Bridge | str:
    """Bridge of a width, or the reason it has none."""
    for axis in (route.producer, route.consumer):
        if isinstance(route.place(model, axis), _ConvTransposeNd):
            return f"{axis.module} is a transposed convolution"
    probe = _followed(model, width, route, call)
    if isinstance(probe, str):
        return probe
    producer, consumer = (route.place(model, axis) for axis in (route.producer, route.consumer))
    if not isinstance(producer, _ConvNd):
        return Bridge()
    if isinstance(consumer, _ConvNd):
        grid: tuple[int, ...] | None = tuple(probe.after_shape[2:])
        consumed = _kernels(consumer)
    else:  # a flattened image: a kernel of the same size
        grid = probe.grid()
        consumed = tuple(Kernel(length, 1, 0, 1) for length in grid or ())
    pooling = probe.pooling(grid)
    return pooling if isinstance(pooling, str) else Bridge(_kernels(producer), pooling, consumed)


def why_positions_mix(model: nn.Module, width: Width, route: Route, call: ModelCall) -> str | None:
    """Why an output of the producer cannot be followed to the consumer; None if it can, with or without a bridge.

    A recurrent layer mixes the positions of its inputs itself, so that those of its outputs make no difference; and
    code that multiplies by a weight, or looks up its rows, may arrange them as it likes.
    """
    producer, consumer = (route.place(model, axis) for axis in (route.producer, route.consumer))
    if isinstance(producer, nn.Embedding):
        return why_unsupported(model, route, route.consumer)
    if is_recurrent(producer) or isinstance(producer, Place) or isinstance(consumer, Place):
        problems = [why_unsupported(model, route, axis) for axis in (route.producer, route.consumer)]
        return problems[1] if is_recurrent(producer) else problems[0] or problems[1]
    probe = _followed(model, width, route, call)
    if isinstance(probe, str):
        return probe
    dense = not isinstance(route.place(model, route.producer), _ConvNd)
    return None if dense or probe.keeps_positions else _MIXED


def _followed(model: nn.Module, width: Width, route: Route, call: ModelCall) -> Probe | str:
    """A probe that keeps its positions as far as shapes tell, or the reason there is none."""
    producer, consumer = route.producer.module, route.consumer.module
    for axis in (route.producer, route.consumer):
        if problem := why_unsupported(model, route, axis):
            return problem
    if route.producer.per_neuron > 1:
        return f"each neuron has several rows in {producer}"
    probe = run_probe(model, width, route, call)
    if isinstance(probe, str):
        return probe
    to_image = isinstance(route.place(model, route.consumer), _ConvNd)
    if isinstance(route.place(model, route.producer), _ConvNd):
        if not to_image and len(probe.after_shape) != 2:
            return f"{consumer} is applied to each position of {producer} separately"
    elif to_image or probe.before.movedim(1, -1).shape[:-1] != probe.after_shape[:-1]:
        return f"positions are mixed between {producer} and {consumer}"
    return probe


def why_unsupported(model: nn.Module, route: Route, axis: Axis) -> str | None:
    """Why the gradient of a layer's weight cannot be computed from its inputs; None if it can."""
    module: Any = route.place(model, axis)
    if isinstance(module, Place):
        return f"{axis.tensor} is complex" if model.get_parameter(axis.tensor).is_complex() else None
    if is_recurrent(module):
        return f"{axis.module} is a recurrent layer"
    weight = module.weight
    if is_parametrized(module, "weight"):
        return f"{axis.module} is under weight norm, so the gradient of its weight is not that of its parameters"
    if weight.is_complex():
        return f"{axis.module} has complex weights"
    if isinstance(module, _ConvNd):
        if module.groups > 1:
            return f"{axis.module} is a grouped convolution"
        if module.padding_mode != "zeros":
            return f"{axis.module} has padding_mode={module.padding_mode!r}"
        if module.padding == "same" and any(k % 2 == 0 for k in module.kernel_size):
            return f"{axis.module} has padding='same' with an even kernel"
    elif not isinstance(module, nn.Linear):
        return f"{axis.module} is neither a linear layer nor a convolution"
    return None


def _kernels(module: _ConvNd) -> tuple[Kernel, ...]:
    sizes, dilations = module.kernel_size, module.dilation
    if module.padding == "same":
        paddings: Sequence[int] = [d * (k - 1) // 2 for k, d in zip(sizes, dilations, strict=True)]
    else:
        paddings = [0] * len(sizes) if isinstance(module.padding, str) else module.padding
    return tuple(map(Kernel, sizes, module.stride, paddings, dilations))


@dataclass
class Probe:
    """Two new neurons, constant 0 and constant 1, followed from producer to consumer."""

    before: Tensor  # the neurons in the producer's output, samples x neurons x positions
    after: Tensor  # the neurons in the consumer's input, samples x neurons x positions
    after_shape: torch.Size  # shape of the consumer's input

    def slope(self) -> Tensor:
        """Gradient of a weighted sum over the constant-0 neuron; the weights differ so that terms do not cancel."""
        after = self.after[:, 0]
        weights = torch.linspace(1, 2, after.numel()).reshape(after.shape).to(after)
        return self._gradient((after * weights).sum(), 0)

    @property
    def keeps_zero(self) -> bool:
        """Whether a neuron that is 0 in the producer's output is 0 in the consumer's input."""
        return not bool(self.after[:, 0].any())

    @property
    def keeps_positions(self) -> bool:
        """Whether positions in the middle of the consumer's input are means of ranges of the producer's outputs."""
        middle, count = self.after.shape[2] // 2, self.after.shape[2]
        return any(self._support(place) is not None for place in range(middle, min(count, middle + _MIDDLE)))

    def grid(self) -> tuple[int, ...] | None:
        """Shape of the image whose flattened positions the consumer gets; None if they are not an image."""
        if self.after.shape[2] > _MAX_POSITIONS:
            return None
        supports = [self._support(number) for number in range(self.after.shape[2])]
        if any(support is None for support in supports):
            return None
        starts = [tuple(start for start, _ in support) for support in supports if support is not None]
        sides = tuple(len(set(along)) for along in zip(*starts, strict=True))
        expected = list(itertools.product(*(sorted(set(along)) for along in zip(*starts, strict=True))))
        return sides if starts == expected else None

    def pooling(self, grid: Sequence[int] | None) -> tuple[Pooling, ...] | str:
        """Pooling along each dimension, which must be the same at all positions except the border; or the problem."""
        if grid is None or torch.Size(grid).numel() != self.after.shape[2]:
            return _MIXED
        result = []
        for dim, length in enumerate(grid):
            supports: list[tuple[int, int]] = []
            for place in range(length):
                at = [side // 2 for side in grid]
                at[dim] = place
                support = self._support(_flat_index(at, grid))
                if support is None and 0 < place < length - 1:
                    return _MIXED
                supports.append((0, 0) if support is None else support[dim])
            middle = max(0, min(length // 2, length - 2))
            pooling = pooling_from(supports[middle : middle + 2], middle)
            for place, (start, stop) in list(enumerate(supports))[1:-1]:
                first = pooling.stride * place + pooling.offset
                if (start, stop) != (first, first + pooling.window):
                    return _MIXED
            if pooling.stride < 1 or pooling.window < 1:
                return _MIXED
            result.append(pooling)
        return tuple(result)

    def _support(self, position: int) -> list[tuple[int, int]] | None:
        """Range of producer outputs, per dimension, that a position is the mean of; None if it is not a mean."""
        gradient = self._gradient(self.after[0, 1, position], 1)[0]
        weights = gradient[gradient != 0]
        if not len(weights) or float(weights[0]) <= 0 or not torch.allclose(weights, weights[0]):
            return None
        result = []
        for dim, length in enumerate(gradient.shape):
            touched = gradient.movedim(dim, 0).reshape(length, -1).any(1).nonzero().flatten().tolist()
            result.append((touched[0], touched[-1] + 1))
        return result if len(weights) == torch.Size(stop - start for start, stop in result).numel() else None

    def _gradient(self, of: Tensor, neuron: int) -> Tensor:
        if not of.requires_grad:
            return torch.zeros_like(self.before[:, neuron])
        (gradient,) = torch.autograd.grad(of, self.before, retain_graph=True, allow_unused=True)
        return torch.zeros_like(self.before[:, neuron]) if gradient is None else gradient[:, neuron]


_MIXED = "an operation between producer and consumer mixes positions"
_MIDDLE = 8  # positions, of which some are not at the border of the image
_MAX_POSITIONS = 1024  # of a flattened image, because each takes a backward pass


def _flat_index(at: Sequence[int], grid: Sequence[int]) -> int:
    number = 0
    for side, position in zip(grid, at, strict=True):
        number = number * side + position
    return number


def run_probe(model: nn.Module, width: Width, route: Route, call: ModelCall) -> Probe | str:
    """Follow new neurons, constant 0 and constant 1, from producer to consumer; returns the reason if that fails."""
    producer, consumer = (route.place(model, axis) for axis in (route.producer, route.consumer))
    if is_recurrent(producer):
        return f"{route.producer.module} is a recurrent layer, beside which no candidates can be tried"
    seen: dict[str, Tensor] = {}
    channel = 1 if isinstance(producer, _ConvNd) else -1

    def insert(z: Tensor) -> Tensor:
        z = z.detach().movedim(channel, 1)
        new = torch.tensor([0.0, 1.0]).to(z).reshape(2, *[1] * (z.ndim - 2)).expand(len(z), 2, *z.shape[2:])
        seen["before"] = new.clone().requires_grad_()
        positions = width.new_positions(route.producer, 2)
        values = seen["before"].repeat_interleave(positions.shape[1], 1)
        order = positions.flatten().argsort()
        edit = Edit("", 1, z.shape[1], positions.flatten()[order], values[:, order], "producer")
        return edited(z, [edit]).movedim(1, channel)

    def extract(h: Tensor) -> None:
        seen["whole"] = h
        seen["after"] = select_neurons(h, consumer, width.new_positions(route.consumer, 2))

    # The producer keeps its size: the new neurons are inserted into its output.
    watches = [Watch(producer, "output", insert), Watch(consumer, "input", extract)]
    try:
        with torch.enable_grad():
            tensors, attributes = grown_tensors(model, width, route, 2, alone=True)
        replay(model, call, watches, tensors=tensors, attributes=attributes, gradients=True, evaluation=True)
    except Exception as error:  # from the model's own code, which may use the neurons where hooks do not reach
        return f"the model fails with new neurons before {route.consumer.module}: {error}"
    return Probe(seen["before"], seen["after"], seen["whole"].shape)
