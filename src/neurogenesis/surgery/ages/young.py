"""Young entries of parameters: copied before a step of the optimizer, corrected for their age after it.

The young entries of a parameter are split into boxes. Whatever depends on births and shapes alone is computed once, and
functions of ages are computed for a block of steps at once, so that a step takes few calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from .births import Run
from .corrections import AgeFunction, AgeRule, Constants, Group, constants_of, decay_factor

Axes = Sequence[Sequence[Run]]
YoungParameter = tuple[Tensor, dict[str, Any]]  # a parameter with young entries, and its state
Span = tuple[slice, tuple[int, ...] | None]  # positions of an axis, and their births; None: all are old
_BLOCK = 32  # steps for which functions of ages are computed at once: small operations are dominated by call overhead


class YoungEntries:
    """The young entries of a parameter as disjoint boxes, with a copy of their values from before the step."""

    def __init__(self, parameter: Tensor, axes: Axes):
        _check(parameter, axes)
        self._parameter, self._axes, self._layout = parameter, axes, _layout(parameter)
        self._shape, runs = _merged(_real(parameter), axes)
        spans = product(*(_spans(each, length) for each, length in zip(runs, self._shape, strict=True)))
        self.boxes = [Box(parameter, each) for each in spans if any(births is not None for _, births in each)]
        self._memory, self._views = parameter.data_ptr(), self.of(parameter)

    def fits(self, axes: Axes) -> bool:
        """Whether these are still the young entries of the parameter, in the same memory layout."""
        same_memory = self._parameter.data_ptr() == self._memory  # our views keep it alive: it cannot be reused
        return self._axes is axes and (same_memory or self._layout == _layout(self._parameter))

    def present(self) -> list[Tensor]:
        """The entries of the parameter by box, as views of its memory, which are made anew only if it has moved."""
        if self._parameter.data_ptr() != self._memory:
            self._memory, self._views = self._parameter.data_ptr(), self.of(self._parameter)
        return self._views

    def of(self, tensor: Tensor) -> list[Tensor]:
        """The entries of the parameter, its gradient or a tensor of its state, by box."""
        whole = _real(tensor.detach()).reshape(self._shape)
        return [whole[box.slices] for box in self.boxes]


class Box:
    """A rectangular region of a parameter with young entries along at least one axis.

    It contains old entries only where new ones were inserted between them; these have birth 0.
    """

    def __init__(self, parameter: Tensor, spans: Sequence[Span]):
        self.slices = tuple(positions for positions, _ in spans)
        shape = [positions.stop - positions.start for positions in self.slices]
        dtype = torch.promote_types(_real(parameter).dtype, torch.float32)
        self.before = torch.empty(shape, dtype=dtype, device=parameter.device)
        self.births: list[tuple[tuple[int, ...], list[int]]] = []  # of each axis with births; a shape that broadcasts
        self.younger: list[Tensor] = []  # for each axis but the first: 1 where it is younger than all previous ones
        youngest = torch.zeros([1] * len(spans), dtype=torch.int64)
        for own, (_, births) in enumerate(spans):
            if births is not None:
                along = [-1 if axis == own else 1 for axis in range(len(spans))]
                born = torch.tensor(births).view(along)
                if self.births:
                    self.younger.append((born > youngest).to(self.before))
                self.births.append((births, along))
                youngest = torch.maximum(youngest, born)
        self.young = None if youngest.all() else (youngest > 0).to(parameter.device)  # None: all entries are young


class Cohort:
    """Young entries of parameters of one group, dtype and device that have made the same number of steps."""

    def __init__(self, rule: AgeRule, members: Sequence[YoungEntries]):
        self._rule, self._members = rule, members
        self._boxes = [box for member in members for box in member.boxes]
        self._before = [box.before for box in self._boxes]
        self._ages = _Ages(rule.functions, self._boxes)
        self._values = [self._ages.of(box) for box in self._boxes]  # by box, function of ages and axis
        simple = self._simple = [number for number, box in enumerate(self._boxes) if not box.younger]
        self._fractions = [self._before[number] for number in simple], [self._values[number][0][0] for number in simple]
        largest = max((mask.numel() for box in self._boxes for mask in box.younger), default=0)
        scratch = self._before[0].new_empty(largest)
        masks = [box.younger[0] if box.younger else None for box in self._boxes]
        self._out = [None if mask is None else scratch[: mask.numel()].view(mask.shape) for mask in masks]

    def correct(self, group: Group, step: int, young: Sequence[YoungParameter]) -> None:
        """Correct the step that the parameters have just made."""
        self._ages.compute(step, constants_of(group))
        if (factor := decay_factor(group)) != 1:
            torch._foreach_mul_(self._before, factor)
        present = [each for member in self._members for each in member.present()]
        wide = (
            present
            if present[0].dtype == self._before[0].dtype
            else [each.to(self._before[0].dtype) for each in present]
        )
        if self._rule.correct is None:
            self._interpolate(wide)
        else:
            self._compute(self._rule.correct, group, young, wide)
        if wide is not present:
            torch._foreach_copy_(present, wide)

    def _interpolate(self, present: Sequence[Tensor]) -> None:
        """Take back a fraction of each update; the fraction 0 leaves old entries exactly as they are."""
        if self._simple:
            torch._foreach_lerp_([present[number] for number in self._simple], *self._fractions)
        for box, values, out, own in zip(self._boxes, self._values, self._out, present, strict=True):
            if out is not None:
                own.lerp_(box.before, _youngest(box, values[0], out))

    def _compute(
        self, correct: Callable[..., Tensor], group: Group, young: Sequence[YoungParameter], present: Sequence[Tensor]
    ) -> None:
        """Compute the new values of young entries from scratch."""
        read: list[list[Tensor]] = []
        for name in self._rule.reads:
            tensors: list[Any] = [parameter.grad if name == "grad" else state[name] for parameter, state in young]
            read.append(
                [each for member, tensor in zip(self._members, tensors, strict=True) for each in member.of(tensor)]
            )
        for box, values, own, *others in zip(self._boxes, self._values, present, *read, strict=True):
            wide = [each.to(box.before.dtype) for each in others]
            made = correct(group, box.before, *wide, *(_youngest(box, each) for each in values))
            own.copy_(made if box.young is None else torch.where(box.young, made, own))


class _Ages:
    """Functions of the ages along the axes of boxes, by position, in memory that is reused from step to step."""

    def __init__(self, functions: Sequence[AgeFunction], boxes: Sequence[Box]):
        self._functions = functions
        self._starts: dict[tuple[int, ...], int] = {}
        count = 0
        for births in (births for box in boxes for births, _ in box.births):
            if births not in self._starts:
                self._starts[births] = count
                count += len(births)
        every = torch.tensor([birth for births in self._starts for birth in births], dtype=torch.float64)
        self._births, self._positions = torch.unique(every, return_inverse=True)
        self._memory = boxes[0].before.new_empty(len(functions), count)
        self._known: tuple[int, Constants] | None = None
        self._table: tuple[Tensor, ...] = ()

    def of(self, box: Box) -> list[list[Tensor]]:
        """The values for a box, by function and axis."""
        return [
            [values.narrow(0, self._starts[births], len(births)).view(along) for births, along in box.births]
            for values in self._memory
        ]

    def compute(self, step: int, constants: Constants) -> None:
        """Compute the functions at a step, in blocks that are aligned, so that resumed runs give the same numbers."""
        first = step - step % _BLOCK
        if self._known != (first, constants):
            steps = torch.arange(first, first + _BLOCK, dtype=torch.float64)[:, None].clamp_(min=1)
            ages = (steps - self._births).clamp_(min=1)
            table = torch.stack([each(ages, steps, constants) for each in self._functions], 1).to(self._memory.dtype)
            self._table = table.index_select(2, self._positions).to(self._memory.device).unbind()
            self._known = first, constants
        self._memory.copy_(self._table[step - first])


def _youngest(box: Box, by_axis: Sequence[Tensor], out: Tensor | None = None) -> Tensor:
    """A function of the ages of a box's entries, from its values along each axis; may be written into `out`."""
    result = by_axis[0]
    for mask, values in zip(box.younger, by_axis[1:], strict=True):
        result = torch.lerp(result, values, mask, out=out)  # exact at 0 and 1, and faster than torch.where
        out = None  # a second result must not overwrite the first, from which it is made
    return result


