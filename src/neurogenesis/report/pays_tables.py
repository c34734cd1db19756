"""The tables of a comparison of grown with static networks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ..experiments.record import Result
from .names import display_name, format_value, heading
from .numbers import NONE, plus_minus, signed
from .pays import (
    Comparison,
    Difference,
    Setting,
    Summary,
    accuracy,
    factor,
    has_loss,
    lowest_loss,
    parameters,
    seconds,
    standard_error,
    summarize,
)
from .sections import Configuration
from .statistics import Statistic, statistic
from .tables import Cell, Table

_OUTSIDE = " †"
_FEW = 4  # up to this many widths are shown one by one


def comparison_tables(comparison: Comparison) -> list[Table]:
    """Each strategy over all settings, in each setting, and by its test loss if runs have recorded it."""
    losses = losses_table(comparison)
    return [summary_table(comparison), settings_table(comparison), *([losses] if losses else [])]


def losses_table(comparison: Comparison) -> Table | None:
    """For each setting and growing strategy: the test loss, and that of the best static network; None without any."""
    settings = [setting for setting in comparison.settings if setting.lowest_static is not None]
    pairs = [(setting, c) for setting in settings for c in setting.grown if has_loss(c)]
    if not pairs:
        return None
    names = _names(settings)
    columns = [
        "strategy", "preset", *map(heading, names), "seeds", "lowest test loss", "last test loss", "best static",
        "its size", "smallest as good", "shape from scratch", "widths", "parameters", "time",
    ]  # fmt: skip
    rows = [
        [Cell(c.name, _place(comparison, c)), *_settings(comparison, setting, names), _seeds(c), *_losses(setting, c)]
        for setting, c in pairs
    ]
    caption = (
        "Means over seeds. Best static: the static network with the lowest loss, ± its standard error. Smallest as "
        "good: the smallest static network within one standard error of it. Shape from scratch: the lowest loss of the "
        "grown shapes, trained from scratch. Parameters are relative to the smallest as good, and the time of a "
        "gradient step, growth included, to the shapes from scratch."
    )
    return Table("Test loss", caption, columns, rows)


def _losses(setting: Setting, c: Configuration) -> list[Cell]:
    best, smallest, shape = setting.lowest_static, setting.smallest_as_good, setting.shape_of(c)
    assert best is not None and smallest is not None
    found, of_best = lowest_loss(c), lowest_loss(best)
    ends = [result.test_loss for result in c.results]
    last = None if None in ends else statistic([end for end in ends if end is not None])
    error = standard_error(of_best)
    of_shape = lowest_loss(shape) if shape is not None and has_loss(shape) else None
    size = _ratio(c, smallest, parameters)
    time = None if shape is None else _ratio(c, shape, lambda result: seconds(result) / max(1, result.steps))
    return [
        Cell(f"{found.mean:.4f}", found.mean),
        Cell(NONE if last is None else f"{last.mean:.4f}", math.inf if last is None else last.mean),
        Cell(f"{of_best.mean:.4f}" + ("" if error is None else f" ± {error:.4f}"), of_best.mean),
        *(Cell(str(each.runs[0].settings.shape), _statistic(each, parameters).mean) for each in (best, smallest)),
        Cell(NONE if of_shape is None else f"{of_shape.mean:.4f}", math.inf if of_shape is None else of_shape.mean),
        Cell(_mean_widths(c), _statistic(c, parameters).mean),
        Cell(f"{size:.2f}", size),
        Cell(NONE if time is None else f"{time:.2f}", time or 0.0),
    ]


def _ratio(c: Configuration, other: Configuration, quantity: Callable[[Result], float]) -> float:
    """The mean of a quantity relative to that of another configuration."""
    return _statistic(c, quantity).mean / _statistic(other, quantity).mean


def _statistic(c: Configuration, quantity: Callable[[Result], float]) -> Statistic:
    found = c.statistic(quantity)
    assert found is not None
    return found


def _names(settings: Sequence[Setting]) -> list[str]:
    """The names of all settings that differ."""
    return list(dict.fromkeys(name for setting in settings for name in setting.values))


def settings_table(comparison: Comparison) -> Table:
    """For each setting and strategy: accuracy, size, and the differences from static networks."""
    names = _names(comparison.settings)
    columns = [
        "strategy", "preset", *map(heading, names), "seeds", f"{comparison.accuracy}, %", "parameters", "widths",
        "minus static of the same parameters", "minus static of the same time", "sizes over seeds",
    ]  # fmt: skip
    rows = [
        [Cell(c.name, _place(comparison, c)), *_settings(comparison, setting, names), *_results(setting, c)]
        for setting in comparison.settings
        for c in (*setting.compared, *([setting.best_static] if setting.best_static else []))
    ]
    caption = (
        "Accuracy: mean ± standard deviation over seeds. Differences: mean ± standard error, in points of accuracy, "
        "from the curve of static networks, which is linear over the logarithm of parameters, or of seconds of "
        "training, without those that are both slower and less accurate than others;"
        f"{_OUTSIDE} marks networks beyond the ends of the curve, which are compared with its end. Sizes over "
        "seeds: the largest number of parameters as a multiple of the smallest. Widths: means over seeds, or the range "
        "relative to the standard network. Static is the best static network of the setting. Of real targets, accuracy "
        "is the part of the variance that is explained."
    )
    return Table("Every setting", caption, columns, rows)


def summary_table(comparison: Comparison) -> Table:
    """Each strategy over all settings, and over those of each preset, without those of real targets."""
    presets, classified = comparison.presets, [setting for setting in comparison.settings if not setting.real]
    groups = [("all" if len(presets) > 1 else presets[0], classified)]
    if len(presets) > 1:
        groups += [(name, [setting for setting in classified if setting.preset == name]) for name in presets]
    columns = [
        "strategy", "preset", "settings", "minus static of the same parameters", "minus static of the same time",
        "settings below the curve", "largest gap to the best static", "sizes over seeds", "sizes over settings",
    ]  # fmt: skip
    rows = [
        [Cell(display_name(strategy), float(place)), Cell(name, float(group)), *_summary(found)]
        for group, (name, settings) in enumerate(groups)
        for place, strategy in enumerate(comparison.strategies)
        if (found := summarize(settings, strategy)) is not None
    ]
    caption = (
        "Differences: mean ± standard error over settings, in points of accuracy. Below the curve: by more than one "
        "standard error of the difference, of those settings that have several seeds. Gap: accuracy of the best static "
        "network of the setting minus that of the strategy, the largest of all settings. Sizes: the largest number of "
        "parameters as a multiple of the smallest, over the seeds of a setting or over all runs of a preset."
    )
    return Table("Does growing pay?", caption, columns, rows)


def _settings(comparison: Comparison, setting: Setting, names: Sequence[str]) -> list[Cell]:
    cells = [Cell(setting.preset, float(comparison.presets.index(setting.preset)))]
    for name in names:
        value = setting.values.get(name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        cells.append(Cell(format_value(value), float(value) if number else format_value(value)))  # type: ignore[arg-type]
    return cells


def _results(setting: Setting, c: Configuration) -> list[Cell]:
    sizes = _statistic(c, parameters)
    widths = setting.section.widths
    shape = _relative_range(c, widths) if len(widths) > _FEW else _mean_widths(c)
    is_curve = c in setting.static
    ratio = factor(c.results)
    return [
        _seeds(c),
        Cell(plus_minus(accuracy(c), ".2f"), accuracy(c).mean),
        Cell(f"{sizes.mean:,.0f}", sizes.mean),
        Cell(shape, sizes.mean),
        *(_difference(None if is_curve else setting.difference(c, quantity)) for quantity in (parameters, seconds)),
        Cell(NONE if is_curve else f"{ratio:.2f}", ratio),
    ]


def _seeds(c: Configuration) -> Cell:
    """The number of finished runs, and of all if there are more."""
    finished, every = len(c.results), len(c.runs)
    return Cell(str(finished) if finished == every else f"{finished} of {every}", finished)


def _mean_widths(c: Configuration) -> str:
    """Final sizes, as means over seeds."""
    widths = [width for width in c.results[0].widths if c.has(width)]
    sizes = [sum(result.widths[width] for result in c.results) / len(c.results) for width in widths]
    return "-".join(f"{size:.0f}" for size in sizes)


def _relative_range(c: Configuration, widths: Sequence[str]) -> str:
    """The least and the largest of the final sizes, relative to the reference."""
    sizes = [result.relative_size(width) for result in c.results for width in widths if c.has(width)]
    least, largest = f"{min(sizes):.2f}", f"{max(sizes):.2f}"
    return least if least == largest else f"{least} to {largest}"


def _difference(found: Difference | None) -> Cell:
    if found is None:
        return Cell(NONE, float("-inf"))
    return Cell(signed(found.mean, found.error) + (_OUTSIDE if found.outside else ""), found.mean)


def _summary(found: Summary) -> list[Cell]:
    return [
        Cell(str(found.settings), found.settings),
        *(_difference(each) for each in (found.by_parameters, found.by_time)),
        Cell(f"{found.below} of {found.with_error}" if found.with_error else NONE, found.below),
        Cell(NONE if found.gap is None else signed(found.gap, None), -1e9 if found.gap is None else found.gap),
        Cell(f"{found.seeds_factor:.2f}", found.seeds_factor),
        Cell(f"{found.preset_factor:.2f}", found.preset_factor),
    ]


def _place(comparison: Comparison, c: Configuration) -> float:
    strategies = comparison.strategies
    return float(strategies.index(c.strategy) if c.strategy in strategies else len(strategies))
