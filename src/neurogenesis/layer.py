"""A layer, which is a width as triggers and initializations see it: weights, activations, gradients and trial runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from . import metrics
from .candidates.bridge import Bridge
from .candidates.chains import consumed_by_chain, verified_chain
from .candidates.grown import stack_values
from .candidates.looks import Pass
from .candidates.rows import rows_match
from .candidates.trials import Candidates, Trials
from .passes.activations import Activations
from .passes.buffers import Buffer
from .passes.measurements import Measurement
from .passes.processes import ALONE, Processes
from .passes.records import ConsumerRecord, NotFinite, Pair, check_finite
from .passes.replay import ModelCall
from .passes.routes import Route
from .passes.samples import Samples
from .passes.untrained import Untrained
from .structure.axes import Axis
from .structure.fills import FanIn
from .structure.weight_norm import lengths_of, weight_of
from .structure.widths import Width

Requirement = Literal["activations", "gradients", "fan-out gradients", "trials"]  # of triggers and initializations
LossWith = Callable[[Mapping[tuple[str, int], Tensor]], float]


@dataclass(frozen=True)
class StepContext:
    """The state of a layer that changes from step to step.

    Args:
        step: number of gradient steps taken.
        seed: seed of the layer's random numbers at this step.
        find_fan_ins: computes the distribution of random fan-ins, by parameter.
        loss_with: maps the values of one new neuron to the loss with it; None if the loss cannot be evaluated again.
        samples: the samples of the passes since the last step, and how many there are in the training set.
        measurement: the model on its latest inputs; None if it is not being looked at.
        untrained: the model before training, until every layer has been measured in it.
        processes: the processes that train the model together.
    """

    step: int = 0
    seed: int = 0
    find_fan_ins: Callable[[], Mapping[str, FanIn]] = dict
    loss_with: LossWith | None = None
    samples: Samples = field(default_factory=Samples)
    measurement: Measurement | None = None
    untrained: Untrained | None = None
    processes: Processes = ALONE

    @cached_property
    def fan_ins(self) -> Mapping[str, FanIn]:
        """Distribution of random fan-ins, by parameter."""
        return self.find_fan_ins()


def stable_repr(function: object) -> str:
    """The name of a function, or the repr of another object: the same in every process."""
    name = getattr(function, "__qualname__", None)
    return repr(function) if name is None else f"{getattr(function, '__module__', None)}.{name}"


class Layer:
    """A width with its producer and consumer, and what was recorded of them in training.

    A trigger takes a layer and returns how many neurons to add; an initialization takes one and returns their weights.
    Both may read everything here but write only to `memory`. The other attributes are set by the `Grower`, or by
    `neurogenesis.grow`.

    Attributes:
        model: the model.
        width: the width.
        route: where the width is watched, or None if it cannot be.
        bridge: the shape of the width's bridge, or None if gradients are not watched.
        convolutional_network: whether the network has convolutions.
        example: an input of the model, or None.
        initial: the size when growth began.
        maximum: the maximum size, or None if unlimited.
        out_of_budget: whether one more step of growth would take more parameters than there may be.
        memory: numbers, and containers of numbers and tensors, that a trigger keeps from step to step; saved with the
            `Grower`. Replace tensors instead of modifying them.
        now: state that changes from step to step; see `during`.
    """

    def __init__(
        self,
        model: nn.Module,
        width: Width,
        route: Route | None = None,
        *,
        convolutional_network: bool = False,
        bridge: Bridge | None = None,
        buffer: Buffer | None = None,
        example: ModelCall | None = None,
    ):
        self.model, self.width, self.route, self.bridge = model, width, route, bridge
        self.convolutional_network, self.example = convolutional_network, example
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
    def name(self) -> str:
        return self.width.name

    @property
    def size(self) -> int:
        return self.width.size

    @property
    def step(self) -> int:
        """Number of gradient steps taken."""
        return self.now.step

    @property
    def processes(self) -> Processes:
        """The processes that train the model together."""
        return self.now.processes

    @property
    def training_samples(self) -> float:
        """Number of samples in the training set, as far as it is known."""
        return self.now.samples.number(self.processes)

    @property
    def full(self) -> bool:
        """Whether the size has reached the maximum, or there are no parameters left."""
        return self.out_of_budget or (self.maximum is not None and self.size >= self.maximum)

    # --- weights -----------------------------------------------------------------------------------------

    @cached_property
    def producer(self) -> Axis:
        """Rows of the first layer that produces the width."""
        if self.route is not None:
            return self.route.producer
        weights = [axis for axis in self.width.producers if self.tensor(axis).ndim > 1]
        return max(weights, key=lambda axis: self.tensor(axis).numel())  # the layer itself, not a norm

    @cached_property
    def consumer(self) -> Axis:
        """Columns of the first layer that consumes the width."""
        return self.route.consumer if self.route is not None else self.consumers[0]

    @cached_property
    def consumers(self) -> list[Axis]:
        """Columns of all layers that consume the width."""
        return self.width.consumers

    def tensor(self, axis: Axis) -> Tensor:
        """Parameter of an axis; under weight norm, the weight computed from it."""
        return weight_of(self.model, axis.tensor)

    @cached_property
    def lengths(self) -> Axis | None:
        """Norms of the producer's rows, if it is under weight norm."""
        name = lengths_of(self.model, self.producer.tensor)
        return next((axis for axis in self.width.producers if axis.tensor == name), None)

    def of_neurons(self, axis: Axis, tensor: Tensor | None = None) -> Tensor:
        """Parameter of an axis, or a tensor of its shape, as neurons x per neuron x the rest."""
        return self.width.neurons(axis, self.tensor(axis) if tensor is None else tensor)

    def norms(self, axis: Axis, tensor: Tensor | None = None) -> Tensor:
        """Norm of each neuron's part of a parameter, or of a tensor of its shape."""
        return self.width.norms(axis, self.tensor(axis) if tensor is None else tensor)

    @property
    def weight(self) -> Tensor:
        """Weights of the producer, neurons x fan-in, without biases."""
        return self.of_neurons(self.producer).flatten(1)

    @property
    def fan_in(self) -> int:
        return self.tensor(self.producer).movedim(self.producer.axis, 0)[0].numel() * self.producer.per_neuron

    def weight_rank(self, eps: float = 0.01) -> int:
        """Effective rank of the producer's weights."""
        weight = self.weight
        check_finite([weight], f"weights of {self.name}")
        return metrics.quick_rank(weight, eps)

    def fan_out_norms(self) -> Tensor:
        """Norm of each neuron's outgoing weights over all consumers."""
        parameters = dict(self.model.named_parameters())
        norms = [self.norms(axis).float() for axis in self.consumers if axis.tensor in parameters]
        together: Tensor = torch.stack(norms).norm(dim=0)
        return together

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
        """The model on its latest inputs: at a look, that of all layers; None if inputs are not kept."""
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
        if seen.columns >= 2 * self.size or measurement.full(self.name):
            return None
        return f"{seen.columns} of {2 * self.size} activations per neuron seen"

    @property
    def records_gradients(self) -> bool:
        """Whether the gradients at its consumers are recorded in training."""
        return self.bridge is not None

    @property
    def has_gradients(self) -> bool:
        """Whether a backward pass has reached the first consumer since the last step."""
        return self.record is not None and bool(self.record.pairs)

    @property
    def gradient_norms(self) -> Mapping[str, Tensor]:
        """Norms of the gradients of fan-in and fan-out, per neuron."""
        return {} if self.record is None else self.record.norms(self.processes)

    def auxiliary_gradient(self) -> Tensor:
        """Gradient of the bridge, summed over the passes since the last step."""
        assert self.bridge is not None and self.record is not None
        total = sum(self.bridge.gradient(pair.H_prev, pair.D) for pair in self.record.pairs)
        assert isinstance(total, Tensor)
        total = self.processes.mean(total)
        check_finite([total], f"gradients of {self.name}")
        return total

    def auxiliary_bound(self) -> float:
        """Cheap upper bound on the norm of the auxiliary gradient."""
        assert self.bridge is not None and self.record is not None
        bound = sum(self.bridge.bound(pair.H_prev, pair.D) for pair in self.record.pairs)
        return float(
            self.processes.mean(torch.tensor(bound, dtype=torch.float64, device=self.record.pairs[0].D.device))
        )

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
        pairs = () if self.record is None else self.record.pairs
        found = self._trials.gradients(Candidates(fan_in, bias, sources), fan_out, pairs, self.now.seed)
        fan_in_gradient, fan_out_gradient = map(self.processes.mean, found)
        check_finite([fan_in_gradient, fan_out_gradient], f"gradients of {self.name}")
        return fan_in_gradient, fan_out_gradient

    @cached_property
    def other_producers(self) -> list[Axis]:
        """Rows of the other layers that produce the width."""
        own = self.producer.module
        return [a for a in self.width.producers if a.module != own and self.tensor(a).ndim > 1]

    def random_fan_ins(self, count: int, generator: torch.Generator) -> list[Tensor]:
        """Random fan-in of `count` neurons in the first producer and in the other ones."""
        return [self.default(axis, count, generator) for axis in (self.producer, *self.other_producers)]

    @cached_property
    def _has_chain(self) -> list[bool]:
        """Whether there is a shortcut to each consumer."""
        assert self.example is not None
        return [verified_chain(self.model, self.width, record.route, self.example) for record in self.records]

    def random_biases(self, fan_in: Tensor, generator: torch.Generator) -> Tensor | None:
        """Random biases of neurons, count x per neuron, so that the kinks of rectifiers are spread over the inputs.

        As if they were weights of a further, constant input, as large as the others are in the recorded passes, or 1 if
        there are none. None if the first producer has no biases.
        """
        if fan_in.is_complex() or self.bias is None:
            return None
        numbers = torch.rand(len(fan_in), self.bias.per_neuron, generator=generator).mul_(2).sub_(1).to(fan_in)
        entries = (3 * fan_in.flatten(1).square().mean(1, keepdim=True)).sqrt()  # of a uniform distribution
        return numbers * entries * self._input_scale().to(fan_in)

    def _input_scale(self) -> Tensor:
        """Root mean square of the producer's inputs in the recorded passes of all processes; 1 if there are none."""
        inputs = next(([pair.H_prev for pair in record.pairs] for record in self.records if record.pairs), [])
        if not inputs:
            return torch.ones(())
        floating = [each.detach().to(torch.promote_types(each.dtype, torch.float32)) for each in inputs]
        squares = sum(torch.linalg.vector_norm(each).square() for each in floating)
        return self.processes.mean(torch.as_tensor(squares) / sum(each.numel() for each in inputs)).sqrt()

    def passes_with(self, fan_ins: Sequence[Tensor], biases: Tensor | None = None) -> list[list[Pass]]:
        """For each consumer and recorded pass, its input, what candidates would add to it, and its output's gradient.

        Frozen consumers have none, because they would not learn. Nor are there passes that cannot be repeated, because
        a consumer gets random samples.

        Args:
            fan_ins: weights of the candidates in the first producer and in the other ones, as of `random_fan_ins`.
            biases: biases of the candidates in the first producer, as of `random_biases`; zero by default.
        """
        candidates = Candidates(fan_ins[0], biases, others=dict(zip(self.other_producers, fan_ins[1:], strict=True)))
        passes: list[list[Pass]] = [[] for _ in self.records]
        by_call: dict[int, list[tuple[int, Pair]]] = {}  # in one run of the model, all consumers without a shortcut
        for number, record in enumerate(self.records):
            if not self.model.get_parameter(record.route.consumer.tensor).requires_grad:
                continue
            for pair in record.pairs:
                if pair.H.numel() and not self._has_chain[number]:
                    by_call.setdefault(id(pair.call), []).append((number, pair))
                elif pair.H.numel():
                    given = candidates, pair.H_prev, pair.call, self.now.seed
                    h = consumed_by_chain(self.model, self.width, record.route, *given)
                    passes[number].append(Pass(pair.H, h, pair.D, self.now.samples.of(pair.call)))
        for pairs in by_call.values():
            routes, pair = [self.records[number].route for number, _ in pairs], pairs[0][1]
            found = self._trials.consumed(candidates, pair.H_prev, pair.call, routes, self.now.seed)
            for (number, pair), each in zip(pairs, found, strict=True):
                module = self.model.get_submodule(self.records[number].route.consumer.module)
                if each is not None and rows_match(module, pair.H, each):
                    passes[number].append(Pass(pair.H, each, pair.D, self.now.samples.of(pair.call)))
        return passes

    @property
    def _trials(self) -> Trials:
        if self.route is None:
            raise ValueError(f"{self.name} cannot be watched: candidates cannot be tried")
        return Trials(self.model, self.width, self.route, self.measurement)

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

    def change(self, axis: Axis, neurons: Tensor, added: Tensor) -> Tensor:
        """Change of a parameter that adds `added`, neurons x per neuron x the rest, to the given neurons."""
        result = torch.zeros_like(self.tensor(axis))
        positions = self.width.positions(axis)[neurons].flatten().to(result.device)
        return result.index_add_(axis.axis, positions, added.flatten(0, 1).movedim(0, axis.axis).to(result))

    def values(self, axis: Axis, new: Tensor) -> Tensor:
        """Convert values of new neurons, count x per neuron x the rest, to the layout that `grow` takes."""
        rest = self.tensor(axis).movedim(axis.axis, 0).shape[1:]
        return stack_values(self.width, axis, new.reshape(len(new), axis.per_neuron, *rest))[1]

    @cached_property
    def biases(self) -> list[Axis]:
        """One-dimensional parameters of the first producer along the width."""
        return [a for a in self.width.axes if a.module == self.producer.module and self.tensor(a).ndim == 1]

    @cached_property
    def bias(self) -> Axis | None:
        """The biases of the first producer, if it has any."""
        return next((axis for axis in self.biases if axis.tensor.rpartition(".")[2] == "bias"), None)


def scaled_like(new: Tensor, present: Tensor) -> Tensor:
    """Scale vectors (first axis) to the mean norm of the present ones; unchanged if that is 0."""
    return scaled_to(new, float(present.flatten(1).norm(dim=1).mean()))


def scaled_to(new: Tensor, norm: float) -> Tensor:
    """Scale vectors (first axis) to a norm; unchanged if that is 0."""
    if not norm > 0:
        return new
    norms = new.flatten(1).norm(dim=1).clamp_min(torch.finfo(new.dtype).tiny)
    scaled: Tensor = new * (norm / norms).reshape(-1, *[1] * (new.ndim - 1))
    return scaled
