"""Tables between markers in Markdown.

<!-- results: digits -->

| strategy | ... |

<!-- end -->
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial

from .against import against_table, verdicts_table
from .claims import claims_table
from .records import ROOT
from .tables import (
    deepening_saved_table,
    deepening_static_table,
    digits_table,
    dynamic_table,
    pays_summary_table,
    pays_table,
    preset_table,
)

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"(?P<start><!-- results: (?P<name>[\w -]+) -->\n).*?(?P<end>\n *<!-- end -->)", re.DOTALL)
TABLES = {
    "against": against_table,
    "against-verdicts": verdicts_table,
    "claims": claims_table,
    "deepening-images-saved": partial(deepening_saved_table, "deepening-images"),
    "deepening-images-static": partial(deepening_static_table, "deepening-images"),
    "deepening-saved": deepening_saved_table,
    "deepening-static": deepening_static_table,
    "digits": digits_table,
    "mnist-dynamic": dynamic_table,
    "mnist-preset": preset_table,
    "pays-small": pays_table,
    "pays-small-summary": pays_summary_table,
}
"""A function for each name of a table."""
_NUMBER = re.compile(r"\d[\d,]*\.?\d*")

Row = Mapping[str, str]


def markdown(rows: Sequence[Row]) -> str:
    """A table in Markdown.

    Example:
        >>> print(markdown([{"strategy": "need", "accuracy": "98.1"}]))
        | strategy | accuracy |
        |---|---|
        | need | 98.1 |
    """
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    texts = [f"| {' | '.join(line)} |" for line in lines]
    texts[1] = texts[1].replace(" ", "")
    texts = [text.replace("|  |", "| |").replace("|  |", "| |") for text in texts]
    return "\n".join(texts)


def found(page: str) -> dict[str, str]:
    """The tables of a page, by name.

    Example:
        >>> found("<!-- results: digits -->\\n\\n| a |\\n\\n<!-- end -->")
        {'digits': '| a |'}
    """
    ends = {match["name"]: match for match in BLOCK.finditer(page)}
    return {name: page[match.end("start") : match.start("end")].strip() for name, match in ends.items()}


def rebuilt(page: str) -> str:
    """A page with the tables that the records give."""
    return BLOCK.sub(lambda match: f"{match['start']}\n{markdown(TABLES[match['name']]())}\n{match['end']}", page)


def differences(page: str, records: str) -> list[str]:
    """Where a table on a page differs from the records: in words, or in numbers by more than rounding.

    Example:
        >>> differences("| need | 98.1 ± 0.3 |", "| need | 98.2 ± 0.3 |")
        []
        >>> differences("| need | 98.1 ± 0.3 |", "| need | 98.3 ± 0.3 |")
        ['98.1 on the page, 98.3 from the records: | need | 98.3 ± 0.3 |']
    """
    if _NUMBER.sub("#", page) != _NUMBER.sub("#", records):
        return [f"the page has other words or rows than the records, which give\n{records}"]
    pairs = zip(_NUMBER.finditer(page), _NUMBER.finditer(records), strict=True)
    return [
        f"{old[0]} on the page, {new[0]} from the records: {_line(records, new.start())}"
        for old, new in pairs
        if not _near(old[0], new[0])
    ]


def _near(old: str, new: str) -> bool:
    """Whether two numbers differ by at most one in the last place that is printed."""
    last = 10.0 ** -max(len(number.partition(".")[2]) for number in (old, new))
    return abs(float(old.replace(",", "")) - float(new.replace(",", ""))) <= 1.01 * last


def _line(text: str, place: int) -> str:
    return text[text.rfind("\n", 0, place) + 1 :].partition("\n")[0]
