"""Floating-point operations of a training so far, counted by the entries of its inputs."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..structure.axes import Structure
from ..structure.flops import GRADIENT_STEP, first_tensor


class Compute:
    """Counts training passes, and what they take: three times the forward pass, as the backward pass has two products
    for each of its products.

    A pass takes as many operations per entry of its first input as the pass that the widths were found with: exact for
    batches of other sizes, and short of the growing part of attention for sequences of other lengths.
    """

    def __init__(self) -> None:
        self._settled = 0  # operations until the latest step that was looked at
        self._entries = 0  # of inputs since

    def add(self, args: Any, kwargs: Any) -> None:
        """Count a training pass."""
        first = args[0] if args and type(args[0]) is Tensor else first_tensor((args, kwargs))
        self._entries += 0 if first is None else first.numel()

    def total(self, structure: Structure | None) -> int:
        """Operations so far, with the passes since the last call of `settle` at the present sizes."""
        work = None if structure is None else structure.work
        if structure is None or work is None:
            return self._settled
        return self._settled + GRADIENT_STEP * work.flops(structure.axes) * self._entries // work.entries

    def settle(self, structure: Structure | None) -> None:
        """The sizes may change from now on."""
        self._settled, self._entries = self.total(structure), 0

    def load(self, operations: int) -> None:
        """Go on from a number of operations."""
        self._settled, self._entries = operations, 0
