"""The command `neurogenesis`: run, sweep, tune, report, widths.

Torch and other packages that are slow to import are imported when a command needs them. `widths` needs torch alone, the
others the extra `experiments`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any

from ..experiments.errors import INSTALL, UsageError
from ..experiments.messages import echo_error
from ..experiments.signals import Interrupted
from .widths import widths_command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, by default those of the command line; the exit code."""

    def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
        echo_error(f"neurogenesis: {message}")

    words = list(sys.argv[1:] if arguments is None else arguments)
    with warnings.catch_warnings():
        warnings.showwarning = show_warning  # without the line of source code
        try:
            return widths_command(words[1:]) if words[:1] == ["widths"] else _other_command(words)
        except UsageError as error:
            echo_error(f"neurogenesis: {error}")
            return 1
        except Interrupted as interruption:
            echo_error(interruption)
            return 130
        except KeyboardInterrupt:
            echo_error("neurogenesis: interrupted; the same command resumes from what is saved")
            return 130


def _other_command(words: list[str]) -> int:
    try:
        import cyclopts  # noqa: F401
    except ImportError:
        raise UsageError(f"all commands but widths need more packages than the library: {INSTALL}") from None
    from .commands import CycloptsError, app

    try:
        result = app(words, exit_on_error=False, result_action="return_value")
    except CycloptsError as error:  # printed by cyclopts already
        echo_error(" ".join(["All options: neurogenesis", *(error.command_chain or ()), "--help"]))
        return 2
    return result if isinstance(result, int) else 0
