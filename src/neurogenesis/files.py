"""Files that are written completely or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

PARTIAL_SUFFIX = ".part"  # of files that are being written


def replace_file(path: Path, write: Callable[[Path], Any]) -> None:
    """Call `write` with a temporary path and move the result to `path` once it is on disk.

    If writing fails, as on a full disk, the old file stays as it was.
    """
    partial = path.with_name(path.name + PARTIAL_SUFFIX)
    try:
        write(partial)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
