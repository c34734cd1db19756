"""Trial runs: activations and gradients of candidate neurons in the current model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ..passes.activations import Activations
from ..passes.measurements import Measurement
from ..passes.records import NotFinite, Pair, check_finite
from ..passes.replay import ModelCall, Watch, replay, replays
from ..passes.routes import Route, select_neurons
from ..structure.axes import Axis
from ..structure.labels import AttributeValue
from ..structure.widths import Width
from .grown import grown_tensors
from .recorded import RecordedChain

Attributes = Sequence[tuple[nn.Module, str, AttributeValue]]


@dataclass(frozen=True)
class Candidates:
    """Weights of candidate neurons.

    Args:
        fan_in: weights in the producer, count x per neuron x the rest.
        bias: biases, count x per neuron; zero by default.
        sources: for each, the index of the present neuron that it copies, or -1.
        others: weights in other producers, by their axes; random by default.
    """

    fan_in: Tensor
    bias: Tensor | None = None
    sources: Tensor | None = None
    others: Mapping[Axis, Tensor] | None = None


@dataclass(frozen=True)
class Trials:
    """Runs of the model with candidates for one width, up to its consumer.

    Args:
        model: the model.
        width: the width.
        route: where the width is watched.
        measurement: the model on its latest inputs.
    """

    model: nn.Module
    width: Width
    route: Route
    measurement: Measurement | None

    def activations(self, fan_in: Tensor, seed: int, gradients: bool = False) -> tuple[Activations, Activations]:
        """Activations of the present neurons, which are finite, and of candidates on the model's latest inputs."""
        found = None if gradients else self.in_chains(fan_in, seed)
        H, new = self.in_model(fan_in, seed, gradients) if found is None else found
        if not H.finite:
            raise NotFinite(f"activations of {self.width.name}")
        return H, new

    def in_model(self, fan_in: Tensor, seed: int, gradients: bool = False) -> tuple[Activations, Activations]:
        """Activations of the present neurons and of candidates, from runs of the model with both."""
        runs = self._runs(self._calls, seed, Candidates(fan_in), gradients=gradients)
        with torch.set_grad_enabled(gradients):
            H, new = (Activations([seen[key] for seen in runs]).latest(self._limit) for key in ("H", "new"))
        return H, new

    @torch.no_grad()
    def in_chains(self, fan_in: Tensor, seed: int) -> tuple[Activations, Activations] | None:
        """Same as `in_model`, but several times faster: candidates run alone; None if they cannot."""
        if not RecordedChain.possible(self.model, self.route) or any(call.autocast is not None for call in self._calls):
            return None
        H: list[Tensor] = []
        new: list[Tensor] = []
        missing = self._limit
        with replays(self.model, seed=seed) as run:
            for call in reversed(self._calls):
                if missing <= 0:
                    break
                chain = RecordedChain(self.model, self.width, self.route)
                run(call, chain.watches)
                if not chain.complete:
                    return None
                parts = chain.candidates(fan_in, missing)
                new[:0] = parts
                H[:0] = chain.present[-missing:].split([len(part) for part in parts])  # type: ignore[no-untyped-call]
                missing -= len(chain.present)
        return Activations(H), Activations(new)

    def inputs_and_outputs(self, seed: int) -> tuple[Tensor, Tensor]:
        """Inputs H_prev and outputs Z of the producer on the model's latest inputs, features x samples."""
        runs = self._runs(self._calls, seed, inputs_and_outputs=True)
        H_prev, Z = (torch.cat([seen[key].flatten(0, -2).T for seen in runs], 1) for key in ("H_prev", "Z"))
        check_finite([H_prev, Z], f"activations of {self.width.name}")
        return H_prev, Z

    def gradients(
        self, candidates: Candidates, fan_out: Tensor, pairs: Sequence[Pair], seed: int
    ) -> tuple[Tensor, Tensor]:
        """Gradients of the fan-in and fan-out of candidates, to first order: D is that of the current model.

        Args:
            candidates: the candidates.
            fan_out: their weights in the consumer, count x per neuron x the rest.
            pairs: inputs and gradients recorded in training passes.
            seed: seed of random operations in the model.
        """
        total: list[Tensor] = [torch.zeros_like(candidates.fan_in), torch.zeros_like(fan_out)]
        for pair in pairs:
            leaves = [each.detach().clone().requires_grad_() for each in (candidates.fan_in, fan_out)]
            own = Candidates(leaves[0], candidates.bias, candidates.sources)
            (consumed,) = self.consumed(own, pair.H_prev, pair.call, [self.route], seed, gradients=True)
            if consumed is None:
                continue
            with torch.enable_grad():
                consumer = self.model.get_submodule(self.route.consumer.module)
                output = apply_weights(consumer, consumed.to(leaves[1].dtype), leaves[1], self.route.consumer)
            gradients = torch.autograd.grad(output, leaves, pair.D.reshape(output.shape).to(output))
            total = [t + g for t, g in zip(total, gradients, strict=True)]
        return total[0], total[1]

    @property
    def _limit(self) -> int:
        return 0 if self.measurement is None else self.measurement.items(self.width.name)

    @property
    def _calls(self) -> Sequence[ModelCall]:
        return () if self.measurement is None else self.measurement.calls_for([self.width.name])

    def consumed(
        self,
        candidates: Candidates,
        H_prev: Tensor,
        call: ModelCall,
        routes: Sequence[Route],
        seed: int = 0,
        gradients: bool = False,
    ) -> list[Tensor | None]:
        """Candidates in the inputs of some consumers, in a run of the model with the first producer's input given.

        Candidates have no fan-out, so everything else is as without them. None for consumers that do not run.
        """
        count = len(candidates.fan_in)
        everything = replace(self.route, later=frozenset())  # a consumer may not run, so that the run goes on
        with torch.set_grad_enabled(gradients):
            tensors, attributes = grown_tensors(
                self.model, self.width, everything, count, candidates.fan_in, candidates.bias, candidates.sources,
                candidates.others,
            )  # fmt: skip
        found: dict[int, Tensor] = {}
        given = [H_prev]  # for the first call of the producer
        watches = [
            Watch(
                self.model.get_submodule(self.route.producer.module),
                "input",
                lambda _: given.pop() if given else None,
            )
        ]
        for number, route in enumerate(routes):
            consumer = self.model.get_submodule(route.consumer.module)
            watches.append(Watch(consumer, "input", partial(self._at_consumer, found, number, route, consumer, count)))
        replay(self.model, call, watches, tensors=tensors, attributes=attributes, seed=seed, gradients=gradients)
        return [found.get(number) for number in range(len(routes))]

    def producer_input(self, call: ModelCall) -> Tensor | None:
        """The producer's input in a call of the model, in evaluation mode; None if the producer does not run then."""
        (seen,) = self._runs([call], 0, inputs_and_outputs=True, evaluation=True)
        return seen.get("H_prev")

    def _runs(
        self,
        calls: Sequence[ModelCall],
        seed: int,
        candidates: Candidates | None = None,
        *,
        inputs_and_outputs: bool = False,
        gradients: bool = False,
        evaluation: bool = False,
    ) -> list[dict[str, Tensor]]:
        """Run the model up to the consumer, with candidates if given; returns the recorded tensors of each call."""
        route, count = self.route, 0 if candidates is None else len(candidates.fan_in)
        tensors: Mapping[str, Tensor] = {}
        attributes: Attributes = ()
        if candidates is not None:
            with torch.set_grad_enabled(gradients):
                tensors, attributes = grown_tensors(
                    self.model, self.width, route, count, candidates.fan_in, candidates.bias, candidates.sources
                )
        producer, point = (self.model.get_submodule(axis.module) for axis in (route.producer, route.point))
        result = []
        for call in calls:
            seen: dict[str, Tensor] = {}
            watches = [Watch(point, route.side, partial(self._at_point, seen, point, count))]
            if inputs_and_outputs:
                watches.append(Watch(producer, "input", partial(_keep, seen, "H_prev")))
                watches.append(Watch(producer, "output", partial(_keep, seen, "Z")))
            replay(
                self.model, call, watches, tensors=tensors, attributes=attributes, seed=seed, gradients=gradients,
                evaluation=evaluation,
            )  # fmt: skip
            result.append(seen)
        return result

    def _at_point(self, seen: dict[str, Tensor], module: nn.Module, count: int, h: Tensor) -> None:
        if "H" not in seen:  # of a layer called more than once, the first call counts
            positions = self.width.positions_after(self.route.point, count)
            seen["H"] = select_neurons(h, module, positions[: self.width.size])
            if count:
                seen["new"] = select_neurons(h, module, positions[self.width.size :])

    def _at_consumer(
        self, found: dict[int, Tensor], number: int, route: Route, module: nn.Module, count: int, h: Tensor
    ) -> None:
        if number not in found:
            channel = 1 if isinstance(module, _ConvNd) else -1
            columns = self.width.new_positions(route.consumer, count).flatten()
            found[number] = h.index_select(channel, columns.to(h.device))


def apply_weights(
    module: nn.Module, inputs: Tensor, weights: Tensor, axis: Axis, biases: Tensor | None = None
) -> Tensor:
    """Output of a linear layer or convolution with the weights of some neurons only.

    Args:
        module: the layer.
        inputs: its inputs; if the axis is that of its inputs, those of the neurons only.
        weights: weights of the neurons along the axis, count x per neuron x the rest.
        axis: an axis of the layer's weight.
        biases: biases of the neurons, count x per neuron; zero by default.
    """
    weight = weights.flatten(0, 1).movedim(0, axis.axis)
    bias = None if biases is None else biases.flatten()
    if isinstance(module, _ConvNd):
        convolve: Any = (F.conv1d, F.conv2d, F.conv3d)[weight.ndim - 3]
        return convolve(inputs, weight, bias, module.stride, module.padding, module.dilation)  # type: ignore
    return F.linear(inputs, weight, bias)


def _keep(seen: dict[str, Tensor], key: str, tensor: Tensor) -> None:
    seen.setdefault(key, tensor)
