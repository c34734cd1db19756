"""A buffer of the model's latest inputs, and the activations of the current model on them.

All activations of a measurement come from the same weights. Activations recorded in training passes would come from
different weights, and would have to be stored, resized and saved. Running the current model again costs one forward
pass per measurement, so `Grower` measures only when a decision may change.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from .. import metrics
from ..structure.axes import named_tensors
from ..structure.widths import Width
from .ranks import ALONE, Ranks
from .replay import Call, Watch, replays
from .routes import Route, select_neurons


@dataclass
class Activations:
    """Activations of one layer: per batch, samples x neurons x positions. Batches may differ in size."""

    batches: list[Tensor]

    @property
    def neurons(self) -> int:
        return self.batches[0].shape[1]

    @property
    def columns(self) -> int:
        """Number of activations per neuron."""
        return sum(batch.shape[0] * batch.shape[2] for batch in self.batches)

    @cached_property
    def finite(self) -> bool:
        return all(_all_finite(batch) for batch in self.batches)

    @property
    def matrix(self) -> Tensor:
        """All activations as one matrix, neurons x columns."""
        return torch.cat([metrics.by_neuron(batch) for batch in self.batches], 1)

    def of(self, neuron: int) -> Tensor:
        """All activations of one neuron."""
        return torch.cat([batch[:, neuron].flatten() for batch in self.batches])

    def products(self, candidates: Activations) -> metrics.Products:
        """Products of these neurons and of candidates on the same samples, in batches of the same sizes."""
        parts = zip(self.batches, candidates.batches, strict=True)
        return metrics.products_of((metrics.by_neuron(own), metrics.by_neuron(new)) for own, new in parts)

    def latest(self, samples: int) -> Activations:
        """Keep only the latest samples."""
        kept: list[Tensor] = []
        for batch in reversed(self.batches):
            if samples <= 0:
                break
            kept.insert(0, batch[-samples:])
            samples -= len(batch)
        return Activations(kept)

    def rank(self, eps: float, scale: Tensor | None = None, enough: int | None = None) -> int:
        """Effective rank, with each neuron's row multiplied by its entry of `scale` if given.

        If a cheaper bound shows that the rank is at most `enough`, returns that bound. Uses single precision unless an
        eigenvalue is too close to eps².
        """
        if self.columns <= self.neurons:
            matrix = self.matrix
            return metrics.quick_rank(matrix if scale is None else matrix * scale[:, None].to(matrix), eps)
        if self.neurons >= metrics.MIN_NEURONS_FLOAT32 and self.batches[0].dtype == torch.float32:
            gram = _scale_gram(self._single_gram, scale)
            found = metrics.eigenvalues_surely_above(gram, self.columns * eps**2, metrics.rounding(gram), enough)
            if found is not None:
                return found
        return metrics.eigenvalues_above(_scale_gram(self._gram, scale) / self.columns, eps**2)

    def orthogonality(self, scale: Tensor | None = None, by_sample: bool = False) -> float:
        """Orthogonality of neurons x columns or, if `by_sample`, of (neurons x positions) x samples.

        The latter uses only batches with as many positions as the latest.
        """
        if not by_sample:
            return metrics.orthogonality_of_gram(_scale_gram(self._gram, scale), self.columns)
        rows = self.samples
        return metrics.orthogonality(metrics.by_sample(rows if scale is None else rows * scale[:, None].to(rows)))

    @property
    def samples(self) -> Tensor:
        """Samples x neurons x positions, from the batches with as many positions as the latest."""
        positions = self.batches[-1].shape[2]
        return torch.cat([batch for batch in self.batches if batch.shape[2] == positions])

    @cached_property
    def _gram(self) -> Tensor:
        """Gram matrix of the neurons in double precision, summed over chunks of columns to save memory."""
        total: Tensor | None = None
        for batch in self.batches:
            matrix = metrics.by_neuron(batch)
            wide = torch.promote_types(matrix.dtype, torch.float64)
            for part in matrix.split(max(1, _CHUNK_ENTRIES // len(matrix)), 1):  # type: ignore[no-untyped-call]
                part = part.to(wide)
                total = part @ part.mH if total is None else total.addmm_(part, part.mH)
        assert total is not None
        return total

    @cached_property
    def _single_gram(self) -> Tensor:
        """Gram matrix of the neurons from products in single precision."""
        parts = [part for batch in self.batches for part in metrics.products(metrics.by_neuron(batch).T)]
        return parts[0].double() if len(parts) == 1 else torch.stack(parts).sum(0, dtype=torch.float64)


_CHUNK_ENTRIES = 2**18  # entries per chunk: 2 MB in double precision, which fits in the cache


def _all_finite(values: Tensor) -> bool:
    wide = torch.promote_types(values.dtype, torch.float32)  # half precision would overflow
    return math.isfinite(float(torch.linalg.vector_norm(values, dtype=wide)))


def _scale_gram(gram: Tensor, scale: Tensor | None) -> Tensor:
    return gram if scale is None else gram * torch.outer(scale, scale).to(gram)


@dataclass(frozen=True)
class Point:
    """Where the activations of a layer are read, and the positions of its neurons in them."""

    module: str
    side: Any
    positions: Tensor
    in_order: bool

    @staticmethod
    def of(width: Width, route: Route) -> Point:
        """Current point of a width."""
        point = route.point
        return Point(point.module, route.side, width.positions(point), width.in_order(point))


@dataclass(frozen=True)
class Untrained:
    """The model before training: tensors, size attributes of modules, and points and fan-out norms of layers."""

    tensors: Mapping[str, Tensor]
    attributes: Sequence[tuple[str, str, int]]
    points: Mapping[str, Point]
    fan_out_norms: Mapping[str, Tensor]

    def state(self) -> list[Any]:
        points = {name: (p.module, p.side, p.positions, p.in_order) for name, p in self.points.items()}
        return [dict(self.tensors), list(self.attributes), points, dict(self.fan_out_norms)]

    def of_first(self, ranks: Ranks) -> Untrained:
        """The model of the first process."""
        tensors = dict(zip(self.tensors, ranks.of_first(self.tensors.values()), strict=True))
        norms = dict(zip(self.fan_out_norms, ranks.of_first(self.fan_out_norms.values()), strict=True))
        return replace(self, tensors=tensors, fan_out_norms=norms)

    @staticmethod
    def from_state(state: Sequence[Any]) -> Untrained:
        tensors, attributes, points, norms = state
        return Untrained(tensors, attributes, {name: Point(*point) for name, point in points.items()}, norms)


def _drop_oldest(calls: list[Call], limit: int) -> None:
    """Drop the oldest calls as long as the others have enough samples."""
    held = sum(call.samples for call in calls)
    while calls and held - calls[0].samples >= limit:
        held -= calls.pop(0).samples


@dataclass(frozen=True)
class Rows:
    """Number of rows of activations that a width has per item of a batch: in sequences, one at each position.

    Args:
        per_item: the number in the call that it was found in.
        tensor: which of the call's tensors has as many entries on its second axis, such as the token numbers.
    """

    per_item: int = 1
    tensor: int | None = None

    @staticmethod
    def of(per_item: int, call: Call) -> Rows:
        if per_item <= 1:
            return Rows()
        lengths = [tensor.shape[1] if tensor.ndim > 1 else None for tensor in call.tensors]
        return Rows(per_item, lengths.index(per_item) if per_item in lengths else None)

    def in_item(self, call: Call) -> int:
        """The number in another call, whose sequences may have another length."""
        if self.tensor is None or self.tensor >= len(call.tensors) or call.tensors[self.tensor].ndim < 2:
            return self.per_item
        return call.tensors[self.tensor].shape[1]


class Buffer:
    """The model's latest inputs.

    Args:
        model: the model.
        limit: the number of samples in a measurement: items of a batch or, after `count_rows`, rows of activations.
    """

    def __init__(self, model: nn.Module, limit: int):
        self.model, self.limit = model, limit
        self.ranks = ALONE  # the processes that train the model together
        self.calls: list[Call] = []
        self.pending: list[Call] = []  # of several processes: those of this one that are not yet exchanged
        self.shared = False  # whether `calls` are those of several processes
        self.seed = 0  # seed of random operations in the model, such as dropout
        self.untrained: Untrained | None = None  # kept until every layer has been measured in it
        self.inputs_overwritten = False  # whether the model or the caller writes into the inputs
        self._watched: dict[str, tuple[Width, Route]] = {}
        self._rows: dict[str, Rows] = {}  # of the widths that have more than one per item
        self._training_modes: list[tuple[nn.Module, bool]] = []
        self._seen: dict[str, Activations] = {}
        self._requested: list[str] = []

    def add(self, call: Call) -> None:
        """Add the inputs of a call of the model and drop the oldest ones beyond the limit."""
        self.clear_activations()
        if self.ranks is ALONE:
            self.calls.append(call)
            _drop_oldest(self.calls, self._needed)
        else:
            self.pending.append(call)
            _drop_oldest(self.pending, -(-self.limit // self.ranks.count))
        self._training_modes = [(module, module.training) for module in self.model.modules()]

    def join(self, ranks: Ranks) -> None:
        """Measure on the inputs of all processes from now on."""
        self.ranks = ranks
        if not self.shared:
            self.pending[:0] = self.calls
            self.calls.clear()
            self.shared = True

    def exchange(self) -> None:
        """Exchange inputs with the other processes, before all of them measure activations on the same ones."""
        if self.ranks is not ALONE:
            received = self.ranks.calls(self.pending)
            self.pending.clear()
            for calls in zip_longest(*received):
                self.calls += [call for call in calls if call is not None]
            _drop_oldest(self.calls, self._needed)

    @property
    def _needed(self) -> int:
        """Number of items of batches that some width is measured on."""
        return max(map(self.items, self._watched), default=self.limit)

    @property
    def latest(self) -> Call | None:
        """The latest inputs in this process."""
        own = self.calls if self.ranks is ALONE else self.pending
        return own[-1] if own else None

    def clear(self) -> None:
        """Discard all inputs."""
        self.calls.clear()
        self.pending.clear()
        self.clear_activations()

    @property
    def samples(self) -> int:
        return sum(call.samples for call in self.calls)

    def full(self, name: str) -> bool:
        """Whether the inputs hold as many samples of a width as a measurement should have."""
        rows = self._rows.get(name, Rows())
        return sum(call.samples * rows.in_item(call) for call in self.calls) >= self.limit

    def items(self, name: str) -> int:
        """Number of latest items of batches that a width is measured on.

        Those of sequences are whole, and have two rows per neuron if there are as many: rows cost little there.
        """
        rows = self._rows.get(name)
        if rows is None:
            return self.limit
        items, missing = 0, max(self.limit, 2 * self._watched[name][0].size)
        for call in reversed(self.calls):
            taken = min(call.samples, -(-missing // max(1, rows.in_item(call))))
            items, missing = items + taken, missing - taken * rows.in_item(call)
            if missing <= 0:
                break
        return items

    def calls_for(self, names: Iterable[str]) -> list[Call]:
        """The latest calls that widths are measured on."""
        missing = max(map(self.items, names), default=self.limit)
        kept: list[Call] = []
        for call in reversed(self.calls):
            if missing <= 0:
                break
            kept.insert(0, call)
            missing -= call.samples
        return kept

    def count_rows(self, call: Call) -> None:
        """Count each position of a sequence as a sample, at the widths that have positions in this call."""
        points = {name: Point.of(*each) for name, each in self._watched.items()}
        evaluation = [(module, "training", False) for module in self.model.modules()]
        for name, seen in self._run([call], points, attributes=evaluation).items():
            positions = seen.batches[0].shape[2] // points[name].positions.shape[1]
            if (rows := Rows.of(positions, call)) != Rows():
                self._rows[name] = rows

    def watch(self, name: str, width: Width, route: Route) -> None:
        """Make the activations of a width available under a name."""
        self._watched[name] = width, route

    def drop_overwritten(self) -> bool:
        """Drop inputs that were modified in place; returns whether that removed all of them."""
        own = self.calls if self.ranks is ALONE else self.pending
        intact = [call for call in own if call.intact]
        lost = bool(own) and not intact
        own[:] = intact
        return lost

    def request(self, names: Iterable[str]) -> None:
        """Announce the layers to be measured, so that one run of the model serves all of them."""
        self.clear_activations()
        self._requested = list(names)

    def clear_activations(self) -> None:
        """Discard all activations because the model or its inputs change."""
        self._seen.clear()
        self._requested = []

    def activations(self, name: str) -> Activations | None:
        """Activations of a layer in the current model; None if no input has reached it."""
        if name not in self._seen:
            names = self._requested if name in self._requested else [name]
            points = {each: Point.of(*self._watched[each]) for each in names if each in self._watched}
            self._seen |= self._latest(self._run(self.calls_for(points), points, attributes=self._modes))
        return self._seen.get(name)

    def untrained_activations(self, name: str) -> Activations | None:
        """Activations of a layer in the untrained model on the same inputs."""
        if self.untrained is None or name not in self.untrained.points:
            return None
        points = {name: self.untrained.points[name]}
        modules = dict(self.model.named_modules(remove_duplicate=False))
        attributes = [(modules[path], attribute, value) for path, attribute, value in self.untrained.attributes]
        seen = self._run(self.calls_for(points), points, self.untrained.tensors, [*self._modes, *attributes])
        return self._latest(seen).get(name)

    def remember_untrained(self, fan_out_norms: Mapping[str, Tensor]) -> None:
        """Save a copy of the untrained model, to measure its layers once there are enough inputs."""
        first_width = next(iter(self._watched.values()))[0]
        self.untrained = Untrained(
            {name: tensor.detach().clone() for name, tensor in named_tensors(self.model).items()},
            first_width.structure.attribute_values(),
            {name: Point.of(*each) for name, each in self._watched.items()},
            fan_out_norms,
        )

    @property
    def _modes(self) -> list[tuple[nn.Module, str, Any]]:
        """The modes of modules in training, where they differ from the current ones."""
        return [(module, "training", mode) for module, mode in self._training_modes if module.training != mode]

    def _latest(self, seen: Mapping[str, Activations]) -> dict[str, Activations]:
        return {name: each.latest(self.items(name)) for name, each in seen.items()}

    def _run(
        self,
        calls: Sequence[Call],
        points: Mapping[str, Point],
        tensors: Mapping[str, Tensor] | None = None,
        attributes: Sequence[tuple[nn.Module, str, Any]] = (),
    ) -> dict[str, Activations]:
        """Run the model on calls, up to the last of the points, and record the activations there."""
        batches: dict[str, list[Tensor]] = {name: [] for name in points}
        seen: dict[str, Tensor] = {}

        def record(name: str, module: nn.Module, h: Tensor) -> None:
            if name not in seen:  # of a layer called more than once, the first call counts
                point = points[name]
                values = select_neurons(h.detach(), module, point.positions, point.in_order)
                # A module's output may be modified in place, as in `out += x`; a trainable module's input may not.
                learns = point.side == "input" and module.weight.requires_grad
                seen[name] = values if learns else values.clone()

        watches = []
        for name, point in points.items():
            module = self.model.get_submodule(point.module)
            watches.append(Watch(module, point.side, partial(record, name, module)))
        with replays(self.model, tensors=tensors, attributes=attributes, seed=self.seed) as run:
            for call in calls:
                seen.clear()
                run(call.copied() if self.inputs_overwritten else call, watches)
                for name, values in seen.items():
                    batches[name].append(values)
        return {name: Activations(own) for name, own in batches.items() if own}
