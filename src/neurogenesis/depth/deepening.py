"""Add blocks to a stack by hand, and remove them."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import get_args

import torch
from torch import nn

from ..structure.axes import unwrapped
from ..structure.examples import Examples
from ..structure.modes import ordinary_tensors
from ..surgery.optimizer_state import Optimizers
from .finding import known_stacks
from .plan import Block, DepthPlan
from .planning import How, planned, rehearse_plans, used_elsewhere, why_refused
from .rehearsal import Unequal
from .stacks import Stack, Stacks


def plan_deepening(
    model: nn.Module,
    stack: str | Stack,
    blocks: int,
    *,
    how: How = "zero",
    at: Sequence[int] | None = None,
    example: Examples | None = None,
    generator: torch.Generator | None = None,
) -> DepthPlan:
    """Plan to add blocks; takes the same arguments as `deepen`. The plan is rehearsed, the model not changed."""
    model = unwrapped(model)
    known, found = _find_stack(model, stack, example)
    if how not in get_args(How):
        raise ValueError(f"how: expected one of {', '.join(map(repr, get_args(How)))}, not {how!r}")
    count = _integer(blocks, f"{found.name}: the number of new blocks")
    if count < 1:
        raise ValueError(f"{found.name}: the number of new blocks must be positive, not {count}")
    behind = spread(count, found.blocks) if at is None else _places(at, count, found)
    if found.unsuitable is not None:
        raise ValueError(f"{found.name} cannot deepen: {found.unsuitable}")
    if how == "zero" and (lacking := next((each for each in found.projections if not each), None)) is not None:
        raise ValueError(
            f"{found.name} cannot deepen without a change of the outputs: {lacking.reason}; how='copy' and "
            "how='random' change them"
        )
    for number in set(behind) if how == "zero" else ():
        if (name := used_elsewhere(model, found.run, number, found.projections[number])) is not None:
            raise ValueError(
                f"{found.name} cannot deepen behind {found.paths[number]}: {name} is used elsewhere, too, and cannot "
                "be zero in one block alone"
            )
    with ordinary_tensors(), torch.no_grad():
        plan = planned(model, found, behind, how, generator)
        _check(model, known, found, plan, equal=how == "zero")
    return plan


def deepen(
    model: nn.Module,
    stack: str | Stack,
    blocks: int,
    *,
    how: How = "zero",
    at: Sequence[int] | None = None,
    optimizer: Optimizers = None,
    ema: nn.Module | None = None,
    example: Examples | None = None,
    generator: torch.Generator | None = None,
) -> DepthPlan:
    """Add blocks to a stack; by default the model's outputs do not change.

    A new block is a copy of the one before it whose last projection in each residual branch is zero. In a chain without
    residuals, such as layers with a rectifier behind each, its matrices are identities. What counts blocks follows:
    indices in them, and numbers and lists in configs.

    Args:
        model: the model, changed in place.
        stack: a stack of `stacks(model, example)`, or its name.
        blocks: number of blocks to add.
        how: "zero"; or "copy", copies as they are, and "random", random weights of the same scale, which both change
            the outputs.
        at: for each new block, the number of the block that it copies and comes behind; by default new blocks are
            spread evenly.
        optimizer: the optimizers that train the model: new parameters join the groups of those that they copy. By
            default those of the `Grower` that is attached to the model.
        ema: an averaged copy of the model such as `torch.optim.swa_utils.AveragedModel`; it gets copies of the new
            blocks. By default that of the attached `Grower`.
        example: an input of the model, or a list of several. Required if `stacks` has not been called for this model.
        generator: source of random weights; torch's global generator by default.

    Returns:
        The plan that was applied.

    Example:
        >>> import torch, neurogenesis as ng
        >>> layers = [each for _ in range(3) for each in (torch.nn.Linear(8, 8), torch.nn.ReLU())]
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), *layers, torch.nn.Linear(8, 2))
        >>> print(ng.deepen(model, "2", 1, example=torch.randn(1, 4)))
        deepen 2 from 3 to 4 blocks
          8 to 9  copy of 6 to 7  +72 parameters
            8.weight = identity
            8.bias = 0
    """
    plan = plan_deepening(model, stack, blocks, how=how, at=at, example=example, generator=generator)
    plan.apply(model, optimizer, ema)
    return plan


def remove_blocks(
    model: nn.Module,
    stack: str | Stack,
    blocks: Sequence[int],
    *,
    optimizer: Optimizers = None,
    ema: nn.Module | None = None,
    example: Examples | None = None,
) -> DepthPlan:
    """Remove the blocks with the given numbers from a stack.

    The other arguments and the result are those of `deepen`.

    Example:
        >>> import torch, neurogenesis as ng
        >>> layers = [each for _ in range(3) for each in (torch.nn.Linear(8, 8), torch.nn.ReLU())]
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), *layers, torch.nn.Linear(8, 2))
        >>> plan = ng.remove_blocks(model, "2", [1], example=torch.randn(1, 4))
        >>> len(model)
        7
    """
    model = unwrapped(model)
    known, found = _find_stack(model, stack, example)
    if isinstance(blocks, int):
        raise TypeError(f"{found.name}: expected the numbers of the blocks to remove, such as [{blocks}] or range(2)")
    chosen = {_integer(each, f"{found.name}: a number of a block") for each in blocks}
    if not chosen:
        raise ValueError(f"{found.name}: no blocks to remove were given")
    if min(chosen) < 0 or max(chosen) >= found.blocks:
        raise IndexError(f"{found.name} has blocks 0 to {found.blocks - 1}: {list(blocks)} is out of range")
    if len(chosen) == found.blocks:
        raise ValueError(f"{found.name}: cannot remove all {found.blocks} blocks: at least one must remain")
    if found.unsuitable is not None:
        raise ValueError(f"{found.name} cannot lose blocks: {found.unsuitable}")
    order = tuple(Block(number) for number in range(found.blocks) if number not in chosen)
    plan = DepthPlan(found.name, found.run, order, "zero", found.indices, found.counters)
    with ordinary_tensors():
        _check(model, known, found, plan, equal=False)
    plan.apply(model, optimizer, ema)
    return plan


def spread(count: int, blocks: int) -> list[int]:
    """The blocks behind which `count` new ones are spread evenly.

    Example:
        >>> spread(2, 8), spread(3, 2)
        ([3, 7], [0, 1, 1])
    """
    return [-(-(number + 1) * blocks // count) - 1 for number in range(count)]


def _check(model: nn.Module, known: Stacks, stack: Stack, plan: DepthPlan, *, equal: bool) -> None:
    """Raise ValueError unless a plan has been rehearsed with success."""
    try:
        rehearse_plans(model, known, [plan], equal=equal)
    except Unequal as error:
        verb = "lose these blocks" if plan.after < plan.before else "deepen"
        raise ValueError(f"{stack.name} cannot {verb}: {why_refused(stack, plan, error)}") from error


def _find_stack(model: nn.Module, stack: str | Stack, example: Examples | None) -> tuple[Stacks, Stack]:
    known = known_stacks(model, example)
    if isinstance(stack, Stack):
        return known, stack if any(stack is each for each in known) else known[stack.name]
    if not isinstance(stack, str):
        raise TypeError(f"stack: expected the name of a stack of stacks(model, example), not {stack!r}")
    return known, known[stack]


def _integer(number: object, what: str) -> int:
    if isinstance(number, (bool, str)) or not hasattr(number, "__index__"):
        raise TypeError(f"{what} must be an integer, not {number!r}")
    return index(number)


def _places(at: Sequence[int], count: int, stack: Stack) -> list[int]:
    if isinstance(at, (int, str)):
        raise TypeError(f"at: expected a list of blocks, such as [{at}]")
    places = [_integer(each, "at: a number of a block") for each in at]
    if len(places) != count:
        raise ValueError(f"at: {len(places)} places for {count} new blocks: pass one for each")
    if places and (min(places) < 0 or max(places) >= stack.blocks):
        raise IndexError(f"at: {stack.name} has blocks 0 to {stack.blocks - 1}, not {places}")
    return places
