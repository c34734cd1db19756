r"""How far one gradient can carry a weight, and what the fan-in of new neurons is like therefore.

Random neurons with little fan-out get gradients of nearly one sign in all inputs, and Adam makes each a full step: they
drift together, mostly to the side on which they never fire. Two things keep them alive.

Length: the gradient of a new neuron's fan-in is nearly zero at first, since its fan-out is, and grows with it. Averages
of past squares lag behind: a single gradient moves an entry by up to :math:`\eta / \sqrt{1-\beta_2}`, and a fan-in of d
entries by :math:`\sqrt d` times that. New fan-ins are longer by that reach, but at most twice as long, since
activations grow with them:

.. math:: \|w_{new}\| = \bar n + \min(\bar n, \eta \sqrt{d / (1 - \beta_2)})

with the mean norm :math:`\bar n` of the neurons that were there when growing began: if later ones counted, each would
be longer than the last. The paper has the mean norm of all present neurons.

Balance: the optimizer's root of mean squared gradients, s, of the present fan-ins tells how strong each input is. New
fan-ins are made orthogonal to it, all but 1/d (see `edits.balanced`), so that they fire on about half of the samples.
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
    """What random fan-ins of a width are like, by the parameter that has them, under optimizers with a reach.

    Args:
        model: the model.
        width: the width.
        initial: how many neurons it had when growing began.
        optimizers: those that train the model.
    """
    parameters, far = dict(model.named_parameters()), reaches(model, optimizers)
    result = {}
    for axis in width.producers:
        parameter = parameters.get(axis.tensor)
        if parameter is None or parameter.ndim < 2 or not far.get(axis.tensor, 0.0) > 0:
            continue
        # Not `width.positions`, which keeps them: growth leaves no more memory behind than the neurons take.
        term = width.structure.axes[axis.tensor][axis.axis]
        first = positions_of(term, width.atom)[:initial].flatten().to(parameter.device)
        rows = parameter.detach().movedim(axis.axis, 0)[first]
        mean = float(rows.flatten(1).norm(dim=1).mean())
        strength = input_strength(parameter, optimizers)
        common = None if strength is None else strength.movedim(axis.axis, 0)[first].mean(0)
        result[axis.tensor] = FanIn(mean + min(mean, far[axis.tensor] * rows[0].numel() ** 0.5), common)
    return result


_SQUARES = ("exp_avg_sq", "square_avg", "sum")


def input_strength(parameter: Tensor, optimizers: Iterable[Optimizer]) -> Tensor | None:
    """The root of mean squared gradients that an optimizer keeps for a parameter, or what it has instead."""
    for optimizer in optimizers:
        state = optimizer.state.get(parameter, {})
        for name in (*_SQUARES, "exp_inf"):
            found = state.get(name)
            if isinstance(found, Tensor) and found.shape == parameter.shape and not found.is_complex():
                return found.sqrt() if name in _SQUARES else found
    return None


def reaches(model: nn.Module, optimizers: Iterable[Optimizer]) -> Mapping[str, float]:
    """By parameter, how far one gradient can carry an entry under its optimizer; 0 where that knows no scale.

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
    """The reach of one gradient in learning rates: 0 for optimizers whose steps are as short as gradients are."""
    if isinstance(optimizer, (Adagrad, Adamax, Rprop)):
        return 1.0
    if isinstance(optimizer, RMSprop):
        return _lagging(group["alpha"])
    if isinstance(optimizer, (Adadelta, Adafactor)):  # their steps are relative to past steps, or to the weights
        return 0.0
    betas = group.get("betas")
    return _lagging(betas[1]) if isinstance(betas, (tuple, list)) and len(betas) == 2 else 0.0


def _lagging(beta: Any) -> float:
    return float((1 - float(beta)) ** -0.5)
