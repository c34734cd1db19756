"""The part of the Ray engine that is executed on the nodes of a cluster: examining them, and doing runs."""

from __future__ import annotations

import platform
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ..errors import UsageError, one_line
from ..record import LOCK_FILE, LOG_FILE
from ..signals import Interrupted
from . import Job, Place
from .processes import epochs_of, failure_reason
from .transfer import Files, read_files, write_files

_LOCKED = 30.0  # seconds until a process that was killed, here or on a lost node, has released its directory


def do_run(job: Job, place: Place, files: Files | None) -> Iterator[Files | str | None]:
    """Do a run; yields its files whenever it is saved, if they are asked for, and then why it failed, or None.

    Args:
        job: the run, with its directory on the driver's machine.
        place: data, device and threads of all runs.
        files: the files of the run, if the driver's directory is not visible here; None if it is.
    """
    if files is None and not job.directory.is_dir():  # this node came after the others were examined
        yield f"node {platform.node()} does not see {job.directory}: start the command again to fetch what it writes"
        return
    with directory_here(job, files) as directory:
        failed = False
        with (directory / LOG_FILE).open("a", buffering=1) as log, redirect_stdout(log), redirect_stderr(log):
            try:
                for epoch in epochs_of(replace(job, directory=directory), place):
                    if files is not None and epoch.epoch < job.settings.epochs:
                        yield read_files(directory)
            except Interrupted:
                raise
            except Exception as error:
                failed = True
                if isinstance(error, UsageError):
                    print(one_line(error), file=sys.stderr)
                else:
                    traceback.print_exc()
        reason = failure_reason(directory, 1) if failed else None
        if files is not None:
            yield read_files(directory)
    yield reason and reason.replace(str(directory), str(job.directory))


@contextmanager
def directory_here(job: Job, files: Files | None) -> Iterator[Path]:
    """The directory of a run on this node: the driver's own, or a temporary copy."""
    if files is not None:
        with tempfile.TemporaryDirectory(prefix="neurogenesis-") as temporary:
            directory = Path(temporary) / job.directory.name
            write_files(directory, files)
            yield directory
    else:
        with suppress(Timeout), FileLock(job.directory / LOCK_FILE, timeout=_LOCKED):
            pass
        yield job.directory


def versions() -> dict[str, str]:
    """The versions that must be the same on all nodes."""
    from ..environment import commit

    neurogenesis, source = version("torch-neurogenesis"), commit()
    return {
        "neurogenesis": f"{neurogenesis} (commit {source})" if source else neurogenesis,
        "torch": version("torch"),
        "Python": ".".join(platform.python_version_tuple()[:2]),
    }


def examine(marker: Path, content: str, data: Sequence[str], root: Path | None) -> dict[str, Any]:
    """Examine a node: its versions, whether it sees a file of the driver, and what keeps it from doing runs.

    Args:
        marker: a file in the directory of all runs.
        content: the content of that file.
        data: the data sets that runs need.
        root: the directory of data sets.
    """
    try:
        shared = marker.read_text("utf-8") == content
    except OSError:
        shared = False
    return {"versions": versions(), "shared": shared, "problem": _unwritable(marker, shared) or _unreadable(data, root)}


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
        return f"cannot read its data: {one_line(error)}"
    return None
