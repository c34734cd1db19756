"""Errors that the command reports in one line, without a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Collection

INSTALL = "pip install 'torch-neurogenesis[experiments]'"
"""Installs the packages that the experiments need."""


class UsageError(Exception):
    """An error that the user can fix; the message says what is wrong, where, and what to do."""


def one_line(error: BaseException) -> str:
    """An error in one line, with its type unless it is a `UsageError`."""
    text = " ".join(str(error).split())
    return text if isinstance(error, UsageError) else f"{type(error).__name__}: {text}"


def unknown_name(kind: str, name: str, known: Collection[str]) -> UsageError:
    """An error for a name that does not exist, with the closest match and all known names.

    Example:
        >>> unknown_name("study", "digit", ["digits", "mnist-lr"])
        UsageError("unknown study 'digit'. Did you mean 'digits'? Choose from digits, mnist-lr")
    """
    matches = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {matches[0]!r}?" if matches else ""
    return UsageError(f"unknown {kind} {name!r}.{hint} Choose from {', '.join(known)}")
