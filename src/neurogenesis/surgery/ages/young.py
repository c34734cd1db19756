"""Young entries of parameters, in few rectangular parts, and functions of their ages by position.

What does not change from step to step is made once per parameter and size: at a step there are only a copy before it
and the correction after it, part by part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .births import Box, boxes
from .corrections import Group, Young

Function = Callable[[Tensor], Tensor]
_AT_ONCE = 32  # steps for which a function of ages is computed: small operations take more time to call than to do


class Shared:
    """What the parameters of an optimizer share: axes with the same births, and memory to write into."""

    def __init__(self) -> None:
        self._axes: dict[tuple[int, ...], _Axis] = {}
        self._memory: dict[Any, Tensor] = {}

    def axis(self, births: tuple[int, ...]) -> _Axis:
        if len(self._axes) > 256:  # most of them are of sizes that are past
            self._axes.clear()
        return self._axes.setdefault(births, _Axis(births))

    def scratch(self, slot: int, like: Tensor) -> Tensor:
        key = (slot, like.dtype, like.device)
        memory = self._memory.get(key)
        if memory is None or memory.numel() < like.numel():
            memory = self._memory[key] = torch.empty(like.numel(), dtype=like.dtype, device=like.device)
        return memory[: like.numel()].view(like.shape)


class _Axis:
    """The births of an axis by position, and functions of their ages at steps around the present one."""

    def __init__(self, births: tuple[int, ...]):
        each = sorted(set(births))
        number = {birth: number for number, birth in enumerate(each)}
        self.births = torch.tensor(each, dtype=torch.float64)
        self.positions = torch.tensor([number[birth] for birth in births])
        self._first = -1
        self._known: dict[Any, Tensor] = {}

    def at(self, step: int, name: str, function: Function, about: tuple[float, ...], like: Tensor) -> Tensor:
        """A function of the ages by position; computed for some steps at once, and once for each birth.

        Which steps these are does not depend on the step it is first asked at, so that resumed runs get the same.
        """
        first = step - step % _AT_ONCE
        if first != self._first:
            self._known.clear()
            self._first = first
        key = (name, about, like.dtype, like.device)
        values = self._known.get(key)
        if values is None:
            steps = torch.arange(first, first + _AT_ONCE, dtype=torch.float64)
            ages = (steps[:, None] - self.births).clamp_(min=1)
            values = self._known[key] = function(ages).to(like.dtype).index_select(1, self.positions).to(like.device)
        return values[step - first]


class Places:
    """Where the young entries of a parameter are."""

    def __init__(self, parameter: Tensor, axes: Sequence[Sequence[list[int]]]):
        _check(parameter, axes)
        self.axes = axes
        self.contiguous = parameter.is_contiguous()
        self.shape, scaled = _collapsed(_real(parameter), axes)
        self.boxes = list(boxes(self.shape, scaled))

    def fits(self, parameter: Tensor, axes: Sequence[Sequence[list[int]]]) -> bool:
        """Whether it is still of these births, and of a parameter that lies in memory as then."""
        return self.axes is axes and self.contiguous == parameter.is_contiguous()

    def split(self, tensor: Tensor) -> list[Tensor]:
        """The parts of a tensor of the parameter's shape, with axes that have no births taken together."""
        whole = _real(tensor.detach()).reshape(self.shape)
        return [_part(whole, box) for box in self.boxes]


class Layout(Places):
    """Where the young entries of a parameter are, and a copy of them from before the step."""

    def __init__(self, parameter: Tensor, axes: Sequence[Sequence[list[int]]], shared: Shared):
        super().__init__(parameter, axes)
        self.parameter, self.shared = parameter, shared
        self.copied = False
        self._parts: list[_Part] = []
        self._views: dict[int, list[Tensor]] = {}

    def copy(self) -> None:
        """Keep the young entries as they are before the step."""
        present = self.of(self.parameter)
        if not self._parts or self._parts[0].before.device != self.parameter.device:
            self._parts = [_Part(self, number, box) for number, box in enumerate(self.boxes)]
        for part, entries in zip(self._parts, present, strict=True):
            part.before.copy_(entries)
        self.copied = True

    def correct(self, correction: Callable[[Young], None], group: Group, state: dict[str, Any], step: int) -> None:
        """Give the young entries the values that they should have after the step."""
        for part in self._parts:
            part.correct(correction, group, state, step)
        self.copied = False

    def of(self, tensor: Tensor) -> list[Tensor]:
        """Of the parameter or a tensor of its state the parts; views are kept, as making them takes time."""
        key = tensor.data_ptr()  # a view holds the memory, so that no other tensor can lie there
        views = self._views.get(key)
        if views is None:
            if len(self._views) > 8:  # of tensors that are gone
                self.release()
            views = self.split(tensor)
            if views[0].untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr():
                self._views[key] = views
        return views

    def release(self) -> None:
        """Hold no memory of the parameter and its state."""
        self._views.clear()


