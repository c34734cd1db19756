"""Every figure that the runs of a section have data for, and its static formats."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import altair as alt
import vl_convert

from ..experiments.files import replace
from .against_size import against_size
from .comparisons import SETTINGS, features, schedules, sensitivity
from .curves import learning_curves
from .layers import widths
from .sections import Section
from .style import Choice, Figure, Look
from .timeline import timelines

VEGA_LITE = ".".join(alt.SCHEMA_VERSION.split(".")[:2])


def figures(section: Section, look: Look) -> list[Figure]:
    """The figures of a section, in the order of reading."""
    independent = features(section, look)
    drawn = [
        independent,
        None if independent else against_size(section, look),  # sizes for different data are not to be compared
        schedules(section, look),
        *(sensitivity(section, key, look) for key in SETTINGS),
        learning_curves(section, look),
        *([] if independent else widths(section, look)),  # its panels tell the same
        timelines(section),
    ]
    return [figure for figure in drawn if figure is not None]


def save(figure: Figure, out: Path, formats: Collection[str]) -> list[Path]:
    """Write a figure as a file of each format, or as one for each run that it can show."""
    written = []
    choices: Sequence[Choice | None] = figure.choices or [None]
    for choice in choices:
        svg = vl_convert.vegalite_to_svg(figure.titled(choice), vl_version=VEGA_LITE)
        stem = f"{figure.name}-{choice.name}" if choice else figure.name
        for form in formats:
            path = out / f"{stem}.{form}"
            drawn = _CONVERT[form](svg)
            replace(path, lambda unfinished, drawn=drawn: unfinished.write_bytes(drawn))  # type: ignore[misc]
            written.append(path)
    return written


_CONVERT: dict[str, Callable[[str], bytes]] = {
    "png": lambda svg: vl_convert.svg_to_png(svg, scale=2),
    "svg": lambda svg: svg.encode(),
    "pdf": lambda svg: vl_convert.svg_to_pdf(svg),
}
FORMATS = tuple(_CONVERT)
