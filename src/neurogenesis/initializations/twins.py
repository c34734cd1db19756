"""New neurons in pairs that cancel out: they have a fan-out from the start, and outputs do not change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..candidates.weights import scaled_like, scaled_to
from ..layer import Layer
from ..structure.axes import Axis
from ..structure.widths import ALL_KINDS, Kinds
from .base import Initialization, Neurons, parameter_values


@dataclass(frozen=True)
class Twins(Initialization):
    r"""Pairs of equal neurons with random fan-in, and opposite random fan-outs.

    .. math:: \sigma(w \cdot x) v + \sigma(w \cdot x) (-v) = 0, \qquad
              \|v\| = \bar n \sqrt{M / (M + \text{count})}

    with :math:`\bar n` the mean norm of the fan-outs of the M present neurons: as large as in a network that has the
    new size from the start. Fan-ins have the mean norm of the present ones: their gradients are as large as those of
    others from the first step, so that they need no margin. The gradients of the two are opposite, which parts the
    twins. The last of an odd number has no fan-out, nor has any neuron where a consumer is not a plain linear layer
    whose weights are trained: twins may not cancel out there, and channels of convolutions did not gain from a fan-out.
    Where a dropout lies between, they cancel out in evaluation, and on average in training.

    Example:
        >>> import torch, neurogenesis as ng
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> plan = ng.grow(model, "0", 2, example=torch.randn(1, 4), initialization="twins")
        >>> first, second = model[2].weight[:, 8:].T
        >>> torch.equal(first, -second), bool(first.any())
        (True, True)

    Reference: Chizat, Oyallon, Bach, "On Lazy Training in Differentiable Programming" (NeurIPS 2019), who initialize
    whole networks in this way.
    """

    kinds: ClassVar[frozenset[Kinds]] = ALL_KINDS - {"stream"}

    def __call__(self, layer: Layer, count: int, generator: torch.Generator) -> Neurons:
        pairs = count // 2
        values: dict[tuple[str, int], Tensor] = {}
        consumers = [axis for axis in layer.width.consumers if _is_plain(layer, axis)]
        if not pairs or len(consumers) < len(layer.width.consumers):
            return Neurons(count)
        for axis in layer.width.axes:
            if axis.role != "consumer":
                new = layer.default(axis, count, generator)
                if axis.role == "producer" and layer.tensor(axis).ndim > 1:
                    new = scaled_like(new, layer.of_neurons(axis))
                values |= parameter_values(layer, axis, torch.cat([new[:pairs], new[:pairs], new[2 * pairs :]]))
        for axis in consumers:
            values |= parameter_values(layer, axis, _opposite(layer.of_neurons(axis), count, generator))
        return Neurons(count, values)


def _is_plain(layer: Layer, axis: Axis) -> bool:
    """Whether a consumer is a linear layer whose weights are trained, and does not produce the same width."""
    path, _, name = axis.tensor.rpartition(".")
    return (
        type(layer.model.get_submodule(path)) is nn.Linear
        and (name, axis.axis) == ("weight", 1)
        and layer.model.get_parameter(axis.tensor).requires_grad
        and axis.tensor not in {producer.tensor for producer in layer.width.producers}
    )


def _opposite(present: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Random fan-outs in opposite pairs, and zeros for the last of an odd number."""
    size, pairs = len(present), count // 2
    norm = float(present.flatten(1).norm(dim=1).mean()) * (size / (size + count)) ** 0.5
    noise = torch.rand((pairs, *present.shape[1:]), generator=generator).to(present) * 2 - 1
    half = scaled_to(noise, norm) if norm > 0 else torch.zeros_like(noise)
    return torch.cat([half, -half, present.new_zeros(count - 2 * pairs, *present.shape[1:])])
