"""Grow neural networks while they train."""

from . import initializations, metrics, nn, strategies, triggers
from .grower import Grower
from .history import Event, History
from .initializations import Neurons
from .layers import Layer
from .strategies import Strategy
from .surgery import Plan, grow, plan_growth, plan_shrinkage, shrink
from .triggers import Decision
from .widths import Width, Widths, widths

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
