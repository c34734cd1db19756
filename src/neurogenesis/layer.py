"""A layer, which is a width as triggers and initializations see it: weights, activations, gradients and trial runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from . import metrics
from .candidates.bridge import Bridge
from .candidates.chains import Chain
from .candidates.grown import Candidates
from .candidates.looks import Pass, Recorded
from .candidates.regions import Region
from .candidates.steps import Look, ready_recorded, windows_after, with_kept
from .candidates.trials import Trials
from .candidates.weights import Weights, scaled_like, scaled_to
from .candidates.windows import Statistics, Window
from .passes.activations import Activations
from .passes.buffers import Buffer
from .passes.context import StepContext
from .passes.measurements import Measurement
from .passes.processes import ALONE, Processes
from .passes.records import ConsumerRecord, NotFinite, check_finite, input_scale
from .passes.replay import ModelCall
from .passes.routes import Route
from .passes.samples import Samples
from .passes.untrained import Untrained
from .structure.axes import Axis
from .structure.paths import tensor_at
from .structure.widths import Width

Requirement = Literal["activations", "gradients", "fan-out gradients", "trials"]  # of triggers and initializations


def stable_repr(function: object) -> str:
    """The name of a function, or the repr of another object: the same in every process."""
    name = getattr(function, "__qualname__", None)
    return repr(function) if name is None else f"{getattr(function, '__module__', None)}.{name}"


class Layer(Weights):
    """A width with its producer and consumer, and what was recorded of them in training.

    A trigger takes a layer and returns how many neurons to add; an initialization takes one and returns their weights.
    Both may read everything here but write only to `memory`. The other attributes are set by the `Grower`, or by
    `neurogenesis.grow`.

    Attributes:
        model: the model.
        width: the width.
        route: where the width is watched, or None if it cannot be.
        records_gradients: whether the gradients at its consumers are recorded in training.
        bridge: the shape of the width's bridge, if the trigger or the initialization uses it.
        convolutional_network: whether the network has convolutions.
        example: an input of the model, or None.
        initial: the size when growth began.
        maximum: the maximum size, or None if unlimited.
        out_of_budget: whether one more step of growth would take more parameters than there may be.
        memory: numbers, and containers of numbers and tensors, that a trigger keeps from step to step; saved with the
            `Grower`, see `Trigger.saved`. Replace tensors instead of modifying them.
        now: state that changes from step to step; see `during`.
    """

    def __init__(
        self,
        model: nn.Module,
        width: Width,
        route: Route | None = None,
        *,
        convolutional_network: bool = False,
        records_gradients: bool = False,
        bridge: Bridge | None = None,
        buffer: Buffer | None = None,
        example: ModelCall | None = None,
    ):
        super().__init__(model, width, route)
        self.convolutional_network, self.example = convolutional_network, example
        self.records_gradients, self.bridge = records_gradients, bridge
        self.initial = width.size
        self.maximum: int | None = None
        self.out_of_budget = False
        self.memory: dict[str, Any] = {}
        self.now = StepContext()
        self.records = [] if route is None else [ConsumerRecord(model, width, each) for each in (route, *route.others)]
        self._buffer = None if route is None else buffer

    @contextmanager
    def during(self, now: StepContext) -> Iterator[None]:
        """Inside the context, the layer is as at this time; only its step is remembered."""
        before, self.now = self.now, now
        try:
            yield
        finally:
            self.now = replace(before, step=now.step)

    def __repr__(self) -> str:
        return f"Layer({self.name!r}, size={self.size})"

    @property
    def step(self) -> int:
        """Number of gradient steps taken."""
        return self.now.step

    @property
    def processes(self) -> Processes:
        """The processes that train the model together: activations, gradients and statistics are those of all."""
        return self.now.processes

    @property
    def training_samples(self) -> float:
        """Number of samples in the training set, as far as it is known."""
        return self.now.samples.number()

    @property
    def features(self) -> int:
        """The number of neurons that a head consists of; 1 for a neuron."""
        return self.width.features

    @property
    def full(self) -> bool:
        """Whether the size has reached the maximum, or there are no parameters left."""
        return self.out_of_budget or (self.maximum is not None and self.size >= self.maximum)

    # --- weights -----------------------------------------------------------------------------------------

    def weight_rank(self, eps: float = 0.01) -> int:
        """Effective rank of the producer's weights."""
        weight = self.weight
        check_finite([weight], f"weights of {self.name}")
        return metrics.quick_rank(weight, eps)

    # --- activations and gradients -----------------------------------------------------------------------

    def rank(self, eps: float = 0.01, scale: Tensor | None = None, enough: int | None = None) -> int:
        """Effective rank of the activations.

        Args:
            eps: threshold of the effective rank.
            scale: a factor for each neuron's activations.
            enough: if a cheaper bound shows that the rank is at most this, that bound is returned.
        """
        return self._activations.rank(eps, scale, enough)

    def orthogonality(self, scale: Tensor | None = None) -> float:
        """Orthogonality of the activations; in networks with convolutions, of (neurons x positions) x samples."""
        return self._activations.orthogonality(scale, by_sample=self.convolutional_network)

    @property
    def activations(self) -> Tensor:
        """Activations H of the current model on its latest inputs, neurons x samples."""
        return self._activations.matrix

    @property
    def measurement(self) -> Measurement | None:
        """The model on its latest inputs, shared by all layers during a look; None if inputs are not kept."""
        if self.now.measurement is not None or self._buffer is None:
            return self.now.measurement
        return self._buffer.measurement()

    @property
    def _activations(self) -> Activations:
        measurement = self.measurement
        found = None if measurement is None else measurement.activations(self.name)
        if found is None:
            raise ValueError(
                f"{self.name} has no activations: none of the model's latest inputs has reached it (they are kept only "
                "if the needs of the trigger or the initialization include 'activations' or 'trials')"
            )
        if not found.finite:
            raise NotFinite(f"activations of {self.name}")
        return found

    def untrained(self) -> tuple[Activations, Untrained] | None:
        """Activations of the untrained model on the same inputs, and that model; None once all layers are measured."""
        model, measurement = self.now.untrained, self.measurement
        found = None if model is None or measurement is None else model.activations(self.name, measurement)
        if model is None or found is None:
            return None
        if not found.finite:
            raise NotFinite(f"activations of {self.name}")
        return found, model

    @property
    def ready(self) -> bool:
        """Whether there are enough activations to measure: twice as many as neurons, or a full buffer."""
        return self.waiting is None

    @property
    def waiting(self) -> str | None:
        """What is missing before the activations can be measured; None if nothing is."""
        measurement = self.measurement
        if measurement is None:
            return "activations are not watched"
        seen = measurement.activations(self.name)
        if seen is None:
            return "no input has reached it yet"
        if seen.columns >= 2 * seen.neurons or measurement.full(self.name):
            return None
        return f"{seen.columns} of {2 * seen.neurons} activations per neuron seen"

    @property
    def has_gradients(self) -> bool:
        """Whether a backward pass has reached the first consumer since the last step."""
        return self.record is not None and bool(self.record.pairs)

    @property
    def gradient_norms(self) -> Mapping[str, Tensor]:
        """Norms of the gradients of fan-in and fan-out, per neuron."""
        return {} if self.record is None else self.record.gradient_norms

    def auxiliary_gradient(self) -> Tensor:
        """Gradient of the bridge, summed over the passes since the last step."""
        bridge, record = self.bridge, self.record
        assert bridge is not None and record is not None
        total = record.total(lambda pair: bridge.gradient(pair.H_prev, pair.D))
        check_finite([total], f"gradients of {self.name}")
        return total

    def auxiliary_bound(self) -> float:
        """Cheap upper bound on the norm of the auxiliary gradient."""
        bridge, record = self.bridge, self.record
        assert bridge is not None and record is not None
        return float(record.total(lambda pair: bridge.bound(pair.H_prev, pair.D)))

    # --- trial runs --------------------------------------------------------------------------------------

    @property
    def record(self) -> ConsumerRecord | None:
        """What was recorded at the first consumer."""
        return self.records[0] if self.records else None

    def random_fan_in(self, count: int, generator: torch.Generator) -> Tensor:
        """Xavier-uniform fan-in of `count` neurons, scaled to the norm of new fan-ins."""
        return self.default(self.producer, count, generator)

    def trial(self, fan_in: Tensor, gradients: bool = False) -> tuple[Activations, Activations]:
        """Activations of the present neurons, which are finite, and of candidates on the model's latest inputs."""
        return self._trials.activations(fan_in, self.now.seed, gradients)

    def inputs_and_outputs(self) -> tuple[Tensor, Tensor]:
        """Inputs H_prev and outputs Z of the producer on the model's latest inputs, features x samples."""
        return self._trials.inputs_and_outputs(self.now.seed)

    def trial_gradients(
        self, fan_in: Tensor, fan_out: Tensor, bias: Tensor | None = None, sources: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Gradients of the fan-in and fan-out of candidates; see `candidates.trials`."""
        trials, record = self._trials, self.record
        assert record is not None
        found = trials.gradients(Candidates(fan_in, bias, sources), fan_out, record, self.now.seed)
        check_finite(found, f"gradients of {self.name}")
        return found

    def random_fan_ins(self, count: int, generator: torch.Generator) -> list[Tensor]:
        """Random fan-in of `count` neurons in the first producer and in the other ones."""
        return [self.default(axis, count, generator) for axis in (self.producer, *self.other_producers)]

    @cached_property
    def _chains(self) -> list[Chain | None]:
        """The chain of modules from the producer on each route, if there is one."""
        example = self.example
        return [None if example is None else each.verified_chain(example) for each in self._plain_trials]

    @cached_property
    def _shortcuts(self) -> list[Chain | Region | None]:
        """The shortcut for candidates on each route, if there is one."""
        example, pairs = self.example, zip(self._chains, self._plain_trials, strict=True)
        return [chain if chain or example is None else each.verified_region(example) for chain, each in pairs]

    @property
    def _plain_trials(self) -> list[Trials]:
        return [Trials(self.model, self.width, each.route, None) for each in self.records]

    def random_biases(self, fan_in: Tensor, generator: torch.Generator) -> Tensor | None:
        """Random biases of neurons, count x per neuron, so that the kinks of rectifiers are spread over the inputs.

        As if they were weights of a further, constant input, as large as the others are in the recorded passes, or 1 if
        there are none. None if the first producer has no biases.
        """
        if fan_in.is_complex() or self.bias is None or self.width.kind == "heads":  # new ones have none in attention
            return None
        numbers = torch.rand(len(fan_in), self.bias.per_neuron, generator=generator).mul_(2).sub_(1).to(fan_in)
        entries = (3 * fan_in.flatten(1).square().mean(1, keepdim=True)).sqrt()  # of a uniform distribution
        return numbers * entries * input_scale(self.records).to(fan_in)

    def passes_with(
        self, fan_ins: Sequence[Tensor], biases: Tensor | None = None, later: bool = False
    ) -> list[list[Pass | Recorded]]:
        """For each consumer and recorded pass, its input, what candidates would add to it, and its output's gradient.

        Frozen consumers have none, because they would not learn. Nor are there passes that cannot be repeated, because
        a consumer gets random samples.

        Args:
            fan_ins: weights of the candidates in the first producer and in the other ones, as of `random_fan_ins`.
            biases: biases of the candidates in the first producer, as of `random_biases`; zero by default.
            later: whether candidates may be run later; see `run_candidates`.
        """
        candidates = Candidates(fan_ins[0], biases, others=dict(zip(self.other_producers, fan_ins[1:], strict=True)))
        return self._trials.passes(candidates, self.records, self._shortcuts, self.now.samples, self.now.seed, later)

    def with_kept_passes(self, window: Window, samples: Samples) -> Window | None:
        """A window with the recorded passes, in which candidates are run later; None if more is to be done."""
        fan_in, passes = window.fan_ins[0], []
        if len(window.fan_ins) > 1:
            return None
        for record, chain, shapes in zip(self.records, self._chains, window.shapes, strict=True):
            if chain is None or not record.pairs or record.route.side != "input" or record.stale:
                return None
            kinds = {(own.H_prev.dtype, own.H_prev.device) for own in record.pairs}
            trained = tensor_at(self.model, record.route.consumer.tensor).requires_grad
            if not trained or record.shapes != shapes or kinds != {(fan_in.dtype, fan_in.device)}:
                return None
            if not all(map(chain.runs_later, record.pairs)):
                return None
            passes.append([Recorded(own.H_prev, own.H, own.D, samples.of(own.call)) for own in record.pairs])
        consumers = [record.route.place(self.model, record.route.consumer) for record in self.records]
        return with_kept(window, consumers, passes)

    def run_candidates(self, window: Window, place: int, inputs: Tensor) -> Tensor:
        """What the candidates of a window add to the input of a consumer, given the first producer's inputs."""
        chain = self._chains[place]
        assert chain is not None
        return chain.of(window.fan_ins[0], window.biases)(inputs)

    def settled(self, window: Window) -> Window:
        """A window in which all candidates have been run, and nothing is ready: the layer may be resized."""
        run = partial(self.run_candidates, window)
        consumers = [record.route.place(self.model, record.route.consumer) for record in self.records]
        return ready_recorded(window, consumers, run).completed(run)

    def statistics(self, window: Window) -> Statistics | None:
        """What a window shows, on the samples of all processes; see `candidates.windows`."""
        return window.statistics(self.training_samples, self.processes)

    @property
    def _trials(self) -> Trials:
        if self.route is None:
            raise ValueError(f"{self.name} cannot be watched: candidates cannot be tried")
        return Trials(self.model, self.width, self.route, self.measurement, self._chains[0])

    # --- weights for growth ------------------------------------------------------------------------------

    def default(self, axis: Axis, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Default values of new neurons along an axis, count x per neuron x the rest."""
        generator = torch.Generator().manual_seed(self.now.seed) if generator is None else generator
        old = self.tensor(axis)
        fan_in = self.now.fan_ins.get(axis.tensor) if axis.role == "producer" else None
        rows = self.width.new_entries(axis, count, old, generator, fan_in).movedim(axis.axis, 0)
        positions = self.width.new_positions(axis, count).flatten()
        if bool((positions.diff() < 0).any()):
            rows = rows[positions.argsort().argsort().to(rows.device)]
        new: Tensor = rows.unflatten(0, (count, axis.per_neuron))  # type: ignore[no-untyped-call]
        return new

    def as_fan_in(self, new: Tensor) -> Tensor:
        """Scale vectors (first axis) to the norm of new fan-ins."""
        fan_in = self.now.fan_ins.get(self.producer.tensor)
        if fan_in is None:
            return scaled_like(new, self.weight)
        return scaled_to(new, fan_in.length * self.producer.per_neuron**0.5)


def after_step(
    layers: Sequence[Layer], windows: Sequence[Window], last: Callable[[Layer, Window], bool]
) -> list[Window]:
    """The windows of layers with the passes since the last step, of all processes.

    Args:
        layers: the layers.
        windows: their windows so far.
        last: whether a window of a layer ends with its latest look.
    """
    looks = [
        Look(
            layer.name,
            window,
            [record.route.place(layer.model, record.route.consumer) for record in layer.records],
            partial(layer.passes_with, window.fan_ins, window.biases, later=layer.processes.count == 1),
            partial(layer.run_candidates, window),
            partial(last, layer),
        )
        for layer, window in zip(layers, windows, strict=True)
    ]
    return windows_after(looks, layers[0].processes if layers else ALONE)
