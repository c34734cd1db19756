"""Figures as files: PNG, SVG or PDF."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import altair as alt
import vl_convert

from ..files import replace_file
from .figures.figure import Choice, Figure

VEGA_LITE = ".".join(alt.SCHEMA_VERSION.split(".")[:2])
"""The version of Vega-Lite, such as v5.20."""
_CONVERT: dict[str, Callable[[str], bytes]] = {
    "png": lambda svg: vl_convert.svg_to_png(svg, scale=2),
    "svg": lambda svg: svg.encode(),
    "pdf": lambda svg: vl_convert.svg_to_pdf(svg),
}
FORMATS = tuple(_CONVERT)


def save(figure: Figure, out: Path, formats: Collection[str]) -> list[Path]:
    """Write a figure to a file of each format, or to one for each run that it can show."""
    written = []
    choices: Sequence[Choice | None] = figure.choices or [None]
    for choice in choices if formats else ():
        svg = vl_convert.vegalite_to_svg(figure.standalone(choice), vl_version=VEGA_LITE)
        stem = f"{figure.name}-{choice.name}" if choice else figure.name
        for form in formats:
            path, content = out / f"{stem}.{form}", _CONVERT[form](svg)
            replace_file(path, lambda partial, content=content: partial.write_bytes(content))  # type: ignore[misc]
            written.append(path)
    return written
