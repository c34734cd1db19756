"""Figures of searches: growing next to searching, trials and their front, and the best so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from ...experiments.tuning.choice import Goal, choose
from ..numbers import needs_log_axis, plus_minus, rounded, significant, time_unit
from ..runs import Run, Search
from ..searches import Searches, searched_values, trial_number
from ..sections import missing_note
from .against_static import round_numbers
from .figure import Figure, stacked
from .style import FILL, STROKE, Drawing, Legend, Palette, layered, small_title, tooltip

_TRIALS = "#8a8a8a"
_SIZE = {"width": 330, "height": 230}


def searching(searches: Searches, palette: Palette) -> list[Figure]:
    """The figures of searches, in the order of reading."""
    figures = [growing_or_searching(searches, palette), front(searches, palette), history(searches, palette)]
    return [figure for figure in figures if figure is not None]


def growing_or_searching(searches: Searches, palette: Palette) -> Figure | None:
    """Accuracy on the test split against the time of all training, and against parameters; None without approaches."""
    if not searches.approaches:
        return None
    drawing = Drawing(_legend(palette, [found.name for found in searches.approaches]))
    unit, length = time_unit(max(found.results["seconds"].max() for found in searches.approaches))
    for preset in searches.presets:
        approaches = [found for found in searches.approaches if found.preset == preset]
        if not approaches:
            continue
        each = pd.concat([found.results.assign(strategy=found.name) for found in approaches])
        each["seconds"] /= length
        groups = each.groupby("strategy", sort=False)
        drawing.tables[preset] = pd.DataFrame([_means(strategy, group, unit) for strategy, group in groups])
        fields = ["seconds", "parameters", "accuracy"]
        runs = pd.concat([each["strategy"], *(each[field].map(rounded) for field in fields)], axis=1)
        drawing.tables[f"{preset} runs"] = runs
        for field, title in (("seconds", f"total training time, {unit}"), ("parameters", "parameters")):
            drawing.add(*_approaches(drawing, preset, _axis(field, title, runs[field])), title=preset, **_SIZE)
    return Figure(
        f"{searches.name}-growing-or-searching",
        "Test accuracy against total training time, and against parameters",
        "Large marks are means over seeds, with one standard deviation; small ones are single seeds. The time of a "
        "search is that of its trials and of the final training of what it chose. The first trials of a search are "
        "those of a shorter one. Horizontal axes are logarithmic where values span more than a factor of ten.",
        missing_note(searches.configurations),
        alt.concat(*drawing.charts, columns=2, spacing=40),
        drawing.data,
        hint="Point at a mark to see its numbers.",
    )


def _approaches(drawing: Drawing, name: str, x: alt.X) -> list[alt.Chart]:
    y = alt.Y("accuracy:Q", title="test accuracy, %", scale=alt.Scale(zero=False, padding=8))
    low = alt.Y("low:Q", scale=y["scale"], title=y["title"])
    rows, each = drawing.rows(name), drawing.rows(f"{name} runs")
    numbers = tooltip("strategy:N", "seeds:Q", "test accuracy, %:N", "number of parameters:N", "training time:N")
    means = rows.mark_point(filled=True, size=100, opacity=1)
    bars = rows.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=1.3)
    return [
        each.mark_point(filled=True, size=16, opacity=0.5).encode(x=x, y=y, fill=FILL),
        bars.encode(x=x, y=low, y2=alt.Y2("high:Q"), stroke=STROKE),
        drawing.in_colors(means.encode(x=x, y=y, shape=drawing.legend.shape, tooltip=numbers)),
    ]


def front(searches: Searches, palette: Palette) -> Figure | None:
    """Trials by validation accuracy and parameters with their front; tested networks beside; None without trials."""
    longest = {id(budget.search): budget for budget in searches.budgets}
    names = {budget.name for budget in longest.values()}
    grown = [found for found in searches.approaches if not found.searched]
    drawing = Drawing(_legend(palette, [*(found.name for found in grown), *names]))
    for preset in searches.presets:
        budgets = [budget for budget in longest.values() if budget.preset == preset]
        trials = stacked(_trials(budget.search) for budget in budgets)
        if trials.empty:
            continue
        tested = [_point(final, strategy=budget.name, seed=budget.search.settings.seed)
                  for budget in budgets for final in budget.tested]  # fmt: skip
        own = [found.results.assign(strategy=found.name, accuracy=found.results["accuracy"].map(rounded))
               [["strategy", "parameters", "accuracy"]] for found in grown if found.preset == preset]  # fmt: skip
        drawing.tables[f"{preset} trials"] = trials
        drawing.tables[f"{preset} chosen"] = pd.DataFrame(
            [_point(trial, strategy=budget.name, seed=budget.search.settings.seed)
             for budget in budgets for trial, _ in budget.chosen]
        )  # fmt: skip
        drawing.tables[f"{preset} tested"] = points = pd.concat([pd.DataFrame(tested), *own])
        x = _axis("parameters", "parameters", pd.concat([trials, points])["parameters"])
        drawing.add(*_front(drawing, preset, x), title=f"{preset}: trials", **_SIZE)
        drawing.add(_tested(drawing, preset, x), title=f"{preset}: chosen and grown", **_SIZE)
    if not drawing.charts:
        return None
    return Figure(
        f"{searches.name}-front",
        "Trials and their Pareto front; what was chosen, and grown networks",
        "Left: every trial of the longest search of each seed, by accuracy on held-out data; the lines are the fronts: "
        "no other trial is both smaller and better. Hollow: stopped before the last epoch. Right: on the test split, "
        "after training on the whole training split.",
        missing_note(searches.configurations),
        alt.concat(*drawing.charts, columns=2, spacing=40),
        drawing.data,
        hint="Point at a mark to see its settings and numbers.",
    )


def _front(drawing: Drawing, preset: str, x: alt.X) -> list[alt.Chart]:
    y = alt.Y("accuracy:Q", title="validation accuracy, %", scale=alt.Scale(zero=False, padding=8))
    trials = alt.Chart(alt.NamedData(name=f"{preset} trials"))
    numbers = tooltip("trial:N", "seed:N", "settings:N", "state:N", "accuracy:Q", "parameters:Q")
    hollow = alt.condition("datum.state == 'stopped'", alt.value("#ffffff"), alt.value(_TRIALS))
    marks = trials.mark_point(size=32, stroke=_TRIALS, opacity=0.9).encode(x=x, y=y, fill=hollow, tooltip=numbers)
    line = trials.transform_filter("datum.front").mark_line(interpolate="step-after", strokeWidth=1.2, color="#222")
    chosen = drawing.rows(f"{preset} chosen").mark_point(filled=True, size=95, opacity=1)
    chosen = chosen.encode(x=x, y=y, shape=drawing.legend.shape)
    return [line.encode(x=x, y=y, detail=alt.Detail("seed:N")), marks, drawing.in_colors(chosen)]


def _tested(drawing: Drawing, preset: str, x: alt.X) -> alt.Chart:
    y = alt.Y("accuracy:Q", title="test accuracy, %", scale=alt.Scale(zero=False, padding=8))
    points = drawing.rows(f"{preset} tested").mark_point(filled=True, size=80, opacity=0.9)
    numbers = tooltip("strategy:N", "seed:N", "accuracy:Q", "parameters:Q")
    drawn: alt.Chart = points.encode(x=x, y=y, fill=FILL, shape=drawing.legend.shape, tooltip=numbers)
    return drawn


def history(searches: Searches, palette: Palette) -> Figure | None:
    """The best validation accuracy so far, against trials and against seconds of training; None without trials."""
    unit, length = time_unit(max((budget.trial_seconds for budget in searches.budgets), default=0.0))
    data: dict[str, pd.DataFrame] = {}
    charts: list[alt.LayerChart] = []
    for preset in searches.presets:
        rows = pd.concat([_history(each, length) for each in searches.searches if each.settings.preset == preset])
        if rows.empty:
            continue
        data[preset] = rows
        last = int(rows["trials"].max())
        ticks = list(range(0, last + 1, math.ceil(last / 10)))[1:]
        for field, title in (("trials", "trials"), ("seconds", f"time of training, {unit}")):
            x = alt.X(f"{field}:Q", title=title, axis=alt.Axis(values=ticks) if field == "trials" else alt.Axis())
            y = alt.Y("best:Q", title="best validation accuracy, %", scale=alt.Scale(zero=False, padding=8))
            chart = alt.Chart(alt.NamedData(name=preset))
            seeds = alt.Color("seed:N", title="seed", scale=alt.Scale(scheme="dark2"))
            lines = chart.mark_line(interpolate="step-after").encode(x=x, y=y, color=seeds)
            numbers = tooltip("trial:N", "seed:N", "accuracy:Q", "best:Q", "seconds:Q")
            dots = chart.mark_point(filled=True, size=24).encode(x=x, y=y, color=seeds, tooltip=numbers)
            charts.append(layered(lines, dots, title=small_title(preset), **_SIZE))
    if not charts:
        return None
    return Figure(
        f"{searches.name}-history",
        "The best trial so far",
        "Validation accuracy of the best trial so far, after each trial, and against the seconds of training that all "
        "trials together have taken.",
        missing_note(searches.configurations),
        alt.concat(*charts, columns=2, spacing=40),
        data,
    )


def _legend(palette: Palette, names: Sequence[str]) -> Legend:
    return Legend({name: color for name, color in palette.colors.items() if name in names})


def _axis(field: str, title: str, values: Sequence[float]) -> alt.X:
    """A logarithmic axis if values span more than a factor of ten."""
    form = "~s" if field == "parameters" else ",.4~r"
    if not needs_log_axis(values):
        scale = alt.Scale(zero=False, nice=False, padding=14)
        return alt.X(f"{field}:Q", title=title, scale=scale, axis=alt.Axis(format=form, tickCount=6))
    ends = [min(values) / 1.2, max(values) * 1.2]
    axis = alt.Axis(format=form, values=round_numbers(*ends))
    return alt.X(f"{field}:Q", title=title, scale=alt.Scale(type="log", domain=ends, nice=False), axis=axis)


def _means(strategy: str, networks: pd.DataFrame, unit: str) -> dict[str, Any]:
    """An approach by the means over its networks."""
    accuracy, parameters, seconds = networks["accuracy"], networks["parameters"], networks["seconds"]
    return {
        "strategy": strategy, "seeds": len(networks), "accuracy": rounded(accuracy.mean()),
        "seconds": rounded(seconds.mean()), "parameters": rounded(parameters.mean()),
        "low": rounded(accuracy.mean() - accuracy.std()), "high": rounded(accuracy.mean() + accuracy.std()),
        "test accuracy, %": plus_minus(accuracy, ".2f"), "number of parameters": plus_minus(parameters),
        "training time": f"{significant(seconds)} {unit}",
    }  # fmt: skip


def _point(run: Run, **identity: Any) -> dict[str, Any]:
    """The last accuracy of a run, and its size."""
    last = run.result or run.epochs[-1]
    return {**identity, "parameters": last.parameters, "accuracy": rounded(100 * (last.accuracy or 0.0))}


def _trials(search: Search) -> pd.DataFrame:
    results = {run.path.name: run.result for run in search.trials if run.result is not None}
    best = choose(results, Goal("pareto", search.record.max_parameters))
    return pd.DataFrame([
        _point(run, trial=run.path.name, seed=search.settings.seed, state=run.state,
               settings=searched_values(search, run.settings), front=run.path.name in best)
        for run in search.trials if run.epochs and run.state in ("finished", "stopped")
    ])  # fmt: skip


def _history(search: Search, length: float) -> pd.DataFrame:
    """The best accuracy after each trial, from the first finished one of an allowed size."""
    goal = Goal(max_parameters=search.record.max_parameters)
    rows = [
        (run.path.name, trial_number(run), search.settings.seed, run.train_seconds / length,
         100 * run.result.accuracy if run.result else math.nan,
         run.result is not None and goal.allows(run.result.parameters))
        for run in search.trials
    ]  # fmt: skip
    table = pd.DataFrame(rows, columns=["trial", "trials", "seed", "seconds", "accuracy", "allowed"])
    table = table.astype({"accuracy": float, "allowed": bool})
    best = table["accuracy"].where(table["allowed"]).cummax().ffill()
    table = table.assign(best=best, seconds=table["seconds"].cumsum()).drop(columns="allowed")[best > 0]
    return table.assign(**{name: table[name].map(rounded) for name in ("best", "seconds", "accuracy")})
