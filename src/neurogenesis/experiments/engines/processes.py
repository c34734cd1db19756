"""Processes that do one run each: starting them, doing the run, and the reason of a failure."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path

from filelock import FileLock, Timeout

from ...files import replace_file
from ..errors import UsageError, one_line
from ..record import FAILURE_FILE, LOCK_FILE, LOG_FILE, SETTINGS_FILE, Epoch
from ..signals import Interrupted, delay_ctrl_c
from . import Job, Place

_PRELOADED = ["neurogenesis.experiments.run", "neurogenesis.growing.grower", "torch._dynamo"]  # optimizers need it
_SOCKET_PATH = 70  # bytes of the directory's path; the path of a socket may have about 100


def worker_context() -> BaseContext:
    """Fork workers from a process that has imported torch and the training code, where the system supports it."""
    too_long = len(os.fsencode(tempfile.gettempdir())) > _SOCKET_PATH  # where the fork server has its socket
    if "forkserver" not in multiprocessing.get_all_start_methods() or too_long:
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


def start_worker(context: BaseContext, job: Job, place: Place) -> BaseProcess:
    """Start a process for one run."""
    process: BaseProcess = context.Process(target=work, args=(job, place), daemon=True)  # type: ignore[attr-defined]
    with _ignoring_ctrl_c():
        process.start()
    return process


def work(job: Job, place: Place) -> None:
    """Do one run in this process, with its output in a log file."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    job.directory.mkdir(parents=True, exist_ok=True)
    with (job.directory / LOG_FILE).open("a") as log:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(log.fileno(), stream.fileno())
    try:
        for _ in epochs_of(job, place):
            pass
    except UsageError as error:
        sys.exit(one_line(error))
    except Interrupted:
        sys.exit(128 + signal.SIGTERM)


def epochs_of(job: Job, place: Place) -> Iterator[Epoch]:
    """Do a job in this process, epoch by epoch."""
    with delay_ctrl_c():
        from ..run import run_epochs

    return run_epochs(
        job.settings, job.directory, root=place.root, device=place.device, threads=place.threads, until=job.until
    )


def _end_with_parent() -> None:
    """Exit when the sweep is killed: its next start must not find this run still active."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


@contextmanager
def _ignoring_ctrl_c() -> Iterator[None]:
    """Start processes that ignore Ctrl-C: the terminal sends it to the sweep as well, which asks them to save."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # before, because it unblocks signals when it starts
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def failure_reason(directory: Path, code: int) -> str:
    """Why a run failed, in one line; written to its directory if the run did not do that itself."""
    failure, log = directory / FAILURE_FILE, directory / LOG_FILE
    if failure.exists():
        return failure.read_text("utf-8", "replace").strip().splitlines()[-1]
    if code > 0:
        output = log.read_text("utf-8", "replace").strip().splitlines() if log.exists() else []
        return refused(directory, output[-1] if output else f"ended with code {code}")
    return write_failure(directory, f"killed by {signal.Signals(-code).name}")


def refused(directory: Path, reason: str) -> str:
    """Why a run was not started; written to its directory unless that may be the run of another process."""
    return reason if (directory / SETTINGS_FILE).exists() else write_failure(directory, reason)


def write_failure(directory: Path, reason: str) -> str:
    """Write why a run failed to its directory, unless another process is writing to it; the reason."""
    try:
        with FileLock(directory / LOCK_FILE, timeout=0):
            replace_file(directory / FAILURE_FILE, lambda path: path.write_text(reason + "\n", "utf-8"))
    except Timeout:  # another process is writing to it
        pass
    except OSError as error:
        return f"{reason}; {error}"
    return reason
