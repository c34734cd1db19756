"""Tables as Markdown, for documents."""

from __future__ import annotations

from collections.abc import Iterable

from .tables import Table


def markdown(tables: Iterable[Table]) -> str:
    """Tables with their titles and captions.

    Example:
        >>> from neurogenesis.report.tables import Cell
        >>> print(markdown([Table("Results", "Of one run.", ["strategy", "runs"], [[Cell("NeST", 0), Cell("1", 1)]])]))
        ### Results
        <BLANKLINE>
        Of one run.
        <BLANKLINE>
        | strategy | runs |
        |---|---|
        | NeST | 1 |
        <BLANKLINE>
    """
    return "\n".join(f"### {table.title}\n\n{table.caption}\n\n{_rows(table)}\n" for table in tables)


def _rows(table: Table) -> str:
    rows = [_line(cell.text for cell in row) for row in table.rows]
    return "\n".join([_line(table.columns), "|" + "---|" * len(table.columns), *rows])


def _line(texts: Iterable[str]) -> str:
    escaped = (" ".join(text.replace("\\", "\\\\").replace("|", "\\|").split()) for text in texts)
    return f"| {' | '.join(escaped)} |"
