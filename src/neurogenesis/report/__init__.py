"""Reports of runs: one HTML file that opens offline, or a static picture of each of its figures.

Everything comes from the records on disk; nothing is trained, and nothing but the records is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..experiments.errors import Mistake
from ..experiments.files import replace
from .figures import FORMATS, figures, save
from .page import page
from .records import LeftOut, Records
from .runs import read
from .sections import section, slug, strategy_of
from .style import Look

__all__ = ["LeftOut", "Records", "draw", "read", "write"]


def write(paths: Sequence[Path], out: Path, formats: Sequence[str] = ("html",)) -> list[Path]:
    """Write the report of all runs in and below some directories into another; the files that were written.

    Args:
        paths: directories of runs, of sweeps, or any above them.
        out: where `report.html`, or a file for each figure, goes; made if it is not there.
        formats: of "html", "png", "svg" and "pdf".
    """
    return draw(read(paths), out, formats)


def draw(records: Records, out: Path, formats: Sequence[str] = ("html",)) -> list[Path]:
    """Write the report of records that have been read; what had to be left out is in `records.left_out`."""
    for form in formats:
        if form not in ("html", *FORMATS):
            raise Mistake(f"no report is written as {form!r}: choose html, {', '.join(FORMATS)}")
    look = Look.of(strategy_of(run.settings) for run in records.runs)
    sections = [section(study, name) for study, name in zip(records.studies, _names(records), strict=True)]
    drawn = [(one, figures(one, look)) for one in sections]
    written = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        if "html" in formats:
            text = page(records, drawn, look)
            replace(out / "report.html", lambda path: path.write_text(text, encoding="utf-8"))
            written.append(out / "report.html")
        static = [form for form in FORMATS if form in formats]
        if static:
            written += [path for _, some in drawn for figure in some for path in save(figure, out, static)]
    except OSError as error:
        raise Mistake(f"cannot write to {out}: {error.strerror}. Make room or choose another --out") from error
    return written


def _names(records: Records) -> list[str]:
    """Names of sections that are fit for files, and differ."""
    names = [slug(study.name) for study in records.studies]
    return [name if names.count(name) == 1 else f"{name}-{names[: i + 1].count(name)}" for i, name in enumerate(names)]
