"""What an initialization gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..layer import Layer
from ..structure.axes import Axis


@dataclass(frozen=True)
class Neurons:
    """New neurons: how many, and the values that are not the default.

    Args:
        count: how many; fewer than were asked for where there are no more to be had.
        values: new values by parameter and axis, stacked along the axis that grows.
        changes: what to add to present parameters, by name.
        why_fewer: why there are fewer than were asked for.
    """

    count: int
    values: Mapping[tuple[str, int], Tensor] = field(default_factory=dict)
    changes: Mapping[str, Tensor] = field(default_factory=dict)
    why_fewer: str | None = None


Initialization = Callable[[Layer, int, torch.Generator], Neurons]


def values_of(layer: Layer, axis: Axis, new: Tensor) -> dict[tuple[str, int], Tensor]:
    """Weights of new neurons, count x per neuron x the rest, as values of the parameters that make them."""
    values = {(axis.tensor, axis.axis): layer.values(axis, new)}
    if axis == layer.producer and layer.lengths is not None:
        norms = torch.linalg.vector_norm(new.reshape(len(new), axis.per_neuron, -1), dim=2)
        values[layer.lengths.tensor, layer.lengths.axis] = layer.values(layer.lengths, norms)
    return values


def candidates_of(number: int | None, layer: Layer) -> int:
    if number is not None:
        return number
    return 100 if layer.tensor(layer.producer).ndim > 2 else 1000
