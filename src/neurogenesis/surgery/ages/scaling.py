"""Updates of young entries, multiplied by a function of their age, for all parameters of a group at once.

Before a step the young entries are copied, and after it they go the part `w = f(a) / f(t)` of the way from the copy to
where the step has brought them: two passes over memory. What does not change from step to step is made once per size,
and the factors for some steps at once, so that at a step there are only few calls for all parameters together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .births import KEY, Box
from .corrections import length
from .young import Places

Axes = Sequence[Sequence[list[int]]]
Young = tuple[Tensor, dict[str, Any]]  # a parameter that has young entries, and its state
Betas = tuple[float, float]
_AT_ONCE = 32  # steps for which factors are computed: small operations take more time to call than to do


class Scaling:
    """The young entries of some parameters of a group, with a copy of them from before the step."""

    def __init__(self, young: Sequence[Young]):
        self._members = [_Member(parameter, state[KEY]["axes"]) for parameter, state in young]
        self._numbers = {id(parameter): number for number, (parameter, _) in enumerate(young)}
        self._before = [part.before for member in self._members for part in member.parts]
        self._present = [part.present for member in self._members for part in member.parts]
        self._scratch: dict[Any, Tensor] = {}
        self._selections: dict[tuple[int, ...], _Selection] = {}

    def fits(self, young: Sequence[Young]) -> bool:
        """Whether it is of these parameters with these births, in the memory they were in."""
        if len(young) != len(self._members):
            return False
        for member, (parameter, state) in zip(self._members, young, strict=True):
            if member.parameter is not parameter or not member.found(state):
                return False
        return True

    def copy(self) -> None:
        """Keep the young entries as they are before the step."""
        torch._foreach_copy_(self._before, self._present)

    def correct(self, young: Sequence[Young], step: int, betas: Betas, kept: float) -> None:
        """Scale the updates of these parameters; `kept` is the part of a weight that decoupled decay has left.

        Those that there is no copy of are left alone.
        """
        chosen = []
        for parameter, state in young:
            number = self._numbers.get(id(parameter))
            if number is not None and (self._members[number].found(state) or self._find(number, state)):
                chosen.append(number)
        if chosen:
            self._selection(tuple(chosen)).correct(step, betas, kept)

    def release(self) -> None:
        """Hold no memory of the parameters."""
        for member in self._members:
            member.release()
        self._present, self._selections = [], {}

    def _find(self, number: int, state: dict[str, Any]) -> bool:
        found = self._members[number].find(state)
        self._present = [part.present for member in self._members for part in member.parts]
        self._selections.clear()
        return found

    def _selection(self, chosen: tuple[int, ...]) -> _Selection:
        selection = self._selections.get(chosen)
        if selection is None:
            if len(self._selections) > 8:
                self._selections.clear()
            parts = [part for number in chosen for part in self._members[number].parts]
            selection = self._selections[chosen] = _Selection(parts, self._scratch)
        return selection


class _Member:
    """One parameter."""

    def __init__(self, parameter: Tensor, axes: Axes):
        self.parameter, self.axes, self.places = parameter, axes, Places(parameter, axes)
        self.memory: int | None = parameter.data_ptr()  # the parts hold it, so that nothing else can lie there
        entries = self.places.split(parameter)
        self.parts = [_Part(*each) for each in zip(entries, self.places.boxes, strict=True)]

    def found(self, state: dict[str, Any]) -> bool:
        """Whether the parts are those of the parameter as it is now."""
        return state[KEY]["axes"] is self.axes and self.parameter.data_ptr() == self.memory

    def find(self, state: dict[str, Any]) -> bool:
        """Take the parts from the memory that the parameter has now, if it is otherwise as it was."""
        if not self.places.fits(self.parameter, state[KEY]["axes"]):
            return False
        for part, entries in zip(self.parts, self.places.split(self.parameter), strict=True):
            part.present = entries
        self.memory = self.parameter.data_ptr()
        return True

    def release(self) -> None:
        self.memory = None
        for part in self.parts:
            part.present = part.before  # until it is found again


class _Part:
    """A rectangular part of a parameter."""

    def __init__(self, entries: Tensor, box: Box):
        self.present = entries
        self.before = torch.empty(
            entries.shape, dtype=torch.promote_types(entries.dtype, torch.float32), device=entries.device
        )
        self.axes: list[tuple[tuple[int, ...], tuple[int, ...]]] = []  # births, and the shape that broadcasts
        self.turns: list[Tensor] = []  # 1 where a further axis is younger than those before it, 0 where not
        births = torch.zeros([1] * len(box), dtype=torch.int64)
        for own, stretch in enumerate(box):
            if stretch.births is not None:
                further = torch.tensor(stretch.births).view([-1 if axis == own else 1 for axis in range(len(box))])
                if self.axes:
                    self.turns.append((further > births).to(self.before))
                self.axes.append((stretch.births, tuple(further.shape)))
                births = torch.maximum(births, further)
        young = births > 0
        self.young = None if young.all() else young.to(entries.device)  # None: all
        self.plain = self.young is None and entries.dtype == self.before.dtype


class _Selection:
    """Parts whose parameters have made the same number of steps."""

    def __init__(self, parts: Sequence[_Part], scratch: dict[Any, Tensor]):
        self.before = [part.before for part in parts]
        self.factors = _Factors([(births, part.before) for part in parts for births, _ in part.axes])
        self.easy: tuple[list[Tensor], list[Tensor], list[Tensor]] = [], [], []  # after the step, before, factors
        self.rest: list[tuple[_Part, list[Tensor], list[Tensor]]] = []
        for part in parts:
            factors = [self.factors.of(births, part.before).view(shape) for births, shape in part.axes]
            if part.plain and not part.turns:
                for each, tensor in zip(self.easy, (part.present, part.before, factors[0]), strict=True):
                    each.append(tensor)
            else:
                self.rest.append((part, factors, [_view(scratch, *each) for each in enumerate(part.turns)]))

    def correct(self, step: int, betas: Betas, kept: float) -> None:
        self.factors.compute(step, betas)
        if kept != 1:
            torch._foreach_mul_(self.before, kept)
        if self.easy[0]:
            torch._foreach_lerp_(*self.easy)
        for part, factors, into in self.rest:
            _correct(part, factors, into)


class _Factors:
    """The factors of axes by position, in memory that does not change from step to step.

    They say which part of the way an entry goes back, from where the step has brought it to where it was before:
    `1 - f(a) / f(t)`.
    """

    def __init__(self, axes: Sequence[tuple[tuple[int, ...], Tensor]]):
        each = sorted({birth for births, _ in axes for birth in births})
        numbers = {birth: number for number, birth in enumerate(each)}
        self._births = torch.tensor(each, dtype=torch.float64)
        self._starts: dict[Any, int] = {}
        by_kind: dict[tuple[torch.dtype, torch.device], list[int]] = {}
        for births, like in axes:
            kind = like.dtype, like.device
            positions = by_kind.setdefault(kind, [])
            if (births, kind) not in self._starts:
                self._starts[births, kind] = len(positions)
                positions += [numbers[birth] for birth in births]
        self._positions = {kind: torch.tensor(each, device=kind[1]) for kind, each in by_kind.items()}
        self._memory = {kind: torch.empty(len(each), dtype=kind[0], device=kind[1]) for kind, each in by_kind.items()}
        self._known: tuple[int, Betas] | None = None
        self._tables: list[tuple[Tensor, tuple[Tensor, ...]]] = []

    def of(self, births: tuple[int, ...], like: Tensor) -> Tensor:
        """The factors of an axis."""
        kind = like.dtype, like.device
        return self._memory[kind].narrow(0, self._starts[births, kind], len(births))

    def compute(self, step: int, betas: Betas) -> None:
        """For some steps at once; which these are does not depend on the first one, so that resumed runs agree."""
        first = step - step % _AT_ONCE
        if self._known != (first, betas):
            steps = torch.arange(first, first + _AT_ONCE, dtype=torch.float64)[:, None].clamp_(min=1)
            back = 1 - length((steps - self._births).clamp_(min=1), betas) / length(steps, betas)
            self._tables = [
                (memory, back.to(memory).index_select(1, self._positions[kind]).unbind())
                for kind, memory in self._memory.items()
            ]
            self._known = first, betas
        for memory, values in self._tables:
            memory.copy_(values[step - first])


def _correct(part: _Part, factors: list[Tensor], into: list[Tensor]) -> None:
    factor = factors[0]
    for turn, other, out in zip(part.turns, factors[1:], into, strict=True):
        factor = torch.lerp(factor, other, turn, out=out)  # exact at 0 and 1, and faster than to choose
    if part.plain:
        part.present.lerp_(part.before, factor)
        return
    made = torch.lerp(part.present.to(part.before.dtype), part.before, factor)
    part.present.copy_(made if part.young is None else torch.where(part.young, made, part.present))


def _view(scratch: dict[Any, Tensor], slot: int, like: Tensor) -> Tensor:
    """Memory to write into, which all parts share."""
    key = slot, like.dtype, like.device
    memory = scratch.get(key)
    if memory is None or memory.numel() < like.numel():
        memory = scratch[key] = torch.empty(like.numel(), dtype=like.dtype, device=like.device)
    return memory[: like.numel()].view(like.shape)
