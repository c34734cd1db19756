"""What a growth takes beside surgery: losses tried, limits kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..layer import Layer
from ..structure.edits import edited
from ..surgery.plan import Plan, plan_neurons, shrink


def loss_with(
    model: nn.Module, layer: Layer, closure: Callable[[], Any], generator: torch.Generator
) -> Callable[[Any], float]:
    """The loss with one more neuron of given values, for a moment."""

    def loss(values: Mapping[tuple[str, int], Tensor]) -> float:
        state = torch.get_rng_state()
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        gradients = {parameter: parameter.grad for parameter in model.parameters()}
        for parameter in gradients:
            parameter.grad = None
        plan_neurons(model, layer.width, 1, values, generator=generator).apply(model)
        try:
            with torch.enable_grad():  # a closure may go backward, as those of some optimizers do
                return float(torch.as_tensor(closure()).detach())
        finally:
            shrink(model, layer.width, [layer.size - 1])
            for parameter, gradient in gradients.items():
                parameter.grad = gradient
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])
            torch.set_rng_state(state)

    return loss


def affordable(model: nn.Module, limit: int | None, layer: Layer, count: int, also: Sequence[tuple[Layer, int]]) -> int:
    """How many of so many neurons the limit of parameters allows, when other layers grow as well."""
    if limit is None:
        return count
    structure, atom = layer.width.structure, layer.width.atom
    sizes = {other.width.atom: other.size + added for other, added in also}
    while count and structure.parameters_with(model, {**sizes, atom: atom.size + count}) > limit:
        count -= 1
    return count


def fitted(key: tuple[str, int], values: Tensor, done: Sequence[Plan]) -> Tensor:
    """Values made before other widths grew, with zeros where these have new neurons; axis -1 if for all of it."""
    name, axis = key
    for plan in done:
        for edit in plan.edits:
            if edit.tensor == name and edit.axis != axis:
                values = edited(values, [edit], {edit.axis: 0.0})
    return values
