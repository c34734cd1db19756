"""The figures of a section: those that its runs have data for."""

from __future__ import annotations

from ..sections import Section
from .against_size import against_size
from .against_static import against_static
from .comparisons import SETTINGS, features, schedules, sensitivity
from .compute import compute
from .curves import learning_curves
from .figure import Figure
from .searches import searching
from .style import Palette
from .timeline import timelines
from .widths import widths

__all__ = ["Figure", "Palette", "against_static", "figures", "searching"]


def figures(section: Section, palette: Palette) -> list[Figure]:
    """The figures of a section, in the order of reading."""
    by_features = features(section, palette)
    candidates = [
        compute(section, palette),
        by_features,
        None if by_features else against_size(section, palette),  # sizes for different data are not comparable
        schedules(section, palette),
        *(sensitivity(section, setting, palette) for setting in SETTINGS),
        learning_curves(section, palette),
        *([] if by_features else widths(section, palette)),  # would repeat the figure by features
        timelines(section),
    ]
    return [figure for figure in candidates if figure is not None]
