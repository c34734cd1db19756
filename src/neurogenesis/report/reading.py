"""Read the records of runs; skip what is incomplete or foreign, and remember why."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ..experiments.errors import UsageError
from ..experiments.parsing import INVALID, from_json, parse
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
    Step,
    StudyRecord,
)
from .against_static import compares_with_static
from .runs import STATES, Found, Run, Search, Skipped, State, Study
from .steps import summarize, summarize_epochs

T = TypeVar("T")
_Groups = dict[tuple[Path | None, str], list[Run]]  # by the directory of the study, or else by preset

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
    if not any(run.state not in ("missing", "unreadable") for run in reader.runs.values()):
        reasons = "".join(f"\n  {skipped}" for skipped in reader.skipped)
        raise UsageError(
            f"no runs in {', '.join(map(str, paths))}: give directories of runs or sweeps, or any above them{reasons}"
        )
    return Found(paths, reader.grouped(), list(reader.skipped))


@dataclass
class _Reader:
    """What was found so far, by resolved directory, so that nothing is read twice."""

    skipped: dict[Skipped, None] = field(default_factory=dict)
    runs: dict[Path, Run] = field(default_factory=dict)
    parents: dict[Path, Path | None] = field(default_factory=dict)
    """The study or search that a run, or the study that a search is part of."""
    studies: dict[Path, StudyRecord] = field(default_factory=dict)
    searches: dict[Path, SearchRecord] = field(default_factory=dict)
    visited: set[Path] = field(default_factory=set)

    def skip(self, path: Path, reason: str) -> None:
        self.skipped[Skipped(path, reason)] = None

    def search(self, directory: Path, parent: Path | None) -> bool:
        """Read the runs in and below a directory of a study or search; whether there was any record."""
        place = directory.resolve()
        if place in self.visited:
            return True
        self.visited.add(place)
        try:
            entries = sorted(directory.iterdir())
        except OSError as error:
            self.skip(directory, f"cannot be read: {error.strerror}")
            return True
        if self._read_study(directory):
            parent = place
        if search := self._optional(directory / SEARCH_FILE, SearchRecord):
            self.searches[place], self.parents[place] = search, parent
            parent = place
        has_files = any(entry.name in _FILES for entry in entries)
        if has_files and self._read_run(directory, parent):
            return True
        earlier_report = bool(entries) and all(entry.suffix in _REPORTS for entry in entries)
        foreign, found = [], parent == place or earlier_report or has_files
        for entry in entries:
            if entry.name.startswith(".") or entry.name in _OWN:
                continue
            if entry.is_dir():
                has_record = self.search(entry, parent)
                found |= has_record
                foreign += [] if has_record else [(entry, _NOT_A_RUN)]
            elif entry.suffix not in _REPORTS:
                foreign.append((entry, "is not part of a run"))
        for path, reason in foreign if found else ():
            self.skip(path, reason)
        return found

    def _read_study(self, directory: Path) -> bool:
        """Read study.json, if there is one; its runs are missing until they are found."""
        place = directory.resolve()
        record = self._optional(directory / STUDY_FILE, StudyRecord)
        if record is not None and place not in self.studies:
            self.studies[place] = record
            for name, settings in record.runs.items():
                run = (directory / name).resolve()
                self.runs.setdefault(run, Run(directory / name, RecordedSettings(settings), "missing"))
                self.parents[run] = place
        return record is not None

    def _read_run(self, directory: Path, parent: Path | None) -> bool:
        """Read the run in a directory; whether there is one."""
        place = directory.resolve()
        failure, stopped = (_last_line(directory / name) for name in (FAILURE_FILE, STOPPED_FILE))
        known = self.runs.get(place)
        settings = self._optional(directory / SETTINGS_FILE, RecordedSettings)
        if settings is None and not (directory / SETTINGS_FILE).is_file():
            if known and failure:  # it failed before it had a record
                self.runs[place] = replace(known, state="failed", failure=failure)
                return True
            self.skip(directory, f"has no {SETTINGS_FILE}")
        if settings is None:
            if known:
                self.runs[place] = replace(known, state="unreadable")
            return False
        result = self._optional(directory / RESULT_FILE, Result)
        epochs = list(self._lines(directory / EPOCHS_FILE, Epoch))
        environment = self._optional(directory / ENVIRONMENT_FILE, Environment)
        state: State = "finished" if result else "unfinished"
        if state == "unfinished" and (stopped is not None or failure is not None):
            state = "failed" if stopped is None else "stopped"
        reason = {"failed": failure, "stopped": stopped}.get(state) or ""
        self.runs[place] = Run(directory, settings, state, epochs, result, environment, failure=reason)
        self.parents[place] = parent
        return True

    def grouped(self) -> list[Study]:
        """The runs by study, or else by preset, with their steps."""
        widths = sum(len(run.epochs[-1].widths) for run in self.runs.values() if run.epochs)
        limit = max(50, min(_POINTS, _ALL_POINTS // max(1, widths)))
        against_static = {
            place
            for place, record in self.studies.items()
            if compares_with_static(map(RecordedSettings, record.runs.values()))
        }
        without_steps = against_static | {self.parents[place] for place in self.searches}
        groups: _Groups = {}
        searched: dict[Path, list[Run]] = {}
        for parent, run in self._unique_runs():
            if parent in self.searches:
                searched.setdefault(parent, []).append(run)
            elif parent in without_steps and parent is not None:
                groups.setdefault((parent, ""), []).append(run)
            else:
                groups.setdefault((parent, run.settings.preset), []).append(self._with_steps(run, limit))
        studies = self._with_searches(groups, searched)
        directories = [parent for parent, _ in groups]
        for (parent, preset), runs in groups.items():
            name = self.studies[parent].study if parent else preset
            title = (self.studies[parent].title or name) if parent else preset
            suffix = f", {preset}" if parent and directories.count(parent) > 1 else ""
            studies.append(Study(name + suffix, title + suffix, runs, parent in against_static))
        return studies

    def _with_searches(self, groups: _Groups, searched: dict[Path, list[Run]]) -> list[Study]:
        """Each search with the networks that were grown beside it: those of its study, or else of its preset."""
        found: dict[Path, list[Search]] = {}
        for place, runs in searched.items():
            chosen = [run for run in runs if run.path.parent.name == CHOSEN_DIRECTORY]
            trials = sorted((run for run in runs if run not in chosen), key=_by_number)
            search = Search(place, self.searches[place], trials, chosen)
            found.setdefault(self.parents[place] or place, []).append(search)
        studies = []
        for place, searches in found.items():
            preset = searches[0].settings.preset
            if place in self.studies:
                beside = groups.pop((place, ""), [])
                name, title = self.studies[place].study, self.studies[place].title
            else:
                beside = [run for run in groups.get((None, preset), []) if run.grows]
                name, title = f"tune-{preset}", f"Search for {' and '.join(searches[0].record.space)} on {preset}"
            runs = [*beside, *(run for search in searches for run in search.runs)]
            studies.append(Study(name, title, runs, searches=searches))
        return studies

    def _unique_runs(self) -> Iterator[tuple[Path | None, Run]]:
        """Each run once, with its study or search: a copy in the same study would count as another seed."""
        known: dict[tuple[Path | None, str], Run] = {}
        for place, run in sorted(self.runs.items(), key=lambda item: STATES.index(item[1].state)):
            parent = self.parents[place]
            # A search may propose the same settings again.
            content = str(run.path) if parent in self.searches else json.dumps(dict(run.settings), sort_keys=True)
            first = known.setdefault((parent, content), run)
            if first is not run:
                self.skip(run.path, f"is a copy of {first.path}")
        kept = set(known.values())
        yield from ((self.parents[place], run) for place, run in self.runs.items() if run in kept)

    def _with_steps(self, run: Run, limit: int) -> Run:
        initial = run.result.initial_widths if run.result else {}
        has_steps = run.state not in ("missing", "unreadable")
        summary = summarize(self._lines(run.path / STEPS_FILE, Step) if has_steps else (), initial, limit)
        return replace(run, steps=summary if summary.count else summarize_epochs(run.epochs, initial, limit))

    def _optional(self, path: Path, kind: type[T]) -> T | None:
        """The record in a file; None if there is none, or none of this kind."""
        if not path.is_file():
            return None
        convert: Callable[[Any], T] = kind if issubclass(kind, RecordedSettings) else partial(parse, kind)
        try:
            return convert(from_json(path.read_text(encoding="utf-8")))
        except OSError as error:
            self.skip(path, f"cannot be read: {error.strerror}")
        except json.JSONDecodeError:
            self.skip(path, "is not valid JSON, or incomplete")
        except INVALID as error:
            self.skip(path, f"does not have the expected content ({error})")
        return None

    def _lines(self, path: Path, kind: type[T]) -> Iterator[T]:
        """The valid lines of a file; a run that was killed may leave an incomplete one at the end."""
        invalid: list[int] = []
        try:
            for number, line in enumerate(_lines_of(path), 1):
                try:
                    yield parse(kind, from_json(line))
                except INVALID:
                    invalid.append(number)
        except OSError as error:
            self.skip(path, f"cannot be read: {error.strerror}")
        if invalid:
            more = f", and {len(invalid) - 1} more" if len(invalid) > 1 else ""
            self.skip(path, f"line {invalid[0]} is incomplete or invalid{more}")


def _by_number(run: Run) -> tuple[int, str]:
    return len(run.path.name), run.path.name


def _lines_of(path: Path) -> Iterator[str]:
    if path.is_file():
        with path.open(encoding="utf-8", errors="replace") as file:
            yield from file


def _last_line(path: Path) -> str | None:
    """The last line of a file; None if it does not exist."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2][:300]
    except OSError:
        return None if not path.exists() else ""
