"""Runs of modules that are alike, one after the other in the same parent."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)

Signature = tuple[Any, ...]


@dataclass(frozen=True)
class Run:
    """Blocks that are alike: the path of their parent, and the names that the children of each block have there.

    A block is one child or, such as a layer with its activation in a `Sequential`, several.
    """

    parent: str
    blocks: tuple[tuple[str, ...], ...]

    def __len__(self) -> int:
        return len(self.blocks)

    def part(self, start: int, stop: int) -> Run:
        """The run of some of its blocks."""
        return replace(self, blocks=self.blocks[start:stop])

    def paths(self, block: int) -> list[str]:
        """Paths of the modules of a block."""
        return [joined(self.parent, name) for name in self.blocks[block]]

    def resized(self, count: int) -> Run:
        """The run with another number of blocks, with the names that these get.

        Example:
            >>> Run("", (("2", "3"), ("4", "5"))).resized(3).blocks[-1]
            ('6', '7')
        """
        first = self.blocks[0]
        step = len(first) if all(name.isdigit() for name in first) else 1
        return replace(self, blocks=tuple(tuple(_shifted(name, n * step) for name in first) for n in range(count)))

    def modules(self, model: nn.Module, block: int) -> list[nn.Module]:
        """The modules of a block."""
        return [model.get_submodule(path) for path in self.paths(block)]


def users(model: nn.Module, run: Run) -> dict[int, tuple[Tensor, set[int]]]:
    """Parameters by id, each with the numbers of the blocks that have it; -1 stands for modules outside of all blocks.

    A second name of a block, or of the list of all blocks, is no further user.
    """
    blocks = [run.modules(model, number) for number in range(len(run))]
    tops = {module for block in blocks for module in block}
    parts = {number: {each for module in block for each in module.modules()} for number, block in enumerate(blocks)}
    outside, waiting = set[nn.Module](), [model]
    while waiting:
        module = waiting.pop()
        if module not in tops and module not in outside:
            outside.add(module)
            waiting += module.children()
    found: dict[int, tuple[Tensor, set[int]]] = {}
    for number, modules in {-1: outside, **parts}.items():
        for parameter in (own for module in modules for own in module.parameters(recurse=False)):
            found.setdefault(id(parameter), (parameter, set()))[1].add(number)
    return found


def joined(*parts: str) -> str:
    """Parts of a path, without empty ones."""
    return ".".join(filter(None, parts))


def signature(module: nn.Module) -> Signature:
    """What modules that are alike have in common: classes, and names and numbers of axes of parameters and buffers.

    Sizes may differ, as inner widths of blocks grow one by one.

    Example:
        >>> signature(nn.Linear(2, 3)) == signature(nn.Linear(3, 3))
        True
    """
    classes = [(path, type(each)) for path, each in module.named_modules(remove_duplicate=False)]
    tensors = [(name, own.ndim) for name, own in module.named_parameters(remove_duplicate=False)]
    buffers = [(name, own.ndim) for name, own in module.named_buffers(remove_duplicate=False)]
    return (*classes, *tensors, *buffers)


def runs(model: nn.Module) -> Iterator[Run]:
    """Every run of a model, those of outer modules first; in containers, also single blocks."""
    for path, module in model.named_modules():
        contained = isinstance(module, CONTAINERS)
        for blocks in _alike(module, _blocks(module) if contained else _composites(module)):
            if contained or len(blocks) > 1:
                yield Run(path, tuple(map(tuple, blocks)))


def _children(parent: nn.Module) -> list[tuple[str, nn.Module]]:
    """The children of a module, with repetitions."""
    return [(name, child) for name, child in parent._modules.items() if child is not None]


def _blocks(parent: nn.Module) -> Iterator[list[str] | None]:
    """Names of the children of each block, None where a child belongs to no block.

    A child with modules of its own is a block. A layer with a matrix begins one, which goes on until the next block.
    """
    current: list[str] | None = None
    for name, child in _children(parent):
        if any(True for _ in child.children()):
            if current is not None:
                yield current
            current = None
            yield [name] if any(True for _ in child.parameters()) else None
        elif any(own.ndim > 1 for own in child.parameters()):
            if current is not None:
                yield current
            current = [name]
        elif current is not None:
            current.append(name)
        else:
            yield None
    if current is not None:
        yield current


def _composites(parent: nn.Module) -> Iterator[list[str] | None]:
    """The children of a module that is no container, as far as they may be blocks."""
    for name, child in _children(parent):
        yield [name] if any(True for _ in child.children()) and any(True for _ in child.parameters()) else None


def _alike(parent: nn.Module, blocks: Iterator[list[str] | None]) -> Iterator[list[list[str]]]:
    """Group successive blocks that are alike; the last may be followed by more, such as a final norm."""
    run: list[list[str]] = []
    expected: list[Signature] = []
    for block in [*blocks, None]:
        own = [] if block is None else [signature(parent.get_submodule(name)) for name in block]
        if block is not None and run and own[: len(expected)] == expected:
            run.append(block[: len(expected)])
            if len(block) == len(expected):
                continue
            yield run
            run, expected = [], []
            continue
        if run:
            yield run
        run, expected = ([], []) if block is None else ([block], own)


def why_not_numbered(parent: nn.Module, run: Run) -> str | None:
    """Why new blocks can have no names; None if names are numbers, or end in numbers."""
    if all(name.isdigit() for name in parent._modules):
        return None
    for names in zip(*run.blocks, strict=True):
        found = [_numbered(name) for name in names]
        if any(each is None for each in found):
            return f"its blocks have names without numbers ({', '.join(names[:2])})"
        kept = [each for each in found if each is not None]
        if any(a[0] != b[0] or a[1] + 1 != b[1] for a, b in pairwise(kept)):
            return f"the names of its blocks are not numbered in order ({', '.join(names[:3])})"
    return None


def _shifted(name: str, number: int) -> str:
    stem = name.rstrip("0123456789")
    return f"{stem}{int(name[len(stem) :]) + number}"


def _numbered(name: str) -> tuple[str, int] | None:
    match = re.fullmatch(r"(.*?)(\d+)", name)
    return None if match is None else (match[1], int(match[2]))


def reordered(parent: nn.Module, run: Run, blocks: Sequence[Sequence[nn.Module]]) -> dict[str, nn.Module | None]:
    """The children of a parent by name, with other blocks in place of those of a run."""
    children, own = list(parent._modules.items()), {name for names in run.blocks for name in names}
    start = next(number for number, (name, _) in enumerate(children) if name in own)
    digits = all(name.isdigit() for name, _ in children)
    result = dict(children[:start])
    for names, block in zip(run.resized(len(blocks)).blocks, blocks, strict=True):
        result.update(zip(names, block, strict=True))
    for name, child in children[start:]:
        if name not in own:
            result[_moved(run, name, len(blocks) - len(run), digits)] = child
    return result


def _moved(run: Run, name: str, change: int, digits: bool) -> str:
    """The name of a child behind a run that has got more blocks."""
    if digits:
        return str(int(name) + change * len(run.blocks[0]))
    number = _numbered(name)
    stems = [each[0] for own in run.blocks[0] if (each := _numbered(own)) is not None]
    return name if number is None or number[0] not in stems else f"{number[0]}{number[1] + change}"
