"""The state of growth, as plain values and tensors that are saved and loaded beside the model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..history import History
from ..passes.buffers import Buffer
from ..passes.samples import Samples
from ..strategies import Strategy
from .looking import Looks
from .schedule import Schedule
from .watching import Watching

# The strategy 'need' in states of earlier versions, and the one that goes on with them.
_NEED_BEFORE = (
    r"window=(?:20|48), (?:ratio=[^,]*, )?(candidates=\d+\), initialization=)(?:Random\(\)|Small\(part=0.5\))",
    r"window=48, \1Random()",
)
# Its new neurons had no fan-out then.
_NEED_WITHOUT_TWINS = r"(Need\(.*\), initialization=)Random\(\)", r"\1Twins()"


@dataclass(frozen=True)
class Growth:
    """What is saved of growth: each of these objects saves and loads its own part of the state."""

    watching: Watching
    schedule: Schedule
    looks: Looks
    generator: torch.Generator
    buffer: Buffer
    history: History
    samples: Samples

    def state(self) -> dict[str, Any]:
        """The state of all of them."""
        watching = self.watching.state()
        for name, layer in watching["layers"].items():
            layer.update(self.schedule.state(name))
        return {
            **watching,
            **self.looks.state(),
            "generator": self.generator.get_state(),
            **self.buffer.state(),
            "history": self.history.state_dict(),
            "samples": self.samples.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, in a model that has its sizes."""
        self.watching.load(state)
        for layer in self.watching.layers:
            self.schedule.load(layer.name, state["layers"].get(layer.name, {}))
        self.looks.load(state)
        self.generator.set_state(state["generator"].cpu())  # map_location may have moved it
        self.buffer.load(state)
        self.history.load_state_dict(state["history"])
        if "samples" in state:
            self.samples.load(state["samples"])


def check_strategy(saved: str, strategy: Strategy) -> None:
    """Raise ValueError if a state is of another strategy."""
    known = re.sub(*_NEED_BEFORE, saved)
    if repr(strategy) not in (known, re.sub(*_NEED_WITHOUT_TWINS, known)):
        raise ValueError(f"the state is of another strategy: {saved}, not {strategy!r}")
