"""Activations of the current model on its latest inputs, as measured at one look.

All activations of a measurement come from the same weights. Activations recorded in training passes would come from
different weights, and would have to be stored, resized and saved. Running the current model again costs one forward
pass per measurement, so `Grower` measures only when a decision may change.

Of several processes, each runs the model on its own inputs. Inputs are exchanged only for what cannot be added up, such
as trial runs; see `inputs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, nn

from ..structure.axes import named_tensors
from ..structure.widths import Width
from .activations import Activations
from .inputs import Inputs, together
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
        return Point(point.module, route.side, route.positions(width), width.in_order(point))


@dataclass(frozen=True, eq=False)
class Measurement:
    """The model on its latest inputs. It is run when activations are first asked for, so ask before it changes.

    Args:
        model: the model.
        inputs: the latest inputs.
        quota: how many of them each width is measured on.
        modes: whether each module was in training mode on these inputs.
        names: the widths that are measured together, in one run of the model.
        copies: whether the model writes into its inputs, so that it must be given copies.
    """

    model: nn.Module
    inputs: Inputs
    quota: Quota
    modes: Sequence[tuple[nn.Module, bool]] = ()
    names: Sequence[str] = ()
    copies: bool = False
    _found: dict[str, Activations] = field(default_factory=dict, init=False, repr=False)

    def full(self, name: str) -> bool:
        """Whether the inputs hold as many samples of a width as a measurement should have."""
        return self.quota.reached(name, self.inputs.shapes)

    def items(self, name: str) -> int:
        """Number of latest items of batches that a width is measured on."""
        return self.quota.items(name, self.inputs.shapes)

    def calls_for(self, names: Iterable[str]) -> Sequence[ModelCall]:
        """The latest calls, of all processes, that widths are measured on."""
        return self.inputs.all[self.quota.first(names, self.inputs.shapes) :]

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
        first = self.quota.first(points, self.inputs.shapes)
        runs = self._runs(self.inputs.own(first), points, tensors, [*self._modes, *attributes])
        items = {name: self.items(name) for name in points}
        return self.inputs.latest(runs, first, items, next(iter(named_tensors(self.model).values())).device)

    def in_all_calls(self, points: Mapping[str, Point], *, evaluation: bool = False) -> dict[str, Activations]:
        """Activations at points in all calls of their modules, on all inputs.

        With `evaluation`, the model runs in evaluation mode, else in the mode that it had on its inputs.
        """
        modes = in_evaluation(self.model) if evaluation else self._modes
        return together(self._runs(self.inputs.all, points, attributes=modes, all_calls=True))

    @property
    def _modes(self) -> list[tuple[nn.Module, str, Any]]:
        """The modes of modules in training, where they differ from the current ones."""
        return [(module, "training", mode) for module, mode in self.modes if module.training != mode]

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
    measurement = Measurement(model, Inputs([call]), Quota(call.samples))
    found = together(measurement._runs([call], points, attributes=in_evaluation(model)))
    return {name: seen.batches[0].shape[2] // points[name].positions.shape[1] for name, seen in found.items()}
