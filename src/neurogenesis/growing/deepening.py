"""Blocks that are added while a model trains: at given steps, or when they are needed."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Literal, get_args

import torch
from torch import nn

from ..depth.deepening import plan_deepening
from ..depth.finding import known_stacks, stacks
from ..depth.planning import How
from ..depth.stacks import Stack
from ..history import Event, History, Observation
from ..notices import Notices
from ..passes.records import NotFinite
from ..structure.examples import Example
from ..structure.finding import last_widths
from ..structure.widths import Widths
from .asking import Answer, Question
from .recording import Recorder
from .schedule import Schedule
from .settings import Settings
from .trained import TrainedModel
from .watching import Watching

When = Literal["scheduled", "needed"]


@dataclass(frozen=True)
class Deepening:
    """Add blocks to a stack of a model while it trains, for a `Grower`.

    Until then, the model trains at the cost of a shallow one. New blocks take their time to learn, so the learning rate
    should not have decayed by then.

    Args:
        blocks: the final number of blocks; or that after each of several times, in order. The largest number, if blocks
            are added when they are needed.
        at: when: gradient steps, or with `steps`, parts of training such as 0.5, which is the default. At several times
            with one final number, about as many blocks are added each time. If blocks are added when they are needed,
            the time from which on they are asked for, by default from the first step.
        steps: total number of gradient steps in training.
        stack: the stack, as in `neurogenesis.stacks`; it need not be named if only one can deepen.
        how: "zero", "copy" or "random", as in `neurogenesis.deepen`.
        parameters: in place of `blocks`, the largest number of parameters of the model.
        when: "scheduled"; or "needed": one block at a time, where the last projections of a would-be block would get a
            lasting gradient, which those of its neighbour cannot express; see `neurogenesis.growing.asking`.

    Example:
        >>> import torch, neurogenesis as ng
        >>> layers = [each for _ in range(2) for each in (torch.nn.Linear(8, 8), torch.nn.ReLU())]
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), *layers, torch.nn.Linear(8, 2))
        >>> optimizer = torch.optim.Adam(model.parameters())
        >>> grower = ng.Grower(model, optimizer, "static", depth=ng.Deepening(4, at=0.5, steps=6))
        >>> for _ in range(6):
        ...     model(torch.randn(64, 4)).square().mean().backward()
        ...     optimizer.step()
        ...     events = grower.step()
        >>> print(grower.history)
        step 3: blocks of 2 2 -> 4
    """

    blocks: int | Sequence[int] | None = None
    at: float | Sequence[float] | None = None
    steps: int | None = None
    stack: str | None = None
    how: How = "zero"
    parameters: int | None = None
    when: When = "scheduled"

    def __post_init__(self) -> None:
        if self.when not in get_args(When):
            raise ValueError(f"when: expected one of {', '.join(map(repr, get_args(When)))}, not {self.when!r}")
        if (self.blocks is None) == (self.parameters is None):
            raise ValueError("pass the final number of blocks, or of parameters: Deepening(6, at=1000)")
        times = list(self._times())
        if times != sorted(set(times)) or not (times or self.when == "needed"):
            raise ValueError(f"at: expected increasing times, not {self.at!r}")
        counts = [] if self.blocks is None else [self.blocks] if isinstance(self.blocks, int) else list(self.blocks)
        if counts != sorted(counts) or any(each < 1 for each in counts):
            raise ValueError(f"blocks: expected increasing numbers, not {self.blocks!r}")
        if self.when == "needed" and (len(counts) > 1 or len(times) > 1 or self.how != "zero"):
            raise ValueError(
                "when blocks are added as they are needed, pass their largest number, the time from which on they are "
                "asked for, and how='zero', as the would-be blocks are: Deepening(6, when='needed')"
            )
        if len(counts) > 1 and len(counts) != len(times):
            raise ValueError(f"{len(counts)} numbers of blocks for {len(times)} times: pass one for each, or the last")

    def _times(self) -> Iterator[int]:
        at: float | Sequence[float] = ([] if self.when == "needed" else 0.5) if self.at is None else self.at
        for each in [at] if isinstance(at, (int, float)) else at:
            if isinstance(each, int) and each > 0:
                yield each
            elif isinstance(each, float) and 0 < each < 1 and self.steps is not None:
                yield max(1, round(each * self.steps))
            else:
                remedy = (
                    "pass steps=, the number of gradient steps in training" if self.steps is None else "from 0 to 1"
                )
                raise ValueError(f"at: expected gradient steps or parts of training, not {each!r}: {remedy}")

    @property
    def first(self) -> int:
        """The first step of the first time."""
        return next(self._times(), 1)

    def hops(self, initial: int, final: int) -> dict[int, int]:
        """The number of blocks from each step on.

        Example:
            >>> Deepening(6, at=[100, 200]).hops(3, 6)
            {100: 4, 200: 6}
        """
        times = list(self._times())
        if isinstance(self.blocks, Sequence) and len(self.blocks) > 1:
            return dict(zip(times, self.blocks, strict=True))
        return {step: initial + (final - initial) * number // len(times) for number, step in enumerate(times, 1)}


class Deepener:
    """Adds blocks when it is time.

    Args:
        trained: the model.
        settings: the settings of the grower.
        schedule: when, and to how many blocks; None if no blocks are added.
        recorder: knows the training passes.
        generator: source of random weights.
        notices: warnings.
    """

    def __init__(
        self,
        trained: TrainedModel,
        settings: Settings,
        schedule: Deepening | None,
        recorder: Recorder,
        generator: torch.Generator,
        notices: Notices,
    ):
        self.model, self._trained, self._settings = trained.model, trained, settings
        self.schedule, self._generator, self._notices = schedule, generator, notices
        self._question: Question | None = None
        if schedule is not None and schedule.when == "needed":
            self._question = Question(self.model, recorder, schedule.first, generator.initial_seed())
        self.stack: str | None = None
        self._parent = ""
        self.initial = 0  # number of blocks at first
        self._final = 0  # largest number of blocks
        self._found: Answer | None = None  # at this step
        self._hops: dict[int, int] = {}
        self._before: dict[nn.Module, str] = {}  # paths of modules before the latest blocks were added

    def begin(self, examples: Sequence[Example]) -> None:
        """Find the stack in the model, unless it is known."""
        if self.schedule is None or self.stack is not None:
            return
        with torch.no_grad():
            found = stacks(self.model, list(examples))
        stack = _chosen(list(found), self.schedule)
        self.stack, self._parent, self.initial = stack.name, stack.run.parent, stack.blocks
        self._final = self._final_of(self.schedule, stack)
        self._hops = {} if self._question is not None else self.schedule.hops(self.initial, self._final)
        self._ask(stack)

    def _ask(self, stack: Stack) -> None:
        """Ask about would-be blocks of a stack that may get more blocks."""
        if self._question is None:
            return
        if stack.blocks >= self._final:
            return self._question.stop()
        try:
            self._question.ask_about(stack)
        except ValueError as error:
            raise ValueError(f"depth: {stack.name} cannot be asked whether it needs more blocks: {error}") from error

    def _final_of(self, schedule: Deepening, stack: Stack) -> int:
        final = schedule.blocks
        if final is None:
            assert schedule.parameters is not None
            final = stack.blocks + max(0, self._affordable(stack, schedule.parameters))
        final = final if isinstance(final, int) else final[-1]
        if final < stack.blocks:
            raise ValueError(f"{stack.name} has {self.initial} blocks already, and is to have {final}")
        return final

    def _affordable(self, stack: Stack, limit: int) -> int:
        return (limit - sum(own.numel() for own in self.model.parameters())) // max(1, max(stack.parameters))

    def _allowed(self, stack: Stack) -> tuple[float, str]:
        """The number of blocks that the budget allows to add, and the limit that allows no more."""
        budget, known = self._settings.budget, last_widths(self.model)
        found: list[tuple[float, str]] = [(inf, "")]
        if budget.max_parameters is not None:
            allowed = self._affordable(stack, budget.max_parameters)
            found.append((max(0, allowed), f"max_parameters={budget.max_parameters}"))
        if budget.max_flops is not None and known is not None:
            of_path = known.structure.flops_with
            dearest = max(
                sum(of_path(inside=path) for path in stack.run.paths(number)) for number in range(stack.blocks)
            )
            allowed = (budget.max_flops - of_path()) // max(1, dearest)
            found.append((max(0, allowed), f"max_flops={budget.max_flops}"))
        return min(found)

    def next_step(self, step: int) -> float:
        """The next step, after this one, at which there is something to do."""
        looks = [] if self._question is None or not self._question.asking else [self._question.next_look]
        return min(
            [*(each for each in self._hops if each > step), *(max(each, step + 1) for each in looks)], default=inf
        )

    def prepare(self, step: int) -> bool:
        """Prepare for the passes of a step; returns whether they are looked at."""
        return self._question is not None and self._question.prepare(step)

    def ask(self, step: int) -> None:
        """Look at would-be blocks after a gradient step, before widths grow."""
        try:
            self._found = None if self._question is None else self._question.look(step)
        except NotFinite as error:
            self._notices.warn(f"{error} are not finite: would-be blocks are not asked at such steps")

    def remove(self) -> None:
        """Remove all hooks."""
        if self._question is not None:
            self._question.stop()

    def deepen(self, step: int, history: History) -> list[Event]:
        """Add the blocks that are due or needed at a step; returns the event, if there is one."""
        if self.schedule is None or self.stack is None:
            return []
        answer, self._found = self._found, None
        if answer is None and step not in self._hops:
            return []
        stack = self._present()
        if stack is None:
            self._notices.warn(f"{self.stack} does not deepen: its blocks are not alike any more")
            return []
        if answer is not None:
            count = int(answer.needed)
            seen = Observation(step, f"blocks of {stack.name}", stack.blocks, answer.ratio, answer.threshold, count)
            history.observe(seen)
        else:
            count = self._hops[step] - max([self.initial, *(n for each, n in self._hops.items() if each < step)])
        return self._add(step, stack, count, answer)

    def _add(self, step: int, stack: Stack, count: int, answer: Answer | None) -> list[Event]:
        """Add as many of some blocks as the budget allows."""
        assert self.schedule is not None
        started = time.perf_counter()
        allowed, limit = self._allowed(stack)
        if count > allowed:
            self._notices.warn(
                f"{stack.name} gets {allowed:g} blocks, not {count}: {limit} allows no more",
                key=f"{stack.name} limit",
            )
            count = int(allowed)
        if allowed < 1 and self._question is not None:
            self._question.stop()
        if count < 1:
            return []
        self._before = {module: path for path, module in self.model.named_modules()}
        places = None if answer is None else [answer.block] * count
        plan = plan_deepening(self.model, stack, count, how=self.schedule.how, at=places, generator=self._generator)
        with self._trained.surgery() as surgery:
            surgery.apply(plan)
        metric, threshold = (None, None) if answer is None else (answer.ratio, answer.threshold)
        seconds = time.perf_counter() - started
        return [Event(step, stack.name, plan.before, plan.after, metric, threshold, seconds, "blocks")]

    def follow(self, watching: Watching, schedule: Schedule, history: History) -> Widths:
        """Find the widths after blocks were added; what is known of those with other paths goes by their new names."""
        known = [*(layer.name for layer in watching.layers), *history.latest]
        names = moved_names(self._before, self.model, known)
        history.rename(names)
        schedule.rename(names)
        found = watching.find_again(names)
        if self._question is not None and (stack := self._present()) is not None:
            self._ask(stack)
        return found

    def _present(self) -> Stack | None:
        """The stack as it is now; the largest in its place, if blocks have become different as widths grew."""
        found = known_stacks(self.model, None)
        if self.stack in found:
            return found[str(self.stack)]
        return max((each for each in found if each.run.parent == self._parent), key=lambda e: e.blocks, default=None)

    def row(self, step: int) -> tuple[str, int, str] | None:
        """The stack, its number of blocks, and what comes next, for a table; None if no blocks are added."""
        if self.schedule is None:
            return None
        if self.stack is None:
            return self.schedule.stack or "blocks", 0, "before the first batch"
        stack = self._present()
        coming = self.next_step(step)
        if coming == inf:
            text = "at its final depth"
        elif self._question is None:
            text = f"{self._hops[int(coming)]} blocks from step {coming}"
        else:
            text = f"at most {self._final} blocks, next look at step {coming}"
        return self.stack, 0 if stack is None else stack.blocks, text

    def state(self) -> dict[str, Any] | None:
        """What is needed to go on; None if no blocks are added."""
        if self.schedule is None:
            return None
        return {
            "stack": self.stack,
            "parent": self._parent,
            "initial": self.initial,
            "hops": dict(self._hops),
            "final": self._final,
            "question": None if self._question is None else self._question.state(),
        }

    def load(self, state: Mapping[str, Any] | None) -> None:
        """Go on from a state, if there is one."""
        if self.schedule is None or state is None:
            return
        self.stack, self._parent, self.initial = state["stack"], state["parent"], state["initial"]
        self._hops = dict(state["hops"])
        if self._question is not None and state.get("question") is not None:
            self._final = state["final"]
            stack = None if self.stack is None else self._present()
            if stack is not None:
                self._ask(stack)
            self._question.load(state["question"])


def _chosen(found: Sequence[Stack], schedule: Deepening) -> Stack:
    able = [stack for stack in found if stack.growable or (schedule.how != "zero" and stack.unsuitable is None)]
    if schedule.stack is not None:
        named = [stack for stack in found if schedule.stack in (stack.name, stack.run.parent)]
        if len(named) != 1:
            listed = ", ".join(repr(stack.name) for stack in found) or "none"
            raise ValueError(f"depth: {len(named)} stacks are called {schedule.stack!r}; stacks: {listed}")
        if named[0] not in able:
            raise ValueError(f"depth: {schedule.stack} cannot deepen: {named[0].reason}")
        return named[0]
    if len(able) != 1:
        reasons = "; ".join(f"{stack.name}: {stack.reason or 'can deepen'}" for stack in found) or "it has no stacks"
        which = "no stack can deepen" if not able else "several stacks can deepen: name one, as Deepening(stack=...)"
        raise ValueError(f"depth: {which} ({reasons})")
    return able[0]


def moved_names(before: Mapping[nn.Module, str], model: nn.Module, names: Sequence[str]) -> dict[str, str]:
    """The present names of widths whose layers have got other paths.

    Args:
        before: the earlier path of each module.
        model: the model.
        names: names of widths before.
    """
    after = {module: path for path, module in model.named_modules()}
    paths = {path: after[module] for module, path in before.items() if module in after}
    result = {}
    for name in names:
        match = re.fullmatch(r"(input of )?(.*?)(#\d+)?", name)
        assert match is not None
        start, path, end = match.groups(default="")
        result[name] = f"{start}{paths.get(path, path)}{end}"
    return result
