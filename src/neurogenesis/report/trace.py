"""The gradient steps of a run, thinned: sizes, metrics and thresholds of widths, and what steps cost."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .statistics import Statistic, evenly, statistic

Changes = list[tuple[int, int]]  # step and size, where the size changed; at first step 0 and the initial size


class Step(NamedTuple):
    """A line of steps.jsonl."""

    step: int
    widths: Mapping[str, int]
    metric: Mapping[str, float]
    threshold: Mapping[str, float]
    seconds: float
    trigger_seconds: float
    initialization_seconds: float


class Point(NamedTuple):
    """What the trigger saw of a width at a step, the size after it, and the size before where it changed."""

    step: int
    metric: float | None
    threshold: float | None
    size: int
    before: int | None
    growths: int  # that this point stands for


@dataclass(frozen=True)
class Cost:
    """Seconds per gradient step, and of these for trigger and initialization."""

    seconds: Statistic
    trigger: Statistic
    initialization: Statistic


@dataclass(frozen=True)
class Trace:
    """Every change of every width, at most so many points of each, and the cost of a step."""

    steps: int = 0
    changes: Mapping[str, Changes] = field(default_factory=dict)
    points: Mapping[str, Sequence[Point]] = field(default_factory=dict)
    cost: Cost | None = None

    @property
    def growths(self) -> int:
        """How many times widths changed, all together."""
        return sum(len(changes) - 1 for changes in self.changes.values())


def trace(steps: Iterable[Step], initial: Mapping[str, int], limit: int) -> Trace:
    """What a report needs of the steps, in one pass; `limit` is the number of points per width."""
    changes: dict[str, Changes] = {name: [(0, size)] for name, size in initial.items()}
    seen: dict[str, list[tuple[int, float | None, float | None]]] = {}
    costs: tuple[list[float], list[float], list[float]] = ([], [], [])
    last = 0
    for line in steps:
        last = line.step
        for name, size in line.widths.items():
            history = changes.setdefault(name, [(0, size)])
            if history[-1][1] != size:
                history.append((line.step, size))
        for name, metric in line.metric.items():
            seen.setdefault(name, []).append((line.step, metric, line.threshold.get(name)))
        for values, value in zip(costs, line[4:], strict=True):
            values.append(value)
    points = {name: _points(seen.get(name, []), history, last, limit) for name, history in changes.items()}
    return Trace(last, changes, points, _cost(*costs))


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
    """By step, the size before and how many growths led to the one after: neighbours are merged past the limit."""
    ends = [index + 1 for index in evenly(len(changes) - 1, limit)]
    if ends and len(ends) < len(changes) - 1:
        ends = ends[1:]  # the first growth joins its neighbours
    return {changes[end][0]: (changes[start][1], end - start) for start, end in zip([0, *ends], ends, strict=False)}


def _cost(seconds: list[float], trigger: list[float], initialization: list[float]) -> Cost | None:
    # The first step warms up caches and allocators.
    parts = [statistic(values[1:]) for values in (seconds, trigger, initialization)]
    return Cost(*parts) if all(parts) else None  # type: ignore[arg-type]
