"""What becomes of a new neuron between producer and consumer, and how connections that bridge a width run."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.utils.parametrize import is_parametrized

from ..passes.replay import Call, Watch, replay
from ..passes.routes import Route, select_neurons
from ..structure.axes import Axis
from ..structure.edits import Edit, edited
from ..structure.widths import Width
from .bridge import Bridge, Kernel, Pooling, pooling_from
from .grown import grown_tensors


def find_bridge(model: nn.Module, width: Width, route: Route, call: Call) -> Bridge | str:
    """How connections that bridge the width run, or why they cannot be followed."""
    modules = dict(model.named_modules(remove_duplicate=False))
    producer, consumer = modules[route.producer.module], modules[route.consumer.module]
    for axis, module in ((route.producer, producer), (route.consumer, consumer)):
        problem = _why_unsupported(axis, module)
        if problem:
            return problem
    if route.producer.per_neuron > 1:
        return f"each neuron is several rows of {route.producer.module}"
    probe = run_probe(model, width, route, call)
    if isinstance(probe, str):
        return probe
    if not isinstance(producer, _ConvNd):
        if probe.before.movedim(1, -1).shape[:-1] != probe.after_shape[:-1] or isinstance(consumer, _ConvNd):
            return f"positions are mixed between {route.producer.module} and {route.consumer.module}"
        return Bridge()
    kernels = _kernels(producer)
    if isinstance(consumer, _ConvNd):
        grid: tuple[int, ...] | None = tuple(probe.after_shape[2:])
        consumed = _kernels(consumer)
    elif len(probe.after_shape) == 2:  # a flattened image: a kernel as large as it
        grid = probe.grid()
        consumed = tuple(Kernel(length, 1, 0, 1) for length in grid or ())
    else:
        return f"{route.consumer.module} takes each position of {route.producer.module} alone"
    pooling = probe.pooling(grid)
    if isinstance(pooling, str):
        return pooling
    return Bridge(kernels, pooling, consumed)


def _why_unsupported(axis: Axis, module: nn.Module) -> str | None:
    weight: Any = module.weight
    if is_parametrized(module, "weight"):
        return f"{axis.module} is under weight norm, and gradients of its weight are not those of its parameters"
    if weight.is_complex():
        return f"{axis.module} is complex"
    if isinstance(module, _ConvTransposeNd):
        return f"{axis.module} is a transposed convolution"
    if isinstance(module, _ConvNd):
        if module.groups > 1:
            return f"{axis.module} is a grouped convolution"
        if module.padding_mode != "zeros":
            return f"{axis.module} pads with {module.padding_mode}"
        if module.padding == "same" and any(k % 2 == 0 for k in module.kernel_size):
            return f"{axis.module} pads an even kernel"
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
    """What becomes of a new neuron between producer and consumer."""

    before: Tensor  # the producer's output: two new neurons, constant 0 and constant 1, samples first
    after: Tensor  # the neurons as the consumer gets them: samples x neurons x positions
    after_shape: torch.Size  # of all that the consumer gets

    def slope(self) -> Tensor:
        """The gradient of a sum over the new neuron that is 0, weighted by numbers that do not cancel."""
        after = self.after[:, 0]
        weights = torch.linspace(1, 2, after.numel()).reshape(after.shape).to(after)
        return self._gradient((after * weights).sum(), 0)

    @property
    def keeps_zero(self) -> bool:
        """Whether a neuron that is 0 arrives as 0."""
        return not bool(self.after[:, 0].any())

    def grid(self) -> tuple[int, ...] | None:
        """The shape of the positions that arrive, if they are an image, flattened."""
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
        """The pooling along each dimension, the same at all positions but those at the border."""
        irregular = "what stands between producer and consumer mixes positions"
        if grid is None or torch.Size(grid).numel() != self.after.shape[2]:
            return irregular
        result = []
        for dim, length in enumerate(grid):
            supports: list[tuple[int, int]] = []
            for place in range(length):
                at = [side // 2 for side in grid]
                at[dim] = place
                support = self._support(_flat_index(at, grid))
                if support is None and 0 < place < length - 1:
                    return irregular
                supports.append((0, 0) if support is None else support[dim])
            middle = max(0, min(length // 2, length - 2))
            pooling = pooling_from(supports[middle : middle + 2], middle)
            for place, (start, stop) in list(enumerate(supports))[1:-1]:
                first = pooling.stride * place + pooling.offset
                if (start, stop) != (first, first + pooling.window):
                    return irregular
            if pooling.stride < 1 or pooling.window < 1:
                return irregular
            result.append(pooling)
        return tuple(result)

    def _support(self, position: int) -> list[tuple[int, int]] | None:
        """From where to where, along each dimension, the producer's outputs are that a position is the mean of."""
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


_MAX_POSITIONS = 1024  # of a flattened image: each takes a backward pass, so that larger ones are not followed


def _flat_index(at: Sequence[int], grid: Sequence[int]) -> int:
    number = 0
    for side, position in zip(grid, at, strict=True):
        number = number * side + position
    return number


def run_probe(model: nn.Module, width: Width, route: Route, call: Call) -> Probe | str:
    """Send two new neurons, constant 0 and constant 1, from the producer to the consumer; or say why not."""
    modules = dict(model.named_modules(remove_duplicate=False))
    producer, consumer = modules[route.producer.module], modules[route.consumer.module]
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

    # The producer keeps its size: what it lacks is put into its output.
    watches = [Watch(producer, "output", insert), Watch(consumer, "input", extract)]
    try:
        with torch.enable_grad():
            tensors, attributes = grown_tensors(model, width, route, 2, alone=True)
        replay(model, call, watches, tensors=tensors, attributes=attributes, gradients=True, evaluation=True)
    except Exception as error:  # of the model's own code, which may use the neurons in ways that hooks do not see
        return f"the model does not run with new neurons up to {route.consumer.module}: {error}"
    return Probe(seen["before"], seen["after"], seen["whole"].shape)
