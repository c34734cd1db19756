"""When widths are looked at: at every step while they grow, and less often the longer they do not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MAX_INTERVAL = 12
"""The most gradient steps between two looks. A look costs about as much as three steps, so that looking adds a quarter
to a step of a dense network; a decision comes at most eleven steps late, less than a tenth of an epoch on MNIST."""


@dataclass
class _LookState:
    next_look: int = 1  # the gradient step of the next look
    quiet: int = 0  # looks in a row that did not lead to growth


class Schedule:
    """The steps at which each width is looked at.

    Args:
        every: look at the first gradient step and then at every so many; None to look less often by itself.
    """

    def __init__(self, every: int | None):
        self.every = every
        self._states: dict[str, _LookState] = {}

    def start(self, names: Iterable[str]) -> None:
        self._states = {name: _LookState() for name in names}

    def due(self, step: int) -> frozenset[str]:
        """The widths to be looked at at a gradient step."""
        if self.every is not None:
            return frozenset(self._states) if (step - 1) % self.every == 0 else frozenset()
        return frozenset(name for name, state in self._states.items() if step >= state.next_look)

    def record_look(self, name: str, step: int, patient: bool, grown: bool) -> None:
        """Set the next look at a width: later the longer it has not grown, if its trigger is patient."""
        state = self._states[name]
        state.quiet = state.quiet + 1 if patient and not grown else 0
        state.next_look = step + min(max(state.quiet, 1), MAX_INTERVAL)

    def state(self, name: str) -> dict[str, int]:
        return {"next_look": self._states[name].next_look, "quiet": self._states[name].quiet}

    def load(self, name: str, next_look: int, quiet: int) -> None:
        self._states[name] = _LookState(next_look, quiet)
