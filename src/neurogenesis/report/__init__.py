"""Reports of runs: an HTML page that works offline, or a picture of each figure.

A report is made from the records on disk alone, in these steps:

==============  ==================================================================
`reading`       finds the records and reads them into the classes of `runs`
`steps`         summarizes the gradient steps of a run
`sections`      groups the runs of a study by configuration
`tables`        tables of a section
`figures`       figures of a section, a module for each kind
`page`          the HTML page, with `page.css` and `page.js`
`pictures`      figures as PNG, SVG or PDF files
`names`         names of strategies and settings in print
`numbers`       numbers in print
`statistics`    means, standard deviations, ellipses
==============  ==================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..experiments.errors import UsageError
from ..experiments.files import replace_file
from .figures import Palette, figures
from .names import slug, strategy_name
from .page import make_page
from .pictures import FORMATS, save
from .reading import read
from .runs import Found, Skipped
from .sections import make_section

__all__ = ["Found", "Skipped", "draw", "read", "write"]


def write(paths: Sequence[Path], out: Path, formats: Sequence[str] = ("html",)) -> list[Path]:
    """Write the report of all runs in and below some directories; the files that were written.

    Args:
        paths: directories of runs or sweeps, or any directories above them.
        out: the directory for `report.html`, or for a file per figure; created if it does not exist.
        formats: of "html", "png", "svg" and "pdf".
    """
    return draw(read(paths), out, formats)


def draw(found: Found, out: Path, formats: Sequence[str] = ("html",)) -> list[Path]:
    """Write the report of runs that have been read."""
    for form in formats:
        if form not in ("html", *FORMATS):
            raise UsageError(f"unknown format {form!r}: choose html, {', '.join(FORMATS)}")
    palette = Palette.of(strategy_name(run.settings) for run in found.runs)
    sections = [make_section(study, name) for study, name in zip(found.studies, _unique_names(found), strict=True)]
    drawn = [(section, figures(section, palette)) for section in sections]
    written = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        if "html" in formats:
            text = make_page(found, drawn, palette)
            replace_file(out / "report.html", lambda path: path.write_text(text, encoding="utf-8"))
            written.append(out / "report.html")
        static = [form for form in FORMATS if form in formats]
        if static:
            written += [path for _, some in drawn for figure in some for path in save(figure, out, static)]
    except OSError as error:
        raise UsageError(f"cannot write to {out}: {error.strerror}. Free some space or choose another --out") from error
    return written


def _unique_names(found: Found) -> list[str]:
    """Names of sections as part of file names."""
    names = [slug(study.name) for study in found.studies]
    return [name if names.count(name) == 1 else f"{name}-{names[: i + 1].count(name)}" for i, name in enumerate(names)]
