"""Engines do the runs of a sweep or a search: `pool` on this machine, `ray` on a Ray cluster.

An engine is one function:

    def engine(next_job: NextJob, ended: Ended, place: Place) -> None:
        '''Do jobs until none is running and `next_job` gives none.'''

It calls `next_job()` while it has room. None means that nothing can start now; it asks again after a running job has
ended. For each job it calls `ended(job, reason)` once: the reason is None, or one line on why the job failed. Both
are called in the thread that called the engine. If an exception (such as Ctrl-C) ends the engine, it asks its runs to
save and stop, and waits until they have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..settings import Settings

__all__ = ["HERE", "Ended", "Engine", "Job", "NextJob", "Place"]


@dataclass(frozen=True)
class Job:
    """One run to do."""

    name: str
    settings: Settings
    directory: Path
    until: int | None = None
    """The epoch to stop after, if the rest of the run may not be needed. An engine that ignores it does more work."""


@dataclass(frozen=True)
class Place:
    """Data, device and threads of all runs."""

    root: Path | None = None
    """The directory of data sets, as in `neurogenesis.experiments.data.load`."""
    device: str = "cpu"
    """The device to train on."""
    threads: int = 1
    """Number of threads of each run."""


HERE = Place()
NextJob = Callable[[], Job | None]
Ended = Callable[[Job, str | None], None]
Engine = Callable[[NextJob, Ended, Place], None]
