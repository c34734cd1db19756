"""Networks that grow against static ones by compute: the loss at equal compute, and the compute saved at equal loss.

Runs are compared seed by seed. Static networks of several depths, or lengths of training, form a curve: those whose
mean loss is below that of all cheaper ones, and straight lines between them over the logarithm of compute.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd

from ..experiments.presets import NAMES
from ..experiments.record import Result
from ..experiments.settings import DEEPENING, SHAPED
from .names import is_shape
from .runs import Run
from .sections import Configuration
from .speeds import undisturbed_seconds

BITS, TEST_LOSS = "bits per character", "test loss"
OF_DEPTH = (NAMES.initial, NAMES.medium, NAMES.maximum, NAMES.shape, NAMES.blocks, NAMES.initial_blocks)
"""The settings that the number of blocks says."""


@dataclass(frozen=True, eq=False)
class LossCurve:
    """Losses of networks in the order of what they take, and straight lines over its logarithm between them.

    Example:
        >>> curve = LossCurve([100.0, 200.0, 400.0], losses=[3.0, 2.0, 1.5])
        >>> curve.loss_at(200.0), curve.loss_at(1.0), round(curve.loss_at(100 * 2**0.5), 2)
        (2.0, 3.0, 2.5)
        >>> round(curve.amount_for(1.75)), curve.amount_for(1.0), curve.bound(1.0)
        (283, 400.0, '≥')
    """

    amounts: Sequence[float]
    """What the networks take, increasing: operations, seconds, parameters."""
    losses: Sequence[float]

    def loss_at(self, amount: float) -> float:
        """The loss for this amount; beyond the ends, that of the end."""
        return float(np.interp(math.log(amount), np.log(self.amounts), self.losses))

    def amount_for(self, loss: float) -> float:
        """The least amount for which the loss is this or lower; that of the lowest loss, if none is so low."""
        if self.losses[0] <= loss:
            return self.amounts[0]
        for (first, before), (second, after) in pairwise(zip(np.log(self.amounts), self.losses, strict=True)):
            if after <= loss:
                return math.exp(first + (before - loss) / (before - after) * (second - first))
        return self.amounts[int(np.argmin(self.losses))]

    def bound(self, loss: float) -> str:
        """What the amount for a loss is at least ("≥") or at most ("≤"); "" if the loss is on the curve."""
        return "≥" if loss < min(self.losses) else "≤" if loss > self.losses[0] else ""


class Against(NamedTuple):
    """A network that has grown against a curve of static ones: means over seeds, and their standard errors."""

    difference: float
    """Its loss minus that of static networks which take as much."""
    difference_error: float
    dearer: bool
    """Whether it takes more than the last network of the curve, whose loss then counts."""
    saved: float
    """The part that it takes less than static networks of its loss."""
    saved_error: float
    seeds: int
    bound: str
    """"≥" or "≤" if `saved` is at least or at most this, because a loss is beyond an end of the curve, which then
    counts; "≈" if losses of some seeds are beyond one end, and of others beyond the other."""


def against(grown: pd.DataFrame, static: pd.DataFrame, amount: str) -> Against | None:
    r"""Compare the runs of a network with those of static ones of the same seeds; None without two that share a seed.

    With the loss :math:`L_s` and the amount :math:`C_s` of the run with seed s, and the curve :math:`L'_s(C)` of the
    static runs with that seed, the means over seeds of

    .. math:: L_s - L'_s(C_s) \qquad\text{and}\qquad 1 - C_s / \min\{C : L'_s(C) \le L_s\}

    Args:
        grown: a row for each run, with its seed, loss and amount.
        static: the same, and the number of its configuration.
        amount: the name of the column of amounts.
    """
    members = _around(grown, static, amount)
    have = static[static["configuration"].isin(members)].groupby("configuration")["seed"].agg(set)
    seeds = sorted(set(grown["seed"]).intersection(*have))
    if len(members) < 2 or not seeds:
        return None
    differences, savings, bounds, dearer = [], [], set(), False
    for seed in seeds:
        own = grown[grown["seed"] == seed].iloc[0]
        some = static[static["seed"] == seed].set_index("configuration").loc[members]
        curve = LossCurve(some[amount].tolist(), some["loss"].tolist())
        differences.append(own["loss"] - curve.loss_at(own[amount]))
        savings.append(1 - own[amount] / curve.amount_for(own["loss"]))
        bounds.add(curve.bound(own["loss"]))
        dearer |= bool(own[amount] > curve.amounts[-1])
    lost, saved = pd.Series(differences), pd.Series(savings)
    bound = "≈" if {"≥", "≤"} <= bounds else max(bounds)
    return Against(
        difference=float(lost.mean()),
        difference_error=float(lost.sem()),
        dearer=dearer,
        saved=float(saved.mean()),
        saved_error=float(saved.sem()),
        seeds=len(seeds),
        bound=bound,
    )


def front(runs: pd.DataFrame, amount: str) -> list[int]:
    """The configurations whose mean loss is below that of all which take less, in their order.

    Example:
        >>> runs = pd.DataFrame({"configuration": [7, 8, 9], "gflops": [1.0, 2.0, 3.0], "loss": [2.0, 2.5, 1.5]})
        >>> front(runs, "gflops")
        [7, 9]
    """
    means = runs.groupby("configuration")[[amount, "loss"]].mean().sort_values([amount, "loss"])
    found: list[int] = means.index[means["loss"] < means["loss"].cummin().shift(fill_value=math.inf)].tolist()
    return found


def _around(grown: pd.DataFrame, static: pd.DataFrame, amount: str) -> list[int]:
    """The part of the front from a network that is both cheaper and worse, to one that is both dearer and better.

    All of these count, so that the seeds are those which they have in common; networks further away do not matter.
    """
    members = front(static, amount)
    means = static.groupby("configuration")[[amount, "loss"]].mean().loc[members]
    below = (means[amount] <= grown[amount].min()) & (means["loss"] >= grown["loss"].max())
    above = (means[amount] >= grown[amount].max()) & (means["loss"] <= grown["loss"].min())
    last = max(2, len(members) - max(0, int(above.sum()) - 1))
    first = min(max(0, int(below.sum()) - 1), max(0, len(members[:last]) - 2))
    return members[first:last]


def runs_by_compute(configurations: Sequence[Configuration]) -> pd.DataFrame:
    """A row for each finished run whose operations were counted.

    The loss is bits per character of networks that predict characters, and the test loss of others.
    """
    runs = [run for c in configurations for run in c.finished]
    seconds = undisturbed_seconds(runs)
    rows = [
        {
            "strategy": c.name,
            "configuration": index,
            "static": c.static,
            "shaped": c.strategy == SHAPED,
            "variant": c.label(),
            "decay": c.values.get(NAMES.decay, ""),
            "steps": run.result.steps,
            "blocks": blocks_of(run.result),
            "line": c.label(without=[NAMES.epochs]),
            "label": _label(c, run),
            "seed": run.settings.seed,
            "loss": run.result.bits_per_character or run.result.test_loss,
            "parameters": run.result.parameters,
            "flops": run.result.flops,
            "gflops": run.result.training_flops / 1e9,
            "seconds": seconds[run.path],
        }
        for index, c in enumerate(configurations)
        for run in c.finished
        if run.result is not None and run.result.training_flops and run.result.test_loss
    ]
    return pd.DataFrame(rows)


def blocks_of(result: Result) -> str:
    """The number of blocks, at the start and at the end; empty if it is not in the record.

    Example:
        >>> widths = {"blocks": 6}
        >>> blocks_of(Result(accuracy=0.5, parameters=9, train_seconds=1, widths=widths, initial_widths={"blocks": 3}))
        '3 to 6'
    """
    numbers = (str(sizes.get("blocks", "")) for sizes in (result.initial_widths, result.widths))
    return " to ".join(dict.fromkeys(numbers))


_KINDS = {"query": "heads", "up": "neurons"}  # of the widths of a transformer, by the layer that makes them


def growth_of(results: Sequence[Result]) -> str:
    """What has grown in the runs of a network, from and to which sizes.

    Example:
        >>> widths = {"blocks.0.up": 40, "blocks.1.up": 64, "blocks.0.query": 4}
        >>> initial = {"blocks.0.up": 32, "blocks.1.up": 32, "blocks.0.query": 4}
        >>> growth_of([Result(accuracy=0.5, parameters=9, train_seconds=1, widths=widths, initial_widths=initial)])
        'neurons 32 to 40-64'
    """
    ends: dict[str, list[tuple[int, int]]] = {}
    for result in results:
        for name, size in result.widths.items():
            if size != result.initial_widths[name]:
                last = name.rpartition(".")[-1]
                ends.setdefault(_KINDS.get(last, last), []).append((result.initial_widths[name], size))
    return ", ".join(
        f"{kind} {' to '.join(_span(sizes) for sizes in zip(*both, strict=True))}" for kind, both in ends.items()
    )


def _span(sizes: Sequence[int]) -> str:
    return "-".join(str(size) for size in dict.fromkeys((min(sizes), max(sizes))))


def _label(c: Configuration, run: Run) -> str:
    """A short name in a figure: the blocks, when they were added, or else what has grown."""
    assert run.result is not None
    blocks, settings = blocks_of(run.result), run.settings
    if c.strategy == SHAPED:
        return ", ".join(part for part in (blocks, c.label(without=[NAMES.epochs, *OF_DEPTH])) if part)
    if is_shape(c.strategy):
        return "from scratch"
    if settings.strategy not in DEEPENING:
        return blocks or growth_of([other.result for other in c.finished if other.result is not None])
    hops = f" in {settings.hops} hops" if settings.hops > 1 else ""
    return f"{blocks} at {settings.at:g}{hops}"
