"""Corrections by optimizer for entries that are younger than their tensor.

Adam and its variants use bias corrections for the step t of the tensor. An entry of age a needs those for a instead:
`RULES` says for each optimizer what is corrected, or why nothing is.
"""

from __future__ import annotations

import inspect
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import log
from typing import Any, NamedTuple

import torch
from torch import Tensor, optim
from torch.optim import Optimizer

Group = Mapping[str, Any]
NEGLIGIBLE = 1e-3  # an entry counts as old once its correction is below this fraction of its update


class Constants(NamedTuple):
    """The settings of a parameter group on which corrections depend, apart from the age."""

    betas: tuple[float, float]
    momentum_decay: float
    beta2_decay: float


def constants_of(group: Group) -> Constants:
    first, second = group.get("betas", (0.0, 0.0))
    return Constants((float(first), float(second)), group.get("momentum_decay", 0.0), group.get("beta2_decay", 0.0))


# A function of ages, the tensor's step count and the group's constants; the first two are broadcast to one shape.
AgeFunction = Callable[[Tensor, Tensor, Constants], Tensor]


@dataclass(frozen=True, eq=False)
class AgeRule:
    """How the young entries of an optimizer are corrected.

    With `functions` alone, the only one gives the fraction of the update that is taken back. With `correct`, the new
    values are computed from scratch: from the group, the values before the step (after decoupled weight decay), the
    tensors that it `reads` (the gradient, and tensors of the state by name) and the values of the functions. All
    tensors are those of young entries alone.

    `prepare` changes the state before a step, given the parameter, its group and state, and births by axis, so that the
    step itself is correct. `remaining` is the fraction of an update that the correction still makes up at a given age.
    """

    why: str
    functions: Sequence[AgeFunction] = ()
    correct: Callable[..., Tensor] | None = None
    reads: Sequence[str] = ()
    prepare: Callable[[Tensor, Group, dict[str, Any], Sequence[Sequence[list[int]]]], None] | None = None
    remaining: Callable[[Constants, int], float] = lambda constants, age: 0.0

    @property
    def needed(self) -> bool:
        return bool(self.functions) or self.prepare is not None


# --- the corrections ---------------------------------------------------------------------------------------


def _one_minus_power(ages: Tensor, beta: float) -> Tensor:
    """1 - beta^a."""
    return torch.expm1(ages * log(beta)).neg_() if beta > 0 else torch.ones_like(ages)


def _update_scale(ages: Tensor, betas: tuple[float, float]) -> Tensor:
    """f(a) = sqrt(1 - b2^a) / (1 - b1^a): up to eps, Adam's updates at age a are proportional to f(a)."""
    first, second = betas
    return _one_minus_power(ages, second).sqrt_() / _one_minus_power(ages, first)


def _taken_back(ages: Tensor, steps: Tensor, constants: Constants) -> Tensor:
    """1 - f(a) / f(t), and exactly 0 for old entries.

    This is exact except for eps, which is in effect multiplied by `sqrt((1 - b2^t) / (1 - b2^a))`: at most 32 with
    b2 = 0.999, in the first step, which matters only for gradients of that magnitude. Entries that the step did not
    change, such as rows without a gradient, stay unchanged.
    """
    back = 1 - _update_scale(ages, constants.betas) / _update_scale(steps, constants.betas)
    return torch.where(ages < steps, back, 0.0)


def _first_correction(ages: Tensor, steps: Tensor, constants: Constants) -> Tensor:
    return _one_minus_power(ages, constants.betas[0])


def _root_of_second_correction(ages: Tensor, steps: Tensor, constants: Constants) -> Tensor:
    return _one_minus_power(ages, constants.betas[1]).sqrt_()


def _safe_sqrt(square: Tensor) -> Tensor:
    """Square root with tiny values clamped: subnormal numbers are slow, and zeros are common."""
    return square.clamp_min(16 * torch.finfo(square.dtype).tiny).sqrt_()


def decay_factor(group: Group) -> float:
    """Factor by which decoupled weight decay multiplies a weight in one step."""
    if group.get("weight_decay", 0) != 0 and group.get("decoupled_weight_decay", False):
        return 1 - float(group["lr"]) * float(group["weight_decay"])
    return 1.0


def _momentum(ages: Tensor, constants: Constants) -> Tensor:
    """NAdam's schedule of the momentum, mu."""
    return constants.betas[0] * (1 - 0.5 * torch.exp(ages * (constants.momentum_decay * log(0.96))))


