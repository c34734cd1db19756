"""Does growing pay: accuracy of grown networks minus that of static ones of the same size, and of the same time.

Static networks of several sizes form a curve: their mean accuracies over seeds, linear in between over the logarithm of
parameters, or of seconds of training, without those that are both slower and less accurate than others. A grown network
is compared with the curve at its own position.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..experiments.errors import UsageError
from ..experiments.presets import GROWTH_SETTINGS, NAMES, PRESETS, settings_from
from ..experiments.record import RecordedSettings, Result
from ..experiments.settings import SHAPED, SIZES
from ..experiments.shapes import SHAPES
from .names import is_shape, is_static, phrase, shape_of, strategy_name, strategy_rank
from .runs import Run, Study
from .sections import Configuration, Section, make_section
from .statistics import Statistic, statistic

_WITHIN = (
    NAMES.strategy, NAMES.seed, NAMES.shape, NAMES.shape_of, *SIZES.values(), *GROWTH_SETTINGS
)  # fmt: skip
_FIRST = (NAMES.learning_rate, NAMES.decay)


@dataclass(frozen=True)
class Point:
    """Static networks of one size: their position on the axis, mean accuracy and its standard error."""

    position: float
    mean: float
    error: float | None
    """None for a single seed."""


@dataclass(frozen=True)
class Curve:
    """Points in the order of their positions, and straight lines between them.

    Example:
        >>> curve = Curve([Point(0.0, 90.0, 0.3), Point(1.0, 92.0, 0.4)])
        >>> curve.mean(0.5), curve.mean(7.0), round(curve.error(0.5), 2)
        (91.0, 92.0, 0.25)
    """

    points: Sequence[Point]

    def covers(self, position: float) -> bool:
        """Whether a position is between the first and the last point."""
        return self.points[0].position <= position <= self.points[-1].position

    def weights(self, position: float) -> dict[int, float]:
        """The weights of the points next to a position, by index; beyond the ends, that of the end."""
        places = [point.position for point in self.points]
        after = bisect_left(places, position)
        if after == 0 or after == len(places):
            return {min(after, len(places) - 1): 1.0}
        part = (position - places[after - 1]) / (places[after] - places[after - 1])
        return {after - 1: 1.0 - part, after: part}

    def mean(self, position: float) -> float:
        """The accuracy at a position."""
        return math.fsum(weight * self.points[index].mean for index, weight in self.weights(position).items())

    def error(self, position: float) -> float | None:
        """The standard error of the accuracy at a position, from those of the points next to it."""
        return self.combined_error([position])

    def combined_error(self, positions: Sequence[float]) -> float | None:
        r"""The standard error of the curve's mean over several positions; None if a point that counts has none.

        :math:`\sqrt{\sum_j \bar w_j^2 e_j^2}`, where :math:`\bar w_j` is the mean weight of point j.
        """
        totals: dict[int, float] = {}
        for position in positions:
            for index, weight in self.weights(position).items():
                totals[index] = totals.get(index, 0.0) + weight / len(positions)
        errors = {index: self.points[index].error for index, total in totals.items() if total > 0}
        if any(error is None for error in errors.values()):
            return None
        return math.hypot(*(totals[index] * (error or 0.0) for index, error in errors.items()))


@dataclass(frozen=True)
class Difference:
    """The mean difference from a curve, in points of accuracy, and its standard error."""

    mean: float
    error: float | None
    """None if there is a single seed."""
    outside: bool
    """Whether a network is beyond the ends of the curve, and was compared with the end."""

    @property
    def below(self) -> bool:
        """Whether it is below the curve by more than one standard error."""
        return self.error is not None and self.mean < -self.error


def difference(networks: Sequence[tuple[float, float]], curve: Curve) -> Difference:
    r"""The mean of accuracy minus the curve at the network's own position, over networks (position, accuracy).

    .. math:: e^2 = \frac{s^2}{n} + \sum_j \bar w_j^2 e_j^2

    with the standard deviation s of the n differences, and the error of the curve. Seeds are not paired: a grown and a
    static network of the same seed see samples in the same order, but have neither sizes nor initial weights in common,
    and with few seeds the deviation of paired differences would be known less well. If the order did matter, the error
    would be too large, not too small. It says how much other seeds would change the difference. The test
    samples are the same for all, but for tables, which are divided by the seed.

    Example:
        >>> curve = Curve([Point(0.0, 90.0, 0.3), Point(1.0, 92.0, 0.4)])
        >>> difference([(0.5, 91.5), (0.5, 92.5)], curve)
        Difference(mean=1.0, error=0.5590169943749475, outside=False)
    """
    found = statistic([accuracy - curve.mean(position) for position, accuracy in networks])
    assert found is not None
    of_curve = curve.combined_error([position for position, _ in networks])
    own = standard_error(found)
    error = None if own is None or of_curve is None else math.hypot(own, of_curve)
    return Difference(found.mean, error, not all(curve.covers(position) for position, _ in networks))


def front(points: Sequence[Point]) -> list[Point]:
    """Those of ordered points that are more accurate than all before them.

    Example:
        >>> [point.mean for point in front([Point(0.0, 91.0, 0.1), Point(0.1, 90.0, 0.1), Point(0.2, 92.0, 0.1)])]
        [91.0, 92.0]
    """
    kept: list[Point] = []
    for point in points:
        if not kept or point.mean > kept[-1].mean:
            kept.append(point)
    return kept


def standard_error(found: Statistic) -> float | None:
    """The standard error of a mean; None for a single value."""
    return None if found.sd is None else found.sd / math.sqrt(found.n)


def compares_with_static(runs: Iterable[RecordedSettings]) -> bool:
    """Whether runs are grown networks and static ones of at least two sizes."""
    every = list(runs)
    sizes = {settings.shape for settings in every if _uniform(settings)}
    return len(sizes) > 1 and not all(is_static(strategy_name(settings)) for settings in every)


def _uniform(settings: RecordedSettings) -> bool:
    """Whether it is a static network with one size for all widths."""
    return settings.strategy == SHAPED and settings.shape_of is None and "-" not in str(settings.shape)


@dataclass(frozen=True)
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
        """Whether targets are real numbers, so that what is called accuracy is the part of the variance explained."""
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
        return sorted(found, key=lambda c: c.results[0].parameters)

    @cached_property
    def compared(self) -> list[Configuration]:
        """Those that are compared with the curve."""
        return [c for c in self.section.finished if c.strategy != SHAPED]

    @property
    def best_static(self) -> Configuration | None:
        """The static network with the highest mean accuracy."""
        return max(self.static, key=lambda c: accuracy(c).mean, default=None)

    @cached_property
    def lowest_static(self) -> Configuration | None:
        """The static network with the lowest mean test loss; None if one has none."""
        if not all(map(has_loss, self.static)):
            return None
        return min(self.static, key=lambda c: lowest_loss(c).mean, default=None)

    @property
    def smallest_as_good(self) -> Configuration | None:
        """The smallest static network whose lowest loss is within one standard error of the best one's."""
        best = self.lowest_static
        if best is None:
            return None
        found = lowest_loss(best)
        most = found.mean + (standard_error(found) or 0.0)
        return next(c for c in self.static if lowest_loss(c).mean <= most)

    def shape_of(self, c: Configuration) -> Configuration | None:
        """The shapes that a strategy has grown, trained from scratch."""
        return next((other for other in self.compared if other.strategy == shape_of(c.strategy)), None)

    @property
    def grown(self) -> list[Configuration]:
        """Those that have grown."""
        return [c for c in self.compared if not is_shape(c.strategy)]

    def curve(
        self, quantity: Callable[[Result], float], measure: Callable[[Configuration], Statistic] | None = None
    ) -> Curve | None:
        """Accuracy, or another measure, of static networks against the logarithm of a quantity; of time, the front.

        Every size is a static network of its number of parameters. But nobody waits longer for less accuracy, and times
        of small networks differ by chance.
        """
        points: dict[float, Point] = {}
        for c in self.static:
            found, place = (measure or accuracy)(c), statistic([math.log(quantity(result)) for result in c.results])
            assert place is not None
            points[place.mean] = Point(place.mean, found.mean, standard_error(found))
        ordered = [points[place] for place in sorted(points)]
        return Curve(front(ordered) if quantity is seconds else ordered) if ordered else None

    def difference(self, c: Configuration, quantity: Callable[[Result], float]) -> Difference | None:
        """Accuracy minus that of static networks with the same quantity."""
        curve = self.curve(quantity)
        networks = [(math.log(quantity(result)), 100 * result.accuracy) for result in c.results]
        return difference(networks, curve) if curve else None

    def gap(self, c: Configuration) -> float | None:
        """Accuracy of the best static network minus that of a configuration."""
        best = self.best_static
        return None if best is None else accuracy(best).mean - accuracy(c).mean


