"""What each operation says about the axes of its inputs and outputs.

A rule takes a `Call` (one executed ATen operation) and returns the axes of each of its outputs. On the way
it unifies axes that must be the same, states which axes cannot change and why, and says what a parameter's
axis does there: produce neurons, consume them, or carry something per neuron (a norm's scale, a bias).

Operations that work element by element need no rule of their own: torch tags them as pointwise.
"""

from . import layers, lookups, shapes
from .base import Axes, Call, Role, Rule, checked, rule_for, unknown

__all__ = ["Axes", "Call", "Role", "Rule", "checked", "layers", "lookups", "rule_for", "shapes", "unknown"]
