"""Messages on the terminal; a reader that has gone away, such as `head`, does not stop the command."""

from __future__ import annotations

import os
import sys
from typing import TextIO


def echo(text: object) -> None:
    """Print to standard output."""
    _print(text, sys.stdout)


def echo_error(text: object) -> None:
    """Print to standard error."""
    _print(text, sys.stderr)


def _print(text: object, stream: TextIO) -> None:
    try:
        print(text, file=stream, flush=True)
    except BrokenPipeError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
