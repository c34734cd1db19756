"""The directory of a run, which stays consistent if the process is killed at any moment.

Lines of steps and epochs are written before the checkpoint, which stores how long their files were. Anything beyond
that length belongs to steps that are repeated after resuming, and is removed.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from ..files import PARTIAL_SUFFIX, replace_file
from .errors import UsageError
from .files import damaged, read_json, read_record, write_json, writing_to
from .parsing import from_json, parse, to_json
from .record import (
    CHECKPOINT_FILE,
    ENVIRONMENT_FILE,
    EPOCHS_FILE,
    FAILURE_FILE,
    LOCK_FILE,
    RESULT_FILE,
    RUN_FILES,
    SETTINGS_FILE,
    STEPS_FILE,
    Checkpoint,
    Environment,
    Epoch,
    Result,
    Step,
)

_FILES = {Step: STEPS_FILE, Epoch: EPOCHS_FILE}


class RunDirectory:
    """Writes the record of one run; `locked` keeps other processes out."""

    def __init__(self, path: Path):
        self.path = path
        self._pending: dict[str, list[str]] = {name: [] for name in _FILES.values()}

    @contextmanager
    def locked(self, settings: Mapping[str, Any]) -> Iterator[None]:
        """Create the directory if necessary and lock it; UsageError if it belongs to other settings."""
        with writing_to(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.path / LOCK_FILE, timeout=0)
            try:
                lock.acquire()
            except Timeout:
                raise UsageError(f"another process is writing to {self.path}: wait for it, or stop it") from None
        try:
            if not self.has_settings(settings):
                self._claim(settings)
            yield
        finally:
            lock.release()

    def has_settings(self, settings: Mapping[str, Any]) -> bool:
        """Whether the directory has settings; UsageError if they differ from these."""
        present = read_json(self.path / SETTINGS_FILE)
        if present is None:
            return False
        # What an earlier version could not switch on was off.
        present = {**{name: False for name, value in settings.items() if value is False}, **present}
        if present != settings:
            names = [name for name in {**present, **settings} if present.get(name) != settings.get(name)]
            differences = ", ".join(f"{name} {present.get(name)} there, {settings.get(name)} here" for name in names)
            raise UsageError(
                f"{self.path} holds a run with other settings ({differences}): choose another --out, or delete it"
            )
        return True

    def _claim(self, settings: Mapping[str, Any]) -> None:
        names = sorted(path.name for path in self.path.iterdir())
        foreign = [name for name in names if name.removesuffix(PARTIAL_SUFFIX) not in RUN_FILES]
        if foreign:
            raise UsageError(f"{self.path} is not a run (it has {foreign[0]}): choose another --out")
        write_json(self.path / SETTINGS_FILE, settings)

    def start(self, environment: Environment) -> None:
        """Record the environment, keep the earlier one if the run was resumed elsewhere, and forget old failures."""
        before = read_record(self.path / ENVIRONMENT_FILE, Environment, "the environment of a run")
        changes = []
        for name, then in vars(before).items() if before else ():
            if name not in ("started", "earlier") and then != (now := getattr(environment, name)):
                changes.append(f"{name} {then} before, {now} now")
        if before and changes:
            warnings.warn(f"{self.path} resumes elsewhere ({', '.join(changes)}): results may differ", stacklevel=2)
            known = {name: value for name, value in to_json(replace(before, earlier=())).items() if value is not None}
            environment = replace(environment, earlier=[*before.earlier, known])
        if changes or not before:
            write_json(self.path / ENVIRONMENT_FILE, to_json(environment))
        (self.path / FAILURE_FILE).unlink(missing_ok=True)

    def add(self, line: Step | Epoch) -> None:
        """Add a line; the next `save` writes it to disk."""
        self._pending[_FILES[type(line)]].append(json.dumps(to_json(line), separators=(",", ":")) + "\n")

    def save(self, checkpoint: Checkpoint) -> None:
        """Write the lines since the last checkpoint, then the new checkpoint."""
        with writing_to(self.path):
            sizes = {name: self._append(name) for name in self._pending}
            content = to_json(replace(checkpoint, sizes=sizes))
            replace_file(self.path / CHECKPOINT_FILE, lambda path: _save_tensors(content, path))

    def load(self, device: torch.device) -> Checkpoint | None:
        """The checkpoint, if there is one; lines after it are removed."""
        path = self.path / CHECKPOINT_FILE
        checkpoint = None
        sizes: Mapping[str, int] | None = dict.fromkeys(self._pending, 0)
        if path.exists():
            try:
                checkpoint = Checkpoint(**torch.load(path, map_location=device, weights_only=True))
            except Exception as error:
                raise damaged(path, f"cannot be read ({type(error).__name__})") from error
            sizes = checkpoint.sizes
        if sizes is None:
            raise damaged(path, "does not say how long the records were")
        for name, size in sizes.items():
            self._truncate(self.path / name, size)
        return checkpoint

    def epochs(self) -> list[Epoch]:
        """The epochs that are on disk."""
        return [parse(Epoch, from_json(line)) for line in (self.path / EPOCHS_FILE).read_text().splitlines()]

    def fail(self, reason: str) -> None:
        """Record why the run failed."""
        with writing_to(self.path):
            replace_file(self.path / FAILURE_FILE, lambda path: path.write_text(reason, "utf-8"))

    def finish(self, result: Result) -> None:
        """Record the result, which marks the run as finished."""
        write_json(self.path / RESULT_FILE, to_json(result))

    def _append(self, name: str) -> int:
        """Write the pending lines of a file; its size."""
        with (self.path / name).open("a") as file:
            file.writelines(self._pending[name])
            file.flush()
            os.fsync(file.fileno())
            self._pending[name].clear()
            return file.tell()

    def _truncate(self, path: Path, size: int) -> None:
        if size > (path.stat().st_size if path.exists() else 0):
            raise damaged(path, "is shorter than it was at the last checkpoint")
        if path.exists():
            with writing_to(self.path):
                os.truncate(path, size)


def read_result(directory: Path) -> Result | None:
    """The result in a run's directory; None if the run is not finished."""
    return read_record(directory / RESULT_FILE, Result, "the result of a run")


def _save_tensors(content: Mapping[str, Any], path: Path) -> None:
    try:
        with path.open("wb") as file:
            torch.save(content, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):  # torch hides errors of the disk behind its own
            raise error.__context__ from None
        raise
