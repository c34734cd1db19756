"""Bits per character against compute: floating-point operations, and seconds, of growing and of static networks."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import pandas as pd

from ...experiments.presets import NAMES
from ...experiments.record import Result
from ..names import phrase
from ..numbers import NONE, needs_log_axis, rounded
from ..sections import Configuration, Section, missing_note
from ..speeds import undisturbed_seconds
from .figure import Figure
from .style import FILL, STROKE, Drawing, Palette, tooltip

_BITS, _GFLOPS, _SECONDS = "bits per character", "training, GFLOPs", "training, s"


def compute(section: Section, palette: Palette) -> Figure | None:
    """Test loss of each configuration against what its training took; None if nothing predicts characters."""
    seeds = seeds_of(section.finished)
    if seeds.empty or seeds["gflops"].round(6).nunique() < 2:
        return None
    means = _means(seeds)
    drawing = Drawing(palette.legend(section.finished))
    drawing.tables["seeds"] = seeds.map(_short)
    for decay in dict.fromkeys(means["decay"]):
        some = means[means["decay"] == decay]
        for field, title in (("gflops", _GFLOPS), ("seconds", _SECONDS)):
            name = f"{field} {decay}".strip()
            drawing.tables[f"front {name}"] = _front(some[some["static"]], field).map(_short)
            above = phrase(NAMES.decay, decay) if decay else ""
            drawing.add(*_layers(drawing, name, some, decay, field, title), title=above, width=370, height=300)
    return Figure(
        f"{section.name}-loss-against-compute",
        "Loss against compute",
        "Bits per character of the test part against the floating-point operations of the training, three times those "
        "of the forward passes, and against its seconds, if every step had been as fast as the fastest one in a "
        "network of the same size. Large marks are means over seeds, with the number of blocks beside them; lines "
        "join static networks of the same depth, and the dotted one the best of them.",
        missing_note(section.configurations),
        alt.concat(*drawing.charts, columns=2).resolve_scale(y="shared"),
        drawing.data,
        hint="Point at a mark to see its settings and numbers.",
    )


def seeds_of(configurations: Sequence[Configuration]) -> pd.DataFrame:
    """Bits and compute of each finished run that predicts characters."""
    runs = [run for c in configurations for run in c.finished]
    seconds = undisturbed_seconds(runs)
    rows = [
        {
            "strategy": c.name,
            "configuration": index,
            "static": c.static,
            "variant": c.label() or NONE,
            "decay": c.values.get(NAMES.decay, ""),
            "line": c.label(without=[NAMES.epochs]),
            "blocks": _blocks(run.result),
            "seed": run.settings.seed,
            "bits": run.result.bits_per_character,
            "gflops": run.result.training_flops / 1e9,
            "seconds": seconds[run.path],
        }
        for index, c in enumerate(configurations)
        for run in c.finished
        if run.result is not None and run.result.bits_per_character is not None and run.result.training_flops
    ]
    return pd.DataFrame(rows)


def _blocks(result: Result) -> str:
    """The number of blocks, at the start and at the end.

    Example:
        >>> widths = {"blocks": 6}
        >>> _blocks(Result(accuracy=0.5, parameters=9, train_seconds=1, widths=widths, initial_widths={"blocks": 3}))
        '3 to 6'
    """
    numbers = (str(sizes.get("blocks", "")) for sizes in (result.initial_widths, result.widths))
    return " to ".join(dict.fromkeys(numbers))


def _means(seeds: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds, with their deviation and number."""
    groups = seeds.groupby(
        ["configuration", "strategy", "static", "variant", "decay", "line", "blocks"], as_index=False
    )
    return groups.agg(
        bits=("bits", "mean"), sd=("bits", "std"), gflops=("gflops", "mean"), seconds=("seconds", "mean"),
        runs=("seed", "size"),
    )  # fmt: skip


def _front(static: pd.DataFrame, field: str) -> pd.DataFrame:
    """The static networks that are better than all which take less."""
    ordered = static.sort_values(field)
    return ordered[ordered["bits"] < ordered["bits"].cummin().shift(fill_value=float("inf"))]


def _layers(drawing: Drawing, name: str, means: pd.DataFrame, decay: str, field: str, title: str) -> list[alt.Chart]:
    log = needs_log_axis(means[field])
    scale = alt.Scale(type="log", nice=False, padding=18) if log else alt.Scale(zero=False, nice=False, padding=18)
    x = alt.X(f"{field}:Q", title=title, scale=scale, axis=alt.Axis(format=",.3~r", tickCount=6))
    y = alt.Y("bits:Q", title=_BITS, scale=alt.Scale(zero=False, nice=False, padding=14))
    shown = tooltip("strategy:N", "variant:N", "blocks:N")
    numbers = [alt.Tooltip("bits:Q", title=_BITS), alt.Tooltip("gflops:Q", title=_GFLOPS)]
    numbers.append(alt.Tooltip("seconds:Q", title=_SECONDS))
    rows = drawing.rows(name, means.map(_short))
    static = rows.transform_filter("datum.static")
    line = static.mark_line(strokeWidth=1, opacity=0.6).encode(x=x, y=y, stroke=STROKE, detail=alt.Detail("line:N"))
    label = rows.mark_text(dy=-11, fontSize=10, fill="#666").encode(x=x, y=y, text="blocks:N")
    front = drawing.rows(f"front {name}").mark_line(color="#222", strokeWidth=1.3, strokeDash=[2, 3]).encode(x=x, y=y)
    single = drawing.rows("seeds").transform_filter(f"datum.decay == '{decay}'")
    single = single.mark_point(filled=True, size=12, opacity=0.45).encode(x=x, y=y, fill=FILL)
    points = rows.mark_point(filled=True, size=80, opacity=1)
    points = points.encode(x=x, y=y, shape=drawing.legend.shape, tooltip=[*shown, *tooltip("runs:Q"), *numbers])
    return [
        line,
        front,
        single.encode(tooltip=[*shown, *tooltip("seed:N"), *numbers]),
        drawing.in_colors(points),
        label,
    ]


def _short(value: object) -> object:
    return rounded(value) if isinstance(value, float) else value
