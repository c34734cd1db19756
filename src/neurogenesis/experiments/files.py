"""JSON files, and errors that say which file failed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..files import replace_file
from .errors import UsageError
from .parsing import INVALID, T, from_json, parse
from .record import CHECKPOINT_FILE, STUDY_FILE


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file, or None if the file does not exist."""
    try:
        content = from_json(path.read_text())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except ValueError:
        raise damaged(path, "is not valid JSON") from None
    if not isinstance(content, dict):
        raise damaged(path, "does not contain a JSON object")
    return content


def read_record(path: Path, kind: type[T], what: str) -> T | None:
    """The record in a JSON file, or None if the file does not exist; UsageError if it is not `what` it should be."""
    content = read_json(path)
    if content is None:
        return None
    try:
        return parse(kind, content)
    except INVALID as error:
        raise damaged(path, f"is not {what} ({error})") from error


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file, and its directory if necessary."""
    write_text(path, json.dumps(content, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file, and its directory if necessary."""
    with writing_to(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, lambda partial: partial.write_text(text, "utf-8"))


def damaged(path: Path, problem: str) -> UsageError:
    """An error for a file of a run or a study that cannot be used."""
    useless = path if path.name == STUDY_FILE else path.parent  # a sweep writes study.json again; the runs are intact
    return UsageError(f"{path} {problem}: delete {useless} and run again")


@contextmanager
def writing_to(directory: Path) -> Iterator[None]:
    """Report a failure to write, such as a full disk, as an error that names the directory."""
    try:
        yield
    except OSError as error:
        saved = "; the same command resumes from the last checkpoint"
        saved = saved if (directory / CHECKPOINT_FILE).exists() else ""
        raise UsageError(
            f"cannot write to {directory}: {error.strerror or error}. Free some space or choose another --out{saved}"
        ) from error
