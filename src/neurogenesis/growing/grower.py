"""`Grower` watches a model while it trains and grows it."""

from __future__ import annotations

import re
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from ..candidates.losses import loss_with
from ..defaults import MAX_INTERVAL, STRATEGY
from ..history import Event, History, Observation
from ..layer import Layer, LossWith, StepContext
from ..notices import Notices
from ..passes.buffers import Buffer
from ..passes.checkpointing import saving_apart
from ..passes.measurements import Measurement
from ..passes.records import NotFinite
from ..passes.replay import ModelCall
from ..passes.samples import Samples
from ..passes.training import TrainingPasses
from ..passes.untrained import Untrained
from ..strategies import Strategy
from ..strategies import strategy as as_strategy
from ..structure.axes import named_tensors, unwrapped
from ..structure.examples import Examples, examples_in
from ..structure.fills import FanIn
from ..structure.modes import ordinary_tensors
from ..structure.running import internal_run
from ..structure.widths import Widths, check_supported, known_widths
from ..structure.wrappers import wrappers_of
from ..surgery.ages import forget, resume
from ..surgery.attached import attach, leave
from ..surgery.optimizer_state import Optimizers
from ..surgery.plan import Plan, Surgery, check_average
from ..surgery.reach import fan_ins_of
from ..surgery.resizing import resize_widths
from .accumulation import accumulating
from .budget import affordable
from .choosing import as_call, as_example, has_convolutions
from .dying import DeadNeurons
from .growth import add_neurons, drop_dead_neurons, events_of, new_neurons
from .late import LateLayers
from .looking import Request, SampleNotices, check_closure, clear_stale, request, shared_inputs
from .mismatch import MismatchNote
from .overview import overview
from .recording import Recorder
from .schedule import Schedule
from .settings import (
    MaxWidth,
    Setting,
    Settings,
    check_max_parameters,
    check_model,
    check_numbers,
    checked_optimizers,
    checked_patterns,
)
from .watching import Watched, allowed_reasons, may_watch_more, set_limits, watch, why_nothing_grows

# The strategy 'need' in states of earlier versions, and the one that goes on with them.
_NEED_BEFORE = (
    r"window=(?:20|48), (?:ratio=[^,]*, )?(candidates=\d+\), initialization=)(?:Random\(\)|Small\(part=0.5\))",
    r"window=48, \1Random()",
)


