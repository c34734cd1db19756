"""Comparisons of schedules, of the values of a setting, and of the features of generated data."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import pandas as pd

from ...experiments.presets import NAMES
from ..names import heading
from ..numbers import needs_log_axis, rounded, significant, time_unit
from ..sections import Configuration, Section, missing_note, table_of
from .figure import Figure
from .style import FILL, HIGH, PER_STRATEGY, STROKE, Drawing, Palette, tooltip

SETTINGS = (NAMES.gamma, NAMES.batch, NAMES.learning_rate, NAMES.features)
"""The settings that have a figure of sensitivity."""


def schedules(section: Section, palette: Palette) -> Figure | None:
    """Initializations on fixed schedules, against the static network of the same final size; None without schedules."""
    # Schedules of transformers say what grows, and end at different sizes.
    grown = [c for c in section.finished if c.scheduled and not c.runs[0].settings.language]
    if not grown:
        return None
    static = [c for c in section.finished if c.strategy == "medium"]
    drawing, positions = Drawing(palette.legend([*grown, *static])), palette.legend(grown).positions
    runs = table_of(grown)
    unit, length = time_unit(runs["seconds"].max())
    measures = [(f"{section.accuracy}, %", "accuracy", 1.0), (f"training time, {unit}", "seconds", length)]
    kinds = sorted({_schedule(c) for c in grown})
    for title, field, scaled in measures:
        references = drawing.rows(f"static {title}", _means(static, field, length=scaled))
        for kind in kinds:
            some = [c for c in grown if _schedule(c) == kind]
            means = drawing.rows(f"{kind} {title}", _means(some, field, length=scaled))
            each = table_of(some)
            each = each[["strategy", "seed"]].assign(mean=(each[field] / scaled).map(rounded))
            first, last = title == measures[0][0], title == measures[-1][0]
            x = positions.axis(alt.Axis(labelAngle=-40) if last else alt.Axis(labels=False, ticks=False))
            scale = alt.Scale(zero=False)
            y = alt.Y("mean:Q", title=title if kind == kinds[0] else None, scale=scale)
            layers = [
                *_references(references, scale),
                _each_run(drawing.rows(f"{kind} {title} runs", each), x, y),
                *_dots(drawing, means, x, y),
            ]
            drawing.add(*layers, width=360, height=190, title=kind if first else "")
    halves = (drawing.charts[: len(kinds)], drawing.charts[len(kinds) :])
    rows = [alt.hconcat(*charts, bounds="flush", spacing=60).resolve_scale(y="shared") for charts in halves]
    return Figure(
        f"{section.name}-schedules",
        "Initializations on fixed schedules",
        "These networks grow to the same size at the same steps. They differ in how new neurons are initialized."
        + (
            " Large marks are means with one standard deviation, small ones single runs."
            if section.several_seeds
            else ""
        )
        + (" The grey line is Medium static, which has the final size from the start." if static else ""),
        missing_note([c for c in section.configurations if c.strategy == "medium" or not c.static]),
        alt.vconcat(*rows),
        drawing.data,
    )


def sensitivity(section: Section, setting: str, palette: Palette) -> Figure | None:
    """Accuracy and size against a setting; None if it does not vary within a strategy."""
    values = section.numbers(setting)
    if len(values) < 2:
        return None
    varied = [c for c in section.finished if c.values.get(setting) in values]
    static = [c for c in section.finished if c.static and setting not in c.values]
    drawing = Drawing(palette.legend([*varied, *static]))
    groups = list(dict.fromkeys(c.label(without=[setting]) for c in varied))
    x = _evenly_spaced(setting, heading(setting), values)
    for group in groups:
        some = [c for c in varied if c.label(without=[setting]) == group]
        for title, field in ((f"{section.accuracy}, %", "accuracy"), ("parameters", "parameters")):
            means = drawing.rows(f"{group} {title}", _means(some, field, setting))
            references = drawing.rows(f"static {title}", _means(static, field))
            ends = _means([*varied, *static], field)[["low", "high"]].to_numpy().ravel().tolist()
            log = title == "parameters" and needs_log_axis(ends)
            scale = alt.Scale(
                type="log" if log else "linear", domain=[min(ends), max(ends)], nice=not log, padding=8 if log else 0
            )
            axis = alt.Axis(format="~s") if title == "parameters" else alt.Axis()
            y = alt.Y("mean:Q", title=title, scale=scale, axis=axis)
            layers = [*_references(references, scale), *_curve(drawing, means, x, y)]
            drawing.add(*layers, width=350, height=200, title=group)
    return Figure(
        f"{section.name}-sensitivity-to-{setting.replace('_', '-')}",
        f"Sensitivity to {_noun(setting)}",
        f"{section.accuracy.capitalize()} and final size for each value of {_noun(setting)}"
        + f"{_means_over_seeds(section)}."
        + (" Horizontal lines are static networks." if static else ""),
        missing_note(section.configurations),
        alt.concat(*drawing.charts, columns=2, bounds="flush", spacing={"row": 75, "column": 85}),
        drawing.data,
    )


def features(section: Section, palette: Palette) -> Figure | None:
    """Final size of each width against the independent features of generated data; None for other data."""
    values = section.numbers(NAMES.features)
    varied = [c for c in section.finished if c.values.get(NAMES.features) in values and not c.static]
    if len(values) < 2 or not varied:
        return None
    drawing = Drawing(palette.legend(varied))
    x = _evenly_spaced(NAMES.features, heading(NAMES.features), values)
    for group in dict.fromkeys(c.label(without=[NAMES.features]) for c in varied):
        some = [c for c in varied if c.label(without=[NAMES.features]) == group]
        for width in [width for width in section.widths if all(width in c.widths for c in some)]:
            name = ", ".join(part for part in (group, width) if part)
            means = drawing.rows(name, _means(some, width, NAMES.features))
            y = alt.Y("mean:Q", title=None if drawing.charts else "final width")
            drawing.add(*_curve(drawing, means, x, y), width=250, height=230, title=name)
    return Figure(
        f"{section.name}-widths-against-features",
        "Final widths against independent features",
        f"The size of each layer at the end of training, by independent features{_means_over_seeds(section)}.",
        missing_note([c for c in section.configurations if not c.static]),
        alt.concat(*drawing.charts, columns=3).resolve_scale(y="shared"),
        drawing.data,
    )


def _means_over_seeds(section: Section) -> str:
    return ": means over seeds with one standard deviation" if section.several_seeds else ""


def _curve(drawing: Drawing, means: alt.Chart, x: alt.X, y: alt.Y) -> list[alt.Chart]:
    line = means.mark_line().encode(x=x, y=y, stroke=STROKE, detail=PER_STRATEGY)
    return [line, *_dots(drawing, means, x, y)]


def _dots(drawing: Drawing, rows: alt.Chart, x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """Means with their standard deviations."""
    numbers = tooltip("strategy:N", "variant:N", "runs:Q", alt.Tooltip("text:N", title="mean ± sd"))
    bars = rows.mark_rule(strokeWidth=1.5).encode(x=x, y=alt.Y("low:Q", scale=y["scale"]), y2=HIGH, stroke=STROKE)
    dots = rows.mark_point(filled=True, size=55, opacity=1).encode(x=x, y=y, tooltip=numbers)
    return [bars, drawing.in_colors(dots)]


def _each_run(runs: alt.Chart, x: alt.X, y: alt.Y) -> alt.Chart:
    rows = runs.mark_point(filled=True, size=16, opacity=0.45)
    numbers = tooltip("strategy:N", "seed:N", alt.Tooltip("mean:Q", title="value"))
    drawn: alt.Chart = rows.encode(x=x, y=y, fill=FILL, tooltip=numbers)
    return drawn


def _references(rows: alt.Chart, scale: alt.Scale) -> list[alt.Chart]:
    """Static networks, which have no value on the x axis: horizontal lines, with bands of one standard deviation."""
    band = rows.mark_rect(opacity=0.15).encode(y=alt.Y("low:Q", scale=scale), y2=HIGH, fill=FILL)
    line = rows.mark_rule(strokeWidth=1.5).encode(y=alt.Y("mean:Q", scale=scale), stroke=STROKE)
    line = line.encode(tooltip=tooltip("strategy:N", "runs:Q", alt.Tooltip("text:N", title="mean ± sd")))
    return [band, line]


def _means(configurations: Sequence[Configuration], field: str, setting: str = "", length: float = 1.0) -> pd.DataFrame:
    """Means and standard deviations over seeds of a result or a final width, with the value of a setting."""
    rows = []
    for c in configurations:
        values = (c.results[field] if field in c.results else c.widths[field]) / length
        mean, sd = values.mean(), values.std() if len(values) > 1 else 0.0
        low = mean - sd if mean > sd else values.min()  # a logarithmic axis has no zero
        rows.append(
            {"strategy": c.name, "variant": c.label(), "mean": rounded(mean), "low": rounded(low),
             "high": rounded(mean + sd), "runs": len(values), "text": significant(values, digits=4)}
            | ({setting: c.values[setting]} if setting else {})
        )  # fmt: skip
    return pd.DataFrame(rows)


def _evenly_spaced(setting: str, title: str, values: Sequence[float]) -> alt.X:
    """The values of a setting at equal distances; they are often powers of a number."""
    axis = alt.Axis(labelAngle=0, grid=True, labelExpr="datum.value")
    return alt.X(
        f"{setting}:O", title=title, scale=alt.Scale(domain=list(values), type="point", padding=0.3), axis=axis
    )


def _schedule(configuration: Configuration) -> str:
    return str(configuration.runs[0].settings.schedule)


def _noun(setting: str) -> str:
    nouns = {NAMES.features: "the number of independent features", NAMES.gamma: "gamma"}
    return nouns.get(setting, f"the {heading(setting)}")
