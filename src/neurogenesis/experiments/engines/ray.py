"""The engine of a Ray cluster: as many runs at a time as it has room for, each in its own process on some node.

The driver, which is the process of the sweep, holds the runs that are under way and nothing of those that have ended.
Where a node does not see the directory of the runs, all are done in temporary directories, and what they write is
fetched after every epoch. A run whose worker or node is lost goes on elsewhere from its last checkpoint.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import NodeDiedError, OutOfMemoryError, RayError, RayTaskError, WorkerCrashedError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ..errors import UsageError
from ..files import writing_to
from ..run_directory import RunDirectory
from ..signals import delay_ctrl_c
from . import Ended, Engine, Job, NextJob, Place
from .pool import cores
from .processes import refused, write_failure
from .ray_nodes import End, News, Started, Stop, do_run, examine, versions
from .transfer import checkpoint_stamp, read_parts, write_parts

_ANSWER = 10  # seconds that a cluster has to answer
_LOSSES = 3  # times that a run may be lost in a row without a new checkpoint
_LOOK = 5.0  # seconds from one look at the nodes to the next
_OBJECT_STORE = 128 * 2**20  # bytes, of a local Ray, where nothing is fetched
_STOPPABLE = 100_000  # runs that can wait for the actor at a time


@dataclass(frozen=True)
class Request:
    """What each run needs of a node."""

    cpus: float = 1
    gpus: float = 0

    def __post_init__(self) -> None:
        if not 0 < self.cpus < math.inf or not 0 <= self.gpus < math.inf:
            raise UsageError("--cpus and --gpus: expected positive numbers")
        if self.gpus > 1 and self.gpus % 1:
            raise UsageError(f"--gpus {self.gpus:g}: expected a whole number, or a fraction of one")

    def fits(self, resources: dict[str, float]) -> int:
        """How many runs a node with these resources has room for.

        Example:
            >>> Request(cpus=2, gpus=0.5).fits({"CPU": 8, "GPU": 1})
            2
        """
        needs = {"CPU": self.cpus, "GPU": self.gpus}
        rooms = [resources.get(name, 0) / need for name, need in needs.items() if need]
        return math.floor(min(rooms) + 1e-9)  # 1 / 0.1 may be less than 10


@contextmanager
def connected(address: str | None = None) -> Iterator[None]:
    """Connect to a cluster, by default that of $RAY_ADDRESS, else to a local one that ends with the block.

    Args:
        address: HOST:PORT of the cluster's head, or "auto" for one that runs on this machine.
    """
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    local: dict[str, Any] = {}
    if address == "local":
        os.environ.setdefault("RAY_worker_niceness", "0")  # as that of other engines; Ray's default is 15
        local = {"num_cpus": cores(), "include_dashboard": False, "object_store_memory": _OBJECT_STORE}
    else:
        _check_address(address)
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **local)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UsageError(f"--address {address}: {_line(error)}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """UsageError if no cluster answers. In a process of its own: Ray ends one that cannot connect."""
    if address.startswith("ray://"):
        raise UsageError(
            f"--address {address}: Ray Client is not supported; start the sweep on a machine of the cluster, "
            "with HOST:PORT of its head (usually port 6379), or auto"
        )
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    try:
        answers = subprocess.run(command, capture_output=True, timeout=_ANSWER, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        answers = False
    if not answers:
        raise UsageError(
            f"--address {address}: no Ray cluster answered within {_ANSWER} seconds; "
            "give HOST:PORT of its head, or start one with: ray start --head"
        )


def cluster_room(request: Request) -> int:
    """How many runs the cluster has room for; UsageError if it has none."""
    nodes = [node["Resources"] for node in _nodes()]
    room = sum(map(request.fits, nodes))
    if not room:
        largest = {name: max((node.get(name, 0) for node in nodes), default=0) for name in ("CPU", "GPU")}
        asked = f"--cpus {request.cpus:g}" + (f" --gpus {request.gpus:g}" if request.gpus else "")
        raise UsageError(
            f"{asked}: no node of the cluster has that much; the largest have {largest['CPU']:g} CPUs and "
            f"{largest['GPU']:g} GPUs"
        )
    return room


def cluster(out: Path, data: Sequence[str] = (), request: Request | None = None, workers: int | None = None) -> Engine:
    """An engine of the cluster that this process is `connected` to.

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
        cluster_room(request)
        place = replace(place, root=_root(place.root))
        shared = _examine_nodes(out, data, place.root, request)
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


