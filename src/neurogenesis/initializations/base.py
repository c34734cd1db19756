"""The base class of initializations, and the new neurons that they return."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, get_args

import torch
from torch import Tensor

from ..layer import Layer, Requirement, stable_repr
from ..structure.axes import Axis
from ..structure.widths import ALL_KINDS, SINGLE, Kinds


@dataclass(frozen=True)
class Neurons:
    """New neurons: their number, and the values that differ from the default.

    Args:
        count: number of neurons; may be smaller than requested.
        values: new values by (parameter, axis), stacked along the axis that grows.
        changes: tensors to add to present parameters, by name.
        why_fewer: the reason if there are fewer neurons than requested.
    """

    count: int
    values: Mapping[tuple[str, int], Tensor] = field(default_factory=dict)
    changes: Mapping[str, Tensor] = field(default_factory=dict)
    why_fewer: str | None = None


class Initialization:
    """Base class of initializations: implement `__call__`, and override the rest as needed.

    Attributes:
        needs: requirements ("activations", "gradients", "trials"); a width does not grow while one of them is missing.
        changes_present_neurons: whether it may return `Neurons.changes`, which cannot be applied to an averaged model.
        kinds: the kinds of widths that it supports. The values of new entries of a stream must be left open.

    Example:
        >>> import torch, neurogenesis as ng
        >>> class Ones(ng.initializations.Initialization):
        ...     def __call__(self, layer, count, generator):
        ...         ones = torch.ones(count, *layer.of_neurons(layer.producer).shape[1:])
        ...         return ng.Neurons(count, {(layer.producer.tensor, 0): layer.values(layer.producer, ones)})
    """

    needs: ClassVar[frozenset[Requirement]] = frozenset()
    changes_present_neurons: ClassVar[bool] = False
    kinds: ClassVar[frozenset[Kinds]] = SINGLE

    @property
    def uses(self) -> frozenset[Requirement]:
        """What the initialization may use; `needs` by default."""
        return self.needs

    def check(self, layer: Layer) -> None:
        """Raise if the layer is not supported; called once per layer, before training."""

    def check_average(self) -> None:
        """Raise if it cannot be used with an averaged copy of the model."""
        if self.changes_present_neurons:
            raise ValueError(
                f"{self} changes present neurons, which cannot be done in the averaged model: omit ema= and start a "
                "new average after growth, or use another initialization"
            )

    def needs_loss(self, layer: Layer) -> bool:
        """Whether it evaluates the loss again, which requires `Grower.step(closure)`."""
        return False

    def __repr__(self) -> str:
        """A text that identifies the initialization in saved states, the same in every process."""
        return f"{type(self).__qualname__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def __call__(self, layer: Layer, count: int, generator: torch.Generator) -> Neurons:
        """Return at most `count` new neurons for a layer."""
        raise NotImplementedError


InitializationFunction = Callable[[Layer, int, torch.Generator], Neurons]


class _FunctionInitialization(Initialization):
    """A plain function, which may use everything and requires nothing."""

    kinds = ALL_KINDS - {"stream"}

    def __init__(self, function: InitializationFunction):
        self.function = function

    @property
    def uses(self) -> frozenset[Requirement]:
        return frozenset(get_args(Requirement))

    def __call__(self, layer: Layer, count: int, generator: torch.Generator) -> Neurons:
        return self.function(layer, count, generator)

    def __repr__(self) -> str:
        return stable_repr(self.function)


def as_initialization(given: Initialization | InitializationFunction) -> Initialization:
    """Return an initialization unchanged; wrap a function as one."""
    return given if isinstance(given, Initialization) else _FunctionInitialization(given)


def parameter_values(layer: Layer, axis: Axis, new: Tensor) -> dict[tuple[str, int], Tensor]:
    """Parameters of an axis that give new neurons the weights `new`, count x per neuron x the rest.

    Under weight norm the parameters are the direction and the norm.
    """
    values = {(axis.tensor, axis.axis): layer.values(axis, new)}
    if axis == layer.producer and layer.lengths is not None:
        norms = torch.linalg.vector_norm(new.reshape(len(new), axis.per_neuron, -1), dim=2)
        values[layer.lengths.tensor, layer.lengths.axis] = layer.values(layer.lengths, norms)
    return values


def candidate_count(number: int | None, layer: Layer) -> int:
    """Number of candidates; by default 1000, or 100 for convolutions."""
    if number is not None:
        return number
    return 100 if layer.tensor(layer.producer).ndim > 2 else 1000
