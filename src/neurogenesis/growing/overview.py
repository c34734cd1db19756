"""The table that `print(grower)` shows: widths, their latest measurements, and what they are waiting for."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..history import History, Observation
from ..layer import Layer
from ..strategies import Strategy
from ..tables import table
from .watching import Watched


@torch.no_grad()
def overview(
    strategy: Strategy,
    watched: Watched | None,
    history: History,
    next_looks: Mapping[str, int],
    missing: Mapping[str, str],
    flops: int,
    training_flops: int,
    depth: tuple[str, int, str] | None = None,
) -> str:
    """Table of the widths of a `Grower`, one line each, or a note if they are not known yet.

    Args:
        strategy: the strategy.
        watched: the widths that are watched; None if they are not known yet.
        history: what the trigger has seen.
        next_looks: the step of the next look at each width that is not looked at for a while.
        missing: what was missing at the latest look before a width could be measured, if something was.
        flops: floating-point operations of a forward pass of one sample.
        training_flops: those of the training so far.
        depth: a stack that deepens: its name, its number of blocks, and what comes next.
    """
    if watched is None:
        return "before the first batch: the widths are not known yet (pass example= to find them immediately)"
    rows = []
    for layer in watched.layers:
        seen = history.latest.get(layer.name)
        maximum = "unlimited" if layer.maximum is None else str(layer.maximum)
        rows.append(
            (
                layer.name,
                str(layer.size),
                maximum,
                *_measured(seen),
                _state(strategy, layer, seen, next_looks.get(layer.name), missing.get(layer.name)),
            )
        )
    for name, why in watched.left_out.items():
        rows.append((name, str(watched.widths[name].size), *"----", f"does not grow: {why}"))
    if depth is not None:
        name = f"blocks of {depth[0]}"
        rows.append((name, str(depth[1]), "-", *_measured(history.latest.get(name)), depth[2]))
    widths = table(("width", "size", "maximum", "measured", "threshold", "at step", ""), rows)
    return f"{widths}\n{in_flops(flops)} for a sample, {in_flops(training_flops)} of training so far"


def _measured(seen: Observation | None) -> tuple[str, str, str]:
    """The latest measurement, its threshold, and its step."""
    if seen is None:
        return "-", "-", "-"
    metric, threshold = ("-" if each is None else f"{each:.4g}" for each in (seen.metric, seen.threshold))
    return metric, threshold, str(seen.step)


def in_flops(count: int) -> str:
    """A number of floating-point operations with a unit.

    Example:
        >>> in_flops(640), in_flops(2_832_334_848_000)
        ('640 FLOPs', '2.83 TFLOPs')
    """
    number, units = float(count), ["", "k", "M", "G", "T", "P", "E"]
    while abs(number) >= 999.5 and len(units) > 1:
        number, units = number / 1000, units[1:]
    return f"{number:.3g} {units[0]}FLOPs"


def _state(
    strategy: Strategy, layer: Layer, seen: Observation | None, next_look: int | None, missing: str | None
) -> str:
    if layer.full:
        return "nothing left of the budget" if layer.out_of_budget else "at its maximum"
    if next_look is not None:
        return f"next look at step {next_look}"
    if seen is None:
        return "before the first gradient step"
    if seen.metric is None and "fan-out gradients" in strategy.trigger.needs and not layer.memory:
        return "no gradient has reached all layers that read it"
    if seen.metric is None and missing is not None:
        return f"waiting: {missing}"
    return ""
