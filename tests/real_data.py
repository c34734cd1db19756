"""Where tests find the real data sets. Nothing is downloaded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from neurogenesis.experiments.data import SOURCES

ROOT = Path(os.environ.get("NEUROGENESIS_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")


def needs(name: str, root: Path = ROOT) -> pytest.MarkDecorator:
    """Skip a test if a data set is missing; `load(name, ROOT)` reads it."""
    found = all((root / name / file.name).is_file() for file in SOURCES[name].files)
    return pytest.mark.skipif(not found, reason=f"no {name} in {root}: set NEUROGENESIS_DATA to its directory")
