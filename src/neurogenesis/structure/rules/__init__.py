"""Rules that relate the axes of an operation's inputs and outputs.

A rule takes a `Call` (one executed ATen operation) and returns the axes of each output. Along the way it unifies axes
that must be equal, fixes axes that cannot change, and records the role of each parameter axis: it produces neurons,
consumes them, or carries a value per neuron (the scale of a norm, a bias).

Pointwise operations need no rule: torch tags them. Users can register rules for other operations with `operation` and
`module`.
"""

from ..fills import COPY, MEAN, ONE, RANDOM, ZERO, Fill
from ..terms import concatenation, product, size
from . import across, contractions, lookups, reshapes, shapes  # noqa: F401  they register the rules of torch's operations
from .base import elementwise, fresh, unknown
from .call import Axes, Call, Counted, Role, Rule
from .registered import ModuleRule, RuleError, forget, module, operation

__all__ = [
    "COPY",
    "MEAN",
    "ONE",
    "RANDOM",
    "ZERO",
    "Axes",
    "Call",
    "Counted",
    "Fill",
    "ModuleRule",
    "Role",
    "Rule",
    "RuleError",
    "concatenation",
    "elementwise",
    "forget",
    "fresh",
    "module",
    "operation",
    "product",
    "size",
    "unknown",
]
