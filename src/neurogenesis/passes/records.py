"""Inputs and gradients of a width at its consumers, recorded in training passes since the last gradient step.

Taps write the record; layers read it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..structure.axes import Axis
from ..structure.widths import Width
from .processes import Processes
from .replay import ModelCall
from .routes import Route

Shapes = tuple[torch.Size, torch.Size]  # of the producer's and the consumer's weight


class NotFinite(ArithmeticError):
    """Raised if activations, weights or gradients are not all finite; the message says which."""


def check_finite(tensors: Iterable[Tensor], what: str) -> None:
    """Raise `NotFinite(what)` unless all entries are finite."""
    for tensor in tensors:
        wide = torch.promote_types(tensor.dtype, torch.float32)  # half precision would overflow
        if not math.isfinite(float(torch.linalg.vector_norm(tensor.detach(), dtype=wide).abs())):
            raise NotFinite(what)


class Pair(NamedTuple):
    """The inputs of producer and consumer and the gradient of the loss at the consumer's output in one pass."""

    call: ModelCall
    H_prev: Tensor
    H: Tensor
    D: Tensor
    versions: tuple[int, int]  # versions of H_prev and H, which the model may modify in place
    shapes: Shapes

    @property
    def intact(self) -> bool:
        """Whether the inputs have not been modified since they were recorded."""
        return (self.H_prev._version, self.H._version) == self.versions


class ConsumerRecord:
    """Inputs and gradients of one width at one of its consumers.

    Attributes:
        pairs: inputs and gradients of the passes since the last step.
        gradients: axes and gradients of fan-in and fan-out at the last backward pass, in several processes.
        gradient_norms: in one process, their norms, per neuron.
    """

    def __init__(self, model: nn.Module, width: Width, route: Route):
        self.model, self.width, self.route = model, width, route
        self.pairs: list[Pair] = []
        self.gradients: dict[str, tuple[Axis, Tensor]] = {}
        self.gradient_norms: dict[str, Tensor] = {}

    @property
    def key(self) -> tuple[str, str]:
        """Names of the width and of the consumer's weight."""
        return self.width.name, self.route.consumer.tensor

    def add(self, call: ModelCall, H_prev: Tensor, H: Tensor, D: Tensor) -> None:
        self.pairs.append(Pair(call, H_prev, H, D, (H_prev._version, H._version), self.shapes))

    def add_gradient(self, role: str, axis: Axis, gradient: Tensor, alone: bool) -> None:
        if alone:
            self.gradient_norms[role] = self.width.norms(axis, gradient)
        else:  # not yet averaged over processes
            self.gradients[role] = axis, gradient.detach().clone()

    def norms(self, processes: Processes) -> dict[str, Tensor]:
        """Norms of the gradients of fan-in and fan-out, per neuron."""
        for role in list(self.gradients):
            axis, gradient = self.gradients.pop(role)
            self.gradient_norms[role] = self.width.norms(axis, processes.mean(gradient))
        return self.gradient_norms

    @property
    def shapes(self) -> Shapes:
        """Current shapes of the producer's and the consumer's weight."""
        producer, consumer = (self._tensor(axis.tensor) for axis in (self.route.producer, self.route.consumer))
        return producer.shape, consumer.shape

    def _tensor(self, name: str) -> Tensor:
        path, _, own = name.rpartition(".")
        found: Tensor = getattr(self.model.get_submodule(path), own)  # of a layer that was pruned since, no parameter
        return found

    @property
    def stale(self) -> bool:
        """Whether inputs were modified or weights resized since they were recorded."""
        shapes = self.shapes if self.pairs else None
        return any(pair.shapes != shapes or not pair.intact for pair in self.pairs)

    def clear(self) -> None:
        self.pairs.clear()
        self.gradients.clear()
        self.gradient_norms.clear()
