"""The passes of a step that is looked at, which wait until there are enough rows for a fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ..passes.samples import mixed
from .rows import channel_dim, groups_of, squared_norm, sum_of, wide


class Pass(NamedTuple):
    """A training pass: the consumer's input, what candidates would add to it, and the gradient at its output.

    `samples` has the identity of each item of the model's batch, if it is known. `of_rows` has the item that each row
    comes from, if rows are those of packed sequences.
    """

    H: Tensor
    h: Tensor
    D: Tensor
    samples: Tensor | None = None
    of_rows: Tensor | None = None

    @property
    def owners(self) -> Tensor | None:
        """The identity of each item, or of that of each row in packed sequences: if it is not known, their place."""
        if self.of_rows is None:
            return self.samples
        items = int(self.of_rows.max()) + 1
        if self.samples is not None and len(self.samples) == items:
            return self.samples[self.of_rows.to(self.samples.device)]
        return mixed(self.of_rows)

    @property
    def items(self) -> int:
        """The number of items of the batch."""
        return len(self.H) if self.samples is None else len(self.samples)

    @property
    def finite(self) -> bool:
        """Whether all entries are finite, and small enough for sums of their products."""
        return math.isfinite(float(sum_of([squared_norm(each) for each in (self.H, self.h, self.D)])))

    @property
    def numbers(self) -> int:
        """How many numbers it consists of, as a measure of memory."""
        return self.H.numel() + self.h.numel() + self.D.numel()

    def rows(self, consumer: nn.Module) -> int:
        """The number of samples and positions."""
        return self.H.numel() // self.H.shape[channel_dim(consumer)]

    def copied(self) -> Pass:
        """The same in memory of its own, to which nothing else is written."""
        return self._replace(H=self.H.clone(), h=self.h.clone(), D=self.D.clone())


_LARGEST = 1e18  # of norms: single precision has their squares


class Recorded(NamedTuple):
    """A training pass of rows, as it was recorded: candidates are run later, from the first producer's input."""

    H_prev: Tensor
    H: Tensor
    D: Tensor
    samples: Tensor | None = None
    of_rows: Tensor | None = None

    @property
    def items(self) -> int:
        """The number of items of the batch."""
        return len(self.H) if self.samples is None else len(self.samples)

    @property
    def finite(self) -> bool:
        """Whether all entries are finite, and small enough for sums of their products."""
        H_prev, H, D = (torch.linalg.vector_norm(each, dtype=wide(each)) for each in (self.H_prev, self.H, self.D))
        return float(H_prev + H + D) < _LARGEST

    @property
    def numbers(self) -> int:
        """How many numbers it consists of, as a measure of memory."""
        return self.H_prev.numel() + self.H.numel() + self.D.numel()

    def rows(self, consumer: nn.Module) -> int:
        """The number of samples."""
        return len(self.H)

    def copied(self) -> Recorded:
        """The same in memory of its own, to which nothing else is written."""
        return self._replace(H_prev=self.H_prev.clone(), H=self.H.clone(), D=self.D.clone())

    def completed(self, h: Tensor) -> Pass:
        """The pass with what candidates would add."""
        return Pass(self.H, h, self.D, self.samples, self.of_rows)


Run = Callable[[int, Tensor], Tensor]
"""What candidates add to the input of the consumer of that number, given the first producer's input."""


class Waiting(NamedTuple):
    """Passes of steps that have been looked at, until there are enough rows for a fit.

    Numbers are sums over processes, and so the same in all of them.

    Args:
        passes: of this process, for each consumer and each step that it has run at in all processes.
        rows: number of rows at each consumer.
        items: number of items of batches at each consumer.
        numbers: how many numbers the passes have.
        looks: number of steps.
    """

    passes: tuple[tuple[tuple[Pass | Recorded, ...], ...], ...]
    rows: tuple[int, ...]
    items: tuple[int, ...]
    numbers: int = 0
    looks: int = 0

    def after(
        self, passes: Sequence[Sequence[Pass | Recorded]], rows: Sequence[int], items: Sequence[int], numbers: int
    ) -> Waiting:
        """These passes and those of another step, except for consumers without rows."""
        return Waiting(
            tuple((*old, tuple(own)) if n else old for old, own, n in zip(self.passes, passes, rows, strict=True)),
            tuple(old + n for old, n in zip(self.rows, rows, strict=True)),
            tuple(old + n for old, n in zip(self.items, items, strict=True)),
            self.numbers + numbers,
            self.looks + 1,
        )

    def with_copies(self, before: Waiting) -> Waiting:
        """These passes, with copies of those that have come since `before`."""
        new = [(len(old), own) for old, own in zip(before.passes, self.passes, strict=True)]
        return self._replace(
            passes=tuple((*own[:n], *(tuple(each.copied() for each in step) for step in own[n:])) for n, own in new)
        )

    def completed(self, run: Run) -> Waiting:
        """The same with candidates run in all passes of a consumer at once."""
        return self._replace(
            passes=tuple(_completed(own, partial(run, place)) for place, own in enumerate(self.passes))
        )

    def state(self) -> dict[str, Any]:
        passes = [[[each._asdict() for each in step] for step in own] for own in self.passes]
        return {**self._asdict(), "passes": passes}

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> Waiting:
        passes = tuple(tuple(tuple(map(_pass_of, step)) for step in own) for own in state["passes"])
        return Waiting(**{**state, "passes": passes})

    @staticmethod
    def of_all(groups: Sequence[Waiting]) -> Waiting:
        """What waits in several groups of steps, one after the other."""
        return Waiting(
            tuple(tuple(chain(*own)) for own in zip(*(each.passes for each in groups), strict=True)),
            tuple(map(sum, zip(*(each.rows for each in groups), strict=True))),
            tuple(map(sum, zip(*(each.items for each in groups), strict=True))),
            sum(each.numbers for each in groups),
            sum(each.looks for each in groups),
        )

    @staticmethod
    def none(consumers: int) -> Waiting:
        return Waiting(((),) * consumers, (0,) * consumers, (0,) * consumers)


