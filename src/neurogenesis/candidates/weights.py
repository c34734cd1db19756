"""The weights of a width in its producers and consumers, neuron by neuron."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor, nn

from ..passes.routes import Route
from ..structure.axes import Axis
from ..structure.weight_norm import lengths_of, weight_of
from ..structure.widths import Width
from .grown import stack_values


class Weights:
    """Weights of a width.

    Args:
        model: the model.
        width: the width.
        route: where the width is watched, or None if it cannot be.
    """

    def __init__(self, model: nn.Module, width: Width, route: Route | None):
        self.model, self.width, self.route = model, width, route

    @property
    def name(self) -> str:
        return self.width.name

    @property
    def size(self) -> int:
        return self.width.size

    @cached_property
    def producer(self) -> Axis:
        """Rows of the first layer that produces the width."""
        if self.route is not None:
            return self.route.producer
        weights = [axis for axis in self.width.producers if self.tensor(axis).ndim > 1]
        return max(weights, key=lambda axis: self.tensor(axis).numel())  # the layer itself, not a norm

    @cached_property
    def consumer(self) -> Axis:
        """Columns of the first layer that consumes the width."""
        return self.route.consumer if self.route is not None else self.consumers[0]

    @cached_property
    def consumers(self) -> list[Axis]:
        """Columns of all layers that consume the width."""
        return self.width.consumers

    def tensor(self, axis: Axis) -> Tensor:
        """Parameter of an axis; under weight norm, the weight computed from it."""
        return weight_of(self.model, axis.tensor)

    @cached_property
    def lengths(self) -> Axis | None:
        """Norms of the producer's rows, if it is under weight norm."""
        name = lengths_of(self.model, self.producer.tensor)
        return next((axis for axis in self.width.producers if axis.tensor == name), None)

    def of_neurons(self, axis: Axis, tensor: Tensor | None = None) -> Tensor:
        """Parameter of an axis, or a tensor of its shape, as neurons x per neuron x the rest."""
        return self.width.neurons(axis, self.tensor(axis) if tensor is None else tensor)

    def norms(self, axis: Axis, tensor: Tensor | None = None) -> Tensor:
        """Norm of each neuron's part of a parameter, or of a tensor of its shape."""
        return self.width.norms(axis, self.tensor(axis) if tensor is None else tensor)

    @property
    def weight(self) -> Tensor:
        """Weights of the producer, neurons x fan-in, without biases."""
        return self.of_neurons(self.producer).flatten(1)

    @property
    def fan_in(self) -> int:
        return self.tensor(self.producer).movedim(self.producer.axis, 0)[0].numel() * self.producer.per_neuron

    def fan_out_norms(self) -> Tensor:
        """Norm of each neuron's outgoing weights over all consumers."""
        parameters = dict(self.model.named_parameters())
        norms = [self.norms(axis).float() for axis in self.consumers if axis.tensor in parameters]
        together: Tensor = torch.stack(norms).norm(dim=0)
        return together

    @cached_property
    def other_producers(self) -> list[Axis]:
        """Rows of the other weights that produce the width."""
        own = [axis.tensor for axis in (self.producer, self.lengths) if axis is not None]
        return [a for a in self.width.producers if a.tensor not in own and self.tensor(a).ndim > 1]

    def change(self, axis: Axis, neurons: Tensor, added: Tensor) -> Tensor:
        """Change of a parameter that adds `added`, neurons x per neuron x the rest, to the given neurons."""
        result = torch.zeros_like(self.tensor(axis))
        positions = self.width.positions(axis)[neurons].flatten().to(result.device)
        return result.index_add_(axis.axis, positions, added.flatten(0, 1).movedim(0, axis.axis).to(result))

    def values(self, axis: Axis, new: Tensor) -> Tensor:
        """Convert values of new neurons, count x per neuron x the rest, to the layout that `grow` takes."""
        rest = self.tensor(axis).movedim(axis.axis, 0).shape[1:]
        return stack_values(self.width, axis, new.reshape(len(new), axis.per_neuron, *rest))[1]

    @cached_property
    def biases(self) -> list[Axis]:
        """One-dimensional parameters of the first producer along the width."""
        return [a for a in self.width.axes if a.module == self.producer.module and self.tensor(a).ndim == 1]

    @cached_property
    def bias(self) -> Axis | None:
        """The biases of the first producer, if it has any."""
        return next((axis for axis in self.biases if axis.tensor.rpartition(".")[2] == "bias"), None)


def scaled_like(new: Tensor, present: Tensor) -> Tensor:
    """Scale vectors (first axis) to the mean norm of the present ones; unchanged if that is 0."""
    return scaled_to(new, float(present.flatten(1).norm(dim=1).mean()))


def scaled_to(new: Tensor, norm: float) -> Tensor:
    """Scale vectors (first axis) to a norm; unchanged if that is 0."""
    if not norm > 0:
        return new
    norms = new.flatten(1).norm(dim=1).clamp_min(torch.finfo(new.dtype).tiny)
    scaled: Tensor = new * (norm / norms).reshape(-1, *[1] * (new.ndim - 1))
    return scaled
