"""Make plans to add blocks: the new blocks, and the rehearsal with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from .cloning import cloned, why_not_cloned
from .plan import Block, DepthPlan
from .rehearsal import Unequal, rehearse
from .residuals import Projections
from .runs import Run, joined, users
from .stacks import Stack, Stacks

How = Literal["zero", "copy", "random"]


def planned(
    model: nn.Module,
    stack: Stack,
    behind: Sequence[int],
    how: How = "zero",
    generator: torch.Generator | None = None,
) -> DepthPlan:
    """A plan with new blocks behind those with the given numbers, which they copy."""
    order: list[Block] = []
    for number in range(stack.blocks):
        order.append(Block(number))
        for _ in range(list(behind).count(number)):
            order.append(_new_block(model, stack, number, how, generator))
    return DepthPlan(stack.name, stack.run, tuple(order), how, stack.indices, stack.counters)


def rehearse_plans(
    model: nn.Module, known: Stacks, plans: Sequence[DepthPlan], *, equal: bool = True, noisy: bool = False
) -> None:
    """Raise `Unequal` unless the model runs with the plans, and returns the same if it is to be `equal`."""
    operations = [each for plan in plans for each in plan.of_model(model)]
    blocks = [
        (plan.run.modules(model, block.source) if block.new is None else block.new)[0]
        for plan in plans
        for block in plan.order
    ]
    sources = {key: own for plan in plans for key, own in sources_of(model, plan).items()}
    rehearse(model, known.examples, operations, blocks, sources, noisy=noisy, equal=equal)


def why_refused(stack: Stack, plan: DepthPlan, error: Unequal) -> str:
    """Why a plan is refused, with what may be the cause."""
    reasons = [str(error), *dict.fromkeys(each.reason for each in stack.projections if each.reason)]
    if plan.indices and len(reasons) == 1:
        reasons.append(f"its blocks may read their own index ({plan.indices[0][2]})")
    return "; ".join(reasons)


def sources_of(model: nn.Module, plan: DepthPlan) -> dict[int, Tensor]:
    """By ids of tensors of new blocks that are copies, what they are copies of."""
    result: dict[int, Tensor] = {}
    for block in plan.order:
        made = {(child, name) for child, name, _ in block.made}
        for child, (module, old) in enumerate(
            zip(block.new or (), plan.run.modules(model, block.source), strict=False)
        ):
            theirs = dict(old.named_parameters()) | dict(old.named_buffers())
            for name, own in (*module.named_parameters(), *module.named_buffers()):
                if plan.how != "random" and (child, name) not in made:
                    result[id(own)] = theirs[name]
    return result


def used_elsewhere(model: nn.Module, run: Run, number: int, own: Projections) -> str | None:
    """The name of a parameter that makes a block the identity, but belongs to other modules, too; None if none does."""
    known, parameters = users(model, run), dict(model.named_parameters(remove_duplicate=False))
    return next((name for name in sorted(own.zero | own.identity) if known[id(parameters[name])][1] != {number}), None)


def _new_block(model: nn.Module, stack: Stack, source: int, how: How, generator: torch.Generator | None) -> Block:
    old = stack.run.modules(model, source)
    for module, path in zip(old, stack.run.paths(source), strict=True):
        if (problem := why_not_cloned(module, path)) is not None:
            raise ValueError(f"{stack.name} cannot deepen: {problem}")
    new = cloned(old, stack.shared(model))
    if how == "random":
        for module in new:
            _randomize(module, generator)
        return Block(source, tuple(new))
    if how == "copy":
        return Block(source, tuple(new))
    return Block(source, tuple(new), tuple(make_identity(new, stack.run.paths(source), stack.projections[source])))


def make_identity(modules: Sequence[nn.Module], paths: Sequence[str], own: Projections) -> list[tuple[int, str, str]]:
    """Make modules the identity by the projections of their originals; returns what was made of which."""
    lines = []
    for (child, name), value in identity_values(modules, paths, own).items():
        modules[child].get_parameter(name).copy_(value)
        lines.append((child, name, "identity" if joined(paths[child], name) in own.identity else "0"))
    return lines


def identity_values(
    modules: Sequence[nn.Module], paths: Sequence[str], own: Projections
) -> dict[tuple[int, str], Tensor]:
    """The values of parameters, by module and name, that make modules the identity."""
    result = {}
    for child, (module, path) in enumerate(zip(modules, paths, strict=True)):
        for name, parameter in module.named_parameters():
            if joined(path, name) in own.zero:
                result[child, name] = torch.zeros_like(parameter)
            elif joined(path, name) in own.identity:
                result[child, name] = _identity(parameter)
    return result


def _identity(like: Tensor) -> Tensor:
    matrix = torch.empty_like(like, requires_grad=False)
    if matrix.ndim == 2:
        return nn.init.eye_(matrix)
    return nn.init.dirac_(matrix, groups=matrix.shape[0] // matrix.shape[1])


def _randomize(module: nn.Module, generator: torch.Generator | None) -> None:
    """Random matrices with the spread of the present ones; gains and biases are the mean of the present ones."""
    for parameter in module.parameters():
        if not parameter.is_floating_point():
            continue
        if parameter.ndim > 1:
            drawn = torch.randn(parameter.shape, generator=generator).to(parameter)
            parameter.copy_(drawn * parameter.std(correction=0))
        else:
            parameter.fill_(float(parameter.mean()))
