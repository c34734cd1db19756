"""How many neurons a width may gain: multiples of a size, and the limit on the number of parameters."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from ..layer import Layer


def rounded_up(count: int, size: int, round_to: int, maximum: int | None) -> int:
    """Number of neurons, at least `count`, that makes a size a multiple of `round_to`; fewer if the maximum is lower.

    Example:
        >>> rounded_up(3, 64, 8, None), rounded_up(3, 64, 8, 70)
        (8, 6)
    """
    wanted = -(-(size + count) // round_to) * round_to
    return (wanted if maximum is None else min(wanted, maximum)) - size


def shares(model: nn.Module, limit: int | None, requests: Sequence[tuple[Layer, int]], round_to: int = 1) -> list[int]:
    r"""Number of requested neurons that each layer gets, within a limit on the number of parameters.

    Neurons are given in steps of `round_to`. Each step goes to the layer with the largest

    .. math:: \frac{\text{neurons still requested} / \text{size}}{\text{parameters that the step costs}}

    among the layers for which the limit allows it, so that neurons go where they are wanted most per parameter.
    """
    requested = [count for _, count in requests]
    if limit is None or not requests:
        return requested
    structure = requests[0][0].width.structure

    def parameters(given: Sequence[int]) -> int:
        sizes = {layer.width.atom: layer.size + count for (layer, _), count in zip(requests, given, strict=True)}
        return structure.parameters_with(model, sizes)

    if parameters(requested) <= limit:
        return requested
    given, total = [0] * len(requests), parameters([0] * len(requests))
    waiting = set(range(len(requests)))
    while waiting:
        best: tuple[float, int, int, int] | None = None
        for number in sorted(waiting):
            layer = requests[number][0]
            left = requested[number] - given[number]
            multiple = layer.width.multiple(round_to)
            step = min(rounded_up(1, layer.size + given[number], multiple, None), left)
            cost = parameters([count + step * (each == number) for each, count in enumerate(given)]) - total
            if total + cost > limit:
                waiting.discard(number)  # costs only rise
            elif best is None or left / layer.size / cost > best[0]:
                best = left / layer.size / cost, number, step, cost
        if best is not None:
            _, number, step, cost = best
            given[number] += step
            total += cost
            if given[number] == requested[number]:
                waiting.discard(number)
    return given


def affordable(model: nn.Module, limit: int | None, layer: Layer, round_to: int = 1) -> bool:
    """Whether the smallest step of growth of a layer is within a limit of parameters."""
    if limit is None:
        return True
    step = rounded_up(1, layer.size, layer.width.multiple(round_to), layer.maximum)
    return layer.width.structure.parameters_with(model, {layer.width.atom: layer.size + step}) <= limit
