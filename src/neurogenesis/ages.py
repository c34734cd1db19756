"""Ages: a new weight is trained as if training had just begun for it.

Adam divides by bias corrections that depend on one count of steps per tensor. A weight that is born late starts with
zero moments while that count is high, so nothing corrects them, and its updates are too large by
`(1 - b1^a) / sqrt(1 - b2^a)` at age a: 3.2 at 1, 6.5 at 10, 1.3 at 1000. Growth therefore notes births in the
optimizer's state, and hooks around its step give young entries the values that their own age calls for. All others are
left alone. When the correction has become negligible, births and hooks go.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .births import KEY, boxes, grown_up
from .corrections import LIKE_ADAM, Group, Rule, lifetime, looks_like_adam, rule_of, steps


def resume(optimizer: Optimizer) -> None:
    """Go on with the ages that a loaded optimizer state has.

    A `Grower` does so by itself. Call it where model and optimizer were made at their final size by hand, or where the
    optimizer was copied.

    Example:
        >>> import copy, torch, neurogenesis as ng
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> optimizer = torch.optim.Adam(model.parameters())
        >>> model(torch.randn(3, 4)).sum().backward()
        >>> optimizer.step()
        >>> plan = ng.grow(model, "0", 2, optimizer=optimizer, example=torch.randn(1, 4))
        >>> again = torch.optim.Adam(model.parameters())
        >>> again.load_state_dict(optimizer.state_dict())
        >>> ng.ages.resume(again)
    """
    if any(KEY in optimizer.state.get(parameter, ()) for parameter in _parameters(optimizer)):
        attend(optimizer)


def forget(optimizer: Optimizer) -> None:
    """Take births and hooks off an optimizer: from now on all weights count as old."""
    for parameter in _parameters(optimizer):
        optimizer.state.get(parameter, {}).pop(KEY, None)
    hook = _hook(optimizer)
    if hook is not None:
        hook.remove()


def release(optimizer: Optimizer) -> None:
    """Hold no memory of parameters and state that are about to be replaced."""
    hook = _hook(optimizer)
    if hook is not None:
        for layout in hook.layouts.values():
            layout.release()


def treated(optimizer: Optimizer, group: Group, state: dict[str, Any]) -> bool:
    """Whether an optimizer's young entries need anything, now that it has made steps."""
    if not steps(group, state):
        return False
    rule = rule_of(optimizer)
    if rule is None:
        return looks_like_adam(group, state)
    return rule.needed


def attend(optimizer: Optimizer) -> None:
    """Correct the steps of young entries from now on, until all are grown up."""
    if _hook(optimizer) is not None:
        return
    rule = rule_of(optimizer)
    if rule is None and any(
        looks_like_adam(group, optimizer.state.get(parameter, {}))
        for group in optimizer.param_groups
        for parameter in group["params"]
    ):
        rule = LIKE_ADAM
        warnings.warn(
            f"{type(optimizer).__name__} looks like Adam (betas, exp_avg, exp_avg_sq, step): the updates of new "
            "weights are scaled by the bias corrections of their own age, which is exact if it corrects as Adam does. "
            "Pass ages=False to leave them as they are",
            stacklevel=3,
        )
    if rule is not None and rule.needed:
        _Ages(optimizer, rule)


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _hook(optimizer: Optimizer) -> _Ages | None:
    for hook in optimizer._optimizer_step_post_hooks.values():
        owner = getattr(hook, "__self__", None)
        if isinstance(owner, _Ages):
            return owner
    return None


