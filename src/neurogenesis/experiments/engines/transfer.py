"""The files of a run that is done on another machine: what changed there, to be written here.

Files are read in the reverse of the order in which a run writes them, and written in that order. So a checkpoint never
misses lines of steps and epochs, and a directory can be resumed from whenever the writing process is killed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ...files import replace_file
from ..files import writing_to
from ..record import (
    CHECKPOINT_FILE,
    ENVIRONMENT_FILE,
    EPOCHS_FILE,
    FAILURE_FILE,
    LOG_FILE,
    RESULT_FILE,
    SETTINGS_FILE,
    STEPS_FILE,
)

_APPENDED = (STEPS_FILE, EPOCHS_FILE, LOG_FILE)
_ORDER = (SETTINGS_FILE, ENVIRONMENT_FILE, *_APPENDED, CHECKPOINT_FILE, FAILURE_FILE, RESULT_FILE)


@dataclass(frozen=True)
class Part:
    """A file of a run, or its end."""

    name: str
    start: int
    """Bytes of the file before this part; 0 for whole files."""
    content: bytes


class Changes:
    """Follows what a run writes into its directory."""

    def __init__(self, directory: Path):
        self._directory = directory
        self._taken: dict[str, tuple[int, int]] = {}
        self._checkpoint = checkpoint_stamp(directory)

    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint that was not taken yet, nor there at the start."""
        return checkpoint_stamp(self._directory) != self._checkpoint

    def take(self) -> list[Part]:
        """What changed since the last call. A run that resumes must have saved a checkpoint, or have ended."""
        self._checkpoint = checkpoint_stamp(self._directory)
        parts = [self._part(name) for name in reversed(_ORDER)]
        return [part for part in reversed(parts) if part is not None]

    def _part(self, name: str) -> Part | None:
        try:
            with (self._directory / name).open("rb") as file:
                status = os.fstat(file.fileno())
                before, stamp = self._taken.get(name), (status.st_size, status.st_mtime_ns)
                if stamp == before:
                    return None
                self._taken[name] = stamp
                start = before[0] if before and name in _APPENDED else 0
                file.seek(start)
                return Part(name, start, file.read(status.st_size - start))
        except FileNotFoundError:
            return None


def checkpoint_stamp(directory: Path) -> int | None:
    """When the checkpoint was written; None if there is none."""
    path = directory / CHECKPOINT_FILE
    return path.stat().st_mtime_ns if path.exists() else None


def read_parts(directory: Path) -> list[Part]:
    """All that a run needs to be resumed elsewhere."""
    return [part for part in Changes(directory).take() if part.name != FAILURE_FILE]


def write_parts(directory: Path, parts: Iterable[Part]) -> None:
    """Write parts of files to the directory; UsageError if that fails."""
    with writing_to(directory):
        for part in parts:
            if part.start:
                _append(directory / part.name, part)
            else:
                replace_file(directory / part.name, lambda path, part=part: path.write_bytes(part.content))  # type: ignore[misc]


def _append(path: Path, part: Part) -> None:
    with path.open("r+b") as file:
        if os.fstat(file.fileno()).st_size < part.start:
            raise OSError(f"{path.name} was changed by another process")
        file.truncate(part.start)
        file.seek(part.start)
        file.write(part.content)
        file.flush()
        os.fsync(file.fileno())
