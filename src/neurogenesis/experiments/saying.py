"""What the command says; that nobody listens any more, as behind a pipe into `head`, is no reason to stop."""

from __future__ import annotations

import os
import sys
from typing import TextIO


def say(text: object) -> None:
    """Print it on the standard output."""
    _print(text, sys.stdout)


def complain(text: object) -> None:
    """Print it where errors and warnings go."""
    _print(text, sys.stderr)


def _print(text: object, stream: TextIO) -> None:
    try:
        print(text, file=stream, flush=True)
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
