"""A look: what was recorded is checked, processes agree on it, the trigger decides, and layers grow."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..candidates.losses import loss_with
from ..history import Event, History, Observation
from ..layer import Layer
from ..notices import Notices
from ..passes.buffers import Buffer
from ..passes.context import StepContext
from ..passes.measurements import Measurement
from ..passes.processes import Processes
from ..passes.records import NotFinite
from ..passes.untrained import Untrained
from ..strategies import Strategy
from ..structure.fills import FanIn
from ..structure.reasons import Kind
from ..structure.running import internal_run
from ..surgery.plan import Plan
from .growth import Request, add_neurons, drop_dead_neurons, events_of, new_neurons, request
from .recording import Recorder
from .schedule import Schedule
from .settings import Settings
from .trained import TrainedModel
from .watching import Watched, Watching


class Looks:
    """Looks at layers after gradient steps, and grows them.

    Args:
        trained: the model.
        settings: the settings of the grower.
        recorder: what was recorded of the passes since the last step.
        watching: the widths that are watched.
        schedule: the steps of the looks.
        history: gets what is seen and done.
        generator: source of all random numbers of growth.
        notices: warnings.
    """

    def __init__(
        self,
        trained: TrainedModel,
        settings: Settings,
        recorder: Recorder,
        watching: Watching,
        schedule: Schedule,
        history: History,
        generator: torch.Generator,
        notices: Notices,
    ):
        self.model, self._trained, self._settings, self._recorder = trained.model, trained, settings, recorder
        self._watching, self._schedule, self._history = watching, schedule, history
        self._generator, self._notices = generator, notices
        self.untrained: Untrained | None = None  # kept until every layer has been measured in it
        self._sample_notices = SampleNotices()

    @property
    def _strategy(self) -> Strategy:
        return self._settings.strategy

    def begin(self) -> None:
        """Keep the untrained model, if the trigger compares with it."""
        if "activations" in self._strategy.trigger.needs and self._watching.layers:
            self.untrained = self._watching.untrained()

    def meet(self) -> None:
        """Wait for the other processes, which must be at the same step."""
        self._recorder.processes.meet(
            "grower.step() was called in process {here}, but not in process {others}: call it after every gradient "
            "step in every process",
            seconds=10,
        )

    def join(self, processes: Processes) -> None:
        """Take the untrained model of the first process: if it was kept before wrapping, they need not be equal."""
        if self.untrained is not None:
            self.untrained = self.untrained.of_first(processes)

    def look(self, step: int, due: Sequence[Layer], closure: Callable[[], Any] | None) -> list[Event]:
        """Ask the trigger about the layers that are due, and grow those that need it."""
        watched = self._watching.watched
        assert watched is not None
        if problem := watched.widths.differs_from(self.model):
            raise ValueError(f"{problem}: call grower.detach() and make a new Grower for the changed model")
        self._check_records(due)
        measurement = shared_inputs(
            due,
            self._recorder.buffer,
            self._recorder.processes,
            kept=self._settings.keep_inputs,
            needed="activations" in self._strategy.uses,
        )
        if measurement is None:
            self._notices.warn(
                "the model's inputs were modified in place before grower.step(): no growth at such steps"
            )
            return []
        check_closure(self._strategy, due, closure)
        with ExitStack() as stack:
            stack.enter_context(internal_run(self.model))
            for layer in due:
                now = self._context(layer, step, measurement, closure, watched.allowed)
                stack.enter_context(layer.during(now))
            return self._decide_and_grow(step, watched, due)

    def keep(self, step: int, due: Sequence[Layer]) -> bool:
        """Keep the passes of a step at which the trigger decides nothing; False if it must be asked."""
        if self._recorder.processes.count > 1 or self._recorder.taps.without_gradients:
            return False
        with internal_run(self.model):
            decisions = self._strategy.trigger.keeps(due, self._recorder.samples)
        for layer, own in zip(due, decisions or (), strict=decisions is not None):
            self._history.observe(Observation(step, layer.name, layer.size, own.metric, own.threshold, own.count))
            self._schedule.record_look(layer.name, step, self._strategy.trigger.patient, False, own.wait)
        return decisions is not None

    def _check_records(self, due: Sequence[Layer]) -> None:
        if clear_stale(due):
            self._notices.warn(
                "inputs were modified in place or widths resized between the backward pass and grower.step(): "
                "gradients of such steps are not used"
            )
        if names := self._recorder.taps.without_gradients:
            self._notices.warn(
                f"{', '.join(names)} ran without gradients in the forward pass, and not again on the same inputs in "
                "the backward pass, so the gradients there are not known: if this is activation checkpointing, pass "
                "use_reentrant=False; if it is torch.no_grad(), leave these widths out with exclude=",
                key="without gradients",
            )

    def _context(
        self,
        layer: Layer,
        step: int,
        measurement: Measurement,
        closure: Callable[[], Any] | None,
        allowed: Container[Kind],
    ) -> StepContext:
        processes, seed = (
            self._recorder.processes,
            zlib.crc32(f"{self._generator.initial_seed()} {layer.name} {step}".encode()),
        )

        def loss(values: Mapping[tuple[str, int], Tensor]) -> float:
            assert closure is not None
            own = loss_with(self.model, layer.width, closure, values, seed, allowed)
            return float(processes.mean(torch.tensor(own, device=next(iter(values.values())).device)))

        return StepContext(
            step,
            seed,
            partial(self._fan_ins, layer),
            None if closure is None else loss,
            self._recorder.samples,
            measurement,
            self.untrained,
            processes,
        )

    def _decide_and_grow(self, step: int, watched: Watched, due: Sequence[Layer]) -> list[Event]:
        trigger = self._strategy.trigger
        try:
            decisions = dict(zip(due, trigger.decide(due), strict=True))
        except NotFinite as error:
            self._skip(error)
            return []
        for layer, own in decisions.items():
            seen = Observation(step, layer.name, layer.size, own.metric, own.threshold, own.count)
            self._history.observe(seen)
        requests = [request(layer, own, self._settings.round_to) for layer, own in decisions.items()]
        requests = [each for each in requests if each.count and self._may_grow(each.layer, watched)]
        self._notice_samples(due, watched)
        events = self._grow(step, watched, requests)
        grown = {event.width for event in events}
        for layer, own in decisions.items():
            waits = own.metric is None and "activations" in trigger.needs  # for more samples
            patient = trigger.patient and not waits
            self._schedule.record_look(layer.name, step, patient, layer.name in grown, own.wait)
        if events:
            self._notice_limit(watched)
        return events

    def _may_grow(self, layer: Layer, watched: Watched) -> bool:
        """Whether a layer can still grow; a warning says why not."""
        reason = layer.width.obstacle(watched.allowed)
        if reason is not None:
            self._notices.warn(f"{layer.name} does not grow: {reason}", key=f"{layer.name} fixed")
        return reason is None

    def _grow(self, step: int, watched: Watched, requests: Sequence[Request]) -> list[Event]:
        """Compute the new neurons of all layers in the current model, then grow the layers one after the other."""
        started = time.perf_counter()
        try:
            additions = new_neurons(requests, self._settings, self._generator)
        except NotFinite as error:
            self._skip(error)
            return []
        for each, neurons in additions:
            if neurons.why_fewer is not None:
                self._notices.warn(f"{each.layer.name}: {neurons.why_fewer}", key=f"{each.layer.name} fewer")
        additions = [each for each in additions if each[1].count]
        if not additions:
            return []
        before = (time.perf_counter() - started) / len(additions)
        with self._trained.surgery() as surgery:
            done = add_neurons(additions, surgery, self._fan_ins, self._generator, watched.allowed)
        plans, seconds = [plan for plan, _ in done], [own + before for _, own in done]
        return self._resized(watched, events_of(step, plans, [each for each, _ in additions], seconds), plans)

    def drop_dead(self, step: int) -> list[Event]:
        """Drop the neurons that have been dead for long enough, from all widths or, if that fails, from none."""
        dead, watched, started = self._watching.dead, self._watching.watched, time.perf_counter()
        if dead is None or watched is None:
            return []
        with self._trained.surgery() as surgery:
            plans = list(drop_dead_neurons(dead, step, surgery, self._settings.round_to).values())
        seconds = (time.perf_counter() - started) / max(1, len(plans))
        return self._resized(watched, events_of(step, plans, [None] * len(plans), [seconds] * len(plans)), plans)

    def _resized(self, watched: Watched, events: list[Event], plans: Sequence[Plan]) -> list[Event]:
        self._history.events += events
        for layer in watched.layers if plans else ():
            self._strategy.trigger.resized(layer, plans)
        if plans:
            self._watching.check_budget()
        return events

    def _fan_ins(self, layer: Layer) -> Mapping[str, FanIn]:
        return self._trained.fan_ins(layer.width, layer.initial) if self._settings.margin else {}

    def _skip(self, error: NotFinite) -> None:
        self._notices.warn(f"{error} are not finite: no growth at such steps")
        self._recorder.buffer.clear()  # one of the inputs may be the cause

    def _notice_limit(self, watched: Watched) -> None:
        """Warn once if a width has stopped only because it has many times its initial size."""
        reached = [layer.name for layer in watched.layers if layer.name in watched.limited and layer.full]
        if reached:
            self._notices.warn(
                f"{', '.join(reached)} stopped at {self._strategy.trigger.limit:g} times the initial size: set another "
                "limit with max_width= or max_parameters= (max_width=math.inf for none)",
                key="limit",
            )

    def _notice_samples(self, due: Sequence[Layer], watched: Watched) -> None:
        """Warn once if nothing can be measured yet, and once per width that has more neurons than samples."""
        if "activations" not in self._strategy.trigger.needs:
            return
        nothing, few = self._sample_notices.look(due)
        if nothing is not None:
            self._notices.warn(nothing, key="waiting")
        if few is not None:
            self._notices.warn(few)
        if all(layer.full or layer.name in self._sample_notices.measured for layer in watched.layers):
            self.untrained = None

    @property
    def missing(self) -> Mapping[str, str]:
        """For each layer that could not be measured at the latest look, what was missing."""
        return self._sample_notices.missing

    def state(self) -> dict[str, Any]:
        """The untrained model, as plain values."""
        return {"untrained": None if self.untrained is None else self.untrained.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self.untrained = None if state["untrained"] is None else Untrained.from_state(state["untrained"])
        self._sample_notices = SampleNotices()


def clear_stale(layers: Sequence[Layer]) -> bool:
    """Clear what was recorded of layers whose inputs or sizes have changed since; returns whether there are any."""
    stale = [layer for layer in layers if any(record.stale for record in layer.records)]
    for layer in stale:
        for record in layer.records:
            record.clear()
    return bool(stale)


def shared_inputs(
    layers: Sequence[Layer], buffer: Buffer, processes: Processes, *, kept: bool, needed: bool
) -> Measurement | None:
    """The model on its latest inputs, of all processes; None if they were lost in some process.

    Records of consumers that no gradient has reached in some process are cleared.

    Args:
        layers: the layers that are looked at.
        buffer: the inputs.
        processes: the processes that train the model together.
        kept: whether inputs are kept.
        needed: whether the strategy uses activations, so that inputs must not be lost.
    """
    lost = buffer.drop_overwritten() and needed
    recorded = [record for layer in layers for record in layer.records]
    try:
        intact, known, *present = processes.least(
            [not lost, buffer.known, *(bool(record.pairs) for record in recorded)]
        )
    except RuntimeError as error:
        raise RuntimeError(
            f"grower.step() lost the other processes ({error}): look for an earlier error there, and call "
            "grower.step() after every gradient step in every process"
        ) from error
    if not intact:
        return None
    for record, in_all in zip(recorded, present, strict=True):
        if not in_all:
            record.clear()
    names = [layer.name for layer in layers]
    return buffer.shared_measurement(names, bool(known)) if kept else buffer.measurement(names)


def check_closure(strategy: Strategy, layers: Sequence[Layer], closure: object) -> None:
    """Raise TypeError if the loss must be evaluated again, but cannot be."""
    for layer in layers if closure is None else ():
        if strategy.initialization.needs_loss(layer):
            raise TypeError(
                f"{layer.name}: this strategy evaluates the loss again: call grower.step(closure) with a function that "
                "runs the model and returns the loss"
            )


class SampleNotices:
    """Says whether there are enough samples to measure layers."""

    def __init__(self) -> None:
        self.measured: set[str] = set()  # layers whose activations have been measured
        self.missing: dict[str, str] = {}  # by layer, what was missing at its latest look
        self._few: set[str] = set()  # layers with more neurons than samples that were warned about

    def look(self, layers: Sequence[Layer]) -> tuple[str | None, str | None]:
        """Two messages, or None: nothing can be measured yet; some layers have more neurons than samples."""
        waiting = {layer.name: layer.waiting for layer in layers}
        self.measured |= {name for name, text in waiting.items() if text is None}
        for name, text in waiting.items():
            if text is None:
                self.missing.pop(name, None)
            else:
                self.missing[name] = text
        listed = "; ".join(f"{name}: {text}" for name, text in waiting.items())
        nothing = f"nothing can be measured yet ({listed}): use larger batches or grower.fill()"
        few = {}
        for layer in layers:
            measurement = None if waiting[layer.name] else layer.measurement
            seen = None if measurement is None else measurement.activations(layer.name)
            if seen is not None and seen.columns < layer.size and layer.name not in self._few:
                few[layer.name] = f"{layer.name} ({layer.size} on {seen.columns})"
        self._few |= few.keys()
        limited = (
            f"widths with more neurons than samples, whose rank is limited by the samples: {', '.join(few.values())}: "
            "use larger batches or a larger buffer"
        )
        return nothing if all(waiting.values()) else None, limited if few else None
