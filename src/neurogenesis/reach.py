r"""How far one gradient can carry a weight, and how long the fan-in of new neurons is therefore.

The gradient of a new neuron's fan-in is nearly zero at first, since its fan-out is, and grows with it. Adam divides by
averages of past squares, which lag behind: a single gradient moves an entry by up to :math:`\eta / \sqrt{1-\beta_2}`,
and a fan-in of d entries by :math:`\sqrt d` times that. Neurons of a shorter fan-in are turned over by their first
steps, mostly to the side on which they never fire. So new ones are longer than the present ones by that reach, but at
most twice as long, since activations grow with them:

.. math:: \|w_{new}\| = \bar n + \min(\bar n, \eta \sqrt{d / (1 - \beta_2)})

with the present mean norm :math:`\bar n`, which the paper has alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn
from torch.optim import Adadelta, Adafactor, Adagrad, Adamax, Optimizer, RMSprop, Rprop

Reaches = Mapping[str, float]


def reaches(model: nn.Module, optimizers: Iterable[Optimizer]) -> Reaches:
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
