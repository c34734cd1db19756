"""The command `neurogenesis`: run, sweep, tune, report, widths.

Torch and other packages that are slow to import are imported when a command needs them.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from ..experiments.errors import UsageError
from ..experiments.messages import echo_error
from . import report, run, sweep, tune, widths  # each adds its command to the app
from .app import CycloptsError, app

__all__ = ["app", "main", "report", "run", "sweep", "tune", "widths"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, by default those of the command line; the exit code."""

    def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
        echo_error(f"neurogenesis: {message}")

    with warnings.catch_warnings():
        warnings.showwarning = show_warning  # without the line of source code
        try:
            result = app(arguments, exit_on_error=False, result_action="return_value")
        except CycloptsError as error:  # printed by cyclopts already
            echo_error(" ".join(["All options: neurogenesis", *(error.command_chain or ()), "--help"]))
            return 2
        except UsageError as error:
            echo_error(f"neurogenesis: {error}")
            return 1
        except KeyboardInterrupt:
            echo_error("neurogenesis: interrupted; the same command resumes from what is saved")
            return 130
    return result if isinstance(result, int) else 0
