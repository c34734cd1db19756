"""Plans to add blocks to a stack, or to remove some."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn
from torch.optim import Optimizer

from ..structure.axes import named_tensors, unwrapped
from ..structure.extensions import Operation
from ..structure.modes import ordinary_tensors
from ..surgery.attached import average_of, optimizers_of
from ..surgery.checks import CHANGED, averaged_model, check_average, check_programs
from ..surgery.operations import SetAttribute
from ..surgery.optimizer_state import Optimizers, check_optimizers
from ..surgery.plan import Surgery
from .cloning import cloned
from .counters import Counter
from .operations import NoteOrigins, Outdate, SetChildren, SetItem, group_operations
from .runs import Run, joined, reordered, users


@dataclass(frozen=True, eq=False)
class Block:
    """A block of a stack after a plan: one that stays, or a new one with the number of the block that it copies.

    Args:
        source: number of the block before the plan.
        new: modules of a new block; None of one that stays.
        made: parameters of the new block that make it the identity: the number of the module, the name in it, and
            what it is.
    """

    source: int
    new: tuple[nn.Module, ...] | None = None
    made: tuple[tuple[int, str, str], ...] = ()


@dataclass(frozen=True, eq=False)
class DepthPlan:
    """An addition or removal of blocks. Print it to read it, `check` it against a model, and `apply` it.

    If applying fails, nothing is changed.

    Args:
        stack: name of the stack.
        run: where its blocks are.
        order: its blocks afterwards.
        how: how the new ones are initialized.
        indices: integers in blocks that count them.
        counters: counts and lists in configs.
    """

    stack: str
    run: Run
    order: tuple[Block, ...]
    how: str = "zero"
    indices: tuple[tuple[int, str, str, int], ...] = ()
    counters: tuple[Counter, ...] = ()

    @property
    def before(self) -> int:
        """Number of blocks before."""
        return len(self.run)

    @property
    def after(self) -> int:
        """Number of blocks afterwards."""
        return len(self.order)

    def __str__(self) -> str:
        verb = "deepen" if self.after >= self.before else "remove blocks of"
        lines = [f"{verb} {self.stack} from {self.before} to {self.after} blocks"]
        after = self.run.resized(self.after)
        for number, block in enumerate(self.order):
            old = self.run.paths(block.source)
            new = after.paths(number)
            if block.new is not None:
                made = {"zero": "copy of", "copy": "copy of", "random": "random, like"}[self.how]
                count = sum(own.numel() for module in block.new for own in module.parameters())
                lines.append(f"  {_range(new)}  {made} {_range(old)}  +{count:,} parameters")
                lines += [f"    {joined(new[child], name)} = {value}" for child, name, value in block.made]
            elif old != new:
                lines.append(f"  {_range(old)} -> {_range(new)}")
        kept = {block.source for block in self.order if block.new is None}
        lines += [f"  {_range(self.run.paths(number))}  removed" for number in range(self.before) if number not in kept]
        for child, inner, name, first in self.indices:
            where = joined(after.paths(self.after - 1)[child], inner)
            lines.append(f"  {where}.{name} = {first + self.after - 1}")
        lines += [f"  {each}: {self.after - self.before:+d}" for each in self.counters]
        return "\n".join(lines)

    def check(self, model: nn.Module, optimizer: Optimizers = None, ema: nn.Module | None = None) -> None:
        """Raise an error unless the plan can be applied; changes nothing."""
        with ordinary_tensors():
            self._operations(model, optimizers_of(model, optimizer), average_of(model, ema))

    def apply(self, model: nn.Module, optimizer: Optimizers = None, ema: nn.Module | None = None) -> None:
        """Apply the plan to the model, the optimizers' groups and an averaged copy of the model.

        By default the optimizers and the averaged copy are those of the `Grower` that is attached to the model.
        """
        with Surgery(model, optimizer, ema) as surgery:
            surgery.apply(self)

    def _operations(
        self, model: nn.Module, optimizers: Sequence[Optimizer], ema: nn.Module | None, ages: bool = False
    ) -> list[Operation]:
        """Check the plan and return the operations that it consists of."""
        model = unwrapped(model)
        if ema is not None:
            check_average(model, ema)
        result: list[Operation] = self.of_model(model)
        if ema is not None:
            result += self.of_model(averaged_model(ema), average=True)
        check_programs(named_tensors(model))
        added = []
        for block in self.order:
            if block.new is not None:
                old = [own for module in self.run.modules(model, block.source) for own in module.parameters()]
                added.append((old, [own for module in block.new for own in module.parameters()]))
        kept = {block.source for block in self.order if block.new is None}
        removed = {key for key, (_, each) in users(model, self.run).items() if kept.isdisjoint(each) and -1 not in each}
        sources = {block.source for block in self.order if block.new is not None}
        check_optimizers(
            model,
            [name for name, _ in model.named_parameters()
             if any(_inside(name, self.run.paths(number)) for number in sources)],
            optimizers,
        )  # fmt: skip
        return [*result, *group_operations(optimizers, added, removed)]

    def of_model(self, model: nn.Module, average: bool = False) -> list[Operation]:
        """The operations on a model; an average of it gets copies of the new blocks."""
        try:
            parent = model.get_submodule(self.run.parent)
            old = [[parent.get_submodule(name) for name in names] for names in self.run.blocks]
        except AttributeError:
            raise ValueError(f"{self.stack} has other blocks: {CHANGED}") from None
        blocks: list[Sequence[nn.Module]] = []
        for block in self.order:
            new = old[block.source] if block.new is None else block.new
            if block.new is not None and average:
                own = dict(model.named_parameters())
                new = cloned(new)
                for module in new:
                    module.requires_grad_(any(each.requires_grad for each in own.values()))
            blocks.append(new)
        children = reordered(parent, self.run, blocks)
        result: list[Operation] = [SetChildren(parent, children)]
        for child, inner, name, first in self.indices:
            for number, own_block in enumerate(blocks):
                module = own_block[child].get_submodule(inner)
                if getattr(module, name) != first + number:
                    result.append(SetAttribute(module, name, getattr(module, name), first + number))
        for counter in self.counters:
            value = counter.get(model)
            result.append(SetItem(counter.owner(model), counter.steps[-1], value, self._counted(counter, value)))
        sources = [block.source for block in self.order]
        return [*result, NoteOrigins(model, self.run, sources), Outdate(model, self.stack)]

    def _counted(self, counter: Counter, value: int | list[object]) -> int | list[object]:
        if isinstance(value, list):
            own, behind = value[counter.extra : counter.extra + self.before], counter.extra + self.before
            return [*value[: counter.extra], *(own[block.source] for block in self.order), *value[behind:]]
        return value + self.after - self.before


def _inside(name: str, paths: Sequence[str]) -> bool:
    return any(name.startswith(f"{path}.") for path in paths)


def _range(paths: Sequence[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{paths[0]} to {paths[-1].rpartition('.')[2]}"
