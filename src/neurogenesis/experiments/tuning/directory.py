"""The directory of a search: it belongs to one search, and one process at a time writes to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from filelock import FileLock, Timeout

from ..errors import UsageError
from ..files import read_record, write_json, writing_to
from ..parsing import to_json
from ..record import LOCK_FILE, SEARCH_FILE, SearchRecord


@contextmanager
def writing_search(out: Path, search: SearchRecord) -> Iterator[None]:
    """Lock the directory and record the search in it; UsageError if it holds another search or anything else."""
    with writing_to(out):
        out.mkdir(parents=True, exist_ok=True)
    lock = FileLock(out / LOCK_FILE, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise UsageError(f"another process is writing to {out}: wait for it, or stop it") from None
    try:
        _claim(out, search)
        yield
    finally:
        lock.release()


def _claim(out: Path, search: SearchRecord) -> None:
    present = read_search(out)
    if present is None:
        foreign = sorted(path.name for path in out.iterdir() if path.name != LOCK_FILE)
        if foreign:
            raise UsageError(f"{out} is not a search (it has {foreign[0]}): choose another --out")
        write_json(out / SEARCH_FILE, to_json(search))
        return
    same = replace(present, budgets=search.budgets, too_large=search.too_large)
    if to_json(same) != to_json(search):
        names = [name for name in vars(search) if getattr(same, name) != getattr(search, name)]
        raise UsageError(f"{out} holds another search (its {' and '.join(names)} differ): choose another --out")
    budgets = sorted({*present.budgets, *search.budgets})
    write_json(out / SEARCH_FILE, to_json(replace(present, budgets=budgets)))


def record_too_large(out: Path, count: int) -> None:
    """Record how many proposals were too large."""
    present = read_search(out)
    assert present is not None
    write_json(out / SEARCH_FILE, to_json(replace(present, too_large=count)))


def read_search(out: Path) -> SearchRecord | None:
    """The record of the search in a directory; None if there is none."""
    return read_record(out / SEARCH_FILE, SearchRecord, "the record of a search")
