"""Ages: new weights are trained as if training had just started for them.

Adam divides its moments by bias corrections that depend on one step count per tensor. The moments of a weight added
late start at zero while that count is high, so they are not corrected, and updates are too large by a factor of
`(1 - b1^a) / sqrt(1 - b2^a)` at age a: 3.2 at 1, 6.5 at 10, 1.3 at 1000. Growth therefore records births in the
optimizer's state, and hooks around each step correct young entries according to their own age. Other entries are not
touched. Births and hooks are removed once the correction is negligible.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .births import KEY, born_since
from .corrections import (
    LIKE_ADAM,
    AgeRule,
    Group,
    lifetime,
    looks_like_adam,
    rule_of,
    step_count,
)
from .young import Cohort, YoungEntries, YoungParameter


def resume(optimizer: Optimizer) -> None:
    """Continue with the births in a loaded optimizer state.

    A `Grower` does this automatically. Call it if you created model and optimizer at their final size, or copied the
    optimizer.

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
        add_hooks(_with_hooks(optimizer))


def forget(optimizer: Optimizer, parameters: Iterable[Tensor] | None = None) -> None:
    """Remove births and hooks from an optimizer: all weights, or those of some parameters, count as old from now on."""
    chosen = None if parameters is None else set(map(id, parameters))
    states = {id(parameter): optimizer.state.get(parameter, {}) for parameter in _parameters(optimizer)}
    for number, state in states.items():
        if chosen is None or number in chosen:
            state.pop(KEY, None)
    hooks = _hooks_of(_with_hooks(optimizer))
    if hooks is not None and not any(KEY in state for state in states.values()):
        hooks.remove()


def release_memory(optimizer: Optimizer) -> None:
    """Release references to memory that is about to be replaced."""
    hooks = _hooks_of(optimizer)
    if hooks is not None:
        hooks.copied.clear()
        hooks.cohorts.clear()


def needs_births(optimizer: Optimizer, group: Group, state: dict[str, Any]) -> bool:
    """Whether births of new entries must be recorded: the optimizer has made steps and needs corrections."""
    if not step_count(group, state):
        return False
    rule = rule_of(optimizer)
    if rule is None:
        return looks_like_adam(group, state)
    return rule.needed


def add_hooks(optimizer: Optimizer) -> None:
    """Correct the updates of young entries from now on, until none are left."""
    if _hooks_of(optimizer) is not None:
        return
    rule = rule_of(optimizer)
    if rule is None and any(
        looks_like_adam(group, optimizer.state.get(parameter, {}))
        for group in optimizer.param_groups
        for parameter in group["params"]
    ):
        rule = LIKE_ADAM
        warnings.warn(
            f"{type(optimizer).__name__} looks like Adam (betas, exp_avg, exp_avg_sq, step): updates of new weights "
            "are scaled by bias corrections for their own age, which is exact if it uses the same bias corrections as "
            "Adam. Pass ages=False to disable this",
            stacklevel=3,
        )
    if rule is not None and rule.needed:
        _AgeHooks(optimizer, rule)


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _young_parameters(optimizer: Optimizer) -> list[tuple[Group, list[YoungParameter]]]:
    """The parameters with young entries, by group; groups without any are left out."""
    states = optimizer.state
    result = [
        (group, [(each, states[each]) for each in group["params"] if KEY in states.get(each, ())])
        for group in optimizer.param_groups
    ]
    return [(group, young) for group, young in result if young]


def _with_hooks(optimizer: Any) -> Optimizer:
    """The optimizer inside a wrapper without hooks of its own, such as Accelerate's."""
    while not hasattr(optimizer, "_optimizer_step_post_hooks"):
        optimizer = optimizer.optimizer
    return optimizer  # type: ignore[no-any-return]


def _hooks_of(optimizer: Optimizer) -> _AgeHooks | None:
    """The hooks on an optimizer, if there are any."""
    for hook in optimizer._optimizer_step_post_hooks.values():
        owner = getattr(hook, "__self__", None)
        if isinstance(owner, _AgeHooks):
            return owner
    return None


