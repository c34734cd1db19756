"""Reports of runs: an HTML page that works offline, a picture of each figure, or tables in Markdown.

A report is made from the records on disk alone, in these steps:

=======================  ===============================================================
`reading`                finds the records and reads them into the classes of `runs`
`steps`                  summarizes the gradient steps of a run
`speeds`                 training times when nothing disturbed them
`sections`               groups the runs of a study by configuration
`against_static`         compares grown networks with static ones of several sizes
`compute`                compares grown networks with static ones by compute
`searches`               searches for settings next to grown networks
`tables`                 tables of a section, and tables as Markdown
`against_static_tables`  tables of a comparison with static networks
`compute_tables`         tables of loss against compute
`searches_tables`        tables of searches
`figures`                a module for each kind of figure
`page`                   the HTML page, with `page.html`, `page.css` and `page.js`
`pictures`               figures as PNG, SVG or PDF files
`names`                  names of strategies and settings in print
`numbers`                statistics, and numbers in print
=======================  ===============================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..experiments.errors import UsageError
from ..files import replace_file
from .against_static import make_against_static
from .figures import Figure, Palette, against_static, figures, searching
from .names import search_name, slug
from .page import Chapter, make_page, tables_of
from .pictures import FORMATS, save
from .reading import read
from .runs import Found, Skipped, Study
from .searches import make_searches
from .sections import make_section
from .tables import markdown

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
    palette = Palette.of([*(run.strategy for run in found.runs), *map(search_name, budgets)])
    drawn = [_chapter(study, name, palette) for study, name in zip(found.studies, _unique_names(found), strict=True)]
    texts = {}
    if "html" in formats:
        texts[out / "report.html"] = make_page(found, drawn, palette)
    if "md" in formats:
        texts |= {out / f"{chapter.name}.md": markdown(tables_of(chapter)) for chapter, _ in drawn}
    try:
        out.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            replace_file(path, lambda partial, text=text: partial.write_text(text, encoding="utf-8"))  # type: ignore[misc]
        static = [form for form in FORMATS if form in formats]
        pictures = [path for _, some in drawn for figure in some for path in save(figure, out, static)]
    except OSError as error:
        raise UsageError(f"cannot write to {out}: {error.strerror}. Free some space or choose another --out") from error
    return [*texts, *pictures]


def _chapter(study: Study, name: str, palette: Palette) -> tuple[Chapter, list[Figure]]:
    """What the report says about a study, and its figures."""
    if study.searches:
        searches = make_searches(study, name)
        return searches, searching(searches, palette)
    if study.against_static:
        comparison = make_against_static(study, name)
        return comparison, against_static(comparison, palette)
    section = make_section(study, name)
    return section, figures(section, palette)


def _unique_names(found: Found) -> list[str]:
    """Names of sections as part of file names."""
    names = [slug(study.name) for study in found.studies]
    return [name if names.count(name) == 1 else f"{name}-{names[: i + 1].count(name)}" for i, name in enumerate(names)]
