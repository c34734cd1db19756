"""A section of the report: the runs of a study by configuration, that is by everything but the seed."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from ..experiments.presets import GROWTH_SETTINGS, NAMES
from ..experiments.record import RecordedSettings, Result
from ..experiments.settings import SIZES, STATIC
from ..experiments.studies import GRADIENT
from .names import display_name, is_static, phrase, strategy_name, strategy_rank
from .runs import STATES, Run, Study

_UNUSED_BY_STATIC = (*GROWTH_SETTINGS, *SIZES.values())
_NEVER_VARIED = (NAMES.preset, NAMES.strategy, NAMES.seed, NAMES.least, NAMES.shape_of)
_FIRST = (
    NAMES.schedule, NAMES.metric, NAMES.gamma, NAMES.batch, NAMES.learning_rate, NAMES.hidden, NAMES.features,
)  # fmt: skip
_NUMBERS = (
    "seed", "accuracy", "parameters", "seconds", "steps", "test_loss", "lowest_test_loss", "bits_per_character",
    "flops", "training_flops",
)  # fmt: skip


def results_frame(pairs: Sequence[tuple[Any, Result]]) -> pd.DataFrame:
    """A row for each seed and its result; accuracies are in percent."""
    rows = [{**vars(result), "seed": seed, "accuracy": 100 * result.accuracy} for seed, result in pairs]
    frame = pd.DataFrame(rows).rename(columns={"train_seconds": "seconds"})
    return frame.reindex(columns=_NUMBERS).astype(dict.fromkeys(_NUMBERS[1:], float))


@dataclass(frozen=True, eq=False)
class Configuration:
    """Runs that differ only in their seeds."""

    strategy: str
    values: Mapping[str, Any]
    """Settings that vary in the section, as far as this strategy uses them."""
    variant: Mapping[str, Any]
    """The values that vary among the runs of this strategy."""
    runs: Sequence[Run]

    @property
    def static(self) -> bool:
        return is_static(self.strategy)

    @property
    def name(self) -> str:
        """The strategy in print."""
        return display_name(self.strategy)

    @property
    def scheduled(self) -> bool:
        """Whether the network grows on a fixed schedule."""
        return not self.static and bool(self.runs[0].settings.schedule != "dynamic")

    def label(self, without: Collection[str] = ()) -> str:
        """What distinguishes it from other configurations of its strategy."""
        return ", ".join(phrase(name, value) for name, value in self.variant.items() if name not in without)

    @property
    def finished(self) -> list[Run]:
        return [run for run in self.runs if run.result is not None]

    @cached_property
    def results(self) -> pd.DataFrame:
        """The results of the finished runs, as `results_frame` has them."""
        return results_frame([(run.settings.seed, run.result) for run in self.runs if run.result is not None])

    @cached_property
    def widths(self) -> pd.DataFrame:
        """The final sizes of the widths that all finished runs have: a row for each run, a column for each width."""
        return pd.DataFrame([run.result.widths for run in self.runs if run.result is not None]).dropna(axis=1)

    @cached_property
    def reference_widths(self) -> pd.DataFrame:
        """The sizes in the standard network, or the initial sizes where there is no standard network."""
        results = [run.result for run in self.runs if run.result is not None]
        return pd.DataFrame([result.standard_widths or result.initial_widths for result in results])

    @property
    def relative_widths(self) -> pd.DataFrame:
        """The final sizes relative to the reference."""
        return self.widths / self.reference_widths[self.widths.columns]


@dataclass(frozen=True, eq=False)
class Section:
    """A study as the report shows it."""

    name: str
    """The name as part of file names."""
    title: str
    accuracy: str
    """The kind of accuracy: of tests or of validation."""
    varied: Sequence[str]
    """The settings that vary."""
    configurations: Sequence[Configuration]

    @property
    def runs(self) -> list[Run]:
        return [run for configuration in self.configurations for run in configuration.runs]

    @cached_property
    def results(self) -> pd.DataFrame:
        """The results of all finished runs, each with its configuration's index, strategy and variant."""
        return table_of(self.finished)

    @property
    def finished(self) -> list[Configuration]:
        """The configurations that have a finished run."""
        return [configuration for configuration in self.configurations if configuration.finished]

    @property
    def several_seeds(self) -> bool:
        """Whether any configuration has more than one finished run."""
        return any(len(configuration.finished) > 1 for configuration in self.configurations)

    @property
    def reference(self) -> str:
        """What relative sizes are relative to."""
        standard = all(run.result.standard_widths for run in self.runs if run.result is not None)
        return "the standard network" if standard else "the initial size"

    @property
    def widths(self) -> list[str]:
        """The names of all widths, in the order of the network."""
        widths = sorted((run.result.widths for run in self.runs if run.result is not None), key=len, reverse=True)
        return list(dict.fromkeys(name for sizes in widths for name in sizes))

    def numbers(self, setting: str) -> list[float]:
        """The numbers that a setting takes, sorted; none if it does not vary within a strategy."""
        if not any(setting in c.variant for c in self.finished):
            return []
        return sorted({c.values[setting] for c in self.finished if isinstance(c.values.get(setting), (int, float))})


