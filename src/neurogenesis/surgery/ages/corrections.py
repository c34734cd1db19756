"""What each optimizer does with its count of steps, and what a weight that is younger than its tensor needs instead.

Optimizers of Adam's kind divide by bias corrections of the tensor's step t. For an entry of age a they must be those
of a: `RULES` says for each optimizer what is done, or why nothing is.
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
NEGLIGIBLE = 1e-3  # an entry whose correction is less than this part of its update is grown up


class Young(Protocol):
    """Young entries of one parameter after a step of the optimizer, all tensors of the same shape.

    Old ones may lie among them: what is written of these is not used.
    """

    group: Group
    state: dict[str, Any]
    before: Tensor  # the step; may be overwritten
    out: Tensor  # takes the values they should have; may be the entries themselves, which hold those of the step
    parameter: Tensor  # whole, after the step
    step: int  # of the tensor

    def of(self, tensor: Tensor) -> Tensor:
        """Of the parameter, or of a tensor of its state, the young entries."""

    def gradient(self) -> Tensor:
        """That of the young entries."""

    def scratch(self) -> Tensor:
        """Memory to write into."""

    def at(self, name: str, function: Callable[[Tensor], Tensor], *about: float) -> Tensor:
        """A function of the entries' ages and of `about`; broadcasts, and is not to be written to."""


@dataclass(frozen=True, eq=False)
class Rule:
    """What an optimizer's young entries need.

    `correct` gives them the values they should have after a step; `prepare` makes state such that the step that comes
    is right, from the parameter, its group and state and the births by axis. `remaining` is the part of an update that
    the correction still makes up at an age.

    `scaled` multiplies the update by f(a) / f(t), where f is `length` and t the tensor's step. That is exact but for
    eps, which counts as `sqrt((1 - b2^t) / (1 - b2^a))` times itself: at most 32 times with b2 = 0.999, in the first
    step, which makes a difference to gradients that are that small only. Entries that the step left alone, such as
    rows without a gradient, stay as they are.
    """

    why: str
    scaled: bool = False
    correct: Callable[[Young], None] | None = None
    prepare: Callable[[Tensor, Group, dict[str, Any], Sequence[Sequence[list[int]]]], None] | None = None
    remaining: Callable[[Group, int], float] = lambda group, age: 0.0

    @property
    def needed(self) -> bool:
        return self.scaled or self.correct is not None or self.prepare is not None


# --- the corrections ---------------------------------------------------------------------------------------


def _unbiased(ages: Tensor, beta: float) -> Tensor:
    """1 - beta^a."""
    return torch.expm1(ages * log(beta)).neg_() if beta > 0 else torch.ones_like(ages)


def length(ages: Tensor, betas: tuple[float, float]) -> Tensor:
    """f(a) = sqrt(1 - b2^a) / (1 - b1^a), which Adam's updates at age a are proportional to, but for eps."""
    first, second = betas
    return _unbiased(ages, second).sqrt_() / _unbiased(ages, first)


def _debiased(young: Young, beta: float, power: float = 1.0) -> Tensor:
    """(1 - beta^a)^power of the young entries."""
    return young.at("debiased", lambda ages: _unbiased(ages, beta).pow_(power), beta, power)


def betas_of(group: Group) -> tuple[float, float]:
    first, second = group["betas"]
    return float(first), float(second)


def _root(young: Young, square: Tensor) -> Tensor:
    """The square root, of values that are not so small that it takes many times as long; zeros are common."""
    return torch.clamp_min(square, 16 * torch.finfo(square.dtype).tiny, out=young.scratch()).sqrt_()


def kept(group: Group) -> float:
    """What decoupled weight decay leaves of a weight in a step."""
    if group.get("weight_decay", 0) != 0 and group.get("decoupled_weight_decay", False):
        return 1 - float(group["lr"]) * float(group["weight_decay"])
    return 1.0


def _decay(young: Young) -> None:
    """Decoupled weight decay, which the step has made as well."""
    if kept(young.group) != 1:
        young.before.mul_(kept(young.group))


def _nadam(young: Young) -> None:
    group, state = young.group, young.state
    first, second = betas_of(group)
    decay = group["momentum_decay"]

    def momentum(ages: Tensor) -> Tensor:
        return first * (1 - 0.5 * torch.exp(ages * (decay * log(0.96))))

    def product(ages: Tensor) -> Tensor:
        products = momentum(torch.arange(1, int(ages.max()) + 1, dtype=ages.dtype)).cumprod(0)
        return products[ages.long() - 1]  # no entry has age 0, for which there is none

    about = first, decay
    mu = young.at("mu", momentum, *about)
    following = young.at("next mu", lambda ages: momentum(ages + 1), *about)
    left = young.at("1 - product", lambda ages: 1 - product(ages), *about)
    left_next = young.at("1 - next product", lambda ages: 1 - product(ages) * momentum(ages + 1), *about)
    gradient = young.gradient() * (-1.0 if group["maximize"] else 1.0)
    if group["weight_decay"] != 0 and not group["decoupled_weight_decay"]:
        gradient = gradient + group["weight_decay"] * young.before
    denominator = _root(young, young.of(state["exp_avg_sq"]))
    denominator.div_(_debiased(young, second, 0.5)).add_(group["eps"])
    _decay(young)
    update = gradient * ((1 - mu) / left) + young.of(state["exp_avg"]) * (following / left_next)
    torch.addcdiv(young.before, update, denominator, value=-float(group["lr"]), out=young.out)