class _AgeHooks:
    """The hooks on one optimizer."""

    def __init__(self, optimizer: Optimizer, rule: AgeRule):
        self.rule = rule
        self.young: list[tuple[Group, list[YoungParameter]]] = []  # before the present step
        self.copied: dict[Tensor, YoungEntries] = {}
        self.cohorts: dict[tuple[YoungEntries, ...], Cohort] = {}
        # No hook for loading: torch would iterate over such hooks while `resume`, as one of them, adds it.
        self.handles = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _before(self, optimizer: Optimizer, args: Any, kwargs: dict[str, Any]) -> Any:
        self.young = _young_parameters(optimizer)
        if self.rule.functions:
            self._copy([each for _, young in self.young for each in young])
        if self.rule.prepare is None:
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)  # args[0] is the optimizer
        if closure is None:
            self._prepare(optimizer)
            return None

        def prepared() -> Any:  # the closure computes the gradients of this step
            loss = closure()
            self._prepare(optimizer)
            return loss

        return args[:1], {**kwargs, "closure": prepared}

    def _copy(self, young: Sequence[YoungParameter]) -> None:
        before = self.copied
        self.copied = {}
        for parameter, state in young:
            entries, axes = before.get(parameter), state[KEY]["axes"]
            if entries is None or not entries.fits(axes):
                entries = YoungEntries(parameter, axes)
                self.cohorts.clear()
            self.copied[parameter] = entries
        if self.copied:
            torch._foreach_copy_(
                [box.before for entries in self.copied.values() for box in entries.boxes],
                [each for entries in self.copied.values() for each in entries.present()],
            )

    @torch.no_grad()
    def _prepare(self, optimizer: Optimizer) -> None:
        assert self.rule.prepare is not None
        for group, young in _young_parameters(optimizer):
            for parameter, state in young:
                self.rule.prepare(parameter, group, state, state[KEY]["axes"])

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _after(self, optimizer: Optimizer, *others: Any) -> None:
        for group, young in self.young:
            moved: dict[tuple[int, torch.dtype, torch.device], list[YoungParameter]] = {}
            for parameter, state in young:
                step = step_count(group, state)
                # The count does not change without a gradient, or if a gradient scaler skipped the step.
                if step is not None and KEY in state and step != state[KEY]["seen"]:
                    state[KEY]["seen"] = step
                    moved.setdefault((step, parameter.dtype, parameter.device), []).append((parameter, state))
            for (step, _, _), those in moved.items():
                self._correct(group, step, those)
                self._drop_old_births(group, step, those)
        grown_up = not any(KEY in state for _, young in self.young for _, state in young)
        if grown_up and not _young_parameters(optimizer):  # a closure may have grown others during the step
            _remove_while_running(optimizer, self.handles, optimizer._optimizer_step_post_hooks)

    def _correct(self, group: Group, step: int, young: Sequence[YoungParameter]) -> None:
        """Correct a step of parameters, except those that a closure has grown during the step."""
        chosen, members = [], []
        for parameter, state in young:
            entries = self.copied.get(parameter)
            if entries is not None and entries.fits(state[KEY]["axes"]):
                chosen.append((parameter, state))
                members.append(entries)
        if chosen:
            key = tuple(members)
            if key not in self.cohorts:
                self.cohorts[key] = Cohort(self.rule, members)
            self.cohorts[key].correct(group, step, chosen)

    def _drop_old_births(self, group: Group, step: int, young: Sequence[YoungParameter]) -> None:
        """Drop old births; only at some steps, to save time, and at the same ones in a resumed run."""
        last = lifetime(self.rule, group)
        if step % max(1, last // 64) == 0:
            for _, state in young:
                axes = state[KEY]["axes"]
                left = [born_since(runs, step - last + 1) for runs in axes]
                if not any(left):
                    del state[KEY]
                elif left != axes:
                    state[KEY] = {"seen": step, "axes": left}


def _remove_while_running(optimizer: Optimizer, handles: Sequence[Any], running: Any) -> None:
    """Remove hooks while torch iterates over `running`, from which only the last hook can be removed safely.

    The others are removed by a temporary hook before or after the next step.
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

        def remove_left(*_: Any) -> None:
            _remove_while_running(optimizer, left, other)

        left.append(register(remove_left))
