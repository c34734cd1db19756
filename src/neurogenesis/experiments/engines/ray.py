"""The engine of a Ray cluster: as many runs at a time as it has room for, each in a worker of Ray.

The driver, which is the process of the sweep, knows the runs under way and nothing of those that have ended. Where
a node does not see the directory of the runs, all are done in temporary directories, and their files are fetched after
every epoch. A run whose worker or node is lost goes on elsewhere from its last checkpoint.
"""

# Files come back through Ray's object store: the task of a run yields them. Ray's other storage, the `storage_path`
# of Ray Train and Ray Tune, must itself be on a file system that all nodes see, or in a cloud: Ray refuses a path that
# only the driver sees, which is the one case in which files have to be fetched.

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import NodeDiedError, OutOfMemoryError, RayError, RayTaskError, WorkerCrashedError

from ..errors import UsageError, one_line
from ..files import writing_to
from ..record import CHECKPOINT_FILE
from ..run_directory import RunDirectory
from ..signals import Interrupted
from . import Ended, Engine, Job, NextJob, Place
from .processes import refused, write_failure
from .ray_cluster import Request, alive_nodes, examine_cluster
from .ray_nodes import do_run
from .transfer import Files, read_files, write_files

_LOSSES = 3  # times that a run may be lost in a row without a new checkpoint
_LOOK = 5.0  # seconds from one look at the nodes to the next
_WHY_LOST = {
    NodeDiedError: "its node was lost",
    OutOfMemoryError: "killed because its node ran out of memory",
    WorkerCrashedError: "its worker was killed",
}


def cluster(out: Path, data: Sequence[str] = (), request: Request | None = None, workers: int | None = None) -> Engine:
    """An engine of the cluster that this process is connected to (`ray_cluster.connected`).

    Args:
        out: the directory of all runs.
        data: the data sets with files that they read.
        request: what each run needs of a node; by default one CPU.
        workers: maximum number of runs at a time; by default as many as there is room for.
    """
    request = request or Request()
    if workers is not None and workers < 1:
        raise UsageError("--workers: expected a positive number")

    def engine(next_job: NextJob, ended: Ended, place: Place) -> None:
        place, shared = examine_cluster(out, data, place, request)
        runs = _Runs(ended, place, request, shared)
        room = _Room(request, workers)
        try:
            while True:
                while len(runs.active) < room.now() and (job := next_job()) is not None:
                    runs.start(job)
                if not runs.active:
                    return
                runs.follow()
        except BaseException:
            runs.stop()
            raise

    return engine


class _Room:
    """The number of runs that may be under way: all that fit on the nodes that are alive."""

    def __init__(self, request: Request, workers: int | None):
        self._request, self._workers = request, workers
        self._looked, self._room = -math.inf, 0

    def now(self) -> int:
        if self._workers is not None:
            return self._workers
        if time.monotonic() - self._looked > _LOOK:
            self._looked = time.monotonic()
            self._room = sum(self._request.fits(node["Resources"]) for node in alive_nodes())
        return max(1, self._room)


@dataclass(eq=False)
class _Run:
    """A run that is under way."""

    job: Job
    held: ExitStack = field(default_factory=ExitStack)
    """Holds the lock of the directory, if the driver writes to it."""
    checkpoint: int | None = None
    """The time of the checkpoint at the latest loss, or at the start."""
    losses: int = 0
    """The number of losses since that checkpoint was written."""


class _Runs:
    """The runs that are under way; the keys are Ray's generators of the values that their tasks yield."""

    def __init__(self, ended: Ended, place: Place, request: Request, shared: bool):
        self.active: dict[Any, _Run] = {}
        self._ended, self._place, self._shared = ended, place, shared
        self._do_run = ray.remote(
            num_cpus=request.cpus,
            num_gpus=request.gpus,
            max_retries=0,  # lost runs are started again from here, where their files are
            scheduling_strategy="SPREAD",
            _generator_backpressure_num_objects=2,
        )(do_run)

    def start(self, job: Job) -> None:
        """Start a run as soon as there is room for it."""
        directory = job.directory.absolute()
        run = _Run(replace(job, directory=directory), checkpoint=_checkpoint_time(directory))
        try:
            if self._shared:
                with writing_to(directory):
                    directory.mkdir(parents=True, exist_ok=True)  # by which a new node is known to see it
            else:
                run.held.enter_context(RunDirectory(directory).locked(job.settings.record()))
            self._submit(run)
        except UsageError as error:
            self._end(run, refused(directory, one_line(error)))

    def _submit(self, run: _Run) -> None:
        files = None if self._shared else read_files(run.job.directory)
        self.active[self._do_run.remote(run.job, self._place, files)] = run

    def follow(self) -> None:
        """Wait until a run yields something, for some seconds at most."""
        for each in ray.wait(list(self.active), num_returns=1, timeout=_LOOK)[0]:
            run = self.active[each]
            try:
                yielded = _next(each, run)
            except UsageError as error:  # its files cannot be written here
                ray.cancel(each)
                del self.active[each]
                self._end(run, one_line(error))
            except (RayError, StopIteration) as error:
                del self.active[each]
                self._lost(run, error)
            else:
                if not isinstance(yielded, dict):
                    del self.active[each]
                    self._end(run, yielded)

    def _lost(self, run: _Run, error: RayError | StopIteration) -> None:
        """Start a run again, unless it failed by itself, or is lost again and again at the same checkpoint."""
        directory = run.job.directory
        if isinstance(error, RayTaskError) and not isinstance(error.cause, Interrupted):
            self._end(run, refused(directory, one_line(error.cause)))
            return
        checkpoint = _checkpoint_time(directory)
        run.losses = run.losses + 1 if checkpoint == run.checkpoint else 1
        run.checkpoint = checkpoint
        if run.losses < _LOSSES:
            self._submit(run)
            return
        run.held.close()
        why = next((why for kind, why in _WHY_LOST.items() if isinstance(error, kind)), f"lost ({one_line(error)})")
        self._end(run, write_failure(directory, f"{why}; given up after {_LOSSES} times without a new checkpoint"))

    def _end(self, run: _Run, reason: str | None) -> None:
        run.held.close()
        self._ended(run.job, reason)

    def stop(self) -> None:
        """Ask all runs to save and stop, and wait until they have."""
        for each in self.active:
            ray.cancel(each)  # like Ctrl-C in its worker
        while self.active:
            for each in ray.wait(list(self.active), num_returns=1)[0]:
                with suppress(RayError, StopIteration):
                    if isinstance(_next(each, self.active[each]), dict):
                        continue
                self.active.pop(each).held.close()


def _next(generator: Any, run: _Run) -> Files | str | None:
    """The next value that a run yields; files are written to its directory."""
    yielded: Files | str | None = ray.get(next(generator))
    if isinstance(yielded, dict):
        write_files(run.job.directory, yielded)
    return yielded


def _checkpoint_time(directory: Path) -> int | None:
    path = directory / CHECKPOINT_FILE
    return path.stat().st_mtime_ns if path.exists() else None
