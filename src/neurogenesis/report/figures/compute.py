"""Loss against compute: floating-point operations, and seconds, of networks that grow and of static ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import altair as alt
import numpy as np
import pandas as pd

from ...experiments.presets import NAMES
from ...experiments.settings import DEEPENING
from ..compute import BITS, TEST_LOSS, front, runs_by_compute
from ..names import phrase
from ..numbers import NONE, rounded
from ..sections import Section, missing_note
from .figure import Figure
from .style import STROKE, Drawing, Palette, tooltip

_GFLOPS, _SECONDS = "training, GFLOPs", "training, s"
_WIDTH, _HEIGHT = 520, 440
_CHARACTER, _LINE = 5.4, 12  # pixels of a label
_MARK = 7
_ABOVE = 0.3  # of the losses of grown networks: how much of the axis is above them
_GROUPS = ["configuration", "strategy", "static", "shaped", "variant", "decay", "blocks", "line", "label"]


class _Place(NamedTuple):
    """A place of a label beside a mark, in pixels."""

    dx: int
    dy: int
    align: str


_PLACES = (
    _Place(9, 1, "left"), _Place(-9, 1, "right"), _Place(0, -12, "center"), _Place(0, 14, "center"),
    _Place(8, -11, "left"), _Place(8, 12, "left"), _Place(-8, -11, "right"), _Place(-8, 12, "right"),
)  # fmt: skip


def compute(section: Section, palette: Palette) -> Figure | None:
    """Loss of each configuration against what training took; None if no blocks are added or characters predicted."""
    if not any(c.strategy in DEEPENING or c.runs[0].settings.language for c in section.finished):
        return None
    runs = runs_by_compute(section.finished)
    if runs.empty or runs["gflops"].round(6).nunique() < 2:
        return None
    means = _means(runs)
    loss = BITS if section.finished[0].runs[0].settings.language else TEST_LOSS
    drawing = Drawing(palette.legend(section.finished))
    for decay in dict.fromkeys(means["decay"]):
        some = runs[runs["decay"] == decay]
        for field, title in (("gflops", _GFLOPS), ("seconds", _SECONDS)):
            above = phrase(NAMES.decay, decay) if decay else ""
            layers = _layers(drawing, f"{field} {decay}".strip(), some, field, title, loss)
            drawing.add(*layers, title=above, width=_WIDTH, height=_HEIGHT)
    return Figure(
        f"{section.name}-loss-against-compute",
        "Loss against compute",
        f"{loss.capitalize()} of the test part against the floating-point operations of the training, three times "
        "those of the forward passes, and against its seconds, if every step had been as fast as the fastest one in a "
        "network of the same size. Marks are means over seeds with one standard deviation. Grey lines join static "
        "networks of the same depth that trained for different lengths, with the number of blocks beside them, and the "
        "dotted one the best static networks. Beside those that grow: from how many to how many blocks, and after "
        "which part of the training.",
        missing_note(section.configurations),
        alt.concat(*drawing.charts, columns=2, spacing=40).resolve_scale(y="shared"),
        drawing.data,
        hint="Point at a mark to see its settings and numbers.",
    )


def _means(runs: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds, with their deviation and number."""
    means = runs.groupby(_GROUPS, as_index=False).agg(
        loss=("loss", "mean"), sd=("loss", "std"), gflops=("gflops", "mean"), seconds=("seconds", "mean"),
        steps=("steps", "mean"), runs=("seed", "size"),
    )  # fmt: skip
    sd = means["sd"].fillna(0.0)
    return means.assign(low=means["loss"] - sd, high=means["loss"] + sd)


