"""Tables of networks that grow against static ones of the same compute, and of the same size."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from ..experiments.presets import NAMES
from ..experiments.settings import DEEPENING
from .compute import BITS, OF_DEPTH, TEST_LOSS, Against, against, growth_of, runs_by_compute
from .names import heading
from .numbers import NONE
from .sections import Configuration, Section
from .tables import Cell, Table, make_table, mean_cell, number, setting_cell

_OF_GROWTH = (*OF_DEPTH, NAMES.heads, NAMES.neurons, NAMES.final_heads, NAMES.final_neurons)
"""What the column on growth says."""
_SIZED = {"parameters": "parameters", "flops": "FLOPs", "gflops": "training FLOPs"}


_DEARER = " †"


def compute_tables(section: Section) -> list[Table]:
    """The compute that growing saves, and losses at equal size, where blocks are added or characters predicted."""
    if not any(c.strategy in DEEPENING or c.runs[0].settings.language for c in section.finished):
        return []
    runs = runs_by_compute(section.finished)
    if runs.empty or runs["static"].all() or runs.loc[runs["shaped"], "configuration"].nunique() < 2:
        return []
    tables = [_static_table(section, runs), _saved_table(section, runs)]
    wide = any(not c.static and c.strategy not in DEEPENING for c in section.finished)
    return [*tables, *([_size_table(section, runs)] if wide else [])]


def _static_table(section: Section, runs: pd.DataFrame) -> Table:
    """The loss of each static network by its length of training."""
    static = runs[runs["shaped"]]
    lengths, found = sorted(static["steps"].unique()), section.finished
    rest = {index: found[index].label(without=[NAMES.epochs, *OF_DEPTH]) for index in static["configuration"].unique()}
    rows: dict[tuple[str, str], dict[str, Cell]] = {}
    groups = sorted(static.groupby(["configuration", "blocks"]), key=lambda group: (int(group[0][1] or 0), group[0]))
    for (index, blocks), own in groups:
        place = float(len(rows))
        row = rows.setdefault(
            (blocks, rest[index]),
            {
                "strategy": Cell(found[index].name, place),
                "blocks": Cell(blocks, place),
                **({"other settings": Cell(rest[index] or NONE, rest[index])} if any(rest.values()) else {}),
                "1,000 steps, GFLOPs": number((1000 * own["gflops"] / own["steps"]).mean(), ",.0f"),
                **{f"{steps:,} steps": Cell(NONE, 1e9) for steps in lengths},
            },
        )
        row[f"{own['steps'].iloc[0]:,} steps"] = mean_cell(own["loss"], ".3f")
    caption = (
        f"{_loss(found[0]).capitalize()} after trainings of several lengths: mean ± standard deviation over seeds."
    )
    return make_table("Static networks", caption, list(rows.values()))


def _saved_table(section: Section, runs: pd.DataFrame) -> Table:
    """Each network that grows against its final shape from the start, and against the best static networks."""
    rows = []
    for c, own, static in _grown(section, runs):
        last = own.iloc[0]
        alike = static[(static["parameters"] == last["parameters"]) & (static["flops"] == last["flops"])]
        of_final, of_best = against(own, alike, "gflops"), against(own, static, "gflops")
        rows.append(
            {
                **_identity(section, c, own),
                "final size: compute saved, %": _saved(of_final),
                "best static: compute saved, %": _saved(of_best),
                "minus best static of the same compute": _difference(of_best),
                "seeds compared": number(None if of_best is None else of_best.seeds, "d"),
            }
        )
    caption = (
        "How much less compute a network takes than static ones of its loss: those of its final size, trained for "
        "several lengths; and the best ones of any depth and length. Means over seeds, which are paired, ± standard "
        "errors. ≥, ≤: the loss of a seed is below, or above, those of all static networks of the curve, and it is "
        "compared with its end. Differences from the best static networks are losses, of which lower is better; "
        f"{_DEARER.strip()}: it takes more than the last of the curve, whose loss counts."
    )
    return make_table("Compute saved at equal loss", caption, rows)


def _size_table(section: Section, runs: pd.DataFrame) -> Table:
    """Each network that grows against the best static ones of the same size and length of training."""
    rows = []
    for c, own, static in _grown(section, runs):
        last = own.iloc[0]
        trained_alike = static[static["steps"] == last["steps"]]
        scratch = runs[runs["static"] & (runs["decay"] == last["decay"]) & (runs["steps"] == last["steps"])]
        same = own.merge(scratch, on=["seed", "parameters", "flops"], suffixes=("", " from scratch"))
        lost = (same["loss"] - same["loss from scratch"]).groupby(same["seed"]).mean()
        rows.append(
            {
                **_identity(section, c, own),
                "parameters": mean_cell(own["parameters"], ",.0f"),
                "minus its final shape from scratch": _signed(lost.mean(), lost.sem()),
                **{
                    f"minus static of the same {title}": _difference(against(own, trained_alike, field))
                    for field, title in _SIZED.items()
                },
            }
        )
    caption = (
        "Losses minus those of static networks trained for as many steps: of the shape to which the network has grown, "
        "and of the best ones of the same size, interpolated. Means over seeds, which are paired, ± standard errors; "
        f"{_DEARER.strip()}: it is beyond the last of them. Negative is better."
    )
    return make_table("Against static networks of the same size", caption, rows)


def _grown(section: Section, runs: pd.DataFrame) -> Iterator[tuple[Configuration, pd.DataFrame, pd.DataFrame]]:
    """Each network that grows, its runs, and those of the static networks with the same decay."""
    for index, c in enumerate(section.finished):
        own = runs[runs["configuration"] == index]
        if c.static or own.empty:
            continue
        yield c, own, runs[runs["shaped"] & (runs["decay"] == own["decay"].iloc[0])]


def _identity(section: Section, c: Configuration, own: pd.DataFrame) -> dict[str, Cell]:
    """What the network is, and its loss and compute."""
    place = float(section.finished.index(c))
    growing = [each.values for each in section.finished if not each.static]
    varied = [name for name in section.varied if name not in _OF_GROWTH]
    used = [name for name in varied if len({repr(values.get(name)) for values in growing}) > 1]
    return {
        "strategy": Cell(c.name, place),
        "grows": Cell(growth_of([run.result for run in c.finished if run.result is not None]) or NONE, place),
        **{heading(name): setting_cell(c.values[name]) if name in c.values else Cell(NONE, "") for name in used},
        _loss(c): mean_cell(own["loss"], ".3f"),
        "training, GFLOPs": mean_cell(own["gflops"].iloc[: None if own["gflops"].nunique() > 1 else 1], ",.0f"),
    }


def _loss(c: Configuration) -> str:
    return BITS if c.runs[0].settings.language else TEST_LOSS


def _saved(found: Against | None) -> Cell:
    if found is None:
        return Cell(NONE, -1e9)
    error = "" if pd.isna(found.saved_error) else f" ± {100 * found.saved_error:.0f}"
    return Cell(f"{found.bound} {100 * found.saved:.0f}{error}".strip(), found.saved)


def _difference(found: Against | None) -> Cell:
    if found is None:
        return Cell(NONE, 1e9)
    text, key = _signed(found.difference, found.difference_error)
    return Cell(text + (_DEARER if found.dearer else ""), key)


def _signed(mean: float, error: float) -> Cell:
    if pd.isna(mean):
        return Cell(NONE, 1e9)
    return Cell(f"{mean:+.3f}" + ("" if pd.isna(error) else f" ± {error:.3f}"), mean)
