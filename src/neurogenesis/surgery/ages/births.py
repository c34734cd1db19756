"""Births: the step at which the entries of a parameter were added, stored with its optimizer state.

``optimizer.state[parameter]["births"]`` holds plain numbers, which survive a round trip through `state_dict`:
``axes`` has a list of runs ``[start, stop, step]`` of positions for each axis, ``seen`` is the last step that was
processed. The age of an entry is that of its youngest position; without a birth it is as old as the tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from ...structure.edits import Edit

KEY = "births"
Run = list[int]


@dataclass(frozen=True)
class BirthEdit:
    """Updates the births of one resized parameter; `born` is the current step, or None to record no new births."""

    state: dict[str, Any]
    edits: Sequence[Edit]
    axes: int
    born: int | None

    def apply(self) -> None:
        record = self.state.get(KEY)
        runs = [list(each) for each in record["axes"]] if record else [[] for _ in range(self.axes)]
        for edit in self.edits:
            runs[edit.axis] = edited_runs(runs[edit.axis], edit, self.born)
        if any(runs):
            seen = record["seen"] if record else self.born
            self.state[KEY] = {"seen": seen, "axes": runs}
        else:
            self.state.pop(KEY, None)

    def reverter(self) -> Callable[[], None]:
        """Return a function that reverts the edit."""
        before = self.state.get(KEY)

        def revert() -> None:
            self.state.pop(KEY, None)
            if before is not None:
                self.state[KEY] = before

        return revert


def edited_runs(runs: Sequence[Run], edit: Edit, born: int | None) -> list[Run]:
    """Runs of an axis after an edit; new positions get the birth `born`, or none."""
    if edit.at_end:
        return _merge_runs([*runs, *([] if born is None else [[edit.length, edit.length + edit.change, born]])])
    births: list[int | None] = [None] * edit.length
    for start, stop, step in runs:
        births[start:stop] = [step] * (stop - start)
    chosen = set(edit.positions.tolist())
    if edit.values is None:
        after = [birth for position, birth in enumerate(births) if position not in chosen]
    else:
        present = iter(births)
        after = [born if position in chosen else next(present) for position in range(edit.length + edit.change)]
    return _merge_runs([[position, position + 1, step] for position, step in enumerate(after) if step is not None])


def born_since(runs: Sequence[Run], step: int) -> list[Run]:
    """The runs born at a step or later."""
    return [run for run in runs if run[2] >= step]


def _merge_runs(runs: Sequence[Run]) -> list[Run]:
    """Merge adjacent runs of the same birth."""
    result: list[Run] = []
    for start, stop, step in runs:
        if result and result[-1][1] == start and result[-1][2] == step:
            result[-1] = [result[-1][0], stop, step]
        else:
            result.append([start, stop, step])
    return result


@dataclass(frozen=True)
class Span:
    """Consecutive positions of an axis: all old (births is None), or from the first young position to the last."""

    start: int
    stop: int
    births: tuple[int, ...] | None  # 0: as old as the tensor


Box = tuple[Span, ...]  # a rectangular region of a tensor, one span per axis


def boxes(shape: Sequence[int], axes: Sequence[Sequence[Run]]) -> Iterator[Box]:
    """Disjoint boxes that cover all young entries of a tensor, and no others if new positions are contiguous."""
    split = [_spans(runs, length) for runs, length in zip(axes, shape, strict=True)]
    for chosen in product(*split):
        if any(span.births is not None for span in chosen):
            yield chosen


def _spans(runs: Sequence[Run], length: int) -> list[Span]:
    if not runs:
        return [Span(0, length, None)]
    first, last = min(run[0] for run in runs), max(run[1] for run in runs)
    births = [0] * (last - first)
    for start, stop, step in runs:
        births[start - first : stop - first] = [step] * (stop - start)
    result = [Span(0, first, None), Span(first, last, tuple(births)), Span(last, length, None)]
    return [each for each in result if each.start < each.stop]
