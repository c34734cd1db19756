"""When the entries of a parameter were born: runs of positions by axis, kept with the optimizer's state of it.

``optimizer.state[parameter]["births"]`` holds plain numbers, so that they go through `state_dict` and back:
``axes`` has a list of runs ``[start, stop, step]`` for each axis, ``seen`` is the last step that was looked at. An
entry is as young as the youngest of its positions; one without a birth is as old as the tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import torch
from torch import Tensor

from .edits import Edit

KEY = "births"
Run = list[int]
_MOST_STRETCHES = 8  # of an axis; with more, entries are gathered instead of sliced


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
    """Positions of an axis that are all old (no births) or all young."""

    positions: slice | list[int]
    births: tuple[int, ...] | None


@dataclass(frozen=True)
class Box:
    """A rectangular part of a tensor in which each axis is all young or all old, and not all are old."""

    stretches: tuple[Stretch, ...]

    @cached_property
    def gathered(self) -> bool:
        return any(isinstance(each.positions, list) for each in self.stretches)

    def of(self, tensor: Tensor) -> Tensor:
        """That part of a tensor; a view of it unless positions must be gathered."""
        if self.gathered:
            return tensor[self._index(tensor)]
        for axis, stretch in enumerate(self.stretches):
            assert isinstance(stretch.positions, slice)
            start, stop = stretch.positions.start, stretch.positions.stop
            if stop - start != tensor.shape[axis]:
                tensor = tensor.narrow(axis, start, stop - start)
        return tensor

    def put(self, tensor: Tensor, values: Tensor) -> None:
        """Write that part of a tensor."""
        if self.gathered:
            tensor[self._index(tensor)] = values.to(tensor.dtype)
        else:
            self.of(tensor).copy_(values)

    def _index(self, tensor: Tensor) -> tuple[Tensor, ...]:
        numbers = (
            torch.arange(tensor.shape[axis])[each.positions] if isinstance(each.positions, slice)
            else torch.tensor(each.positions)
            for axis, each in enumerate(self.stretches)
        )  # fmt: skip
        sizes = [[-1 if axis == own else 1 for axis in range(tensor.ndim)] for own in range(tensor.ndim)]
        return tuple(each.view(size).to(tensor.device) for each, size in zip(numbers, sizes, strict=True))


def boxes(shape: Sequence[int], axes: Sequence[Sequence[Run]]) -> Iterator[Box]:
    """The parts of a tensor that have young entries: disjoint, and nothing else."""
    split = [_stretches(runs, length) for runs, length in zip(axes, shape, strict=True)]
    for chosen in product(*split):
        if any(stretch.births is not None for stretch in chosen):
            yield Box(chosen)


def _stretches(runs: Sequence[Run], length: int) -> list[Stretch]:
    if not runs:
        return [Stretch(slice(0, length), None)]
    result: list[Stretch] = []
    end = 0
    for start, stop, step in sorted(runs):
        births = (step,) * (stop - start)
        last = result[-1] if result else None
        if last is not None and start == end and last.births is not None:
            assert isinstance(last.positions, slice)
            result[-1] = Stretch(slice(last.positions.start, stop), last.births + births)
        else:
            if start > end:
                result.append(Stretch(slice(end, start), None))
            result.append(Stretch(slice(start, stop), births))
        end = stop
    if end < length:
        result.append(Stretch(slice(end, length), None))
    if len(result) <= _MOST_STRETCHES:
        return result
    everything = list(range(length))
    young = [position for each in result if each.births is not None for position in everything[each.positions]]  # type: ignore[index]
    births = tuple(step for each in result if each.births is not None for step in each.births)
    return [Stretch(sorted(set(everything) - set(young)), None), Stretch(young, births)]
