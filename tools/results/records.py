"""The records of studies in `results/`, as the report reads them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from neurogenesis import report
from neurogenesis.report.against_static import AgainstStatic, make_against_static
from neurogenesis.report.runs import Study
from neurogenesis.report.sections import Configuration, Section, make_section

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"


def exists(study: str) -> bool:
    """Whether there are records of a study."""
    return (RESULTS / study).is_dir()


@cache
def study(name: str) -> Study:
    """A study with its finished runs; those that are to be done have settings alone."""
    (found,) = report.read([RESULTS / name]).studies
    return found


@cache
def section(name: str) -> Section:
    """The runs of a study by configuration."""
    return make_section(study(name), name)


@cache
def comparison(name: str) -> AgainstStatic:
    """A study of grown networks against static ones of several sizes."""
    return make_against_static(study(name), name)


def by_strategy(name: str) -> dict[str, Configuration]:
    """The configurations of a study that varies nothing but the strategy."""
    return {c.strategy: c for c in section(name).finished}


def counted(runs: int) -> str:
    """A number of seeds in words.

    Example:
        >>> counted(1), counted(5)
        ('one seed', '5 seeds')
    """
    return "one seed" if runs == 1 else f"{runs} seeds"
