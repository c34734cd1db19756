"""Grown networks against static ones: differences in accuracy at the same size, operations, and time of training.

Static networks of several sizes form a curve: their mean accuracies over seeds, linear in between over the logarithm of
parameters, of operations of a forward pass, or of the operations or seconds of the whole training; of the last two
without networks that take more and are less accurate than others. A grown network is compared with the curve at its own
position.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from ..experiments.errors import UsageError
from ..experiments.presets import GROWTH_SETTINGS, NAMES, PRESETS, settings_from
from ..experiments.record import RecordedSettings
from ..experiments.settings import DEEPENING, SHAPED, SIZES
from ..experiments.shapes import SHAPES
from .names import is_shape, is_static, phrase, shape_of, strategy_name, strategy_rank
from .runs import Run, Study
from .sections import Configuration, Section, make_section

_WITHIN = (
    NAMES.strategy, NAMES.seed, NAMES.shape, NAMES.shape_of, *SIZES.values(), *GROWTH_SETTINGS
)  # fmt: skip
_FIRST = (NAMES.learning_rate, NAMES.decay)
_LEAST_POSITION = 1e-6  # a position must be positive, as it has a logarithm

Quantity = Literal["parameters", "flops", "training_flops", "seconds"]
_OF_TRAINING: tuple[Quantity, ...] = ("training_flops", "seconds")
Measure = Literal["accuracy", "lowest_test_loss"]


@dataclass(frozen=True, eq=False)
class StaticCurve:
    """Static networks of several sizes, in the order of their positions, and straight lines between them.

    Example:
        >>> curve = StaticCurve([0.0, 1.0], means=[90.0, 92.0], errors=[0.3, 0.4])
        >>> curve.at([0.5, 7.0]).tolist(), round(curve.error_at([0.5]), 2)
        ([91.0, 92.0], 0.25)
    """

    positions: Sequence[float]
    means: Sequence[float]
    errors: Sequence[float]
    """Standard errors of the means; not a number for a single seed."""

    def covers(self, positions: Sequence[float]) -> bool:
        """Whether all positions are between the first and the last network."""
        return bool(self.positions[0] <= min(positions) and max(positions) <= self.positions[-1])

    def at(self, positions: Sequence[float]) -> np.ndarray:
        """The means at some positions; beyond the ends, those of the ends."""
        return np.interp(positions, self.positions, self.means)

    def error_at(self, positions: Sequence[float]) -> float:
        r"""The standard error of the curve's mean over some positions; not a number if one that counts is unknown.

        :math:`\sqrt{\sum_j \bar w_j^2 e_j^2}`, where :math:`\bar w_j` is the mean weight of network j.
        """
        weights = [np.interp(positions, self.positions, one).mean() for one in np.eye(len(self.positions))]
        return math.hypot(*(weight * error for weight, error in zip(weights, self.errors, strict=True) if weight > 0))


class Difference(NamedTuple):
    """The mean difference from a curve, in points of accuracy, and its standard error."""

    mean: float
    error: float
    """Not a number if there is a single seed."""
    outside: bool
    """Whether a network is beyond the ends of the curve, and was compared with the end."""


def difference(positions: Sequence[float], accuracies: Sequence[float], curve: StaticCurve) -> Difference:
    r"""The mean over networks of accuracy minus the curve at the network's own position.

    .. math:: e^2 = \frac{s^2}{n} + \sum_j \bar w_j^2 e_j^2

    with the standard deviation s of the n differences, and the error of the curve. Seeds are not paired: a grown and a
    static network of the same seed see samples in the same order, but have neither sizes nor initial weights in common,
    and with few seeds the deviation of paired differences would be known less well. If the order did matter, the error
    would be too large, not too small. It says how much other seeds would change the difference. The test
    samples are the same for all, but for tables, which are divided by the seed.

    Example:
        >>> curve = StaticCurve([0.0, 1.0], means=[90.0, 92.0], errors=[0.3, 0.4])
        >>> difference([0.5, 0.5], [91.5, 92.5], curve)
        Difference(mean=1.0, error=0.5590169943749475, outside=False)
    """
    found = pd.Series(accuracies) - curve.at(positions)
    error = math.hypot(found.sem(), curve.error_at(positions))
    return Difference(float(found.mean()), error, not curve.covers(positions))


def compares_with_static(runs: Iterable[RecordedSettings]) -> bool:
    """Whether runs are grown networks and static ones of at least two sizes.

    Added blocks, and networks that predict characters, are compared by loss and compute.
    """
    every = [settings for settings in runs if not settings.language]
    sizes = {settings.shape for settings in every if _uniform(settings)}
    return len(sizes) > 1 and not all(
        is_static(strategy_name(settings)) or settings.strategy in DEEPENING for settings in every
    )


def _uniform(settings: RecordedSettings) -> bool:
    """Whether it is a static network with one size for all widths."""
    return settings.strategy == SHAPED and settings.shape_of is None and "-" not in str(settings.shape)


@dataclass(frozen=True, eq=False)
class Setting:
    """Networks that are comparable: of the same preset, learning rate and decay."""

    preset: str
    values: Mapping[str, Any]
    """Learning rate, decay, and others that vary in the study."""
    section: Section

    @property
    def title(self) -> str:
        decay = {"none": "constant", None: ""}.get(self.values.get(NAMES.decay), self.values.get(NAMES.decay))
        others = [phrase(name, value) for name, value in self.values.items() if name != NAMES.decay]
        return ", ".join([self.preset, *others, *([str(decay)] if decay else [])])

    @property
    def real(self) -> bool:
        """Whether targets are real numbers: then what is called accuracy is the part of the variance explained."""
        name = f"{self.preset}/{self.section.runs[0].settings.table}"
        return name in SHAPES and SHAPES[name][2] == 1

    @property
    def usual(self) -> bool:
        """Whether the values are those of the preset."""
        return self.preset in PRESETS and _is_usual(self.preset, self.values)

    @cached_property
    def static(self) -> list[Configuration]:
        """The static networks of the curve, by size."""
        found = [c for c in self.section.finished if _uniform(c.runs[0].settings)]
        return sorted(found, key=lambda c: c.results["parameters"][0])

    @cached_property
    def compared(self) -> list[Configuration]:
        """The networks that are compared with the curve."""
        return [c for c in self.section.finished if c.strategy != SHAPED]

    @property
    def grown(self) -> list[Configuration]:
        """The networks that have grown."""
        return [c for c in self.compared if not is_shape(c.strategy)]

    @property
    def best_static(self) -> Configuration | None:
        """The static network with the highest mean accuracy."""
        return max(self.static, key=lambda c: c.results["accuracy"].mean(), default=None)

    @cached_property
    def lowest_static(self) -> Configuration | None:
        """The static network with the lowest mean test loss; None if one has none."""
        known = all(map(has_loss, self.static))
        return min(self.static if known else [], key=lambda c: c.results["lowest_test_loss"].mean(), default=None)

    @property
    def smallest_as_good(self) -> Configuration | None:
        """The smallest static network whose lowest loss is within one standard error of the lowest of all."""
        if self.lowest_static is None:
            return None
        best = self.lowest_static.results["lowest_test_loss"]
        most = best.mean() + np.nan_to_num(best.sem())
        return next(c for c in self.static if c.results["lowest_test_loss"].mean() <= most)

    def shape_of(self, c: Configuration) -> Configuration | None:
        """The shapes that a strategy has grown, trained from scratch."""
        return next((other for other in self.compared if other.strategy == shape_of(c.strategy)), None)

    def curve(self, quantity: Quantity, measure: Measure = "accuracy") -> StaticCurve | None:
        """Accuracy, or loss, of static networks against the logarithm of a quantity; None if it was not recorded.

        Every size is a static network of its parameters and its operations. But nobody trains longer for less accuracy,
        and times of small networks differ by chance: over what a training takes, only those count that are better than
        all that take less.
        """
        if not self.static or not all(has_all(c, quantity) for c in self.static):
            return None
        rows = [(_positions(c, quantity).mean(), c.results[measure].mean(), c.results[measure].sem())
                for c in self.static]  # fmt: skip
        points = pd.DataFrame(rows, columns=["position", "mean", "error"])
        points = points.drop_duplicates("position", keep="last").sort_values("position")
        if quantity in _OF_TRAINING:
            points = points[points["mean"] > points["mean"].cummax().shift(fill_value=-math.inf)]
        return StaticCurve(*(points[name].tolist() for name in points))

    def difference(self, c: Configuration, quantity: Quantity) -> Difference | None:
        """Accuracy minus that of static networks with the same quantity; None where it was not recorded."""
        curve = self.curve(quantity) if has_all(c, quantity) else None
        return difference(_positions(c, quantity), c.results["accuracy"], curve) if curve else None


def has_all(c: Configuration, column: str) -> bool:
    """Whether all runs have a number in a column of their results; runs of earlier versions lack some."""
    return bool(c.results[column].notna().all())


def has_loss(c: Configuration) -> bool:
    """Whether all runs have a test loss."""
    return has_all(c, "lowest_test_loss")


def _positions(c: Configuration, quantity: Quantity) -> pd.Series:
    return np.log(c.results[quantity].clip(lower=_LEAST_POSITION))


@dataclass(frozen=True, eq=False)
class AgainstStatic:
    """A study that compares grown networks with static ones in several settings."""

    name: str
    """The name as part of file names."""
    title: str
    settings: Sequence[Setting]

    @property
    def accuracy(self) -> str:
        """The kind of accuracy."""
        kinds = {setting.section.accuracy for setting in self.settings}
        return kinds.pop() if len(kinds) == 1 else "accuracy"

    @property
    def runs(self) -> list[Run]:
        return [run for setting in self.settings for run in setting.section.runs]

    @property
    def configurations(self) -> list[Configuration]:
        return [c for setting in self.settings for c in setting.section.configurations]

    @property
    def presets(self) -> list[str]:
        return list(dict.fromkeys(setting.preset for setting in self.settings))

    @property
    def strategies(self) -> list[str]:
        """The strategies that are compared with static networks."""
        return sorted({c.strategy for setting in self.settings for c in setting.compared}, key=strategy_rank)


def make_against_static(study: Study, name: str) -> AgainstStatic:
    """The runs of a study by setting."""
    every = [_between(run.settings) for run in study.runs]
    varied = _varied(every)
    groups: dict[str, tuple[dict[str, Any], list[Run]]] = {}
    for run, row in zip(study.runs, every, strict=True):
        values = {name: row.get(name) for name in varied}
        groups.setdefault(repr((run.settings.preset, values)), (values, []))[1].append(run)
    settings = [
        Setting(runs[0].settings.preset, values, make_section(Study(name, name, runs), name))
        for values, runs in groups.values()
    ]
    return AgainstStatic(name, study.title, sorted(settings, key=_order))


def _between(settings: RecordedSettings) -> dict[str, Any]:
    """The settings by which runs are divided. Epochs count if they are not those that follow from the others."""
    values = {name: value for name, value in settings.items() if name not in _WITHIN}
    if NAMES.epochs in values and values[NAMES.epochs] == _usual_epochs(settings):
        del values[NAMES.epochs]
    return values


def _usual_epochs(settings: RecordedSettings) -> int | None:
    """The epochs that follow from other settings; None for records of other versions, which may have other settings."""
    try:
        return settings_from(dict(settings)).usual_epochs
    except (KeyError, TypeError, ValueError, UsageError):
        return None


def _varied(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Learning rate, decay, and other settings that vary among the runs of a preset; of tables, only these."""
    names = dict.fromkeys(name for row in rows for name in row if name not in (NAMES.preset, *_FIRST))
    texts = pd.DataFrame([{name: json.dumps(row.get(name), sort_keys=True) for name in names} for row in rows])
    different = texts.groupby([row[NAMES.preset] for row in rows]).nunique().max()
    others = [name for name in names if different[name] > 1]
    usual = all(row[NAMES.preset] in PRESETS and _is_usual(row[NAMES.preset], row) for row in rows)
    return others if NAMES.table in others and usual else [*_FIRST, *others]


def _is_usual(preset: str, values: Mapping[str, Any]) -> bool:
    """Whether learning rate and decay are those of the preset."""
    usual = PRESETS[preset]()
    return all(getattr(usual, name) == values.get(name, getattr(usual, name)) for name in _FIRST)


def _order(setting: Setting) -> tuple[Any, ...]:
    known, values = list(PRESETS), setting.values
    place = known.index(setting.preset) if setting.preset in known else len(known)
    rest = [
        (0, value, "") if isinstance(value, int | float) else (1, 0, repr(value))
        for name, value in values.items()
        if name not in _FIRST
    ]
    return place, setting.preset, values.get(NAMES.decay) != "none", values.get(NAMES.learning_rate) or 0.0, rest
