"""A sweep: all runs of a study that are not finished, done by an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from graphlib import TopologicalSorter
from heapq import heappop, heappush
from pathlib import Path, PurePosixPath

from filelock import FileLock

from .building import shape_of
from .engines import HERE, Engine, Job, Place
from .engines.processes import write_failure
from .errors import UsageError
from .files import read_json, read_record, write_json, writing_to
from .parsing import to_json
from .progress import SweepProgress
from .record import FAILURE_FILE, LOCK_FILE, SETTINGS_FILE, STUDY_FILE, Result, StudyRecord
from .run_directory import read_result
from .settings import Settings
from .signals import sigterm_as_ctrl_c


def record_study(out: Path, name: str, title: str, runs: Mapping[str, Settings]) -> None:
    """Add the runs to study.json, so that a report knows which ones are missing; UsageError if it is another study."""
    with writing_to(out):
        out.mkdir(parents=True, exist_ok=True)
    path = out / STUDY_FILE
    with FileLock(out / LOCK_FILE):
        present = read_record(path, StudyRecord, "the record of a study")
        present = present or StudyRecord(study=name, title=title, runs={})
        if present.study != name:
            raise UsageError(f"{out} holds the study {present.study}: choose another --out, or delete it")
        records = {label: settings.record() for label, settings in runs.items()}
        changed = [label for label, record in records.items() if present.runs.get(label, record) != record]
        if changed:
            raise UsageError(f"{out} has {changed[0]} with other settings: choose another --out, or delete it")
        updated = StudyRecord(study=name, title=present.title, runs={**present.runs, **records})
        write_json(path, to_json(updated))


def result_of(settings: Settings, directory: Path) -> Result | None:
    """The result of a finished run with exactly these settings; if the record is damaged, the run itself will fail."""
    try:
        result = read_result(directory)
        same = result is not None and read_json(directory / SETTINGS_FILE) == settings.record()
    except UsageError:
        return None
    return result if same else None


def with_shape(settings: Settings, directory: Path) -> Settings:
    """Settings with the shape that the run next to it grew; unchanged if that run is not finished."""
    source = settings.source
    grown = None if source is None else result_of(source, directory.with_name(source.label))
    if grown is None:
        return settings
    return replace(settings, shape=shape_of(settings, grown.widths))


def sweep(
    runs: Mapping[str, Settings],
    out: Path,
    engine: Engine,
    place: Place = HERE,
    show: Callable[[SweepProgress], None] = lambda progress: None,
) -> SweepProgress:
    """Run everything that is not finished, each run in the directory of its name. Failures do not stop the others.

    A run of a shape that another one grows waits for it.

    Args:
        runs: the settings of each run, by name.
        out: the directory of the runs' directories.
        engine: does the runs, such as `neurogenesis.experiments.engines.pool.pool(workers=2)`.
        place: data, device and number of threads of all runs.
        show: called whenever a run starts or ends.
    """
    finished = [name for name, settings in runs.items() if result_of(with_shape(settings, out / name), out / name)]
    waiting = _order({name: runs[name] for name in runs.keys() - set(finished)})
    places = {name: place for place, name in enumerate(runs)}
    ready: list[tuple[int, str]] = []  # a heap, so that runs are done in the order of the study
    progress = SweepProgress(len(runs), finished=finished)

    def next_ready() -> str | None:
        for name in waiting.get_ready():
            heappush(ready, (places[name], name))
        return heappop(ready)[1] if ready else None

    def next_job() -> Job | None:
        while (name := next_ready()) is not None:
            settings = with_shape(runs[name], out / name)
            if settings.source is None or settings.shape is not None:
                (out / name / FAILURE_FILE).unlink(missing_ok=True)
                progress.running.append(name)
                show(progress)
                return Job(name, settings, out / name)
            progress.failed[name] = _not_run(name, settings, out, progress)
            waiting.done(name)
            show(progress)
        return None

    def ended(job: Job, reason: str | None) -> None:
        progress.running.remove(job.name)
        waiting.done(job.name)
        if reason is None:
            progress.finished.append(job.name)
        else:
            progress.failed[job.name] = reason
        show(progress)

    show(progress)
    with sigterm_as_ctrl_c():
        engine(next_job, ended, place)
    return progress


def _order(runs: Mapping[str, Settings]) -> TopologicalSorter[str]:
    """An order in which a run comes after the run that grows its shape."""
    order: TopologicalSorter[str] = TopologicalSorter()
    for name, settings in runs.items():
        source = _source_name(name, settings)
        order.add(name, *([source] if source is not None and source in runs else []))
    order.prepare()
    return order


def _source_name(name: str, settings: Settings) -> str | None:
    """The name of the run that grows the shape of a run."""
    return None if settings.source is None else PurePosixPath(name).with_name(settings.source.label).as_posix()


def _not_run(name: str, settings: Settings, out: Path, progress: SweepProgress) -> str:
    """Why a run whose shape was not grown is not started; also written to its directory."""
    source = _source_name(name, settings)
    assert source is not None
    why = f"failed: {progress.failed[source]}" if source in progress.failed else "is not finished"
    with writing_to(out / name):
        (out / name).mkdir(parents=True, exist_ok=True)
    return write_failure(out / name, f"not run: it needs the final shape of {source}, which {why}")
