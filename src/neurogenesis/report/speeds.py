"""Training times at the speed that each size of network reached when nothing disturbed it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from .runs import Run


def undisturbed_seconds(runs: Sequence[Run]) -> dict[Path, float]:
    """Seconds of each training, if its steps had been as fast as in the fastest epoch with a network of the same size.

    Networks have the same size if a forward pass takes the same number of operations. Epochs in which a network grows,
    and those of records without these numbers, count as long as they took.
    """
    fastest: dict[int, float] = {}
    for run in runs:
        for size, steps, seconds in _epochs(run):
            if size is not None:
                fastest[size] = min(fastest.get(size, seconds / steps), seconds / steps)
    return {
        run.path: sum(seconds if size is None else fastest[size] * steps for size, steps, seconds in _epochs(run))
        for run in runs
    }


def _epochs(run: Run) -> Iterator[tuple[int | None, int, float]]:
    """For each epoch, the operations of a forward pass (None if they changed), the steps and the seconds."""
    if not run.epochs:
        return
    first = run.epochs[0]
    yield first.flops, first.step, first.train_seconds
    for before, after in pairwise(run.epochs):
        size = after.flops if after.flops == before.flops else None
        yield size, after.step - before.step, after.train_seconds
