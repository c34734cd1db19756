"""Corrections by optimizer for entries that are younger than their tensor.

Adam and its variants use bias corrections for the step t of the tensor. An entry of age a needs those for a instead:
`RULES` says for each optimizer what is corrected, or why nothing is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import log
from typing import Any, Protocol

import torch
from torch import Tensor, optim
from torch.optim import Optimizer

Group = Mapping[str, Any]
NEGLIGIBLE = 1e-3  # an entry counts as old once its correction is below this fraction of its update


class YoungEntries(Protocol):
    """A box of young entries of one parameter after an optimizer step; all tensors have the same shape.

    The box may contain old entries: values written for these are ignored.
    """

    group: Group
    state: dict[str, Any]
    before: Tensor  # values before the step; may be overwritten
    out: Tensor  # receives the corrected values; may be the entries themselves, which hold the uncorrected ones
    parameter: Tensor  # the whole parameter, after the step
    step: int  # step count of the tensor

    def of(self, tensor: Tensor) -> Tensor:
        """The entries of the parameter or of a tensor of its state."""

    def gradient(self) -> Tensor:
        """The gradient of the entries."""

    def scratch(self) -> Tensor:
        """A temporary tensor to write into."""

    def at(self, name: str, function: Callable[[Tensor], Tensor], *constants: float) -> Tensor:
        """A function of the entries' ages, cached by name and `constants`; it broadcasts and must not be written to."""


@dataclass(frozen=True, eq=False)
class AgeRule:
    """How the young entries of an optimizer are corrected.

    `correct` computes their values after a step. `prepare` changes the state before a step, given the parameter, its
    group and state, and births by axis, so that the step itself is correct. `remaining` is the fraction of an update
    that the correction still makes up at a given age.

    `scaled` multiplies the update by f(a) / f(t), where f is `update_scale` and t the step count of the tensor. This is
    exact except for eps, which is in effect multiplied by `sqrt((1 - b2^t) / (1 - b2^a))`: at most 32 with b2 = 0.999,
    in the first step, which matters only for gradients of that magnitude. Entries that the step did not change, such as
    rows without a gradient, stay unchanged.
    """

    why: str
    scaled: bool = False
    correct: Callable[[YoungEntries], None] | None = None
    prepare: Callable[[Tensor, Group, dict[str, Any], Sequence[Sequence[list[int]]]], None] | None = None
    remaining: Callable[[Group, int], float] = lambda group, age: 0.0

    @property
    def needed(self) -> bool:
        return self.scaled or self.correct is not None or self.prepare is not None


# --- the corrections ---------------------------------------------------------------------------------------


def _one_minus_power(ages: Tensor, beta: float) -> Tensor:
    """1 - beta^a."""
    return torch.expm1(ages * log(beta)).neg_() if beta > 0 else torch.ones_like(ages)


def update_scale(ages: Tensor, betas: tuple[float, float]) -> Tensor:
    """f(a) = sqrt(1 - b2^a) / (1 - b1^a): up to eps, Adam's updates at age a are proportional to f(a)."""
    first, second = betas
    return _one_minus_power(ages, second).sqrt_() / _one_minus_power(ages, first)


def _bias_correction(young: YoungEntries, beta: float, power: float = 1.0) -> Tensor:
    """(1 - beta^a)^power of the young entries."""
    return young.at("debiased", lambda ages: _one_minus_power(ages, beta).pow_(power), beta, power)


def betas_of(group: Group) -> tuple[float, float]:
    first, second = group["betas"]
    return float(first), float(second)


def _safe_sqrt(young: YoungEntries, square: Tensor) -> Tensor:
    """Square root with tiny values clamped: subnormal numbers are slow, and zeros are common."""
    return torch.clamp_min(square, 16 * torch.finfo(square.dtype).tiny, out=young.scratch()).sqrt_()


def decay_factor(group: Group) -> float:
    """Factor by which decoupled weight decay multiplies a weight in one step."""
    if group.get("weight_decay", 0) != 0 and group.get("decoupled_weight_decay", False):
        return 1 - float(group["lr"]) * float(group["weight_decay"])
    return 1.0


def _apply_decay(young: YoungEntries) -> None:
    """Apply decoupled weight decay to the values before the step, as the step did."""
    if decay_factor(young.group) != 1:
        young.before.mul_(decay_factor(young.group))


