"""Names in print: strategies and their order, settings and their values."""

from __future__ import annotations

import json
import re
from typing import Any

from ..experiments.presets import NAMES
from ..experiments.record import RecordedSettings
from ..experiments.settings import STATIC
from ..experiments.studies import GROWING, NEED

_ABLATION = f"north-select-{NAMES.least}"
_FIRST = ("north-select", _ABLATION, "north-pre", "north-opt")
STRATEGY_ORDER = (*_FIRST, *(name for name in GROWING if name not in _FIRST), NEED)
_SHAPE, _FROM_SCRATCH = "'s shape", " from scratch"
_SEARCH = "Search, "
_DISPLAYED = {
    _ABLATION: "NORTH-Select, least",
    "gradmax": "GradMax", "firefly": "Firefly", "nest": "NeST", "need": "Need",
    "small": "Small static", "medium": "Medium static", "big": "Big static", "static": "Static",
    "deepen-zero": "Deepened, zero", "deepen-copy": "Deepened, copies", "deepen-random": "Deepened, random",
    "effective_dimension": "effective dimension",
}  # fmt: skip
_HEADINGS = {NAMES.hidden: "hidden layers", NAMES.features: "independent features", NAMES.batch: "batch size"}


def strategy_name(settings: RecordedSettings) -> str:
    """The strategy of a run; an ablation counts as a strategy, and so does the shape of a strategy from scratch."""
    name: str = settings.strategy
    if settings.shape_of is not None:
        return shape_of(settings.shape_of)
    return f"{name}-{NAMES.least}" if settings.least and name not in STATIC else name


def shape_of(strategy: str) -> str:
    """The name of the shapes that a strategy grew, trained from scratch."""
    return f"{strategy}{_SHAPE}"


def is_static(strategy: str) -> bool:
    """Whether networks of a strategy never grow."""
    return strategy in STATIC or is_shape(strategy)


def is_shape(strategy: str) -> bool:
    """Whether it is the shape of a strategy, trained from scratch."""
    return strategy.endswith(_SHAPE)


def display_name(strategy: str) -> str:
    """The name of a strategy in print; unknown names stay as they are.

    Example:
        >>> display_name("north-select"), display_name("gradmax"), display_name("mine"), display_name("need's shape")
        ('NORTH-Select', 'GradMax', 'mine', "Need's shape from scratch")
    """
    if is_shape(strategy):
        return f"{display_name(strategy.removesuffix(_SHAPE))}{_SHAPE}{_FROM_SCRATCH}"
    if strategy not in _DISPLAYED and strategy in STRATEGY_ORDER:
        return f"NORTH-{strategy[6:].capitalize()}"
    return _DISPLAYED.get(strategy, strategy)


def grown_by(name: str) -> str:
    """The strategy in print that grew a shape, from the name of the shape in print; other names stay as they are.

    Example:
        >>> grown_by("Need's shape from scratch"), grown_by("Need")
        ('Need', 'Need')
    """
    return name.removesuffix(_SHAPE + _FROM_SCRATCH)


def strategy_rank(strategy: str) -> tuple[int, str]:
    """A sort key: known strategies, unknown ones by name, static networks; a shape comes after what grew it."""
    if strategy in STATIC:
        return len(STRATEGY_ORDER) + 1 + STATIC.index(strategy), strategy
    if strategy.startswith(_SEARCH):
        return len(STRATEGY_ORDER), f"{int(strategy.removeprefix(_SEARCH).split()[0]):9}"
    grown_by = strategy.removesuffix(_SHAPE)
    return (STRATEGY_ORDER.index(grown_by) if grown_by in STRATEGY_ORDER else len(STRATEGY_ORDER)), strategy


def search_name(trials: int) -> str:
    """The name in print of a search with so many trials.

    Example:
        >>> search_name(5), search_name(1)
        ('Search, 5 trials', 'Search, 1 trial')
    """
    return f"{_SEARCH}{trials} trial{'' if trials == 1 else 's'}"


def heading(setting: str) -> str:
    """The name of a setting in print."""
    return _HEADINGS.get(setting, setting.replace("_", " "))


def format_value(value: Any) -> str:
    """The value of a setting in print."""
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return f"{value:g}" if abs(value) < 1e6 else str(value)
    return _DISPLAYED.get(value, value) if isinstance(value, str) else json.dumps(value)


def phrase(setting: str, value: Any) -> str:
    """A setting and its value in print.

    Example:
        >>> phrase("gamma", 0.9), phrase("features", 8), phrase("schedule", "linear")
        ('gamma 0.9', '8 features', 'linear')
    """
    if setting in (NAMES.schedule, NAMES.metric):
        return format_value(value)
    if setting in (NAMES.features, NAMES.hidden):
        noun = "feature" if setting == NAMES.features else "hidden layer"
        return f"{format_value(value)} {noun}{'' if value == 1 else 's'}"
    return f"{'lr' if setting == NAMES.learning_rate else heading(setting)} {format_value(value)}"


def slug(text: str) -> str:
    """A text as part of a file name.

    Example:
        >>> slug("MNIST, dynamic / seed 1")
        'mnist-dynamic-seed-1'
    """
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")[:80] or "unnamed"
