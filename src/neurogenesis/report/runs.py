"""Reading records of runs: whatever is half-written or foreign is left out, and the reason is kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ..experiments.errors import Mistake
from .records import (
    STATES,
    LeftOut,
    Records,
    Run,
    State,
    Study,
    parse_epoch,
    parse_result,
    parse_settings,
    parse_step,
    parse_study,
)
from .trace import Step, trace

T = TypeVar("T")

_RECORDS = ("settings.json", "environment.json", "steps.jsonl", "epochs.jsonl", "result.json", "failure.txt")
_FIGURES = (".html", ".png", ".svg", ".pdf")  # what reports are, which often lie beside the runs
_POINTS, _ALL_POINTS = 400, 100_000  # per width, and in the whole report
_WRONG = (ValueError, KeyError, TypeError, AttributeError, OverflowError)


def read(paths: Sequence[Path]) -> Records:
    """The runs in and below some directories.

    Raises:
        Mistake: no run was found.
    """
    reader = _Reader()
    for path in paths:
        if not path.is_dir():
            reader.leave_out(path, "is no directory" if path.exists() else "does not exist")
        elif not reader.search(path, None):
            reader.leave_out(path, "no records of a run in it")
    if not any(run.state not in ("missing", "unreadable") for _, run in reader.found.values()):
        reasons = "".join(f"\n  {left}" for left in reader.left_out)
        raise Mistake(
            f"no runs in {', '.join(map(str, paths))}: give directories of runs or sweeps, or any above them{reasons}"
        )
    return Records(paths, reader.studies(), reader.left_out)


class _Reader:
    def __init__(self) -> None:
        self.left_out: list[LeftOut] = []
        self.found: dict[Path, tuple[Path | None, Run]] = {}  # by place, so that none is read twice
        self.listed: dict[Path, Mapping[str, Any]] = {}  # study.json by its directory
        self._visited: set[Path] = set()

    def leave_out(self, path: Path, reason: str) -> None:
        if (left := LeftOut(path, reason)) not in self.left_out:
            self.left_out.append(left)

    def search(self, directory: Path, study: Path | None) -> bool:
        """Read the runs in and below a directory; whether there was any record."""
        if directory.resolve() in self._visited:
            return True
        self._visited.add(directory.resolve())
        try:
            entries = sorted(directory.iterdir())
        except OSError as error:
            self.leave_out(directory, f"cannot be read: {error.strerror}")
            return True
        names = {entry.name for entry in entries}
        if "study.json" in names and self._study(directory):
            study = directory
        if names & set(_RECORDS) and self._run(directory, study):
            return True
        drawn = bool(entries) and all(entry.suffix in _FIGURES for entry in entries)  # by an earlier report
        foreign, found = [], study == directory or drawn or bool(names & set(_RECORDS))
        for entry in entries:
            if entry.name.startswith(".") or entry.name in ("study.json", "lock", *_RECORDS):
                continue
            if entry.is_dir():
                known = self.search(entry, study)
                found |= known
                foreign += [] if known else [(entry, "no records of a run in it")]
            elif entry.suffix not in _FIGURES:
                foreign.append((entry, "no record of a run"))
        if found:
            for path, reason in foreign:
                self.leave_out(path, reason)
        return found

    def _study(self, directory: Path) -> bool:
        content = self._json(directory / "study.json", parse_study)
        if content is not None and directory.resolve() not in self.listed:
            self.listed[directory.resolve()] = content
            for name, settings in content["runs"].items():
                path = directory / name
                _, known = self.found.get(path.resolve(), (None, Run(path, settings, "missing")))
                self.found[path.resolve()] = (directory.resolve(), known)
        return content is not None

    def _run(self, directory: Path, study: Path | None) -> bool:
        """Read the run in a directory; whether it is one."""
        place = directory.resolve()
        listed = self.found.get(place)
        why = self._last_line(directory / "failure.txt") if (directory / "failure.txt").exists() else ""
        if not (directory / "settings.json").is_file():
            if listed is not None and why:  # before its records began
                self.found[place] = (listed[0], replace(listed[1], state="failed", failure=why))
                return True
            self.leave_out(directory, "no settings.json")
            settings = None
        else:
            settings = self._json(directory / "settings.json", parse_settings)
        if settings is None:
            if listed is not None:
                self.found[place] = (listed[0], replace(listed[1], state="unreadable"))
            return False
        result = self._optional(directory / "result.json", parse_result)
        failed = (directory / "failure.txt").exists()
        state: State = "finished" if result is not None else "failed" if failed else "unfinished"
        epochs = list(self._lines(directory / "epochs.jsonl", parse_epoch))
        environment = self._optional(directory / "environment.json", dict) or {}
        run = Run(directory, settings, state, epochs, result, environment, failure=why if state == "failed" else "")
        self.found[place] = (study.resolve() if study else None, run)
        return True

    def studies(self) -> list[Study]:
        """The runs by study, or else by preset, with their traces."""
        widths = sum(len(run.epochs[-1].widths) for _, run in self.found.values() if run.epochs)
        limit = max(50, min(_POINTS, _ALL_POINTS // max(1, widths)))
        groups: dict[tuple[Path | None, str], list[Run]] = {}
        for study, run in self._different():
            groups.setdefault((study, run.settings["preset"]), []).append(self._traced(run, limit))
        presets = [study for study, _ in groups]
        found = []
        for (study, preset), runs in groups.items():
            content = self.listed[study] if study else {"study": preset, "title": preset}
            more = f", {preset}" if study and presets.count(study) > 1 else ""
            found.append(Study(content["study"] + more, content["title"] + more, runs))
        return found

    def _different(self) -> Iterator[tuple[Path | None, Run]]:
        """Every run once: copies of it, in the same study or in none, would count as further seeds."""
        known: dict[tuple[Path | None, str], Run] = {}
        ordered = sorted(self.found.values(), key=lambda pair: STATES.index(pair[1].state))
        for study, run in ordered:
            first = known.setdefault((study, json.dumps(run.settings, sort_keys=True)), run)
            if first is not run:
                self.leave_out(run.path, f"the same run as {first.path}")
        kept = set(map(id, known.values()))
        yield from (pair for pair in self.found.values() if id(pair[1]) in kept)

    def _traced(self, run: Run, limit: int) -> Run:
        initial = run.result.initial_widths if run.result else {}
        there = run.state not in ("missing", "unreadable")
        found = trace(self._lines(run.path / "steps.jsonl", parse_step) if there else (), initial, limit)
        if not found.steps:  # the lines of epochs are coarser, but tell the sizes too
            steps = (Step(epoch.step, epoch.widths, {}, {}, 0.0, 0.0, 0.0) for epoch in run.epochs)
            found = replace(trace(steps, initial, limit), cost=None)
        return replace(run, trace=found)

    def _last_line(self, path: Path) -> str:
        try:
            return path.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2][:300]
        except OSError:
            return ""

    def _optional(self, path: Path, parse: Callable[[Any], T]) -> T | None:
        return self._json(path, parse) if path.is_file() else None

    def _json(self, path: Path, parse: Callable[[Any], T]) -> T | None:
        try:
            return parse(json.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            self.leave_out(path, f"cannot be read: {error.strerror}")
        except json.JSONDecodeError:
            self.leave_out(path, "not valid JSON, or cut off")
        except _WRONG as error:
            self.leave_out(path, _named(error))
        return None

    def _lines(self, path: Path, parse: Callable[[Any], T]) -> Iterator[T]:
        """The lines of a file, but for those that cannot be read, of which a killed run leaves one at the end."""
        if not path.is_file():
            return
        wrong: list[int] = []
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                for number, line in enumerate(file, 1):
                    try:
                        yield parse(json.loads(line))
                    except _WRONG:
                        wrong.append(number)
        except OSError as error:
            self.leave_out(path, f"cannot be read: {error.strerror}")
        if wrong:
            more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            self.leave_out(path, f"line {wrong[0]} is cut off or no record{more}")


def _named(error: Exception) -> str:
    return f"no {error}" if isinstance(error, KeyError) else f"not the record that its name promises ({error})"
