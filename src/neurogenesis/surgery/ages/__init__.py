"""Ages: a new weight is trained as if training had just begun for it.

Adam divides by bias corrections that depend on one count of steps per tensor. A weight that is born late starts with
zero moments while that count is high, so nothing corrects them, and its updates are too large by
`(1 - b1^a) / sqrt(1 - b2^a)` at age a: 3.2 at 1, 6.5 at 10, 1.3 at 1000. Growth therefore notes births in the
optimizer's state, and hooks around its step give young entries the values that their own age calls for. All others are
left alone. When the correction has become negligible, births and hooks go.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .births import KEY, grown_up
from .corrections import LIKE_ADAM, Group, Rule, betas_of, kept, lifetime, looks_like_adam, rule_of, steps
from .scaling import Scaling, Young
from .young import Layout, Shared


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
        hook.release()


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
    hook = _hook(optimizer)
    if hook is not None:
        hook.found = None
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


class _Ages:
    """The hooks on one optimizer."""

    def __init__(self, optimizer: Optimizer, rule: Rule):
        self.rule = rule
        self.layouts: dict[Tensor, Layout] = {}
        self.scalings: dict[int, Scaling] = {}  # by group
        self.found: list[list[Young]] | None = None  # by group; None: to be looked for
        self.shared = Shared()
        self.handles = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
            optimizer.register_load_state_dict_post_hook(self._loaded),
        ]

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()

    def release(self) -> None:
        self.found = None
        for layout in self.layouts.values():
            layout.release()
        for scaling in self.scalings.values():
            scaling.release()

    def _young(self, optimizer: Optimizer) -> list[list[Young]]:
        """By group, the parameters that have young entries: the same until growth, loading or growing up."""
        if self.found is None or len(self.found) != len(optimizer.param_groups):
            states = optimizer.state
            self.found = [
                [(parameter, states[parameter]) for parameter in group["params"] if KEY in states.get(parameter, ())]
                for group in optimizer.param_groups
            ]
        return self.found

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _before(self, optimizer: Optimizer, args: Any, kwargs: dict[str, Any]) -> Any:
        for number, young in enumerate(self._young(optimizer)):
            self._copy(number, young)
        if self.rule.prepare is None:
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)  # the first is the optimizer
        if closure is None:
            self._prepare(optimizer)
            return None

        def prepared() -> Any:  # the gradients of this step come from the closure
            loss = closure()
            self._prepare(optimizer)
            return loss

        return args[:1], {**kwargs, "closure": prepared}

    def _copy(self, number: int, young: list[Young]) -> None:
        if not young:
            self.scalings.pop(number, None)
        elif self.rule.scaled:
            scaling = self.scalings.get(number)
            if scaling is None or not scaling.fits(young):
                scaling = self.scalings[number] = Scaling(young)
            scaling.copy()
        elif self.rule.correct is not None:
            with torch.no_grad():
                for parameter, state in young:
                    layout = self.layouts.get(parameter)
                    if layout is None or not layout.fits(parameter, state[KEY]["axes"]):
                        layout = self.layouts[parameter] = Layout(parameter, state[KEY]["axes"], self.shared)
                    layout.copy()

    @torch.no_grad()
    def _prepare(self, optimizer: Optimizer) -> None:
        assert self.rule.prepare is not None
        for group, young in zip(optimizer.param_groups, self._young(optimizer), strict=True):
            for parameter, state in young:
                self.rule.prepare(parameter, group, state, state[KEY]["axes"])

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _after(self, optimizer: Optimizer, *_: Any) -> None:
        for number, (group, present) in enumerate(zip(optimizer.param_groups, self._young(optimizer), strict=True)):
            moved: dict[int, list[Young]] = {}
            for each in present:
                record, step = each[1][KEY], steps(group, each[1])
                assert step is not None
                # The count of a parameter without a gradient, or of a step that a scaler has skipped, does not move.
                if step != record["seen"]:
                    record["seen"] = step
                    moved.setdefault(step, []).append(each)
            for step, young in moved.items():
                self._correct(number, group, step, young)
                self._grow_up(group, step, young)
        if not any(self._young(optimizer)):
            self._take_off(optimizer)

    def _correct(self, number: int, group: Group, step: int, young: list[Young]) -> None:
        """Those that have no copy were born during this step, in a closure."""
        scaling = self.scalings.get(number)
        if scaling is not None:
            scaling.correct(young, step, betas_of(group), kept(group))
        elif self.rule.correct is not None:
            with torch.no_grad():
                for parameter, state in young:
                    layout = self.layouts.get(parameter)
                    if layout is not None and layout.copied and layout.fits(parameter, state[KEY]["axes"]):
                        layout.correct(self.rule.correct, group, state, step)

    def _grow_up(self, group: Group, step: int, young: list[Young]) -> None:
        """Drop births long past; not at every step, as that takes time, and at steps that do not depend on when."""
        last = lifetime(self.rule, group)
        if step % max(1, last // 64) == 0:
            for _, state in young:
                axes = state[KEY]["axes"]
                left = [grown_up(runs, step - last + 1) for runs in axes]
                if not any(left):
                    del state[KEY]
                    self.found = None
                elif left != axes:
                    state[KEY] = {"seen": step, "axes": left}

    def _loaded(self, optimizer: Optimizer) -> None:
        self.found = None
        self.layouts.clear()
        self.scalings.clear()

    def _take_off(self, optimizer: Optimizer) -> None:
        """Remove the hooks from within one of them."""
        _remove_in_turn(optimizer, self.handles, optimizer._optimizer_step_post_hooks)


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
