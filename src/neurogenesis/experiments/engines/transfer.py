"""The files of a run that is done on another machine.

The checkpoint is read first and written last. So it never misses lines of steps and epochs, and a directory can be
resumed from whenever the writing process is killed.
"""

from __future__ import annotations

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

_NAMES = (
    RESULT_FILE, FAILURE_FILE, CHECKPOINT_FILE, LOG_FILE, EPOCHS_FILE, STEPS_FILE, ENVIRONMENT_FILE, SETTINGS_FILE,
)  # fmt: skip

Files = dict[str, bytes]
"""Contents by name."""


def read_files(directory: Path) -> Files:
    """The files of a run, as far as there are any."""
    return {name: (directory / name).read_bytes() for name in _NAMES if (directory / name).exists()}


def write_files(directory: Path, files: Files) -> None:
    """Write files of a run to its directory; UsageError if that fails."""
    with writing_to(directory):
        directory.mkdir(parents=True, exist_ok=True)
        for name in filter(files.__contains__, reversed(_NAMES)):
            replace_file(directory / name, lambda path, name=name: path.write_bytes(files[name]))  # type: ignore[misc]