def _root(root: Path | None) -> Path | None:
    """The directory of data sets that this process was told to use; None if it is each node's own default."""
    told = root or os.environ.get("NEUROGENESIS_DATA")
    return Path(told).absolute() if told else None


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
            self._room = sum(self._request.fits(node["Resources"]) for node in _nodes())
        return max(1, self._room)


@dataclass(eq=False)
class _Run:
    """A run that is under way."""

    job: Job
    news: Any = None
    """Ray's generator of its news."""
    started: bool = False
    losses: int = 0
    checkpoint: int | None = None
    """The latest one when the run was last lost."""
    held: ExitStack = field(default_factory=ExitStack)
    """Holds the directory, if this process writes to it."""


class _Runs:
    """The runs that are under way."""

    def __init__(self, ended: Ended, place: Place, request: Request, shared: bool):
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self.active: dict[Any, _Run] = {}
        self._ended, self._place, self._shared = ended, place, shared
        self._stop = ray.remote(num_cpus=0, max_concurrency=_STOPPABLE, scheduling_strategy=here)(Stop).remote()
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
        run = _Run(job, checkpoint=checkpoint_stamp(job.directory))
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
        checkpoint = checkpoint_stamp(run.job.directory)
        run.losses = run.losses + 1 if checkpoint == run.checkpoint else 1
        run.checkpoint = checkpoint
        if run.losses < _LOSSES:
            self._submit(run)
            return
        run.held.close()
        reason = f"{why}; given up after {run.losses} times without a new checkpoint"
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
        return End(_line(error.cause))
    except (RayError, StopIteration) as error:
        return End(_loss(error), lost=True)


def _loss(error: Exception) -> str:
    """Why a run was lost."""
    if isinstance(error, NodeDiedError):
        return "its node was lost"
    if isinstance(error, OutOfMemoryError):
        return "killed because its node ran out of memory"
    return "its worker was killed" if isinstance(error, WorkerCrashedError) else f"lost ({_line(error)})"


def _line(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _nodes() -> list[dict[str, Any]]:
    """The nodes that are alive."""
    return [node for node in ray.nodes() if node["Alive"]]


def _examine_nodes(out: Path, data: Sequence[str], root: Path | None, request: Request) -> bool:
    """Whether all nodes see the directory of the runs; UsageError if one of them cannot do runs."""
    nodes = [node for node in _nodes() if request.fits(node["Resources"])]
    marker, content = out.absolute() / f"marker-{secrets.token_hex(8)}", secrets.token_hex(8)
    with writing_to(out):
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.write_text(content, "utf-8")
    try:
        look = ray.remote(num_cpus=0, max_retries=0)(examine)
        strategies = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in nodes]
        reports = [look.options(scheduling_strategy=each).remote(marker, content, data, root) for each in strategies]
        found = [_report(report) for report in reports]
    finally:
        marker.unlink(missing_ok=True)
    here = versions()
    problems = defaultdict(list)
    for node, report in zip(nodes, found, strict=True):
        problem = _difference(report["versions"], here) or report["problem"]
        if problem:
            problems[problem].append(f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})")
    if problems:
        problem, names = next(iter(problems.items()))
        raise UsageError(f"node {', '.join(names)} {problem}")
    return all(report["shared"] for report in found)


def _report(report: Any) -> dict[str, Any]:
    """What `examine` found; a node without the package cannot even start it."""
    try:
        found: dict[str, Any] = ray.get(report)
        return found
    except RayError as error:
        cause = _line(error.cause if isinstance(error, RayTaskError) else error)
        return {"versions": {}, "shared": False, "problem": f"cannot do runs ({cause}): install neurogenesis there"}


def _difference(there: dict[str, str], here: dict[str, str]) -> str | None:
    for name, version in there.items():
        if version != here[name]:
            return f"has {name} {version}, and this machine {here[name]}: install the same version on both"
    return None
