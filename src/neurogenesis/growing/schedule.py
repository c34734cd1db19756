"""The schedule of looks: every step while a width grows, less often the longer it does not grow."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from ..defaults import MAX_INTERVAL


@dataclass
class _LookState:
    next_look: int = 1  # the gradient step of the next look
    quiet: int = 0  # number of consecutive looks without growth
    done: bool = False  # whether no look is needed before that step unless another width grows


class Schedule:
    """The gradient steps of the looks at each width.

    Args:
        every: look at the first step and every `every` steps after it; if None, adapt the interval to growth.
    """

    def __init__(self, every: int | None):
        self.every = every
        self._states: dict[str, _LookState] = {}

    def start(self, names: Iterable[str]) -> None:
        """Look at these widths; those that have been looked at go on as they were."""
        self._states = {name: self._states.get(name) or _LookState() for name in names}

    def due(self, step: int) -> frozenset[str]:
        """Names of the widths to look at after a gradient step."""
        if self.every is not None and (step - 1) % self.every:
            return frozenset()
        return frozenset(
            name
            for name, state in self._states.items()
            if step >= state.next_look or (self.every is not None and not state.done)
        )

    def next_look(self, names: Collection[str]) -> float:
        """The first step at which one of these widths may be due."""
        if self.every is not None:
            return 0
        return min((self._states[name].next_look for name in names), default=math.inf)

    def record_look(
        self, name: str, step: int, patient: bool, grown: bool, wait: float | None = None, early: int = 0
    ) -> None:
        """Set the next look at a width: after `wait` steps if given; else, if its trigger is patient, each look without
        growth delays the next one further.

        If `wait` is infinite, the width is done until another one grows. As what a network needs may change while it
        trains, it is also looked at again when training has gone on for as long again, as if the wait had begun `early`
        steps later.
        """
        state = self._states[name]
        state.quiet = state.quiet + 1 if patient and not grown else 0
        state.done = wait == math.inf
        if wait is None:
            wait = min(max(state.quiet, 1), MAX_INTERVAL)
        state.next_look = 2 * (step + early) if state.done else step + int(wait)

    @property
    def done(self) -> dict[str, int]:
        """The widths that are done, with the step of the next look at each."""
        return {name: state.next_look for name, state in self._states.items() if state.done}

    def reopen(self) -> None:
        """Look again at the widths that are done."""
        for state in self._states.values():
            if state.done:
                state.done, state.next_look = False, 0

    def state(self, name: str) -> dict[str, Any]:
        return asdict(self._states[name])

    def load(self, name: str, saved: Mapping[str, Any]) -> None:
        known = {field.name for field in fields(_LookState)}
        self._states[name] = _LookState(**{key: value for key, value in saved.items() if key in known})
