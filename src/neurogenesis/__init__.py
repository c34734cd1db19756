"""Grow neural networks while they train."""

from . import metrics, nn
from .surgery import Plan, grow, plan_growth, plan_shrinkage, shrink
from .widths import Width, Widths, widths

__all__ = ["Plan", "Width", "Widths", "grow", "metrics", "nn", "plan_growth", "plan_shrinkage", "shrink", "widths"]
