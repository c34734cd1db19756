"""The tables of a comparison of grown with static networks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from .against_static import AgainstStatic, Difference, Quantity, Setting, has_loss
from .names import display_name, heading
from .numbers import NONE, signed
from .sections import Configuration
from .tables import Cell, Table, make_table, mean_cell, number, seeds, setting_cell

_OUTSIDE = " †"
_FEW = 4  # up to this many widths are shown one by one
_QUANTITIES: dict[Quantity, str] = {
    "parameters": "minus static of the same parameters",
    "flops": "of the same FLOPs",
    "training_flops": "of the same training FLOPs",
    "seconds": "of the same time",
}


def against_static_tables(comparison: AgainstStatic) -> list[Table]:
    """Each strategy over all settings, in each setting, and by its test loss if runs have recorded it."""
    tables = [summary_table(comparison), settings_table(comparison), losses_table(comparison)]
    return [table for table in tables if table is not None and table.rows]


def losses_table(comparison: AgainstStatic) -> Table | None:
    """For each setting and growing strategy: the test loss, and that of the best static network; None without any."""
    settings = [setting for setting in comparison.settings if setting.lowest_static is not None]
    rows = [
        {**_identity(comparison, settings, setting, c), "seeds": seeds(c), **_losses(setting, c)}
        for setting in settings
        for c in setting.grown
        if has_loss(c)
    ]
    caption = (
        "Means over seeds. Best static: the static network with the lowest loss, ± its standard error. Smallest as "
        "good: the smallest static network within one standard error of it. Shape from scratch: the lowest loss of the "
        "grown shapes, trained from scratch. Parameters are relative to the smallest as good, and the time of a "
        "gradient step, growth included, to the shapes from scratch."
    )
    return make_table("Test loss", caption, rows) if rows else None


def settings_table(comparison: AgainstStatic) -> Table:
    """For each setting and strategy: accuracy, size, and the differences from static networks."""
    recorded = _recorded(differences(comparison, real=True))
    rows = [
        {**_identity(comparison, comparison.settings, setting, c), **_results(comparison, setting, c, recorded)}
        for setting in comparison.settings
        for c in (*setting.compared, *([setting.best_static] if setting.best_static else []))
    ]
    caption = (
        "Accuracy: mean ± standard deviation over seeds. Differences: mean ± standard error, in points of accuracy, "
        "from the curve of static networks, which is linear over the logarithm of parameters, of the operations of a "
        "forward pass of the final network, or of the operations or seconds of the whole training; of the last two "
        "without networks that take more and are less accurate than others;"
        f"{_OUTSIDE} marks networks beyond the ends of the curve, which are compared with its end. Sizes over "
        "seeds: the largest number of parameters as a multiple of the smallest. Widths: means over seeds, or the range "
        "relative to the standard network. Static is the best static network of the setting. Of real targets, accuracy "
        "is the part of the variance that is explained."
    )
    return make_table("Every setting", caption, rows)


def summary_table(comparison: AgainstStatic) -> Table | None:
    """Each strategy over all settings, and over those of each preset, without those of real targets."""
    every = differences(comparison)
    if every.empty:
        return None
    presets = comparison.presets
    recorded = _recorded(every)
    groups = {"all": every} if len(presets) > 1 else {}
    groups |= {name: every[every["preset"] == name] for name in presets}
    rows = [
        {
            "strategy": Cell(display_name(strategy), float(place)),
            "preset": Cell(name, float(index)),
            **_summary(group[group["strategy"] == strategy], recorded),
        }
        for index, (name, group) in enumerate(groups.items())
        for place, strategy in enumerate(comparison.strategies)
        if strategy in group["strategy"].to_numpy()
    ]
    caption = (
        "Differences: mean ± standard error over settings, in points of accuracy. FLOPs are those of a forward pass of "
        "the final network, training FLOPs and time those of the whole training. Below the curve: by more than one "
        "standard error of the difference at the same parameters, of those settings that have several seeds. Gap: "
        "accuracy of the best static network of the setting minus that of the strategy, the largest of all settings. "
        "Sizes: the largest number of parameters as a multiple of the smallest, over the seeds of a setting or over "
        "all runs of a preset."
    )
    return make_table("Does growing pay?", caption, rows)


def differences(comparison: AgainstStatic, *, real: bool = False) -> pd.DataFrame:
    """A row for each strategy in each setting: its differences from static networks.

    Settings with real targets, whose accuracy is something else, are left out unless `real`.
    """
    rows = []
    for setting in comparison.settings:
        best = setting.best_static
        for c in setting.compared if real or not setting.real else ():
            sizes, accuracy = c.results["parameters"], c.results["accuracy"].mean()
            row = {"preset": setting.preset, "strategy": c.strategy, "least": sizes.min(), "most": sizes.max()}
            row["gap"] = math.nan if best is None else best.results["accuracy"].mean() - accuracy
            for quantity in _QUANTITIES:
                found = setting.difference(c, quantity) or Difference(math.nan, math.nan, outside=False)
                row |= {quantity: found.mean, f"{quantity} error": found.error, f"{quantity} outside": found.outside}
            rows.append(row)
    return pd.DataFrame(rows)


def _recorded(found: pd.DataFrame) -> dict[Quantity, str]:
    """The quantities at which any network could be compared, with the titles of their columns."""
    return {each: title for each, title in _QUANTITIES.items() if each in found and found[each].notna().any()}


def _summary(found: pd.DataFrame, recorded: Mapping[Quantity, str]) -> dict[str, Cell]:
    """A strategy in several settings."""
    known = found["parameters error"].count()
    below = (found["parameters"] < -found["parameters error"]).sum()
    by_preset = found.groupby("preset")
    gap = found["gap"].max()
    return {
        "settings": Cell(str(len(found)), len(found)),
        **{title: _difference(_mean_difference(found, quantity)) for quantity, title in recorded.items()},
        "settings below the curve": Cell(f"{below} of {known}" if known else NONE, int(below)),
        "largest gap to the best static": Cell(NONE, -1e9) if math.isnan(gap) else Cell(signed(gap), gap),
        "sizes over seeds": number(_factor(found["least"], found["most"]), ".2f"),
        "sizes over settings": number(_factor(by_preset["least"].min(), by_preset["most"].max()), ".2f"),
    }


def _mean_difference(found: pd.DataFrame, quantity: str) -> Difference | None:
    """The mean over settings and its standard error over settings; in a single setting, its own."""
    known = found.dropna(subset=quantity)
    if known.empty:
        return None
    error = known[quantity].sem() if len(known) > 1 else known[f"{quantity} error"].iloc[0]
    return Difference(known[quantity].mean(), error, bool(known[f"{quantity} outside"].any()))


def _factor(least: pd.Series, most: pd.Series) -> float:
    """The largest number of parameters as a multiple of the smallest, the largest of several."""
    return float((most / least.clip(lower=1)).max())


def _identity(
    comparison: AgainstStatic, settings: Sequence[Setting], setting: Setting, c: Configuration
) -> dict[str, Cell]:
    """The strategy, the preset, and the settings that differ."""
    strategies = comparison.strategies
    place = strategies.index(c.strategy) if c.strategy in strategies else len(strategies)
    names = dict.fromkeys(name for each in settings for name in each.values)
    return {
        "strategy": Cell(c.name, float(place)),
        "preset": Cell(setting.preset, float(comparison.presets.index(setting.preset))),
        **{heading(name): setting_cell(setting.values.get(name)) for name in names},
    }


def _losses(setting: Setting, c: Configuration) -> dict[str, Cell]:
    best, smallest, shape = setting.lowest_static, setting.smallest_as_good, setting.shape_of(c)
    assert best is not None and smallest is not None
    of_best = best.results["lowest_test_loss"]
    error = "" if len(of_best) < 2 else f" ± {of_best.sem():.4f}"
    of_shape = None if shape is None else shape.results["lowest_test_loss"].mean(skipna=False)
    time = None if shape is None else _step_seconds(c) / _step_seconds(shape)
    sizes = [(str(each.runs[0].settings.shape), each.results["parameters"].mean()) for each in (best, smallest)]
    size = c.results["parameters"].mean()
    return {
        "lowest test loss": number(c.results["lowest_test_loss"].mean(), ".4f"),
        "last test loss": _loss(c.results["test_loss"].mean(skipna=False)),
        "best static": Cell(f"{of_best.mean():.4f}{error}", of_best.mean()),
        "its size": Cell(*sizes[0]),
        "smallest as good": Cell(*sizes[1]),
        "shape from scratch": _loss(of_shape),
        "widths": Cell(_mean_widths(c), size),
        "parameters": number(size / sizes[1][1], ".2f"),
        "time": Cell(NONE if time is None else f"{time:.2f}", time or 0.0),
    }


def _loss(mean: float | None) -> Cell:
    return number(mean, ".4f")._replace(sort_key=math.inf if mean is None or math.isnan(mean) else mean)


def _step_seconds(c: Configuration) -> float:
    """The mean time of a gradient step."""
    return float((c.results["seconds"].clip(lower=1e-6) / c.results["steps"].clip(lower=1)).mean())


def _results(
    comparison: AgainstStatic, setting: Setting, c: Configuration, recorded: Mapping[Quantity, str]
) -> dict[str, Cell]:
    sizes = c.results["parameters"]
    is_curve = c in setting.static
    ratio = sizes.max() / max(1, sizes.min())
    found = {title: None if is_curve else setting.difference(c, each) for each, title in recorded.items()}
    return {
        "seeds": seeds(c),
        f"{comparison.accuracy}, %": mean_cell(c.results["accuracy"], ".2f"),
        "parameters": number(sizes.mean(), ",.0f"),
        "widths": Cell(_range(c) if len(setting.section.widths) > _FEW else _mean_widths(c), sizes.mean()),
        **{title: _difference(each) for title, each in found.items()},
        "sizes over seeds": Cell(NONE if is_curve else f"{ratio:.2f}", ratio),
    }


def _mean_widths(c: Configuration) -> str:
    """Final sizes, as means over seeds."""
    return "-".join(f"{size:.0f}" for size in c.widths.mean())


def _range(c: Configuration) -> str:
    """The least and the largest of the final sizes, relative to the reference."""
    sizes = c.relative_widths
    least, largest = f"{sizes.min(axis=None):.2f}", f"{sizes.max(axis=None):.2f}"
    return least if least == largest else f"{least} to {largest}"


def _difference(found: Difference | None) -> Cell:
    if found is None:
        return Cell(NONE, -math.inf)
    return Cell(signed(found.mean, found.error) + (_OUTSIDE if found.outside else ""), found.mean)
