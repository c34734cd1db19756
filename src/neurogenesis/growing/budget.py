"""How many neurons a width may gain: multiples of a size, and limits on the size of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from ..layer import Layer
from ..structure.axes import Structure
from ..structure.terms import Sizes


@dataclass(frozen=True)
class Budget:
    """Limits on the number of parameters, and on the floating-point operations of a forward pass of one sample."""

    max_parameters: int | None = None
    max_flops: int | None = None

    @property
    def unlimited(self) -> bool:
        return self.max_parameters is None and self.max_flops is None

    def cost(self, model: nn.Module, structure: Structure, sizes: Sizes) -> tuple[int, ...]:
        """What is limited of the model, at other sizes: parameters, operations or both."""
        parameters = () if self.max_parameters is None else (structure.parameters_with(model, sizes),)
        return parameters if self.max_flops is None else (*parameters, structure.flops_with(sizes))

    def allows(self, cost: Sequence[int]) -> bool:
        """Whether a cost is within the limits."""
        return all(each <= limit for each, limit in zip(cost, self._limits, strict=True))

    def price(self, cost: Sequence[int], before: Sequence[int]) -> float:
        """What a step costs: parameters or operations; if both are limited, its larger part of a limit."""
        steps = [after - now for after, now in zip(cost, before, strict=True)]
        if len(steps) == 1:
            return steps[0]
        return max(step / limit for step, limit in zip(steps, self._limits, strict=True))

    def check(self, structure: Structure) -> None:
        """Raise ValueError if a forward pass takes more operations than the limit already."""
        present = structure.flops_with()
        if self.max_flops is not None and present > self.max_flops:
            raise ValueError(
                f"max_flops={self.max_flops}, but a forward pass of one sample already takes {present} operations"
            )

    @property
    def _limits(self) -> list[int]:
        return [limit for limit in (self.max_parameters, self.max_flops) if limit is not None]


def rounded_up(count: int, size: int, round_to: int, maximum: int | None) -> int:
    """Number of neurons, at least `count`, that makes a size a multiple of `round_to`; fewer if the maximum is lower.

    Example:
        >>> rounded_up(3, 64, 8, None), rounded_up(3, 64, 8, 70)
        (8, 6)
    """
    wanted = -(-(size + count) // round_to) * round_to
    return (wanted if maximum is None else min(wanted, maximum)) - size


def shares(model: nn.Module, budget: Budget, requests: Sequence[tuple[Layer, int]], round_to: int = 1) -> list[int]:
    r"""Number of requested neurons that each layer gets, within a budget.

    Neurons are given in steps of `round_to`. Each step goes to the layer with the largest

    .. math:: \frac{\text{neurons still requested} / \text{size}}{\text{parameters or operations that the step costs}}

    among the layers for which the budget allows it, so that neurons go where they are wanted most for their price.
    """
    requested = [count for _, count in requests]
    if budget.unlimited or not requests:
        return requested
    structure = requests[0][0].width.structure

    def cost_of(given: Sequence[int]) -> tuple[int, ...]:
        sizes = {layer.width.atom: layer.size + count for (layer, _), count in zip(requests, given, strict=True)}
        return budget.cost(model, structure, sizes)

    if budget.allows(cost_of(requested)):
        return requested
    given = [0] * len(requests)
    total = cost_of(given)
    waiting = set(range(len(requests)))
    while waiting:
        best: tuple[float, int, int, tuple[int, ...]] | None = None
        for number in sorted(waiting):
            layer = requests[number][0]
            left = requested[number] - given[number]
            multiple = layer.width.multiple(round_to)
            step = min(rounded_up(1, layer.size + given[number], multiple, None), left)
            cost = cost_of([count + step * (each == number) for each, count in enumerate(given)])
            if not budget.allows(cost):
                waiting.discard(number)  # costs only rise
                continue
            wish = left / layer.size / (budget.price(cost, total) or 1)
            if best is None or wish > best[0]:
                best = wish, number, step, cost
        if best is not None:
            _, number, step, total = best
            given[number] += step
            if given[number] == requested[number]:
                waiting.discard(number)
    return given


def affordable(model: nn.Module, budget: Budget, layer: Layer, round_to: int = 1) -> bool:
    """Whether the smallest step of growth of a layer is within a budget."""
    if budget.unlimited:
        return True
    step = rounded_up(1, layer.size, layer.width.multiple(round_to), layer.maximum)
    return budget.allows(budget.cost(model, layer.width.structure, {layer.width.atom: layer.size + step}))
