"""Activations of the current model on its latest inputs, as measured at one look.

All activations of a measurement come from the same weights. Activations recorded in training passes would come from
different weights, and would have to be stored, resized and saved. Running the current model again costs one forward
pass per measurement, so `Grower` measures only when a decision may change.

Of several processes, each runs the model on its own inputs. Inputs are exchanged only for what cannot be added up, such
as trial runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from ..structure.axes import named_tensors
from ..structure.widths import Width
from .activations import Activations, Batch, SharedActivations
from .processes import ALONE, Processes
from .quotas import Quota
from .replay import ModelCall, Watch, replays
from .routes import Route, select_neurons

Attributes = Sequence[tuple[nn.Module, str, Any]]


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


@dataclass(frozen=True, eq=False)
class Measurement:
    """The model on its latest inputs. It is run when activations are first asked for, so ask before it changes.

    Args:
        model: the model.
        calls: the latest inputs of this process.
        quota: how many of them each width is measured on.
        modes: whether each module was in training mode on these inputs.
        names: the widths that are measured together, in one run of the model.
        copies: whether the model writes into its inputs, so that it must be given copies.
        processes: the processes that train the model together.
        of_all: the inputs of all processes, in the order in which they were made, with the number of the process; only
            shapes of the others' inputs. None to measure on the inputs of this process alone.
    """

    model: nn.Module
    calls: Sequence[ModelCall]
    quota: Quota
    modes: Sequence[tuple[nn.Module, bool]] = ()
    names: Sequence[str] = ()
    copies: bool = False
    processes: Processes = ALONE
    of_all: Sequence[tuple[int, ModelCall]] | None = None
    _found: dict[str, Activations] = field(default_factory=dict, init=False, repr=False)

    @property
    def passes(self) -> int:
        """Number of calls in the process that has the most."""
        if self.of_all is None:
            return len(self.calls)
        return max(Counter(rank for rank, _ in self.of_all).values(), default=0)

    def full(self, name: str) -> bool:
        """Whether the inputs hold as many samples of a width as a measurement should have."""
        return self.quota.reached(name, self._shapes)

    def items(self, name: str) -> int:
        """Number of latest items of batches that a width is measured on."""
        return self.quota.items(name, self._shapes)

    def calls_for(self, names: Iterable[str]) -> Sequence[ModelCall]:
        """The latest calls, of all processes, that widths are measured on."""
        return self._exchanged[self.quota.first(names, self._exchanged) :]

    def activations(self, name: str) -> Activations | None:
        """Activations of a width in the current model; None if no input has reached it."""
        if name not in self._found:
            names, widths = self.names if name in self.names else [name], self.quota.widths
            points = {each: Point.of(*widths[each]) for each in names if each in widths}
            self._found.update(self.at_points(points))
        return self._found.get(name)

    def at_points(
        self, points: Mapping[str, Point], tensors: Mapping[str, Tensor] | None = None, attributes: Attributes = ()
    ) -> dict[str, Activations]:
        """Activations at the points of widths, optionally with other tensors and attributes of the model."""
        calls, attributes = self._shapes, [*self._modes, *attributes]
        first = self.quota.first(points, calls)
        if self.of_all is None:
            found = _together(self._runs(calls[first:], points, tensors, attributes))
            return {name: each.latest(self.items(name)) for name, each in found.items()}
        measured = self.of_all[first:]
        own = [call for rank, call in measured if rank == self.processes.rank]
        return self._shared(points, measured, self._runs(own, points, tensors, attributes))

    def in_all_calls(self, points: Mapping[str, Point], *, evaluation: bool = False) -> dict[str, Activations]:
        """Activations at points in all calls of their modules, on all inputs.

        With `evaluation`, the model runs in evaluation mode, else in the mode that it had on its inputs.
        """
        modes = in_evaluation(self.model) if evaluation else self._modes
        return _together(self._runs(self._exchanged, points, attributes=modes, all_calls=True))

    @property
    def _shapes(self) -> Sequence[ModelCall]:
        """The calls of all processes, without the tensors of others."""
        return self.calls if self.of_all is None else [call for _, call in self.of_all]

    @cached_property
    def _exchanged(self) -> Sequence[ModelCall]:
        """The calls of all processes with their tensors."""
        if self.of_all is None:
            return self.calls
        return [call for _, call in interleaved(self.processes.calls(self.calls))]

    @property
    def _modes(self) -> list[tuple[nn.Module, str, Any]]:
        """The modes of modules in training, where they differ from the current ones."""
        return [(module, "training", mode) for module, mode in self.modes if module.training != mode]

    def _shared(
        self,
        points: Mapping[str, Point],
        measured: Sequence[tuple[int, ModelCall]],
        own: Sequence[Mapping[str, Sequence[Tensor]]],
    ) -> dict[str, Activations]:
        """Activations of all processes, each of which has computed its own calls."""
        processes = self.processes
        batches = [[seen[name][0] if name in seen else None for name in points] for seen in own]
        shapes = [list(map(Batch.numbers, each)) for each in batches]
        numbers = torch.tensor(shapes, dtype=torch.int64).reshape(-1, len(points), 5)
        counts = Counter(rank for rank, _ in measured)
        gathered = processes.gathered(numbers, [counts[rank] for rank in range(processes.count)])
        of_all = [iter(each.tolist()) for each in gathered]
        described = [(rank, next(of_all[rank])) for rank, _ in measured]
        device = next(iter(named_tensors(self.model).values())).device
        result: dict[str, SharedActivations] = {}
        for number, name in enumerate(points):
            ours, theirs = (
                [each[number] for each in batches],
                [Batch.of(rank, each[number]) for rank, each in described],
            )
            if shared := SharedActivations.latest_of(ours, theirs, self.items(name), processes, device):
                result[name] = shared
        for each in result.values():
            each.together = list(result.values())
        return dict(result)

    def _runs(
        self,
        calls: Sequence[ModelCall],
        points: Mapping[str, Point],
        tensors: Mapping[str, Tensor] | None = None,
        attributes: Attributes = (),
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
        with replays(self.model, tensors=tensors, attributes=attributes) as run:
            for call in calls:
                seen.clear()
                run(call.copied() if self.copies else call, watches)
                result.append(dict(seen))
        return result


def in_evaluation(model: nn.Module) -> list[tuple[nn.Module, str, Any]]:
    """The attributes of a model in evaluation mode."""
    return [(module, "training", False) for module in model.modules()]


def positions_in(model: nn.Module, widths: Mapping[str, tuple[Width, Route]], call: ModelCall) -> dict[str, int]:
    """Number of positions at which each width has activations in a call of the model, in evaluation mode."""
    points = {name: Point.of(*each) for name, each in widths.items()}
    measurement = Measurement(model, [call], Quota(call.samples))
    found = _together(measurement._runs([call], points, attributes=in_evaluation(model)))
    return {name: seen.batches[0].shape[2] // points[name].positions.shape[1] for name, seen in found.items()}


def interleaved(calls: Sequence[Sequence[ModelCall]]) -> list[tuple[int, ModelCall]]:
    """The calls of each process in the order in which they were made, with the number of the process.

    The latest calls of all processes were made together, and so on.
    """
    result: list[tuple[int, ModelCall]] = []
    for age in reversed(range(max(map(len, calls)))):
        result += [(rank, own[-1 - age]) for rank, own in enumerate(calls) if age < len(own)]
    return result


def _together(runs: Sequence[Mapping[str, Sequence[Tensor]]]) -> dict[str, Activations]:
    """Activations of several calls, by name."""
    names = dict.fromkeys(name for seen in runs for name in seen)
    return {name: Activations([batch for seen in runs for batch in seen.get(name, ())]) for name in names}