def table_of(configurations: Sequence[Configuration]) -> pd.DataFrame:
    """The results of configurations, each with its configuration's index, strategy and variant."""
    frames = [
        c.results.assign(configuration=index, strategy=c.name, variant=c.label())
        for index, c in enumerate(configurations)
    ]
    return (
        pd.concat(frames, ignore_index=True)
        if frames
        else pd.DataFrame(columns=[*_NUMBERS, "configuration", "strategy", "variant"])
    )


def make_section(study: Study, name: str) -> Section:
    """The runs of a study by configuration."""
    used = [_used_settings(run.settings) for run in study.runs]
    frame = pd.DataFrame([{name: json.dumps(value, sort_keys=True) for name, value in row.items()} for row in used])
    names = [column for column in frame if column not in _NEVER_VARIED and frame[column].nunique() > 1]
    ordered = [*(each for each in _FIRST if each in names), *sorted(set(names) - set(_FIRST))]
    varied = _independent(ordered, frame)
    configurations = []
    for indices in _groups(frame, [NAMES.strategy, *varied]).indices.values():
        settings = used[indices[0]]
        alike = frame[frame[NAMES.strategy] == frame[NAMES.strategy][indices[0]]]
        values = {key: settings[key] for key in varied if key in settings}
        variant = {key: settings[key] for key in _independent(varied, alike) if key in settings}
        by_seed = sorted((study.runs[index] for index in indices), key=lambda run: run.settings.seed)
        configurations.append(Configuration(settings[NAMES.strategy], values, variant, by_seed))
    configurations.sort(key=lambda c: (strategy_rank(c.strategy), [_sort_key(c.values.get(key)) for key in varied]))
    preset = study.runs[0].settings.preset
    single = len(configurations) == 1 and study.title == preset
    title = f"{configurations[0].name} on {preset}" if single else study.title
    return Section(name, title, _accuracy(study.runs), varied, configurations)


def panels(configurations: Sequence[Configuration]) -> list[tuple[str, list[Configuration]]]:
    """Configurations by variant; those without variants are in every panel that they do not contradict."""
    variants = {c.label(): c.variant for c in configurations if c.variant} or {"": {}}
    return [
        (label, [c for c in configurations if c.variant == variant or (not c.variant and _agree(c.values, variant))])
        for label, variant in variants.items()
    ]


def missing_note(configurations: Sequence[Configuration], limit: int = 4) -> str:
    """Which runs a figure of these configurations does not show, and why; empty if it shows all."""
    parts, missing = [], 0
    for state in STATES[1:]:
        runs = [(c, run) for c in configurations for run in c.runs if run.state == state]
        if not runs:
            continue
        missing += len(runs)
        names = [f"{c.name}{f' ({c.label()})' if c.label() else ''} seed {run.settings.seed}" for c, run in runs]
        most = 0 if state == "missing" and len(names) > limit else limit
        more = f" and {len(names) - most} more" if len(names) > most > 0 else ""
        parts.append(f"{len(names)} {state}" + (f" ({', '.join(names[:most])}{more})" if most else ""))
    total = sum(len(c.runs) for c in configurations)
    return f"{missing} of {total} runs are not shown: {', '.join(parts)}" if parts else ""


def _used_settings(settings: RecordedSettings) -> dict[str, Any]:
    """The settings that have an effect on a run."""
    unused: tuple[str, ...] = ()
    if settings.strategy in STATIC:
        unused = tuple(name for name in _UNUSED_BY_STATIC if name != SIZES.get(settings.strategy))
        unused += (NAMES.shape,) if settings.shape_of is not None else ()  # seeds grow different ones
    elif settings.strategy in GRADIENT or settings.schedule != "dynamic":
        unused = (NAMES.gamma,)
    used = {name: value for name, value in settings.items() if name not in unused}
    return {**used, NAMES.strategy: strategy_name(settings)}


def _groups(frame: pd.DataFrame, names: Sequence[str]) -> Any:
    return frame.fillna("").groupby(list(names), sort=False)


def _independent(names: Sequence[str], frame: pd.DataFrame) -> list[str]:
    """The settings that do not follow from those before, as the number of epochs follows from that of features."""
    kept: list[str] = []
    for name in names:
        if _groups(frame, [*kept, name]).ngroups > (_groups(frame, kept).ngroups if kept else 1):
            kept.append(name)
    return kept


def _sort_key(value: Any) -> tuple[int, float, str]:
    if isinstance(value, (int, float)):
        return 1, float(value), ""
    return (0, 0.0, "") if value is None else (2, 0.0, str(value))


def _agree(values: Mapping[str, Any], variant: Mapping[str, Any]) -> bool:
    return all(values.get(name) is None or values[name] == value for name, value in variant.items())


def _accuracy(runs: Sequence[Run]) -> str:
    held_out = {bool(run.settings.holdout) for run in runs}
    return "accuracy" if len(held_out) > 1 else "validation accuracy" if True in held_out else "test accuracy"
