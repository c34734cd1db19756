"""Why a run grew: each width's metric and threshold, step by step, with its growth marked."""

from __future__ import annotations

import altair as alt

from ..experiments.studies import GRADIENT
from .records import Run
from .sections import ORDER, Configuration, Section, gamma_of, shown, slug
from .style import Choice, Figure, Row, brief, layered, table, tips

_KINDS = {"metric": "#0072B2", "threshold": "#D55E00", "neurons": "#8a8a8a", "growth": "#222222"}
_WIDTH = 800


def timelines(section: Section) -> Figure | None:
    """The timeline of every run that has begun and may grow; those that grew come first."""
    begun = [(c, run) for c in section.configurations for run in c.runs if run.trace.steps and not c.static]
    if not begun:
        return None
    begun.sort(key=lambda pair: pair[1].trace.growths == 0)
    choices = [_choice(c, run) for c, run in begun]
    names = [choice.name for choice in choices]
    unique = [
        choice
        if names.count(choice.name) == 1
        else Choice(f"{choice.name}-{index}", choice.label, choice.about, choice.data)
        for index, choice in enumerate(choices)
    ]
    return Figure(
        f"{section.name}-timeline",
        "Growth of a run, step by step",
        "Why it grew: for each width what the trigger measured (blue), the threshold (dashed orange) and the number of "
        "neurons (grey). Dots mark growth. Above: training loss and accuracy after each epoch.",
        "",
        alt.vconcat(_progress(section), _growth(), spacing=18),
        choices=unique,
        hint="Point at a dot for its numbers.",
    )


def _progress(section: Section) -> alt.LayerChart:
    rows = table("epochs").encode(x=_steps(alt.Axis(labels=False, ticks=False, title=None, tickCount=10)))
    told = tips("epoch:Q", "step:Q", alt.Tooltip("accuracy:Q", title=f"{section.accuracy}, %"), "loss:Q")

    def line(field: str, title: str, colour: str, orient: str) -> alt.Chart:
        axis = alt.Axis(orient=orient, titleColor=colour, tickCount=4, grid=orient == "left")  # type: ignore[arg-type]
        y = alt.Y(f"{field}:Q", title=title, scale=alt.Scale(zero=False), axis=axis)
        marked = alt.OverlayMarkDef(size=20, filled=True, color=colour)
        drawn: alt.Chart = rows.mark_line(color=colour, point=marked, strokeWidth=1.5).encode(y=y, tooltip=told)
        return drawn

    both = layered(
        line("loss", "training loss", "#882255", "left"),
        line("accuracy", f"{section.accuracy}, %", "#117733", "right"),
        width=_WIDTH,
        height=110,
    )
    drawn: alt.LayerChart = both.resolve_scale(y="independent")
    return drawn


def _growth() -> alt.FacetChart:
    x = _steps(alt.Axis(title="gradient step", tickCount=10))
    scale = alt.Scale(domain=list(_KINDS), range=list(_KINDS.values()))
    colour = alt.Color("kind:N", scale=scale, legend=alt.Legend(title=None))

    def rows(kind: str, having: str) -> alt.Chart:
        having_it = alt.Chart().transform_filter(f"isValid(datum.{having})")
        chosen: alt.Chart = having_it.transform_calculate(kind=f"'{kind}'").encode(x=x, color=colour)
        return chosen

    metric = alt.Y("metric:Q", title="metric", scale=alt.Scale(zero=False, padding=6), axis=alt.Axis(tickCount=4))
    threshold = alt.Y("threshold:Q", title="metric")
    neurons = alt.Y("size:Q", title="neurons", axis=alt.Axis(orient="right", grid=False, tickCount=4))
    seen = tips("step:Q", "metric:Q", "threshold:Q", alt.Tooltip("size:Q", title="neurons"))
    grown = tips(
        "step:Q",
        alt.Tooltip("before:Q", title="neurons before"),
        alt.Tooltip("size:Q", title="neurons after"),
        "growths:Q",
        "metric:Q",
        "threshold:Q",
    )
    measured = layered(
        rows("metric", "metric").mark_line(strokeWidth=1).encode(y=metric, tooltip=seen),
        rows("threshold", "threshold").mark_line(strokeWidth=1.5, strokeDash=[5, 3]).encode(y=threshold),
        rows("growth", "before").mark_point(filled=True, size=16, opacity=1).encode(y=metric, tooltip=grown),
    )
    sizes = layered(
        rows("neurons", "size").mark_line(interpolate="step-after", strokeWidth=1.5).encode(y=neurons),
        # Triggers of one's own may have no metric to mark the growth at.
        rows("growth", "before").transform_filter("!isValid(datum.metric)").mark_point(filled=True, size=16, opacity=1)
        .encode(y=neurons, tooltip=grown),
    )  # fmt: skip
    both = layered(sizes, measured, width=_WIDTH, height=100).resolve_scale(y="independent")
    header = alt.Header(labelAnchor="start", labelFontSize=12, title=None)
    facet = alt.Facet("width:N", header=header, sort=alt.EncodingSortField("place", op="min"))
    panels = both.facet(facet, columns=1, data=alt.NamedData(name="steps"), spacing=14)
    drawn: alt.FacetChart = panels.resolve_scale(y="independent")
    return drawn


