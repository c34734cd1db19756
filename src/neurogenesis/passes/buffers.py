"""A buffer of the model's latest inputs, and the activations of the current model on them.

All activations of a measurement come from the same weights. Activations recorded in training passes would come from
different weights, and would have to be stored, resized and saved. Running the current model again costs one forward
pass per measurement, so `Grower` measures only when a decision may change.

Of several processes, each keeps its own inputs and runs the model on them. Inputs are exchanged only for what cannot be
added up, such as trial runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..structure.axes import named_tensors
from ..structure.widths import Width
from .activations import Activations, Batch, SharedActivations
from .processes import ALONE, Processes
from .replay import Call, Watch, replays
from .routes import Route, select_neurons


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

    def of_first(self, processes: Processes) -> Untrained:
        """The model of the first process."""
        tensors = dict(zip(self.tensors, processes.of_first(self.tensors.values()), strict=True))
        norms = dict(zip(self.fan_out_norms, processes.of_first(self.fan_out_norms.values()), strict=True))
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
        self.processes = ALONE  # the processes that train the model together
        self.calls: list[Call] = []  # of this process
        self.rank: int | None = None  # the process that saved the calls, if they were loaded, until `join`
        self.passes = 0  # number of calls in the process that has the most, at the latest exchange
        self._all: list[tuple[int, Call]] | None = None  # calls of all processes, between `exchange` and the next pass
        self._fetched: list[Call] | None = None  # the same with the tensors of other processes
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
        self.calls.append(call)
        _drop_oldest(self.calls, self._most_items(self._watched, self.calls, self.processes.count))
        self._training_modes = [(module, module.training) for module in self.model.modules()]

    def join(self, processes: Processes) -> None:
        """Measure on the inputs of all processes from now on."""
        self.processes = processes
        if self.rank not in (None, processes.rank):
            self.calls.clear()  # they were saved by another process, which has them
        self.rank = None

    def take(self, calls: Sequence[Call], rank: int, passes: int) -> None:
        """Go on with saved calls.

        Args:
            calls: the calls.
            rank: the process that saved them.
            passes: their number in the process that had the most.
        """
        self.clear()
        self.calls[:], self.rank, self.passes = calls, rank, passes
        if self.processes is not ALONE:
            self.join(self.processes)

    @property
    def known(self) -> bool:
        """Whether the other processes know the shapes of the inputs, because these are as at the latest exchange."""
        return self.processes is ALONE or self.processes.know(self.calls)

    def exchange(self, known: bool | None = None) -> None:
        """Tell the other processes of the inputs, before all of them measure activations on the same ones.

        Args:
            known: whether the inputs of all processes are `known`; if None, the processes tell each other.
        """
        if self.processes is ALONE:
            self.passes = len(self.calls)
        else:
            self._all, self._fetched = _interleaved(self.processes.described_calls(self.calls, known)), None
            self.passes = max(Counter(rank for rank, _ in self._all).values(), default=0)

    @property
    def latest(self) -> Call | None:
        """The latest inputs in this process."""
        return self.calls[-1] if self.calls else None

    def clear(self) -> None:
        """Discard all inputs."""
        self.calls.clear()
        self.clear_activations()

    def forget_widths(self) -> None:
        """Discard all inputs, and watch no widths any more."""
        self.clear()
        self._watched.clear()
        self._rows.clear()
        self.untrained, self.passes = None, 0

    @property
    def _known(self) -> list[Call]:
        """The calls of all processes after `exchange`, without the tensors of others; else those of this one."""
        return self.calls if self._all is None else [call for _, call in self._all]

    def full(self, name: str) -> bool:
        """Whether the inputs hold as many samples of a width as a measurement should have."""
        rows = self._rows.get(name, Rows())
        return sum(call.samples * rows.in_item(call) for call in self._known) >= self.limit

    def items(self, name: str) -> int:
        """Number of latest items of batches that a width is measured on.

        Those of sequences are whole, and have two rows per neuron if there are as many: rows cost little there.
        """
        return self._items(name, self._known)

    def _items(self, name: str, calls: Sequence[Call], share: int = 1) -> int:
        """Number of latest items of calls, which one of `share` processes has made."""
        rows = self._rows.get(name)
        if rows is None:
            return -(-self.limit // share)
        items, missing = 0, -(-max(self.limit, 2 * self._watched[name][0].size) // share)
        for call in reversed(calls):
            taken = min(call.samples, -(-missing // max(1, rows.in_item(call))))
            items, missing = items + taken, missing - taken * rows.in_item(call)
            if missing <= 0:
                break
        return items

    def _most_items(self, names: Iterable[str], calls: Sequence[Call], share: int = 1) -> int:
        """The largest number of latest items that some width is measured on."""
        return max((self._items(name, calls, share) for name in names), default=-(-self.limit // share))

    def calls_for(self, names: Iterable[str]) -> list[Call]:
        """The latest calls that widths are measured on, of all processes after `exchange`."""
        calls = self.calls if self._all is None else self._with_tensors()
        return calls[self._first(names, calls) :]

    def _with_tensors(self) -> list[Call]:
        """The calls of all processes, which exchange them."""
        if self._fetched is None:
            self._fetched = [call for _, call in _interleaved(self.processes.calls(self.calls))]
        return self._fetched

    def _first(self, names: Iterable[str], calls: Sequence[Call]) -> int:
        """Number of the oldest of all calls that widths are measured on."""
        missing, first = self._most_items(names, calls), len(calls)
        while missing > 0 and first > 0:
            first -= 1
            missing -= calls[first].samples
        return first

    def count_rows(self, call: Call) -> None:
        """Count each position of a sequence as a sample, at the widths that have positions in this call."""
        points = {name: Point.of(*each) for name, each in self._watched.items()}
        evaluation = [(module, "training", False) for module in self.model.modules()]
        for name, seen in _together(self._runs([call], points, attributes=evaluation)).items():
            positions = seen.batches[0].shape[2] // points[name].positions.shape[1]
            if (rows := Rows.of(positions, call)) != Rows():
                self._rows[name] = rows

    def watch(self, widths: Mapping[str, tuple[Width, Route]]) -> None:
        """Make the activations of widths available under names, in place of those that have been."""
        self._watched = dict(widths)

    def drop_overwritten(self) -> bool:
        """Drop inputs that were modified in place; returns whether that removed all of them."""
        intact = [call for call in self.calls if call.intact]
        lost = bool(self.calls) and not intact
        self.calls[:] = intact
        return lost

    def request(self, names: Iterable[str]) -> None:
        """Announce the layers to be measured, so that one run of the model serves all of them."""
        self._seen.clear()
        self._requested = list(names)

    def clear_activations(self) -> None:
        """Discard all activations because the model or its inputs change."""
        self._seen.clear()
        self._requested = []
        self._all = self._fetched = None

    def activations(self, name: str) -> Activations | None:
        """Activations of a layer in the current model; None if no input has reached it."""
        if name not in self._seen:
            names = self._requested if name in self._requested else [name]
            points = {each: Point.of(*self._watched[each]) for each in names if each in self._watched}
            self._seen |= self._measured(points, attributes=self._modes)
        return self._seen.get(name)

    def at(self, points: Mapping[str, Point], *, evaluation: bool = False) -> dict[str, Activations]:
        """Activations of the current model at points, by name, in all calls of their modules.

        With `evaluation`, the model runs in evaluation mode, else in the mode that it had on its inputs.
        """
        modes = [(module, "training", False) for module in self.model.modules()] if evaluation else self._modes
        calls = self.calls if self._all is None else self._with_tensors()
        return _together(self._runs(calls, points, attributes=modes, all_calls=True))

    def untrained_activations(self, name: str) -> Activations | None:
        """Activations of a layer in the untrained model on the same inputs."""
        if self.untrained is None or name not in self.untrained.points:
            return None
        points = {name: self.untrained.points[name]}
        modules = dict(self.model.named_modules(remove_duplicate=False))
        attributes = [(modules[path], attribute, value) for path, attribute, value in self.untrained.attributes]
        return self._measured(points, self.untrained.tensors, [*self._modes, *attributes]).get(name)

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

    def _measured(
        self,
        points: Mapping[str, Point],
        tensors: Mapping[str, Tensor] | None = None,
        attributes: Sequence[tuple[nn.Module, str, Any]] = (),
    ) -> dict[str, Activations]:
        """Activations at the points of widths in the latest calls, of all processes after `exchange`."""
        known = self._known
        first = self._first(points, known)
        if self._all is None:
            found = _together(self._runs(known[first:], points, tensors, attributes))
            return {name: each.latest(self.items(name)) for name, each in found.items()}
        measured, rank = self._all[first:], self.processes.rank
        own = self._runs([call for of, call in measured if of == rank], points, tensors, attributes)
        batches = [[seen[name][0] if name in seen else None for name in points] for seen in own]
        shapes = [list(map(Batch.numbers, each)) for each in batches]
        numbers = torch.tensor(shapes, dtype=torch.int64).reshape(-1, len(points), 5)
        counts = Counter(of for of, _ in measured)
        of_all = [
            iter(each.tolist())
            for each in self.processes.gathered(numbers, [counts[r] for r in range(self.processes.count)])
        ]
        described = [(of, next(of_all[of])) for of, _ in measured]
        device = next(iter(named_tensors(self.model).values())).device
        result: dict[str, SharedActivations] = {}
        for number, name in enumerate(points):
            ours, everyones = [each[number] for each in batches], [Batch.of(of, each[number]) for of, each in described]
            if shared := SharedActivations.latest_of(ours, everyones, self.items(name), self.processes, device):
                result[name] = shared
        for each in result.values():
            each.together = list(result.values())
        return dict(result)

    def _runs(
        self,
        calls: Sequence[Call],
        points: Mapping[str, Point],
        tensors: Mapping[str, Tensor] | None = None,
        attributes: Sequence[tuple[nn.Module, str, Any]] = (),
        all_calls: bool = False,
    ) -> list[dict[str, list[Tensor]]]:
        """Run the model on calls, up to the last of the points; returns the activations there, for each call.

        Of a layer called more than once, the first call counts, unless `all_calls` do.
        """
        seen: dict[str, list[Tensor]] = {}

        def record(name: str, module: nn.Module, h: Tensor) -> None:
            if all_calls or name not in seen:
                point = points[name]
                values = select_neurons(h.detach(), module, point.positions, point.in_order)
                # A module's output may be modified in place, as in `out += x`; a trainable module's input may not.
                learns = point.side == "input" and module.weight.requires_grad
                seen.setdefault(name, []).append(values if learns else values.clone())

        watches = []
        for name, point in points.items():
            module = self.model.get_submodule(point.module)
            watches.append(Watch(module, point.side, partial(record, name, module)))
        if all_calls:  # a run ends when every watch has acted: the last one acts when the model is done
            watches.append(Watch(self.model, "output", lambda _: None))
        result = []
        with replays(self.model, tensors=tensors, attributes=attributes, seed=self.seed) as run:
            for call in calls:
                seen.clear()
                run(call.copied() if self.inputs_overwritten else call, watches)
                result.append(dict(seen))
        return result


def _together(runs: Sequence[Mapping[str, Sequence[Tensor]]]) -> dict[str, Activations]:
    """Activations of several calls, by name."""
    names = dict.fromkeys(name for seen in runs for name in seen)
    return {name: Activations([batch for seen in runs for batch in seen.get(name, ())]) for name in names}


def _interleaved(calls: Sequence[Sequence[Call]]) -> list[tuple[int, Call]]:
    """The calls of each process in the order in which they were made, with the number of the process.

    The latest calls of all processes were made together, and so on.
    """
    result: list[tuple[int, Call]] = []
    for age in reversed(range(max(map(len, calls)))):
        result += [(rank, own[-1 - age]) for rank, own in enumerate(calls) if age < len(own)]
    return result
