"""Scale the updates of young entries by a function of their age, for all parameters of a group at once.

Young entries are copied before a step and interpolated afterwards, with the fraction `w = f(a) / f(t)`, from the copy
to their new values: two passes over memory. Everything that does not change between steps is computed once per size,
and factors are computed for a block of steps at once, so that each step takes only few calls for all parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .births import KEY, Box
from .corrections import update_scale
from .young import YoungRegions

Axes = Sequence[Sequence[list[int]]]
YoungParameter = tuple[Tensor, dict[str, Any]]  # a parameter with young entries, and its state
Betas = tuple[float, float]
_BLOCK = 32  # steps for which factors are computed at once: small operations are dominated by call overhead


class Scaling:
    """The young entries of the parameters of a group, with a copy from before the step."""

    def __init__(self, young: Sequence[YoungParameter]):
        self._members = [_Member(parameter, state[KEY]["axes"]) for parameter, state in young]
        self._numbers = {id(parameter): number for number, (parameter, _) in enumerate(young)}
        self._before = [part.before for member in self._members for part in member.parts]
        self._present = [part.present for member in self._members for part in member.parts]
        self._scratch: dict[Any, Tensor] = {}
        self._selections: dict[tuple[int, ...], _Selection] = {}

    def fits(self, young: Sequence[YoungParameter]) -> bool:
        """Whether it was built for these parameters with these births, at the same memory addresses."""
        if len(young) != len(self._members):
            return False
        for member, (parameter, state) in zip(self._members, young, strict=True):
            if member.parameter is not parameter or not member.is_current(state):
                return False
        return True

    def copy(self) -> None:
        """Copy the young entries before the step."""
        torch._foreach_copy_(self._before, self._present)

    def correct(self, young: Sequence[YoungParameter], step: int, betas: Betas, decay_factor: float) -> None:
        """Scale the updates of these parameters; `decay_factor` is that of decoupled weight decay.

        Parameters without a copy are skipped.
        """
        chosen = []
        for parameter, state in young:
            number = self._numbers.get(id(parameter))
            if number is not None and (self._members[number].is_current(state) or self._refresh(number, state)):
                chosen.append(number)
        if chosen:
            self._selection(tuple(chosen)).correct(step, betas, decay_factor)

    def release_memory(self) -> None:
        """Release references to the parameters."""
        for member in self._members:
            member.release_memory()
        self._present, self._selections = [], {}

    def _refresh(self, number: int, state: dict[str, Any]) -> bool:
        refreshed = self._members[number].refresh(state)
        self._present = [part.present for member in self._members for part in member.parts]
        self._selections.clear()
        return refreshed

    def _selection(self, chosen: tuple[int, ...]) -> _Selection:
        selection = self._selections.get(chosen)
        if selection is None:
            if len(self._selections) > 8:
                self._selections.clear()
            parts = [part for number in chosen for part in self._members[number].parts]
            selection = self._selections[chosen] = _Selection(parts, self._scratch)
        return selection


class _Member:
    """A parameter with young entries."""

    def __init__(self, parameter: Tensor, axes: Axes):
        self.parameter, self.axes, self.regions = parameter, axes, YoungRegions(parameter, axes)
        self.memory: int | None = parameter.data_ptr()  # the parts keep it alive, so that it cannot be reused
        entries = self.regions.split(parameter)
        self.parts = [_Part(*each) for each in zip(entries, self.regions.boxes, strict=True)]

    def is_current(self, state: dict[str, Any]) -> bool:
        """Whether the parts are views of the parameter's current memory and match its births."""
        return state[KEY]["axes"] is self.axes and self.parameter.data_ptr() == self.memory

    def refresh(self, state: dict[str, Any]) -> bool:
        """Take views of the parameter's current memory, if it has not changed otherwise."""
        if not self.regions.fits(self.parameter, state[KEY]["axes"]):
            return False
        for part, entries in zip(self.parts, self.regions.split(self.parameter), strict=True):
            part.present = entries
        self.memory = self.parameter.data_ptr()
        return True

    def release_memory(self) -> None:
        self.memory = None
        for part in self.parts:
            part.present = part.before  # until it is refreshed


