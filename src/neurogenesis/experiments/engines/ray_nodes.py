"""What the Ray engine does on the nodes of a cluster: examine them, and do a run in a process of its own."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import ray
from filelock import FileLock, Timeout

from ..errors import UsageError
from ..record import LOCK_FILE
from . import Job, Place
from .processes import failure_reason, start_worker, worker_context
from .transfer import Changes, Part, write_parts

_POLL = 0.25  # seconds between looks at a run
_LOCKED = 30.0  # seconds until a process that was killed, here or on a lost node, has let go of its directory


@dataclass(frozen=True)
class Started:
    """The run has a place on a node."""


@dataclass(frozen=True)
class End:
    """The last news of a run."""

    reason: str | None
    """Why it failed, or None."""
    lost: bool = False
    """Whether it was killed or stopped, and can go on elsewhere."""


News = Started | list[Part] | End


class Stop:
    """An actor that tells all runs to save and stop."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()

    async def asked(self) -> None:
        """Return when the runs are to stop."""
        await self._asked.wait()

    async def ask(self) -> None:
        self._asked.set()


def do_run(job: Job, place: Place, parts: Sequence[Part] | None, stop: Any) -> Iterator[News]:
    """Do a run in a process, and tell what becomes of it.

    Args:
        job: the run. Its directory is the driver's.
        place: what all runs use.
        parts: the files of the run, if the driver's directory cannot be seen from here; None if it can.
        stop: the actor `Stop`.
    """
    yield Started()
    problem = unseen(job, parts)
    if problem is not None:
        yield End(problem)
        return
    with directory_here(job, parts) as directory:
        here = replace(job, directory=directory)
        changes = Changes(directory)
        asked = stop.asked.remote()
        with _without_main():
            process = start_worker(worker_context(), here, place, dict(os.environ))
        stopping = False
        try:
            while not wait([process.sentinel], _POLL):
                if not stopping and ray.wait([asked], timeout=0)[0]:
                    process.terminate()
                    stopping = True
                if parts is not None and changes.has_checkpoint():
                    yield changes.take()
        finally:
            ray.cancel(asked)
            process.terminate()  # nothing, if it has ended
            process.join()
        end = _end(directory, process.exitcode or 0)
        if parts is not None:
            yield changes.take()
    yield replace(end, reason=end.reason and end.reason.replace(str(directory), str(job.directory)))


def _end(directory: Path, code: int) -> End:
    """What the exit code of a run means."""
    if code < 0 or code == 128 + signal.SIGTERM:
        return End(f"killed by {signal.Signals(-code if code < 0 else signal.SIGTERM).name}", lost=True)
    return End(failure_reason(directory, code) if code else None)


def unseen(job: Job, parts: Sequence[Part] | None) -> str | None:
    """What is wrong on a node that came after the others were examined, and does not see the driver's directory."""
    if parts is not None or job.directory.is_dir():
        return None
    return f"node {platform.node()} does not see {job.directory}: start the command again to fetch what it writes"


@contextmanager
def directory_here(job: Job, parts: Sequence[Part] | None) -> Iterator[Path]:
    """The directory of a run here: the driver's own, or a temporary copy."""
    if parts is not None:
        with tempfile.TemporaryDirectory(prefix="neurogenesis-") as temporary:
            directory = Path(temporary) / job.directory.name
            directory.mkdir()
            write_parts(directory, parts)
            yield directory
        return
    with suppress(Timeout), FileLock(job.directory / LOCK_FILE, timeout=_LOCKED):
        pass
    yield job.directory


@contextmanager
def _without_main() -> Iterator[None]:
    """Keep a new process from importing the main module of this one, which is Ray's and slow."""
    main = sys.modules["__main__"].__dict__
    file = main.pop("__file__", None)
    try:
        yield
    finally:
        if file is not None:
            main["__file__"] = file


def versions() -> dict[str, str]:
    """What must be the same on all nodes."""
    from ..environment import commit

    neurogenesis, source = version("torch-neurogenesis"), commit()
    return {
        "neurogenesis": f"{neurogenesis} (commit {source})" if source else neurogenesis,
        "torch": version("torch"),
        "Python": ".".join(platform.python_version_tuple()[:2]),
    }


def examine(marker: Path, content: str, data: Sequence[str], root: Path | None) -> dict[str, Any]:
    """Look at a node: its versions, whether it sees a file of the driver, and what keeps it from doing runs.

    Args:
        marker: a file in the directory of all runs.
        content: its content.
        data: the data sets that runs need.
        root: the directory of data sets.
    """
    shared = _read(marker) == content
    return {"versions": versions(), "shared": shared, "problem": _unwritable(marker, shared) or _unreadable(data, root)}


def _read(path: Path) -> str | None:
    try:
        return path.read_text("utf-8")
    except OSError:
        return None


def _unwritable(marker: Path, shared: bool) -> str | None:
    try:
        with tempfile.TemporaryFile(dir=marker.parent if shared else None) as file:
            file.write(b"neurogenesis")
    except OSError as error:
        place = marker.parent if shared else "its temporary directory"
        return f"cannot write to {place} ({error.strerror or error}): choose another --out, or make it writable there"
    return None


def _unreadable(data: Sequence[str], root: Path | None) -> str | None:
    from ..data import download

    try:
        for name in data:
            download(name, root)
    except (UsageError, OSError) as error:
        return f"cannot read its data: {' '.join(str(error).split())}"
    return None
