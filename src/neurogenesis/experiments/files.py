"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def replace(path: Path, write: Callable[[Path], Any]) -> None:
    """Let `write` make a file beside it, and put that in its place when it is on disk: a full disk spoils nothing."""
    unfinished = path.with_name(f"{path.name}.part")
    try:
        write(unfinished)
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
