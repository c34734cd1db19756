"""The goal of a search, and the choice among its results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from ..record import Result

Objective = Literal["accuracy", "pareto"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)

Sampler = Literal["optuna", "asha"]
"""How trials are proposed: by a model of the results so far, or at random, and those that are behind are stopped early
(asynchronous successive halving, https://arxiv.org/abs/1810.05934)."""


@dataclass(frozen=True)
class Goal:
    """The goal of a search."""

    objective: str = "accuracy"
    """One of `OBJECTIVES`."""
    max_parameters: int | None = None

    def allows(self, parameters: int) -> bool:
        """Whether a network is small enough."""
        return self.max_parameters is None or parameters <= self.max_parameters


def choose(results: Mapping[str, Result], goal: Goal) -> list[str]:
    """The names of the chosen results: the most accurate one, or those on the front.

    Of equally accurate ones the smallest is chosen, of equally small ones the first.

    Example:
        >>> def result(accuracy, parameters):
        ...     sizes = {"hidden1": 1}
        ...     return Result(
        ...         accuracy=accuracy, parameters=parameters, widths=sizes, initial_widths=sizes, train_seconds=1
        ...     )
        >>> results = {"a": result(0.9, 500), "b": result(0.8, 100), "c": result(0.7, 200)}
        >>> choose(results, Goal()), choose(results, Goal(max_parameters=300)), choose(results, Goal("pareto"))
        (['a'], ['b'], ['b', 'a'])
    """
    names = [name for name in results if goal.allows(results[name].parameters)]
    if goal.objective == "accuracy":
        names.sort(key=lambda name: (-results[name].accuracy, results[name].parameters))
        return names[:1]
    names.sort(key=lambda name: (results[name].parameters, -results[name].accuracy))
    front: list[str] = []
    for name in names:
        if not front or results[name].accuracy > results[front[-1]].accuracy:
            front.append(name)
    return front
