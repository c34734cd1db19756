"""Reports of runs: an HTML page that works offline, a picture of each figure, or tables in Markdown.

A report is made from the records on disk alone, in these steps:

=================  ===============================================================
`reading`          finds the records and reads them into the classes of `runs`
`steps`            summarizes the gradient steps of a run
`sections`         groups the runs of a study by configuration
`against_static`   compares grown networks with static ones of several sizes
`tables`           tables of a section
`against_static_tables`  tables of such a comparison
`searches`         searches for settings next to grown networks
`searches_tables`  tables of these
`figures`          figures of a section, a module for each kind
`page`             the HTML page, with `page.css` and `page.js`
`pictures`         figures as PNG, SVG or PDF files
`markdown`         tables as Markdown
`names`            names of strategies and settings in print
`numbers`          numbers in print
`statistics`       means, standard deviations, ellipses
=================  ===============================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..experiments.errors import UsageError
from ..files import replace_file
from .against_static import AgainstStatic, make_against_static
from .figures import Figure, Palette, against_static, figures, searching
from .markdown import markdown
from .names import search_name, slug, strategy_name
from .page import make_page, tables_of
from .pictures import FORMATS, save
from .reading import read
from .runs import Found, Skipped
from .searches import Searches, make_searches
from .sections import Section, make_section

__all__ = ["Found", "Skipped", "draw", "read", "write"]


def write(paths: Sequence[Path], out: Path, formats: Sequence[str] = ("html",)) -> list[Path]:
    """Write the report of all runs in and below some directories; the files that were written.

    Args:
        paths: directories of runs or sweeps, or any directories above them.
        out: the directory for `report.html`, or for a file per figure or section; created if it does not exist.
        formats: of "html", "md", "png", "svg" and "pdf".
    """
    return draw(read(paths), out, formats)


def draw(found: Found, out: Path, formats: Sequence[str] = ("html",)) -> list[Path]:
    """Write the report of runs that have been read."""
    for form in formats:
        if form not in ("html", "md", *FORMATS):
            raise UsageError(f"unknown format {form!r}: choose html, md, {', '.join(FORMATS)}")
    budgets = {count for study in found.studies for search in study.searches for count in search.record.budgets}
    palette = Palette.of([*(strategy_name(run.settings) for run in found.runs), *map(search_name, budgets)])
    drawn: list[tuple[Section | AgainstStatic | Searches, list[Figure]]] = []
    for study, name in zip(found.studies, _unique_names(found), strict=True):
        if study.searches:
            searches = make_searches(study, name)
            drawn.append((searches, searching(searches, palette)))
        elif study.against_static:
            comparison = make_against_static(study, name)
            drawn.append((comparison, against_static(comparison, palette)))
        else:
            section = make_section(study, name)
            drawn.append((section, figures(section, palette)))
    written = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        if "html" in formats:
            text = make_page(found, drawn, palette)
            replace_file(out / "report.html", lambda path: path.write_text(text, encoding="utf-8"))
            written.append(out / "report.html")
        if "md" in formats:
            for part, _ in drawn:
                written.append(out / f"{part.name}.md")
                text = markdown(tables_of(part))
                replace_file(written[-1], lambda path, text=text: path.write_text(text, encoding="utf-8"))  # type: ignore[misc]
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
