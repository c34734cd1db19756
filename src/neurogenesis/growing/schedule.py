"""The schedule of looks: every step while a width grows, less often the longer it does not grow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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
        self._states = {name: _LookState() for name in names}

    def due(self, step: int) -> frozenset[str]:
        """Names of the widths to look at after a gradient step."""
        if self.every is not None:
            return frozenset(self._states) if (step - 1) % self.every == 0 else frozenset()
        return frozenset(name for name, state in self._states.items() if step >= state.next_look)

    def record_look(self, name: str, step: int, patient: bool, grown: bool) -> None:
        """Set the next look at a width; if its trigger is patient, each look without growth delays it further."""
        state = self._states[name]
        state.quiet = state.quiet + 1 if patient and not grown else 0
        state.next_look = step + min(max(state.quiet, 1), MAX_INTERVAL)

    def state(self, name: str) -> dict[str, int]:
        return {"next_look": self._states[name].next_look, "quiet": self._states[name].quiet}

    def load(self, name: str, next_look: int, quiet: int) -> None:
        self._states[name] = _LookState(next_look, quiet)
