"""Why a run grew: metric and threshold of each width at each step, with the growths marked."""

from __future__ import annotations

from dataclasses import replace

import altair as alt
import pandas as pd

from ...defaults import MAX_INTERVAL
from ...experiments.presets import default_gamma
from ...experiments.studies import GRADIENT, NEED
from ..names import STRATEGY_ORDER, format_value, slug
from ..numbers import rounded
from ..runs import Run
from ..sections import Configuration, Section
from .figure import Choice, Figure, stacked
from .style import layered, table, tooltip

_KINDS = {"metric": "#0072B2", "threshold": "#D55E00", "neurons": "#8a8a8a", "growth": "#222222"}
_DROP = {"drop": "#CC79A7"}
_WIDTH = 800


def timelines(section: Section) -> Figure | None:
    """A timeline of each run that has started and is not static; those that grew come first."""
    started = [(c, run) for c in section.configurations for run in c.runs if run.steps.count and not c.static]
    if not started:
        return None
    started.sort(key=lambda pair: pair[1].steps.growths == 0)
    choices = [_choice(c, run) for c, run in started]
    names = [choice.name for choice in choices]
    unique = [
        choice if names.count(choice.name) == 1 else replace(choice, name=f"{choice.name}-{index}")
        for index, choice in enumerate(choices)
    ]
    drops = any(run.steps.drops for _, run in started)
    marks = "Dots mark growths, purple ones dead neurons dropped." if drops else "Dots mark growths."
    return Figure(
        f"{section.name}-timeline",
        "Growth of a run, step by step",
        "Why it grew: what the trigger measured for each width (blue), the threshold (dashed orange) and the number of "
        f"neurons (grey). {marks} Above: training loss and accuracy after each epoch.",
        "",
        alt.vconcat(_progress(section), _growth(drops), spacing=18),
        choices=unique,
        hint="Point at a dot to see its numbers.",
    )


def _progress(section: Section) -> alt.LayerChart:
    rows = table("epochs").encode(x=_steps(alt.Axis(labels=False, ticks=False, title=None, tickCount=10)))
    numbers = tooltip("epoch:Q", "step:Q", alt.Tooltip("accuracy:Q", title=f"{section.accuracy}, %"), "loss:Q")

    def line(field: str, title: str, color: str, orient: str) -> alt.Chart:
        axis = alt.Axis(orient=orient, titleColor=color, tickCount=4, grid=orient == "left")  # type: ignore[arg-type]
        y = alt.Y(f"{field}:Q", title=title, scale=alt.Scale(zero=False), axis=axis)
        point = alt.OverlayMarkDef(size=20, filled=True, color=color)
        drawn: alt.Chart = rows.mark_line(color=color, point=point, strokeWidth=1.5).encode(y=y, tooltip=numbers)
        return drawn

    both = layered(
        line("loss", "training loss", "#882255", "left"),
        line("accuracy", f"{section.accuracy}, %", "#117733", "right"),
        width=_WIDTH,
        height=110,
    )
    drawn: alt.LayerChart = both.resolve_scale(y="independent")
    return drawn


def _growth(drops: bool) -> alt.FacetChart:
    """Metric, threshold and size of each width, with marks where it grew and, if there are any, `drops`."""
    kinds = _KINDS | _DROP if drops else _KINDS
    x = _steps(alt.Axis(title="gradient step", tickCount=10))
    scale = alt.Scale(domain=list(kinds), range=list(kinds.values()))
    color = alt.Color("kind:N", scale=scale, legend=alt.Legend(title=None))

    def rows(kind: str, field: str) -> alt.Chart:
        valid = alt.Chart().transform_filter(f"isValid(datum.{field})")
        chosen: alt.Chart = valid.transform_calculate(kind=f"'{kind}'").encode(x=x, color=color)
        return chosen

    def marks(kind: str, where: str) -> alt.Chart:
        drawn: alt.Chart = rows(kind, "before").transform_filter(where).mark_point(filled=True, size=16, opacity=1)
        return drawn

    grew, shrank = "datum.before <= datum.size", "datum.before > datum.size"
    metric = alt.Y("metric:Q", title="metric", scale=alt.Scale(zero=False, padding=6), axis=alt.Axis(tickCount=4))
    threshold = alt.Y("threshold:Q", title="metric")
    neurons = alt.Y("size:Q", title="neurons", axis=alt.Axis(orient="right", grid=False, tickCount=4))
    seen = tooltip("step:Q", "metric:Q", "threshold:Q", alt.Tooltip("size:Q", title="neurons"))
    grown = tooltip(
        "step:Q",
        alt.Tooltip("before:Q", title="neurons before"),
        alt.Tooltip("size:Q", title="neurons after"),
        alt.Tooltip("growths:Q", title="changes"),
        "metric:Q",
        "threshold:Q",
    )
    measured = layered(
        rows("metric", "metric").mark_line(strokeWidth=1).encode(y=metric, tooltip=seen),
        rows("threshold", "threshold").mark_line(strokeWidth=1.5, strokeDash=[5, 3]).encode(y=threshold),
        marks("growth", grew).encode(y=metric, tooltip=grown),
    )
    sizes = layered(
        rows("neurons", "size").mark_line(interpolate="step-after", strokeWidth=1.5).encode(y=neurons),
        # Other triggers may have no metric, and then the growth is marked at the size.
        marks("growth", f"{grew} && !isValid(datum.metric)").encode(y=neurons, tooltip=grown),
        *([marks("drop", shrank).encode(y=neurons, tooltip=grown)] if drops else []),
    )
    both = layered(sizes, measured, width=_WIDTH, height=100).resolve_scale(y="independent")
    header = alt.Header(labelAnchor="start", labelFontSize=12, title=None)
    facet = alt.Facet("width:N", header=header, sort=alt.EncodingSortField("place", op="min"))
    panels = both.facet(facet, columns=1, data=alt.NamedData(name="steps"), spacing=14)
    drawn: alt.FacetChart = panels.resolve_scale(y="independent")
    return drawn