class _Part:
    """Entries of a parameter around a step; see `corrections.Young`."""

    group: Group
    state: dict[str, Any]
    step: int
    out: Tensor

    def __init__(self, layout: Layout, number: int, box: Box):
        self.layout, self.number, self.parameter = layout, number, layout.parameter
        entries = layout.of(self.parameter)[number]
        self.before = torch.empty_like(entries, dtype=torch.promote_types(entries.dtype, torch.float32))
        self.before = self.before.contiguous()
        self.axes: list[tuple[_Axis, tuple[int, ...]]] = []
        self.turns: list[Tensor] = []  # 1 where a further axis is younger than those before it, 0 where not
        births = torch.zeros([1] * len(box), dtype=torch.int64)
        for own, stretch in enumerate(box):
            if stretch.births is not None:
                shape = tuple(-1 if axis == own else 1 for axis in range(len(box)))
                further = torch.tensor(stretch.births).view(shape)
                if self.axes:
                    self.turns.append((further > births).to(self.before))
                self.axes.append((layout.shared.axis(stretch.births), shape))
                births = torch.maximum(births, further)
        young = births > 0
        self.young = None if young.all() else young.to(entries.device)  # None: all
        self._scratch: list[Tensor] = []
        self._used = 0

    def correct(self, correction: Callable[[Young], None], group: Group, state: dict[str, Any], step: int) -> None:
        self.group, self.state, self.step, self._used = group, state, step, 0
        present = self.layout.of(self.parameter)[self.number]
        direct = self.young is None and present.dtype == self.before.dtype
        self.out = present if direct else self.scratch()
        correction(self)
        if self.young is not None:
            present.copy_(torch.where(self.young, self.out, present))
        elif not direct:
            present.copy_(self.out)

    def of(self, tensor: Tensor) -> Tensor:
        return self.layout.of(tensor)[self.number].to(self.before.dtype)

    def gradient(self) -> Tensor:
        assert self.parameter.grad is not None
        return self.layout.split(self.parameter.grad)[self.number].to(self.before.dtype)

    def scratch(self) -> Tensor:
        self._used += 1
        if self._used > len(self._scratch):
            self._scratch.append(self.layout.shared.scratch(self._used, self.before))
        return self._scratch[self._used - 1]

    def at(self, name: str, function: Function, *about: float) -> Tensor:
        values = [axis.at(self.step, name, function, about, self.before).view(shape) for axis, shape in self.axes]
        result = values[0]
        for turn, value in zip(self.turns, values[1:], strict=True):  # lerp is exact at 0 and 1, and fast
            result = torch.lerp(result, value, turn, out=self.scratch() if turn.shape == self.before.shape else None)
        return result


def _part(tensor: Tensor, box: Box) -> Tensor:
    for axis, stretch in enumerate(box):
        tensor = tensor.narrow(axis, stretch.start, stretch.stop - stretch.start)
    return tensor


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _collapsed(tensor: Tensor, axes: Sequence[Sequence[list[int]]]) -> tuple[list[int], list[list[list[int]]]]:
    """A shape and births in which all axes behind the last one with births are one with it, or with each other.

    So that functions of ages broadcast along long stretches of memory, as those of kernels are not.
    """
    shape, runs = list(tensor.shape), [list(each) for each in axes]
    runs += [[] for _ in range(tensor.ndim - len(runs))]
    last = max(axis for axis, each in enumerate(runs) if each)
    if not tensor.is_contiguous():
        return shape, runs
    inner = torch.Size(shape[last + 1 :]).numel()
    if last == 0:
        return [shape[0], inner], [runs[0], []]
    scaled = [[start * inner, stop * inner, step] for start, stop, step in runs[last]]
    return [*shape[:last], shape[last] * inner], [*runs[:last], scaled]


def _check(parameter: Tensor, axes: Sequence[Sequence[list[int]]]) -> None:
    fits = len(axes) == parameter.ndim and all(
        0 <= start < stop <= length
        for runs, length in zip(axes, parameter.shape, strict=False)
        for start, stop, _ in runs
    )
    if not fits:
        raise ValueError(
            f"the optimizer's state has births that do not fit a parameter of shape {tuple(parameter.shape)}: it is "
            "of another model, or of one at another size. Load the state that belongs to the model, or call "
            "neurogenesis.ages.forget(optimizer)"
        )
