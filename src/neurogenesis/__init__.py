"""Grow neural networks while they train."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import initializations, metrics, nn, strategies, triggers
    from .depth.deepening import deepen, plan_deepening, remove_blocks
    from .depth.finding import stacks
    from .depth.plan import DepthPlan
    from .depth.stacks import Stack, Stacks
    from .growing.by_hand import grow, plan_growth
    from .growing.deepening import Deepening
    from .growing.grower import Grower
    from .growing.narrowing import narrow
    from .growing.pruning import prune
    from .history import Event, History
    from .initializations import Neurons
    from .integrations.checkpoints import load_state_dict
    from .integrations.snapshots import Snapshot, load, restore, save, snapshot
    from .layer import Layer
    from .strategies import Strategy
    from .structure import rules
    from .structure.finding import widths
    from .structure.flops import flops
    from .structure.interfaces import Interface, Interfaces, interfaces
    from .structure.outputs import internal_outputs
    from .structure.widths import Width, Widths
    from .surgery import ages
    from .surgery.newborn import NewParameters, moment, new_parameters
    from .surgery.plan import Plan
    from .surgery.planning import plan_shrinkage, shrink
    from .surgery.resizing import resize
    from .triggers import Decision

    __version__: str

__all__ = [
    "Decision",
    "Deepening",
    "DepthPlan",
    "Event",
    "Grower",
    "History",
    "Interface",
    "Interfaces",
    "Layer",
    "Neurons",
    "NewParameters",
    "Plan",
    "Snapshot",
    "Stack",
    "Stacks",
    "Strategy",
    "Width",
    "Widths",
    "ages",
    "deepen",
    "flops",
    "grow",
    "initializations",
    "interfaces",
    "internal_outputs",
    "load",
    "load_state_dict",
    "metrics",
    "moment",
    "narrow",
    "new_parameters",
    "nn",
    "plan_deepening",
    "plan_growth",
    "plan_shrinkage",
    "prune",
    "remove_blocks",
    "resize",
    "restore",
    "rules",
    "save",
    "shrink",
    "snapshot",
    "stacks",
    "strategies",
    "triggers",
    "widths",
]

_HOMES = {
    "depth.deepening": ["deepen", "plan_deepening", "remove_blocks"],
    "depth.finding": ["stacks"],
    "depth.plan": ["DepthPlan"],
    "depth.stacks": ["Stack", "Stacks"],
    "growing.deepening": ["Deepening"],
    "growing.by_hand": ["grow", "plan_growth"],
    "growing.grower": ["Grower"],
    "growing.narrowing": ["narrow"],
    "growing.pruning": ["prune"],
    "history": ["Event", "History"],
    "initializations": ["Neurons"],
    "integrations.checkpoints": ["load_state_dict"],
    "integrations.snapshots": ["Snapshot", "load", "restore", "save", "snapshot"],
    "layer": ["Layer"],
    "strategies": ["Strategy"],
    "structure": ["rules"],
    "structure.finding": ["widths"],
    "structure.flops": ["flops"],
    "structure.interfaces": ["Interface", "Interfaces", "interfaces"],
    "structure.outputs": ["internal_outputs"],
    "structure.widths": ["Width", "Widths"],
    "surgery": ["ages"],
    "surgery.newborn": ["NewParameters", "moment", "new_parameters"],
    "surgery.plan": ["Plan"],
    "surgery.planning": ["plan_shrinkage", "shrink"],
    "surgery.resizing": ["resize"],
    "triggers": ["Decision"],
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    # On first use: importing torch takes a second or more, which the command's help need not wait for.
    found: Any
    if name == "__version__":
        from importlib.metadata import version

        found = version("torch-neurogenesis")
    elif name in _HOME:
        home = import_module(f".{_HOME[name]}", __name__)
        found = getattr(home, name, None) or import_module(f"{home.__name__}.{name}")  # a module or a name in it
    elif name in __all__:
        found = import_module(f".{name}", __name__)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
