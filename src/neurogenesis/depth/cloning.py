"""Copies of modules: parameters and buffers are copied, configs and functions shared."""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def why_not_cloned(module: nn.Module, path: str) -> str | None:
    """Why a module cannot be copied; None if it can."""
    for inner, each in module.named_modules():
        name = ".".join(filter(None, (path, inner)))
        for kind in _HOOKS:
            for hook in getattr(each, kind).values():
                if _origin(hook) not in ("torch", "neurogenesis"):
                    return f"{name} has a hook, which a copy of it would call, too: remove it, and register it again"
        if "forward" in vars(each):
            return f"the forward of {name} was replaced on this instance: do that after adding blocks"
    return None


def _origin(hook: Any) -> str:
    """The package that a hook is from."""
    owner = getattr(hook, "__self__", hook)
    home = getattr(hook, "__module__", None) or type(owner).__module__
    if isinstance(hook, types.MethodType):
        home = type(owner).__module__
    return str(home).partition(".")[0]


def cloned(modules: Iterable[nn.Module], kept: Iterable[Tensor] = ()) -> list[nn.Module]:
    """Copies of modules that belong together; what they share, the copies share, too.

    Args:
        modules: the modules.
        kept: parameters that the copies share with the modules.
    """
    memo: dict[int, Any] = {id(tensor): tensor for tensor in kept}
    originals = list(modules)
    for module in originals:
        for each in module.modules():
            memo.setdefault(id(each), each.__class__.__new__(each.__class__))
    with torch.no_grad():
        for module in originals:
            for each in module.modules():
                _fill(memo[id(each)], each, memo)
    return [memo[id(module)] for module in originals]


def _fill(new: nn.Module, old: nn.Module, memo: dict[int, Any]) -> None:
    for name, value in vars(old).items():
        if name in ("_parameters", "_buffers", "_modules"):
            new.__dict__[name] = {key: _copied(each, memo) for key, each in value.items()}
        elif name in _HOOKS:
            kept = {key: hook for key, hook in value.items() if _origin(hook) != "neurogenesis"}
            new.__dict__[name] = type(value)(kept)
        elif name == "_compiled_call_impl":
            new.__dict__[name] = None
        else:
            new.__dict__[name] = _copied(value, memo)


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    """A copy of what a module has as an attribute; objects that are not its own are shared."""
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, nn.Parameter):
        made: Any = nn.Parameter(value.detach().clone(), requires_grad=value.requires_grad)
        made.__dict__.update(vars(value))
        memo[id(value)] = made
        return made
    if isinstance(value, Tensor):
        memo[id(value)] = value.detach().clone()
        return memo[id(value)]
    if isinstance(value, types.MethodType):
        owner = memo.get(id(value.__self__))
        return value if owner is None else types.MethodType(value.__func__, owner)
    if type(value) in (list, tuple, set):
        return type(value)(_copied(each, memo) for each in value)
    if isinstance(value, dict) and hasattr(value, "copy"):
        new = value.copy()
        new.update({key: _copied(each, memo) for key, each in value.items()})
        return new
    return value
