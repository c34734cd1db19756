r"""How: initializations give new neurons their fan-in and fan-out.

An initialization is a function of a `Layer`, a number of neurons and a random generator that returns `Neurons`; or an
object of a subclass of `Initialization`, which states what it looks at and which layers it can serve.

Biases are 0. Fan-in and fan-out that are not zero are scaled to the mean norm of the present neurons (Firefly aside);
random fan-in, or what is chosen from it, is as `neurogenesis.surgery.reach` says. What an initialization leaves out is
random fan-in, and zero fan-out: the network's function does not change.

Reference: Maile, Rachelson, Luga, Wilson, "When, where, and how to add new neurons to ANNs" (AutoML 2022).
"""

from __future__ import annotations

from collections.abc import Callable

from .base import Initialization, Neurons, as_initialization
from .gradients import Firefly, GradMax, NeST
from .novelty import Opt, Pre, Random, Select, Weight

__all__ = [
    "INITIALIZATIONS",
    "Firefly",
    "GradMax",
    "Initialization",
    "NeST",
    "Neurons",
    "Opt",
    "Pre",
    "Random",
    "Select",
    "Weight",
    "as_initialization",
]

INITIALIZATIONS: dict[str, Callable[[], Initialization]] = {
    "random": Random,
    "select": Select,
    "pre": Pre,
    "opt": Opt,
    "weight": Weight,
    "gradmax": GradMax,
    "firefly": Firefly,
    "nest": NeST,
}
