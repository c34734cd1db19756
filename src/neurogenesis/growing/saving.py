"""The state of growth, as plain values and tensors that are saved and loaded beside the model."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..depth.loading import match_depth
from ..history import History
from ..passes.replay import ModelCall
from ..strategies import Strategy
from ..structure.modes import ordinary_tensors
from ..structure.origins import Origins, origins_of
from ..structure.saved_sizes import SavedSizes
from ..surgery.resizing import resize_to_saved
from .deepening import Deepener
from .looking import Looks
from .recording import Recorder
from .schedule import Schedule
from .settings import Settings
from .trained import TrainedModel
from .watching import Watching

# The strategy 'need' in states of earlier versions, and the one that goes on with them.
_NEED_BEFORE = (
    r"window=(?:20|48), (?:ratio=[^,]*, )?(candidates=\d+\), initialization=)(?:Random\(\)|Small\(part=0.5\))",
    r"window=48, \1Random()",
)
# Its new neurons had no fan-out then.
_NEED_WITHOUT_TWINS = r"(Need\(.*\), initialization=)Random\(\)", r"\1Twins()"
# Firefly, whose splits had equal fan-outs, and GradMax, whose neurons had no fan-in.
_BASELINES_BEFORE = (
    (r"(Firefly\(noise=[^,]*, candidates=\w*)\)", r"\1, apart=1.0)"),
    (r"GradMax\(\)", "GradMax(pairs=True)"),
)


@dataclass(frozen=True)
class Growth:
    """What is saved of growth: each of these objects saves and loads its own part of the state.

    Args:
        begin: finds and watches the widths in calls of the model, unless they are known.
        watch_called: watches the widths with layers that have been called for the first time.
    """

    trained: TrainedModel
    settings: Settings
    recorder: Recorder
    watching: Watching
    schedule: Schedule
    looks: Looks
    deepener: Deepener
    generator: torch.Generator
    history: History
    begin: Callable[[Sequence[ModelCall]], None]
    watch_called: Callable[[], object]

    def state(self) -> dict[str, Any]:
        """The state of all of them."""
        watching = self.watching.state()
        for name, layer in watching["layers"].items():
            layer.update(self.schedule.state(name))
        return {
            "strategy": repr(self.settings.strategy),
            "training_flops": self.recorder.compute.total(self.watching.structure),
            "depth": self.deepener.state(),
            "stacks": [each.state() for each in origins_of(self.trained.model)],
            **watching,
            **self.looks.state(),
            "generator": self.generator.get_state(),
            **self.recorder.buffer.state(),
            "history": self.history.state_dict(),
            "samples": self.recorder.samples.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; the model gets its blocks and sizes, if they are in it."""
        with self.trained.surgery() as surgery:
            match_depth(surgery, (), [Origins.from_state(each) for each in state.get("stacks", ())])
            self.check(state)
        if state["example"] is None and self.watching.watched is not None:
            self._start_again()
        with self.trained.surgery() as surgery:
            resize_to_saved(surgery, {}, SavedSizes(state.get("sizes", {})), known=self.watching.widths)
        self.watching.load(state)
        for layer in self.watching.layers:
            self.schedule.load(layer.name, state["layers"].get(layer.name, {}))
        self.looks.load(state)
        self.deepener.load(state.get("depth"))
        self.generator.set_state(state["generator"].cpu())  # map_location may have moved it
        self.recorder.buffer.load(state)
        self.recorder.compute.load(state.get("training_flops", 0))
        self.history.load_state_dict(state["history"])
        if "samples" in state:
            self.recorder.samples.load(state["samples"])

    def check(self, state: Mapping[str, Any]) -> None:
        """Raise ValueError unless a state can be loaded; finds the widths first if they are not known."""
        self.watch_called()
        check_strategy(state["strategy"], self.settings.strategy)
        known = self.watching.widths
        if known is not None and known.structure.outdated is not None:  # blocks were added or removed by hand
            self._start_again()
        if state["example"] is None:
            return  # it was saved before the first training pass
        with ordinary_tensors():
            examples = [state["example"], *state.get("further examples", ())]
            self.begin([ModelCall.from_parts(*each) for each in examples])
        self.watching.check_state(state)

    def _start_again(self) -> None:
        """Wait for the first training pass, as a new grower does."""
        self.watching.start_again()
        self.looks.untrained = None
        self.schedule.start(())
        self.recorder.start_again()


def check_strategy(saved: str, strategy: Strategy) -> None:
    """Raise ValueError if a state is of another strategy."""
    known = re.sub(*_NEED_BEFORE, saved)
    for pattern, replacement in _BASELINES_BEFORE:
        known = re.sub(pattern, replacement, known)
    if repr(strategy) not in (known, re.sub(*_NEED_WITHOUT_TWINS, known)):
        raise ValueError(f"the state is of another strategy: {saved}, not {strategy!r}")
