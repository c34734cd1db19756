r"""Initializations decide how new neurons start: their fan-in and fan-out.

An initialization is a function of a `Layer`, a number of neurons and a random generator, and returns `Neurons`. It can
also be an instance of a subclass of `Initialization`, which states its requirements and the layers that it supports.

By default, fan-in is random and fan-out is zero, which does not change the network's function. Biases are 0. Random
fan-in, and fan-in that is selected from it or optimized, has the norm that `neurogenesis.surgery.reach` defines, except
in `Twins`. Other nonzero fan-in and fan-out is scaled to the mean norm of the present neurons, except in Firefly.

Reference: Maile, Rachelson, Luga, Wilson, "When, where, and how to add new neurons to ANNs" (AutoML 2022).
"""

from __future__ import annotations

from collections.abc import Callable

from .base import Initialization, Neurons, as_initialization
from .gradients import Firefly, GradMax, NeST
from .novelty import Opt, Pre, Random, Select, Weight
from .twins import Twins

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
    "Twins",
    "Weight",
    "as_initialization",
]

INITIALIZATIONS: dict[str, Callable[[], Initialization]] = {
    "random": Random,
    "twins": Twins,
    "select": Select,
    "pre": Pre,
    "opt": Opt,
    "weight": Weight,
    "gradmax": GradMax,
    "firefly": Firefly,
    "nest": NeST,
}
