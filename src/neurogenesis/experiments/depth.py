"""Blocks that are added to a network while it trains, on a schedule."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import neurogenesis as ng

from .building import derived_seed
from .settings import DEEPENING, Deep, Settings


@dataclass(frozen=True)
class Hop:
    """So many blocks are added to each stack after a gradient step; `number` counts the hops of a training from 1."""

    step: int
    blocks: int
    number: int


def hops_of(settings: Settings, steps: int) -> list[Hop]:
    """The hops of a training of so many steps: at equal distances, the last one when a part `settings.at` is done.

    Example:
        >>> from neurogenesis.experiments.presets import PRESETS
        >>> settings = PRESETS["gpt-stdlib"](strategy="deepen-zero", initial=1, hops=2)
        >>> [(hop.step, hop.blocks) for hop in hops_of(settings, 2000)]
        [(500, 3), (1000, 2)]
    """
    if not isinstance(settings, Deep) or settings.strategy not in DEEPENING:
        return []
    first, last = settings.depths
    more, count = last - first, settings.hops
    added = [-(-more * number // count) for number in range(count + 1)]  # after each hop, rounded up
    return [
        Hop(round(settings.at * steps * number / count), added[number] - added[number - 1], number)
        for number in range(1, count + 1)
    ]


def add_blocks(model: nn.Module, optimizer: torch.optim.Optimizer, hop: Hop, settings: Deep, example: Tensor) -> None:
    """Add the blocks of a hop to every stack, evenly spread."""
    generator = torch.Generator().manual_seed(derived_seed(settings.seed, f"hop {hop.number}"))
    how = DEEPENING[settings.strategy]
    for stack in settings.stacks:
        ng.deepen(model, stack, hop.blocks, how=how, optimizer=optimizer, example=example, generator=generator)
