"""Tables of networks that grow against static ones of the same compute, and of the same size."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from ..experiments.presets import NAMES
from ..experiments.settings import DEEPENING
from .compute import BITS, TEST_LOSS, Against, against, runs_by_compute
from .names import heading
from .numbers import NONE
from .sections import Configuration, Section
from .tables import Cell, Table, make_table, mean_cell, number, setting_cell

_SIZES = (NAMES.initial, NAMES.medium, NAMES.maximum, NAMES.shape)  # the column of blocks says them
_SIZED = {"parameters": "parameters", "flops": "FLOPs", "gflops": "training FLOPs"}


def compute_tables(section: Section) -> list[Table]:
    """The compute that growing saves, and losses at equal size, where blocks are added or characters predicted."""
    if not any(c.strategy in DEEPENING or c.runs[0].settings.language for c in section.finished):
        return []
    runs = runs_by_compute(section.finished)
    if runs.empty or runs["static"].all() or runs.loc[runs["shaped"], "configuration"].nunique() < 2:
        return []
    tables = [_saved_table(section, runs)]
    wide = any(not c.static and c.strategy not in DEEPENING for c in section.finished)
    return [*tables, *([_size_table(section, runs)] if wide else [])]


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
        "compared with its end. Losses at equal compute are minus that of the best static networks: negative is better."
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
        "and of the best ones of the same size, interpolated. Means over seeds, which are paired, ± standard errors. "
        "Negative is better."
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
    varied = [name for name in section.varied if name not in _SIZES and any(name in c.values for c in section.finished)]
    used = [name for name in varied if any(name in each.values for each in section.finished if not each.static)]
    loss = BITS if c.runs[0].settings.language else TEST_LOSS
    return {
        "strategy": Cell(c.name, place),
        "blocks": Cell(own["blocks"].iloc[0] or NONE, place),
        **{heading(name): setting_cell(c.values[name]) if name in c.values else Cell(NONE, "") for name in used},
        loss: mean_cell(own["loss"], ".3f"),
        "training, GFLOPs": mean_cell(own["gflops"], ",.0f"),
    }


def _saved(found: Against | None) -> Cell:
    if found is None:
        return Cell(NONE, -1e9)
    error = "" if pd.isna(found.saved_error) else f" ± {100 * found.saved_error:.0f}"
    return Cell(f"{found.bound} {100 * found.saved:.0f}{error}".strip(), found.saved)


def _difference(found: Against | None) -> Cell:
    if found is None:
        return Cell(NONE, 1e9)
    return _signed(found.difference, found.difference_error)


def _signed(mean: float, error: float) -> Cell:
    if pd.isna(mean):
        return Cell(NONE, 1e9)
    return Cell(f"{mean:+.3f}" + ("" if pd.isna(error) else f" ± {error:.3f}"), mean)
