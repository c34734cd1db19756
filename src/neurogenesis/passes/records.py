"""Inputs and gradients of a width at its consumers, recorded in training passes since the last gradient step.

Taps write the record; layers read it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..structure.axes import Axis
from ..structure.paths import tensor_at
from ..structure.widths import Width
from .processes import ALONE, Processes
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
    region: ModelCall | None = None  # the arguments of the route's region, if they are recorded
    items: Tensor | None = None  # the item of the batch that each row comes from, of packed sequences

    @property
    def intact(self) -> bool:
        """Whether the inputs have not been modified since they were recorded."""
        return (self.H_prev._version, self.H._version) == self.versions


class ConsumerRecord:
    """Inputs and gradients of one width at one of its consumers.

    Attributes:
        pairs: inputs and gradients of the passes since the last step, in this process.
        processes: the processes that train the model together.
    """

    def __init__(self, model: nn.Module, width: Width, route: Route):
        self.model, self.width, self.route = model, width, route
        self.pairs: list[Pair] = []
        self.processes: Processes = ALONE
        self._gradients: dict[str, tuple[Axis, Tensor]] = {}  # of this process, not yet averaged
        self._norms: dict[str, Tensor] = {}

    @property
    def key(self) -> tuple[str, str]:
        """Names of the width and of the consumer's weight."""
        return self.width.name, self.route.consumer.tensor

    def add(
        self,
        call: ModelCall,
        H_prev: Tensor,
        H: Tensor,
        D: Tensor,
        region: ModelCall | None = None,
        items: Tensor | None = None,
    ) -> None:
        self.pairs.append(Pair(call, H_prev, H, D, (H_prev._version, H._version), self.shapes, region, items))

    def add_gradient(self, role: str, axis: Axis, gradient: Tensor) -> None:
        if self.processes is ALONE:
            self._norms[role] = self.width.norms(axis, gradient)
        else:
            self._gradients[role] = axis, gradient.detach().clone()

    @property
    def gradient_norms(self) -> dict[str, Tensor]:
        """Norms of the gradients of fan-in and fan-out at the last backward pass, per neuron, of all processes."""
        for role in list(self._gradients):
            axis, gradient = self._gradients.pop(role)
            self._norms[role] = self.width.norms(axis, self.processes.mean(gradient))
        return self._norms

    def total(self, of: Callable[[Pair], Tensor]) -> Tensor:
        """Sum over the passes since the last step, averaged over processes as gradients are."""
        return self.processes.mean(reduce(torch.add, map(of, self.pairs)))

    @property
    def shapes(self) -> Shapes:
        """Current shapes of the producer's and the consumer's weight."""
        producer, consumer = (tensor_at(self.model, axis.tensor) for axis in (self.route.producer, self.route.consumer))
        return producer.shape, consumer.shape

    @property
    def stale(self) -> bool:
        """Whether inputs were modified or weights resized since they were recorded."""
        shapes = self.shapes if self.pairs else None
        return any(pair.shapes != shapes or not pair.intact for pair in self.pairs)

    def clear(self) -> None:
        self.pairs.clear()
        self._gradients.clear()
        self._norms.clear()


def input_scale(records: Sequence[ConsumerRecord]) -> Tensor:
    """Root mean square of the producer's inputs in the recorded passes of all processes; 1 if there are none."""
    record = next((each for each in records if each.pairs), None)
    if record is None:
        return torch.ones(())
    inputs = [pair.H_prev.detach() for pair in record.pairs]
    floating = [each.to(torch.promote_types(each.dtype, torch.float32)) for each in inputs]
    squares = sum(torch.linalg.vector_norm(each).square() for each in floating)
    return record.processes.mean(torch.as_tensor(squares) / sum(each.numel() for each in inputs)).sqrt()
