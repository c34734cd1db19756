"""All runs of a study, several at a time, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from .errors import Mistake
from .files import replace
from .presets import Settings, settings_from
from .records import read_json, write_json, writing_to
from .saying import say


@dataclass
class Progress:
    """How far a sweep is: labels of runs."""

    total: int
    running: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Why, in a line, by label."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check(workers: int, threads: int) -> None:
    """Refuse more threads than cores: they would hold each other up."""
    if workers < 1 or threads < 1:
        raise Mistake("--workers and --threads: expected positive numbers")
    if workers * threads > cores():
        raise Mistake(f"--workers {workers} times --threads {threads} is more than the {cores()} cores there are")


def claim(out: Path, name: str, title: str, runs: Sequence[Settings]) -> None:
    """Note in the directory what the sweep consists of, so that missing runs can be told; refuse another study's."""
    with writing_to(out):
        out.mkdir(parents=True, exist_ok=True)
    with FileLock(out / "lock"):
        present = read_json(out / "study.json") or {"study": name, "title": title, "runs": {}}
        if present["study"] != name:
            raise Mistake(f"{out} holds the study {present['study']}: choose another --out, or delete it")
        own = {settings.label: settings.record() for settings in runs}
        changed = [label for label, record in own.items() if present["runs"].get(label, record) != record]
        if changed:
            raise Mistake(f"{out} has {changed[0]} with other settings: choose another --out, or delete it")
        write_json(out / "study.json", {**present, "runs": {**present["runs"], **own}})


def result_of(settings: Settings, out: Path) -> dict[str, Any] | None:
    """The result of a finished run with these very settings; of others the run itself will complain."""
    try:
        result = read_json(out / settings.label / "result.json")
        same = result is not None and read_json(out / settings.label / "settings.json") == settings.record()
    except Mistake:
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
    tell: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Make every run that is not finished, in a directory of its label each; failures do not stop the others.

    Args:
        runs: their settings.
        out: the directory of the runs' directories.
        workers: how many at a time.
        threads: of each.
        root: where data sets are, as in `neurogenesis.experiments.data.load`.
        device: what to train on.
        tell: called whenever a run starts or ends.
    """
    check(workers, threads)
    progress = Progress(len(runs))
    finished = [settings for settings in runs if result_of(settings, out) is not None]
    progress.finished += [settings.label for settings in finished]
    waiting = [settings for settings in runs if settings not in finished]
    tell(progress)
    processes = _context()
    at_work: dict[BaseProcess, str] = {}
    with _ending(at_work):
        while waiting or at_work:
            while waiting and len(at_work) < workers:
                settings = waiting.pop(0)
                arguments = (settings.record(), str(out / settings.label), root, device, threads)
                (out / settings.label / "failure.txt").unlink(missing_ok=True)
                process = processes.Process(target=work, args=arguments, daemon=True)  # type: ignore[attr-defined]
                with _without_ctrl_c():
                    process.start()
                at_work[process] = settings.label
                progress.running.append(settings.label)
                tell(progress)
            wait([process.sentinel for process in at_work])
            for process in [process for process in at_work if not process.is_alive()]:
                label = at_work.pop(process)
                process.join()
                progress.running.remove(label)
                if process.exitcode == 0:
                    progress.finished.append(label)
                else:
                    progress.failed[label] = _why(out / label, process.exitcode or 0)
                tell(progress)
    return progress


def work(record: dict[str, Any], directory: str, root: Path | None, device: str, threads: int) -> None:
    """One run in this process, with its output in a file of its directory."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from .training import Interrupted, run

    out = Path(directory)
    out.mkdir(parents=True, exist_ok=True)
    with (out / "log.txt").open("a") as log:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(log.fileno(), stream.fileno())
    try:
        run(settings_from(record), out, root=root, device=device, threads=threads)
    except Mistake as mistake:
        sys.exit(" ".join(str(mistake).split()))
    except Interrupted:
        sys.exit(128 + signal.SIGTERM)


def _context() -> BaseContext:
    """Where it can be, processes are forked from one that has imported torch already and done nothing else."""
    too_long = len(os.fsencode(tempfile.gettempdir())) > 70  # its socket lies there, and a socket's path is short
    if "forkserver" not in multiprocessing.get_all_start_methods() or too_long:
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["neurogenesis.experiments.training"])
    return context


def _end_with_parent() -> None:
    """Whoever kills the sweep means its runs too: a second sweep must not meet them."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


@contextmanager
def _ending(at_work: dict[BaseProcess, str]) -> Iterator[None]:
    """Let runs save themselves when the sweep is interrupted, by Ctrl-C or by the system."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    in_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, interrupt) if in_main else None
    try:
        yield
    except BaseException:
        for process in at_work:
            process.terminate()
        for process in at_work:
            process.join()
        raise
    finally:
        if in_main:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Processes that begin here never see Ctrl-C, which reaches the sweep as well; it then lets them save."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # which lets signals through again when it begins
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _why(directory: Path, code: int) -> str:
    """Why a run failed, in a line; noted in its directory where it could not do so itself."""
    failure, log = directory / "failure.txt", directory / "log.txt"
    if failure.exists():
        return failure.read_text("utf-8", "replace").strip().splitlines()[-1]
    if code > 0:
        said = log.read_text("utf-8", "replace").strip().splitlines() if log.exists() else []
        why = said[-1] if said else f"ended with code {code}"
        if (directory / "settings.json").exists():  # somebody else's run, it may be
            return why
    else:
        why = f"killed by {signal.Signals(-code).name}"
    try:
        with FileLock(directory / "lock", timeout=0):
            replace(failure, lambda path: path.write_text(why + "\n", "utf-8"))
    except Timeout:  # somebody else writes there
        pass
    except OSError as error:
        return f"{why}; {error}"
    return why


@contextmanager
def shown(quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """What shows a sweep: a progress bar in a terminal, else a line per run."""
    if quiet:
        yield lambda progress: None
    elif sys.stdout.isatty():
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Bar(*columns) as bar:
            task = bar.add_task("")

            def update(progress: Progress) -> None:
                failed = f"[red]{len(progress.failed)} failed[/red]  " if progress.failed else ""
                done = len(progress.finished) + len(progress.failed)
                bar.update(task, total=progress.total, completed=done, description=failed + ", ".join(progress.running))

            yield update
    else:
        told: set[str] = set()

        def tell(progress: Progress) -> None:
            done = [*progress.finished, *progress.failed]
            for label in done:
                if label not in told:
                    told.add(label)
                    how = f"failed: {progress.failed[label]}" if label in progress.failed else "finished"
                    say(f"[{len(told)}/{progress.total}] {label} {how}")

        yield tell