def _pass_of(saved: Any) -> Pass | Recorded:
    if not isinstance(saved, Mapping):  # of an earlier version
        return Pass(*saved)
    return Recorded(**saved) if "H_prev" in saved else Pass(**saved)


def _completed(
    steps: tuple[tuple[Pass | Recorded, ...], ...], run: Callable[[Tensor], Tensor]
) -> tuple[tuple[Pass, ...], ...]:
    inputs = [each.H_prev for step in steps for each in step if isinstance(each, Recorded)]
    if not inputs:
        return cast(tuple[tuple[Pass, ...], ...], steps)
    found = iter(run(torch.cat(inputs)).split([len(each) for each in inputs]))  # type: ignore[no-untyped-call]
    return tuple(
        tuple(each.completed(next(found)) if isinstance(each, Recorded) else each for each in step) for step in steps
    )


def joined(
    consumer: nn.Module, passes: Sequence[Pass], factors: Sequence[float], most: int
) -> tuple[Sequence[Pass], Sequence[float | Tensor]]:
    """Passes of different items as one, and the factors of their items: fewer operations.

    They stay as they are if their shapes differ, or if together they have more than `most` numbers.
    """
    shapes = {tuple(each.shape[1:] for each in (own.H, own.h, own.D)) for own in passes}
    dims = len(consumer.kernel_size) + 2 if isinstance(consumer, _ConvNd) else 2
    batched = all(
        own.H.ndim >= dims and own.of_rows is None and own.samples is not None and len(own.samples) == len(own.H)
        for own in passes
    )
    if len(passes) == 1 or len(shapes) > 1 or not batched or sum(own.numbers for own in passes) > most:
        return passes, factors
    H, h, D = (torch.cat(parts) for parts in list(zip(*passes, strict=True))[:3])
    samples = torch.cat([own.samples.to(H.device) for own in passes if own.samples is not None])
    of_items = torch.cat(
        [H.new_full((own.items,), factor, dtype=wide(H)) for own, factor in zip(passes, factors, strict=True)]
    )
    return [Pass(H, h, D, samples)], [of_items.reshape(-1, *[1] * (H.ndim - 1))]


def sampled_rows(consumer: nn.Module, each: Pass, count: int) -> Tensor:
    """Rows of [H, h], one per sample and position: all, or about `count` that are spread over all.

    The rows of groups are apart: groups x rows x columns.
    """
    parts = []
    if groups := groups_of(consumer):
        rows = torch.cat([each.H, each.h], -1)
        rows = rows.reshape(-1, *rows.shape[-2:])
        rows = rows[:: max(1, len(rows) * groups // count)].movedim(1, 0)
        return rows.to(wide(rows))
    for part in (each.H, each.h):
        if isinstance(consumer, _ConvNd):
            part = part.reshape(-1, *part.shape[-len(consumer.kernel_size) - 1 :]).flatten(2).movedim(1, 2)
        else:
            part = part.reshape(len(part) if part.ndim > 1 else 1, -1, part.shape[-1])
        samples, positions = part.shape[:2]
        if samples * positions > count:
            per_sample = max(1, -(-count // samples))
            spread = torch.randperm(positions, generator=torch.Generator().manual_seed(0))[:per_sample]
            part = part[:: max(1, samples * len(spread) // count), spread.to(part.device)]
        parts.append(part.flatten(0, 1))
    rows = torch.cat(parts, 1)
    return rows.to(wide(rows))
