"""Stacks of blocks: how many there are, and whether more can be added."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn

from ..structure.examples import Example
from ..structure.kept import kept_of
from ..tables import table
from .counters import Counter
from .residuals import Projections
from .runs import Run, users


@dataclass(eq=False)
class Stack:
    """A chain of blocks that are alike: each gets the output of the one before it.

    Args:
        name: the path of the container; if only some of its children are in the chain, that of its first block.
        run: where the blocks are.
        parameters: number of parameters of each block.
        projections: of each block, the parameters whose zeros make it the identity.
        indices: integers in blocks that count them.
        counters: counts and lists in configs.
        reason: why no block can be added without a change of the outputs; None if one can.
        unsuitable: why no block can be added or removed at all; None if one can.
        entries: of each block, the argument by which it gets what the one before it returns.
        direct: whether it gets that as it is, and not a function of it.
    """

    name: str
    run: Run
    parameters: tuple[int, ...]
    projections: tuple[Projections, ...] = ()
    indices: tuple[tuple[int, str, str, int], ...] = ()
    counters: tuple[Counter, ...] = ()
    reason: str | None = None
    unsuitable: str | None = None
    entries: tuple[str, ...] = ()
    direct: bool = True

    def shared(self, model: nn.Module) -> list[Tensor]:
        """Parameters of blocks that other modules have, too; copies of blocks share them."""
        return [parameter for parameter, each in users(model, self.run).values() if len(each) > 1]

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return len(self.run)

    @property
    def paths(self) -> list[str]:
        """The path of each block, or of its first module if it consists of several."""
        return [self.run.paths(number)[0] for number in range(self.blocks)]

    @property
    def growable(self) -> bool:
        """Whether blocks can be added without a change of the outputs."""
        return self.reason is None

    def __repr__(self) -> str:
        state = "growable" if self.growable else f"fixed: {self.reason}"
        return f"Stack({self.name!r}, blocks={self.blocks}, {state})"


@dataclass(eq=False)
class Stacks:
    """All stacks of a model: iterate over them, look one up by name, or print them as a table."""

    found: list[Stack]
    examples: list[Example] = field(repr=False)
    outdated: bool = False

    def __iter__(self) -> Iterator[Stack]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    def __contains__(self, name: object) -> bool:
        return any(stack.name == name for stack in self)

    def __getitem__(self, name: str) -> Stack:
        for stack in self:
            if name == stack.name:
                return stack
        inside = [stack for stack in self if any(name in stack.run.paths(number) for number in range(stack.blocks))]
        inside = inside or [stack for stack in self if stack.run.parent == name]
        if len(inside) == 1:
            return inside[0]
        names = [stack.name for stack in self]
        if not names:
            raise KeyError(f"no stack is called {name!r}: the model has no chain of blocks that are alike")
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"stacks: {', '.join(map(repr, names))}"
        raise KeyError(f"no stack is called {name!r}; {hint}")

    def __str__(self) -> str:
        if not self.found:
            return "no stacks: no module's output is the input of another one that is like it"
        rows = []
        for stack in self:
            least, most = min(stack.parameters), max(stack.parameters)
            each = f"{most:,}" if least == most else f"{least:,} to {most:,}"
            rows.append((stack.name, str(stack.blocks), each, "yes" if stack.growable else f"no: {stack.reason}"))
        return table(("stack", "blocks", "parameters each", "can deepen"), rows)

    __repr__ = __str__


def remember(model: nn.Module, found: Stacks) -> None:
    """Make stacks the known ones of a model."""
    kept_of(model).stacks = found


def last_stacks(model: nn.Module) -> Stacks | None:
    """The stacks of a model as the last search found them."""
    last: Stacks | None = kept_of(model).stacks
    return last


def names_of(runs: Sequence[Run]) -> list[str]:
    """Names of stacks: the path of the parent, or of the first block if the parent has several or is the model."""
    parents = [run.parent for run in runs]
    return [run.parent if run.parent and parents.count(run.parent) == 1 else run.paths(0)[0] for run in runs]
