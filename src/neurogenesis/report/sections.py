"""Runs by configuration: the settings that differ within a study, with seeds taken together."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..experiments.presets import SIZES, STATIC
from ..experiments.studies import GRADIENT
from .records import STATES, Result, Run, Study
from .statistics import Statistic, statistic

ORDER = (
    "north-select", "north-select-least", "north-pre", "north-random", "north-weight", "north-integrated",
    "gradmax", "firefly", "nest",
)  # fmt: skip
_NAMES = {
    "north-select-least": "NORTH-Select, least",
    "gradmax": "GradMax", "firefly": "Firefly", "nest": "NeST",
    "small": "Small static", "medium": "Medium static", "big": "Big static",
    "effective_dimension": "effective dimension",
}  # fmt: skip
_HEADINGS = {"hidden": "hidden layers", "features": "independent features", "batch": "batch size"}
# What only growing networks look at.
_GROWTH = (
    "schedule", "metric", "gamma", "scale", "buffer", "every", "ages", "margin", "initial", "medium", "maximum",
)  # fmt: skip
_FIRST = ("schedule", "metric", "gamma", "batch", "learning_rate", "hidden", "features")
_COMMON = ("preset", "strategy", "seed", "least")


def display(strategy: str) -> str:
    """The name of a strategy as it is printed; names of one's own stay as they are.

    Example:
        >>> display("north-select"), display("gradmax"), display("mine")
        ('NORTH-Select', 'GradMax', 'mine')
    """
    if strategy not in _NAMES and strategy in ORDER:
        return f"NORTH-{strategy[6:].capitalize()}"
    return _NAMES.get(strategy, strategy)


def rank(strategy: str) -> tuple[int, str]:
    """Where a strategy stands: those of the paper, one's own by name, static networks."""
    if strategy in STATIC:
        return len(ORDER) + 1 + STATIC.index(strategy), strategy
    return (ORDER.index(strategy) if strategy in ORDER else len(ORDER)), strategy


def strategy_of(settings: Mapping[str, Any]) -> str:
    """The strategy of a run, that of an ablation by a name of its own."""
    name: str = settings["strategy"]
    return f"{name}-least" if settings.get("least") and name not in STATIC else name


def gamma_of(settings: Mapping[str, Any]) -> float:
    """The gamma of a run, its strategy's own where none is set."""
    of_weights = settings["strategy"] == "north-weight"
    return settings.get("gamma") or (0.99 if of_weights else 0.9 if "images" in settings else 0.97)


def heading(key: str) -> str:
    """What a setting is called in print."""
    return _HEADINGS.get(key, key.replace("_", " "))


def shown(value: Any) -> str:
    """A setting's value in print."""
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return f"{value:g}" if abs(value) < 1e6 else str(value)
    return _NAMES.get(value, value) if isinstance(value, str) else json.dumps(value)


@dataclass(frozen=True)
class Configuration:
    """Runs that differ in their seeds only."""

    strategy: str
    values: Mapping[str, Any]  # of the settings that differ in the section, where it looks at them
    variant: Mapping[str, Any]  # those of them that differ between runs of its strategy
    runs: Sequence[Run]

    @property
    def static(self) -> bool:
        return self.strategy in STATIC

    @property
    def name(self) -> str:
        return display(self.strategy)

    @property
    def finished(self) -> list[Run]:
        return [run for run in self.runs if run.result is not None]

    def label(self, but: Collection[str] = ()) -> str:
        """What sets it apart from others of its strategy, but for some settings."""
        return ", ".join(_phrase(key, value) for key, value in self.variant.items() if key not in but)

    def has(self, layer: str) -> bool:
        """Whether all finished runs know a width."""
        return all(run.result is not None and layer in run.result.widths for run in self.finished)

    def statistic(self, of: Callable[[Result], float]) -> Statistic | None:
        """Mean and deviation over finished runs."""
        return statistic([of(run.result) for run in self.runs if run.result is not None])


@dataclass(frozen=True)
class Section:
    """A study as the report shows it."""

    name: str  # fit for a file's
    title: str
    accuracy: str  # what kind of accuracy it is
    keys: Sequence[str]  # settings that differ
    configurations: Sequence[Configuration]

    @property
    def runs(self) -> list[Run]:
        return [run for configuration in self.configurations for run in configuration.runs]

    @property
    def finished(self) -> list[Configuration]:
        """The configurations that have a finished run."""
        return [configuration for configuration in self.configurations if configuration.finished]

    @property
    def seeds(self) -> str:
        """How to read what is drawn of a configuration; nothing where each is a single run."""
        several = any(len(configuration.finished) > 1 for configuration in self.configurations)
        return ": mean over seeds, with a cloud of one standard deviation" if several else ""

    @property
    def standard(self) -> str:
        """What widths are relative to."""
        known = all(run.result.standard_widths for run in self.runs if run.result is not None)
        return "the standard network" if known else "the initial width"

    @property
    def layers(self) -> list[str]:
        """The names of all widths, in order."""
        results = [run.result.widths for run in self.runs if run.result is not None]
        return list(dict.fromkeys(name for widths in sorted(results, key=len, reverse=True) for name in widths))

    def numbers(self, key: str) -> list[float]:
        """The different numbers that a setting has, in order; none if it does not vary within a strategy."""
        if not any(key in c.variant for c in self.finished):
            return []
        return sorted({c.values[key] for c in self.finished if isinstance(c.values.get(key), (int, float))})