@dataclass(frozen=True)
class Comparison:
    """A study that compares grown networks with static ones in several settings."""

    name: str
    """As part of file names."""
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


def make_comparison(study: Study, name: str) -> Comparison:
    """The runs of a study by setting."""
    every = {id(run): _between(run.settings) for run in study.runs}
    varied = _varied(list(every.values()))
    groups: dict[str, tuple[str, dict[str, Any], list[Run]]] = {}
    for run in study.runs:
        values = {name: every[id(run)].get(name) for name in varied}
        key = repr((run.settings.preset, values))
        groups.setdefault(key, (run.settings.preset, values, []))[2].append(run)
    ordered = sorted(groups.values(), key=lambda group: _order(group[0], group[1]))
    settings = [
        Setting(preset, values, make_section(Study(name, name, runs), name)) for preset, values, runs in ordered
    ]
    return Comparison(name, study.title, settings)


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
    presets: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        presets.setdefault(row[NAMES.preset], []).append(row)
    names = dict.fromkeys(name for row in rows for name in row if name not in (NAMES.preset, *_FIRST))
    others = [
        name for name in names if any(len({repr(row.get(name)) for row in some}) > 1 for some in presets.values())
    ]
    usual = all(preset in PRESETS and _is_usual(preset, row) for preset, some in presets.items() for row in some)
    return others if NAMES.table in others and usual else [*_FIRST, *others]