class _Part:
    """A box of a parameter."""

    def __init__(self, entries: Tensor, box: Box):
        self.present = entries
        self.before = torch.empty(
            entries.shape, dtype=torch.promote_types(entries.dtype, torch.float32), device=entries.device
        )
        self.axes: list[tuple[tuple[int, ...], tuple[int, ...]]] = []  # births, and a shape that broadcasts
        self.younger: list[Tensor] = []  # 1 where an axis is younger than all previous ones, else 0
        births = torch.zeros([1] * len(box), dtype=torch.int64)
        for own, span in enumerate(box):
            if span.births is not None:
                born = torch.tensor(span.births).view([-1 if axis == own else 1 for axis in range(len(box))])
                if self.axes:
                    self.younger.append((born > births).to(self.before))
                self.axes.append((span.births, tuple(born.shape)))
                births = torch.maximum(births, born)
        young = births > 0
        self.young = None if young.all() else young.to(entries.device)  # None: all entries are young
        self.plain = self.young is None and entries.dtype == self.before.dtype


class _Selection:
    """Parts of parameters that have made the same number of steps."""

    def __init__(self, parts: Sequence[_Part], scratch: dict[Any, Tensor]):
        self.before = [part.before for part in parts]
        self.factors = _Factors([(births, part.before) for part in parts for births, _ in part.axes])
        self.direct: tuple[list[Tensor], list[Tensor], list[Tensor]] = [], [], []  # after the step, before, factors
        self.indirect: list[tuple[_Part, list[Tensor], list[Tensor]]] = []
        for part in parts:
            factors = [self.factors.of(births, part.before).view(shape) for births, shape in part.axes]
            if part.plain and not part.younger:
                for each, tensor in zip(self.direct, (part.present, part.before, factors[0]), strict=True):
                    each.append(tensor)
            else:
                self.indirect.append(
                    (part, factors, [_scratch_view(scratch, *each) for each in enumerate(part.younger)])
                )

    def correct(self, step: int, betas: Betas, decay_factor: float) -> None:
        self.factors.compute(step, betas)
        if decay_factor != 1:
            torch._foreach_mul_(self.before, decay_factor)
        if self.direct[0]:
            torch._foreach_lerp_(*self.direct)
        for part, factors, into in self.indirect:
            _correct(part, factors, into)


class _Factors:
    """Interpolation factors by position of an axis, in memory that is reused from step to step.

    The factor `1 - f(a) / f(t)` is the fraction of the update that is taken back.
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
        """Factors of an axis."""
        kind = like.dtype, like.device
        return self._memory[kind].narrow(0, self._starts[births, kind], len(births))

    def compute(self, step: int, betas: Betas) -> None:
        """Compute the factors of a block of steps; blocks are aligned, so that resumed runs give the same numbers."""
        first = step - step % _BLOCK
        if self._known != (first, betas):
            steps = torch.arange(first, first + _BLOCK, dtype=torch.float64)[:, None].clamp_(min=1)
            back = 1 - update_scale((steps - self._births).clamp_(min=1), betas) / update_scale(steps, betas)
            self._tables = [
                (memory, back.to(memory).index_select(1, self._positions[kind]).unbind())
                for kind, memory in self._memory.items()
            ]
            self._known = first, betas
        for memory, values in self._tables:
            memory.copy_(values[step - first])


def _correct(part: _Part, factors: list[Tensor], into: list[Tensor]) -> None:
    factor = factors[0]
    for mask, other, out in zip(part.younger, factors[1:], into, strict=True):
        factor = torch.lerp(factor, other, mask, out=out)  # exact at 0 and 1, and faster than torch.where
    if part.plain:
        part.present.lerp_(part.before, factor)
        return
    made = torch.lerp(part.present.to(part.before.dtype), part.before, factor)
    part.present.copy_(made if part.young is None else torch.where(part.young, made, part.present))


def _scratch_view(scratch: dict[Any, Tensor], slot: int, like: Tensor) -> Tensor:
    """A temporary tensor in memory shared by all parts."""
    key = slot, like.dtype, like.device
    memory = scratch.get(key)
    if memory is None or memory.numel() < like.numel():
        memory = scratch[key] = torch.empty(like.numel(), dtype=like.dtype, device=like.device)
    return memory[: like.numel()].view(like.shape)