def _steps(axis: alt.Axis) -> alt.X:
    return alt.X("step:Q", scale=alt.Scale(nice=False, zero=True), axis=axis)


def _choice(c: Configuration, run: Run) -> Choice:
    label = ", ".join(part for part in (c.name, c.label(), f"seed {run.settings['seed']}") if part)
    about = f"{run.trace.growths} growths in {run.trace.steps:,} steps: {_ends(run)}.{_metric(run)}{_full(run)}"
    state = "" if run.state == "finished" else f" ({run.state})"
    return Choice(slug(run.path.name), label + state, about, {"epochs": _epochs(run), "steps": _points(run)})


def _metric(run: Run) -> str:
    """How the strategies that are known decide."""
    strategy, settings = run.settings["strategy"], run.settings
    if settings.get("schedule", "dynamic") != "dynamic":
        return " Grows where the width (metric) is below what the schedule asks for (threshold)."
    if strategy in GRADIENT:
        scale = shown(settings.get("scale", 0.5))
        return (
            f" Adds a neuron for each singular value of the auxiliary gradient that is above {scale} times the summed "
            "gradient norms of present neurons. The metric is the largest of them, or a bound of it where that is "
            "enough to decide, so that it jumps between the two."
        )
    if strategy not in ORDER:
        return ""
    of_weights, convolutional = strategy == "north-weight", "images" in settings
    gap = not of_weights and settings.get("metric") == "orthogonality"
    measured, part = (
        ("1 minus the orthogonality gap", "") if gap else ("effective dimension", ", as a part of the width,")
    )
    of = {"north-weight": "weights", "north-integrated": "activations scaled by the weights that leave them"}
    baseline = "the largest so far" if convolutional and not of_weights else "that of the untrained network"
    return (
        f" Grows where the {measured} of {of.get(strategy, 'activations')}{part} is above gamma "
        f"({shown(gamma_of(settings))}) times {baseline}: by the difference times the width."
    )


def _full(run: Run) -> str:
    """Why lines end before the training does."""
    slack = max(0.05 * run.trace.steps, 2 * (run.settings.get("every") or 12))
    looked = [[point.step for point in points if point.metric is not None] for points in run.trace.points.values()]
    if not any(steps and steps[-1] < run.trace.steps - slack for steps in looked):
        return ""
    inputs = " or has as many neurons as inputs" if run.settings["strategy"] == "north-weight" else ""
    return f" A width that is at its maximum{inputs} is not measured any more."


def _ends(run: Run) -> str:
    ends = {name: (history[0][1], history[-1][1]) for name, history in run.trace.changes.items()}
    return ", ".join(
        f"{name} {first}" + (f" → {last}" if last != first else "") for name, (first, last) in ends.items()
    )


def _epochs(run: Run) -> list[Row]:
    return [
        {
            "step": epoch.step,
            "epoch": epoch.epoch,
            "loss": brief(epoch.loss, 4),
            "accuracy": None if epoch.accuracy is None else brief(100 * epoch.accuracy, 4),
        }
        for epoch in run.epochs
    ]


def _points(run: Run) -> list[Row]:
    return [
        {
            "width": name,
            "place": place,
            "step": point.step,
            "metric": brief(point.metric, 4),
            "threshold": brief(point.threshold, 4),
            "size": point.size,
            "before": point.before,
            "growths": point.growths or None,
        }
        for place, (name, points) in enumerate(run.trace.points.items())
        for point in points
    ]
