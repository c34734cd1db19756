"""The history of growth: events and observations as plain records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal


@dataclass(frozen=True)
class Event:
    """The growth of a width at a gradient step: its sizes before and after, and the metric and threshold behind it.

    If `after` is smaller than `before`, dead neurons were dropped. If blocks were added, `width` is the name of their
    stack as it was then, and the sizes are its numbers of blocks.
    """

    step: int
    width: str
    before: int
    after: int
    metric: float | None
    threshold: float | None
    seconds: float  # time of initialization and surgery
    what: Literal["neurons", "blocks"] = "neurons"

    def __str__(self) -> str:
        why = "" if self.metric is None else f" ({self.metric:.4g} against {self.threshold:.4g})"
        what = f"blocks of {self.width}" if self.what == "blocks" else self.width
        return f"step {self.step}: {what} {self.before} -> {self.after}{why}"


@dataclass(frozen=True)
class Observation:
    """A look of a trigger at a width: the step, size, metric and threshold, and how many neurons it asked for."""

    step: int
    width: str
    size: int
    metric: float | None
    threshold: float | None
    count: int


class History:
    """Growth events in order, and observations of triggers.

    Iterating yields the events. An observation is kept only if it differs from the previous one of the same width.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.observations: list[Observation] = []
        self._last: dict[str, Observation] = {}

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)

    def __str__(self) -> str:
        return "\n".join(map(str, self.events)) or "no growth yet"

    def of(self, width: str) -> list[Event]:
        """Events of one width."""
        return [event for event in self.events if event.width == width]

    def observe(self, seen: Observation) -> None:
        """Record an observation if it differs from the previous one of the same width."""
        last = self._last.get(seen.width)
        self._last[seen.width] = seen
        if last is None or (last.size, last.metric, last.threshold, last.count) != (
            seen.size, seen.metric, seen.threshold, seen.count
        ):  # fmt: skip
            self.observations.append(seen)

    @property
    def latest(self) -> dict[str, Observation]:
        """Latest observation of each width."""
        return dict(self._last)

    def rename(self, names: Mapping[str, str]) -> None:
        """Follow widths that have got other names, so that their next observations are compared with their last."""
        moved = {names.get(name, name): replace(seen, width=names.get(name, name)) for name, seen in self._last.items()}
        self._last = moved

    def state_dict(self) -> dict[str, Any]:
        return {
            "events": [asdict(event) for event in self.events],
            "observations": [asdict(seen) for seen in self.observations],
            "latest": [asdict(seen) for seen in self._last.values()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.events = [Event(**event) for event in state["events"]]
        self.observations = [Observation(**seen) for seen in state["observations"]]
        self._last = {seen["width"]: Observation(**seen) for seen in state["latest"]}
