"""What a `Grower` is told when it is made, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import LBFGS, Optimizer

from ..strategies import Strategy
from ..surgery.optimizer_state import Optimizers, as_list, check_optimizers
from ..triggers import Size

MaxWidth = Size | Mapping[str, Size] | None


@dataclass(frozen=True)
class Settings:
    """The arguments of a `Grower`, which do not change later; see there."""

    strategy: Strategy
    max_width: MaxWidth
    max_parameters: int | None
    round_to: int
    include: Sequence[str]
    exclude: Sequence[str]
    tie: Sequence[str | Sequence[str]]
    ages: bool
    margin: bool
    prune: bool
    frozen: bool


class Setting:
    """An attribute of a `Grower` that shows one of its settings."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, grower: Any, owner: type) -> Any:
        return self if grower is None else getattr(grower.settings, self._name)

    def __set__(self, grower: Any, value: object) -> None:
        raise AttributeError(
            f"{self._name} of a Grower cannot be changed: make a new one, Grower(model, optimizer, "
            f"{self._name}={value!r}), which replaces this one"
        )


def check_model(model: object) -> None:
    """Raise TypeError unless the model is a module."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: expected a torch.nn.Module, not a {type(model).__name__}: Grower(model, optimizer)")


def check_numbers(**given: int | None) -> None:
    """Raise ValueError unless numbers are positive integers, or None."""
    for name, number in given.items():
        if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 1):
            raise ValueError(f"{name}: expected a positive integer, not {number!r}")


def check_max_parameters(model: nn.Module, limit: int | None) -> None:
    """Raise ValueError if the model has more parameters than it may have."""
    present = sum(parameter.numel() for parameter in model.parameters())
    if limit is not None and limit < present:
        raise ValueError(f"max_parameters={limit}, but the model already has {present} parameters")


def checked_patterns(given: Sequence[str], what: str) -> list[str]:
    """Patterns as a list."""
    if isinstance(given, str):
        raise TypeError(f"{what}: expected a list of patterns, such as [{given!r}]")
    return list(given)


def checked_optimizers(model: nn.Module, optimizer: Optimizers) -> list[Optimizer]:
    """The optimizers as a list; raise unless they train the model and can be resized."""
    optimizers = as_list(optimizer)
    if not optimizers:
        raise TypeError("optimizer: expected the optimizer that trains the model")
    for each in optimizers:
        _check_supported(each)
    check_optimizers(model, dict(model.named_parameters()), optimizers)
    return optimizers


def _check_supported(optimizer: Optimizer) -> None:
    """Raise if an optimizer cannot be resized, or has no hooks for its steps."""
    if isinstance(optimizer, LBFGS):
        raise ValueError(
            "LBFGS keeps one flat history of all parameters, which cannot be resized: use another optimizer, such as "
            "Adam, while the network grows, and LBFGS afterwards"
        )
    if not hasattr(optimizer, "_optimizer_step_post_hooks"):
        raise TypeError(
            f"{type(optimizer).__name__} has no step hooks, unlike the optimizers of torch: if it wraps another "
            "optimizer, pass that one"
        )
