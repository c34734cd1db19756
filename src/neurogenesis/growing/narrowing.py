"""Make an untrained model small, so that growth finds its widths."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer

from ..structure.axes import named_tensors, unwrapped
from ..structure.examples import Examples
from ..structure.finding import widths
from ..structure.modes import ordinary_tensors
from ..structure.widths import Width
from ..surgery.attached import optimizers_of
from ..surgery.optimizer_state import Optimizers
from ..surgery.plan import Plan, Surgery
from ..surgery.planning import plan_shrinkage
from .choosing import FROZEN, choose_widths

PART, ENOUGH = 1 / 16, 16  # part of a width that is left by default, and the neurons that are left at least
LEAST = 4  # neurons, where a fraction would be fewer


def narrow(
    model: nn.Module,
    example: Examples,
    size: int | float | None = None,
    *,
    include: Sequence[str] = ("*",),
    exclude: Sequence[str] = ("stream",),
    tie: Sequence[str | Sequence[str]] = (),
    optimizer: Optimizers = None,
    frozen: bool = False,
) -> dict[str, int]:
    r"""Reduce every growable width of an untrained model to a small start, from which a `Grower` can grow it.

    The first neurons stay. The weights and biases of layers with fewer inputs are multiplied by

    .. math:: \sqrt{\text{inputs before} / \text{inputs after}}

    so that their outputs keep their variance, as if the smaller model had been initialized in the same way. What a
    model has learned would be lost: one that has been trained is refused, and one whose weights look trained, such as a
    pretrained one, is narrowed with a warning. Use `neurogenesis.prune` for these.

    Args:
        model: any module, before training.
        example: an input the model accepts, as in `neurogenesis.widths`.
        size: number of neurons of each width (an int), or factor of its size (a float), of which at least 4 neurons are
            left; by default a sixteenth, of which at least 16 are left. Widths that are smaller are not changed.
        include: patterns or kinds of widths to reduce, as in `Grower`.
        exclude: patterns or kinds of widths not to reduce; by default those that a norm runs across, which grow on a
            schedule only.
        tie: groups of patterns of widths that change together, as in `neurogenesis.widths`.
        optimizer: the optimizer of the model, if it exists already.
        frozen: whether to reduce widths that have frozen parameters, too.

    Returns:
        The new sizes by name.

    Example:
        >>> import torch, neurogenesis as ng
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 512), torch.nn.ReLU(), torch.nn.Linear(512, 2))
        >>> ng.narrow(model, torch.randn(1, 4))
        {'0': 32}
        >>> grower = ng.Grower(model, torch.optim.Adam(model.parameters()), "need")
    """
    if size is not None and (isinstance(size, bool) or not isinstance(size, (int, float)) or not 0 < size < math.inf):
        raise ValueError(f"size: expected a number of neurons, such as 16, or a factor, such as 1 / 8, not {size!r}")
    model = unwrapped(model)
    if (trained := sign_of_training(model, optimizers_of(model, optimizer))) is not None:
        raise ValueError(f"the model has been trained ({trained}), and narrow() would destroy it: {_INSTEAD}")
    chosen = choose_widths(widths(model, example, tie=tie), include, exclude, FROZEN if frozen else ())
    if (name := next(_not_drawn_at_random(model, chosen), None)) is not None:
        warnings.warn(f"{name} does not look untrained, and narrow() destroys what it knows: {_INSTEAD}", stacklevel=2)
    with ordinary_tensors(), torch.no_grad():
        before = {name: tensor.shape for name, tensor in named_tensors(model).items()}
        with Surgery(model, optimizer) as surgery:
            for width in sorted(chosen, key=lambda width: width.ceiling is None):  # those that bound others first
                target = max(width.floor, _target(width, size))
                if target < width.size:
                    surgery.apply(_for_new_weights(plan_shrinkage(model, width, range(target, width.size))))
        parameters = dict(model.named_parameters())
        weights = {name: weight for name, weight in parameters.items() if weight.ndim > 1}  # no masks
        for tensor, axis in {(axis.tensor, axis.axis) for width in chosen for axis in width.consumers}:
            if tensor in weights:
                factor = (before[tensor][axis] / weights[tensor].shape[axis]) ** 0.5
                for name in (tensor, f"{tensor.rpartition('.')[0]}.bias"):  # usually drawn from the same distribution
                    if name in parameters:
                        parameters[name].mul_(factor)
    for width in chosen:
        width.initial = width.size
    return {width.name: width.size for width in chosen}


def _for_new_weights(plan: Plan) -> Plan:
    """A plan without what keeps the scale of present entries, which a new model would not have."""
    return replace(plan, attributes=tuple(each for each in plan.attributes if type(each[3]) is not float), scales=())


_INSTEAD = "narrow a new model, or use neurogenesis.prune() to make a trained one smaller"
_UNLIKELY = 10.0  # standard errors


def sign_of_training(model: nn.Module, optimizers: Sequence[Optimizer]) -> str | None:
    """A sign that a model has been trained; None if there is none."""
    parameters = {id(parameter): name for name, parameter in model.named_parameters()}
    for optimizer in optimizers:
        for parameter in optimizer.state:
            if id(parameter) in parameters:
                return f"its optimizer has made steps with {parameters[id(parameter)]}"
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            return f"{name} has a gradient"
    for path, module in model.named_modules():
        if isinstance(module, _NormBase) and module.num_batches_tracked is not None and module.num_batches_tracked > 0:
            return f"{path} has seen {int(module.num_batches_tracked)} batches"
    return None


def _not_drawn_at_random(model: nn.Module, chosen: Sequence[Width]) -> Iterator[str]:
    """Names of weights whose rows or columns differ in size by more than numbers that are drawn alike."""
    weights = {name: weight.detach() for name, weight in model.named_parameters() if weight.ndim > 1}
    for name in dict.fromkeys(axis.tensor for width in chosen for axis in width.axes):
        if name in weights and max(unevenness(weights[name]), unevenness(weights[name].transpose(0, 1))) > _UNLIKELY:
            yield name


def unevenness(weight: Tensor) -> float:
    r"""How much the mean squares of the rows of a matrix vary, beyond what independent equal draws do.

    .. math:: \left(\frac{n \operatorname{var}_i (\frac1n \sum_j w_{ij}^2)}{\operatorname{var}_{ij} w_{ij}^2} - 1\right)
        \sqrt{m / 2}

    for an m x n matrix: about a standard normal number for draws, and large where training has singled out rows.
    """
    squares = weight.flatten(1).abs().double().square()
    spread = squares.var(correction=0)
    if min(squares.shape) < 2 or not spread > 0:
        return 0.0
    ratio = squares.shape[1] * squares.mean(1).var() / spread
    return float((ratio - 1) * (len(squares) / 2) ** 0.5)


def _target(width: Width, size: int | float | None) -> int:
    if isinstance(size, int):
        return size
    part, least = (PART, ENOUGH) if size is None else (size, LEAST)
    return max(math.floor(part * width.size), min(least, width.size))
