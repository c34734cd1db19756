"""The schedule of looks at a width: every step while it grows, and less and less often while it does not."""

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


class Schedule:
    """The gradient steps of the looks at each width.

    Args:
        every: look at the first step and every `every` steps after it; if None, adapt the interval to growth.
    """

    def __init__(self, every: int | None):
        self.every = every
        self._states: dict[str, _LookState] = {}

    def start(self, names: Iterable[str]) -> None:
        """Look at these widths; widths that are already known keep their schedule."""
        self._states = {name: self._states.get(name) or _LookState() for name in names}

    def rename(self, names: Mapping[str, str]) -> None:
        """Follow widths that have got other names."""
        self._states = {names.get(name, name): state for name, state in self._states.items()}

    def due(self, step: int) -> frozenset[str]:
        """Names of the widths to look at after a gradient step."""
        if self.every is not None and (step - 1) % self.every:
            return frozenset()
        return frozenset(name for name, state in self._states.items() if step >= state.next_look)

    def next_look(self, names: Collection[str]) -> float:
        """The first step at which one of these widths may be due."""
        if self.every is not None:
            return 0
        return min((self._states[name].next_look for name in names), default=math.inf)

    def record_look(self, name: str, step: int, patient: bool, grown: bool, wait: int | None = None) -> None:
        """Set the next look at a width, `wait` steps later if given.

        Without `wait` and a fixed interval, the interval of a patient trigger grows with each look without growth.
        """
        state = self._states[name]
        state.quiet = state.quiet + 1 if patient and not grown else 0
        if wait is None:
            wait = min(max(state.quiet, 1), MAX_INTERVAL) if self.every is None else 1
        state.next_look = step + wait

    def waiting(self, step: int) -> dict[str, int]:
        """The step of the next look, by width, for widths whose next look is far away."""
        looks = {name: state.next_look for name, state in self._states.items()}
        return {name: look for name, look in looks.items() if look > step + MAX_INTERVAL}

    def state(self, name: str) -> dict[str, Any]:
        return asdict(self._states[name])

    def load(self, name: str, saved: Mapping[str, Any]) -> None:
        known = {field.name for field in fields(_LookState)}
        self._states[name] = _LookState(**{key: value for key, value in saved.items() if key in known})
