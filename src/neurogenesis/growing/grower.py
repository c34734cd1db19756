"""`Grower` watches a model while it trains and grows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..defaults import MAX_INTERVAL, STRATEGY
from ..history import Event, History
from ..layer import Layer
from ..notices import Notices
from ..passes.buffers import Buffer
from ..passes.replay import ModelCall
from ..passes.samples import Samples
from ..passes.training import TrainingPasses
from ..strategies import Strategy
from ..structure.examples import Examples, examples_in
from ..structure.modes import ordinary_tensors
from ..structure.widths import Widths
from ..surgery.attached import attach, leave
from ..surgery.checks import check_average
from ..surgery.optimizer_state import Optimizers
from .accumulation import accumulating
from .choosing import as_call, as_example, has_convolutions
from .deepening import Deepener, Deepening
from .looking import Looks
from .mismatch import MismatchNote, explain_failure
from .overview import overview
from .recording import APART, NOT_RUN, Recorder, apart
from .saving import Growth
from .schedule import Schedule
from .settings import MaxWidth, Setting, Settings
from .trained import TrainedModel, checked_model, checked_optimizers
from .watching import Watching


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
        max_width: the maximum size of each width: an int (number of neurons), a factor of the initial size (``2.0`` or
            ``"2x"``), or a mapping from names or kinds to these. By default 64 times the initial size with 'need', 16
            times with strategies that do not stop by themselves, and unlimited with others or if there is a budget;
            heads stop when together they have as many neurons as the layer that reads them has outputs.
        max_parameters: the maximum number of parameters of the model; unlimited by default. When it is reached, neurons
            go to the widths that want most of them per parameter.
        max_flops: the same for the floating-point operations of a forward pass of one sample; see `neurogenesis.flops`.
        round_to: grow neurons, but not heads or groups, to multiples of this number, such as 8, which suits hardware.
        include: patterns of the widths to grow, such as ``["features.*"]``, or kinds, such as ``["heads"]``; all by
            default. A word that is a kind always means the kind.
        exclude: patterns or kinds of widths not to grow.
        tie: groups of patterns of widths that grow together, as in `neurogenesis.widths`.
        ema: an averaged copy of the model, which grows too.
        prune: whether neurons that have died are dropped; see `neurogenesis.growing.dying`.
        depth: when blocks are added to a stack, and to how many; see `neurogenesis.Deepening`. None are by default.
        frozen: whether widths grow that have frozen parameters (``requires_grad`` is False). By default frozen parts
            stay as they are, and their widths are watched as soon as they are unfrozen.
        training_samples: the number of samples in the training set, by which 'need' knows how much can be learned from
            it. By default they are counted, recognized by their inputs; with random augmentation, every input is new.
        every: look at the first gradient step and every `every` steps after it. By default the grower looks at a width
            at every step while it grows and less often while it does not, but at least at every twelfth step.
        buffer: the number of latest samples on which activations are measured, each position of a sequence counting as
            one; by default 1568, or 128 in networks with convolutions, and at least twice as many as there are neurons.
        seed: seed of all random numbers of growth. Torch's global random state is not used.
        ages: whether the optimizer treats new weights as if training had just begun; see `neurogenesis.ages`.
        margin: whether random fan-in is balanced and survives the first steps; see `neurogenesis.surgery.reach`.

    The last five, from `every` on, are for experiments: their defaults are right for training.
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

    strategy, max_width, max_parameters, max_flops, round_to = Setting(), Setting(), Setting(), Setting(), Setting()
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
        max_flops: int | None = None,
        round_to: int = 1,
        include: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        tie: Sequence[str | Sequence[str]] = (),
        ema: nn.Module | None = None,
        prune: bool = False,
        depth: Deepening | None = None,
        frozen: bool = False,
        training_samples: int | None = None,
        every: int | None = None,
        buffer: int | None = None,
        seed: int = 0,
        ages: bool = True,
        margin: bool = True,
    ):
        self.model = checked_model(model)
        optimizers = checked_optimizers(self.model, optimizer)
        self.settings = Settings.checked(
            self.model, strategy, max_width=max_width, max_parameters=max_parameters, max_flops=max_flops,
            round_to=round_to, include=include, exclude=exclude, tie=tie, prune=prune, frozen=frozen,
            training_samples=training_samples, every=every, buffer=buffer, ages=ages, margin=margin,
        )  # fmt: skip
        if ema is not None:
            check_average(self.model, ema)
            self.strategy.initialization.check_average()
        self.steps = 0  # number of gradient steps
        self.history = History()
        self.buffer = Buffer(self.model, buffer or (128 if has_convolutions(self.model) else 1568))
        self.samples = Samples(training_samples)
        self.generator = torch.Generator().manual_seed(seed)
        self._notices = Notices()
        self._trained = TrainedModel(self.model, optimizers, ema, ages, lambda: self._recorder.optimizer_stepped())
        self._recorder = Recorder(self.model, self.settings, self.buffer, self.samples)
        self._watching = Watching(self._trained, self.settings, self.buffer, self._notices)
        self._schedule = Schedule(every)
        self._looks = Looks(
            self._trained, self.settings, self._recorder, self._watching, self._schedule, self.history, self.generator,
            self._notices,
        )  # fmt: skip
        self._deepener = Deepener(self._trained, self.settings, depth, self._recorder, self.generator, self._notices)
        self._growth = Growth(
            self._trained, self.settings, self._recorder, self._watching, self._schedule, self._looks, self._deepener,
            self.generator, self.history, self._begin, self._watch_called,
        )  # fmt: skip
        self._attached = True
        self._busy_from: float = 0  # the first step after which there is something to do
        self._mismatch_note = MismatchNote(self.model, lambda: self._watching.widths)
        self._passes = TrainingPasses(
            self.model, before=self._before_pass, after=self._recorder.end_pass, unrecorded=self._recorder.count_pass,
            compiled=self._compiled_pass, failed=lambda error: explain_failure(error, self.layers),
            wrapper=model if getattr(model, "_orig_mod", None) is self.model else None,
        )  # fmt: skip
        try:
            self._trained.watch_optimizers()
            if example is not None:
                with ordinary_tensors():
                    self._begin(list(map(as_call, examples_in(example))))
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
    def flops(self) -> int:
        """Floating-point operations of a forward pass of one sample, as `neurogenesis.flops` counts them."""
        return 0 if self._watching.structure is None else self._watching.structure.flops_with()

    @property
    def training_flops(self) -> int:
        """Floating-point operations of all training passes so far: three times those of their forward passes."""
        return self._recorder.compute.total(self._watching.structure)

    @property
    def layers(self) -> list[Layer]:
        """Layers of the watched widths, as triggers and initializations see them."""
        return list(self._watching.layers)

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers that train the model. If you replace them, assign the new one, or a list of all of them."""
        return self._trained.optimizers

    @optimizers.setter
    def optimizers(self, optimizer: Optimizers) -> None:
        self._trained.replace_optimizers(checked_optimizers(self.model, optimizer))

    @property
    def ema(self) -> nn.Module | None:
        """The averaged copy of the model, which grows too."""
        return self._trained.ema

    @property
    def stepped(self) -> bool:
        """Whether an optimizer has stepped since the last call of `step`; not while gradients are accumulated."""
        return self._recorder.since.stepped

    @property
    def eager(self) -> bool:
        """Whether a compiled model runs uncompiled until the next gradient step: at looks, and after growth."""
        return self._passes.eager

    def __str__(self) -> str:
        waiting, compute = self._schedule.waiting(self.steps), (self.flops, self.training_flops)
        watched, depth = self._watching.watched, self._deepener.row(self.steps)
        return overview(self.strategy, watched, self.history, waiting, self._looks.missing, *compute, depth)

    def _begin(self, calls: Sequence[ModelCall]) -> None:
        """Find the widths in calls of the model, unless they are known, and watch those that can grow."""
        if self._watching.watched is not None:
            return
        known = self._watching.find(calls)
        self._deepener.begin([as_example(self.model, call) for call in calls])
        self._watch(known)
        self._looks.begin()

    def _watch(self, known: Widths) -> None:
        """Watch the widths that can grow; those that are watched already keep their state."""
        layers = self._watching.watch(known, compiled=self._passes.compiled)
        self._schedule.start(layer.name for layer in layers)
        self._recorder.watch(layers, norms="gradients" in self.strategy.uses)
        self._prepare_passes()

    def _watch_called(self) -> bool:
        """Watch the widths with layers that have been called for the first time; returns whether there are any."""
        found = self._watching.late.take()
        if found is not None:
            self._watch(found)
        return found is not None

    # --- training passes ---------------------------------------------------------------------------------

    def fill(self, *args: Any, **kwargs: Any) -> None:
        """Add a batch of inputs, the arguments of the model, so that widths can be measured from the first step."""
        call = ModelCall.of(args, kwargs).copied()
        self._begin([call])
        self.buffer.add(call)

    def watch_pass(self, *args: Any, **kwargs: Any) -> None:
        """Watch the training pass that begins, with these arguments, if the grower is created in a hook before it."""
        self._passes.enter(args, kwargs)

    def _before_pass(self, args: Any, kwargs: Any) -> None:
        self._find_processes()
        call = self._recorder.call_of(args, kwargs)
        self._begin([call])
        self._recorder.begin_pass(call)

    def _compiled_pass(self, inputs: Sequence[Tensor]) -> None:
        self._find_processes()
        self._recorder.add_compiled_pass(inputs)

    def _find_processes(self) -> None:
        """Decide together with other processes from the first pass on that runs in all of them."""
        shared = {**self.settings.described, "seed": self.generator.initial_seed(), "steps": self.steps}
        processes = self._recorder.join_processes(shared)
        if processes is None:
            return
        known = self._watching.widths
        if known is not None and known.structure.not_called:  # attached before the model was wrapped
            self._watch(known)
        self._looks.join(processes)

    def _prepare_passes(self) -> None:
        """Record what the next look needs; a model that has just grown runs uncompiled, as it may grow again soon."""
        events, unknown = self.history.events, self._watching.watched is None
        grown = bool(events) and self.steps - events[-1].step < MAX_INTERVAL
        growable = {layer.name for layer in self.layers if not layer.full}
        names = self._schedule.due(self.steps + 1) & growable
        self._recorder.taps.want(names)
        looked_at = self._deepener.prepare(self.steps + 1) or bool(names)
        self._passes.recorded = looked_at or self.settings.keep_inputs or unknown
        self._passes.run_eagerly(looked_at or grown or unknown)
        # Before the next look, its passes are prepared.
        busy = grown or unknown or self._watching.may_change
        coming = min(self._schedule.next_look(growable), self._deepener.next_step(self.steps))
        self._busy_from = 0 if busy else coming - 1

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
        self._recorder.begin_step(samples)
        if self.steps + 1 < self._busy_from and self._recorder.since.plain and not self._watching.late.pending:
            self.steps += 1  # nothing else to do, so that it takes no time
            self._recorder.end_step()
            return []
        with ordinary_tensors(), torch.no_grad():
            return self._step(closure)

    def _step(self, closure: Callable[[], Any] | None) -> list[Event]:
        if apart(self.model):
            self._notices.warn(APART)
        if self._watching.watched is None:
            self._notices.warn(NOT_RUN)
            return []
        if not self._recorder.since.stepped and accumulating():
            return []
        events: list[Event] = []
        problem = self._recorder.take().problem
        if problem is not None:
            self._notices.warn(problem)
        else:
            self.steps += 1
            self._recorder.compute.settle(self._watching.structure)
            self._deepener.ask(self.steps)
            if not self._watch_called():  # what was recorded at this step lacks the layers
                events = self._look(closure)
            events += self._deepen()
        if (more := self._watching.more_widths()) is not None:
            self._watch(more)
        self._recorder.clear()
        self._passes.clear()
        self._prepare_passes()
        return events

    def _look(self, closure: Callable[[], Any] | None) -> list[Event]:
        """Ask the trigger about the layers that are due, and look for dead neurons."""
        names = self._schedule.due(self.steps)
        due = [layer for layer in self.layers if layer.name in names and not layer.full]
        if due or self._watching.dead is not None:
            self._looks.meet()
        grown = self._looks.look(self.steps, due, closure) if due and not self._looks.keep(self.steps, due) else []
        return grown + self._looks.drop_dead(self.steps)

    def _deepen(self) -> list[Event]:
        """Add blocks if it is time, and watch the widths in them."""
        events = self._deepener.deepen(self.steps, self.history)
        if events:
            known = self._deepener.follow(self._watching, self._schedule, self.history)
            self.history.events += events
            self._recorder.clear()
            self._watch(known)
        return events

    # --- saving and loading ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """State needed to resume growth: sizes, baselines, buffered inputs, the random state and the history."""
        self._watch_called()
        return {"steps": self.steps, **self._growth.state()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state, whose sizes the model gets. Load the states of model and optimizer afterwards."""
        self._growth.load(state)
        self.steps = state["steps"]
        self._recorder.start_step()
        self._prepare_passes()

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise ValueError unless a state can be loaded; finds the widths first if they are not known."""
        self._growth.check(state)

    def inputs_resized(self) -> None:
        """Drop the latest inputs: the model takes others from now on."""
        self.buffer.clear()

    def detach(self, *, keep_ages: bool = False) -> None:
        """Remove all hooks from the model and the optimizers. The model keeps its size.

        Young weights count as old from then on, so detach after training.

        Args:
            keep_ages: whether young weights remain young, with the hooks on the optimizers that they need, so that the
                optimizers' state can still be saved or trained with.
        """
        self._attached = False
        leave(self.model, self)
        for each in (self._passes, self._recorder, self._watching.late, self._deepener, self._mismatch_note):
            each.remove()
        self._trained.leave_optimizers(keep_ages)
