"""What an initialization gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, get_args

import torch
from torch import Tensor

from ..layer import Layer, Need
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


class Initialization:
    """Base class of initializations: write `__call__`, and set or override what else differs.

    Attributes:
        needs: what it cannot do without; widths that cannot give it are left out.
        changes_present_neurons: whether it may return `Neurons.changes`, which an averaged model cannot follow.

    Example:
        >>> import torch, neurogenesis as ng
        >>> class Ones(ng.initializations.Initialization):
        ...     def __call__(self, layer, count, generator):
        ...         ones = torch.ones(count, *layer.of_neurons(layer.producer).shape[1:])
        ...         return ng.Neurons(count, {(layer.producer.tensor, 0): layer.values(layer.producer, ones)})
    """

    needs: ClassVar[frozenset[Need]] = frozenset()
    changes_present_neurons: ClassVar[bool] = False

    @property
    def uses(self) -> frozenset[Need]:
        """What it looks at; what it needs by default."""
        return self.needs

    def check(self, layer: Layer) -> None:
        """Called once per layer, before training: raise if it cannot serve the layer."""

    def needs_loss(self, layer: Layer) -> bool:
        """Whether it must evaluate the loss again, for which `Grower.step` takes a closure."""
        return False

    def __call__(self, layer: Layer, count: int, generator: torch.Generator) -> Neurons:
        """New neurons for a layer, at most `count`."""
        raise NotImplementedError


InitializationFunction = Callable[[Layer, int, torch.Generator], Neurons]


class _FunctionInitialization(Initialization):
    """A plain function, which may look at anything and needs nothing."""

    def __init__(self, function: InitializationFunction):
        self.function = function

    @property
    def uses(self) -> frozenset[Need]:
        return frozenset(get_args(Need))

    def __call__(self, layer: Layer, count: int, generator: torch.Generator) -> Neurons:
        return self.function(layer, count, generator)

    def __repr__(self) -> str:
        return repr(self.function)


def as_initialization(given: Initialization | InitializationFunction) -> Initialization:
    """An initialization as it is, or made of a function."""
    return given if isinstance(given, Initialization) else _FunctionInitialization(given)


def parameter_values(layer: Layer, axis: Axis, new: Tensor) -> dict[tuple[str, int], Tensor]:
    """Weights of new neurons, count x per neuron x the rest, as values of the parameters that make them."""
    values = {(axis.tensor, axis.axis): layer.values(axis, new)}
    if axis == layer.producer and layer.lengths is not None:
        norms = torch.linalg.vector_norm(new.reshape(len(new), axis.per_neuron, -1), dim=2)
        values[layer.lengths.tensor, layer.lengths.axis] = layer.values(layer.lengths, norms)
    return values


def candidate_count(number: int | None, layer: Layer) -> int:
    if number is not None:
        return number
    return 100 if layer.tensor(layer.producer).ndim > 2 else 1000