def _nadam(young: YoungEntries) -> None:
    group, state = young.group, young.state
    first, second = betas_of(group)
    decay = group["momentum_decay"]

    def momentum(ages: Tensor) -> Tensor:
        return first * (1 - 0.5 * torch.exp(ages * (decay * log(0.96))))

    def product(ages: Tensor) -> Tensor:
        products = momentum(torch.arange(1, int(ages.max()) + 1, dtype=ages.dtype)).cumprod(0)
        return products[ages.long() - 1]  # ages start at 1

    constants = first, decay
    mu = young.at("mu", momentum, *constants)
    following = young.at("next mu", lambda ages: momentum(ages + 1), *constants)
    left = young.at("1 - product", lambda ages: 1 - product(ages), *constants)
    left_next = young.at("1 - next product", lambda ages: 1 - product(ages) * momentum(ages + 1), *constants)
    gradient = young.gradient() * (-1.0 if group["maximize"] else 1.0)
    if group["weight_decay"] != 0 and not group["decoupled_weight_decay"]:
        gradient = gradient + group["weight_decay"] * young.before
    denominator = _safe_sqrt(young, young.of(state["exp_avg_sq"]))
    denominator.div_(_bias_correction(young, second, 0.5)).add_(group["eps"])
    _apply_decay(young)
    update = gradient * ((1 - mu) / left) + young.of(state["exp_avg"]) * (following / left_next)
    torch.addcdiv(young.before, update, denominator, value=-float(group["lr"]), out=young.out)


def _radam(young: YoungEntries) -> None:
    group, state = young.group, young.state
    first, second = betas_of(group)
    limit = 2 / (1 - second) - 1
    rho = young.at("rho", lambda ages: limit - 2 * ages * second**ages / (1 - second**ages), second)
    rectified = ((rho - 4) * (rho - 2) * limit / ((limit - 4) * (limit - 2) * rho)).sqrt_()
    root = _safe_sqrt(young, young.of(state["exp_avg_sq"])).add_(group["eps"])
    adaptive = rectified * _bias_correction(young, second, 0.5) / root
    update = young.of(state["exp_avg"]) / _bias_correction(young, first) * torch.where(rho > 5, adaptive, 1.0)
    _apply_decay(young)
    torch.add(young.before, update, alpha=-float(group["lr"]), out=young.out)


def _adamax(young: YoungEntries) -> None:
    first, _ = betas_of(young.group)
    denominator = torch.mul(young.of(young.state["exp_inf"]), _bias_correction(young, first), out=young.scratch())
    average, rate = young.of(young.state["exp_avg"]), float(young.group["lr"])
    torch.addcdiv(young.before, average, denominator, value=-rate, out=young.out)


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


def _adam_remaining(group: Group, age: int) -> float:
    first, second = betas_of(group)
    return max(first**age, second**age / 2)


def _adamax_remaining(group: Group, age: int) -> float:
    return betas_of(group)[0] ** age


def _nadam_remaining(group: Group, age: int) -> float:
    decay = group["momentum_decay"]
    return max(_adam_remaining(group, age), 0.5 * 0.96 ** (age * decay) if decay > 0 else 0.0)


def _radam_remaining(group: Group, age: int) -> float:
    second = betas_of(group)[1]
    limit = 2 / (1 - second) - 1
    return max(_adam_remaining(group, age), age * second**age / (1 - second**age) / limit)


def _adafactor_remaining(group: Group, age: int) -> float:
    """Weight of the latest gradient: once negligible, the tensor's own weight gives the same average."""
    return float(age ** group["beta2_decay"])


def lifetime(rule: AgeRule, group: Group) -> int:
    """The age at which the correction becomes negligible."""
    betas = tuple(map(float, group["betas"])) if "betas" in group else None
    return _lifetime(rule, betas, group.get("momentum_decay"), group.get("beta2_decay"))


@lru_cache(maxsize=64)
def _lifetime(
    rule: AgeRule, betas: tuple[float, ...] | None, momentum_decay: float | None, beta2_decay: float | None
) -> int:
    group = {"betas": betas, "momentum_decay": momentum_decay, "beta2_decay": beta2_decay}
    high = 1
    while rule.remaining(group, high) >= NEGLIGIBLE and high < 2**24:  # torch counts steps in single precision
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if rule.remaining(group, middle) >= NEGLIGIBLE else (low, middle)
    return high


# --- rules by optimizer ------------------------------------------------------------------------------------

_ADAM = AgeRule(
    "bias corrections of both moments for the entry's own age, exact except for eps", True, remaining=_adam_remaining
)
_STARTS_AT_ZERO = "no correction: averages of new entries start at zero, as at the start of training"

RULES: dict[type[Optimizer], AgeRule] = {
    optim.Adam: _ADAM,
    optim.AdamW: _ADAM,
    optim.NAdam: AgeRule(
        "bias correction and momentum schedule, with its product, for the entry's own age",
        correct=_nadam,
        remaining=_nadam_remaining,
    ),
    optim.RAdam: AgeRule(
        "bias corrections and rectification for the entry's own age", correct=_radam, remaining=_radam_remaining
    ),
    optim.Adamax: AgeRule(
        "bias correction of the first moment for the entry's own age", correct=_adamax, remaining=_adamax_remaining
    ),
    optim.SparseAdam: AgeRule(
        "the same as Adam in rows that have a gradient, exact including eps", True, remaining=_adam_remaining
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
LIKE_ADAM = AgeRule("updates scaled by f(a) / f(t), exact except for eps", True, remaining=_adam_remaining)


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
