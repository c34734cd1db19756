"""A run on disk: a directory that a kill at any moment leaves whole.

==================  ====================================================================================
settings.json       what was asked for
environment.json    versions, device, threads, commit
steps.jsonl         a line per gradient step: loss, widths, parameters, metric and threshold, seconds
epochs.jsonl        a line per epoch: training loss, accuracy, widths, seconds
checkpoint.pt       model, optimizer, schedule and grower after the last epoch
result.json         how it ended; written last
failure.txt         why it failed, if it did
==================  ====================================================================================

Lines are written before the checkpoint, which knows how long the files were: what is longer belongs to steps
that will be done again, and is cut off.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from .errors import Mistake
from .files import replace

LINES = ("steps.jsonl", "epochs.jsonl")
OWN = (*LINES, "settings.json", "environment.json", "checkpoint.pt", "result.json", "failure.txt", "log.txt", "lock")


class Records:
    """The records of one run, in a directory that nobody else writes to meanwhile."""

    def __init__(self, directory: Path):
        self.directory = directory
        self._lines: dict[str, list[str]] = {name: [] for name in LINES}

    @contextmanager
    def opened(self, settings: Mapping[str, Any]) -> Iterator[None]:
        """Hold the directory; it is made if there is none, and refused if it is of other settings."""
        with writing_to(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.directory / "lock", timeout=0)
            try:
                lock.acquire()
            except Timeout:
                raise Mistake(
                    f"{self.directory} is being written by another process: wait for it, or stop it"
                ) from None
        try:
            self._claim(settings)
            yield
        finally:
            lock.release()

    def _claim(self, settings: Mapping[str, Any]) -> None:
        if not self.compare(settings):
            names = sorted(path.name for path in self.directory.iterdir())
            strangers = [name for name in names if name.removesuffix(".part") not in OWN]
            if strangers:
                raise Mistake(f"{self.directory} is not a run (it has {strangers[0]}): choose another --out")
            write_json(self.directory / "settings.json", settings)

    def compare(self, settings: Mapping[str, Any]) -> bool:
        """Whether the directory has settings; refused if they are others."""
        present = read_json(self.directory / "settings.json")
        if present is not None and present != settings:
            differ = [key for key in {**present, **settings} if present.get(key) != settings.get(key)]
            told = ", ".join(f"{key} {present.get(key)} there, {settings.get(key)} here" for key in differ)
            raise Mistake(
                f"{self.directory} holds a run of another configuration ({told}): choose another --out, or delete it"
            )
        return present is not None

    def add(self, name: str, line: Mapping[str, Any]) -> None:
        """Add a line; it is on disk after the next `save`."""
        self._lines[name].append(json.dumps(line, separators=(",", ":")) + "\n")

    def save(self, state: Mapping[str, Any]) -> None:
        """Write the lines since the last time, then the checkpoint that stands for them."""
        with writing_to(self.directory):
            sizes = {name: self._append(name) for name in LINES}
            _replace(self.directory / "checkpoint.pt", lambda path: _save({**state, "sizes": sizes}, path))

    def load(self, device: torch.device) -> dict[str, Any] | None:
        """The checkpoint, with all lines after it cut off; None if there is none."""
        path = self.directory / "checkpoint.pt"
        state: dict[str, Any] | None = None
        sizes = dict.fromkeys(LINES, 0)
        if path.exists():
            try:
                state = torch.load(path, map_location=device, weights_only=True)
                sizes = dict(state["sizes"])
            except Exception as error:
                raise _spoilt(path, f"cannot be read ({type(error).__name__})") from error
        for name, size in sizes.items():
            lines = self.directory / name
            if size > (lines.stat().st_size if lines.exists() else 0):
                raise _spoilt(lines, "is shorter than it was at the last checkpoint")
            if lines.exists():
                with writing_to(self.directory):
                    os.truncate(lines, size)
        return state

    def start(self, environment: Mapping[str, Any]) -> None:
        """Say where it runs, and where it did before if that was elsewhere; an earlier failure is history."""
        path = self.directory / "environment.json"
        before = read_json(path) or {}
        differ = [key for key in environment if before.get(key) != environment[key] and key != "started"]
        if before and differ:
            changes = ", ".join(f"{key} {before.get(key)} before, {environment[key]} now" for key in differ)
            warnings.warn(f"{self.directory} goes on elsewhere ({changes}): results may differ", stacklevel=2)
            environment = {**environment, "earlier": [*before.pop("earlier", []), before]}
        if differ:
            write_json(path, environment)
        (self.directory / "failure.txt").unlink(missing_ok=True)

    def fail(self, why: str) -> None:
        """Say why it failed."""
        _replace(self.directory / "failure.txt", lambda path: path.write_text(why, "utf-8"))

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The lines that are on disk."""
        return [json.loads(line) for line in (self.directory / name).read_text().splitlines()]

    def finish(self, result: Mapping[str, Any]) -> None:
        """Say how it ended."""
        write_json(self.directory / "result.json", result)

    def _append(self, name: str) -> int:
        with (self.directory / name).open("a") as file:
            file.writelines(self._lines[name])
            file.flush()
            os.fsync(file.fileno())
            self._lines[name].clear()
            return file.tell()


def read_json(path: Path) -> dict[str, Any] | None:
    """What a JSON file holds; None if there is none."""
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Mistake(f"cannot read {path}: {error.strerror}") from None
    except ValueError:
        raise _spoilt(path, "is not valid JSON") from None
    if not isinstance(content, dict):
        raise _spoilt(path, "is not a record of ours")
    return content


def _spoilt(path: Path, why: str) -> Mistake:
    return Mistake(f"{path} {why}: delete {path.parent} and run again")


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file, whole or not at all."""
    with writing_to(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    _replace(path, lambda unfinished: unfinished.write_text(json.dumps(value, indent=1) + "\n"))


def _replace(path: Path, write: Callable[[Path], Any]) -> None:
    with writing_to(path.parent):
        replace(path, write)


@contextmanager
def writing_to(directory: Path) -> Iterator[None]:
    """Say where writing failed: a full disk, a directory that cannot be written."""
    try:
        yield
    except OSError as error:
        begun = "; what was saved is whole, and the same command goes on from there"
        begun = begun if (directory / "checkpoint.pt").exists() else ""
        raise Mistake(
            f"cannot write to {directory}: {error.strerror or error}. Make room or choose another --out{begun}"
        ) from error


def _save(state: Mapping[str, Any], path: Path) -> None:
    try:
        with path.open("wb") as file:
            torch.save(state, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):  # a full disk, say, which torch then speaks of as its own error
            raise error.__context__ from None
        raise
