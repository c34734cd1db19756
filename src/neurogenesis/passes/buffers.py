"""The model's latest inputs, and what the model as it is makes of them: all activations of a measurement come from one
network.

Activations caught in the training passes would come from a different network each, and would have to be kept, resized
and saved. Running the present network again costs a forward pass for each measurement, so `Grower` measures only as
often as decisions may change.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from .. import metrics
from ..structure.axes import named_tensors
from ..structure.widths import Width
from .replay import Call, Watch, replay
from .routes import Route, pick


@dataclass
class Activations:
    """Activations of one layer, by batch: samples x neurons x positions, which may differ from batch to batch."""

    batches: list[Tensor]

    @property
    def neurons(self) -> int:
        return self.batches[0].shape[1]

    @property
    def columns(self) -> int:
        """Activations per neuron."""
        return sum(batch.shape[0] * batch.shape[2] for batch in self.batches)

    @cached_property
    def finite(self) -> bool:
        return all(_finite(batch) for batch in self.batches)

    @property
    def matrix(self) -> Tensor:
        """Neurons x activations."""
        return torch.cat([metrics.by_neuron(batch) for batch in self.batches], 1)

    def latest(self, samples: int) -> Activations:
        """Those of the latest samples."""
        kept: list[Tensor] = []
        for batch in reversed(self.batches):
            if samples <= 0:
                break
            kept.insert(0, batch[-samples:])
            samples -= len(batch)
        return Activations(kept)

    def rank(self, eps: float, scale: Tensor | None = None, enough: int | None = None) -> int:
        """The effective rank, with the rows of neurons scaled if a scale is given.

        If it can be shown to be no larger than `enough` at less cost, an upper bound that is.
        Products in single precision decide where no eigenvalue is too close to eps², in double precision else.
        """
        if self.columns <= self.neurons:
            matrix = self.matrix
            return metrics.quick_rank(matrix if scale is None else matrix * scale[:, None].to(matrix), eps)
        if self.neurons >= metrics.FEW and self.batches[0].dtype == torch.float32:
            gram = _scaled(self._single_gram, scale)
            found = metrics.eigenvalues_surely_above(gram, self.columns * eps**2, metrics.rounding(gram), enough)
            if found is not None:
                return found
        return metrics.eigenvalues_above(_scaled(self._gram, scale) / self.columns, eps**2)

    def orthogonality(self, scale: Tensor | None = None, by_sample: bool = False) -> float:
        """The orthogonality of neurons x activations, or of (positions x neurons) x samples.

        The latter takes samples of one size: those of the latest batch's.
        """
        if not by_sample:
            return metrics.orthogonality_of_gram(_scaled(self._gram, scale), self.columns)
        rows = self.samples
        return metrics.orthogonality(metrics.by_sample(rows if scale is None else rows * scale[:, None].to(rows)))

    @property
    def samples(self) -> Tensor:
        """Samples x neurons x positions, of batches that have as many positions as the latest."""
        positions = self.batches[-1].shape[2]
        return torch.cat([batch for batch in self.batches if batch.shape[2] == positions])

    @cached_property
    def _gram(self) -> Tensor:
        """The products of neurons, in double precision; some columns at a time, which need no copy of all."""
        total: Tensor | None = None
        for batch in self.batches:
            matrix = metrics.by_neuron(batch)
            wide = torch.promote_types(matrix.dtype, torch.float64)
            for part in matrix.split(max(1, _ENTRIES // len(matrix)), 1):  # type: ignore[no-untyped-call]
                part = part.to(wide)
                total = part @ part.mH if total is None else total.addmm_(part, part.mH)
        assert total is not None
        return total

    @cached_property
    def _single_gram(self) -> Tensor:
        """The same, of products in single precision."""
        parts = [part for batch in self.batches for part in metrics.products(metrics.by_neuron(batch).T)]
        return parts[0].double() if len(parts) == 1 else torch.stack(parts).sum(0, dtype=torch.float64)


_ENTRIES = 2**18  # of a part in double precision: 2 MB, which stay in the cache


def _finite(values: Tensor) -> bool:
    wide = torch.promote_types(values.dtype, torch.float32)  # half precision would overflow
    return math.isfinite(float(torch.linalg.vector_norm(values, dtype=wide)))


def _scaled(gram: Tensor, scale: Tensor | None) -> Tensor:
    return gram if scale is None else gram * torch.outer(scale, scale).to(gram)


@dataclass(frozen=True)
class Point:
    """Where a layer's activations are taken, and which of them are its neurons'."""

    module: str
    side: Any
    positions: Tensor
    in_order: bool

    @staticmethod
    def of(width: Width, route: Route) -> Point:
        """The point of a width as it is now."""
        point = route.point
        return Point(point.module, route.side, width.positions(point), width.in_order(point))


@dataclass(frozen=True)
class Untrained:
    """The model before training: its tensors, the sizes its modules stated, and what is asked of its layers."""

    tensors: Mapping[str, Tensor]
    attributes: Sequence[tuple[str, str, int]]
    points: Mapping[str, Point]
    fan_out_norms: Mapping[str, Tensor]

    def state(self) -> list[Any]:
        points = {name: (p.module, p.side, p.positions, p.in_order) for name, p in self.points.items()}
        return [dict(self.tensors), list(self.attributes), points, dict(self.fan_out_norms)]

    @staticmethod
    def from_state(state: Sequence[Any]) -> Untrained:
        tensors, attributes, points, norms = state
        return Untrained(tensors, attributes, {name: Point(*point) for name, point in points.items()}, norms)


class Buffer:
    """The model's latest inputs.

    Args:
        model: the model.
        limit: how many samples are measured on, at most.
    """

    def __init__(self, model: nn.Module, limit: int):
        self.model, self.limit = model, limit
        self.calls: list[Call] = []
        self.seed = 0  # of what is random in the model, such as dropout
        self.untrained: Untrained | None = None  # until every layer has been measured in it
        self.overwritten = False  # whether the model, or its user, writes into its inputs
        self._points: dict[str, tuple[Width, Route]] = {}
        self._modes: list[tuple[nn.Module, bool]] = []
        self._seen: dict[str, Activations] = {}
        self._asked: list[str] = []

    def add(self, call: Call) -> None:
        """Add the inputs of a call of the model; the oldest that are not needed any more go."""
        self.forget()
        self.calls.append(call)
        held = self.samples
        while held - self.calls[0].samples >= self.limit:
            held -= self.calls.pop(0).samples
        self._modes = [(module, module.training) for module in self.model.modules()]

    @property
    def samples(self) -> int:
        return sum(call.samples for call in self.calls)

    @property
    def full(self) -> bool:
        return self.samples >= self.limit

    def watch(self, name: str, width: Width, route: Route) -> None:
        """Take the activations of a width, from now on, wherever the model's latest inputs lead them."""
        self._points[name] = width, route

    def drop_overwritten(self) -> bool:
        """Drop inputs that somebody has written into since; whether none are left of some."""
        intact = [call for call in self.calls if call.intact]
        lost = bool(self.calls) and not intact
        self.calls[:] = intact
        return lost

    def ask(self, names: Iterable[str]) -> None:
        """Layers whose activations will be asked for: one run of the model serves them all."""
        self.forget()
        self._asked = list(names)

    def forget(self) -> None:
        """Let go of all activations: the model is another one now."""
        self._seen.clear()
        self._asked = []

    def activations(self, name: str) -> Activations | None:
        """The activations of a layer in the model as it is now; None if no input has led through it."""
        if name not in self._seen:
            names = self._asked if name in self._asked else [name]
            points = {each: Point.of(*self._points[each]) for each in names if each in self._points}
            self._seen |= self._run(points)
        return self._seen.get(name)

    def untrained_activations(self, name: str) -> Activations | None:
        """The activations of a layer in the untrained model on the same inputs."""
        if self.untrained is None or name not in self.untrained.points:
            return None
        points = {name: self.untrained.points[name]}
        modules = dict(self.model.named_modules(remove_duplicate=False))
        attributes = [(modules[path], attribute, value) for path, attribute, value in self.untrained.attributes]
        return self._run(points, self.untrained.tensors, attributes).get(name)

    def remember_untrained(self, fan_out_norms: Mapping[str, Tensor]) -> None:
        """Keep the model as it is, to measure its layers when there are enough inputs for that."""
        first_width = next(iter(self._points.values()))[0]
        self.untrained = Untrained(
            {name: tensor.detach().clone() for name, tensor in named_tensors(self.model).items()},
            first_width.structure.attribute_values(),
            {name: Point.of(*each) for name, each in self._points.items()},
            fan_out_norms,
        )

    def _run(
        self,
        points: Mapping[str, Point],
        tensors: Mapping[str, Tensor] | None = None,
        attributes: Sequence[tuple[nn.Module, str, Any]] = (),
    ) -> dict[str, Activations]:
        """Run the model on all inputs, up to the last of the points."""
        batches: dict[str, list[Tensor]] = {name: [] for name in points}
        modes = [(module, "training", mode) for module, mode in self._modes if module.training != mode]
        for call in self.calls:
            seen: dict[str, Tensor] = {}

            def look(name: str, module: nn.Module, h: Tensor, seen: dict[str, Tensor] = seen) -> None:
                if name not in seen:  # a layer called twice counts the first time
                    point = points[name]
                    values = pick(h.detach(), module, point.positions, point.in_order)
                    # A layer's output may be written into, by `out += x`; the input of one that learns may not.
                    learns = point.side == "input" and module.weight.requires_grad
                    seen[name] = values if learns else values.clone()

            watches = []
            for name, point in points.items():
                module = self.model.get_submodule(point.module)
                watches.append(Watch(module, point.side, partial(look, name, module)))
            call = call.copied() if self.overwritten else call
            replay(self.model, call, watches, tensors=tensors, attributes=[*modes, *attributes], seed=self.seed)
            for name, values in seen.items():
                batches[name].append(values)
        return {name: Activations(own).latest(self.limit) for name, own in batches.items() if own}
