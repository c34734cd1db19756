"""The gradient steps of a run, summarized: how widths changed, what the trigger measured, and what a step cost."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from ..experiments.record import Sizes, Step
from .statistics import Statistic, evenly, statistic

Changes = list[tuple[int, int]]
"""Step and size after each change of a width; the first one is step 0 and the initial size."""


class Point(NamedTuple):
    """What the trigger measured of a width at a step, and the size after it."""

    step: int
    metric: float | None
    threshold: float | None
    size: int
    before: int | None  # the size before, if the width grew or shrank
    growths: int  # and times that neurons were dropped, that this point stands for


@dataclass(frozen=True)
class Cost:
    """Seconds of a gradient step: in total, of the trigger, and of the initialization."""

    seconds: Statistic
    trigger: Statistic
    initialization: Statistic


@dataclass(frozen=True)
class StepSummary:
    """All changes of all widths, a limited number of points of each width, and the cost of a step."""

    count: int = 0
    changes: Mapping[str, Changes] = field(default_factory=dict)
    points: Mapping[str, Sequence[Point]] = field(default_factory=dict)
    cost: Cost | None = None

    @property
    def growths(self) -> int:
        """The number of growths of all widths."""
        return sum(after > before for before, after in self._sizes())

    @property
    def drops(self) -> int:
        """The number of times that neurons of a width were dropped."""
        return sum(after < before for before, after in self._sizes())

    def _sizes(self) -> Iterator[tuple[int, int]]:
        """Sizes before and after each change of each width."""
        for changes in self.changes.values():
            yield from pairwise(size for _, size in changes)


def summarize(steps: Iterable[Step], initial: Sizes, limit: int) -> StepSummary:
    """Summarize steps in one pass, with at most about `limit` points per width."""
    changes: dict[str, Changes] = {name: [(0, size)] for name, size in initial.items()}
    seen: dict[str, list[tuple[int, float | None, float | None]]] = {}
    seconds: list[float] = []
    trigger: list[float] = []
    initialization: list[float] = []
    last = 0
    for step in steps:
        last = step.step
        for name, size in step.widths.items():
            history = changes.setdefault(name, [(0, size)])
            if history[-1][1] != size:
                history.append((step.step, size))
        for name, metric in step.metric.items():
            seen.setdefault(name, []).append((step.step, metric, step.threshold.get(name)))
        seconds.append(step.seconds)
        trigger.append(step.trigger_seconds)
        initialization.append(step.initialization_seconds)
    points = {name: _points(seen.get(name, []), history, last, limit) for name, history in changes.items()}
    return StepSummary(last, changes, points, _cost(seconds, trigger, initialization))


def size_at(changes: Changes, step: float) -> int:
    """The size of a width after a step.

    Example:
        >>> size_at([(0, 4), (7, 6)], 7)
        6
    """
    return changes[max(0, bisect_right(changes, (step, float("inf"))) - 1)][1]


def _points(
    seen: Sequence[tuple[int, float | None, float | None]], changes: Changes, last: int, limit: int
) -> list[Point]:
    grown = _grown(changes, limit)
    observed = {step: (metric, threshold) for step, metric, threshold in seen}
    room = max(limit - len(grown), limit // 4)
    kept = {seen[index][0] for index in evenly(len(seen), room)} | grown.keys() | {0, last}
    return [
        Point(step, *observed.get(step, (None, None)), size_at(changes, step), *grown.get(step, (None, 0)))
        for step in sorted(kept)
    ]


def _grown(changes: Changes, limit: int) -> dict[int, tuple[int, int]]:
    """By step, the size before and the number of changes since; changes beyond the limit are merged with the next."""
    ends = [index + 1 for index in evenly(len(changes) - 1, limit)]
    if ends and len(ends) < len(changes) - 1:
        ends = ends[1:]  # the first change is merged, too
    return {changes[end][0]: (changes[start][1], end - start) for start, end in zip([0, *ends], ends, strict=False)}


def _cost(seconds: list[float], trigger: list[float], initialization: list[float]) -> Cost | None:
    # The first step is slower, because caches and allocators are cold.
    parts = [statistic(values[1:]) for values in (seconds, trigger, initialization)]
    return Cost(*parts) if all(parts) else None  # type: ignore[arg-type]
