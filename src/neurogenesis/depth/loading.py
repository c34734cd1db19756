"""Give a model the depth of a saved state: as many blocks, with values that are loaded afterwards."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from torch import nn

from ..structure.axes import unwrapped
from ..structure.origins import Origins, origins_of
from ..surgery.plan import Surgery
from .cloning import cloned
from .counters import counters, indices
from .plan import Block, DepthPlan
from .runs import CONTAINERS, Run, reordered, runs
from .stacks import Stack


def match_depth(surgery: Surgery, names: Collection[str], saved: Sequence[Origins]) -> list[DepthPlan]:
    """Add or remove blocks until a model has the names of a state, or the stacks that were saved; returns the plans.

    If stacks were saved, new blocks are copies of the same ones as there, so that settings which differ from block to
    block, such as rates of stochastic depth, are the same. Otherwise they are copies of the last block, and blocks are
    removed from the end.

    Args:
        surgery: of the model, which is reverted if anything in it fails.
        names: the names in the state; if it is empty, because it is not at hand yet, `saved` decides.
        saved: the stacks that had got other blocks, outer ones first.
    """
    model, done = unwrapped(surgery.model), list[DepthPlan]()
    known = {(each.parent, each.first) for each in saved}
    back = [replace(each, blocks=tuple(range(each.count))) for each in reversed(origins_of(model))]
    for each in [*saved, *(each for each in back if (each.parent, each.first) not in known)]:
        if names and _fits(model, names):
            return done
        plan = _as_saved(model, each)
        if plan is not None:
            surgery.apply(plan)
            done.append(plan)
    if not names or _fits(model, names):
        return done
    for plan in _by_names(model, names):
        surgery.apply(plan)
        done.append(plan)
    return done


def _fits(model: nn.Module, names: Collection[str]) -> bool:
    return all(name in names for name in _names_in(model)) and len(_names_in(model)) >= len(set(names))


def _names_in(module: nn.Module, prefix: str = "") -> set[str]:
    return {prefix + name for name in module.state_dict(keep_vars=True)}


def _as_saved(model: nn.Module, saved: Origins) -> DepthPlan | None:
    """The plan that leads from a model as it was made, or as it is now, to a saved stack; None if that is not known."""
    present = next((e for e in origins_of(model) if (e.parent, e.first) == (saved.parent, saved.first)), None)
    blocks = tuple(range(saved.count)) if present is None else present.blocks
    if blocks == saved.blocks:
        return None
    run = Run(saved.parent, (saved.first,)).resized(len(blocks))
    try:
        parent = model.get_submodule(run.parent)
    except AttributeError:
        return None
    if not all(name in parent._modules for own in run.blocks for name in own):
        return None
    if present is None and len(run) < len(_longest(model, run)):
        return None  # it was made with another number of blocks
    if any(origin not in blocks for origin in saved.blocks):
        return None
    return _plan(model, run, [blocks.index(origin) for origin in saved.blocks])


def _longest(model: nn.Module, run: Run) -> Run:
    """The longest run of blocks that are alike and begin with those of a run."""
    for each in runs(model):
        if each.parent == run.parent and run.blocks[0] in each.blocks:
            return each.part(each.blocks.index(run.blocks[0]), len(each))
    return run


def _plan(model: nn.Module, run: Run, sources: Sequence[int]) -> DepthPlan:
    stack = Stack(run.paths(0)[0], run, ())
    kept: set[int] = set()
    order = []
    for source in sources:
        if source in kept:
            order.append(Block(source, tuple(cloned(run.modules(model, source), stack.shared(model)))))
        else:
            order.append(Block(source))
            kept.add(source)
    return DepthPlan(stack.name, run, tuple(order), "copy", indices(model, run), counters(model, run))


def _by_names(model: nn.Module, names: Collection[str]) -> Iterator[DepthPlan]:
    """Plans, each made when the previous one has been applied, after which containers have the names of a state."""
    tried: set[tuple[str, tuple[str, ...], bool]] = set()
    while True:
        waiting = [
            (run, exactly)
            for exactly in (True, False)  # without a stack inside a stack that differs, too; and with one
            for run in _of_one_shape(model)
            if (run.parent, run.blocks[0], exactly) not in tried
        ]
        if not waiting:
            return
        run, exactly = waiting[0]
        tried.add((run.parent, run.blocks[0], exactly))
        parent, prefix = model.get_submodule(run.parent), f"{run.parent}." if run.parent else ""
        wanted = {name for name in names if name.startswith(prefix)}
        if not isinstance(parent, CONTAINERS) or wanted == _names_in(parent, prefix):
            continue
        count = _blocks_in(parent, run, prefix, wanted, exactly)
        if count is not None and count != len(run):
            yield _plan(model, run, [min(number, len(run) - 1) for number in range(count)])


def _of_one_shape(model: nn.Module) -> Iterator[Run]:
    """Runs of blocks that have the same shapes; a layer alone must have as many outputs as inputs."""
    for run in runs(model):
        shapes = [
            [own.shape for module in run.modules(model, number) for own in module.parameters()]
            for number in range(len(run))
        ]
        start = 0
        for number in range(1, len(run) + 1):
            if number == len(run) or shapes[number] != shapes[start]:
                layer = run.modules(model, start)[0]
                alone, groups = not any(True for _ in layer.children()), getattr(layer, "groups", 1)
                matrices = [own for own in layer.parameters() if own.ndim > 1]
                if not alone or all(own.shape[0] == own.shape[1] * groups for own in matrices):
                    yield run.part(start, number)
                start = number


def _blocks_in(parent: nn.Module, run: Run, prefix: str, wanted: set[str], exactly: bool) -> int | None:
    """The number of blocks with which a container has the wanted names; None if there is none.

    Blocks that contain stacks may differ inside; then the direct children must be the wanted ones.
    """
    blocks = [[parent.get_submodule(name) for name in names] for names in run.blocks]
    if not exactly and not any(len(each) > 1 for module in blocks[0] for each in runs(module)):
        return None
    inside = {name[len(prefix) :].partition(".")[0] for name in wanted}
    for count in range(1, len(inside) + len(run) + 1):
        some = [blocks[min(number, len(run) - 1)] for number in range(count)]
        children = {name: each for name, each in reordered(parent, run, some).items() if each is not None}
        found = {prefix + name for child, each in children.items() for name in _names_in(each, f"{child}.")}
        if found == wanted if exactly else {name for name, each in children.items() if _names_in(each)} == inside:
            return count
    return None
