"""What is said on the standard output."""

from __future__ import annotations

import os
import sys


def say(text: object) -> None:
    """Print it; that nobody listens any more, as behind a pipe into `head`, is no reason to stop."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
