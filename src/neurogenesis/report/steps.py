"""The gradient steps of a run, summarized: how widths changed, what the trigger measured, and what a step cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from ..experiments.record import Epoch, Sizes, Step
from .numbers import evenly


@dataclass(frozen=True, eq=False)
class StepSummary:
    """How all widths changed, some moments of each width, and the times of all steps."""

    count: int = 0
    """Gradient steps."""
    sizes: Mapping[str, pd.Series] = field(default_factory=dict)
    """For each width, its sizes at the start and after each change, by step."""
    moments: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    """For each width, a row for each moment, by step: what the trigger measured (`metric`, `threshold`), the `size`
    after the step, the size `before` it if it changed, and the number of `changes` that the row stands for."""
    times: pd.DataFrame = field(default_factory=pd.DataFrame)
    """Seconds of each step, in total (`seconds`), for the trigger and for the initialization. The first step is left
    out: it is slower, because caches and allocators are cold."""

    @property
    def growths(self) -> int:
        """How often widths grew."""
        return sum(int((sizes.diff() > 0).sum()) for sizes in self.sizes.values())

    @property
    def drops(self) -> int:
        """How often neurons of a width were dropped."""
        return sum(int((sizes.diff() < 0).sum()) for sizes in self.sizes.values())


def summarize(steps: Iterable[Step], initial: Sizes, limit: int) -> StepSummary:
    """Summarize steps, with at most about `limit` moments of each width.

    Example:
        >>> steps = [Step(step=step, widths={"a": size}) for step, size in ((1, 4), (2, 6), (3, 6))]
        >>> summarize(steps, {"a": 4}, limit=100).sizes["a"].to_dict()
        {0: 4, 2: 6}
    """
    rows = sorted({step.step: step for step in steps}.values(), key=lambda step: step.step)
    index = [row.step for row in rows]
    last = index[-1] if index else 0
    widths = pd.DataFrame([initial, *(row.widths for row in rows)], index=[0, *index]).bfill().ffill()
    metric, threshold = (
        pd.DataFrame([getattr(row, kind) for row in rows], index=index, dtype=float).reindex(columns=widths.columns)
        for kind in ("metric", "threshold")
    )
    times = [(row.seconds, row.trigger_seconds, row.initialization_seconds) for row in rows[1:]]
    sizes, moments = {}, {}
    for name, column in widths.astype(int).items():
        sizes[name] = column[column.diff() != 0]
        seen = pd.DataFrame({"metric": metric[name], "threshold": threshold[name]}).dropna(subset="metric")
        moments[name] = _moments(sizes[name], seen, last, limit)
    return StepSummary(last, sizes, moments, pd.DataFrame(times, columns=["seconds", "trigger", "initialization"]))


def summarize_epochs(epochs: Iterable[Epoch], initial: Sizes, limit: int) -> StepSummary:
    """The sizes after each epoch, where there are no steps; they say nothing about cost."""
    steps = (Step(step=epoch.step, widths=epoch.widths) for epoch in epochs)
    return replace(summarize(steps, initial, limit), times=pd.DataFrame())


def _moments(sizes: pd.Series, seen: pd.DataFrame, last: int, limit: int) -> pd.DataFrame:
    """The changes of a width, the ends of the run, and as many measurements as there is room for."""
    changes = _merged_changes(sizes, limit)
    room = max(limit - len(changes), limit // 4)
    kept = sorted({0, last, *changes.index, *seen.index[evenly(len(seen), room)]})
    return seen.reindex(kept).assign(size=sizes.reindex(kept, method="ffill")).join(changes)


def _merged_changes(sizes: pd.Series, limit: int) -> pd.DataFrame:
    """For each step, the size before and the number of changes since; beyond the limit, changes are merged."""
    count = len(sizes) - 1
    ends = np.add(evenly(count, limit), 1)
    if len(ends) < count:
        ends = ends[1:]  # the first change is merged, too
    starts = np.concatenate([[0], ends])[:-1].astype(int)
    ends = ends.astype(int)
    return pd.DataFrame({"before": sizes.to_numpy()[starts], "changes": ends - starts}, index=sizes.index[ends])