def _layers(drawing: Drawing, name: str, runs: pd.DataFrame, field: str, title: str, loss: str) -> list[alt.Chart]:
    means = _means(runs)
    lowest, highest = _domain(means)
    shown_means = means[means["loss"] <= highest]
    ends = _wider(shown_means[field].min(), shown_means[field].max())
    along = alt.Scale(type="log", domain=ends, nice=False)
    x = alt.X(f"{field}:Q", title=title, scale=along, axis=alt.Axis(format=",.3~r", tickCount=6))
    scale = alt.Scale(domain=[lowest, highest], nice=False, zero=False)
    y = alt.Y("loss:Q", title=loss, scale=scale)
    shown = tooltip("strategy:N", "variant:N", "blocks:N", "runs:Q")
    numbers = [alt.Tooltip("loss:Q", title=loss), alt.Tooltip("sd:Q", title="deviation")]
    numbers += [alt.Tooltip("gflops:Q", title=_GFLOPS), alt.Tooltip("seconds:Q", title=_SECONDS)]
    labels = _placed(shown_means, field, ends, (lowest, highest))
    table = means.merge(labels, on="configuration", how="left").assign(variant=means["variant"].replace("", NONE))
    rows = drawing.rows(name, table.map(_short))
    best = (
        means[means["configuration"].isin(front(runs[runs["shaped"]], field))] if means["shaped"].any() else means[:0]
    )
    drawing.tables[f"best {name}"] = best.sort_values(field).map(_short)
    line = rows.transform_filter("datum.shaped").mark_line(strokeWidth=1, opacity=0.7, clip=True)
    dotted = drawing.rows(f"best {name}").mark_line(color="#222", strokeWidth=1.3, strokeDash=[2, 3], clip=True)
    bars = rows.mark_rule(strokeWidth=1.3, opacity=0.8, clip=True)
    points = rows.mark_point(filled=True, size=70, opacity=1, clip=True)
    points = points.encode(x=x, y=y, shape=drawing.legend.shape, tooltip=[*shown, *numbers])
    beside = [
        rows.transform_filter(f"datum.place == {number}")
        .mark_text(dx=place.dx, dy=place.dy, align=place.align, baseline="middle", fontSize=10, fill="#333")
        .encode(x=x, y=y, text="label:N")
        for number, place in enumerate(_PLACES)
        if number in set(labels["place"])
    ]
    return [
        line.encode(x=x, y=y, stroke=STROKE, detail=alt.Detail("line:N")),
        dotted.encode(x=x, y=y),
        bars.encode(x=x, y=alt.Y("low:Q", title=loss, scale=scale), y2="high:Q", stroke=STROKE),
        drawing.in_colors(points),
        *beside,
    ]


def _domain(means: pd.DataFrame) -> tuple[float, float]:
    """The losses on the axis: all of networks that grow, and of static ones that are not much worse."""
    grown = means[~means["shaped"]]
    lowest, worst = means["low"].min(), (means if grown.empty else grown)["high"].max()
    room = _ABOVE * (worst - lowest)
    return lowest - room / 3, worst + room


def _wider(least: float, most: float) -> list[float]:
    """The ends of a logarithmic axis, with room for labels on both sides."""
    room = (most / least) ** 0.1
    return [float(f"{least / room:.3g}"), float(f"{most * room:.3g}")]


def _placed(means: pd.DataFrame, field: str, ends: Sequence[float], domain: tuple[float, float]) -> pd.DataFrame:
    """Where the label of each configuration is: the place beside its mark in which it hides least.

    Static networks of one depth have one label, beside the longest training.
    """

    def down(losses: pd.Series) -> pd.Series:
        return (domain[1] - losses) / (domain[1] - domain[0]) * _HEIGHT

    across = np.log(means[field] / ends[0]) / math.log(ends[1] / ends[0]) * _WIDTH
    pixels = pd.DataFrame(
        {"x": across, "y": down(means["loss"]), "top": down(means["high"]), "end": down(means["low"])}
    )
    taken = [(x - _MARK, y - _MARK, x + _MARK, y + _MARK) for x, y in pixels[["x", "y"]].to_numpy()]
    taken += [(x - 1, top, x + 1, end) for x, top, end in pixels[["x", "top", "end"]].to_numpy()]
    longest = means[means["shaped"]].sort_values(field).groupby("line").tail(1).index
    places = {}
    for index in [*longest, *means.index[~means["shaped"]]]:
        x, y, text = pixels.loc[index, "x"], pixels.loc[index, "y"], str(means.loc[index, "label"])
        boxes = [_box(x, y, text, place) for place in _PLACES]
        hidden = [sum(_overlap(box, other) for other in taken) + _beyond(box) for box in boxes]
        chosen = int(np.argmin(hidden))
        taken.append(boxes[chosen])
        places[means.loc[index, "configuration"]] = chosen
    return pd.DataFrame({"configuration": list(places), "place": list(places.values())})


_Box = tuple[float, float, float, float]  # left, top, right, bottom


def _box(x: float, y: float, text: str, place: _Place) -> _Box:
    width = _CHARACTER * len(text)
    left = x + place.dx - {"left": 0.0, "right": width, "center": width / 2}[place.align]
    top = y + place.dy - _LINE / 2
    return left, top, left + width, top + _LINE


def _overlap(one: _Box, other: _Box) -> float:
    """The area that two boxes share.

    Example:
        >>> _overlap((0, 0, 2, 2), (1, 1, 5, 5)), _overlap((0, 0, 2, 2), (3, 3, 5, 5))
        (1, 0)
    """
    across = min(one[2], other[2]) - max(one[0], other[0])
    down = min(one[3], other[3]) - max(one[1], other[1])
    return max(0, across) * max(0, down)


def _beyond(box: _Box) -> float:
    """How much of a label is outside of the chart."""
    outside = max(0.0, -box[0]) + max(0.0, box[2] - _WIDTH) + max(0.0, -box[1]) + max(0.0, box[3] - _HEIGHT)
    return outside * _LINE


def _short(value: object) -> object:
    return rounded(value) if isinstance(value, float) else value