def _momentum_product(ages: Tensor, constants: Constants) -> Tensor:
    products = _momentum(torch.arange(1, int(ages.max()) + 1, dtype=ages.dtype), constants).cumprod(0)
    return products[ages.long() - 1]  # ages start at 1


def _gradient_share(ages: Tensor, steps: Tensor, constants: Constants) -> Tensor:
    return (1 - _momentum(ages, constants)) / (1 - _momentum_product(ages, constants))


def _average_share(ages: Tensor, steps: Tensor, constants: Constants) -> Tensor:
    following = _momentum(ages + 1, constants)
    return following / (1 - _momentum_product(ages, constants) * following)


def _nadam(
    group: Group,
    before: Tensor,
    gradient: Tensor,
    average: Tensor,
    square: Tensor,
    gradient_share: Tensor,
    average_share: Tensor,
    root_of_correction: Tensor,
) -> Tensor:
    if group["maximize"]:
        gradient = -gradient
    if group["weight_decay"] != 0 and not group["decoupled_weight_decay"]:
        gradient = gradient + group["weight_decay"] * before
    denominator = _safe_sqrt(square).div_(root_of_correction).add_(group["eps"])
    update = (gradient * gradient_share).addcmul_(average, average_share)
    return torch.addcdiv(before, update, denominator, value=-float(group["lr"]))


def _rectified_correction(ages: Tensor, steps: Tensor, constants: Constants) -> Tensor:
    """RAdam's rectification, times the root of the second correction; 0 where the variance is not used yet."""
    second = constants.betas[1]
    limit = 2 / (1 - second) - 1
    rho = limit - 2 * ages * second**ages / (1 - second**ages)
    rectified = ((rho - 4) * (rho - 2) * limit / ((limit - 4) * (limit - 2) * rho)).sqrt_()
    return torch.where(rho > 5, rectified * _root_of_second_correction(ages, steps, constants), 0.0)


def _radam(
    group: Group, before: Tensor, average: Tensor, square: Tensor, first_correction: Tensor, rectified: Tensor
) -> Tensor:
    adaptive = rectified / _safe_sqrt(square).add_(group["eps"])
    update = average / first_correction * torch.where(rectified > 0, adaptive, 1.0)
    return torch.add(before, update, alpha=-float(group["lr"]))


def _adamax(group: Group, before: Tensor, average: Tensor, largest: Tensor, first_correction: Tensor) -> Tensor:
    return torch.addcdiv(before, average, largest * first_correction, value=-float(group["lr"]))


def _adafactor(parameter: Tensor, group: Group, state: dict[str, Any], axes: Sequence[Sequence[list[int]]]) -> None:
    """Prepare the averages v <- v + w(t) (x - v), w(t) = t^decay, for entries of age a, which need w(a).

    The step will use w(t), which gives the right average from v' = (v (1 - w(a)) + x (w(a) - w(t))) / (1 - w(t)).
    """
    square = parameter.grad.square() if parameter.grad is not None else None
    step = (step_count(group, state) or 0) + 1
    if square is None:
        return
    latest = {"variance": square}
    if parameter.ndim > 1:
        latest = {"row_var": square.mean(-1, keepdim=True), "col_var": square.mean(-2, keepdim=True)}
    usual = step ** group["beta2_decay"]
    for name, new in latest.items():
        average = state[name]
        age = torch.full([1] * average.ndim, float(step), dtype=torch.float64)
        for axis, runs in enumerate(axes):
            if runs and average.shape[axis] == parameter.shape[axis]:
                own = torch.full([average.shape[axis]], float(step), dtype=torch.float64)
                for start, stop, born in runs:
                    own[start:stop] = step - born
                age = torch.minimum(age, own.view([-1 if each == axis else 1 for each in range(average.ndim)]))
        weight = (age ** group["beta2_decay"]).to(average)
        made = (average * (1 - weight) + new * (weight - usual)) / (1 - usual)
        average.copy_(torch.where((age < step).to(average.device), made, average))


# --- lifetimes of corrections ------------------------------------------------------------------------------


def _adam_remaining(constants: Constants, age: int) -> float:
    first, second = constants.betas
    return max(first**age, second**age / 2)


def _adamax_remaining(constants: Constants, age: int) -> float:
    return constants.betas[0] ** age


def _nadam_remaining(constants: Constants, age: int) -> float:
    decay = constants.momentum_decay
    return max(_adam_remaining(constants, age), 0.5 * 0.96 ** (age * decay) if decay > 0 else 0.0)


