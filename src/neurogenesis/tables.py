"""Plain tables of text that fit the terminal."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from itertools import zip_longest

_GAP = 2  # spaces between columns
_LEAST = 12  # characters of a column that is narrowed


def table(head: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> str:
    """A table with a line under its head. Long texts go on in the next line of their column; none is cut.

    If columns would become too narrow, each row is a list of its texts instead.

    Args:
        head: the titles of the columns.
        rows: the texts of each row.
        width: the number of characters of a line; by default that of the terminal, and as many as needed if the output
            does not go to one, such as in a file, where each row is one line.

    Example:
        >>> rows = [["0", "yes"], ["2", "no: a size of the model's output"]]
        >>> print(table(["width", "can grow"], rows, width=24))
        width  can grow
        ---------------
        0      yes
        2      no: a size of the
               model's output
    """
    limit = shutil.get_terminal_size((0, 0)).columns if width is None else width
    natural = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lengths = _narrowed(natural, limit - _GAP * (len(head) - 1)) if limit else natural
    if lengths is None:
        return _listed(head, rows, limit)
    first, *others = [_lines(row, lengths) for row in (head, *rows)]
    return "\n".join([*first, "-" * max(map(len, first)), *(line for lines in others for line in lines)])


def _narrowed(natural: Sequence[int], available: int) -> list[int] | None:
    """Lengths of columns with so many characters in all: the longest but the first are narrowed; None if too much."""
    lengths = list(natural)
    while sum(lengths) > available:
        longest = max(range(1, len(lengths)), key=lengths.__getitem__, default=0)
        if not longest or lengths[longest] <= _LEAST:
            return None
        lengths[longest] -= 1
    return lengths


def _listed(head: Sequence[str], rows: Sequence[Sequence[str]], limit: int) -> str:
    """Rows as lists of their texts by column, without empty ones."""
    title = max(map(len, head[1:]), default=0)
    lengths = [0, title, max(limit - title - 2 * _GAP, 1)]
    result = []
    for name, *texts in rows:
        result.append(name)
        for column, text in zip(head[1:], texts, strict=True):
            result += _lines(["", column, text], lengths) if text else []
    return "\n".join(result)


def _lines(texts: Sequence[str], lengths: Sequence[int]) -> list[str]:
    """The lines of a row."""
    cells = [_wrapped(text, length) for text, length in zip(texts, lengths, strict=True)]
    lines = zip_longest(*cells, fillvalue="")
    return [(" " * _GAP).join(map(str.ljust, line, lengths)).rstrip() for line in lines]


def _wrapped(text: str, length: int) -> list[str]:
    """Lines of at most so many characters, broken at spaces or, in words that are longer, after dots and the like."""
    if len(text) <= length:
        return [text]
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) <= length:
            lines[-1] += f" {word}"
            continue
        lines.append("")
        for part in [word] if len(word) <= length else re.findall(r"[^./_]*[./_]*", word):
            while len(lines[-1]) + len(part) > length:
                if not lines[-1]:
                    lines[-1], part = part[:length], part[length:]
                lines.append("")
            lines[-1] += part
    return [line for line in lines if line]
