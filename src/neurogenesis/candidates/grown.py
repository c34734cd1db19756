"""Candidate neurons: their weights, and the tensors of a model that has them, up to the layer that consumes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from ..passes.routes import Route
from ..structure.axes import Axis, named_tensors
from ..structure.edits import Edit, edited, grouped
from ..structure.fills import ZERO, new_values
from ..structure.labels import AttributeValue
from ..structure.weight_norm import lengths_of
from ..structure.widths import Width


@dataclass(frozen=True)
class Candidates:
    """Weights of candidate neurons.

    Args:
        fan_in: weights in the producer, count x per neuron x the rest.
        bias: biases, count x per neuron; zero by default.
        sources: for each, the present neuron that it copies, with its other parameters such as a norm's scale, or -1.
        others: weights in other producers, by their axes; random by default.
    """

    fan_in: Tensor
    bias: Tensor | None = None
    sources: Tensor | None = None
    others: Mapping[Axis, Tensor] | None = None

    @property
    def and_one_more(self) -> Candidates:
        """These candidates, the last one twice."""

        def longer(tensor: Tensor) -> Tensor:
            return torch.cat([tensor, tensor[-1:]])

        bias, sources = (None if each is None else longer(each) for each in (self.bias, self.sources))
        others = None if self.others is None else {axis: longer(each) for axis, each in self.others.items()}
        return Candidates(longer(self.fan_in), bias, sources, others)


def grown_tensors(
    model: nn.Module,
    width: Width,
    route: Route,
    count: int,
    candidates: Candidates | None = None,
    alone: bool = False,
    instead: bool = False,
) -> tuple[dict[str, Tensor], list[tuple[nn.Module, str, AttributeValue]]]:
    """Tensors and module attributes for a run with additional neurons, up to their consumer.

    Args:
        model: the model.
        width: the width that grows.
        route: where the width is watched.
        count: number of additional neurons.
        candidates: their weights; if None, the first producer does not grow.
        alone: whether other producers contribute zero.
        instead: whether the new neurons take the place of the present ones.
    """
    sources, others = (None, None) if candidates is None else (candidates.sources, candidates.others)
    tensors, generator = named_tensors(model), torch.Generator().manual_seed(0)
    lengths = lengths_of(model, route.producer.tensor)
    edits, removals = list[Edit](), list[Edit]()
    for axis in width.axes:
        old = tensors[axis.tensor]
        given_elsewhere = others is not None and axis in others
        if axis.module == route.producer.module and axis.role != "consumer" and not given_elsewhere:
            if candidates is None:
                continue
            shape = (count, axis.per_neuron, *old.movedim(axis.axis, 0).shape[1:])
            given = candidates.fan_in if axis == route.producer else candidates.bias
            if axis.tensor == lengths:
                given = torch.linalg.vector_norm(candidates.fan_in.reshape(count, axis.per_neuron, -1), dim=2)
            given = old.new_zeros(1).expand(shape) if given is None else given.reshape(shape)
            values = stack_values(width, axis, given)[1]
        elif axis.module in route.later:
            continue
        elif others is not None and axis in others:
            values = stack_values(width, axis, others[axis])[1]
        else:
            if alone and axis.role == "producer":
                values = new_values(old, axis.axis, count * axis.per_neuron, ZERO, generator)
            else:
                values = width.new_entries(axis, count, old, generator)
            if sources is not None and axis.role != "consumer":
                rows = old.detach().movedim(axis.axis, 0)[width.positions(axis)[sources.clamp_min(0)]]
                usual = values.movedim(axis.axis, 0).unflatten(0, rows.shape[:2])  # type: ignore[no-untyped-call]
                copied = (sources >= 0).reshape(-1, *[1] * (rows.ndim - 1)).to(rows.device)
                values = stack_values(width, axis, torch.where(copied, rows, usual))[1]
        size, length = (0 if instead else width.size), old.shape[axis.axis]
        if instead:
            present = width.positions(axis).flatten().sort().values
            removals.append(Edit(axis.tensor, axis.axis, length, present, None, axis.role))
        positions = width.positions_with(axis, size + count)[size:].flatten().sort().values
        edits.append(
            Edit(axis.tensor, axis.axis, length - (width.size - size) * axis.per_neuron, positions, values, axis.role)
        )
    edits.sort(key=lambda edit: edit.role == "consumer")  # new neurons do not read each other
    removed = grouped(removals)
    grown = {
        name: edited(edited(tensors[name].detach(), removed.get(name, [])), own) for name, own in grouped(edits).items()
    }
    modules = dict(model.named_modules(remove_duplicate=False))
    attributes = width.structure.attribute_changes({width.atom: (0 if instead else width.size) + count})
    return grown, [(modules[path], name, new) for path, name, _, new in attributes]


def stack_values(width: Width, axis: Axis, values: Tensor) -> tuple[Tensor, Tensor]:
    """Positions of new neurons on an axis in ascending order, and their values in that order.

    Args:
        width: the width.
        axis: the axis.
        values: values of new neurons, count x per neuron x the rest.
    """
    positions = width.new_positions(axis, len(values)).flatten()
    order = positions.argsort()
    return positions[order], values.flatten(0, 1)[order.to(values.device)].movedim(0, axis.axis)


def apply_weights(
    module: nn.Module, inputs: Tensor, weights: Tensor, axis: Axis, biases: Tensor | None = None
) -> Tensor:
    """Output of a linear layer or convolution with the weights of some neurons only.

    Args:
        module: the layer.
        inputs: its inputs; for an axis of inputs, the inputs from the neurons only.
        weights: weights of the neurons along the axis, count x per neuron x the rest.
        axis: an axis of the layer's weight.
        biases: biases of the neurons, count x per neuron; zero by default.
    """
    weight = weights.flatten(0, 1).movedim(0, axis.axis)
    bias = None if biases is None else biases.flatten()
    if isinstance(module, _ConvTransposeNd):
        transposed: Any = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[weight.ndim - 3]
        settings: Any = module.stride, module.padding, module.output_padding, 1, module.dilation
        result: Tensor = transposed(inputs, weight, bias, *settings)
        return result
    if isinstance(module, _ConvNd):
        convolve: Any = (F.conv1d, F.conv2d, F.conv3d)[weight.ndim - 3]
        return convolve(inputs, weight, bias, module.stride, module.padding, module.dilation)  # type: ignore
    return F.linear(inputs, weight, bias)