def panels(configurations: Sequence[Configuration]) -> list[tuple[str, list[Configuration]]]:
    """Configurations by variant, each with those that have no variants of their own and do not contradict it."""
    variants = {c.label(): c.variant for c in configurations if c.variant} or {"": {}}
    return [
        (label, [c for c in configurations if c.variant == variant or (not c.variant and _fits(c.values, variant))])
        for label, variant in variants.items()
    ]


def section(study: Study, name: str) -> Section:
    """The runs of a study by configuration."""
    rows = {id(run): _relevant(run.settings) for run in study.runs}
    different = _different(list(rows.values()))
    keys = _telling(different, list(rows.values()))
    groups: dict[str, list[Run]] = {}
    for run in study.runs:
        row = rows[id(run)]
        groups.setdefault(_values(row, ("strategy", *keys)), []).append(run)
    configurations = []
    for runs in groups.values():
        row = rows[id(runs[0])]
        alike = [other for other in rows.values() if other["strategy"] == row["strategy"]]
        values = {key: row[key] for key in keys if key in row}
        variant = {key: row[key] for key in _telling(keys, alike) if key in row}
        ordered = sorted(runs, key=lambda run: run.settings["seed"])
        configurations.append(Configuration(row["strategy"], values, variant, ordered))
    configurations.sort(key=lambda c: (rank(c.strategy), [_sortable(c.values.get(key)) for key in keys]))
    preset = study.runs[0].settings["preset"]
    alone = len(configurations) == 1 and study.title == preset
    title = f"{configurations[0].name} on {preset}" if alone else study.title
    return Section(name, title, _accuracy(study.runs), keys, configurations)


def lost(configurations: Sequence[Configuration], limit: int = 4) -> str:
    """Which runs are not in a figure of these configurations, and why; empty where all are."""
    every = [run for c in configurations for run in c.runs]
    gone = {state: [(c, run) for c in configurations for run in c.runs if run.state == state] for state in STATES[1:]}
    parts = []
    for state, runs in gone.items():
        if not runs:
            continue
        named = [f"{c.name}{f' ({c.label()})' if c.label() else ''} seed {run.settings['seed']}" for c, run in runs]
        most = 0 if state == "missing" and len(named) > limit else limit
        more = f" and {len(named) - most} more" if len(named) > most > 0 else ""
        parts.append(f"{len(named)} {state}" + (f" ({', '.join(named[:most])}{more})" if most else ""))
    return f"{sum(map(len, gone.values()))} of {len(every)} runs are not shown: {', '.join(parts)}" if parts else ""


def slug(text: str) -> str:
    """A text as part of a file's name.

    Example:
        >>> slug("MNIST, dynamic / seed 1")
        'mnist-dynamic-seed-1'
    """
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")[:80] or "unnamed"


def _relevant(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a run looks at; keeping the least orthogonal candidates makes another strategy."""
    strategy = settings["strategy"]
    scheduled = settings.get("schedule", "dynamic") != "dynamic"
    idle = _GROWTH if strategy in STATIC else ("gamma",) if strategy in GRADIENT or scheduled else ()
    kept = {key: value for key, value in settings.items() if key not in idle or key == SIZES.get(strategy)}
    return {**kept, "strategy": strategy_of(settings)}


def _different(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    every = {key for row in rows for key in row if key not in _COMMON}
    different = {key for key in every if len({_values(row, [key]) for row in rows if key in row}) > 1}
    return [key for key in _FIRST if key in different] + sorted(different - set(_FIRST))


def _telling(keys: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys that do not follow from those before them, as the number of epochs does from that of features."""
    kept: list[str] = []
    for key in keys:
        followed: dict[str, set[str]] = {}
        for row in rows:
            followed.setdefault(_values(row, kept), set()).add(_values(row, [key]))
        if any(len(values) > 1 for values in followed.values()):
            kept.append(key)
    return kept


def _values(row: Mapping[str, Any], keys: Sequence[str]) -> str:
    return json.dumps({key: row[key] for key in keys if key in row}, sort_keys=True)


def _sortable(value: Any) -> tuple[int, float, str]:
    if isinstance(value, (int, float)):
        return 1, float(value), ""
    return (0, 0.0, "") if value is None else (2, 0.0, str(value))


def _fits(values: Mapping[str, Any], variant: Mapping[str, Any]) -> bool:
    return all(values.get(key) is None or values[key] == value for key, value in variant.items())


def _accuracy(runs: Sequence[Run]) -> str:
    held_out = {bool(run.settings.get("holdout")) for run in runs}
    return "accuracy" if len(held_out) > 1 else "validation accuracy" if True in held_out else "test accuracy"


def _phrase(key: str, value: Any) -> str:
    if key in ("schedule", "metric"):
        return shown(value)
    if key in ("features", "hidden"):
        noun = "feature" if key == "features" else "hidden layer"
        return f"{shown(value)} {noun}{'' if value == 1 else 's'}"
    return f"{'lr' if key == 'learning_rate' else heading(key)} {shown(value)}"
