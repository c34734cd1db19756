"""The loss of the model with one candidate neuron."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..structure.randomness import random_state_restored
from ..structure.widths import Width
from ..surgery.planning import plan_neurons, shrink


def loss_with(
    model: nn.Module, width: Width, closure: Callable[[], Any], generator: torch.Generator
) -> Callable[[Any], float]:
    """Function that maps the values of one new neuron to the loss with that neuron; it restores the model."""

    def loss(values: Mapping[tuple[str, int], Tensor]) -> float:
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        gradients = {parameter: parameter.grad for parameter in model.parameters()}
        for parameter in gradients:
            parameter.grad = None
        plan_neurons(model, width, 1, values, generator=generator).apply(model)
        try:
            with random_state_restored(model), torch.enable_grad():  # closures may call backward
                return float(torch.as_tensor(closure()).detach())
        finally:
            shrink(model, width, [width.size - 1])
            for parameter, gradient in gradients.items():
                parameter.grad = gradient
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])

    return loss
