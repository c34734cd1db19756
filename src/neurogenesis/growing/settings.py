"""The settings of a `Grower`, checked when it is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..strategies import Strategy
from ..strategies import strategy as as_strategy
from ..triggers import Size
from .budget import Budget

MaxWidth = Size | Mapping[str, Size] | None


@dataclass(frozen=True)
class Settings:
    """The arguments of a `Grower`, which do not change later; see there."""

    strategy: Strategy
    max_width: MaxWidth
    max_parameters: int | None
    max_flops: int | None
    round_to: int
    include: Sequence[str]
    exclude: Sequence[str]
    tie: Sequence[str | Sequence[str]]
    prune: bool
    frozen: bool
    training_samples: int | None
    every: int | None
    buffer: int | None
    ages: bool
    margin: bool

    @staticmethod
    def checked(
        model: nn.Module,
        strategy: str | Strategy,
        *,
        include: Sequence[str] | None,
        exclude: Sequence[str],
        **others: Any,
    ) -> Settings:
        """Settings for a model; raises if they make no sense."""
        chosen = as_strategy(strategy)
        for name in ("every", "buffer", "max_parameters", "max_flops", "round_to", "training_samples"):
            check_positive(name, others[name])
        limit, present = others["max_parameters"], sum(parameter.numel() for parameter in model.parameters())
        if limit is not None and limit < present:
            raise ValueError(f"max_parameters={limit}, but the model already has {present} parameters")
        included = ["*"] if include is None else _patterns(include, "include")
        excluded = _patterns(exclude, "exclude")
        return Settings(chosen, include=included, exclude=excluded, **others)

    @property
    def budget(self) -> Budget:
        """The limits on the size of the model."""
        return Budget(self.max_parameters, self.max_flops)

    @property
    def keep_inputs(self) -> bool:
        """Whether the model's latest inputs are kept, to measure activations on them."""
        return self.prune or not self.strategy.uses.isdisjoint({"activations", "trials"})

    @property
    def counts_samples(self) -> bool:
        """Whether the samples of the training set are counted."""
        return "fan-out gradients" in self.strategy.trigger.needs

    @property
    def described(self) -> dict[str, Any]:
        """The settings that must be the same in all processes."""
        return {
            "strategy": repr(self.strategy),
            "max_width, round_to": (self.max_width, self.round_to),
            "max_parameters, max_flops": (self.max_parameters, self.max_flops),
            "include, exclude, tie, frozen": (self.include, self.exclude, self.tie, self.frozen),
            "buffer": self.buffer,
            "training_samples": self.training_samples,
        }


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


def check_positive(name: str, number: object) -> None:
    """Raise ValueError unless a number is a positive integer, or None."""
    if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 1):
        raise ValueError(f"{name}: expected a positive integer, not {number!r}")


def _patterns(given: Sequence[str], what: str) -> list[str]:
    if isinstance(given, str):
        raise TypeError(f"{what}: expected a list of patterns, such as [{given!r}]")
    return list(given)
