"""The model before training, in which layers are measured once there are enough inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from ..structure.axes import named_tensors
from ..structure.labels import AttributeValue
from ..structure.widths import Width
from .activations import Activations
from .measurements import Measurement, Point
from .processes import Processes
from .routes import Route


@dataclass(frozen=True)
class Untrained:
    """The model before training: tensors, size attributes of modules, and points and fan-out norms of layers."""

    tensors: Mapping[str, Tensor]
    attributes: Sequence[tuple[str, str, AttributeValue]]
    points: Mapping[str, Point]
    fan_out_norms: Mapping[str, Tensor]

    @staticmethod
    def of(
        model: nn.Module, widths: Mapping[str, tuple[Width, Route]], fan_out_norms: Mapping[str, Tensor]
    ) -> Untrained:
        """Copy a model as it is now."""
        return Untrained(
            {name: tensor.detach().clone() for name, tensor in named_tensors(model).items()},
            next(iter(widths.values()))[0].structure.attribute_values(),
            {name: Point.of(*each) for name, each in widths.items()},
            fan_out_norms,
        )

    def activations(self, name: str, measurement: Measurement) -> Activations | None:
        """Activations of a layer in this model, on the inputs of a measurement."""
        if name not in self.points:
            return None
        modules = dict(measurement.model.named_modules(remove_duplicate=False))
        attributes = [(modules[path], attribute, value) for path, attribute, value in self.attributes]
        return measurement.at_points({name: self.points[name]}, self.tensors, attributes).get(name)

    def of_first(self, processes: Processes) -> Untrained:
        """The model of the first process."""
        tensors = dict(zip(self.tensors, processes.of_first(self.tensors.values()), strict=True))
        norms = dict(zip(self.fan_out_norms, processes.of_first(self.fan_out_norms.values()), strict=True))
        return replace(self, tensors=tensors, fan_out_norms=norms)

    def state(self) -> list[Any]:
        points = {name: (p.module, p.side, p.positions, p.in_order) for name, p in self.points.items()}
        return [dict(self.tensors), list(self.attributes), points, dict(self.fan_out_norms)]

    @staticmethod
    def from_state(state: Sequence[Any]) -> Untrained:
        tensors, attributes, points, norms = state
        return Untrained(tensors, attributes, {name: Point(*point) for name, point in points.items()}, norms)
