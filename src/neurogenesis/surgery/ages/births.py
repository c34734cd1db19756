"""Births: the step at which the entries of a parameter were added, stored with its optimizer state.

``optimizer.state[parameter]["births"]`` holds plain numbers, which survive a round trip through `state_dict`:
``axes`` has a list of runs ``[start, stop, step]`` of positions for each axis, ``seen`` is the last step that was
processed. The age of an entry is that of its youngest position; without a birth it is as old as the tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
