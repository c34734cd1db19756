"""Growing against what one would do instead: the table and the figure of `benchmarks.against`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache

import altair as alt
import pandas as pd

from benchmarks.against import TASKS, Outcome, read
from neurogenesis.report.figures import Figure
from neurogenesis.report.numbers import plus_minus, rounded

from .records import RESULTS

GROWN = "grown"
COLORS = {
    GROWN: "#000000", "static, grown widths": "#8a8a8a", "static 64-64": "#bdbdbd", "static 256-256": "#4a4a4a",
    "pruned by ng.prune": "#0072B2", "pruned by Torch-Pruning": "#56B4E9", "Optuna, 5 trials": "#E69F00",
    "Optuna, 10 trials": "#D55E00", "Optuna, 20 trials": "#882255", "Optuna, as long as growing": "#DDCC77",
    "gromo, TINY": "#009E73", "gromo, GradMax": "#44AA99",
}  # fmt: skip
"""The ways in the order of the table, with their colors."""
REAL = ("friedman1",)
"""Sets with real targets, of which accuracy is the part of the variance that is explained."""


@cache
def outcomes() -> pd.DataFrame:
    """A row for each set, way and seed; accuracy in percent."""
    rows = [
        {**vars(each), "set": name, "accuracy": 100 * each.accuracy, "first": each.widths[0], "second": each.widths[1]}
        for name in TASKS
        for each in read(RESULTS / "against" / f"{name}.jsonl")
    ]
    return pd.DataFrame(rows, columns=["set", *Outcome.__dataclass_fields__, "first", "second"])


def of_way(name: str, way: str) -> pd.DataFrame:
    """The networks of a set to which a way has led, by seed."""
    every = outcomes()
    return every[(every["set"] == name) & (every["way"] == way)].set_index("seed").sort_index()


def sets() -> list[str]:
    """The sets of which there are grown networks."""
    return [name for name in TASKS if len(of_way(name, GROWN))]


def paired(name: str, way: str) -> tuple[float, float]:
    """The mean over seeds of a way's accuracy minus that of the grown network, and its standard error."""
    difference = (of_way(name, way)["accuracy"] - of_way(name, GROWN)["accuracy"]).dropna()
    return float(difference.mean()), float(difference.sem())


def against_table() -> list[Mapping[str, str]]:
    """Accuracy, size and times of every way on every set."""
    rows = []
    for name in sets():
        for way in COLORS:
            found = of_way(name, way)
            if not len(found):
                continue
            mean, error = paired(name, way)
            rows.append(
                {
                    "set": name,
                    "way": way,
                    "seeds": str(len(found)),
                    "accuracy, %": plus_minus(found["accuracy"], ".2f"),
                    "minus grown": "" if way == GROWN else _signed(mean, error),
                    "test loss": f"{found['loss'].mean():.4f}",
                    "widths": f"{found['first'].mean():.0f}-{found['second'].mean():.0f}",
                    "parameters": f"{found['parameters'].mean():,.0f}",
                    "kFLOPs": f"{found['flops'].mean() / 1e3:,.1f}",
                    "prediction, ms": f"{1e3 * found['predict_seconds'].mean():.2f}",
                    "training, s": f"{found['train_seconds'].mean():.1f}",
                    "trials": f"{found['trials'].mean():.0f}" if found["trials"].any() else "",
                }
            )
    return rows


def _signed(mean: float, error: float) -> str:
    return f"{mean:+.2f}" + ("" if math.isnan(error) else f" ± {error:.2f}")


def verdicts_table() -> list[Mapping[str, str]]:
    """For each set, the ways that are better than growing, worse, and neither, by two standard errors."""
    rows = []
    for name in sets():
        found: dict[str, list[str]] = {"better than growing": [], "level": [], "worse": []}
        for way in COLORS:
            if way != GROWN and len(of_way(name, way)) > 1:
                mean, error = paired(name, way)
                level = abs(mean) <= 2 * error
                found["level" if level else "better than growing" if mean > 0 else "worse"].append(way)
        rows.append({"set": name, **{kind: "; ".join(ways) or "none" for kind, ways in found.items()}})
    return rows


def against_figure() -> Figure:
    """Errors against the time of all training that was necessary, for each set."""
    data, charts = {}, []
    for name in sets():
        data[name] = pd.DataFrame([_point(name, way) for way in COLORS if len(of_way(name, way))])
        charts.append(_panel(name))
    return Figure(
        "against",
        "Growing, searching and pruning",
        "What is not classified correctly, or the part of the variance that is not explained, against the processor "
        "time of all training that was necessary, trials included. Both axes are logarithmic. Bars are one standard "
        "error over seeds; the area of a mark is the logarithm of the number of parameters.",
        "",
        alt.concat(*charts, columns=3),
        data,
    )


def _point(name: str, way: str) -> dict[str, object]:
    found = of_way(name, way)
    error, deviation = 100 - found["accuracy"].mean(), found["accuracy"].sem()
    bar = 0.0 if math.isnan(deviation) else deviation
    return {
        "way": way,
        "error": rounded(error),
        "low": rounded(max(error - bar, 0.2 * error)),
        "high": rounded(error + bar),
        "seconds": rounded(found["train_seconds"].mean(), 2),
        "area": rounded(25 * math.log10(found["parameters"].mean()), 2),
    }


def _panel(name: str) -> alt.LayerChart:
    rows = alt.Chart(alt.NamedData(name=name))
    color = alt.Color("way:N", title=None, scale=alt.Scale(domain=list(COLORS), range=list(COLORS.values())))
    scale = alt.Scale(type="log", nice=False, padding=16)
    title = "variance not explained, %" if name in REAL else "errors, %"
    x = alt.X("seconds:Q", title="training, processor seconds", scale=scale)
    bars = rows.mark_rule(strokeWidth=1.3).encode(
        x=x, y=alt.Y("low:Q", title=title, scale=scale), y2="high:Q", color=color
    )
    points = rows.mark_point(filled=True, opacity=1).encode(
        x=x, y=alt.Y("error:Q", title=title, scale=scale), color=color, size=alt.Size("area:Q", scale=None)
    )
    layers: alt.LayerChart = alt.layer(bars, points).properties(width=260, height=210, title=name)
    return layers