def _steps(axis: alt.Axis) -> alt.X:
    return alt.X("step:Q", scale=alt.Scale(nice=False, zero=True), axis=axis)


def _choice(c: Configuration, run: Run) -> Choice:
    label = ", ".join(part for part in (c.name, c.label(), f"seed {run.settings.seed}") if part)
    drops = f", {run.steps.drops} drops of dead neurons" if run.steps.drops else ""
    about = f"{run.steps.growths} growths{drops} in {run.steps.count:,} steps: {_ends(run)}.{_rule(run)}{_full(run)}"
    state = "" if run.state == "finished" else f" ({run.state})"
    return Choice(slug(run.path.name), label + state, about, {"epochs": _epochs(run), "steps": _moments(run)})


def _rule(run: Run) -> str:
    """How the strategy decides, if it is known."""
    settings, strategy = run.settings, run.settings.strategy
    if settings.schedule != "dynamic":
        return " A width grows when its size (metric) is below that of the schedule (threshold)."
    if strategy in GRADIENT:
        return (
            " It adds a neuron for each singular value of the auxiliary gradient that is above "
            f"{format_value(settings.scale)} times the sum of the gradient norms of present neurons. The metric is the "
            "largest singular value, or an upper bound if that is enough to decide, so it may jump between the two."
        )
    if strategy == NEED:
        return (
            " The metric is the signal-to-noise ratio of the gradients of would-be neurons, without what present "
            "neurons can serve. A width grows when it is above the threshold, which follows from the standard error, "
            "the noise, and how much there was to learn at first. It is measured each time training has gone on for as "
            "long again."
        )
    if strategy not in STRATEGY_ORDER:
        return ""
    of_weights = strategy == "north-weight"
    orthogonality = not of_weights and settings.metric == "orthogonality"
    metric = "orthogonality (1 minus the gap)" if orthogonality else "effective dimension per neuron"
    measured = {"north-weight": "weights", "north-integrated": "activations, scaled by the outgoing weights,"}
    baseline = "the largest value so far" if settings.convolutional and not of_weights else "its value before training"
    gamma = settings.gamma or default_gamma(strategy, settings.convolutional)
    return (
        f" A width grows when the {metric} of its {measured.get(strategy, 'activations')} is above gamma "
        f"({format_value(gamma)}) times {baseline}: by the difference times the size."
    )


def _full(run: Run) -> str:
    """Why lines end before training does."""
    slack = max(0.05 * run.steps.count, 2 * (run.settings.every or MAX_INTERVAL))
    looks = [moments.index[moments["metric"].notna()] for moments in run.steps.moments.values()]
    if not any(len(steps) and steps[-1] < run.steps.count - slack for steps in looks):
        return ""
    if run.settings.strategy == NEED:
        return ""  # the next measurement may be after the end
    others = {"north-weight": " or has as many neurons as inputs"}
    return f" A width that is at its maximum{others.get(run.settings.strategy, '')} is no longer measured."


def _ends(run: Run) -> str:
    ends = {name: (sizes.iloc[0], sizes.iloc[-1]) for name, sizes in run.steps.sizes.items()}
    return ", ".join(
        f"{name} {first}" + (f" → {last}" if last != first else "") for name, (first, last) in ends.items()
    )


def _epochs(run: Run) -> pd.DataFrame:
    table = run.epoch_table
    return table.assign(**{name: table[name].map(_four_digits) for name in ("loss", "accuracy")})


def _moments(run: Run) -> pd.DataFrame:
    tables = []
    for place, (name, moments) in enumerate(run.steps.moments.items()):
        table = moments.rename_axis("step").reset_index().rename(columns={"changes": "growths"})
        digits = {each: table[each].map(_four_digits) for each in ("metric", "threshold")}
        tables.append(table.assign(width=name, place=place, **digits))
    return stacked(tables)


def _four_digits(number: float) -> float:
    return rounded(number, 4)
