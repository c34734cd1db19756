"""What each operation says about the axes of its inputs and outputs.

A rule takes a `Call` (one executed ATen operation) and returns the axes of each of its outputs. On the way it unifies
axes that must be the same, states which axes cannot change and why, and what a parameter's axis does there: produce
neurons, consume them, or carry something per neuron (a norm's scale, a bias).

Operations that work element by element need no rule of their own: torch tags them as pointwise. For what is not known
here, `operation` and `module` take rules from users.
"""

from ..fills import MEAN, ONE, RANDOM, ZERO, Fill
from ..terms import concatenation, product, size
from . import across, contractions, lookups, shapes
from .base import checked, elementwise, fresh, rule_for, unknown
from .call import Axes, Call, Role, Rule
from .taught import ModuleRule, RuleError, forget, is_taught, module, module_rule, operation

__all__ = [
    "MEAN",
    "ONE",
    "RANDOM",
    "ZERO",
    "Axes",
    "Call",
    "Fill",
    "ModuleRule",
    "Role",
    "Rule",
    "RuleError",
    "across",
    "checked",
    "concatenation",
    "contractions",
    "elementwise",
    "forget",
    "fresh",
    "is_taught",
    "lookups",
    "module",
    "module_rule",
    "operation",
    "product",
    "rule_for",
    "shapes",
    "size",
    "unknown",
]
