"""Where the real data sets are, for tests that need them. Nothing is fetched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from neurogenesis.experiments.data import SOURCES

ROOT = Path(os.environ.get("NEUROGENESIS_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")


def needs(name: str, root: Path = ROOT) -> pytest.MarkDecorator:
    """Skip a test where a data set is not there; `load(name, ROOT)` reads it."""
    there = all((root / name / file.name).is_file() for file in SOURCES[name].files)
    return pytest.mark.skipif(not there, reason=f"no {name} in {root}: let NEUROGENESIS_DATA say where it is")
