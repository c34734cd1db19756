"""The examples of a page, and whether they print what the page says.

Words and integers must be the same: names, counts, and the sizes and steps of short runs. Decimals are measured, and
processors round differently: they may differ by a hundredth of the largest decimal on their line, so that noise is
compared with the threshold beside it. Long training runs amplify rounding until sizes and steps differ, too. Where
`<!-- numbers vary -->` stands above the output, integers from 10 on may be half or twice what the page says, and
decimals may differ by twice the largest one on their line.
"""

from __future__ import annotations

import re
from itertools import zip_longest
from typing import NamedTuple

_EXAMPLE = re.compile(r"```python\n(.*?)```\n(?:\n?(<!-- numbers vary -->\n)?```text\n(.*?)```)?", re.DOTALL)
_NUMBER = re.compile(r"((?<![\w.])[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?!\w|\.\d))")


class Example(NamedTuple):
    """Code, what the page says it prints (empty if it does not say), and whether the numbers in it vary."""

    code: str
    told: str
    varies: bool


def examples(page: str) -> list[Example]:
    """The Python blocks of a page, each with the block of text that follows it."""
    found = [Example(code, told, bool(mark)) for code, mark, told in _EXAMPLE.findall(page)]
    assert len(found) == page.count("```python"), "a Python block of the page is not closed"
    assert sum(one.varies for one in found) == page.count("<!-- numbers vary -->"), "a mark stands above no output"
    return found


def differences(printed: str, told: str, varies: bool = False) -> list[str]:
    """The lines in which an example prints something else than its page says.

    >>> differences("grew to 9 (0.0810 against 0.0734)", "grew to 9 (0.0809 against 0.0734)")
    []
    >>> differences("grew to 8 (0.0810 against 0.0734)", "grew to 9 (0.0809 against 0.0734)")
    ["printed 'grew to 8 (0.0810 against 0.0734)', the page says 'grew to 9 (0.0809 against 0.0734)'"]
    """
    lines = zip_longest(printed.rstrip().splitlines(), told.rstrip().splitlines())
    return [f"printed {ours!r}, the page says {theirs!r}" for ours, theirs in lines
            if ours is None or theirs is None or not _alike(ours, theirs, varies)]  # fmt: skip


def _alike(ours: str, theirs: str, varies: bool) -> bool:
    mine, told = _parts(ours), _parts(theirs)  # words at even places, numbers at odd ones
    if mine[::2] != told[::2]:
        return False
    pairs = list(zip(mine[1::2], told[1::2], strict=True))
    decimals = [abs(float(number)) for number in told[1::2] if not _integer(number)]
    tolerance = max(decimals, default=0.0) * (2 if varies else 0.01)
    return all(_alike_integers(int(a), int(b), varies) if _integer(a) and _integer(b)
               else abs(float(a) - float(b)) <= tolerance for a, b in pairs)  # fmt: skip


def _parts(line: str) -> list[str]:
    # Columns are as wide as their numbers, and the rule below the header as the columns.
    return _NUMBER.split(re.sub(r"---+", "---", " ".join(line.split())))


def _integer(number: str) -> bool:
    return number.lstrip("+-").isdigit()


def _alike_integers(ours: int, told: int, varies: bool) -> bool:
    if varies and told >= 10:  # smaller ones are names and counts
        return told <= 2 * ours <= 4 * told
    return ours == told
