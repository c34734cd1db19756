"""The application with all commands."""

from __future__ import annotations

from typing import Annotated

from . import report, run, sweep, tune  # noqa: F401  each adds its command to the app
from .app import CycloptsError, Parameter, app
from .widths import SUMMARY, widths_command

__all__ = ["CycloptsError", "app"]


@app.command(help=SUMMARY, help_flags=())
def widths(*words: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> int:
    return widths_command(words)