class _Layout:
    """Where the young entries of a parameter are, and a copy of them from before the step."""

    def __init__(self, parameter: Tensor, axes: Sequence[Sequence[list[int]]], births: Callable[..., Tensor]):
        _check(parameter, axes)
        self.axes = axes
        self.work = torch.promote_types(_real(parameter).dtype, torch.float32)
        self.contiguous = parameter.is_contiguous()
        self.shape, scaled = _collapsed(_real(parameter), axes)
        self.boxes = list(boxes(self.shape, scaled))
        self.births = [
            [
                (births(stretch.births), tuple(-1 if axis == own else 1 for axis in range(len(self.shape))))
                for own, stretch in enumerate(box.stretches)
                if stretch.births is not None
            ]
            for box in self.boxes
        ]
        self.before: list[Tensor] = []
        self.copied = False
        self.scratch: dict[tuple[int, int], Tensor] = {}  # by box and slot; shared with other parameters
        self._views: dict[tuple[int, int], Tensor] = {}

    def fits(self, parameter: Tensor, axes: Sequence[Sequence[list[int]]]) -> bool:
        """Whether it is still of these births, and of a parameter that lies in memory as then."""
        return self.axes is axes and self.contiguous == parameter.is_contiguous()

    def like(self, tensor: Tensor) -> Tensor:
        """A tensor of the parameter's shape, with axes that have no births taken together; a view if possible."""
        return _real(tensor.detach()).reshape(self.shape)

    def of(self, number: int, tensor: Tensor) -> Tensor:
        """The entries of a box; views are kept, as making them takes more time than small boxes do."""
        box = self.boxes[number]
        if box.gathered:
            return box.of(self.like(tensor))
        key = (number, tensor.data_ptr())  # a view holds the memory, so that no other tensor can lie there
        view = self._views.get(key)
        if view is None:
            if len(self._views) > 8 * len(self.boxes):  # of tensors that are gone
                self.release()
            whole = self.like(tensor)
            view = box.of(whole)
            if whole.data_ptr() == key[1]:
                self._views[key] = view
        return view

    def release(self) -> None:
        """Hold no memory of the parameter and its state."""
        self._views.clear()

    def copy(self, parameter: Tensor) -> None:
        parts = [self.of(number, parameter) for number in range(len(self.boxes))]
        if not self.before or self.before[0].device != parameter.device:
            self.before = [torch.empty(part.shape, dtype=self.work, device=part.device) for part in parts]
        for kept, part in zip(self.before, parts, strict=True):
            kept.copy_(part)
        self.copied = True


class _Young:
    """Young entries of a parameter after a step, one box at a time; see `corrections.Young`."""

    number: int
    single: bool
    births: list[tuple[Tensor, tuple[int, ...]]]
    before: Tensor
    out: Tensor
    slots: int

    def __init__(self, ages: _Ages, group: Group, state: dict[str, Any], parameter: Tensor, step: int):
        self.ages, self.group, self.state, self.parameter, self.step = ages, group, state, parameter, step
        self.layout = ages.layouts[parameter]

    def correct(self, rule: Rule) -> None:
        assert rule.correct is not None
        same = _real(self.parameter).dtype == self.layout.work
        for number, box in enumerate(self.layout.boxes):
            self.number, self.births, self.before = number, self.layout.births[number], self.layout.before[number]
            self.single = len(self.births) == 1
            self.slots = 0
            direct = same and not box.gathered
            self.out = self.layout.of(number, self.parameter) if direct else self.scratch()
            rule.correct(self)
            if not direct:
                box.put(self.layout.like(self.parameter), self.out)

    def of(self, tensor: Tensor) -> Tensor:
        part = self.layout.of(self.number, tensor)
        return part if part.dtype is torch.bool else part.to(self.layout.work)

    def scratch(self) -> Tensor:
        self.slots += 1
        key = (self.number, self.slots)
        found = self.layout.scratch.get(key)
        if found is None:
            found = self.layout.scratch[key] = self.ages.scratch(self.slots, self.before)
        return found

    def rising(self, name: str, function: Callable[[Tensor], Tensor], *about: float) -> Tensor:
        values = []
        for births, shape in self.births:
            key = (name, about, id(births), shape, self.step, self.layout.work)
            value = self.ages.known.get(key)
            if value is None:
                value = self.ages.function(name, function, about, births, self.step, self.layout.work)
                value = self.ages.known[key] = value.to(self.before.device).view(shape)
            values.append(value)
        result = values[0]
        for value in values[1:]:  # a rising function of the younger age is the smaller one of both
            result = torch.minimum(result, value, out=self.scratch() if len(values) == len(self.before.shape) else None)
        return result