def _radam(young: Young) -> None:
    group, state = young.group, young.state
    first, second = betas_of(group)
    limit = 2 / (1 - second) - 1
    rho = young.at("rho", lambda ages: limit - 2 * ages * second**ages / (1 - second**ages), second)
    rectified = ((rho - 4) * (rho - 2) * limit / ((limit - 4) * (limit - 2) * rho)).sqrt_()
    root = _root(young, young.of(state["exp_avg_sq"])).add_(group["eps"])
    adaptive = rectified * _debiased(young, second, 0.5) / root
    update = young.of(state["exp_avg"]) / _debiased(young, first) * torch.where(rho > 5, adaptive, 1.0)
    _decay(young)
    torch.add(young.before, update, alpha=-float(group["lr"]), out=young.out)


def _adamax(young: Young) -> None:
    first, _ = betas_of(young.group)
    denominator = torch.mul(young.of(young.state["exp_inf"]), _debiased(young, first), out=young.scratch())
    average, rate = young.of(young.state["exp_avg"]), float(young.group["lr"])
    torch.addcdiv(young.before, average, denominator, value=-rate, out=young.out)


def _adafactor(parameter: Tensor, group: Group, state: dict[str, Any], axes: Sequence[Sequence[list[int]]]) -> None:
    """Averages v <- v + w(t) (x - v) with w(t) = t^decay, in which an entry of age a needs w(a).

    The step will use w(t): it arrives at the same average from v' = (v (1 - w(a)) + x (w(a) - w(t))) / (1 - w(t)).
    """
    square = parameter.grad.square() if parameter.grad is not None else None
    step = (steps(group, state) or 0) + 1
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


# --- how long ----------------------------------------------------------------------------------------------


def _of_betas(group: Group, age: int) -> float:
    first, second = betas_of(group)
    return max(first**age, second**age / 2)


def _of_first_beta(group: Group, age: int) -> float:
    return betas_of(group)[0] ** age


def _of_nadam(group: Group, age: int) -> float:
    decay = group["momentum_decay"]
    return max(_of_betas(group, age), 0.5 * 0.96 ** (age * decay) if decay > 0 else 0.0)


def _of_radam(group: Group, age: int) -> float:
    second = betas_of(group)[1]
    limit = 2 / (1 - second) - 1
    return max(_of_betas(group, age), age * second**age / (1 - second**age) / limit)


def _of_adafactor(group: Group, age: int) -> float:
    """The weight of the latest gradient: from here on an average is as good with the tensor's own."""
    return float(age ** group["beta2_decay"])


def lifetime(rule: Rule, group: Group) -> int:
    """The age from which on the correction is negligible."""
    betas = tuple(map(float, group["betas"])) if "betas" in group else None
    return _lifetime(rule, betas, group.get("momentum_decay"), group.get("beta2_decay"))


@lru_cache(maxsize=64)
def _lifetime(
    rule: Rule, betas: tuple[float, ...] | None, momentum_decay: float | None, beta2_decay: float | None
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


# --- which -------------------------------------------------------------------------------------------------

_ADAM = Rule("bias corrections of both moments by the entry's own age, exact but for eps", True, remaining=_of_betas)
_NOTHING = "no correction: its averages start from zero at an entry's birth as they do at the start of training"

RULES: dict[type[Optimizer], Rule] = {
    optim.Adam: _ADAM,
    optim.AdamW: _ADAM,
    optim.NAdam: Rule(
        "bias correction and momentum schedule, with its product, by the entry's own age",
        correct=_nadam,
        remaining=_of_nadam,
    ),
    optim.RAdam: Rule("bias corrections and rectification by the entry's own age", correct=_radam, remaining=_of_radam),
    optim.Adamax: Rule(
        "bias correction of the first moment by the entry's own age", correct=_adamax, remaining=_of_first_beta
    ),
    optim.SparseAdam: Rule("as Adam, in the rows that have a gradient, eps included", True, remaining=_of_betas),
    optim.Adafactor: Rule(
        "averages of squared gradients weighted by the own age of a row, column or entry",
        prepare=_adafactor,
        remaining=_of_adafactor,
    ),
    optim.SGD: Rule("no correction: momentum starts from zero, as it would, and can only be short of its full length"),
    optim.RMSprop: Rule(_NOTHING),
    optim.Adadelta: Rule(_NOTHING),
    optim.Adagrad: Rule("no correction: its sum starts as at the start of training; lr_decay is a schedule of all"),
    optim.Rprop: Rule("no correction: step sizes start from the learning rate"),
    optim.ASGD: Rule(
        "no correction: eta is a schedule of all, and the average, which training does not use, starts from the "
        "entry's first value"
    ),
    optim.LBFGS: Rule("cannot be resized"),
}
LIKE_ADAM = Rule("the update times f(a)/f(t), exact but for eps", True, remaining=_of_betas)


def rule_of(optimizer: Optimizer) -> Rule | None:
    """The rule of torch's optimizer that this one is, or a subclass of that makes its steps; else None."""
    kind = type(optimizer)
    for known in kind.__mro__:
        if known in RULES:
            same = inspect.unwrap(kind.step) is inspect.unwrap(known.step)
            return RULES[known] if same else None
    return None


def looks_like_adam(group: Group, state: Mapping[str, Any]) -> bool:
    """Whether an unknown optimizer has what Adam has, and corrects its moments."""
    betas = group.get("betas")
    return (
        isinstance(betas, (tuple, list))
        and len(betas) == 2
        and all(isinstance(state.get(name), Tensor) for name in ("exp_avg", "exp_avg_sq"))
        and steps(group, state) is not None
        and bool(group.get("correct_bias", True))
        and bool(group.get("bias_correction", True))
    )


def steps(group: Group, state: Mapping[str, Any]) -> int | None:
    """How many steps a parameter has made."""
    count = state.get("step", group.get("step"))
    return None if count is None else int(count)
