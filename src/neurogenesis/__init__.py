"""Grow neural networks while they train."""

from . import metrics
from .surgery import Plan, grow, plan_growth, plan_shrinkage, shrink
from .widths import Width, Widths, widths

__all__ = ["Plan", "Width", "Widths", "grow", "metrics", "plan_growth", "plan_shrinkage", "shrink", "widths"]