class Grower:
    """Grows a model while it trains.

    ModelCall `step` after each gradient step. The model, the optimizer and the training loop need no changes.

    Args:
        model: the model.
        optimizer: the optimizer that trains the model, or a list of all of them.
        strategy: a name of `neurogenesis.strategies`, or a `Strategy`. By default `need`, which asks the loss whether
            new neurons would learn something, and stops by itself.
        example: an input of the model, or a list of several that together use all layers; by default the first training
            batch. Layers that it does not use are resized when they are first called.
        max_width: the maximum size of each width: an int (number of neurons), a float (factor of the initial size), or
            a mapping from names to either. By default 64 times the initial size with 'need', 16 times with
            strategies that do not stop by themselves, and unlimited with others or if `max_parameters` is given.
        max_parameters: the maximum number of parameters of the model; unlimited by default. When it is reached, neurons
            go to the widths that want most of them per parameter.
        round_to: grow widths to multiples of this number, such as 8, which suits hardware.
        every: look at the first gradient step and every `every` steps after it. By default the grower looks at a width
            at every step while it grows and less often while it does not, but at least at every twelfth step.
        include: patterns of the widths to grow, such as ``["features.*"]``; all by default.
        exclude: patterns of widths not to grow.
        tie: groups of patterns of widths that grow together, as in `neurogenesis.widths`.
        buffer: the number of latest samples on which activations are measured; by default 1568, or 128 in networks with
            convolutions. A sample is an item of a batch; in sequences, such as tokens, it is each position of an item,
            and twice as many positions as neurons are measured if that is more. A width is measured as soon as there
            are twice as many activations as neurons; see `fill`.
        seed: seed of all random numbers of growth. Torch's global random state is not used.
        ema: an averaged copy of the model, which grows too.
        ages: whether the optimizer treats new weights as if training had just begun; see `neurogenesis.ages`.
        margin: whether random fan-in is balanced, and its norm larger than that of the present neurons by as much as
            one gradient step can move it; see `neurogenesis.surgery.reach`. Otherwise it has the mean norm of the
            present neurons, as in the paper.
        prune: whether neurons are dropped that have died, so that they give their consumers a constant on the latest
            inputs; see `neurogenesis.growing.dying` for how long they must have been dead.
        frozen: whether widths grow that have frozen parameters (``requires_grad`` is False). By default frozen parts
            stay as they are, and their widths are watched as soon as they are unfrozen.
        training_samples: the number of samples in the training set, by which 'need' knows how much can be learned from
            it. By default they are counted, recognized by their inputs; with random augmentation, every input is new.

    A model has one grower: a new one for the same model replaces the present one.

    Example:
        >>> import torch, neurogenesis as ng
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> optimizer = torch.optim.Adam(model.parameters())
        >>> grower = ng.Grower(model, optimizer, "north-random", max_width=10, buffer=64)
        >>> for _ in range(3):
        ...     model(torch.randn(64, 4)).square().mean().backward()
        ...     optimizer.step()
        ...     events = grower.step()
        >>> grower.widths
        {'0': 10}
    """

    strategy, max_width, max_parameters, round_to = Setting(), Setting(), Setting(), Setting()
    include, exclude, tie, frozen = Setting(), Setting(), Setting(), Setting()
    ages, margin, prune = Setting(), Setting(), Setting()

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizers,
        strategy: str | Strategy = STRATEGY,
        *,
        example: Examples | None = None,
        max_width: MaxWidth = None,
        max_parameters: int | None = None,
        round_to: int = 1,
        include: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        tie: Sequence[str | Sequence[str]] = (),
        ema: nn.Module | None = None,
        prune: bool = False,
        frozen: bool = False,
        training_samples: int | None = None,
        every: int | None = None,
        buffer: int | None = None,
        seed: int = 0,
        ages: bool = True,
        margin: bool = True,
    ):
        check_model(model)
        self.model = unwrapped(model)
        check_supported(self.model, named_tensors(self.model))
        self._optimizers = checked_optimizers(self.model, optimizer)
        chosen = as_strategy(strategy)
        if ema is not None:
            check_average(self.model, ema)
            chosen.initialization.check_average()
        check_numbers(
            every=every, buffer=buffer, max_parameters=max_parameters, round_to=round_to,
            training_samples=training_samples,
        )  # fmt: skip
        check_max_parameters(self.model, max_parameters)
        included = ["*"] if include is None else checked_patterns(include, "include")
        excluded = checked_patterns(exclude, "exclude")
        self.settings = Settings(
            chosen, max_width, max_parameters, round_to, included, excluded, tie, ages, margin, prune, frozen
        )
        self.ema = ema
        self.history = History()
        self.steps = 0  # number of gradient steps
        self.buffer = Buffer(self.model, buffer or (128 if has_convolutions(self.model) else 1568))
        self.samples = Samples(training_samples)
        self.generator = torch.Generator().manual_seed(seed)
        self._schedule = Schedule(every)
        self._watched: Watched | None = None
        self._examples: list[ModelCall] = []  # as given, or the first training pass
        self._late = LateLayers(self.model, tie, self._surgery)
        self._untrained: Untrained | None = None  # kept until every layer has been measured in it
        self._dead: DeadNeurons | None = None
        self._attached = True
        self._busy_from: float = 0  # the first step after which there is something to do
        self._notices, self._sample_notices = Notices(), SampleNotices()
        self._handles: list[Any] = []
        self._mismatch_note = MismatchNote(self.model, lambda: None if self._watched is None else self._watched.widths)
        counted = self.samples if "fan-out gradients" in chosen.trigger.needs else None
        keep_inputs = prune or not chosen.uses.isdisjoint({"activations", "trials"})
        self._recorder = Recorder(self.model, self.buffer, counted, keep_inputs)
        self._passes = TrainingPasses(
            self.model,
            before=self._before_pass,
            after=self._recorder.end_pass,
            unrecorded=self._recorder.count_pass,
            compiled=self._compiled_pass,
            failed=self._explain_failure,
            wrapper=model if getattr(model, "_orig_mod", None) is self.model else None,
        )
        try:
            self._watch_optimizers()
            if example is not None:
                with ordinary_tensors():
                    self._attach(list(map(as_call, examples_in(example))))
        except BaseException:
            self.detach(keep_ages=True)  # which may be those of the present grower
            raise
        attach(self.model, self)

    # --- what it watches ---------------------------------------------------------------------------------

    @property
    def widths(self) -> dict[str, int]:
        """Current size of each watched width."""
        return {layer.name: layer.size for layer in self.layers}

    @property
    def layers(self) -> list[Layer]:
        """Layers of the watched widths, as triggers and initializations see them."""
        return [] if self._watched is None else list(self._watched.layers)

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers that train the model. If you replace them, assign the new one, or a list of all of them."""
        return self._optimizers

    @optimizers.setter
    def optimizers(self, optimizer: Optimizers) -> None:
        new = checked_optimizers(self.model, optimizer)
        self._leave_optimizers()
        self._optimizers = new
        self._watch_optimizers()
        for each in new if self.ages else ():
            resume(each)

    @property
    def stepped(self) -> bool:
        """Whether an optimizer has stepped since the last call of `step`; not while gradients are accumulated."""
        return self._recorder.since.stepped

    @property
    def eager(self) -> bool:
        """Whether the training passes of the next gradient step run uncompiled, in a model that is compiled.

        They do if the grower looks at them, and soon after growth.
        """
        return self._passes.eager

    def __str__(self) -> str:
        layers = None if self._watched is None else self.layers
        return overview(self.strategy, layers, self.history, self._schedule.waiting(self.steps))

    # --- training passes ---------------------------------------------------------------------------------

    def fill(self, *args: Any, **kwargs: Any) -> None:
        """Add a batch of inputs to the buffer, so that widths can be measured from the first gradient step.

        Takes the same arguments as the model. The model is not trained on them.
        """
        call = ModelCall.of(args, kwargs).copied()
        self._attach([call])
        self.buffer.add(call)

    def watch_pass(self, *args: Any, **kwargs: Any) -> None:
        """Watch a training pass that the model is about to run, from one of its own forward pre-hooks.

        For a grower that is created in such a hook, since hooks which are added there are first called in the next
        pass. Takes the arguments of the pass.
        """
        self._passes.enter(args, kwargs)

    def _before_pass(self, args: Any, kwargs: Any) -> None:
        self._find_processes()
        call = self._recorder.call_of(args, kwargs)
        self._attach([call])
        self._recorder.begin_pass(call)

    def _compiled_pass(self, inputs: Sequence[Tensor]) -> None:
        self._find_processes()
        self._recorder.add_compiled_pass(inputs)

    def _find_processes(self) -> None:
        """Decide together with other processes from the first pass on that runs in all of them."""
        processes = self._recorder.new_processes()
        if processes is None:
            return
        processes.meet(
            "a Grower watches the model in process {here}, but none has seen a training pass in process {others}: "
            "create it in every process"
        )
        processes.check_same(
            {
                "strategy": repr(self.strategy),
                "seed": self.generator.initial_seed(),
                "max_width, max_parameters, round_to": (self.max_width, self.max_parameters, self.round_to),
                "include, exclude, tie, frozen": (self.include, self.exclude, self.tie, self.frozen),
                "buffer": self.buffer.quota.limit,
                "training_samples": self.samples.total,
                "steps": self.steps,
                "shapes of parameters": [(name, tuple(own.shape)) for name, own in self.model.named_parameters()],
            }
        )
        self._recorder.join(processes)
        if self._watched is not None and self._watched.widths.structure.not_called:  # attached before it was wrapped
            self._watch(self._watched.widths)
        if self._untrained is not None:  # attached before DistributedDataParallel made the models equal
            self._untrained = self._untrained.of_first(processes)

    def _prepare_passes(self) -> None:
        """Record what the next look needs; a model that has just grown runs uncompiled, as it may grow again soon."""
        events = self.history.events
        grown = bool(events) and self.steps - events[-1].step < MAX_INTERVAL
        growable = {layer.name for layer in self.layers if not layer.full}
        names = self._schedule.due(self.steps + 1) & growable
        self._recorder.taps.want(names)
        self._passes.recorded = bool(names) or self._recorder.keep_inputs or self._watched is None
        self._passes.run_eagerly(bool(names) or grown or self._watched is None)
        # Before the next look, its passes are prepared.
        busy = grown or self._dead is not None or self._watched is None or bool(self._watched.waiting)
        self._busy_from = 0 if busy else self._schedule.next_look(growable) - 1

    # --- widths ------------------------------------------------------------------------------------------

    def _attach(self, calls: Sequence[ModelCall]) -> None:
        """Find the widths and watch those that can grow; called before the first training pass."""
        if self._watched is not None:
            return
        with torch.enable_grad(), saving_apart(), internal_run(self.model):
            known = known_widths(self.model, lambda: [as_example(self.model, call) for call in calls], tie=self.tie)
            self._examples = [call.copied() for call in calls] if known.structure.unused else list(calls)
            self._watch(known)
            if "activations" in self.strategy.trigger.needs and self.layers:
                norms = {layer.name: layer.fan_out_norms() for layer in self.layers}
                self._untrained = Untrained.of(self.model, self.buffer.quota.widths, norms)

    def _watch(self, known: Widths) -> None:
        """Watch the widths that can grow; those that are watched already keep their state."""
        calls = self._calls
        with torch.enable_grad(), saving_apart(), internal_run(self.model):
            watched = watch(self.model, self.settings, known, calls, self.buffer, self._watched, self._notices_calls)
            layers = watched.layers
            self.buffer.watch({layer.name: (layer.width, layer.route) for layer in layers if layer.route is not None})
            for call in calls if self._recorder.keep_inputs and not has_convolutions(self.model) else ():
                self.buffer.count_rows(call)
            self._watched = watched
            if self.prune:
                self._watch_dead_neurons()
        self._schedule.start(layer.name for layer in layers)
        records = [record for layer in layers if layer.records_gradients for record in layer.records]
        self._recorder.taps.watch(records, norms="gradients" in self.strategy.uses)
        self._late.watch(known, self._notices_calls)
        self._check_budget()
        self._prepare_passes()
        if not layers:
            self._notices.warn(why_nothing_grows(watched.waiting, self._allowed_reasons))

    @property
    def _calls(self) -> list[ModelCall]:
        """Calls of the model that together use all layers which are known."""
        return [*self._examples, *self._late.calls]

    def _watch_more(self) -> None:
        """Watch widths that have been unfrozen, or whose layers have been called."""
        found = self._late.search()
        if found is not None:
            self._watch(found)
        elif self._watched is not None and may_watch_more(self.model, self._watched.waiting, self._allowed_reasons):
            self._watch(self._watched.widths)

    def _watch_dead_neurons(self) -> None:
        before = {} if self._dead is None else self._dead.state()
        self._dead = DeadNeurons(self.model, self.layers, self.buffer)
        self._dead.load(before)
        for name, reason in self._dead.problems.items():
            self._notices.warn(f"dead neurons of {name} are not dropped: {reason}")

    @property
    def _notices_calls(self) -> bool:
        """Whether the first call of a layer is noticed that no example has used; see `LateLayers.watch`."""
        return not wrappers_of(self.model) and not self._passes.compiled

    @property
    def _allowed_reasons(self) -> frozenset[Any]:
        return allowed_reasons(self.settings, self._notices_calls)

    def _check_budget(self) -> None:
        """Mark the layers that cannot grow any more, because the budget has too few parameters left."""
        for layer in self.layers:
            layer.out_of_budget = not affordable(self.model, self.max_parameters, layer, self.round_to)

    # --- steps -------------------------------------------------------------------------------------------

    def step(self, closure: Callable[[], Any] | None = None, *, samples: Any = None) -> list[Event]:
        """Look at the widths that are due after a gradient step, and grow them if the trigger asks for it.

        Args:
            closure: a function that runs the model and returns the loss; required by 'nest' on convolutions.
            samples: which samples of the training set the batch has: an integer for each item, such as their indices.
                By default samples are recognized by their inputs, which fails if these are augmented at random.

        Returns:
            The events of this step, often none: growth and, with `prune`, neurons dropped.
        """
        if not self._attached:
            self._notices.warn("the grower is detached, or another one has replaced it: it grows nothing any more")
            return []
        recorder = self._recorder
        recorder.begin_step()
        if samples is not None and recorder.samples is not None and recorder.since.forward:
            recorder.samples.identify(samples)
        if self.steps + 1 < self._busy_from and self._is_plain_step:
            self.steps += 1  # nothing else to do, so that it takes no time
            recorder.take()
            self.samples.end_step()
            return []
        with ordinary_tensors(), torch.no_grad():
            return self._step(closure)

    @property
    def _is_plain_step(self) -> bool:
        since = self._recorder.since
        return since.stepped and since.forward > 0 and not self._late.pending

    def _step(self, closure: Callable[[], Any] | None) -> list[Event]:
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1 and not wrappers_of(self.model):
            self._notices.warn(
                "there are several processes, but the model is not wrapped in DistributedDataParallel: each process "
                "grows its own model"
            )
        if self._watched is None:
            self._notices.warn(
                "the model has not run in training mode with gradients yet, so its widths are not known: call "
                "model.train() before training, and the model itself rather than its parts or its forward()"
            )
            return []
        if not self._recorder.since.stepped and accumulating():
            return []
        events: list[Event] = []
        problem = self._recorder.take().problem
        if problem is not None:
            self._notices.warn(problem)
        else:
            self.steps += 1
            events = self._after_gradient_step(closure)
        self._watch_more()
        self._recorder.clear()
        self._passes.clear()
        self._prepare_passes()
        return events

    def _after_gradient_step(self, closure: Callable[[], Any] | None) -> list[Event]:
        if self._adopt():
            return []  # what was recorded at this step lacks the layer
        names = self._schedule.due(self.steps)
        due = [layer for layer in self.layers if layer.name in names and not layer.full]
        if due or self._dead is not None:
            self._recorder.processes.meet(
                "grower.step() was called in process {here}, but not in process {others}: call it after every "
                "gradient step in every process",
                seconds=10,
            )
        events = self._look(due, closure) if due else []
        return events if self._dead is None else events + self._drop(self._dead)

    def _adopt(self) -> bool:
        """Watch the widths with layers that have been called since; returns whether there are any."""
        found = self._late.take()
        if found is not None:
            self._watch(found)
        return found is not None

    def _look(self, due: Sequence[Layer], closure: Callable[[], Any] | None) -> list[Event]:
        """Ask the trigger about layers, and grow those that need it."""
        assert self._watched is not None
        if problem := self._watched.widths.differs_from(self.model):
            raise ValueError(f"{problem}: call grower.detach() and make a new Grower for the changed model")
        self._check_records(due)
        measurement = shared_inputs(
            due,
            self.buffer,
            self._recorder.processes,
            kept=self._recorder.keep_inputs,
            needed="activations" in self.strategy.uses,
        )
        if measurement is None:
            self._notices.warn(
                "the model's inputs were modified in place before grower.step(): no growth at such steps"
            )
            return []
        check_closure(self.strategy, due, closure)
        self._begin_look(due, measurement, closure)
        try:
            with internal_run(self.model):
                return self._decide_and_grow(due)
        finally:
            self._end_look(due)

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

    def _begin_look(self, due: Sequence[Layer], measurement: Measurement, closure: Callable[[], Any] | None) -> None:
        for layer in due:
            layer.now = StepContext(
                self.steps,
                zlib.crc32(f"{self.generator.initial_seed()} {layer.name} {self.steps}".encode()),
                partial(self._fan_ins, layer),
                None if closure is None else self._loss_with(layer, closure),
                self.samples,
                measurement,
                self._untrained,
                self._recorder.processes,
            )

    def _end_look(self, due: Sequence[Layer]) -> None:
        for layer in due:
            layer.now = StepContext(self.steps)

    def _decide_and_grow(self, due: Sequence[Layer]) -> list[Event]:
        trigger = self.strategy.trigger
        try:
            decisions = trigger.decide(due)
        except NotFinite as error:
            self._skip_look(error)
            return []
        requests = [request(layer, own, self.settings) for layer, own in zip(due, decisions, strict=True)]
        for layer, own in zip(due, decisions, strict=True):
            self.history.observe(Observation(self.steps, layer.name, layer.size, own.metric, own.threshold, own.count))
        self._notice_samples(due)
        events = self._grow([each for each in requests if each.count and self._may_grow(each.layer)])
        grown = {event.width for event in events}
        for layer, own in zip(due, decisions, strict=True):
            waits = own.metric is None and "activations" in trigger.needs  # for more samples
            patient = trigger.patient and not waits
            self._schedule.record_look(layer.name, self.steps, patient, layer.name in grown, own.wait)
        if grown:
            self._check_budget()
            self._notice_limit()
        return events

    def _may_grow(self, layer: Layer) -> bool:
        """Whether a layer can still grow; a warning says why not."""
        reason = layer.width.obstacle(self._allowed_reasons)
        if reason is not None:
            self._notices.warn(f"{layer.name} does not grow: {reason}", key=f"{layer.name} fixed")
        return reason is None

    def _grow(self, requests: Sequence[Request]) -> list[Event]:
        """Compute the new neurons of all layers in the current model, then grow the layers one after the other."""
        started = time.perf_counter()
        try:
            additions = new_neurons(requests, self.settings, self.strategy.initialization, self.generator)
        except NotFinite as error:
            self._skip_look(error)
            return []
        for each, neurons in additions:
            if neurons.why_fewer is not None:
                name = each.layer.name
                self._notices.warn(f"{name}: {neurons.why_fewer}", key=f"{name} fewer")
        additions = [each for each in additions if each[1].count]
        if not additions:
            return []
        before = (time.perf_counter() - started) / len(additions)
        with self._surgery() as surgery:
            done = add_neurons(additions, surgery, self._fan_ins, self.generator, self._allowed_reasons)
        plans, seconds = [plan for plan, _ in done], [own + before for _, own in done]
        return self._resized(plans, [each for each, _ in additions], seconds)

    def _drop(self, dead: DeadNeurons) -> list[Event]:
        """Drop the neurons that have been dead for long enough, from all widths or, if that fails, from none."""
        started = time.perf_counter()
        with self._surgery() as surgery:
            plans = drop_dead_neurons(dead, self.steps, surgery, self.round_to)
        if not plans:
            return []
        seconds = (time.perf_counter() - started) / len(plans)
        events = self._resized(list(plans.values()), [None] * len(plans), [seconds] * len(plans))
        self._check_budget()
        return events

    def _resized(
        self, plans: Sequence[Plan], requests: Sequence[Request | None], seconds: Sequence[float]
    ) -> list[Event]:
        events = events_of(self.steps, plans, requests, seconds)
        self.history.events += events
        for layer in self.layers:
            self.strategy.trigger.resized(layer, plans)
        return events

    def _surgery(self) -> Surgery:
        return Surgery(self.model, self.optimizers, self.ema, ages=self.ages)

    def _fan_ins(self, layer: Layer) -> Mapping[str, FanIn]:
        return fan_ins_of(self.model, layer.width, layer.initial, self.optimizers) if self.margin else {}

    def _loss_with(self, layer: Layer, closure: Callable[[], Any]) -> LossWith:
        """Function that maps the values of one new neuron to the loss with it, over all processes."""
        loss, processes = loss_with(self.model, layer.width, closure, self.generator), self._recorder.processes
        return lambda values: float(
            processes.mean(torch.tensor(loss(values), device=next(iter(values.values())).device))
        )

    def _skip_look(self, error: NotFinite) -> None:
        self._notices.warn(f"{error} are not finite: no growth at such steps")
        self.buffer.clear()  # one of the inputs may be the cause

    def _notice_limit(self) -> None:
        """Warn once if a width has stopped only because it has many times its initial size."""
        assert self._watched is not None
        reached = [layer.name for layer in self.layers if layer.name in self._watched.limited and layer.full]
        if reached:
            self._notices.warn(
                f"{', '.join(reached)} stopped at {self.strategy.trigger.limit:g} times the initial size: set another "
                "limit with max_width= or max_parameters= (max_width=math.inf for none)",
                key="limit",
            )

    def _notice_samples(self, due: Sequence[Layer]) -> None:
        """Warn once if nothing can be measured yet, and once per width that has more neurons than samples."""
        if "activations" not in self.strategy.trigger.needs:
            return
        nothing, few = self._sample_notices.look(due)
        if nothing is not None:
            self._notices.warn(nothing, key="waiting")
        if few is not None:
            self._notices.warn(few)
        if all(layer.full or layer.name in self._sample_notices.measured for layer in self.layers):
            self._untrained = None

    # --- saving and loading ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """State needed to resume growth: sizes, baselines, buffered inputs, the random state and the history."""
        self._adopt()
        watched, calls = self._watched, [call.saved for call in self._calls]
        layers = {
            layer.name: {
                "initial": layer.initial,
                "memory": dict(layer.memory),
                **self._schedule.state(layer.name),
            }
            for layer in self.layers
        }
        return {
            "strategy": repr(self.strategy),
            "steps": self.steps,
            "layers": layers,
            "untrained": None if self._untrained is None else self._untrained.state(),
            "sizes": {} if watched is None else watched.widths.sizes,
            "generator": self.generator.get_state(),
            **self.buffer.state(),
            "example": calls[0] if calls else None,
            "further examples": calls[1:],
            "waiting": [] if watched is None else [width.name for width in watched.waiting],
            "resizes": [] if watched is None else watched.widths.resizes,
            "history": self.history.state_dict(),
            "dead": None if self._dead is None else self._dead.state(),
            "samples": self.samples.state(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state.

        The model is grown or shrunk to the saved sizes. Load the states of model and optimizer afterwards.
        """
        self.check_state(state)
        if state["example"] is None and self._watched is not None:
            self._start_again()
        with self._surgery() as surgery:
            self.resize_to(state, surgery)
        for layer in self.layers:
            self._load_layer(layer, state["layers"].get(layer.name))
        if self._watched is not None:
            set_limits(self.layers, self._watched.widths, self.settings, begun=True)
            self._watched.widths.resizes = state.get("resizes", self._watched.widths.resizes)
        self._untrained = None if state["untrained"] is None else Untrained.from_state(state["untrained"])
        self.steps = state["steps"]
        self.history.load_state_dict(state["history"])
        self.generator.set_state(state["generator"].cpu())  # map_location may have moved it
        self.buffer.load(state)
        self._recorder.start_step()
        if self._dead is not None:
            self._dead.load(state.get("dead") or {})
        self._sample_notices = SampleNotices()
        if "samples" in state:
            self.samples.load(state["samples"])
        self._check_budget()
        self._prepare_passes()

    def _load_layer(self, layer: Layer, saved: Mapping[str, Any] | None) -> None:
        if saved is None:  # it was not watched yet
            layer.initial, layer.memory = layer.size, {}
            self.strategy.trigger.start(layer)
            self._schedule.load(layer.name, {})
        else:
            layer.initial, layer.memory = saved["initial"], dict(saved["memory"])
            self._schedule.load(layer.name, saved)

    def check_examples(self, state: Mapping[str, Any]) -> None:
        """Raise ValueError if a state was saved before a layer was first called, which has been resized since."""
        if len(self._late.calls) > len(state.get("further examples", ())):
            raise ValueError(
                "the state was saved before a layer was first called that the example does not use, and that layer has "
                "been resized since: pass a list of inputs that together use all layers to the Grower, as example=[...]"
            )

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise ValueError unless a state can be loaded; finds the widths first if they are not known."""
        self._adopt()
        if re.sub(*_NEED_BEFORE, state["strategy"]) != repr(self.strategy):
            raise ValueError(f"the state is of another strategy: {state['strategy']}, not {self.strategy!r}")
        if state["example"] is None:
            return  # it was saved before the first training pass
        with ordinary_tensors():
            examples = [state["example"], *state.get("further examples", ())]
            self._attach([ModelCall.from_parts(*each) for each in examples])
        self.check_examples(state)
        assert self._watched is not None
        own_names, saved_names = {layer.name for layer in self.layers}, set(state["layers"])
        waiting, waited = {width.name for width in self._watched.waiting}, set(state.get("waiting", ()))
        if saved_names - own_names - waiting or own_names - saved_names - waited:
            raise ValueError(
                f"the state is of other widths: {sorted(saved_names - own_names)} only in the state, "
                f"{sorted(own_names - saved_names)} only in the grower"
            )

    def resize_to(self, state: Mapping[str, Any], surgery: Surgery) -> None:
        """Give the model the sizes in a state, with arbitrary values: the state of the model is loaded afterwards."""
        if self._watched is not None and state["sizes"]:
            resize_widths(surgery, self._watched.widths, state["sizes"], torch.Generator().manual_seed(0))

    def _start_again(self) -> None:
        """Wait for the first training pass, as a new grower does."""
        self._watched = self._dead = self._untrained = None
        self._examples = []
        self._late.start_again()
        self._schedule.start(())
        self._recorder.start_again()

    def detach(self, *, keep_ages: bool = False) -> None:
        """Remove all hooks from the model and the optimizers. The model keeps its size.

        Young weights count as old from then on, so detach after training.

        Args:
            keep_ages: whether young weights remain young, with the hooks on the optimizers that they need, so that the
                optimizers' state can still be saved or trained with.
        """
        self._attached = False
        leave(self.model, self)
        self._passes.remove()
        self._recorder.remove()
        self._late.remove()
        self._mismatch_note.remove()
        self._leave_optimizers(keep_ages)

    def _watch_optimizers(self) -> None:
        for each in self._optimizers:
            self._handles.append(each.register_step_post_hook(lambda *_: self._recorder.optimizer_stepped()))
            if self.ages:  # a loaded state may contain young weights
                self._handles.append(each.register_load_state_dict_post_hook(resume))

    def _leave_optimizers(self, keep_ages: bool = False) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self.ages and not keep_ages:
            for optimizer in self._optimizers:
                forget(optimizer, self.model.parameters())

    def _explain_failure(self, error: BaseException) -> None:
        """Add a note to an error about sizes in the model's forward, if the model has been resized since the start."""
        changed = [
            f"{layer.name} from {layer.initial} to {layer.size}" for layer in self.layers if layer.size != layer.initial
        ]
        if changed and re.search(r"\b(shapes?|sizes?|dimensions?)\b", str(error)) and sys.version_info >= (3, 11):
            error.add_note(
                f"neurogenesis has resized {', '.join(changed)}. If this pass uses a layer or a branch that the "
                "example, or the first batch, did not use, pass inputs that together use all of them: "
                "Grower(..., example=[...])"
            )
