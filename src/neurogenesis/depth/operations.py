"""The elementary operations on blocks. Each can be reverted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adagrad, Optimizer

from ..structure.origins import Origins, origins_of, set_origins
from ..structure.updates import outdate, restore_dated
from .counters import set_item
from .runs import Run
from .stacks import Stacks, last_stacks


class SetChildren:
    """Set the children of a module, in order."""

    def __init__(self, parent: nn.Module, after: Mapping[str, nn.Module | None]):
        self.parent, self.before, self.after = parent, dict(parent._modules), dict(after)

    def apply(self) -> None:
        self._set(self.after)

    def revert(self) -> None:
        self._set(self.before)

    def _set(self, children: Mapping[str, nn.Module | None]) -> None:
        self.parent._modules.clear()
        self.parent._modules.update(children)

    def commit(self) -> None:
        pass


class SetItem:
    """Set an attribute of an object, or an entry of a dict or list."""

    def __init__(self, owner: Any, step: str | int, before: Any, after: Any):
        self.owner, self.step, self.before, self.after = owner, step, before, after

    def apply(self) -> None:
        set_item(self.owner, self.step, self.after)

    def revert(self) -> None:
        set_item(self.owner, self.step, self.before)

    def commit(self) -> None:
        pass


class SetGroup:
    """Set the parameters of a group of an optimizer; the state of those that leave it is dropped."""

    def __init__(self, optimizer: Optimizer, group: dict[str, Any], after: Sequence[Tensor]):
        self.optimizer, self.group = optimizer, group
        self.before, self.after = list(group["params"]), list(after)
        self.dropped: dict[Tensor, Any] = {}

    def apply(self) -> None:
        kept = set(map(id, self.after))
        for parameter in self.before:
            if id(parameter) not in kept and parameter in self.optimizer.state:
                self.dropped[parameter] = self.optimizer.state.pop(parameter)
        known = set(map(id, self.before))
        for parameter in self.after:
            if id(parameter) not in known and (state := initial_state(self.optimizer, self.group, parameter)):
                self.optimizer.state[parameter] = state
        self.group["params"][:] = self.after

    def revert(self) -> None:
        known = set(map(id, self.before))
        for parameter in self.after:
            if id(parameter) not in known:
                self.optimizer.state.pop(parameter, None)
        self.group["params"][:] = self.before
        self.optimizer.state.update(self.dropped)
        self.dropped.clear()

    def commit(self) -> None:
        self.dropped.clear()


def initial_state(optimizer: Optimizer, group: Mapping[str, Any], parameter: Tensor) -> dict[str, Any]:
    """State that a new parameter must have before its first step; most optimizers make it at that step."""
    if isinstance(optimizer, Adagrad):  # makes it when it is created
        start = torch.full_like(parameter, group["initial_accumulator_value"], memory_format=torch.preserve_format)
        return {"step": torch.tensor(0.0), "sum": start}
    if isinstance(optimizer, SGD) and group["fused"] and group["momentum"]:
        present = [optimizer.state.get(each, {}).get("momentum_buffer") for each in group["params"]]
        if any(each is not None for each in present):  # its kernel takes all buffers, or none
            return {"momentum_buffer": torch.zeros_like(parameter)}
    return {}


class Outdate:
    """Say that the widths and stacks of a model, as they were found, are no longer right."""

    def __init__(self, model: nn.Module, stack: str):
        self.model, self.stack = model, stack
        self.structures: list[Any] = []
        self.stacks: Stacks | None = None

    def apply(self) -> None:
        reason = f"blocks of {self.stack} were added or removed: call widths(model, example) again"
        self.structures, self.stacks = outdate(self.model, reason), last_stacks(self.model)
        if self.stacks is not None:
            self.stacks.outdated = True

    def revert(self) -> None:
        restore_dated(self.structures)
        if self.stacks is not None:
            self.stacks.outdated = False

    def commit(self) -> None:
        pass


class NoteOrigins:
    """Note which blocks are copies of which, in a stack and in the stacks inside its blocks.

    Args:
        model: the model.
        run: the blocks before.
        sources: for each block afterwards, the number of the one before that it is or copies.
    """

    def __init__(self, model: nn.Module, run: Run, sources: Sequence[int]):
        self.model, self.before = model, origins_of(model)
        after = run.resized(len(sources))
        found: list[Origins] = []
        for each in self.before:
            number, path = _block_of(run, each.parent)
            if (each.parent, each.first) != (run.parent, run.blocks[0]) and number is None:
                found.append(each)
            for new, source in enumerate(sources):
                if number is not None and source == number[0]:
                    moved = after.paths(new)[number[1]] + each.parent[len(path) :]
                    found.append(replace(each, parent=moved))
        own = next((e for e in self.before if (e.parent, e.first) == (run.parent, run.blocks[0])), None)
        known = Origins(run.parent, run.blocks[0], len(run), tuple(range(len(run)))) if own is None else own
        found.append(replace(known, blocks=tuple(known.blocks[source] for source in sources)))
        self.after = found

    def apply(self) -> None:
        set_origins(self.model, self.after)

    def revert(self) -> None:
        set_origins(self.model, self.before)

    def commit(self) -> None:
        pass


def _block_of(run: Run, path: str) -> tuple[tuple[int, int] | None, str]:
    """The number of the block, and of the module in it, that a path is in; and the path of that module."""
    for number in range(len(run)):
        for child, own in enumerate(run.paths(number)):
            if f"{path}.".startswith(f"{own}."):
                return (number, child), own
    return None, ""


def group_operations(
    optimizers: Sequence[Optimizer], added: Sequence[tuple[Sequence[Tensor], Sequence[Tensor]]], removed: set[int]
) -> list[SetGroup]:
    """Operations that add the parameters of new blocks to the groups of those that they copy, and remove others.

    The new ones of a block come right behind those of the block that it copies, so that groups in the order of the
    model stay in that order.

    Args:
        optimizers: the optimizers.
        added: for each new block, the parameters of the block that it copies, and its own, in the same order.
        removed: ids of the parameters that are removed.
    """
    result = []
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            before: list[Tensor] = group["params"]
            after = [each for each in before if id(each) not in removed]
            places = {id(each): number for number, each in enumerate(after)}
            inserted: dict[int, list[Tensor]] = {}
            for olds, news in added:
                pairs = zip(olds, news, strict=True)  # some of which are shared
                own = [(places[id(old)], new) for old, new in pairs if id(old) in places and id(new) not in places]
                if own:
                    inserted.setdefault(max(place for place, _ in own), []).extend(new for _, new in own)
            if not inserted and len(after) == len(before):
                continue
            if isinstance(optimizer, LBFGS):
                raise ValueError(
                    "LBFGS keeps one flat history of all parameters, which cannot be resized: add blocks without "
                    "optimizer=, then create a new LBFGS"
                )
            params = [each for number, old in enumerate(after) for each in (old, *inserted.get(number, ()))]
            result.append(SetGroup(optimizer, group, params))
    return result
