"""The engine of one machine: several runs at a time, each in its own process."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

from ..errors import UsageError
from . import Ended, Engine, Job, NextJob, Place
from .processes import failure_reason, start_worker, worker_context


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pool(workers: int, threads: int = 1) -> Engine:
    """An engine of `workers` processes; UsageError if there would be more threads than cores."""
    if workers < 1 or threads < 1:
        raise UsageError("--workers and --threads: expected positive numbers")
    if workers * threads > cores():  # they would slow each other down
        raise UsageError(f"--workers {workers} times --threads {threads} is more than the {cores()} available cores")

    def engine(next_job: NextJob, ended: Ended, place: Place) -> None:
        context = worker_context()
        active: dict[BaseProcess, Job] = {}
        with _terminating(active):
            while True:
                while len(active) < workers and (job := next_job()) is not None:
                    active[start_worker(context, job, place)] = job
                if not active:
                    return
                for process in _wait_for_any(active):
                    job = active.pop(process)
                    process.join()
                    code = process.exitcode or 0
                    ended(job, failure_reason(job.directory, code) if code else None)

    return engine


def _wait_for_any(active: Collection[BaseProcess]) -> list[BaseProcess]:
    """Wait until one of the processes ends; those that have ended."""
    wait([process.sentinel for process in active])
    return [process for process in active if not process.is_alive()]


@contextmanager
def _terminating(active: dict[BaseProcess, Job]) -> Iterator[None]:
    """If the engine is interrupted, ask its runs to save and stop, and wait until they have."""
    try:
        yield
    except BaseException:
        for process in active:
            process.terminate()
        for process in active:
            process.join()
        raise
