"""Which blocks of a model are copies of which, since it was made; plain data that is saved with the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from .kept import kept_of


@dataclass(frozen=True)
class Origins:
    """The blocks of a stack that has got others.

    Args:
        parent: path of the module that has the blocks.
        first: names of the modules of the first block there.
        count: number of blocks when the model was made.
        blocks: for each block now, the number of the one, at that time, that it was or is a copy of.
    """

    parent: str
    first: tuple[str, ...]
    count: int
    blocks: tuple[int, ...]

    def state(self) -> dict[str, Any]:
        """The origins as dicts and lists."""
        return {**asdict(self), "first": list(self.first), "blocks": list(self.blocks)}

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> Origins:
        """Read what `state` returned."""
        first, blocks = tuple(map(str, state["first"])), tuple(map(int, state["blocks"]))
        return Origins(str(state["parent"]), first, int(state["count"]), blocks)

    def below(self, path: str) -> Origins:
        """The same, for the model in which this one is the submodule at a path."""
        return Origins(".".join(filter(None, (path, self.parent))), self.first, self.count, self.blocks)


def origins_of(model: nn.Module) -> tuple[Origins, ...]:
    """The stacks of a model that have got other blocks; outer stacks first."""
    found: tuple[Origins, ...] = kept_of(model).origins
    return found


def set_origins(model: nn.Module, found: Sequence[Origins]) -> None:
    """Set what `origins_of` returns."""
    kept_of(model).origins = tuple(sorted(found, key=lambda each: each.parent.count(".")))
