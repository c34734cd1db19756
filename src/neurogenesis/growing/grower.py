"""`Grower` watches a model while it trains and grows it."""

from __future__ import annotations

import math
import re
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import LBFGS, Optimizer

from ..candidates.losses import loss_with
from ..defaults import MAX_INTERVAL, STRATEGY
from ..history import Event, History, Observation
from ..initializations import Neurons
from ..layer import Layer, StepContext
from ..passes.buffers import Buffer, Untrained
from ..passes.checkpointing import saving_apart
from ..passes.processes import Processes
from ..passes.records import NotFinite
from ..passes.replay import Call
from ..passes.samples import Samples
from ..passes.taps import Taps
from ..passes.unused import UnusedLayers
from ..strategies import Strategy
from ..strategies import strategy as as_strategy
from ..structure.axes import Structure, named_tensors, unwrapped
from ..structure.completing import Resize, more_widths
from ..structure.fills import FanIn
from ..structure.modes import ordinary_tensors
from ..structure.reasons import Kind
from ..structure.tracing import Example, Examples, examples_in
from ..structure.widths import Width, Widths, check_supported, known_widths, publish
from ..structure.wrappers import wrappers_of
from ..surgery.ages import forget, resume
from ..surgery.attached import attach, leave
from ..surgery.late import resize_late_layers
from ..surgery.optimizer_state import Optimizers, as_list, check_optimizers
from ..surgery.plan import Plan, Surgery, check_average, pad_for_growth, plan_neurons
from ..surgery.reach import fan_ins_of
from ..surgery.resizing import resize_widths
from ..triggers import Decision
from .accumulation import accumulating
from .budget import affordable, rounded_up, shares
from .choosing import (
    FROZEN,
    MaxWidth,
    as_call,
    as_example,
    choose_widths,
    has_convolutions,
    make_layers,
    set_maximum_sizes,
)
from .dying import DeadNeurons
from .mismatch import MismatchNote
from .overview import overview
from .schedule import Schedule

# The strategy 'need' in states of earlier versions, and the one that goes on with them.
_NEED_BEFORE = (
    r"window=(?:20|48), (?:ratio=[^,]*, )?(candidates=\d+\), initialization=)(?:Random\(\)|Small\(part=0.5\))",
    r"window=48, \1Random()",
)
_SEARCHES = 20  # at most, for layers that values decide on


