"""Grow neural networks while they train."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import ages, initializations, metrics, nn, strategies, triggers
    from .by_hand import grow, plan_growth
    from .grower import Grower
    from .history import Event, History
    from .initializations import Neurons
    from .layers import Layer
    from .strategies import Strategy
    from .surgery import Plan, plan_shrinkage, shrink
    from .triggers import Decision
    from .width import Width, Widths, widths

__all__ = [
    "Decision",
    "Event",
    "Grower",
    "History",
    "Layer",
    "Neurons",
    "Plan",
    "Strategy",
    "Width",
    "Widths",
    "ages",
    "grow",
    "initializations",
    "metrics",
    "nn",
    "plan_growth",
    "plan_shrinkage",
    "shrink",
    "strategies",
    "triggers",
    "widths",
]

_HOMES = {
    "by_hand": ["grow", "plan_growth"],
    "grower": ["Grower"],
    "history": ["Event", "History"],
    "initializations": ["Neurons"],
    "layers": ["Layer"],
    "strategies": ["Strategy"],
    "surgery": ["Plan", "plan_shrinkage", "shrink"],
    "triggers": ["Decision"],
    "width": ["Width", "Widths", "widths"],
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    # On first use: importing torch takes a second or more, which the command's help need not wait for.
    if name in _HOME:
        found = getattr(import_module(f".{_HOME[name]}", __name__), name)
    elif name in __all__:
        found = import_module(f".{name}", __name__)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