def _spans(runs: Sequence[Run], length: int) -> list[Span]:
    """Split an axis into the positions before, from and after its first and last young ones."""
    if not runs:
        return [(slice(0, length), None)]
    first, last = min(run[0] for run in runs), max(run[1] for run in runs)
    births = [0] * (last - first)
    for start, stop, step in runs:
        births[start - first : stop - first] = [step] * (stop - start)
    spans: list[Span] = [(slice(0, first), None), (slice(first, last), tuple(births)), (slice(last, length), None)]
    return [each for each in spans if each[0].start < each[0].stop]


def _merged(tensor: Tensor, axes: Axes) -> tuple[list[int], Axes]:
    """Merge the axes of a contiguous tensor that follow the last one with births; return the new shape and births.

    Functions of ages are then broadcast along longer runs of memory than the rows of kernels.
    """
    shape, runs = list(tensor.shape), [*axes, *[[]] * (tensor.ndim - len(axes))]
    last = max(axis for axis, each in enumerate(runs) if each)
    if not tensor.is_contiguous():
        return shape, runs
    inner = torch.Size(shape[last + 1 :]).numel()
    if last == 0:
        return [shape[0], inner], [runs[0], []]
    scaled = [[start * inner, stop * inner, step] for start, stop, step in runs[last]]
    return [*shape[:last], shape[last] * inner], [*runs[:last], scaled]


def _layout(parameter: Tensor) -> tuple[Any, ...]:
    return parameter.shape, parameter.stride(), parameter.dtype, parameter.device


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _check(parameter: Tensor, axes: Axes) -> None:
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
