"""A function for each table of the pages, which gives its rows."""

from __future__ import annotations

from collections.abc import Mapping

from neurogenesis.report.against_static import Quantity, Setting
from neurogenesis.report.numbers import plus_minus, signed
from neurogenesis.report.sections import Configuration

from .records import by_strategy, comparison, exists, section

Row = Mapping[str, str]

_QUANTITIES: tuple[tuple[Quantity, str], ...] = (
    ("parameters", "minus static of the same parameters"),
    ("flops", "of the same FLOPs"),
    ("training_flops", "of the same training FLOPs"),
)
_DEEPENING_STEPS, _DEEPENING_DECAY = 2000, "final"


def digits_table() -> list[Row]:
    """All strategies on digits."""
    return [
        {
            "strategy": c.name,
            "seeds": str(len(c.finished)),
            "test accuracy, %": plus_minus(c.results["accuracy"], ".2f"),
            "parameters": plus_minus(c.results["parameters"]),
            **_widths(c),
            "training, GFLOPs": plus_minus(c.results["training_flops"] / 1e9, ".2f"),
        }
        for c in section("digits").finished
    ]


def dynamic_table() -> list[Row]:
    """Strategies that decide themselves on MNIST, with the defaults and as in the paper."""
    as_in_paper = by_strategy("mnist-paper") if exists("mnist-paper") else {}
    rows = []
    for c in section("mnist-dynamic").finished:
        row = {
            "strategy": c.name,
            "seeds": str(len(c.finished)),
            "test accuracy, %": plus_minus(c.results["accuracy"], ".2f"),
            "parameters": plus_minus(c.results["parameters"]),
            **_widths(c),
        }
        if as_in_paper:
            row |= _without_ages(as_in_paper.get(c.strategy))
        rows.append(row)
    return rows


def _without_ages(c: Configuration | None) -> Row:
    if c is None or c.scheduled:
        return {"without ages and margin: seeds": "", "accuracy, %": "", "hidden1 ": "", "hidden2 ": ""}
    return {
        "without ages and margin: seeds": str(len(c.finished)),
        "accuracy, %": plus_minus(c.results["accuracy"], ".2f"),
        **{f"{name} ": plus_minus(c.widths[name], ".0f") for name in c.widths},
    }


def preset_table() -> list[Row]:
    """Initializations on fixed schedules on MNIST, all to the same final size."""
    return [
        {
            "strategy": c.name,
            "schedule": str(c.values.get("schedule", "")) if c.scheduled else "static",
            "seeds": str(len(c.finished)),
            "test accuracy, %": plus_minus(c.results["accuracy"], ".2f"),
            "training loss": plus_minus([run.result.loss for run in c.finished if run.result], ".4f"),
        }
        for c in section("mnist-preset").finished
    ]


def pays_table() -> list[Row]:
    """Grown networks against static ones of the same size and compute, at the presets' own settings."""
    settings = [setting for setting in comparison("pays-small").settings if setting.usual and setting.static]
    return [
        {
            "preset": setting.preset,
            "network": c.name,
            "seeds": str(len(c.finished)),
            "test accuracy, %": plus_minus(c.results["accuracy"], ".2f"),
            "widths": "-".join(f"{size:.0f}" for size in c.widths.mean()),
            "parameters": f"{c.results['parameters'].mean():,.0f}",
            "training, GFLOPs": f"{c.results['training_flops'].mean() / 1e9:,.1f}",
            **_differences(setting, c),
        }
        for setting in settings
        for c in (*setting.compared, *setting.static)
    ]


def _differences(setting: Setting, c: Configuration) -> Row:
    """The differences from the curves of static networks, which have none themselves."""
    if c in setting.static:
        return {title: "" for _, title in _QUANTITIES}
    found = {title: setting.difference(c, quantity) for quantity, title in _QUANTITIES}
    return {
        title: "—" if each is None else signed(each.mean, each.error) + (" †" if each.outside else "")
        for title, each in found.items()
    }


def deepening_table() -> list[Row]:
    """Bits per character and compute of static networks of every depth, and of networks to which blocks are added."""
    configurations = sorted(section("deepening").finished, key=lambda c: (not c.static, _deepening_name(c)))
    seeds = sorted({run.settings.seed for c in configurations for run in c.finished})
    return [
        {
            "network": _deepening_name(c),
            **{f"seed {seed}": _of_seed(c, seed) for seed in seeds},
            "training, GFLOPs": f"{c.results['training_flops'].mean() / 1e9:,.0f}",
        }
        for c in configurations
    ]


def _deepening_name(c: Configuration) -> str:
    """The depth at the end of a training; how it got there; and what is not usual about the training."""
    settings, result = c.finished[0].settings, c.finished[0].result
    assert result is not None
    first, last = result.initial_widths["blocks"], result.widths["blocks"]
    steps = "" if result.steps == _DEEPENING_STEPS else f", {result.steps:,} steps"
    decay = "" if settings.decay == _DEEPENING_DECAY else f", {settings.decay} decay"
    if c.static:
        return f"{last} block{'' if last == 1 else 's'}{steps}{decay}"
    hops = "" if settings.hops == 1 else f" in {settings.hops} hops"
    return f"from {first} to {last} blocks at {settings.at:g} of the steps{hops}, `{settings.strategy}`{steps}{decay}"


def _of_seed(c: Configuration, seed: int) -> str:
    found = c.results.loc[c.results["seed"] == seed, "bits_per_character"]
    return f"{found.iloc[0]:.3f}" if len(found) else ""


def _widths(c: Configuration) -> Row:
    return {name: plus_minus(c.widths[name], ".0f") for name in c.widths}
