"""Young entries of parameters as a few boxes, and functions of their ages by position.

Everything that does not change between steps is computed once per parameter and size: a step only copies the entries
before it and corrects them after it, box by box.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .births import Box, boxes
from .corrections import Group, YoungEntries

Function = Callable[[Tensor], Tensor]
_BLOCK = 32  # steps for which a function of ages is computed at once: small operations are dominated by call overhead


class SharedCache:
    """Shared by all parameters of an optimizer: axes with the same births, and temporary memory."""

    def __init__(self) -> None:
        self._axes: dict[tuple[int, ...], _Axis] = {}
        self._memory: dict[Any, Tensor] = {}

    def axis(self, births: tuple[int, ...]) -> _Axis:
        if len(self._axes) > 256:  # most belong to earlier sizes
            self._axes.clear()
        return self._axes.setdefault(births, _Axis(births))

    def scratch(self, slot: int, like: Tensor) -> Tensor:
        key = (slot, like.dtype, like.device)
        memory = self._memory.get(key)
        if memory is None or memory.numel() < like.numel():
            memory = self._memory[key] = torch.empty(like.numel(), dtype=like.dtype, device=like.device)
        return memory[: like.numel()].view(like.shape)


class _Axis:
    """Births of an axis by position, and functions of their ages at a block of steps."""

    def __init__(self, births: tuple[int, ...]):
        each = sorted(set(births))
        number = {birth: number for number, birth in enumerate(each)}
        self.births = torch.tensor(each, dtype=torch.float64)
        self.positions = torch.tensor([number[birth] for birth in births])
        self._first = -1
        self._known: dict[Any, Tensor] = {}

    def at(self, step: int, name: str, function: Function, constants: tuple[float, ...], like: Tensor) -> Tensor:
        """A function of the ages by position, computed once for each birth and for a block of steps.

        Blocks are aligned, so that resumed runs give the same numbers.
        """
        first = step - step % _BLOCK
        if first != self._first:
            self._known.clear()
            self._first = first
        key = (name, constants, like.dtype, like.device)
        values = self._known.get(key)
        if values is None:
            steps = torch.arange(first, first + _BLOCK, dtype=torch.float64)
            ages = (steps[:, None] - self.births).clamp_(min=1)
            values = self._known[key] = function(ages).to(like.dtype).index_select(1, self.positions).to(like.device)
        return values[step - first]


class YoungRegions:
    """Boxes that cover the young entries of a parameter."""

    def __init__(self, parameter: Tensor, axes: Sequence[Sequence[list[int]]]):
        _check(parameter, axes)
        self.axes = axes
        self.contiguous = parameter.is_contiguous()
        self.shape, scaled = _collapsed(_real(parameter), axes)
        self.boxes = list(boxes(self.shape, scaled))

    def fits(self, parameter: Tensor, axes: Sequence[Sequence[list[int]]]) -> bool:
        """Whether it was built for these births and a parameter of the same memory layout."""
        return self.axes is axes and self.contiguous == parameter.is_contiguous()

    def split(self, tensor: Tensor) -> list[Tensor]:
        """Split a tensor of the parameter's shape into boxes; trailing axes without births are merged."""
        whole = _real(tensor.detach()).reshape(self.shape)
        return [_part(whole, box) for box in self.boxes]


class Snapshot(YoungRegions):
    """The young entries of a parameter, with a copy from before the step."""

    def __init__(self, parameter: Tensor, axes: Sequence[Sequence[list[int]]], shared: SharedCache):
        super().__init__(parameter, axes)
        self.parameter, self.shared = parameter, shared
        self.copied = False
        self._parts: list[_Part] = []
        self._views: dict[int, list[Tensor]] = {}

    def copy(self) -> None:
        """Copy the young entries before the step."""
        present = self.of(self.parameter)
        if not self._parts or self._parts[0].before.device != self.parameter.device:
            self._parts = [_Part(self, number, box) for number, box in enumerate(self.boxes)]
        for part, entries in zip(self._parts, present, strict=True):
            part.before.copy_(entries)
        self.copied = True

    def correct(
        self, correction: Callable[[YoungEntries], None], group: Group, state: dict[str, Any], step: int
    ) -> None:
        """Correct the young entries after the step."""
        for part in self._parts:
            part.correct(correction, group, state, step)
        self.copied = False

    def of(self, tensor: Tensor) -> list[Tensor]:
        """Boxes of the parameter or of a tensor of its state; views are cached, since creating them takes time."""
        key = tensor.data_ptr()  # a cached view keeps the memory alive, so that it cannot be reused
        views = self._views.get(key)
        if views is None:
            if len(self._views) > 8:  # most belong to tensors that no longer exist
                self.release_memory()
            views = self.split(tensor)
            if views[0].untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr():
                self._views[key] = views
        return views

    def release_memory(self) -> None:
        """Release references to the parameter and its state."""
        self._views.clear()