def _is_usual(preset: str, values: Mapping[str, Any]) -> bool:
    """Whether learning rate and decay are those of the preset."""
    usual = PRESETS[preset]()
    return all(getattr(usual, name) == values.get(name, getattr(usual, name)) for name in _FIRST)


def _order(preset: str, values: Mapping[str, Any]) -> tuple[Any, ...]:
    known = list(PRESETS)
    place = known.index(preset) if preset in known else len(known)
    rest = [
        (0, value, "") if isinstance(value, int | float) else (1, 0, repr(value))
        for name, value in values.items()
        if name not in _FIRST
    ]
    return place, preset, values.get(NAMES.decay) != "none", values.get(NAMES.learning_rate) or 0.0, rest


def accuracy(c: Configuration) -> Statistic:
    """Accuracy over seeds, in percent."""
    found = c.statistic(lambda result: 100 * result.accuracy)
    assert found is not None
    return found


def has_loss(c: Configuration) -> bool:
    """Whether all runs have a test loss, which those of earlier versions have not."""
    return all(result.lowest_test_loss is not None for result in c.results)


def lowest_loss(c: Configuration) -> Statistic:
    """The lowest test loss over seeds."""
    found = statistic([result.lowest_test_loss for result in c.results if result.lowest_test_loss is not None])
    assert found is not None
    return found


def parameters(result: Result) -> float:
    return float(result.parameters)


def seconds(result: Result) -> float:
    """The time of training; a positive one, as it has a logarithm."""
    return max(result.train_seconds, 1e-6)


def factor(results: Collection[Result]) -> float:
    """The largest number of parameters as a multiple of the smallest."""
    sizes = [result.parameters for result in results]
    return max(sizes) / max(1, min(sizes))


@dataclass(frozen=True)
class Summary:
    """A strategy in several settings."""

    strategy: str
    settings: int
    by_parameters: Difference | None
    """The mean of the differences from the curve over parameters."""
    by_time: Difference | None
    below: int
    """The number of settings in which it is below the curve over parameters by more than one standard error."""
    with_error: int
    """The number of settings in which that is known."""
    gap: float | None
    """The largest difference between the best static network and the strategy."""
    seeds_factor: float
    """The largest factor of sizes over seeds."""
    preset_factor: float
    """The largest factor of sizes over everything that differs within a preset."""


def summarize(settings: Sequence[Setting], strategy: str) -> Summary | None:
    """A strategy in those of the settings in which it has finished."""
    pairs = [(setting, c) for setting in settings for c in setting.compared if c.strategy == strategy]
    if not pairs:
        return None
    sized = [found for setting, c in pairs if (found := setting.difference(c, parameters)) is not None]
    timed = [found for setting, c in pairs if (found := setting.difference(c, seconds)) is not None]
    results: dict[str, list[Result]] = {}
    for setting, c in pairs:
        results.setdefault(setting.preset, []).extend(c.results)
    return Summary(
        strategy,
        len(pairs),
        _mean(sized),
        _mean(timed),
        sum(found.below for found in sized),
        sum(found.error is not None for found in sized),
        max((gap for setting, c in pairs if (gap := setting.gap(c)) is not None), default=None),
        max(factor(c.results) for _, c in pairs),
        max(factor(some) for some in results.values()),
    )


def _mean(differences: Sequence[Difference]) -> Difference | None:
    """The mean over settings and its standard error over settings; in a single setting, its own."""
    found = statistic([each.mean for each in differences])
    if found is None:
        return None
    error = standard_error(found) if found.n > 1 else differences[0].error
    return Difference(found.mean, error, any(each.outside for each in differences))
