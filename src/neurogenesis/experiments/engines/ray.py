"""The engine of a Ray cluster: as many runs at a time as it has room for, each in its own process on some node.

The driver, which is the process of the sweep, holds the runs that are under way and nothing of those that have ended.
Where a node does not see the directory of the runs, all are done in temporary directories, and what they write is
fetched after every epoch. A run whose worker or node is lost goes on elsewhere from its last checkpoint.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import NodeDiedError, OutOfMemoryError, RayActorError, RayError, RayTaskError, WorkerCrashedError

from ..errors import UsageError
from ..files import writing_to
from ..run_directory import RunDirectory
from ..signals import delay_ctrl_c
from . import Ended, Engine, Job, NextJob, Place
from .processes import refused, write_failure
from .ray_cluster import Request, alive_nodes, examine_cluster, on_this_node, one_line
from .ray_nodes import End, News, Started, Stop, do_run
from .transfer import checkpoint_stamp, read_parts, write_parts

_LOSSES = 3  # times that a run may be lost in a row without a new checkpoint
_LOOK = 5.0  # seconds from one look at the nodes to the next
_STOPPABLE = 100_000  # runs that can wait for the actor at a time


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
    """How many runs may be under way: all that fit, also after nodes came or went."""

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


class Losses:
    """Counts how many times in a row a run was lost without a new checkpoint."""

    def __init__(self, directory: Path):
        self._directory, self._checkpoint, self._count = directory, checkpoint_stamp(directory), 0

    def add(self, why: str) -> str | None:
        """The run was lost once more; why it is given up, None if it is to go on."""
        checkpoint = checkpoint_stamp(self._directory)
        self._count = self._count + 1 if checkpoint == self._checkpoint else 1
        self._checkpoint = checkpoint
        return f"{why}; given up after {_LOSSES} times without a new checkpoint" if self._count == _LOSSES else None


@dataclass(eq=False)
class _Run:
    """A run that is under way."""

    job: Job
    losses: Losses
    news: Any = None
    """Ray's generator of its news."""
    started: bool = False
    held: ExitStack = field(default_factory=ExitStack)
    """Holds the directory, if this process writes to it."""


class _Runs:
    """The runs that are under way."""

    def __init__(self, ended: Ended, place: Place, request: Request, shared: bool):
        self.active: dict[Any, _Run] = {}
        self._ended, self._place, self._shared = ended, place, shared
        stop = ray.remote(num_cpus=0, max_concurrency=_STOPPABLE, scheduling_strategy=on_this_node())(Stop)
        self._stop = stop.remote()
        # The processes of runs use GPUs, not Ray's workers: these can be kept. Lost runs are started again from here,
        # where their files are.
        self._do_run = ray.remote(
            num_cpus=request.cpus,
            num_gpus=request.gpus,
            max_calls=0,
            max_retries=0,
            scheduling_strategy="SPREAD",
            _generator_backpressure_num_objects=2,
        )(do_run)

    def start(self, job: Job) -> None:
        """Start a run as soon as there is room for it."""
        job = replace(job, directory=job.directory.absolute())
        run = _Run(job, Losses(job.directory))
        try:
            if self._shared:
                with writing_to(job.directory):
                    job.directory.mkdir(parents=True, exist_ok=True)  # by which a new node is known to see it
            else:
                run.held.enter_context(RunDirectory(job.directory).locked(job.settings.record()))
            self._submit(run)
        except UsageError as error:
            self._end(run, refused(job.directory, " ".join(str(error).split())))

    def _submit(self, run: _Run) -> None:
        parts = None if self._shared else read_parts(run.job.directory)
        run.news, run.started = self._do_run.remote(run.job, self._place, parts, self._stop), False
        self.active[run.news] = run

    def follow(self) -> None:
        """Wait for news, for some seconds at most."""
        ready, _ = ray.wait(list(self.active), num_returns=1, timeout=_LOOK)
        for each in ready:
            run = self.active[each]
            try:
                news = self._news(run)
            except UsageError as error:  # it cannot be written here
                ray.cancel(each)
                self._end(run, " ".join(str(error).split()))
                continue
            if isinstance(news, Started):
                run.started = True
            elif isinstance(news, End):
                self._lost(run, news.reason or "") if news.lost else self._end(run, news.reason)

    def _lost(self, run: _Run, why: str) -> None:
        """Start a run again, unless it is lost again and again at the same place."""
        del self.active[run.news]
        reason = run.losses.add(why)
        if reason is None:
            self._submit(run)
            return
        run.held.close()
        self._end(run, write_failure(run.job.directory, reason))

    def _end(self, run: _Run, reason: str | None) -> None:
        self.active.pop(run.news, None)
        run.held.close()
        self._ended(run.job, reason)

    def stop(self) -> None:
        """Ask all runs to save and stop, and wait until they have."""
        self._stop.ask.remote()
        for each, run in list(self.active.items()):
            if not run.started:
                ray.cancel(each)
                del self.active[each]
                run.held.close()
        while self.active:
            for each in ray.wait(list(self.active), num_returns=1)[0]:
                run = self.active[each]
                if isinstance(self._news(run), End):
                    del self.active[each]
                    run.held.close()

    def _news(self, run: _Run) -> News:
        """The next news of a run, of which there is some; if it is files, they are written."""
        with delay_ctrl_c():  # each part of a file continues the one before
            news = _next(run.news)
            if isinstance(news, list):
                write_parts(run.job.directory, news)
        return news


def _next(generator: Any) -> News:
    """What Ray's generator gives next."""
    try:
        news: News = ray.get(next(generator))
        return news
    except RayTaskError as error:
        return End(one_line(error.cause))
    except (RayError, StopIteration) as error:
        return End(loss_reason(error), lost=True)


def loss_reason(error: Exception) -> str:
    """Why a run was lost."""
    if isinstance(error, NodeDiedError):
        return "its node was lost"
    if isinstance(error, OutOfMemoryError):
        return "killed because its node ran out of memory"
    if isinstance(error, RayActorError):
        return "its worker or node was lost"
    if isinstance(error, WorkerCrashedError):
        return "its worker was killed"
    return f"lost ({one_line(error.cause if isinstance(error, RayTaskError) else error)})"
