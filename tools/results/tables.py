"""A function for each table of the pages, which gives its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from neurogenesis.report.against_static import Quantity, Setting
from neurogenesis.report.against_static_tables import summary_table
from neurogenesis.report.compute_tables import compute_tables
from neurogenesis.report.numbers import plus_minus, signed
from neurogenesis.report.sections import Configuration

from .records import comparison, exists, section

Row = Mapping[str, str]

_QUANTITIES: tuple[tuple[Quantity, str], ...] = (
    ("parameters", "minus static of the same parameters"),
    ("flops", "of the same FLOPs"),
    ("training_flops", "of the same training FLOPs"),
)


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
    as_in_paper = (
        {c.strategy: c for c in section("mnist-paper").finished if not c.scheduled} if exists("mnist-paper") else {}
    )
    return [
        {
            "strategy": c.name,
            "seeds": str(len(c.finished)),
            "test accuracy, %": plus_minus(c.results["accuracy"], ".2f"),
            "parameters": plus_minus(c.results["parameters"]),
            **_widths(c),
            **(_without_ages(as_in_paper.get(c.strategy), list(c.widths)) if as_in_paper else {}),
        }
        for c in section("mnist-dynamic").finished
    ]


def _without_ages(c: Configuration | None, layers: Sequence[str]) -> Row:
    """The same strategy without ages and margin; nothing for those that were not run so."""
    found = dict.fromkeys(("seeds", "test accuracy, %", *layers), "")
    if c is not None:
        accuracy = plus_minus(c.results["accuracy"], ".2f")
        found |= {"seeds": str(len(c.finished)), "test accuracy, %": accuracy, **_widths(c)}
    return {f"without ages and margin: {name}": text for name, text in found.items()}


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


def pays_summary_table() -> list[Row]:
    """The same over learning rates and decays, for presets of which all settings have been trained."""
    every = comparison("pays-small").settings
    finished = [s for s in every if all(run.result is not None for run in s.section.runs)]
    counts = Counter(s.preset for s in finished)
    chosen = [s for s in finished if counts[s.preset] > 1]
    table = summary_table(replace(comparison("pays-small"), settings=chosen))
    assert table is not None, "no preset has been trained in all settings"
    rows = [dict(zip(table.columns, (cell.text for cell in row), strict=True)) for row in table.rows]
    return [{name: text for name, text in row.items() if name != "of the same time"} for row in rows]


def _differences(setting: Setting, c: Configuration) -> Row:
    """The differences from the curves of static networks, which have none themselves."""
    if c in setting.static:
        return {title: "" for _, title in _QUANTITIES}
    found = {title: setting.difference(c, quantity) for quantity, title in _QUANTITIES}
    return {
        title: "—" if each is None else signed(each.mean, each.error) + (" †" if each.outside else "")
        for title, each in found.items()
    }


def deepening_static_table(study: str = "deepening") -> list[Row]:
    """Losses of static networks of every depth, after trainings of several lengths."""
    return _printed(study, "Static networks")


def deepening_saved_table(study: str = "deepening") -> list[Row]:
    """What networks to which blocks are added save, against static ones of the final depth and of the best."""
    return _printed(study, "Compute saved at equal loss")


def _printed(study: str, title: str) -> list[Row]:
    """A table of the report."""
    (table,) = (each for each in compute_tables(section(study)) if each.title == title)
    return [{name: cell.text for name, cell in zip(table.columns, row, strict=True)} for row in table.rows]


def _widths(c: Configuration) -> Row:
    return {name: plus_minus(c.widths[name], ".0f") for name in c.widths}
