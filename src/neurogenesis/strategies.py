"""Strategies: a trigger (when, where, how many) plus an initialization (how), built in or your own.

======================  ======================  =====================
name                    trigger                 initialization
======================  ======================  =====================
``north-select``        activations             select
``north-pre``           activations             pre
``north-opt``           activations             opt
``north-random``        activations             random
``north-weight``        weights                 weight
``north-integrated``    activations in use      random
``gradmax``             gradients               gradmax
``firefly``             gradients               firefly
``nest``                gradients               nest
``need``                need of new neurons     random
``static``              never                   random
======================  ======================  =====================
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from . import initializations, triggers
from .initializations import INITIALIZATIONS, Initialization, as_initialization
from .initializations.base import InitializationFunction
from .layer import Layer, Requirement
from .triggers import Decision, Trigger, as_trigger

T = TypeVar("T")


@dataclass(frozen=True, init=False)
class Strategy:
    """A trigger and an initialization; the initialization may be given by name.

    Example:
        >>> from neurogenesis import Strategy, triggers
        >>> Strategy(triggers.Linear(steps=1000, final=64), "select").initialization
        Select(metric='effective_dimension', candidates=None, eps=0.01, least=False)
    """

    trigger: Trigger
    initialization: Initialization

    def __init__(
        self,
        trigger: Trigger | Callable[[Layer], Decision | int],
        initialization: str | Initialization | InitializationFunction = "random",
    ):
        if isinstance(initialization, str):
            initialization = _look_up(initialization, INITIALIZATIONS, "initialization")()
        elif not callable(initialization):
            raise TypeError(
                f"an initialization is a function or one of {', '.join(INITIALIZATIONS)}, not {initialization!r}"
            )
        object.__setattr__(self, "trigger", as_trigger(trigger))
        object.__setattr__(self, "initialization", as_initialization(initialization))

    @property
    def needs(self) -> frozenset[Requirement]:
        """The measurements that trigger and initialization require."""
        return self.trigger.needs | self.initialization.needs

    @property
    def uses(self) -> frozenset[Requirement]:
        """The measurements that trigger and initialization may use; a plain function may use all of them."""
        return self.trigger.uses | self.initialization.uses


STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "north-select": lambda: Strategy(triggers.Activation(), initializations.Select()),
    "north-pre": lambda: Strategy(triggers.Activation(), initializations.Pre()),
    "north-opt": lambda: Strategy(triggers.Activation(), initializations.Opt()),
    "north-random": lambda: Strategy(triggers.Activation(), initializations.Random()),
    "north-weight": lambda: Strategy(triggers.Weight(), initializations.Weight()),
    "north-integrated": lambda: Strategy(triggers.Integrated(), initializations.Random()),
    "gradmax": lambda: Strategy(triggers.Gradient(), initializations.GradMax()),
    "firefly": lambda: Strategy(triggers.Gradient(), initializations.Firefly()),
    "nest": lambda: Strategy(triggers.Gradient(), initializations.NeST()),
    "need": lambda: Strategy(triggers.Need(), initializations.Twins()),
    "static": lambda: Strategy(triggers.Static(), initializations.Random()),
}


_BUILT_IN = frozenset(STRATEGIES)


def strategy(given: str | Strategy) -> Strategy:
    """Look up a strategy by name; return a `Strategy` unchanged."""
    if isinstance(given, Strategy):
        return given
    if not isinstance(given, str):
        raise TypeError(f"strategy: expected a name or a Strategy, not {given!r}")
    return _look_up(given, STRATEGIES, "strategy")()


def register(name: str, make: Callable[[], Strategy]) -> Callable[[], Strategy]:
    """Register a function that makes a strategy under a name; registering a name again replaces it.

    Example:
        >>> from neurogenesis import Strategy, strategies, triggers
        >>> _ = strategies.register("linear-1000", lambda: Strategy(triggers.Linear(steps=1000)))
    """
    if name in _BUILT_IN:
        raise ValueError(f"{name!r} is a built-in strategy: choose another name")
    STRATEGIES[name] = make
    return make


def _look_up(name: str, known: dict[str, T], what: str) -> T:
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise ValueError(f"unknown {what} {name!r}{hint}: expected one of {', '.join(known)}")
