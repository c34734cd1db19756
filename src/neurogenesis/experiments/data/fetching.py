"""Find the files of a data set, verify them, and download those that are missing."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from filelock import FileLock

from ..errors import INSTALL
from .formats import GZIP_ERRORS
from .samples import DataError
from .sources import SOURCES, File, Source

LOCK = ".lock"


def cache() -> Path:
    """The default directory of data sets."""
    return Path(os.environ.get("NEUROGENESIS_DATA") or import_optional("pooch").os_cache("neurogenesis"))


def import_optional(name: str) -> Any:
    """Import a package that the library itself does not depend on."""
    try:
        return import_module(name)
    except ImportError as error:
        raise DataError(f"cannot import {name} ({error}): {INSTALL}") from None


def complete_directory(name: str, root: Path) -> Path:
    """The directory with all files of a data set, verified; missing files are downloaded."""
    source, own = SOURCES[name], root / name
    if _missing(source, own):
        if not _missing(source, root):
            matches = [_matches((root / file.name).read_bytes(), file) for file in source.files]
            if any(matches):  # otherwise they belong to another data set with the same file names
                for file in source.files:
                    _verify(root / file.name, file)
                return root
        _download(name, own)
    for file in source.files:
        _verify(own / file.name, file)
    return own


def _missing(source: Source, directory: Path) -> list[File]:
    return [file for file in source.files if not (directory / file.name).is_file()]


def _verify(path: Path, file: File) -> None:
    raw = path.read_bytes()
    if not _matches(raw, file):
        raise DataError(
            f"{path} is damaged or a different file: its {len(raw)} bytes have the md5 {_md5(raw)}, not {file.md5}. "
            "Delete it to download it again, or replace it"
        )


def _matches(raw: bytes, file: File) -> bool:
    if _md5(raw) == file.md5:
        return True
    if file.content_md5 is None:
        return False
    try:
        return _md5(gzip.decompress(raw)) == file.content_md5
    except GZIP_ERRORS:
        return False


def _md5(raw: bytes) -> str:
    return hashlib.md5(raw, usedforsecurity=False).hexdigest()


def _download(name: str, directory: Path) -> None:
    """Download the missing files of a data set; each appears in the directory only when it is complete."""
    source, pooch = SOURCES[name], import_optional("pooch")
    created = [path for path in (directory, *directory.parents) if not path.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with FileLock(directory / LOCK), _removing_on_failure(directory, created):
            missing = _missing(source, directory)  # again: another process may have downloaded them since
            if missing and source.archive:
                _download_archive(pooch, source, source.archive, missing, directory)
            else:
                for file in missing:
                    _retrieve(pooch, source, file, directory)
    except OSError as error:
        raise _unavailable(name, directory, error.strerror or str(error), created[1:]) from None


@contextmanager
def _removing_on_failure(directory: Path, created: list[Path]) -> Iterator[None]:
    """Remove new directories that a failure leaves empty: the path may have been mistyped."""
    try:
        yield
    except BaseException:
        if created and set(os.listdir(directory)) <= {LOCK}:
            with suppress(OSError):  # another process may have started to use them
                (directory / LOCK).unlink(missing_ok=True)
                for path in created:
                    path.rmdir()
        raise


def _download_archive(pooch: Any, source: Source, archive: File, files: list[File], directory: Path) -> None:
    with tempfile.TemporaryDirectory(dir=directory) as temporary:
        path = directory / archive.name
        if path.is_file():
            _verify(path, archive)
        else:
            path = _retrieve(pooch, source, archive, Path(temporary))
        _unpack(path, files, directory, Path(temporary))


def _retrieve(pooch: Any, source: Source, file: File, directory: Path) -> Path:
    """Download a file from the first mirror that has it."""
    failures = []
    for mirror in source.mirrors:
        url = mirror + file.name
        try:
            return Path(pooch.retrieve(url, known_hash=f"md5:{file.md5}", fname=file.name, path=directory))
        except (OSError, ValueError) as error:
            failures.append(f"{url}: {_summary(error)}")
    raise ConnectionError("; ".join(failures))


def _summary(error: OSError | ValueError) -> str:
    """The cause in a few words; network errors have hundreds."""
    if not isinstance(error, OSError):
        return "wrong md5"
    status = getattr(getattr(error, "response", None), "status_code", None)
    return error.strerror or (f"status {status}" if status else type(error).__name__)


def _unpack(archive: Path, files: Iterable[File], directory: Path, temporary: Path) -> None:
    names = {file.name for file in files}
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.name in names and member.isfile():
                target, partial = directory / member.name, temporary / "partial"
                content = tar.extractfile(member)
                assert content is not None
                with partial.open("wb") as out:
                    shutil.copyfileobj(content, out)
                target.parent.mkdir(exist_ok=True)
                partial.replace(target)


def _unavailable(name: str, directory: Path, reason: str, missing_parents: list[Path]) -> DataError:
    source = SOURCES[name]
    files = ", ".join(file.name for file in _missing(source, directory))
    needed = f"{source.archive.name}, or its files {files}" if source.archive else files
    parent = f" ({missing_parents[-1]} does not exist)" if missing_parents else ""
    return DataError(
        f"{name} is not in {directory}{parent} and cannot be downloaded ({reason}).\n"
        f"Put {needed} there, from {source.mirrors[0]}, or set --data or NEUROGENESIS_DATA to a directory with "
        f"{name}/ that has them."
    )
