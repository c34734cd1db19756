r"""How far a single gradient can move a weight: this sets the norm and the direction of new fan-ins.

Random neurons with small fan-out get gradients of nearly the same sign for all inputs, and Adam turns each into a full
step. The neurons then drift together, mostly to the side where they never fire. Two measures keep them active.

Length: the gradient of a new fan-in is nearly zero at first and grows with the fan-out, and the averages of past
squares lag behind. So a single gradient moves an entry by up to :math:`\eta / \sqrt{1-\beta_2}`, and a fan-in of d
entries by :math:`\sqrt d` times as much. The norm of new fan-ins is increased by this reach, but at most doubled, since
activations grow with it:

.. math:: \|w_{new}\| = \bar n + \min(\bar n, \eta \sqrt{d / (1 - \beta_2)})

where :math:`\bar n` is the mean norm of the neurons that existed before the first growth. If later neurons counted,
norms would increase with each growth. The paper uses the mean norm of all existing neurons.

Balance: the optimizer's root mean squared gradients, s, of the existing fan-ins estimate the strength of each input.
New fan-ins are made orthogonal to s, up to 1/d (see `fills.balanced`), so that they fire on about half of the samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Adadelta, Adafactor, Adagrad, Adamax, Optimizer, RMSprop, Rprop

from ..structure.fills import FanIn
from ..structure.terms import positions_of
from ..structure.widths import Width


def fan_ins_of(model: nn.Module, width: Width, initial: int, optimizers: Sequence[Optimizer]) -> Mapping[str, FanIn]:
    """Norm and balance of random fan-ins of a width, by parameter, for optimizers with a reach.

    Args:
        model: the model.
        width: the width.
        initial: number of neurons before the first growth.
        optimizers: the optimizers of the model.
    """
    parameters, far = dict(model.named_parameters()), reaches(model, optimizers)
    result = {}
    for axis in width.producers:
        parameter = parameters.get(axis.tensor)
        if parameter is None or parameter.ndim < 2 or not far.get(axis.tensor, 0.0) > 0:
            continue
        # Not `width.positions`, which caches them: growth should use no more memory than the new neurons need.
        term = width.structure.axes[axis.tensor][axis.axis]
        first = positions_of(term, width.atom)[:initial].flatten().to(parameter.device)
        rows = parameter.detach().movedim(axis.axis, 0).index_select(0, first)
        mean = float(rows.flatten(1).norm(dim=1).mean())
        strength = input_strength(parameter, optimizers)
        common = None if strength is None else strength.movedim(axis.axis, 0).index_select(0, first).mean(0)
        result[axis.tensor] = FanIn(mean + min(mean, far[axis.tensor] * rows[0].numel() ** 0.5), common)
    return result


_SQUARES = ("exp_avg_sq", "square_avg", "sum")


def input_strength(parameter: Tensor, optimizers: Iterable[Optimizer]) -> Tensor | None:
    """Root mean squared gradients (or Adamax's infinity norm) that an optimizer keeps for a parameter, if any."""
    for optimizer in optimizers:
        state = optimizer.state.get(parameter, {})
        for name in (*_SQUARES, "exp_inf"):
            found = state.get(name)
            if isinstance(found, Tensor) and found.shape == parameter.shape and not found.is_complex():
                return found.sqrt() if name in _SQUARES else found
    return None


def reaches(model: nn.Module, optimizers: Iterable[Optimizer]) -> Mapping[str, float]:
    """How far a single gradient can move an entry, by parameter; 0 for optimizers without a scale.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(2, 3)
        >>> {name: round(far, 4) for name, far in reaches(model, [torch.optim.Adam(model.parameters())]).items()}
        {'weight': 0.0316, 'bias': 0.0316}
    """
    found = {
        id(parameter): float(group["lr"]) * in_learning_rates(optimizer, group)
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    return {name: found[id(own)] for name, own in model.named_parameters() if id(own) in found}


def in_learning_rates(optimizer: Optimizer, group: Mapping[str, Any]) -> float:
    """Reach of a single gradient in units of the learning rate; 0 if steps are proportional to gradients."""
    if isinstance(optimizer, (Adagrad, Adamax, Rprop)):
        return 1.0
    if isinstance(optimizer, RMSprop):
        return _lagging(group["alpha"])
    if isinstance(optimizer, (Adadelta, Adafactor)):  # steps are relative to past steps or to the weights
        return 0.0
    betas = group.get("betas")
    return _lagging(betas[1]) if isinstance(betas, (tuple, list)) and len(betas) == 2 else 0.0


def _lagging(beta: Any) -> float:
    return float((1 - float(beta)) ** -0.5)
