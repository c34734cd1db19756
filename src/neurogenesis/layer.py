"""A width as triggers and initializations see it: its weights, what was seen of it, and trials of new neurons."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from . import metrics
from .candidates.bridge import Bridge
from .candidates.grown import grown_tensors, stack
from .passes.buffers import Activations, Buffer, Untrained
from .passes.replay import Call, Watch, replay
from .passes.routes import Route, pick
from .structure.axes import Axis
from .structure.fills import FanIn
from .structure.weight_norm import lengths_of, weight_of
from .structure.widths import Width


class NotFinite(ArithmeticError):
    """Activations or gradients of a layer are not all finite."""


class Pair(NamedTuple):
    """What a pass has shown of a layer: the producer's input, and the gradient at the consumer's output."""

    call: Call
    H_prev: Tensor
    D: Tensor
    version: int  # of the input, which somebody may write into
    shapes: tuple[torch.Size, torch.Size]  # of the producer's and the consumer's weight


class Layer:
    """A width with the layer that produces it and the one that consumes it, and what was seen of both.

    A trigger gets one and says how many neurons to add; an initialization gets one and says with which weights.

    Attributes:
        width: the width.
        initial: its size when growing began.
        maximum: its largest size, or None.
        step: how many gradient steps have been taken.
        convolutional: whether the network has convolutions.
        memory: numbers that a trigger keeps from step to step; saved with the `Grower`.
    """

    def __init__(self, model: nn.Module, width: Width, route: Route | None, convolutional: bool):
        self.model, self.width, self.route = model, width, route
        self.initial = width.size
        self.maximum: int | None = None
        self.step = 0
        self.convolutional = convolutional
        self.memory: dict[str, float] = {}
        self.bridge: Bridge | None = None
        self.buffer: Buffer | None = None  # the model's latest inputs
        self.example: Call | None = None  # an input of the model
        self.pairs: list[Pair] = []  # of the passes since the last step
        self.gradient_norms: dict[str, Tensor] = {}  # of fan-in and fan-out, per neuron
        self.loss_with: Callable[[Mapping[tuple[str, int], Tensor]], float] | None = None
        self.seed = 0  # of what is random in trials
        self.fan_ins: Mapping[str, FanIn] = {}  # what random ones are like, by parameter
        self.next_look = 1  # the gradient step at which its trigger is asked again
        self.quiet = 0  # how often in a row it was asked and did not grow
        self.looking = True  # whether that is the coming step, whose gradients are wanted

    def __repr__(self) -> str:
        return f"Layer({self.name!r}, size={self.size})"

    @property
    def name(self) -> str:
        return self.width.name

    @property
    def size(self) -> int:
        return self.width.size

    # --- weights -----------------------------------------------------------------------------------------

    @cached_property
    def producer(self) -> Axis:
        """The rows of the first layer that produces the width."""
        if self.route is not None:
            return self.route.producer
        weights = [axis for axis in self.width.producers if self.tensor(axis).ndim > 1]
        return max(weights, key=lambda axis: self.tensor(axis).numel())  # not the norms beside it

    @cached_property
    def consumer(self) -> Axis:
        """The columns of the first layer that consumes it."""
        return self.route.consumer if self.route is not None else self.consumers[0]

    @cached_property
    def consumers(self) -> list[Axis]:
        """The columns of all layers that consume it."""
        return self.width.consumers

    def tensor(self, axis: Axis) -> Tensor:
        """A parameter; under weight norm the weight that the layer computes with."""
        return weight_of(self.model, axis.tensor)

    @cached_property
    def lengths(self) -> Axis | None:
        """The lengths of the producer's rows, where it is under weight norm."""
        name = lengths_of(self.model, self.producer.tensor)
        return next((axis for axis in self.width.producers if axis.tensor == name), None)

    def of_neurons(self, axis: Axis, tensor: Tensor | None = None) -> Tensor:
        """A parameter, or something of its shape, neurons x per neuron x the rest."""
        rows = (self.tensor(axis) if tensor is None else tensor).movedim(axis.axis, 0)
        positions = self.width.positions(axis)
        if self.width.in_order(axis):
            return rows.reshape(*positions.shape, *rows.shape[1:])
        return rows[positions.to(rows.device)]

    def norms(self, axis: Axis, tensor: Tensor | None = None) -> Tensor:
        """The norm of each neuron's part of a parameter, or of something of its shape."""
        part = self.of_neurons(axis, tensor)
        norms: Tensor = torch.linalg.vector_norm(part, dim=tuple(range(1, part.ndim)))
        return norms

    @property
    def weight(self) -> Tensor:
        """The producer's weights, neurons x fan-in, without biases."""
        return self.of_neurons(self.producer).flatten(1)

    @property
    def fan_in(self) -> int:
        return self.tensor(self.producer).movedim(self.producer.axis, 0)[0].numel() * self.producer.per_neuron

    def weight_rank(self, eps: float = 0.01) -> int:
        """The effective rank of the producer's weights."""
        weight = self.weight
        _check_finite([weight], f"weights of {self.name}")
        return metrics.quick_rank(weight, eps)

    def fan_out_norms(self) -> Tensor:
        """The norm of each neuron's outgoing weights, in all consumers together."""
        parameters = dict(self.model.named_parameters())
        norms = [self.norms(axis).float() for axis in self.consumers if axis.tensor in parameters]
        together: Tensor = torch.stack(norms).norm(dim=0)
        return together

    # --- what was seen -----------------------------------------------------------------------------------

    def rank(self, eps: float = 0.01, scale: Tensor | None = None, enough: int | None = None) -> int:
        """The effective rank of the activations, their rows scaled if a scale is given.

        If it can be shown to be no larger than `enough` at less cost, an upper bound that is.
        """
        return self._activations.rank(eps, scale, enough)

    def orthogonality(self, scale: Tensor | None = None) -> float:
        """The orthogonality of the activations; in networks with convolutions, of positions x neurons."""
        return self._activations.orthogonality(scale, by_sample=self.convolutional)

    @property
    def activations(self) -> Tensor:
        """The activations H, neurons x samples, of the model as it is now on its latest inputs."""
        return self._activations.matrix

    @property
    def _activations(self) -> Activations:
        found = None if self.buffer is None else self.buffer.activations(self.name)
        if found is None:
            raise ValueError(f"{self.name}: none of the model's latest inputs has led through it")
        if not found.finite:
            raise NotFinite(f"activations of {self.name}")
        return found

    def untrained(self) -> tuple[Activations, Untrained] | None:
        """The activations of the untrained model on the same inputs, and that model; only until first asked for."""
        if self.buffer is None or (found := self.buffer.untrained_activations(self.name)) is None:
            return None
        assert self.buffer.untrained is not None
        if not found.finite:
            raise NotFinite(f"activations of {self.name}")
        return found, self.buffer.untrained

    @property
    def full(self) -> bool:
        """Whether it has its maximum."""
        return self.maximum is not None and self.size >= self.maximum

    @property
    def ready(self) -> bool:
        """Whether there are activations enough to measure: twice as many as neurons, or as many as the buffer holds."""
        return self.waiting is None

    @property
    def waiting(self) -> str | None:
        """What is being waited for before its activations can be measured; None if nothing is."""
        if self.buffer is None:
            return "activations are not watched"
        seen = self.buffer.activations(self.name)
        if seen is None:
            return "no input has led through it yet"
        if seen.columns >= 2 * self.size or self.buffer.full:
            return None
        return f"{seen.columns} of {2 * self.size} activations per neuron seen"

    @property
    def shapes(self) -> tuple[torch.Size, torch.Size]:
        return self.tensor(self.producer).shape, self.tensor(self.consumer).shape

    def drop_stale(self) -> bool:
        """Forget gradients of other sizes, or whose inputs were written into since; whether there were any."""
        fresh = [pair for pair in self.pairs if pair.shapes == self.shapes and pair.H_prev._version == pair.version]
        stale = len(fresh) < len(self.pairs)
        if stale:
            self.pairs.clear()
            self.gradient_norms.clear()
        return stale

    def auxiliary_gradient(self) -> Tensor:
        """The gradient of the bridging layer over the passes since the last step."""
        assert self.bridge is not None
        total = sum(self.bridge.gradient(H_prev, D) for _, H_prev, D, *_ in self.pairs)
        assert isinstance(total, Tensor)
        _check_finite([total], f"gradients of {self.name}")
        return total

    def auxiliary_bound(self) -> float:
        """An upper bound of the auxiliary gradient's norm, at the cost of norms."""
        assert self.bridge is not None
        return sum(self.bridge.bound(H_prev, D) for _, H_prev, D, *_ in self.pairs)

    # --- trials of new neurons ---------------------------------------------------------------------------

    def random_fan_in(self, count: int, generator: torch.Generator) -> Tensor:
        """Xavier-uniform fan-in of `count` neurons, as long as new ones are to be."""
        return self.default(self.producer, count, generator)

    def trial(self, fan_in: Tensor, gradients: bool = False) -> tuple[Activations, Activations]:
        """The activations of the present neurons and of candidates on the model's latest inputs."""
        runs = self._seen_again((), fan_in=fan_in, gradients=gradients)
        limit = 0 if self.buffer is None else self.buffer.limit
        with torch.set_grad_enabled(gradients):
            H, new = (Activations([seen[key] for seen in runs]).latest(limit) for key in ("H", "new"))
        if not (H.finite and new.finite):
            raise NotFinite(f"activations of {self.name}")
        return H, new

    def inputs_and_outputs(self) -> tuple[Tensor, Tensor]:
        """The producer's inputs H_prev and outputs Z on the model's latest inputs, features x samples."""
        runs = self._seen_again(("H_prev", "Z"))
        H_prev, Z = (torch.cat([seen[key].flatten(0, -2).T for seen in runs], 1) for key in ("H_prev", "Z"))
        _check_finite([H_prev, Z], f"activations of {self.name}")
        return H_prev, Z

    def trial_gradients(
        self, fan_in: Tensor, fan_out: Tensor, bias: Tensor | None = None, sources: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The gradients that candidates' fan-in and fan-out would get, to first order: with D as it is.

        Args:
            fan_in: the candidates' weights in the producer, count x per neuron x the rest.
            fan_out: their weights in the consumer, likewise.
            bias: their biases, count x per neuron.
            sources: the present neuron each is a copy of, or -1.
        """
        total: list[Tensor] = [torch.zeros_like(fan_in), torch.zeros_like(fan_out)]
        for call, H_prev, D, *_ in self.pairs:
            leaves = [fan_in.detach().clone().requires_grad_(), fan_out.detach().clone().requires_grad_()]
            (seen,) = self._seen_again(
                (), [call], fan_in=leaves[0], bias=bias, H_prev=H_prev, sources=sources, gradients=True
            )
            with torch.enable_grad():
                output = self._consume(seen["consumed"].to(leaves[1].dtype), leaves[1])
            gradients = torch.autograd.grad(output, leaves, D.reshape(output.shape).to(output))
            total = [t + g for t, g in zip(total, gradients, strict=True)]
        _check_finite(total, f"gradients of {self.name}")
        return total[0], total[1]

    def _consume(self, inputs: Tensor, fan_out: Tensor) -> Tensor:
        """What candidates with a fan-out, count x per neuron x the rest, add to the consumer's output."""
        axis, module = self.consumer, self.model.get_submodule(self.consumer.module)
        weight = fan_out.flatten(0, 1).movedim(0, axis.axis)
        if isinstance(module, _ConvNd):
            convolve: Any = (F.conv1d, F.conv2d, F.conv3d)[weight.ndim - 3]
            return convolve(inputs, weight, None, module.stride, module.padding, module.dilation)  # type: ignore
        return F.linear(inputs, weight)

    def _seen_again(
        self,
        also: Sequence[str],
        calls: Sequence[Call] | None = None,
        *,
        fan_in: Tensor | None = None,
        bias: Tensor | None = None,
        H_prev: Tensor | None = None,
        sources: Tensor | None = None,
        gradients: bool = False,
    ) -> list[dict[str, Tensor]]:
        """Run the model again up to the consumer, with candidates if they are given, and note what passes by."""
        route, model, width = self.route, self.model, self.width
        if route is None:
            raise ValueError(f"{self.name}: its layers cannot be watched")
        paths = {route.producer.module, route.point.module, route.consumer.module}
        modules = {path: model.get_submodule(path) for path in paths}
        count = 0 if fan_in is None else len(fan_in)
        tensors: dict[str, Tensor] = {}
        attributes: list[tuple[nn.Module, str, int]] = []
        if fan_in is not None:
            with torch.set_grad_enabled(gradients):
                tensors, attributes = grown_tensors(model, width, route, count, fan_in, bias, sources)
        positions = width.positions_after(route.point, count)
        present, new = positions[: width.size], positions[width.size :]
        result = []
        known = () if self.buffer is None else self.buffer.calls
        for call in known if calls is None else calls:
            seen: dict[str, Tensor] = {}

            def at_producer(x: Tensor, seen: dict[str, Tensor] = seen) -> Tensor | None:
                if "H_prev" in also:
                    seen.setdefault("H_prev", x)
                return H_prev

            def at_point(h: Tensor, seen: dict[str, Tensor] = seen) -> None:
                if "H" not in seen:
                    module = modules[route.point.module]
                    seen["H"] = pick(h, module, present)
                    if count:
                        seen["new"] = pick(h, module, new)

            def at_consumer(h: Tensor, seen: dict[str, Tensor] = seen) -> None:
                channel = 1 if isinstance(modules[route.consumer.module], _ConvNd) else -1
                columns = width.new_positions(route.consumer, count).flatten()
                seen.setdefault("consumed", h.index_select(channel, columns.to(h.device)))

            def after_producer(z: Tensor, seen: dict[str, Tensor] = seen) -> None:
                seen.setdefault("Z", z)

            watches = [Watch(modules[route.point.module], route.side, at_point)]
            if "H_prev" in also or H_prev is not None:
                watches.append(Watch(modules[route.producer.module], "input", at_producer))
            if H_prev is not None:
                watches.append(Watch(modules[route.consumer.module], "input", at_consumer))
            if "Z" in also:
                watches.append(Watch(modules[route.producer.module], "output", after_producer))
            replay(model, call, watches, tensors=tensors, attributes=attributes, seed=self.seed, gradients=gradients)
            result.append(seen)
        return result

    # --- weights for growth ------------------------------------------------------------------------------

    def default(self, axis: Axis, count: int, generator: torch.Generator | None = None) -> Tensor:
        """What new neurons get along an axis by default, count x per neuron x the rest."""
        generator = torch.Generator().manual_seed(self.seed) if generator is None else generator
        old = self.tensor(axis)
        fan_in = self.fan_ins.get(axis.tensor) if axis.role == "producer" else None
        rows = self.width.new_entries(axis, count, old, generator, fan_in).movedim(axis.axis, 0)
        order = self.width.new_positions(axis, count).flatten().argsort().argsort()
        new: Tensor = rows[order.to(rows.device)].unflatten(0, (count, axis.per_neuron))  # type: ignore[no-untyped-call]
        return new

    def as_fan_in(self, new: Tensor) -> Tensor:
        """Vectors (first axis) scaled to the length of new fan-ins."""
        fan_in = self.fan_ins.get(self.producer.tensor)
        if fan_in is None:
            return scaled_like(new, self.weight)
        return scaled_to(new, fan_in.length * self.producer.per_neuron**0.5)

    def change(self, axis: Axis, neurons: Tensor, added: Tensor) -> Tensor:
        """A change of a parameter that adds something, neurons x per neuron x the rest, to some neurons."""
        result = torch.zeros_like(self.tensor(axis))
        positions = self.width.positions(axis)[neurons].flatten().to(result.device)
        return result.index_add_(axis.axis, positions, added.flatten(0, 1).movedim(0, axis.axis).to(result))

    def values(self, axis: Axis, new: Tensor) -> Tensor:
        """Values of new neurons, count x per neuron x the rest, as `grow` takes them for a parameter."""
        rest = self.tensor(axis).movedim(axis.axis, 0).shape[1:]
        return stack(self.width, axis, new.reshape(len(new), axis.per_neuron, *rest))[1]

    @cached_property
    def biases(self) -> list[Axis]:
        """The one-dimensional parameters of the first producer along the width."""
        return [a for a in self.width.axes if a.module == self.producer.module and self.tensor(a).ndim == 1]


def _check_finite(tensors: Sequence[Tensor], what: str) -> None:
    for tensor in tensors:
        wide = torch.promote_types(tensor.dtype, torch.float32)
        if not math.isfinite(float(torch.linalg.vector_norm(tensor.detach(), dtype=wide).abs())):
            raise NotFinite(what)


def scaled_like(new: Tensor, present: Tensor) -> Tensor:
    """New vectors (first axis) scaled to the mean norm of present ones; where these are all 0, as they are."""
    return scaled_to(new, float(present.flatten(1).norm(dim=1).mean()))


def scaled_to(new: Tensor, norm: float) -> Tensor:
    """Vectors (first axis) scaled to a norm; as they are if that is 0."""
    if not norm > 0:
        return new
    norms = new.flatten(1).norm(dim=1).clamp_min(torch.finfo(new.dtype).tiny)
    scaled: Tensor = new * (norm / norms).reshape(-1, *[1] * (new.ndim - 1))
    return scaled
