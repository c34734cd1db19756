"""Warnings that point at the user's code."""

from __future__ import annotations

import sys
import warnings

_NOT_THE_USERS = ("neurogenesis", "torch", "contextlib")


def warn(message: str) -> None:
    """Warn, with the line outside this library and torch that led here."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_THE_USERS:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


class Notices:
    """Warnings that are given once."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def warn(self, message: str, key: str | None = None) -> None:
        """Warn, unless there was a warning with the same key, by default the message."""
        if (key or message) not in self._given:
            self._given.add(key or message)
            warn(message)