class Grower:
    """Grows a model while it trains.

    Call `step` after each gradient step. The model, the optimizer and the training loop need no changes.

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
        every: int | None = None,
        include: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        tie: Sequence[str | Sequence[str]] = (),
        buffer: int | None = None,
        seed: int = 0,
        ema: nn.Module | None = None,
        ages: bool = True,
        margin: bool = True,
        prune: bool = False,
        frozen: bool = False,
        training_samples: int | None = None,
    ):
        if not isinstance(model, nn.Module):
            raise TypeError(
                f"model: expected a torch.nn.Module, not a {type(model).__name__}: Grower(model, optimizer)"
            )
        self.model = unwrapped(model)
        check_supported(self.model, named_tensors(self.model))
        self.ages, self.margin, self.prune, self.frozen = ages, margin, prune, frozen
        self._optimizers = _checked(self.model, optimizer)
        if ema is not None:
            check_average(self.model, ema)
        self.strategy = as_strategy(strategy)
        if ema is not None and self.strategy.initialization.changes_present_neurons:
            raise ValueError(
                f"{self.strategy.initialization} changes present neurons, which cannot be done in the averaged model: "
                "omit ema= and start a new average after growth, or use another initialization"
            )
        given = {
            "every": every, "buffer": buffer, "max_parameters": max_parameters, "round_to": round_to,
            "training_samples": training_samples,
        }  # fmt: skip
        for name, number in given.items():
            if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 1):
                raise ValueError(f"{name}: expected a positive integer, not {number!r}")
        present = sum(parameter.numel() for parameter in self.model.parameters())
        if max_parameters is not None and max_parameters < present:
            raise ValueError(f"max_parameters={max_parameters}, but the model already has {present} parameters")
        self.max_width, self.max_parameters, self.round_to = max_width, max_parameters, round_to
        self.include = ["*"] if include is None else _check_patterns(include, "include")
        self.exclude = _check_patterns(exclude, "exclude")
        self.tie = tie
        self.ema = ema
        self.history = History()
        self.steps = 0  # number of gradient steps
        self.buffer = Buffer(self.model, buffer or (128 if has_convolutions(self.model) else 1568))
        self.samples = Samples(training_samples)
        self.generator = torch.Generator().manual_seed(seed)
        self._schedule = Schedule(every)
        self._layers: list[Layer] | None = None
        self._widths: Widths | None = None
        self._calls: list[Call] = []  # the examples, or the first training pass; and passes that used other layers
        self._waiting: list[Width] = []  # which are watched when they are unfrozen, or layers that may read them called
        self._noticed: Call | None = None  # in which a layer was called that no example has used
        self._searches = 0  # for layers in such calls, without success
        self._unused: UnusedLayers | None = None
        self._completed: Widths | None = None  # with the layers that have been called since the last step
        self._late_calls = 0  # of layers that no example had used
        self._limited: set[str] = set()  # widths whose maximum neither the strategy nor the user has set
        self._attached = True
        self._stepped = False
        self._busy_from: float = 0  # the first step after which there is something to do
        self._warned: set[str] = set()
        self._warned_few_samples: set[str] = set()
        self._measured: set[str] = set()  # layers whose activations have been measured
        self._handles: list[Any] = []
        self._dead: DeadNeurons | None = None
        self._mismatch_note = MismatchNote(self.model, lambda: self._widths)
        keep_inputs = prune or not self.strategy.uses.isdisjoint({"activations", "trials"})
        wrapper = model if getattr(model, "_orig_mod", None) is self.model else None
        self._taps = Taps(
            self.model,
            self.buffer,
            self._attach,
            keep_inputs,
            self._join,
            wrapper,
            on_failure=self._explain_failure,
            samples=self.samples if "fan-out gradients" in self.strategy.trigger.needs else None,
        )
        try:
            self._watch_optimizers()
            if example is not None:
                with ordinary_tensors():
                    self._taps.begin(list(map(as_call, examples_in(example))))
        except BaseException:
            self.detach(keep_ages=True)  # which may be those of the present grower
            raise
        attach(self.model, self)

    # --- setup -------------------------------------------------------------------------------------------

    def _attach(self, calls: Sequence[Call]) -> None:
        """Find the widths and watch those that can grow; called before the first training pass."""
        known = known_widths(self.model, partial(self._examples, calls), tie=self.tie)
        if known.structure.unused:  # they are needed again
            calls = [call.copied() for call in calls]
        self._watch(known, calls)
        if "activations" in self.strategy.trigger.needs and self._layers:
            self.buffer.remember_untrained({layer.name: layer.fan_out_norms() for layer in self._layers})

    def _examples(self, calls: Sequence[Call]) -> list[Example]:
        return [as_example(self.model, call) for call in calls]

    def _watch(self, known: Widths, calls: Sequence[Call]) -> None:
        """Watch the widths that can grow; those that are watched already keep their state."""
        present = {layer.name: layer for layer in self._layers or ()}
        allowed = self._allowed_reasons
        chosen = choose_widths(known, self.include, self.exclude, allowed | self._passing_reasons)
        waiting = [width for width in chosen if width.obstacle(allowed) is not None]
        chosen = [width for width in chosen if width not in waiting]
        layers = make_layers(self.model, self.strategy, chosen, calls, self.buffer) if chosen else []
        for layer in layers:
            layer.processes = self._taps.processes
            old = present.get(layer.name)
            if old is not None:
                layer.initial = old.initial
            if old is not None and [record.key for record in old.records] == [record.key for record in layer.records]:
                layer.memory = old.memory
            else:
                self.strategy.trigger.start(layer)
        self._set_maximum_sizes(layers, known, begun=self._layers is not None)
        self.buffer.watch({layer.name: (layer.width, layer.route) for layer in layers if layer.route is not None})
        if self._taps.keep_inputs and not has_convolutions(self.model):
            for call in calls:
                self.buffer.count_rows(call)
        self._widths, self._layers, self._calls, self._waiting = known, layers, list(calls), waiting
        if self.prune:
            self._watch_dead_neurons(layers)
        self._schedule.start(layer.name for layer in layers)
        watched = [record for layer in layers if layer.bridge is not None for record in layer.records]
        self._taps.watch(watched, norms="gradients" in self.strategy.uses)
        self._watch_unused(known)
        self._check_budget()
        self._prepare_passes()
        if not layers:
            reasons = [why for width in waiting if (why := width.obstacle(allowed)) is not None]
            listed = "; ".join(f"{width.name}: {why}" for width, why in zip(waiting, reasons, strict=True))
            remedies = ", or ".join(dict.fromkeys(str(why.kind.remedy) for why in reasons))
            self._warn(f"no width can grow yet ({listed}): {remedies}")

    def _watch_again(self, known: Widths) -> None:
        """Watch other widths than before, in a training that has begun."""
        self._taps.muted = True
        try:
            with torch.enable_grad(), saving_apart():
                self._watch(known, self._calls)
        finally:
            self._taps.muted = False

    def _adopt(self) -> None:
        """Watch the widths that were found when a layer was called."""
        if self._completed is not None:
            completed, self._completed = self._completed, None
            self._watch_again(completed)

    def _may_watch_more(self) -> bool:
        """Whether a width can grow by now; not while the whole model is frozen, as a discriminator is at times."""
        if not any(parameter.requires_grad for parameter in self.model.parameters()):
            return False
        return any(width.obstacle(self._allowed_reasons) is None for width in self._waiting)

    def _watch_dead_neurons(self, layers: Sequence[Layer]) -> None:
        before = {} if self._dead is None else self._dead.state()
        self._dead = DeadNeurons(self.model, layers, self.buffer)
        self._dead.load(before)
        for name, reason in self._dead.problems.items():
            self._warn(f"dead neurons of {name} are not dropped: {reason}")

    def _set_maximum_sizes(self, layers: Sequence[Layer], known: Widths, begun: bool) -> None:
        limit = float(self.strategy.trigger.limit) if self.max_parameters is None else math.inf
        self._limited = set_maximum_sizes(layers, known, self.max_width, self.round_to, limit, begun)

    @property
    def _allowed_reasons(self) -> frozenset[Kind]:
        """Kinds of reasons not to grow that do not count: uncalled layers are resized when they are called."""
        return frozenset([Kind.PARTLY_FROZEN] * self.frozen + [Kind.NOT_CALLED] * self._notices_calls)

    @property
    def _passing_reasons(self) -> frozenset[Kind]:
        """Kinds of reasons not to grow that may pass: until then the width is not watched."""
        return FROZEN | ({Kind.IDLE} if self._notices_calls else set())

    @property
    def _notices_calls(self) -> bool:
        """Whether the first call of a layer is noticed.

        Several processes would have to resize a layer together, though only one may call it; a hook breaks a graph.
        """
        return not wrappers_of(self.model) and not self._taps.compiled

    def _watch_unused(self, known: Widths) -> None:
        """Notice when a layer is called that no example has used."""
        if self._unused is not None:
            self._unused.remove()
        late = known.structure.not_called if self._notices_calls and self._searches < _SEARCHES else ()
        self._unused = UnusedLayers(self.model, late, self._on_late_call)

    def _on_late_call(self, module: nn.Module, call: Call) -> None:
        """Act on the call of a layer that no example has used, which is about to run.

        If values decide what runs, a trace of the same pass may run something else, so that the layer could not be
        resized now; but then no width has grown that it may read, and the widths can be found again later.
        """
        known = self._completed or self._widths
        assert known is not None
        if not known.structure.by_values:
            self._complete(module, call)
        elif self._noticed is None:
            self._noticed, self._busy_from = call, 0

    def _search_again(self, call: Call) -> None:
        """Find the widths with another pass, in which a layer was called that no example has used."""
        assert self._widths is not None
        self._noticed, known = None, self._widths.structure
        found, resizes = self._more_widths(known, call)
        if found.structure.unused < known.unused:
            self._watch_again(self._with_present_sizes(found, known, resizes, call))
        else:  # it was not used in the trace
            self._searches += 1
            self._watch_unused(self._widths)

    def _more_widths(self, known: Structure, call: Call) -> tuple[Widths, list[Resize]]:
        with ordinary_tensors(), warnings.catch_warnings(), torch.enable_grad(), saving_apart():
            warnings.filterwarnings("ignore", "the example does not use")  # which is known
            return more_widths(self.model, known, as_example(self.model, call), self.tie)

    @torch.no_grad()
    def _complete(self, module: nn.Module, call: Call) -> None:
        """Resize a layer that is about to run, and find the widths with it."""
        assert self._widths is not None
        known = (self._completed or self._widths).structure
        with ordinary_tensors():
            found, resizes = self._more_widths(known, call)
            if not {id(own) for own in module.parameters()}.isdisjoint(
                id(own) for name, own in self.model.named_parameters() if name in found.structure.unused
            ):
                raise ValueError(
                    f"{type(module).__name__} is used in this pass for the first time, but not when the pass is run "
                    "again, so that it cannot be resized: pass a list of inputs that together use all layers to the "
                    "Grower, as example=[...]"
                )
            self._completed = self._with_present_sizes(found, known, resizes, call)
        self._busy_from = 0
        self._watch_unused(found)

    def _with_present_sizes(self, found: Widths, known: Structure, resizes: Sequence[Resize], call: Call) -> Widths:
        """Resize the layers that are new in a structure; the widths are then those of the model."""
        with Surgery(self.model, self.optimizers, self.ema, ages=self.ages) as surgery:
            resize_late_layers(surgery, found, known.unused, resizes)
        self._calls.append(call)
        self._late_calls += 1
        return publish(found, self.model)

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers that train the model. If you replace them, assign the new one, or a list of all of them."""
        return self._optimizers

    @optimizers.setter
    def optimizers(self, optimizer: Optimizers) -> None:
        new = _checked(self.model, optimizer)
        self._leave_optimizers()
        self._optimizers = new
        self._watch_optimizers()
        for each in new if self.ages else ():
            resume(each)

    def _watch_optimizers(self) -> None:
        for each in self._optimizers:
            self._handles.append(each.register_step_post_hook(self._optimizer_stepped))
            if self.ages:  # a loaded state may contain young weights
                self._handles.append(each.register_load_state_dict_post_hook(resume))

    def _leave_optimizers(self, keep_ages: bool = False) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self.ages and not keep_ages:
            for optimizer in self._optimizers:
                forget(optimizer, self.model.parameters())

    def _join(self, processes: Processes) -> None:
        """Decide together with other processes from now on; called in the first pass that runs in all of them."""
        processes.check_same(
            {
                "strategy": repr(self.strategy),
                "seed": self.generator.initial_seed(),
                "max_width, max_parameters, round_to": (self.max_width, self.max_parameters, self.round_to),
                "include, exclude, tie, frozen": (self.include, self.exclude, self.tie, self.frozen),
                "buffer": self.buffer.limit,
                "training_samples": self.samples.total,
                "steps": self.steps,
                "shapes of parameters": [(name, tuple(own.shape)) for name, own in self.model.named_parameters()],
            }
        )
        self.buffer.join(processes)
        for layer in self._layers or ():
            layer.processes = processes
        if self._widths is not None and self._widths.structure.not_called:  # attached before the model was wrapped
            self._watch_again(self._widths)
        if self.buffer.untrained is not None:  # attached before DistributedDataParallel made the models equal
            self.buffer.untrained = self.buffer.untrained.of_first(processes)

    def fill(self, *args: Any, **kwargs: Any) -> None:
        """Add a batch of inputs to the buffer, so that widths can be measured from the first gradient step.

        Takes the same arguments as the model. The model is not trained on them.
        """
        call = Call.of(args, kwargs).copied()
        self._taps.begin([call])
        self.buffer.add(call)

    def join(self, *args: Any, **kwargs: Any) -> None:
        """Watch a training pass that the model is about to run, from one of its own forward pre-hooks.

        For a grower that is created in such a hook, since hooks which are added there are first called in the next
        pass. Takes the arguments of the pass.
        """
        self._taps.enter(args, kwargs)

    # --- steps -------------------------------------------------------------------------------------------

    @property
    def stepped(self) -> bool:
        """Whether an optimizer has stepped since the last call of `step`; not while gradients are accumulated."""
        return self._stepped

    @property
    def widths(self) -> dict[str, int]:
        """Current size of each watched width."""
        return {layer.name: layer.size for layer in self._layers or ()}

    def __str__(self) -> str:
        text = overview(self.strategy, self._layers, self.history, self._schedule.waiting(self.steps))
        self.buffer.clear_activations()  # the overview may have measured activations, which the next step changes
        return text

    @property
    def layers(self) -> list[Layer]:
        """Layers of the watched widths, as triggers and initializations see them."""
        return list(self._layers or ())

    @property
    def eager(self) -> bool:
        """Whether the training passes of the next gradient step run uncompiled, in a model that is compiled.

        They do if the grower looks at them, and soon after growth.
        """
        return self._taps.eager

    def step(self, closure: Callable[[], Any] | None = None, *, samples: Any = None) -> list[Event]:
        """Look at the widths that are due after a gradient step, and grow them if the trigger asks for it.

        Args:
            closure: a function that runs the model and returns the loss; required by 'nest' on convolutions.
            samples: which samples of the training set the batch has: an integer for each item, such as their indices.
                By default samples are recognized by their inputs, which fails if these are augmented at random.

        Returns:
            The events of this step, often none: growth and, with `prune`, neurons dropped.
        """
        taps = self._taps
        if not self._attached:
            self._warn("the grower is detached, or another one has replaced it: it grows nothing any more")
            return []
        taps.unseen_step = False
        if samples is not None and taps.samples is not None and taps.forward_passes:
            taps.samples.identify(samples)
        if self.steps + 1 < self._busy_from and self._stepped and taps.forward_passes:
            self.steps += 1  # nothing else to do, so that it takes no time
            self._stepped, taps.forward_passes, taps.backward_passes = False, 0, 0
            self.samples.end_step()
            return []
        with ordinary_tensors(), torch.no_grad():
            return self._step(closure)

    def _step(self, closure: Callable[[], Any] | None) -> list[Event]:
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1 and not wrappers_of(self.model):
            self._warn(
                "there are several processes, but the model is not wrapped in DistributedDataParallel: each process "
                "grows its own model"
            )
        if self._layers is None:
            self._warn(
                "the model has not run in training mode with gradients yet, so its widths are not known: call "
                "model.train() before training, and the model itself rather than its parts or its forward()"
            )
            return []
        if not self._stepped and accumulating():
            return []
        taps = self._taps
        stepped, passes, backwards = self._stepped, taps.forward_passes, taps.backward_passes
        self._stepped, taps.forward_passes, taps.backward_passes = False, 0, 0
        events: list[Event] = []
        if not stepped:
            self._warn(
                "no optimizer step since the last call of grower.step(): call it after optimizer.step(), and if you "
                "have replaced the optimizer, tell the grower: grower.optimizers = optimizer"
            )
        elif passes == 0:
            self._warn(
                "the model has not run in training mode with gradients since the last step, so it cannot be measured: "
                "call model.train() before training"
            )
        elif backwards == 0 and taps.backward_visible:
            self._warn("optimizer.step() was called without a backward pass through the model: no growth at this step")
        elif not taps.synchronized:
            self._warn(
                "the latest pass before optimizer.step() ran inside no_sync(), so gradients were not averaged over "
                "processes: no growth at such steps"
            )
        elif self._completed is not None:
            self.steps += 1
            self._adopt()  # what was recorded at this step lacks the layer
        else:
            self.steps += 1
            names = self._schedule.due(self.steps)
            due = [layer for layer in self._layers if layer.name in names and not layer.full]
            if taps.meeting is not None and (due or self._dead is not None):
                taps.meeting.wait(
                    "grower.step() was called in process {here}, but not in process {others}: call it after every "
                    "gradient step in every process",
                    seconds=10,
                )
            if due:
                events = self._look(due, closure)
            if self._dead is not None:
                events = events + self._drop(self._dead)
        if self._noticed is not None:
            self._search_again(self._noticed)
        elif self._waiting and self._may_watch_more():
            assert self._widths is not None
            self._watch_again(self._widths)
        taps.clear_records()
        self.samples.end_step()
        self._prepare_passes()
        self.buffer.clear_activations()
        return events

    def _prepare_passes(self) -> None:
        """Record what the next look needs; a model that has just grown runs uncompiled, as it may grow again soon."""
        events = self.history.events
        grown = bool(events) and self.steps - events[-1].step < MAX_INTERVAL
        growable = {layer.name for layer in self._layers or () if not layer.full}
        self._taps.want(self._schedule.due(self.steps + 1) & growable, eagerly=grown)
        # Before the next look, its passes are prepared.
        busy = grown or self._dead is not None or bool(self._waiting) or self._noticed is not None
        self._busy_from = 0 if busy else self._schedule.next_look(growable) - 1

    def _look(self, due: Sequence[Layer], closure: Callable[[], Any] | None) -> list[Event]:
        assert self._layers is not None and self._widths is not None
        if problem := self._widths.differs_from(self.model):
            raise ValueError(f"{problem}: call grower.detach() and make a new Grower for the changed model")
        for layer in due:
            if any(record.stale for record in layer.records):
                for record in layer.records:
                    record.clear()
                self._warn(
                    "inputs were modified in place or widths resized between the backward pass and grower.step(): "
                    "gradients of such steps are not used"
                )
        if names := self._taps.without_gradients:
            self._warn(
                f"{', '.join(names)} ran without gradients in the forward pass, and not again on the same inputs in "
                "the backward pass, so the gradients there are not known: if this is activation checkpointing, pass "
                "use_reentrant=False; if it is torch.no_grad(), leave these widths out with exclude=",
                key="without gradients",
            )
        lost = self.buffer.drop_overwritten() and "activations" in self.strategy.uses
        recorded = [record for layer in due for record in layer.records]
        flags = not lost, self.buffer.known, *(bool(record.pairs) for record in recorded)
        try:
            intact, known, *present = self._taps.processes.least(flags)
        except RuntimeError as error:
            raise RuntimeError(
                f"grower.step() lost the other processes ({error}): look for an earlier error there, and call "
                "grower.step() after every gradient step in every process"
            ) from error
        if not intact:
            self._warn("the model's inputs were modified in place before grower.step(): no growth at such steps")
            return []
        for record, in_all in zip(recorded, present, strict=True):
            if not in_all:  # in some process, no gradient has reached it
                record.clear()
        if self._taps.keep_inputs:
            self.buffer.exchange(bool(known))
        self.buffer.request(layer.name for layer in due)
        for layer in due:
            if closure is None and self.strategy.initialization.needs_loss(layer):
                raise TypeError(
                    f"{layer.name}: this strategy evaluates the loss again: call grower.step(closure) with a function "
                    "that runs the model and returns the loss"
                )
            layer.now = StepContext(
                self.steps, self._seed_at(layer), partial(self._fan_ins, layer), samples=self.samples
            )
        decided: list[tuple[Layer, Decision]] = []
        growing: list[tuple[Layer, Decision, int]] = []
        trigger = self.strategy.trigger
        try:
            trigger.prepare(due)
            decisions = [(layer, trigger(layer)) for layer in due]
        except NotFinite as error:
            self._skip_look(error)
            return []
        for layer, decision in decisions:
            decision = decision if isinstance(decision, Decision) else Decision(_as_count(decision, layer))
            self.history.observe(
                Observation(self.steps, layer.name, layer.size, decision.metric, decision.threshold, decision.count)
            )
            count = rounded_up(decision.count, layer.size, self.round_to, layer.maximum) if decision.count > 0 else 0
            if count > 0 and (reason := layer.width.obstacle(self._allowed_reasons)) is not None:  # since the start
                self._warn(f"{layer.name} does not grow: {reason}", key=f"{layer.name} fixed")
                count = 0
            if count > 0:
                growing.append((layer, decision, count))
            decided.append((layer, decision))
        self._warn_about_samples(due)
        events = self._grow(growing, closure) if growing else []
        grown = {event.width for event in events}
        for layer, decision in decided:
            waits = decision.metric is None and "activations" in trigger.needs  # for more samples
            patient = trigger.patient and not waits
            self._schedule.record_look(layer.name, self.steps, patient, layer.name in grown, decision.wait)
        if grown:
            self._check_budget()
            self._warn_about_limit()
        return events

    def _check_budget(self) -> None:
        """Mark the layers that cannot grow any more, because the budget has too few parameters left."""
        for layer in self._layers or ():
            layer.out_of_budget = not affordable(self.model, self.max_parameters, layer, self.round_to)

    def _warn_about_limit(self) -> None:
        """Warn once if a width has stopped only because it has many times its initial size."""
        reached = [layer.name for layer in self._layers or () if layer.name in self._limited and layer.full]
        if reached:
            self._warn(
                f"{', '.join(reached)} stopped at {self.strategy.trigger.limit:g} times the initial size: set another "
                "limit with max_width= or max_parameters= (max_width=math.inf for none)",
                key="limit",
            )

    def _warn_about_samples(self, asked: Sequence[Layer]) -> None:
        """Warn once if nothing can be measured yet, and once per width that has more neurons than samples."""
        if "activations" not in self.strategy.trigger.needs or not asked:
            return
        waiting = {layer.name: layer.waiting for layer in asked}
        self._measured |= {name for name, text in waiting.items() if text is None}
        if all(waiting.values()):
            listed = "; ".join(f"{name}: {text}" for name, text in waiting.items())
            self._warn(f"nothing can be measured yet ({listed}): use larger batches or grower.fill()", key="waiting")
        if all(layer.full or layer.name in self._measured for layer in self._layers or ()):
            self.buffer.untrained = None
        few = {}
        for layer in asked:
            seen = None if waiting[layer.name] else self.buffer.activations(layer.name)
            if seen is not None and seen.columns < layer.size:
                few[layer.name] = f"{layer.name} ({layer.size} on {seen.columns})"
        if new := [text for name, text in few.items() if name not in self._warned_few_samples]:
            self._warned_few_samples |= few.keys()
            warnings.warn(
                f"widths with more neurons than samples, whose rank is limited by the samples: {', '.join(new)}: "
                "use larger batches or a larger buffer",
                stacklevel=5,
            )

    def _skip_look(self, error: NotFinite) -> None:
        self._warn(f"{error} are not finite: no growth at such steps")
        self.buffer.clear()  # one of the inputs may be the cause

    def _grow(self, due: Sequence[tuple[Layer, Decision, int]], closure: Callable[[], Any] | None) -> list[Event]:
        """Compute the new neurons of all layers in the current model, then grow the layers one after the other."""
        started = time.perf_counter()
        self._taps.muted = True
        try:
            additions: list[tuple[Layer, Decision, Neurons]] = []
            counts = shares(self.model, self.max_parameters, [(layer, count) for layer, _, count in due], self.round_to)
            for (layer, decision, _), count in zip(due, counts, strict=True):
                if count == 0:
                    continue
                layer.now = StepContext(
                    self.steps,
                    int(torch.randint(2**31, (1,), generator=self.generator)),
                    partial(self._fan_ins, layer),
                    None if closure is None else self._loss_with(layer, closure),
                )
                try:
                    neurons = self.strategy.initialization(layer, count, self.generator)
                except NotFinite as error:
                    self._skip_look(error)
                    return []
                if neurons.why_fewer is not None:
                    self._warn(f"{layer.name}: {neurons.why_fewer}", key=f"{layer.name} fewer")
                if neurons.count:
                    additions.append((layer, decision, neurons))
            return self._apply(additions, time.perf_counter() - started)
        finally:
            self._taps.muted = False

    def _loss_with(self, layer: Layer, closure: Callable[[], Any]) -> Callable[[Any], float]:
        """Function that maps the values of one new neuron to the loss with it, over all processes."""
        loss, processes = loss_with(self.model, layer.width, closure, self.generator), self._taps.processes
        return lambda values: float(
            processes.mean(torch.tensor(loss(values), device=next(iter(values.values())).device))
        )

    def _seed_at(self, layer: Layer) -> int:
        """A seed for a layer's trigger at this step; it takes nothing from the random numbers of growth."""
        return zlib.crc32(f"{self.generator.initial_seed()} {layer.name} {self.steps}".encode())

    def _fan_ins(self, layer: Layer) -> Mapping[str, FanIn]:
        return fan_ins_of(self.model, layer.width, layer.initial, self.optimizers) if self.margin else {}

    def _apply(self, additions: Sequence[tuple[Layer, Decision, Neurons]], before: float) -> list[Event]:
        """Grow all widths, or none if one of them fails."""
        events: list[Event] = []
        done: list[Plan] = []
        with Surgery(self.model, self.optimizers, self.ema, ages=self.ages) as surgery:
            for layer, decision, neurons in additions:
                started, size = time.perf_counter(), layer.size
                values = {key: pad_for_growth(key, value, done) for key, value in neurons.values.items()}
                changes = {name: pad_for_growth((name, -1), change, done) for name, change in neurons.changes.items()}
                plan = plan_neurons(
                    self.model,
                    layer.width,
                    neurons.count,
                    values,
                    changes,
                    generator=self.generator,
                    fan_ins=self._fan_ins(layer) if done else layer.now.fan_ins,  # other widths may have grown since
                    allowed=self._allowed_reasons,
                )
                surgery.apply(plan)
                done.append(plan)
                seconds = time.perf_counter() - started + before / len(additions)
                event = Event(self.steps, layer.name, size, layer.size, decision.metric, decision.threshold, seconds)
                events.append(event)
        self.history.events += events
        for layer in self._layers or ():
            self.strategy.trigger.resized(layer, done)
        return events

    def _drop(self, dead: DeadNeurons) -> list[Event]:
        """Drop the neurons that have been dead for long enough, from all widths or, if that fails, from none."""
        started = time.perf_counter()
        found = dead.look(self.steps, dead.patience(self.optimizers))
        done: dict[Layer, Plan] = {}
        with Surgery(self.model, self.optimizers, self.ema, ages=self.ages) as surgery:
            for layer, drop in found.items():
                plan = dead.plan(layer, drop, self.round_to, self.ema)
                if plan is not None:
                    surgery.apply(plan)
                    done[layer] = plan
        if not done:
            return []
        dead.dropped(found, done)
        for layer in self._layers or ():
            self.strategy.trigger.resized(layer, list(done.values()))
        self._check_budget()
        seconds = (time.perf_counter() - started) / len(done)
        events = [
            Event(self.steps, layer.name, plan.before, plan.after, None, None, seconds) for layer, plan in done.items()
        ]
        self.history.events += events
        return events

    # --- saving and loading ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """State needed to resume growth: sizes, baselines, buffered inputs, the random state and the history."""
        self._adopt()
        layers = {
            layer.name: {
                "initial": layer.initial,
                "memory": dict(layer.memory),
                **self._schedule.state(layer.name),
            }
            for layer in self._layers or ()
        }
        calls = [call.saved for call in self._calls]
        return {
            "strategy": repr(self.strategy),
            "steps": self.steps,
            "layers": layers,
            "untrained": None if self.buffer.untrained is None else self.buffer.untrained.state(),
            "sizes": {width.name: width.size for width in self._widths or () if width.fixed is None},
            "generator": self.generator.get_state(),
            "calls": [call.saved for call in self.buffer.calls if call.intact],
            "rank": self._taps.processes.rank if self.buffer.rank is None else self.buffer.rank,
            "passes": self.buffer.passes,
            "example": calls[0] if calls else None,
            "further examples": calls[1:],
            "waiting": [width.name for width in self._waiting],
            "resizes": [] if self._widths is None else self._widths.resizes,
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
        calls = [Call.from_parts(*call) for call in state["calls"]]
        if state["example"] is None and self._layers is not None:
            self._start_again()
        with Surgery(self.model, self.optimizers, self.ema, ages=self.ages) as surgery:
            self.resize_to(state, surgery)
        for layer in self._layers or ():
            saved = state["layers"].get(layer.name)
            if saved is None:  # it was not watched yet
                layer.initial, layer.memory = layer.size, {}
                self.strategy.trigger.start(layer)
                self._schedule.load(layer.name, {})
                continue
            layer.initial = saved["initial"]
            layer.memory = dict(saved["memory"])
            self._schedule.load(layer.name, saved)
        if self._widths is not None:
            self._set_maximum_sizes(self._layers or (), self._widths, begun=True)
            self._widths.resizes = state.get("resizes", self._widths.resizes)
        untrained = state["untrained"]
        self.buffer.untrained = None if untrained is None else Untrained.from_state(untrained)
        self.steps = state["steps"]
        self.history.load_state_dict(state["history"])
        self._taps.clear_records()
        self._check_budget()
        self._prepare_passes()
        if self._layers is None:
            self._taps.run_eagerly(True)  # to find the widths before the first pass
        self.generator.set_state(state["generator"].cpu())  # map_location may have moved it
        self.buffer.take(calls, state.get("rank", 0), state.get("passes", len(calls)))
        self._stepped, self._taps.forward_passes, self._taps.backward_passes = False, 0, 0  # of the time before loading
        self._taps.unseen_step = False
        if self._dead is not None:
            self._dead.load(state.get("dead") or {})
        self._measured.clear()
        if "samples" in state:
            self.samples.load(state["samples"])

    def check_examples(self, state: Mapping[str, Any]) -> None:
        """Raise ValueError if a state was saved before a layer was first called, which has been resized since."""
        if self._late_calls > len(state.get("further examples", ())):
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
        if self._layers is None:
            with ordinary_tensors():
                examples = [state["example"], *state.get("further examples", ())]
                self._taps.begin([Call.from_parts(*each) for each in examples])
        self.check_examples(state)
        own_names, saved_names = {layer.name for layer in self._layers or ()}, set(state["layers"])
        waiting, waited = {width.name for width in self._waiting}, set(state.get("waiting", ()))
        if saved_names - own_names - waiting or own_names - saved_names - waited:
            raise ValueError(
                f"the state is of other widths: {sorted(saved_names - own_names)} only in the state, "
                f"{sorted(own_names - saved_names)} only in the grower"
            )

    def resize_to(self, state: Mapping[str, Any], surgery: Surgery) -> None:
        """Give the model the sizes in a state, with arbitrary values: the state of the model is loaded afterwards."""
        if self._widths is not None and state["sizes"]:
            resize_widths(surgery, self._widths, state["sizes"], torch.Generator().manual_seed(0))

    def _start_again(self) -> None:
        """Wait for the first training pass, as a new grower does."""
        self._layers = self._widths = self._completed = self._dead = None
        self._calls, self._waiting, self._late_calls = [], [], 0
        self._noticed, self._searches = None, 0
        if self._unused is not None:
            self._unused.remove()
        self._schedule.start(())
        self._taps.start_again(self._attach)

    def detach(self, *, keep_ages: bool = False) -> None:
        """Remove all hooks from the model and the optimizers. The model keeps its size.

        Young weights count as old from then on, so detach after training.

        Args:
            keep_ages: whether young weights remain young, with the hooks on the optimizers that they need, so that the
                optimizers' state can still be saved or trained with.
        """
        self._attached = False
        leave(self.model, self)
        self._taps.remove()
        if self._unused is not None:
            self._unused.remove()
        self._mismatch_note.remove()
        self._leave_optimizers(keep_ages)

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

    # --- helpers -----------------------------------------------------------------------------------------

    def _optimizer_stepped(self, *_: Any) -> None:
        self._stepped = self._taps.stepped_since_backward = self._taps.unseen_step = True

    def _warn(self, message: str, key: str | None = None) -> None:
        if (key or message) not in self._warned:
            self._warned.add(key or message)
            warnings.warn(message, stacklevel=4)


def _checked(model: nn.Module, optimizer: Optimizers) -> list[Optimizer]:
    """Return the optimizers as a list; raise unless they train the model and can be resized."""
    optimizers = as_list(optimizer)
    if not optimizers:
        raise TypeError("optimizer: expected the optimizer that trains the model")
    _check_supported(optimizers)
    check_optimizers(model, dict(model.named_parameters()), optimizers)
    return optimizers


def _check_supported(optimizers: Sequence[Optimizer]) -> None:
    """Raise if an optimizer cannot be resized, or has no hooks for its steps."""
    for optimizer in optimizers:
        if isinstance(optimizer, LBFGS):
            raise ValueError(
                "LBFGS keeps one flat history of all parameters, which cannot be resized: use another optimizer, such "
                "as Adam, while the network grows, and LBFGS afterwards"
            )
        if not hasattr(optimizer, "_optimizer_step_post_hooks"):
            raise TypeError(
                f"{type(optimizer).__name__} has no step hooks, unlike the optimizers of torch: if it wraps another "
                "optimizer, pass that one"
            )


def _check_patterns(given: Sequence[str], what: str) -> list[str]:
    if isinstance(given, str):
        raise TypeError(f"{what}: expected a list of patterns, such as [{given!r}]")
    return list(given)


def _as_count(count: Any, layer: Layer) -> int:
    if isinstance(count, bool) or not hasattr(count, "__index__"):
        raise TypeError(f"{layer.name}: a trigger must return a Decision or an integer, not {count!r}")
    return int(count)
