"""Find the stacks of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import nn

from ..structure.axes import named_tensors, unwrapped
from ..structure.examples import Example, Examples, examples_in
from ..structure.finding import check_supported
from ..structure.modes import ordinary_tensors
from .chains import Chain, Ends, chains, repeated
from .cloning import why_not_cloned
from .counters import counters, indices
from .flow import Flow, run
from .planning import planned, rehearse_plans, used_elsewhere, why_refused
from .rehearsal import Unequal
from .residuals import Projections, projections
from .runs import CONTAINERS, Run, runs, why_not_numbered
from .stacks import Stack, Stacks, last_stacks, names_of, remember


def stacks(model: nn.Module, example: Examples) -> Stacks:
    """Find every stack of a model from one example input: blocks that are alike, each of which gets what the one before
    it returns.

    The model runs once under a dispatch mode that sees which module gets what another one returns. Two more runs with
    another block, in evaluation and in training mode, verify that the outputs do not change. The model is not changed.

    Args:
        model: any module.
        example: an input that the model accepts: a tensor, a tuple of arguments or a dict of keyword arguments. Or a
            list of several, which together use all blocks.

    Example:
        >>> import torch, neurogenesis as ng
        >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
        >>> model = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        >>> print(ng.stacks(model, torch.randn(1, 5, 8)))
        stack   blocks  parameters each  can deepen
        -------------------------------------------
        layers  3       600              yes
    """
    model = unwrapped(model)
    with ordinary_tensors():
        found = find_stacks(model, examples_in(example))
    remember(model, found)
    return found


def known_stacks(model: nn.Module, example: Examples | None) -> Stacks:
    """The stacks of a model as the last search found them; found anew if the model has changed since."""
    known = last_stacks(unwrapped(model))
    if example is None and known is None:
        raise ValueError("its stacks are not known yet: call stacks(model, example) first, or pass example=")
    if known is None or example is not None:
        assert example is not None
        return stacks(model, example)
    if known.outdated or any(_changed(model, stack) for stack in known):
        return stacks(model, known.examples)
    return known


def _changed(model: nn.Module, stack: Stack) -> bool:
    try:
        own = [stack.run.modules(unwrapped(model), number) for number in range(stack.blocks)]
    except AttributeError:
        return True
    return tuple(sum(p.numel() for module in block for p in module.parameters()) for block in own) != stack.parameters


def find_stacks(model: nn.Module, examples: Sequence[Example]) -> Stacks:
    """The stacks of a model."""
    tensors = named_tensors(model)
    check_supported(model, tensors)
    candidates = list(runs(model))
    watched = {each: None for run_ in candidates for names in run_.blocks for each in _ends(model, run_.parent, names)}
    found: dict[Run, tuple[Flow, Chain]] = {}
    for example in examples:
        flow = Flow(model, watched)
        try:
            run(model, example, flow, tensors, training=False)
        except Exception as error:
            raise ValueError(f"the model rejects the example: {type(error).__name__}: {error}") from error
        for each in candidates:
            for chain in chains(flow, each):
                found.setdefault(chain.run, (flow, chain))
    result = [_stack(model, flow, chain) for flow, chain in found.values()]
    kept = _separate([stack for stack in result if stack.blocks > 1 or any(stack.projections)])
    shared = [_repeated(model, each) for each in candidates if repeated(model, each) is not None]
    kept = [
        stack
        for stack in kept
        if not any(
            set(stack.run.blocks) <= set(each.run.blocks) and stack.run.parent == each.run.parent for each in shared
        )
    ] + shared
    names = names_of([stack.run for stack in kept])
    stacks_ = Stacks([replace(stack, name=name) for stack, name in zip(kept, names, strict=True)], list(examples))
    _rehearse(model, stacks_)
    return stacks_


def _ends(model: nn.Module, parent: str, names: Sequence[str]) -> list[nn.Module]:
    children = model.get_submodule(parent)._modules
    return [each for each in (children[names[0]], children[names[-1]]) if each is not None]


def _stack(model: nn.Module, flow: Flow, chain: Chain) -> Stack:
    chosen = [_projections(flow, ends) for ends in chain.ends]
    own = tuple(found for found, _ in chosen)
    parameters = tuple(_parameters(chain.run, model, number) for number in range(len(chain.run)))
    stack = Stack(chain.run.paths(0)[0], chain.run, parameters, own)
    used = [ends for _, ends in chosen]
    stack.entries = tuple(each.place for each in used)
    stack.direct = all(one.end == other.start for one, other in pairwise(used))
    stack.unsuitable = _unsuitable(model, chain.run)
    stack.reason = stack.unsuitable or next((each.reason for each in own if not each), None)
    if stack.unsuitable is None:
        found = [used_elsewhere(model, chain.run, number, each) for number, each in enumerate(own)]
        shared = [name for name in found if name is not None]
        if shared:
            stack.reason = f"{shared[0]} is used elsewhere, too, and cannot be zero in one block alone"
        stack.indices, stack.counters = indices(model, chain.run), counters(model, chain.run)
    return stack


def _projections(flow: Flow, ends: Sequence[Ends]) -> tuple[Projections, Ends]:
    """The projections of a block, and the argument that they belong to."""
    found = [(projections(flow, each.start, each.end), each) for each in ends]
    return next((each for each in found if each[0]), found[0])


def _parameters(run_: Run, model: nn.Module, number: int) -> int:
    return sum(own.numel() for module in run_.modules(model, number) for own in module.parameters())


def _unsuitable(model: nn.Module, run_: Run) -> str | None:
    """Why blocks can be neither added nor removed, in any way."""
    parent = model.get_submodule(run_.parent)
    if not isinstance(parent, CONTAINERS):
        return (
            f"its blocks are attributes of {type(parent).__name__}, which calls them by name: put them in a ModuleList"
        )
    if (problem := repeated(model, run_) or why_not_numbered(parent, run_)) is not None:
        return problem
    for number in range(len(run_)):
        for module, path in zip(run_.modules(model, number), run_.paths(number), strict=True):
            if (problem := why_not_cloned(module, path)) is not None:
                return problem
    return None


def _repeated(model: nn.Module, run_: Run) -> Stack:
    reason = repeated(model, run_)
    parameters = tuple(_parameters(run_, model, number) for number in range(len(run_)))
    return Stack(run_.parent or run_.paths(0)[0], run_, parameters, reason=reason, unsuitable=reason)


def _separate(found: Sequence[Stack]) -> list[Stack]:
    """Leave out single blocks that are parts of blocks, or contain stacks, or stand beside a stack of their class."""
    several = [stack for stack in found if stack.blocks > 1]
    result = []
    for stack in found:
        path = stack.run.paths(0)[0]
        others = several if stack.blocks == 1 else []
        inside = any(
            path.startswith(f"{each}.") for other in others for n in range(other.blocks) for each in other.run.paths(n)
        )
        around = any(other.run.parent == path or other.run.parent.startswith(f"{path}.") for other in others)
        beside = any(other.run.parent == stack.run.parent for other in others)
        single = [other for other in found if other is not stack and other.blocks == 1]
        part = stack.blocks == 1 and any(path.startswith(f"{other.run.paths(0)[0]}.") for other in single)
        if not (inside or around or beside or part):
            result.append(stack)
    return result


@torch.no_grad()
def _rehearse(model: nn.Module, known: Stacks) -> None:
    """Run the model with one more block in each stack, and note which stacks change its outputs.

    The new one comes behind the first, so that all others move. All parameters have noise, as training may make any of
    them.
    """
    growable = [stack for stack in known if stack.reason is None]
    plans = [planned(model, stack, [0]) for stack in growable]
    nested = any(a is not b and b.run.parent.startswith(f"{a.run.parent}.") for a in growable for b in growable)
    try:
        if nested or not growable:
            raise Unequal("one of the stacks is inside another one")
        rehearse_plans(model, known, plans, noisy=True)
        return
    except Unequal as error:
        if len(growable) == 1:
            growable[0].reason = why_refused(growable[0], plans[0], error)
            return
    for stack, plan in zip(growable, plans, strict=True):  # a run with all of them does not tell which one it is
        try:
            rehearse_plans(model, known, [plan], noisy=True)
        except Unequal as error:
            stack.reason = why_refused(stack, plan, error)
