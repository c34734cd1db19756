"""The loss that the user's closure would return if the model had one more neuron.

The closure runs the user's own model, whose parameters and buffers are replaced where operations read them: the model
itself keeps its tensors, and no hook is added.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from ..passes.replay import temporary_attributes, without_checkpointing
from ..structure.axes import named_tensors
from ..structure.edits import adjusted, edited, grouped, total_factor
from ..structure.randomness import random_state_restored
from ..structure.reasons import Kind
from ..structure.running import internal_run, restoring_attributes
from ..structure.widths import Width
from ..surgery.planning import plan_neurons


def loss_with(
    model: nn.Module,
    width: Width,
    closure: Callable[[], Any],
    values: Mapping[tuple[str, int], Tensor],
    seed: int = 0,
    allowed: Container[Kind] = (),
) -> float:
    """The loss with one new neuron; the model, its gradients and all random states stay as they are.

    Args:
        model: the model.
        width: the width of the neuron.
        closure: runs the model and returns the loss. Backward passes in it are left out.
        values: values of the neuron, where these differ from the defaults.
        seed: seed of its other weights.
        allowed: kinds of reasons not to grow that do not count.
    """
    generator = torch.Generator().manual_seed(seed)
    plan = plan_neurons(model, width, 1, values, generator=generator, allowed=allowed)
    edits, modules = grouped(plan.edits), dict(model.named_modules(remove_duplicate=False))
    tensors = {}
    for name, tensor in named_tensors(model).items():
        factor, shift = total_factor(plan.scales, name)
        tensors[tensor] = edited(adjusted(tensor.detach(), factor, shift=shift).clone(), edits.get(name, []))
    with ExitStack() as stack:
        stack.enter_context(internal_run(model))
        stack.enter_context(random_state_restored(model))
        stack.enter_context(restoring_attributes(model))  # a model may count its calls or store results
        stack.enter_context(
            temporary_attributes([(modules[path], name, new) for path, name, _, new in plan.attributes])
        )
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(without_checkpointing())
        stack.enter_context(torch.enable_grad())  # the loss may have gradients in it
        stack.enter_context(Substitution(tensors))
        return float(torch.as_tensor(closure()).detach())


class Substitution(TorchFunctionMode):
    """Inside the context, operations get other tensors in place of those of a model, and no backward pass runs.

    Args:
        tensors: the other tensors.

    Example:
        >>> layer = nn.Linear(2, 1, bias=False)
        >>> with Substitution({layer.weight: torch.tensor([[3.0, 4.0, 5.0]])}):
        ...     float(layer(torch.ones(3)).detach()), layer.weight.shape
        (12.0, torch.Size([1, 3]))
    """

    def __init__(self, tensors: Mapping[Tensor, Tensor]):
        super().__init__()
        self._tensors = {old: new.requires_grad_(old.requires_grad) for old, new in tensors.items()}

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.backward:
            return None  # some operations would find the model's own tensors, and give these gradients
        args, kwargs = tree_map_only(Tensor, self._other, (args, kwargs or {}))
        return func(*args, **kwargs)

    def _other(self, tensor: Tensor) -> Tensor:
        return self._tensors.get(tensor, tensor)
