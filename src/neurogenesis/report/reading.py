"""Read the records of runs; skip what is incomplete or foreign, and remember why."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from ..experiments.errors import UsageError
from ..experiments.parsing import INVALID, parse
from ..experiments.record import (
    CHOSEN_DIRECTORY,
    ENVIRONMENT_FILE,
    EPOCHS_FILE,
    FAILURE_FILE,
    LOCK_FILE,
    REPORTED_FILES,
    RESULT_FILE,
    SEARCH_FILE,
    SETTINGS_FILE,
    STEPS_FILE,
    STOPPED_FILE,
    STORAGE_FILE,
    STUDY_FILE,
    Environment,
    Epoch,
    RecordedSettings,
    Result,
    SearchRecord,
    Sizes,
    Step,
    StudyRecord,
)
from .against_static import compares_with_static
from .names import is_static, strategy_name
from .runs import STATES, Found, Run, Search, Skipped, State, Study
from .steps import StepSummary, summarize

T = TypeVar("T")

_FILES = set(REPORTED_FILES)
_REPORTS = (".html", ".md", ".png", ".svg", ".pdf")  # reports, which are often in the directories of runs
_POINTS, _ALL_POINTS = 400, 100_000  # per width, and in the whole report
_OWN = {STUDY_FILE, SEARCH_FILE, STORAGE_FILE, LOCK_FILE, *_FILES}
_NOT_A_RUN = "contains no record of a run"


def read(paths: Sequence[Path]) -> Found:
    """The runs in and below some directories.

    Raises:
        UsageError: no run was found.
    """
    reader = _Reader()
    for path in paths:
        if not path.is_dir():
            reader.skip(path, "is not a directory" if path.exists() else "does not exist")
        elif not reader.search(path, None):
            reader.skip(path, _NOT_A_RUN)
    if not any(run.state not in ("missing", "unreadable") for _, run in reader.found.values()):
        reasons = "".join(f"\n  {skipped}" for skipped in reader.skipped)
        raise UsageError(
            f"no runs in {', '.join(map(str, paths))}: give directories of runs or sweeps, or any above them{reasons}"
        )
    return Found(paths, reader.studies(), reader.skipped)


class _Reader:
    def __init__(self) -> None:
        self.skipped: list[Skipped] = []
        self.found: dict[Path, tuple[Path | None, Run]] = {}  # study and run by resolved path, so none is read twice
        self._studies: dict[Path, StudyRecord] = {}  # by resolved directory
        self._searches: dict[Path, tuple[Path | None, SearchRecord]] = {}  # with the study it is part of
        self._visited: set[Path] = set()

    def skip(self, path: Path, reason: str) -> None:
        if (skipped := Skipped(path, reason)) not in self.skipped:
            self.skipped.append(skipped)

    def search(self, directory: Path, study: Path | None) -> bool:
        """Read the runs in and below a directory of a study; whether there was any record."""
        if directory.resolve() in self._visited:
            return True
        self._visited.add(directory.resolve())
        try:
            entries = sorted(directory.iterdir())
        except OSError as error:
            self.skip(directory, f"cannot be read: {error.strerror}")
            return True
        names = {entry.name for entry in entries}
        if STUDY_FILE in names and self._read_study(directory):
            study = directory
        if SEARCH_FILE in names and self._read_search(directory, study):
            study = directory
        if names & _FILES and self._read_run(directory, study):
            return True
        earlier_report = bool(entries) and all(entry.suffix in _REPORTS for entry in entries)
        foreign, found = [], study == directory or earlier_report or bool(names & _FILES)
        for entry in entries:
            if entry.name.startswith(".") or entry.name in _OWN:
                continue
            if entry.is_dir():
                has_record = self.search(entry, study)
                found |= has_record
                foreign += [] if has_record else [(entry, _NOT_A_RUN)]
            elif entry.suffix not in _REPORTS:
                foreign.append((entry, "is not part of a run"))
        if found:
            for path, reason in foreign:
                self.skip(path, reason)
        return found

    def _read_study(self, directory: Path) -> bool:
        """Read study.json; its runs are missing until they are found."""
        place = directory.resolve()
        record = self._json(directory / STUDY_FILE, _parse_study)
        if record is not None and place not in self._studies:
            self._studies[place] = record
            for name, settings in record.runs.items():
                path = directory / name
                missing = Run(path, RecordedSettings(settings), "missing")
                _, run = self.found.get(path.resolve(), (None, missing))
                self.found[path.resolve()] = (place, run)
        return record is not None

    def _read_search(self, directory: Path, study: Path | None) -> bool:
        record = self._json(directory / SEARCH_FILE, _parse_search)
        if record is not None:
            self._searches[directory.resolve()] = (study.resolve() if study else None, record)
        return record is not None

    def _read_run(self, directory: Path, study: Path | None) -> bool:
        """Read the run in a directory; whether there is one."""
        place = directory.resolve()
        failed = (directory / FAILURE_FILE).exists()
        failure = _last_line(directory / FAILURE_FILE) if failed else ""
        settings = None
        if (directory / SETTINGS_FILE).is_file():
            settings = self._json(directory / SETTINGS_FILE, RecordedSettings)
        elif place in self.found and failure:  # it failed before it had a record
            self._update(place, state="failed", failure=failure)
            return True
        else:
            self.skip(directory, f"has no {SETTINGS_FILE}")
        if settings is None:
            if place in self.found:
                self._update(place, state="unreadable")
            return False
        result = self._optional(directory / RESULT_FILE, Result)
        stopped = (directory / STOPPED_FILE).exists()
        failure = _last_line(directory / STOPPED_FILE) if stopped else failure
        state: State = (
            "finished" if result is not None else "stopped" if stopped else "failed" if failed else "unfinished"
        )
        epochs = list(self._lines(directory / EPOCHS_FILE, Epoch))
        environment = self._optional(directory / ENVIRONMENT_FILE, Environment)
        failure = failure if state in ("failed", "stopped") else ""
        run = Run(directory, settings, state, epochs, result, environment, failure=failure)
        self.found[place] = (study.resolve() if study else None, run)
        return True

    def _update(self, place: Path, **changes: Any) -> None:
        study, run = self.found[place]
        self.found[place] = (study, replace(run, **changes))

    def studies(self) -> list[Study]:
        """The runs by study, or else by preset, with their steps."""
        widths = sum(len(run.epochs[-1].widths) for _, run in self.found.values() if run.epochs)
        limit = max(50, min(_POINTS, _ALL_POINTS // max(1, widths)))
        against_static = [
            study
            for study, record in self._studies.items()
            if compares_with_static(map(RecordedSettings, record.runs.values()))
        ]
        groups: dict[tuple[Path | None, str], list[Run]] = {}
        searched: dict[Path, list[Run]] = {}
        for study, run in self._unique_runs():
            if study in self._searches:
                searched.setdefault(study, []).append(run)
            elif study in against_static or self._has_searches(study):  # it shows no steps
                groups.setdefault((study, ""), []).append(run)
            else:
                groups.setdefault((study, run.settings.preset), []).append(self._with_steps(run, limit))
        with_searches = self._with_searches(groups, searched)
        directories = [study for study, _ in groups]
        studies = []
        for (study, preset), runs in groups.items():
            name = self._studies[study].study if study else preset
            title = (self._studies[study].title or name) if study else preset
            suffix = f", {preset}" if study and directories.count(study) > 1 else ""
            studies.append(Study(name + suffix, title + suffix, runs, study in against_static))
        return [*with_searches, *studies]

    def _has_searches(self, study: Path | None) -> bool:
        return study is not None and any(parent == study for parent, _ in self._searches.values())

    def _with_searches(
        self, groups: dict[tuple[Path | None, str], list[Run]], searched: dict[Path, list[Run]]
    ) -> list[Study]:
        """Each search with the networks that were grown beside it: those of its study, or else of its preset."""
        found: dict[Path, list[Search]] = {}
        for place, runs in searched.items():
            parent, record = self._searches[place]
            search = Search(
                place,
                record,
                sorted(
                    (run for run in runs if run.path.parent.name != CHOSEN_DIRECTORY),
                    key=lambda run: (len(run.path.name), run.path.name),
                ),
                [run for run in runs if run.path.parent.name == CHOSEN_DIRECTORY],
            )
            found.setdefault(parent or place, []).append(search)
        studies = []
        for place, searches in found.items():
            runs = [run for search in searches for run in (*search.trials, *search.chosen)]
            preset = searches[0].settings.preset
            if place in self._studies:
                beside = groups.pop((place, ""), [])
                name, title = self._studies[place].study, self._studies[place].title
            else:
                beside = [run for run in groups.get((None, preset), []) if not is_static(strategy_name(run.settings))]
                name, title = f"tune-{preset}", f"Search for {' and '.join(searches[0].record.space)} on {preset}"
            studies.append(Study(name, title, [*beside, *runs], searches=searches))
        return studies

    def _unique_runs(self) -> Iterator[tuple[Path | None, Run]]:
        """Each run once: a copy in the same study would count as another seed."""
        known: dict[tuple[Path | None, str], Run] = {}
        by_state = sorted(self.found.values(), key=lambda pair: STATES.index(pair[1].state))
        for study, run in by_state:
            content = json.dumps(dict(run.settings), sort_keys=True)
            if study in self._searches:  # which may propose the same settings again
                content = str(run.path)
            first = known.setdefault((study, content), run)
            if first is not run:
                self.skip(run.path, f"is a copy of {first.path}")
        kept = set(map(id, known.values()))
        yield from (pair for pair in self.found.values() if id(pair[1]) in kept)

    def _with_steps(self, run: Run, limit: int) -> Run:
        initial = run.result.initial_widths if run.result else {}
        summary = StepSummary()
        if run.state not in ("missing", "unreadable"):
            summary = summarize(self._lines(run.path / STEPS_FILE, Step), initial, limit)
        if not summary.count:
            summary = _summarize_epochs(run.epochs, initial, limit)
        return replace(run, steps=summary)

    def _optional(self, path: Path, kind: type[T]) -> T | None:
        return self._json(path, lambda content: parse(kind, content)) if path.is_file() else None

    def _json(self, path: Path, convert: Callable[[Any], T]) -> T | None:
        try:
            return convert(json.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            self.skip(path, f"cannot be read: {error.strerror}")
        except json.JSONDecodeError:
            self.skip(path, "is not valid JSON, or incomplete")
        except KeyError as error:
            self.skip(path, f"has no {error}")
        except INVALID as error:
            self.skip(path, f"does not have the expected content ({error})")
        return None

    def _lines(self, path: Path, kind: type[T]) -> Iterator[T]:
        """The valid lines of a file; a run that was killed may leave an incomplete one at the end."""
        if not path.is_file():
            return
        invalid: list[int] = []
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                for number, line in enumerate(file, 1):
                    try:
                        yield parse(kind, json.loads(line))
                    except INVALID:
                        invalid.append(number)
        except OSError as error:
            self.skip(path, f"cannot be read: {error.strerror}")
        if invalid:
            more = f", and {len(invalid) - 1} more" if len(invalid) > 1 else ""
            self.skip(path, f"line {invalid[0]} is incomplete or invalid{more}")


def _parse_study(content: Any) -> StudyRecord:
    record = parse(StudyRecord, content)
    for settings in record.runs.values():
        RecordedSettings(settings)
    return record


def _parse_search(content: Any) -> SearchRecord:
    record = parse(SearchRecord, content)
    RecordedSettings(record.settings)
    return record


def _summarize_epochs(epochs: Sequence[Epoch], initial: Sizes, limit: int) -> StepSummary:
    """The sizes after each epoch, where there are no steps; they say nothing about cost."""
    steps = (Step(step=epoch.step, widths=epoch.widths) for epoch in epochs)
    return replace(summarize(steps, initial, limit), times=pd.DataFrame())


def _last_line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2][:300]
    except OSError:
        return ""
