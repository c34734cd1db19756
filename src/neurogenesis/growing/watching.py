"""Which widths of a model a `Grower` watches, and their layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..layer import Layer
from ..notices import Notices
from ..passes.buffers import Buffer
from ..passes.checkpointing import saving_apart
from ..passes.replay import ModelCall
from ..passes.untrained import Untrained
from ..structure.axes import Structure
from ..structure.finding import known_widths
from ..structure.reasons import Kind
from ..structure.running import internal_run
from ..structure.widths import Width, Widths
from ..structure.wrappers import wrappers_of
from .budget import affordable
from .choosing import FROZEN, as_example, choose_widths, has_convolutions, make_layers, set_maximum_sizes
from .dying import DeadNeurons
from .late import LateLayers
from .settings import Settings
from .trained import TrainedModel


@dataclass(frozen=True)
class Watched:
    """The widths of a model, and those that are watched.

    Args:
        widths: all widths of the model.
        layers: layers of the watched widths.
        waiting: widths that are watched as soon as they are unfrozen, or layers that may read them are called.
        limited: names of the widths whose maximum neither the strategy nor the user has set.
        allowed: kinds of reasons not to grow that do not count.
        left_out: why the strategy cannot grow other widths, by name.
    """

    widths: Widths
    layers: Sequence[Layer]
    waiting: Sequence[Width]
    limited: frozenset[str]
    allowed: frozenset[Kind]
    left_out: Mapping[str, str]


class Watching:
    """The widths that are watched, which change when layers are first called or unfrozen.

    Args:
        trained: the model.
        settings: the settings of the grower.
        buffer: the inputs that layers are measured on.
        notices: warnings.
    """

    def __init__(self, trained: TrainedModel, settings: Settings, buffer: Buffer, notices: Notices):
        self.model, self._settings, self._buffer, self._notices = trained.model, settings, buffer, notices
        self.watched: Watched | None = None  # None before the first training pass
        self.dead: DeadNeurons | None = None  # if neurons are pruned
        self.late = LateLayers(trained, settings.tie)
        self._examples: list[ModelCall] = []  # as given, or the first training pass
        self._names: dict[str, str] = {}  # of widths that have just got other ones

    @property
    def layers(self) -> Sequence[Layer]:
        return () if self.watched is None else self.watched.layers

    @property
    def widths(self) -> Widths | None:
        """All widths of the model, if they are known."""
        return None if self.watched is None else self.watched.widths

    @property
    def structure(self) -> Structure | None:
        """What is known of the axes of the model."""
        return None if self.watched is None else self.watched.widths.structure

    @property
    def may_change(self) -> bool:
        """Whether something is to be done after every step: drop dead neurons, or watch widths that are unfrozen."""
        return self.dead is not None or (self.watched is not None and bool(self.watched.waiting))

    @property
    def calls(self) -> list[ModelCall]:
        """Calls of the model that together use all layers which are known."""
        return [*self._examples, *self.late.calls]

    def find(self, calls: Sequence[ModelCall]) -> Widths:
        """Find the widths in calls of the model."""
        with torch.enable_grad(), saving_apart(), internal_run(self.model):
            examples = [as_example(self.model, call) for call in calls]
            known = known_widths(self.model, lambda: examples, tie=self._settings.tie)
        self._examples = [call.copied() for call in calls] if known.structure.unused else list(calls)
        return known

    def find_again(self, names: Mapping[str, str]) -> Widths:
        """Find the widths again after blocks were added; layers whose widths got other `names` keep their state."""
        self._names = dict(names)
        with torch.enable_grad(), saving_apart(), internal_run(self.model):
            examples = [as_example(self.model, call) for call in self.calls]
            return known_widths(self.model, lambda: examples, tie=self._settings.tie)

    def watch(self, known: Widths, *, compiled: bool) -> Sequence[Layer]:
        """Watch the widths that can grow; those that are watched already keep their state.

        Args:
            known: all widths of the model.
            compiled: whether the model is compiled; see `LateLayers.watch`.
        """
        if self.watched is None:
            self._settings.budget.check(known.structure)
        notices_calls = not compiled and not wrappers_of(self.model)
        with torch.enable_grad(), saving_apart(), internal_run(self.model):
            watched = make_watched(
                self.model, self._settings, known, self.calls, self._buffer, self.watched, notices_calls, self._names
            )
            self._names = {}
            named = {layer.name: (layer.width, layer.route) for layer in watched.layers if layer.route is not None}
            self._buffer.watch(named)
            for call in self.calls if self._settings.keep_inputs and not has_convolutions(self.model) else ():
                self._buffer.count_rows(call)
            self.watched = watched
            if self._settings.prune:
                self._watch_dead_neurons()
        self.late.watch(known, notices_calls)
        self.check_budget()
        if not watched.layers:
            self._notices.warn(why_nothing_grows(watched.waiting, watched.allowed))
        return watched.layers

    @torch.enable_grad()
    def untrained(self) -> Untrained:
        """The model as it is now, to measure its layers later."""
        with internal_run(self.model):
            norms = {layer.name: layer.fan_out_norms() for layer in self.layers}
        return Untrained.of(self.model, self._buffer.quota.widths, norms)

    def _watch_dead_neurons(self) -> None:
        before = {} if self.dead is None else self.dead.state()
        self.dead = DeadNeurons(self.model, self.layers, self._buffer)
        self.dead.load(before)
        for name, reason in self.dead.problems.items():
            self._notices.warn(f"dead neurons of {name} are not dropped: {reason}")

    def more_widths(self) -> Widths | None:
        """The widths if more of them can grow by now: unfrozen, or with layers that values have led to."""
        found = self.late.search()
        if found is None and self.watched is not None and may_watch_more(self.model, self.watched):
            return self.watched.widths
        return found

    def check_budget(self) -> None:
        """Mark the layers that cannot grow any more, because too little of the budget is left."""
        budget, round_to = self._settings.budget, self._settings.round_to
        for layer in self.layers:
            layer.out_of_budget = not affordable(self.model, budget, layer, round_to)

    def start_again(self) -> None:
        """Wait for the first training pass."""
        self.watched = self.dead = None
        self._examples = []
        self.late.start_again()

    def state(self) -> dict[str, Any]:
        """The widths, their layers and the examples, as plain values and tensors."""
        watched, calls = self.watched, [call.saved for call in self.calls]
        saved = self._settings.strategy.trigger.saved
        return {
            "layers": {layer.name: {"initial": layer.initial, "memory": saved(layer.memory)} for layer in self.layers},
            "sizes": {} if watched is None else watched.widths.sizes,
            "example": calls[0] if calls else None,
            "further examples": calls[1:],
            "waiting": [] if watched is None else [width.name for width in watched.waiting],
            "resizes": [] if watched is None else watched.widths.resizes,
            "dead": None if self.dead is None else self.dead.state(),
        }

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise ValueError if a state is of other widths, or of an earlier time than a layer that was resized since."""
        if len(self.late.calls) > len(state.get("further examples", ())):
            raise ValueError(
                "the state was saved before a layer was first called that the example does not use, and that layer has "
                "been resized since: pass a list of inputs that together use all layers to the Grower, as example=[...]"
            )
        assert self.watched is not None
        own_names, saved_names = {layer.name for layer in self.layers}, set(state["layers"])
        waiting, waited = {width.name for width in self.watched.waiting}, set(state.get("waiting", ()))
        if saved_names - own_names - waiting or own_names - saved_names - waited:
            raise ValueError(
                f"the state is of other widths: {sorted(saved_names - own_names)} only in the state, "
                f"{sorted(own_names - saved_names)} only in the grower"
            )

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, in a model that has its sizes."""
        for layer in self.layers:
            saved = state["layers"].get(layer.name)
            if saved is None:  # it was not watched yet
                layer.initial, layer.memory = layer.size, {}
                self._settings.strategy.trigger.start(layer)
            else:
                layer.initial, layer.memory = saved["initial"], dict(saved["memory"])
        if self.watched is not None:
            set_limits(self.layers, self.watched.widths, self._settings, begun=True)
            self.watched.widths.resizes = state.get("resizes", self.watched.widths.resizes)
        if self.dead is not None:
            self.dead.load(state.get("dead") or {})
        self.check_budget()


def make_watched(
    model: nn.Module,
    settings: Settings,
    known: Widths,
    calls: Sequence[ModelCall],
    buffer: Buffer,
    before: Watched | None,
    late: bool,
    names: Mapping[str, str] | None = None,
) -> Watched:
    """Make layers of the widths that can grow; those that are watched already keep their state.

    Args:
        model: the model.
        settings: the settings of the grower.
        known: the model's widths.
        calls: calls of the model that together use all layers which are known.
        buffer: the inputs that layers are measured on.
        before: what was watched until now.
        late: whether the first call of layers is noticed that no example has used.
        names: new names of what was watched until now, where they have changed.
    """
    names = names or {}
    present = {names.get(layer.name, layer.name): layer for layer in before.layers} if before is not None else {}
    allowed, trigger = allowed_reasons(settings, late), settings.strategy.trigger
    chosen = choose_widths(known, settings.include, settings.exclude, allowed | _passing_reasons(late))
    waiting = [width for width in chosen if width.obstacle(allowed) is not None]
    chosen = [width for width in chosen if width not in waiting]
    layers, left_out = list[Layer](), dict[str, str]()
    if chosen:
        layers, left_out = make_layers(model, settings.strategy, chosen, calls, buffer, settings.include)
    for layer in layers:
        old = present.get(layer.name)
        if old is not None:
            layer.initial = old.initial
        if old is not None and _same_records(old, layer, names):
            layer.memory = old.memory
        else:
            trigger.start(layer)
    limited = set_limits(layers, known, settings, begun=before is not None)
    return Watched(known, layers, waiting, limited, allowed, left_out)


def _same_records(old: Layer, new: Layer, names: Mapping[str, str]) -> bool:
    """Whether a layer is measured at the same places as before; after a change of depth, these have other names."""
    if names:
        return len(old.records) == len(new.records)
    return [record.key for record in old.records] == [record.key for record in new.records]


def set_limits(layers: Sequence[Layer], known: Widths, settings: Settings, *, begun: bool) -> frozenset[str]:
    """Set the maximum sizes of layers; returns the names of those whose maximum is the strategy's limit."""
    limit = float(settings.strategy.trigger.limit) if settings.budget.unlimited else math.inf
    heads = bool(settings.strategy.trigger.needs)
    return frozenset(set_maximum_sizes(layers, known, settings.max_width, settings.round_to, limit, heads, begun))


