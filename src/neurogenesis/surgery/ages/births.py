"""When the entries of a parameter were born: runs of positions by axis, kept with the optimizer's state of it.

``optimizer.state[parameter]["births"]`` holds plain numbers, so that they go through `state_dict` and back:
``axes`` has a list of runs ``[start, stop, step]`` for each axis, ``seen`` is the last step that was looked at. An
entry is as young as the youngest of its positions; one without a birth is as old as the tensor.
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
    """The births of one parameter, as they become when it is resized; `born` is the present step, if noted."""

    state: dict[str, Any]
    edits: Sequence[Edit]
    axes: int
    born: int | None

    def make(self) -> None:
        record = self.state.get(KEY)
        runs = [list(each) for each in record["axes"]] if record else [[] for _ in range(self.axes)]
        for edit in self.edits:
            runs[edit.axis] = edited_runs(runs[edit.axis], edit, self.born)
        if any(runs):
            seen = record["seen"] if record else self.born
            self.state[KEY] = {"seen": seen, "axes": runs}
        else:
            self.state.pop(KEY, None)

    def undoing(self) -> Callable[[], None]:
        """What takes the edit back."""
        before = self.state.get(KEY)

        def undo() -> None:
            self.state.pop(KEY, None)
            if before is not None:
                self.state[KEY] = before

        return undo


def edited_runs(runs: Sequence[Run], edit: Edit, born: int | None) -> list[Run]:
    """The runs of an axis after an edit; new positions are born at that step, or not noted."""
    if edit.at_end:
        return _joined([*runs, *([] if born is None else [[edit.length, edit.length + edit.change, born]])])
    births: list[int | None] = [None] * edit.length
    for start, stop, step in runs:
        births[start:stop] = [step] * (stop - start)
    chosen = set(edit.positions.tolist())
    if edit.values is None:
        after = [birth for position, birth in enumerate(births) if position not in chosen]
    else:
        present = iter(births)
        after = [born if position in chosen else next(present) for position in range(edit.length + edit.change)]
    return _joined([[position, position + 1, step] for position, step in enumerate(after) if step is not None])


def grown_up(runs: Sequence[Run], before: int) -> list[Run]:
    """The runs without those born before a step."""
    return [run for run in runs if run[2] >= before]


def _joined(runs: Sequence[Run]) -> list[Run]:
    result: list[Run] = []
    for start, stop, step in runs:
        if result and result[-1][1] == start and result[-1][2] == step:
            result[-1] = [result[-1][0], stop, step]
        else:
            result.append([start, stop, step])
    return result


@dataclass(frozen=True)
class Stretch:
    """Consecutive positions of an axis: all old (no births), or those from the first young one to the last."""

    start: int
    stop: int
    births: tuple[int, ...] | None  # 0: as old as the tensor


Box = tuple[Stretch, ...]  # a rectangular part of a tensor, by axis


def boxes(shape: Sequence[int], axes: Sequence[Sequence[Run]]) -> Iterator[Box]:
    """Disjoint parts of a tensor that hold all of its young entries, and no others if new positions lie together."""
    split = [_stretches(runs, length) for runs, length in zip(axes, shape, strict=True)]
    for chosen in product(*split):
        if any(stretch.births is not None for stretch in chosen):
            yield chosen


def _stretches(runs: Sequence[Run], length: int) -> list[Stretch]:
    if not runs:
        return [Stretch(0, length, None)]
    first, last = min(run[0] for run in runs), max(run[1] for run in runs)
    births = [0] * (last - first)
    for start, stop, step in runs:
        births[start - first : stop - first] = [step] * (stop - start)
    result = [Stretch(0, first, None), Stretch(first, last, tuple(births)), Stretch(last, length, None)]
    return [each for each in result if each.start < each.stop]
