"""Figures as PNG files, which contain the numbers that they show, so that these can be compared with the records."""

from __future__ import annotations

import json
import struct
import tempfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from neurogenesis.report.against_static import AgainstStatic
from neurogenesis.report.figures import Figure, Palette, against_static, figures
from neurogenesis.report.figures.figure import rows_of
from neurogenesis.report.pictures import save

from .against import against_figure
from .records import RESULTS, ROOT, comparison, section, study

DOCS = ROOT / "docs"
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_KEYWORD = b"results"


def _of_section(name: str, suffix: str) -> Figure:
    return next(each for each in figures(section(name), _palette(name)) if each.name == f"{name}-{suffix}")


def _of_comparison(name: str, suffix: str) -> Figure:
    found: AgainstStatic = comparison(name)
    return next(each for each in against_static(found, _palette(name)) if each.name == f"{name}-{suffix}")


def _palette(name: str) -> Palette:
    return Palette.of([run.strategy for run in study(name).runs])


_ALL: dict[str, tuple[str, Callable[[], Figure]]] = {
    "against.png": ("against", against_figure),
    "pays-small-in-short.png": ("pays-small", lambda: _of_comparison("pays-small", "accuracy-in-short")),
    "deepening.png": ("deepening", lambda: _of_section("deepening", "loss-against-compute")),
}
FIGURES: Mapping[str, Callable[[], Figure]] = {
    name: make for name, (records, make) in _ALL.items() if (RESULTS / records).is_dir()
}
"""The figures of the pages whose records are here, by the names of their files in docs/."""


def numbers(figure: Figure) -> Any:
    """The data of a figure, rounded to what can be seen."""
    return _rounded({name: rows_of(table) for name, table in figure.data.items()})


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    if isinstance(value, int | str | bool) or value is None:
        return value
    return float(f"{float(value):.4g}")


def write_figure(name: str) -> bool:
    """Draw a figure, unless the file shows the same numbers already."""
    path, figure = DOCS / name, FIGURES[name]()
    if path.is_file() and alike(contained(path), numbers(figure)):
        return False
    with tempfile.TemporaryDirectory() as directory:
        (picture,) = save(figure, Path(directory), ["png"])
        path.write_bytes(_with_text(picture.read_bytes(), json.dumps(numbers(figure), ensure_ascii=False)))
    return True


def contained(path: Path) -> Any:
    """The numbers that a PNG file contains; None if it has none."""
    content, place = path.read_bytes(), len(_SIGNATURE)
    while place < len(content):
        (length,) = struct.unpack(">I", content[place : place + 4])
        kind, data = content[place + 4 : place + 8], content[place + 8 : place + 8 + length]
        if kind == b"zTXt" and data.startswith(_KEYWORD + b"\0"):
            return json.loads(zlib.decompress(data[len(_KEYWORD) + 2 :]).decode())
        place += 12 + length
    return None


def _with_text(png: bytes, text: str) -> bytes:
    """A PNG file with a compressed text before its end."""
    data = b"zTXt" + _KEYWORD + b"\0\0" + zlib.compress(text.encode(), 9)
    chunk = struct.pack(">I", len(data) - 4) + data + struct.pack(">I", zlib.crc32(data))
    end = png.rindex(b"IEND") - 4
    return png[:end] + chunk + png[end:]


def alike(first: Any, second: Any) -> bool:
    """Whether two data sets are the same up to rounding.

    Example:
        >>> alike({"loss": [0.1234, 1]}, {"loss": [0.1235, 1]}), alike({"loss": 1.0}, {"loss": 1.1})
        (True, False)
    """
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(alike(first[name], second[name]) for name in first)
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(alike, first, second))
    if isinstance(first, bool | str) or first is None or isinstance(second, bool | str) or second is None:
        return bool(first == second)
    return bool(abs(first - second) <= 2e-3 * max(abs(first), abs(second)))
