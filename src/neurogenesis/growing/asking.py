r"""Whether a stack needs more blocks: would the last projections of a would-be block get a lasting gradient?

The question is that of `neurogenesis.triggers.Need`, with the features of a would-be block in place of would-be
neurons: behind up to four blocks stands a copy of each whose last projections are zero (see
`neurogenesis.candidates.blocks`). Which gradient would these get, without the part that the last projections of the
block itself can express with the same features one block earlier? And would other samples give the same? Windows, folds
of samples, the ratio of signal to noise and the threshold are the same (see `neurogenesis.candidates.windows`), as is
the time: blocks are asked after 10, 20, 40, 80, ... gradient steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn

from ..candidates.blocks import Arguments, Trial, WouldBe, would_be_block
from ..candidates.looks import Pass
from ..candidates.steps import Look, windows_after
from ..candidates.windows import Statistics, Window
from ..depth.deepening import spread
from ..depth.stacks import Stack
from ..passes.blocks import BlockTaps
from ..triggers import needed_ratio, planned_looks
from .recording import Recorder

BLOCKS = 4  # of a stack behind which would-be ones are asked, evenly spread: each takes the time of two runs of a block
FEATURES = 64  # of a projection that are asked about: few say as much as all


class Answer(NamedTuple):
    """The block behind which a copy of it would learn most, its ratio of signal to noise, and the threshold."""

    block: int
    ratio: float
    threshold: float

    @property
    def needed(self) -> bool:
        return self.ratio > self.threshold


class Question:
    """Asks about would-be blocks behind each block of a stack.

    Args:
        model: the model.
        recorder: knows the passes, their samples and the other processes.
        first: the first step that counts.
        seed: seed of random numbers in would-be blocks, such as those of dropout.
    """

    def __init__(self, model: nn.Module, recorder: Recorder, first: int, seed: int):
        self.model, self._recorder, self._first, self._seed = model, recorder, first, seed
        self.next_look = first  # the gradient step of the next look
        self.latest: Answer | None = None
        self._windows: dict[int, Window] = {}
        self._planned: tuple[int, int] | None = None  # looks of the present window, and the interval between them
        self._most = 0.0  # the largest ratio of a whole gradient so far
        self._stack: Stack | None = None
        self._would_be: dict[int, WouldBe] = {}  # by the number of the block
        self._taps = BlockTaps(model, self._trial, lambda: recorder.call)
        recorder.counts_samples = True

    def ask_about(self, stack: Stack) -> None:
        """Ask about the blocks of a stack, in place of others."""
        self._windows.clear()
        self._stack = stack
        self._would_be = self._would_be_blocks(stack)
        self._taps.watch({number: (own.modules[0], own.modules[-1]) for number, own in self._would_be.items()})

    def _would_be_blocks(self, stack: Stack) -> dict[int, WouldBe]:
        numbers = spread(min(stack.blocks, BLOCKS), stack.blocks)
        return {number: would_be_block(self.model, stack, number, self._seed) for number in numbers}

    @property
    def asking(self) -> bool:
        """Whether there are would-be blocks to ask about."""
        return bool(self._would_be)

    def prepare(self, step: int) -> bool:
        """Forget what was seen, and record the passes of a step if it is looked at; returns whether it is."""
        due = bool(self._would_be) and step >= self.next_look
        if due and self._stack is not None and any(each.changed for each in self._would_be.values()):
            self._would_be = self._would_be_blocks(self._stack)  # widths have grown
        self._taps.want(due)
        return due

    def stop(self) -> None:
        """Ask no more."""
        self._would_be, self._stack = {}, None
        self._taps.want(False)

    def _trial(self, number: int, arguments: Arguments, output: Tensor) -> Trial:
        return self._would_be[number].trial(self.model, arguments, output)

    def look(self, step: int) -> Answer | None:
        """Look at the passes since the last step; returns an answer when a window ends."""
        if not self._would_be or step < self.next_look:
            return None
        if any(each.changed for each in self._would_be.values()):  # widths have grown at this step
            self._windows.clear()
            self.next_look = step + 1
            return None
        passes = self._passes()
        before = {number: self._window(number) for number in self._would_be}
        looks = [
            Look(
                f"a would-be block behind block {number}",
                window,
                [each.place for each in self._would_be[number].projections],
                partial(passes.__getitem__, number),
                _inputs_known,
                self._is_last,
            )
            for number, window in before.items()
        ]
        after = dict(zip(before, windows_after(looks, self._recorder.processes), strict=True))
        self._windows = after
        found = {
            number: window.statistics(self._recorder.samples.number(), self._recorder.processes)
            for number, window in after.items()
            if window.steps != before[number].steps and window.steps >= self._looks_in(window)[0]
        }
        if not found:
            seen = [window for window in after.values() if window.looks]
            self.next_look = step + (self._looks_in(seen[0])[1] if seen and not seen[0].behind else 1)
            return None
        return self._answer(step, {number: each for number, each in found.items() if each is not None})

    def _passes(self) -> dict[int, list[list[Pass]]]:
        """The passes since the last step, by block and projection."""
        result: dict[int, list[list[Pass]]] = {
            number: [[] for _ in each.projections] for number, each in self._would_be.items()
        }
        for seen in self._taps.seen:
            samples = None if seen.call is None else self._recorder.samples.of(seen.call)
            would_be = self._would_be[seen.block]
            found = seen.made.passes(would_be.projections, seen.gradient, samples, FEATURES)
            for own, new in zip(result[seen.block], found, strict=True):
                own += new
        return result

    def _window(self, number: int) -> Window:
        """The window of a would-be block; a new one if there is none or its projections have been resized."""
        shapes = []
        would_be = self._would_be[number]
        for each in would_be.projections:
            shape = would_be.modules[each.module].get_parameter(each.name).shape
            shapes.append((shape, shape))
        window = self._windows.get(number)
        return window if window is not None and window.shapes == tuple(shapes) else Window.new((), None, shapes)

    def _looks_in(self, window: Window) -> tuple[int, int]:
        return self._planned or planned_looks(max(1, window.looks), max(1, window.items), 0, float("inf"))

    def _is_last(self, window: Window) -> bool:
        return window.looks >= self._looks_in(window)[0]

    def _answer(self, step: int, found: Mapping[int, Statistics]) -> Answer | None:
        """Decide by what a window shows, and plan the next one, which ends when training has gone on as long again."""
        ended = next(iter(self._windows.values()))
        self._most = max([self._most, *(each.whole for each in found.values())])
        passed = step - self._first + 1
        looks, interval = self._planned = planned_looks(
            ended.looks, ended.items, passed, self._recorder.samples.number()
        )
        self.next_look = step + max(1, passed - (looks - 1) * interval)
        self._windows.clear()
        answers = [Answer(number, each.ratio, needed_ratio(each, passed, self._most)) for number, each in found.items()]
        self.latest = max(answers, key=lambda each: each.ratio / each.threshold, default=None)
        return self.latest

    def state(self) -> dict[str, Any]:
        """What is needed to go on."""
        return {
            "next look": self.next_look,
            "windows": {number: window.state() for number, window in self._windows.items()},
            "planned": self._planned,
            "most": self._most,
            "latest": None if self.latest is None else tuple(self.latest),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self.next_look, self._most = state["next look"], state["most"]
        self._windows = {number: Window.from_state(window) for number, window in state["windows"].items()}
        self._planned = None if state["planned"] is None else tuple(state["planned"])
        self.latest = None if state["latest"] is None else Answer(*state["latest"])


def _inputs_known(consumer: int, inputs: Tensor) -> Tensor:
    """Never called: passes of would-be blocks have the inputs of their projections already."""
    raise AssertionError("a pass of a would-be block lacks the inputs of its projections")
