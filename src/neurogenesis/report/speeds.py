"""Training times as they would be if nothing else had run on the machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from .runs import Run


def undisturbed_seconds(runs: Sequence[Run]) -> dict[Path, float]:
    """Seconds of each training, if its steps had been as fast as the fastest one in a network of the same size.

    Networks have the same size if a forward pass takes the same number of operations. In an epoch after which the size
    is another one than before, its own fastest step counts. Where steps are not known, epochs count as long as they
    took.
    """
    fastest: dict[int, float] = {}
    for run in runs:
        for size, _, step in _epochs(run):
            if size is not None:
                fastest[size] = min(fastest.get(size, step), step)
    return {
        run.path: sum(steps * (step if size is None else fastest[size]) for size, steps, step in _epochs(run))
        for run in runs
    }


def _epochs(run: Run) -> Iterator[tuple[int | None, int, float]]:
    """For each epoch, the operations of a forward pass (None if they changed), the steps, and the fastest one."""
    before = None
    for epoch in run.epochs:
        steps = epoch.step if before is None else epoch.step - before.step
        size = epoch.flops if before is None or epoch.flops == before.flops else None
        yield size, steps, epoch.train_seconds / steps if epoch.fastest_seconds is None else epoch.fastest_seconds
        before = epoch