class _Part:
    """Implements `corrections.YoungEntries` for one box."""

    group: Group
    state: dict[str, Any]
    step: int
    out: Tensor

    def __init__(self, snapshot: Snapshot, number: int, box: Box):
        self.snapshot, self.number, self.parameter = snapshot, number, snapshot.parameter
        entries = snapshot.of(self.parameter)[number]
        self.before = torch.empty_like(entries, dtype=torch.promote_types(entries.dtype, torch.float32))
        self.before = self.before.contiguous()
        self.axes: list[tuple[_Axis, tuple[int, ...]]] = []
        self.younger: list[Tensor] = []  # 1 where an axis is younger than all previous ones, else 0
        births = torch.zeros([1] * len(box), dtype=torch.int64)
        for own, span in enumerate(box):
            if span.births is not None:
                shape = tuple(-1 if axis == own else 1 for axis in range(len(box)))
                born = torch.tensor(span.births).view(shape)
                if self.axes:
                    self.younger.append((born > births).to(self.before))
                self.axes.append((snapshot.shared.axis(span.births), shape))
                births = torch.maximum(births, born)
        young = births > 0
        self.young = None if young.all() else young.to(entries.device)  # None: all entries are young
        self._scratch: list[Tensor] = []
        self._used = 0

    def correct(
        self, correction: Callable[[YoungEntries], None], group: Group, state: dict[str, Any], step: int
    ) -> None:
        self.group, self.state, self.step, self._used = group, state, step, 0
        present = self.snapshot.of(self.parameter)[self.number]
        direct = self.young is None and present.dtype == self.before.dtype
        self.out = present if direct else self.scratch()
        correction(self)
        if self.young is not None:
            present.copy_(torch.where(self.young, self.out, present))
        elif not direct:
            present.copy_(self.out)

    def of(self, tensor: Tensor) -> Tensor:
        return self.snapshot.of(tensor)[self.number].to(self.before.dtype)

    def gradient(self) -> Tensor:
        assert self.parameter.grad is not None
        return self.snapshot.split(self.parameter.grad)[self.number].to(self.before.dtype)

    def scratch(self) -> Tensor:
        self._used += 1
        if self._used > len(self._scratch):
            self._scratch.append(self.snapshot.shared.scratch(self._used, self.before))
        return self._scratch[self._used - 1]

    def at(self, name: str, function: Function, *constants: float) -> Tensor:
        values = [axis.at(self.step, name, function, constants, self.before).view(shape) for axis, shape in self.axes]
        result = values[0]
        for mask, value in zip(self.younger, values[1:], strict=True):  # lerp is exact at 0 and 1, and fast
            result = torch.lerp(result, value, mask, out=self.scratch() if mask.shape == self.before.shape else None)
        return result


def _part(tensor: Tensor, box: Box) -> Tensor:
    for axis, span in enumerate(box):
        tensor = tensor.narrow(axis, span.start, span.stop - span.start)
    return tensor


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _collapsed(tensor: Tensor, axes: Sequence[Sequence[list[int]]]) -> tuple[list[int], list[list[list[int]]]]:
    """Merge all axes after the last one with births, into it or into one axis; return the new shape and births.

    Functions of ages then broadcast along longer contiguous runs of memory than kernels have.
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
            f"the optimizer's state has births that do not fit a parameter of shape {tuple(parameter.shape)}: it "
            "belongs to another model or another size. Load the state that belongs to the model, or call "
            "neurogenesis.ages.forget(optimizer)"
        )
