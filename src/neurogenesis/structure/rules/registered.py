"""Rules registered by users, for operations and modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from .call import Axes, Call, Rule

ModuleRule = Callable[[Call, Any], list[Axes]]
R = TypeVar("R", bound=Rule)
M = TypeVar("M", bound=ModuleRule)
_OPERATIONS: dict[str, Rule] = {}
_MODULES: dict[type[nn.Module], ModuleRule] = {}


class RuleError(ValueError):
    """A registered rule fails, or does not match the outputs of its operation or module."""


def operation(name: str) -> Callable[[R], R]:
    """Register a rule for an operation by its qualified name, such as ``"mylib::scan"``.

    The rule takes a `Call`, relates the axes of inputs and parameters, and returns the axes of each output. It replaces
    an earlier rule for the same operation.

    Example:
        >>> import neurogenesis as ng
        >>> @ng.rules.operation("mylib::double")
        ... def double(call):
        ...     return [call.axes(call.arguments["x"])]
        >>> ng.rules.forget("mylib::double")
    """
    if "::" not in name:
        raise ValueError(f"expected a qualified name such as 'mylib::{name}', not {name!r}")

    def register(rule: R) -> R:
        _OPERATIONS[name] = rule
        return rule

    return register


def module(kind: type[nn.Module]) -> Callable[[M], M]:
    """Register a rule for a module class and its subclasses; operations inside the module are then ignored.

    The rule takes a `Call` and the module. ``call.arguments`` are the arguments of ``forward`` by name; parameters are
    attributes of the module. It replaces an earlier rule for the same class.

    Example:
        >>> import torch, neurogenesis as ng
        >>> class Scale(torch.nn.Module):
        ...     def __init__(self, size):
        ...         super().__init__()
        ...         self.weight = torch.nn.Parameter(torch.ones(size))
        ...
        ...     def forward(self, x):
        ...         return x * self.weight
        >>> @ng.rules.module(Scale)
        ... def scale(call, module):
        ...     x = call.axes(call.arguments["x"])
        ...     call.unify(x[-1], call.axes(module.weight)[0])
        ...     call.role(module.weight, 0, "carrier", ng.rules.ONE)
        ...     return [x]
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), Scale(8), torch.nn.Linear(8, 2))
        >>> ng.widths(model, torch.randn(3, 4))["0"].growable
        True
        >>> ng.rules.forget(Scale)
    """
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise TypeError(f"expected a module class, not {kind!r}")

    def register(rule: M) -> M:
        _MODULES[kind] = rule
        return rule

    return register


def forget(what: str | type[nn.Module]) -> None:
    """Remove the rule registered for an operation or a module class."""
    found = _OPERATIONS.pop(what, None) if isinstance(what, str) else _MODULES.pop(what, None)
    if found is None:
        raise KeyError(f"no rule is registered for {what!r}")


def operation_rule(name: str) -> Rule | None:
    """The rule registered for an operation, if any."""
    return _OPERATIONS.get(name)


def module_rule(module: nn.Module) -> ModuleRule | None:
    """The rule registered for the class of a module or its nearest base class, if any."""
    return next((_MODULES[kind] for kind in type(module).__mro__ if kind in _MODULES), None)


def is_registered(rule: Any) -> bool:
    """Whether a rule was registered by a user."""
    return rule in _OPERATIONS.values() or rule in _MODULES.values()
