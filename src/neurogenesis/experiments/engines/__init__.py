"""Where the runs of a sweep or a search are done. An engine is one function.

`pool` is the one of this machine, `ray` that of a Ray cluster.

An engine asks for a run whenever it can start one, and says how each ended:

    def engine(next_job: NextJob, ended: Ended, place: Place) -> None:
        '''Do jobs until none is running and `next_job` gives none.'''

It calls `next_job()` while it has room. None means that nothing can start now: the answer may be another one after the
end of a running job, so it asks again then. For each job it calls `ended(job, reason)` once, with None or why it failed
in one line. Both are called in the thread that called the engine. If it is left by an exception (Ctrl-C among them), it
asks its runs to save and stop, and waits until they have.

What a run is, which ones there are, what is finished and how progress is shown is none of its business.
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


@dataclass(frozen=True)
class Place:
    """What all runs use."""

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
