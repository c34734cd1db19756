"""`neurogenesis report`: figures and tables of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from ..experiments.errors import INSTALL
from ..experiments.messages import echo, echo_error
from .app import Parameter, app

_MOST_SKIPPED = 5


@app.command
def report(
    runs: Annotated[tuple[Path, ...], Parameter(negative="")],
    *,
    out: Path | None = None,
    format: Annotated[tuple[Literal["html", "md", "png", "svg", "pdf"], ...], Parameter(negative="")] = ("html",),
) -> int:
    """Draw figures and tables of runs: as one HTML file that works offline, as pictures, or as Markdown.

    Parameters
    ----------
    runs:
        Directories of runs or sweeps, or any directories above them.
    out:
        Directory to write to. By default the first of the given directories that exists.
    format:
        html for the page; png, svg or pdf for one file per figure; md for tables in Markdown. Can be given
        several times.
    """
    try:
        from ..report import draw, read
    except ImportError as error:
        echo_error(f"neurogenesis: {error}: {INSTALL}")
        return 1
    found = read(runs)
    for skipped in found.skipped[:_MOST_SKIPPED]:
        echo_error(f"neurogenesis: skipped {skipped}")
    if len(found.skipped) > _MOST_SKIPPED:
        echo_error(f"neurogenesis: skipped {len(found.skipped) - _MOST_SKIPPED} more; the report lists them")
    written = draw(found, out or next(path for path in runs if path.is_dir()), format)
    for path in written:
        echo(path)
    if not written:
        echo_error("neurogenesis: nothing to draw: no run has done a step yet")
    return 0 if written else 1