def _radam_remaining(constants: Constants, age: int) -> float:
    second = constants.betas[1]
    limit = 2 / (1 - second) - 1
    return max(_adam_remaining(constants, age), age * second**age / (1 - second**age) / limit)


def _adafactor_remaining(constants: Constants, age: int) -> float:
    """Weight of the latest gradient: once negligible, the tensor's own weight gives the same average."""
    return float(age**constants.beta2_decay)


def lifetime(rule: AgeRule, group: Group) -> int:
    """The age at which the correction becomes negligible."""
    return _lifetime(rule, constants_of(group))


@lru_cache(maxsize=64)
def _lifetime(rule: AgeRule, constants: Constants) -> int:
    ages = range(1, 2**24)  # torch counts steps in single precision
    return 1 + bisect_left(ages, True, key=lambda age: rule.remaining(constants, age) < NEGLIGIBLE)


# --- rules by optimizer ------------------------------------------------------------------------------------

_ADAM = AgeRule(
    "bias corrections of both moments for the entry's own age, exact except for eps",
    (_taken_back,),
    remaining=_adam_remaining,
)
_STARTS_AT_ZERO = "no correction: averages of new entries start at zero, as at the start of training"

RULES: dict[type[Optimizer], AgeRule] = {
    optim.Adam: _ADAM,
    optim.AdamW: _ADAM,
    optim.NAdam: AgeRule(
        "bias correction and momentum schedule, with its product, for the entry's own age",
        (_gradient_share, _average_share, _root_of_second_correction),
        _nadam,
        reads=("grad", "exp_avg", "exp_avg_sq"),
        remaining=_nadam_remaining,
    ),
    optim.RAdam: AgeRule(
        "bias corrections and rectification for the entry's own age",
        (_first_correction, _rectified_correction),
        _radam,
        reads=("exp_avg", "exp_avg_sq"),
        remaining=_radam_remaining,
    ),
    optim.Adamax: AgeRule(
        "bias correction of the first moment for the entry's own age",
        (_first_correction,),
        _adamax,
        reads=("exp_avg", "exp_inf"),
        remaining=_adamax_remaining,
    ),
    optim.SparseAdam: AgeRule(
        "the same as Adam in rows that have a gradient, exact including eps", (_taken_back,), remaining=_adam_remaining
    ),
    optim.Adafactor: AgeRule(
        "weights of the averages of squared gradients for the age of a row, column or entry",
        prepare=_adafactor,
        remaining=_adafactor_remaining,
    ),
    optim.SGD: AgeRule(
        "no correction: momentum starts at zero, as at the start of training, and only shortens the first updates"
    ),
    optim.RMSprop: AgeRule(_STARTS_AT_ZERO),
    optim.Adadelta: AgeRule(_STARTS_AT_ZERO),
    optim.Adagrad: AgeRule(
        "no correction: the sum starts as at the start of training; lr_decay is a schedule for all entries"
    ),
    optim.Rprop: AgeRule("no correction: step sizes start at the learning rate"),
    optim.ASGD: AgeRule(
        "no correction: eta is a schedule for all entries, and the average, which training does not use, starts at "
        "the entry's first value"
    ),
    optim.LBFGS: AgeRule("cannot be resized"),
}
LIKE_ADAM = AgeRule("updates scaled by f(a) / f(t), exact except for eps", (_taken_back,), remaining=_adam_remaining)


def rule_of(optimizer: Optimizer) -> AgeRule | None:
    """The rule for one of torch's optimizers or a subclass that does not override `step`; else None."""
    kind = type(optimizer)
    for known in kind.__mro__:
        if known in RULES:
            same = inspect.unwrap(kind.step) is inspect.unwrap(known.step)
            return RULES[known] if same else None
    return None


def looks_like_adam(group: Group, state: Mapping[str, Any]) -> bool:
    """Whether an unknown optimizer has the state of Adam and corrects its bias."""
    betas = group.get("betas")
    return (
        isinstance(betas, (tuple, list))
        and len(betas) == 2
        and all(isinstance(state.get(name), Tensor) for name in ("exp_avg", "exp_avg_sq"))
        and step_count(group, state) is not None
        and bool(group.get("correct_bias", True))
        and bool(group.get("bias_correction", True))
    )


def step_count(group: Group, state: Mapping[str, Any]) -> int | None:
    """Number of steps that a parameter has made; None if the optimizer does not count them."""
    count = state.get("step", group.get("step"))
    return None if count is None else int(count)