class _Ages:
    """The hooks on one optimizer."""

    def __init__(self, optimizer: Optimizer, rule: Rule):
        self.rule = rule
        self.layouts: dict[Tensor, _Layout] = {}
        self.known: dict[Any, Tensor] = {}  # functions of ages, in the present step
        self._tables: dict[Any, Tensor | None] = {}  # of functions of all ages, by name and what they depend on
        self._births: dict[tuple[int, ...], Tensor] = {}
        self._memory: dict[Any, Tensor] = {}
        self.handles = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
            optimizer.register_load_state_dict_post_hook(self._loaded),
        ]

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def _before(self, optimizer: Optimizer, args: Any, kwargs: dict[str, Any]) -> Any:
        self._each(optimizer, self._copy)
        if self.rule.prepare is None:
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)  # the first is the optimizer
        if closure is None:
            self._each(optimizer, self._prepare)
            return None

        def prepared() -> Any:  # the gradients of this step come from the closure
            loss = closure()
            with torch.no_grad():
                self._each(optimizer, self._prepare)
            return loss

        return args[:1], {**kwargs, "closure": prepared}

    def _each(self, optimizer: Optimizer, action: Callable[[Tensor, Group, dict[str, Any]], None]) -> None:
        """For each parameter that has young entries."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                state = optimizer.state.get(parameter, {})
                if KEY in state:
                    action(parameter, group, state)

    def _copy(self, parameter: Tensor, group: Group, state: dict[str, Any]) -> None:
        if self.rule.correct is not None:
            layout = self.layouts.get(parameter)
            if layout is None or not layout.fits(parameter, state[KEY]["axes"]):
                layout = self.layouts[parameter] = _Layout(parameter, state[KEY]["axes"], self._vector)
            layout.copy(parameter)

    def _prepare(self, parameter: Tensor, group: Group, state: dict[str, Any]) -> None:
        assert self.rule.prepare is not None
        self.rule.prepare(parameter, group, state, state[KEY]["axes"])

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def _after(self, optimizer: Optimizer, *_: Any) -> None:
        self._each(optimizer, self._correct)
        self.known.clear()
        if not any(KEY in optimizer.state.get(parameter, ()) for parameter in _parameters(optimizer)):
            self._take_off(optimizer)

    def _correct(self, parameter: Tensor, group: Group, state: dict[str, Any]) -> None:
        record, step, layout = state[KEY], steps(group, state), self.layouts.get(parameter)
        assert step is not None
        # The count of a parameter without a gradient, or of a step that a scaler has skipped, does not move.
        if step == record["seen"]:
            return
        record["seen"] = step
        # Without a copy it was born during this step, in a closure.
        if layout is not None and layout.copied and layout.fits(parameter, record["axes"]):
            _Young(self, group, state, parameter, step).correct(self.rule)
            layout.copied = False
        self._grow_up(group, state, step)

    def _grow_up(self, group: Group, state: dict[str, Any], step: int) -> None:
        """Drop births long past; not at every step, as that takes time, and at steps that do not depend on when."""
        last = lifetime(self.rule, group)
        if step % max(1, last // 64) == 0:
            axes = state[KEY]["axes"]
            left = [grown_up(runs, step - last + 1) for runs in axes]
            if not any(left):
                del state[KEY]
            elif left != axes:
                state[KEY] = {"seen": step, "axes": left}

    def _loaded(self, optimizer: Optimizer) -> None:
        self.layouts.clear()

    def _take_off(self, optimizer: Optimizer) -> None:
        """Remove the hooks from within one of them."""
        _remove_in_turn(optimizer, self.handles, optimizer._optimizer_step_post_hooks)

    def _vector(self, births: tuple[int, ...]) -> Tensor:
        """Births as a tensor; the same one for the same births, so that functions of them are shared."""
        if len(self._births) > 256:
            self._births.clear()
        return self._births.setdefault(births, torch.tensor(births))

    def function(
        self,
        name: str,
        function: Callable[[Tensor], Tensor],
        about: tuple[float, ...],
        births: Tensor,
        step: int,
        dtype: torch.dtype,
    ) -> Tensor:
        """A function of the ages at a step; looked up in a table, unless it changes from step to step."""
        ages = self.known.get((id(births), step))
        if ages is None:
            ages = self.known[(id(births), step)] = step - births
        key = (name, about, dtype)
        if key not in self._tables:
            if len(self._tables) > 64:
                self._tables.clear()
            self._tables[key] = None
            return function(ages.double()).to(dtype)
        table = self._tables[key]
        if table is None or step >= len(table):
            # No age is above the step; one table lasts until it doubles, or for a lifetime.
            oldest = int(ages.max())
            if table is None or oldest >= len(table):
                table = function(torch.arange(2 * oldest + 64, dtype=torch.float64)).to(dtype)
                self._tables[key] = table
        return table.index_select(0, ages)

    def scratch(self, slot: int, like: Tensor) -> Tensor:
        key = (slot, like.dtype, like.device)
        memory = self._memory.get(key)
        if memory is None or memory.numel() < like.numel():
            memory = self._memory[key] = torch.empty(like.numel(), dtype=like.dtype, device=like.device)
        return memory[: like.numel()].view(like.shape)


def _remove_in_turn(optimizer: Optimizer, handles: Sequence[Any], running: Any) -> None:
    """Remove hooks while torch goes through some of them: from these only the last can be removed at once.

    The others are removed by a hook before the next step, or after it, which then removes itself.
    """
    left = []
    for handle in handles:
        if handle.hooks_dict_ref() is not running or next(reversed(running), None) == handle.id:
            handle.remove()
        else:
            left.append(handle)
    if left:
        pre = running is optimizer._optimizer_step_post_hooks
        other = optimizer._optimizer_step_pre_hooks if pre else optimizer._optimizer_step_post_hooks
        register = optimizer.register_step_pre_hook if pre else optimizer.register_step_post_hook

        def again(*_: Any) -> None:
            _remove_in_turn(optimizer, left, other)

        left.append(register(again))


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
