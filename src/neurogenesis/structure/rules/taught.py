"""Rules that users give for operations and modules that have none."""

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
    """A rule that a user gave does not fit the operation or module it is for."""


def operation(name: str) -> Callable[[R], R]:
    """Give a rule for an operation by its qualified name, such as ``"mylib::scan"``.

    The rule gets a `Call`, relates the axes of inputs and parameters, and returns the axes of each output. A later rule
    for the same operation takes its place.

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
    """Give a rule for a module class and its subclasses: what runs inside is then not looked at.

    The rule gets a `Call` and the module. ``call.arguments`` are those of ``forward``, by name; parameters are
    attributes of the module. A later rule for the same class takes its place.

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
    """Remove the rule that was given for an operation or a module class."""
    found = _OPERATIONS.pop(what, None) if isinstance(what, str) else _MODULES.pop(what, None)
    if found is None:
        raise KeyError(f"no rule was given for {what!r}")


def operation_rule(name: str) -> Rule | None:
    return _OPERATIONS.get(name)


def module_rule(module: nn.Module) -> ModuleRule | None:
    """The rule of the nearest class of a module that has one."""
    return next((_MODULES[kind] for kind in type(module).__mro__ if kind in _MODULES), None)


def is_taught(rule: Any) -> bool:
    return rule in _OPERATIONS.values() or rule in _MODULES.values()