def allowed_reasons(settings: Settings, late: bool) -> frozenset[Kind]:
    """Kinds of reasons not to grow that do not count: uncalled layers are resized when they are called."""
    return frozenset([Kind.PARTLY_FROZEN] * settings.frozen + [Kind.NOT_CALLED] * late)


def _passing_reasons(late: bool) -> frozenset[Kind]:
    """Kinds of reasons not to grow that may pass: until then the width is not watched."""
    return FROZEN | ({Kind.IDLE} if late else set())


def may_watch_more(model: nn.Module, watched: Watched) -> bool:
    """Whether a waiting width can grow by now; not while the whole model is frozen, as a discriminator is at times."""
    if not watched.waiting or not any(parameter.requires_grad for parameter in model.parameters()):
        return False
    return any(width.obstacle(watched.allowed) is None for width in watched.waiting)


def why_nothing_grows(waiting: Sequence[Width], allowed: frozenset[Kind]) -> str:
    """The message if all widths are waiting: the reasons, and the remedies."""
    reasons = [why for width in waiting if (why := width.obstacle(allowed)) is not None]
    listed = "; ".join(f"{width.name}: {why}" for width, why in zip(waiting, reasons, strict=True))
    remedies = ", or ".join(dict.fromkeys(str(why.kind.remedy) for why in reasons))
    return f"no width can grow yet ({listed}): {remedies}"
