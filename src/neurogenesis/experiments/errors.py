"""What the command says in one line instead of a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Collection


class Mistake(Exception):
    """Something that its user can put right; the message says what is wrong, where, and what to do."""


def unknown(what: str, name: str, known: Collection[str]) -> Mistake:
    """There is no such thing; the nearest one, and all there are."""
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return Mistake(f"there is no {what} {name!r}.{hint} There are {', '.join(known)}")
