"""A sweep: all runs of a study, several at a time, each in its own process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from filelock import FileLock

from .errors import UsageError
from .files import damaged, read_json, write_json, writing_to
from .parsing import INVALID, parse, to_json
from .progress import SweepProgress
from .record import FAILURE_FILE, LOCK_FILE, SETTINGS_FILE, STUDY_FILE, Result, StudyRecord
from .run_directory import read_result
from .settings import Settings
from .signals import sigterm_as_ctrl_c
from .workers import failure_reason, start_worker, worker_context


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_workers(workers: int, threads: int) -> None:
    """Raise UsageError if there would be more threads than cores: they would slow each other down."""
    if workers < 1 or threads < 1:
        raise UsageError("--workers and --threads: expected positive numbers")
    if workers * threads > cores():
        raise UsageError(f"--workers {workers} times --threads {threads} is more than the {cores()} available cores")


def record_study(out: Path, name: str, title: str, runs: Sequence[Settings]) -> None:
    """Add the runs to study.json, so that a report knows which ones are missing; UsageError if it is another study."""
    with writing_to(out):
        out.mkdir(parents=True, exist_ok=True)
    path = out / STUDY_FILE
    with FileLock(out / LOCK_FILE):
        content = read_json(path)
        try:
            present = StudyRecord(study=name, title=title, runs={}) if content is None else parse(StudyRecord, content)
        except INVALID as error:
            raise damaged(path, f"is not the record of a study ({type(error).__name__}: {error})") from None
        if present.study != name:
            raise UsageError(f"{out} holds the study {present.study}: choose another --out, or delete it")
        records = {settings.label: settings.record() for settings in runs}
        changed = [label for label, record in records.items() if present.runs.get(label, record) != record]
        if changed:
            raise UsageError(f"{out} has {changed[0]} with other settings: choose another --out, or delete it")
        updated = StudyRecord(study=name, title=present.title, runs={**present.runs, **records})
        write_json(path, to_json(updated))


def result_of(settings: Settings, out: Path) -> Result | None:
    """The result of a finished run with exactly these settings; if the record is damaged, the run itself will fail."""
    directory = out / settings.label
    try:
        result = read_result(directory)
        same = result is not None and read_json(directory / SETTINGS_FILE) == settings.record()
    except UsageError:
        return None
    return result if same else None


def sweep(
    runs: Sequence[Settings],
    out: Path,
    *,
    workers: int,
    threads: int = 1,
    root: Path | None = None,
    device: str = "cpu",
    show: Callable[[SweepProgress], None] = lambda progress: None,
) -> SweepProgress:
    """Run everything that is not finished, each run in a directory named by its label. Failures do not stop the others.

    Args:
        runs: the settings of each run.
        out: the directory of the runs' directories.
        workers: number of runs at a time.
        threads: number of threads of each run.
        root: the directory of data sets, as in `neurogenesis.experiments.data.load`.
        device: the device to train on.
        show: called whenever a run starts or ends.
    """
    check_workers(workers, threads)
    finished = [settings for settings in runs if result_of(settings, out) is not None]
    waiting = [settings for settings in runs if settings not in finished]
    progress = SweepProgress(len(runs), finished=[settings.label for settings in finished])
    show(progress)
    context = worker_context()
    active: dict[BaseProcess, str] = {}
    with sigterm_as_ctrl_c(), _terminating(active):
        while waiting or active:
            while waiting and len(active) < workers:
                settings = waiting.pop(0)
                (out / settings.label / FAILURE_FILE).unlink(missing_ok=True)
                process = start_worker(context, settings, out / settings.label, root, device, threads)
                active[process] = settings.label
                progress.running.append(settings.label)
                show(progress)
            wait([process.sentinel for process in active])
            for process in [process for process in active if not process.is_alive()]:
                label = active.pop(process)
                process.join()
                progress.running.remove(label)
                if process.exitcode == 0:
                    progress.finished.append(label)
                else:
                    progress.failed[label] = failure_reason(out / label, process.exitcode or 0)
                show(progress)
    return progress


@contextmanager
def _terminating(active: dict[BaseProcess, str]) -> Iterator[None]:
    """If the sweep is interrupted, ask its runs to save and stop, and wait until they have."""
    try:
        yield
    except BaseException:
        for process in active:
            process.terminate()
        for process in active:
            process.join()
        raise
