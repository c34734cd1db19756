r"""The neurons of a model in training that have died, and may be dropped.

A neuron is dead if it gives all its consumers a constant on the buffered inputs. It is dropped when it was dead at
every look for

.. math:: \max\left(\frac5{1 - \beta},\ \text{passes in the buffer}\right)

gradient steps, with the momentum :math:`\beta` of the optimizer (the first beta of Adam). By then less than one percent
(:math:`e^{-5}`) is left of the momentum that it had when it died, and a dead rectifier gets no gradient, so that it
will not come back by itself; and every input that it was first found dead on has been replaced by another. For a new
neuron this time begins after it was added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..explained import Moments, staying
from ..layer import Layer
from ..passes.buffers import Buffer
from ..surgery.plan import Plan
from .consumers import Consumer, find_consumers, measure, plan_removal

Dropping = tuple[list[int], list[Moments]]  # neurons, and moments at the consumers of their width

LOOKS = 5  # in the time that a neuron must have been dead
_ALIVE = -1


class DeadNeurons:
    """Since when each neuron of each layer has been dead.

    Args:
        model: the model.
        layers: the layers whose neurons may be dropped.
        buffer: the inputs on which activations are measured.
    """

    def __init__(self, model: nn.Module, layers: Sequence[Layer], buffer: Buffer):
        self.model, self.buffer = model, buffer
        found = {layer: find_consumers(model, layer.width) for layer in layers}
        self.consumers = {layer: own for layer, own in found.items() if not isinstance(own, str)}
        self.problems = {layer.name: own for layer, own in found.items() if isinstance(own, str)}
        self.since: dict[str, Tensor] = {}  # by layer, the step at which each neuron was first found dead

    def patience(self, optimizers: Sequence[Optimizer]) -> int:
        """Number of gradient steps for which a neuron must have been dead."""
        return max(round(5 / (1 - momentum(optimizers))), self.buffer.passes)

    def look(self, step: int, patience: int) -> dict[Layer, Dropping]:
        """The neurons to drop now, by layer."""
        if step % max(1, patience // LOOKS):
            return {}
        self.buffer.drop_overwritten()
        measurement = self.buffer.shared_measurement()
        if not all(measurement.full(layer.name) for layer in self.consumers):
            return {}
        own = {layer.width: consumers for layer, consumers in self.consumers.items()}
        measured = measure(measurement, own, evaluation=False)
        result = {}
        for layer, consumers in self.consumers.items():
            moments = measured[layer.width]
            if isinstance(moments, str) or not all(bool(each.products.isfinite().all()) for each in moments):
                continue
            since = _seen(self.since.get(layer.name), dead(consumers, moments), step)
            self.since[layer.name] = since
            if neurons := ((since != _ALIVE) & (step - since >= patience)).nonzero().flatten().tolist():
                result[layer] = neurons, moments
        return result

    def plan(self, layer: Layer, drop: Dropping, round_to: int, ema: nn.Module | None) -> Plan | None:
        """Plan to drop neurons; constants are folded into biases. None if too few have died for a smaller multiple."""
        neurons, moments = drop
        multiple = layer.width.multiple(round_to)
        left = max(1, -(-(layer.size - len(neurons)) // multiple)) * multiple
        if left >= layer.size:
            return None
        return plan_removal(self.model, layer.width, self.consumers[layer], moments, neurons[: layer.size - left], ema)

    def dropped(self, found: Mapping[Layer, Dropping], plans: Mapping[Layer, Plan]) -> None:
        """Forget the neurons that were dropped."""
        for layer, plan in plans.items():
            gone = found[layer][0][: plan.before - plan.after]
            since = self.since[layer.name]
            self.since[layer.name] = since[staying(len(since), gone)]

    def state(self) -> dict[str, Tensor]:
        return dict(self.since)

    def load(self, saved: Mapping[str, Tensor]) -> None:
        self.since = {name: since.cpu() for name, since in saved.items()}


def dead(consumers: Sequence[Consumer], moments: Sequence[Moments]) -> Tensor:
    """Whether each neuron can be removed because every consumer gets a constant from it, which its bias can take.

    Where the constant cannot be taken, it must be zero.
    """
    constant = [
        own.covariance(constant=consumer.folds and consumer.bias is not None).diagonal() == 0
        for consumer, own in zip(consumers, moments, strict=True)
    ]
    return torch.stack(constant).all(0).cpu()


def momentum(optimizers: Sequence[Optimizer]) -> float:
    """The largest momentum of the optimizers."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return max(float(group["betas"][0] if "betas" in group else group.get("momentum", 0.0)) for group in groups)


def _seen(since: Tensor | None, dead: Tensor, step: int) -> Tensor:
    """The steps at which neurons were first found dead, after another look; new neurons are at the end."""
    if since is None or len(since) > len(dead):
        since = torch.empty(0, dtype=torch.long)
    since = torch.cat([since, torch.full((len(dead) - len(since),), _ALIVE)])
    return torch.where(dead, torch.where(since == _ALIVE, step, since), _ALIVE)
