"""Young entries of parameters: copied before a step of the optimizer, corrected for their age after it.

The young entries of a parameter are split into boxes. Whatever depends on births and shapes alone is computed once, and
functions of ages are computed for a block of steps at once, so that a step takes few calls.
"""

from __future__ import annotations

from collections.abc import Sequence
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
        self._axes, self._layout = axes, _layout(parameter)
        self._shape, runs = _merged(_real(parameter), axes)
        spans = product(*(_spans(each, length) for each, length in zip(runs, self._shape, strict=True)))
        self.boxes = [Box(parameter, each) for each in spans if any(births is not None for _, births in each)]

    def fits(self, parameter: Tensor, axes: Axes) -> bool:
        """Whether these are still the young entries of the parameter, in the same memory layout."""
        return self._axes is axes and self._layout == _layout(parameter)

    def of(self, tensor: Tensor) -> list[Tensor]:
        """The entries of the parameter itself, of its gradient or of a tensor of its state, by box."""
        whole = _real(tensor).reshape(self._shape)
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
    """The young entries of parameters in one group that have made the same number of steps."""

    def __init__(self, rule: AgeRule, members: Sequence[YoungEntries]):
        self._rule, self._members = rule, members
        self._boxes = [box for member in members for box in member.boxes]
        axes: dict[Any, _Axis] = {}
        self._values: list[list[list[Tensor]]] = []  # by box, function of ages and axis
        for box in self._boxes:
            by_axis = []
            for births, along in box.births:
                key = births, box.before.dtype, box.before.device
                if key not in axes:
                    axes[key] = _Axis(births, rule.functions, box.before)
                by_axis.append([each.view(along) for each in axes[key].values])
            self._values.append([list(each) for each in zip(*by_axis, strict=True)])
        self._axes = list(axes.values())

    def correct(self, group: Group, step: int, young: Sequence[YoungParameter]) -> None:
        """Correct the step that the parameters have just made."""
        for axis in self._axes:
            axis.compute(step, constants_of(group))
        before = [box.before for box in self._boxes]
        if (factor := decay_factor(group)) != 1:
            torch._foreach_mul_(before, factor)
        present = self._of([parameter for parameter, _ in young])
        if self._rule.correct is None:
            self._interpolate(present)
            return
        read: list[list[Any]] = [
            [p.grad if name == "grad" else state[name] for p, state in young] for name in self._rule.reads
        ]
        for box, values, own, *others in zip(self._boxes, self._values, present, *map(self._of, read), strict=True):
            others = [each.to(box.before.dtype) for each in others]
            made = self._rule.correct(group, box.before, *others, *(_youngest(box, each) for each in values))
            own.copy_(made if box.young is None else torch.where(box.young, made, own))

    def _of(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The entries of one tensor per member, by box."""
        return [each for member, tensor in zip(self._members, tensors, strict=True) for each in member.of(tensor)]

    def _interpolate(self, present: Sequence[Tensor]) -> None:
        """Take back a fraction of each update; the fraction 0 leaves old entries exactly as they are."""
        simple: list[tuple[Tensor, Tensor, Tensor]] = []
        for box, (back,), own in zip(self._boxes, self._values, present, strict=True):
            if own.dtype != box.before.dtype:
                own.copy_(torch.lerp(own.to(box.before.dtype), box.before, _youngest(box, back)))
            elif box.younger:
                own.lerp_(box.before, _youngest(box, back))
            else:
                simple.append((own, box.before, back[0]))
        if simple:
            torch._foreach_lerp_(*map(list, zip(*simple, strict=True)))


class _Axis:
    """Functions of the ages along an axis, by position, in memory that is reused from step to step."""

    def __init__(self, births: tuple[int, ...], functions: Sequence[AgeFunction], like: Tensor):
        self._functions = functions
        self._births, self._positions = torch.unique(torch.tensor(births, dtype=torch.float64), return_inverse=True)
        self._memory = like.new_empty(len(functions), len(births))
        self._known: tuple[int, Constants] | None = None
        self._table: tuple[Tensor, ...] = ()
        self.values = self._memory.unbind()

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


def _youngest(box: Box, by_axis: Sequence[Tensor]) -> Tensor:
    """A function of the ages of a box's entries, from its values along each axis."""
    result = by_axis[0]
    for mask, values in zip(box.younger, by_axis[1:], strict=True):
        result = torch.lerp(result, values, mask)  # exact at 0 and 1, and faster than torch.where
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
