"""Which widths of a model a `Grower` watches, and their layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from ..layer import Layer
from ..passes.buffers import Buffer
from ..passes.replay import ModelCall
from ..structure.reasons import Kind
from ..structure.widths import Width, Widths
from .choosing import FROZEN, choose_widths, make_layers, set_maximum_sizes
from .settings import Settings


@dataclass(frozen=True)
class Watched:
    """The widths of a model, and those that are watched.

    Args:
        widths: all widths of the model.
        layers: layers of the watched widths.
        waiting: widths that are watched as soon as they are unfrozen, or layers that may read them are called.
        limited: names of the widths whose maximum neither the strategy nor the user has set.
    """

    widths: Widths
    layers: Sequence[Layer]
    waiting: Sequence[Width]
    limited: frozenset[str]


def watch(
    model: nn.Module,
    settings: Settings,
    known: Widths,
    calls: Sequence[ModelCall],
    buffer: Buffer,
    before: Watched | None,
    late: bool,
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
    """
    present = {layer.name: layer for layer in before.layers} if before is not None else {}
    allowed, trigger = allowed_reasons(settings, late), settings.strategy.trigger
    chosen = choose_widths(known, settings.include, settings.exclude, allowed | _passing_reasons(late))
    waiting = [width for width in chosen if width.obstacle(allowed) is not None]
    chosen = [width for width in chosen if width not in waiting]
    layers = make_layers(model, settings.strategy, chosen, calls, buffer) if chosen else []
    for layer in layers:
        old = present.get(layer.name)
        if old is not None:
            layer.initial = old.initial
        if old is not None and [record.key for record in old.records] == [record.key for record in layer.records]:
            layer.memory = old.memory
        else:
            trigger.start(layer)
    limited = set_limits(layers, known, settings, begun=before is not None)
    return Watched(known, layers, waiting, limited)


def set_limits(layers: Sequence[Layer], known: Widths, settings: Settings, *, begun: bool) -> frozenset[str]:
    """Set the maximum sizes of layers; returns the names of those whose maximum is the strategy's limit."""
    limit = float(settings.strategy.trigger.limit) if settings.max_parameters is None else math.inf
    return frozenset(set_maximum_sizes(layers, known, settings.max_width, settings.round_to, limit, begun))


def allowed_reasons(settings: Settings, late: bool) -> frozenset[Kind]:
    """Kinds of reasons not to grow that do not count: uncalled layers are resized when they are called."""
    return frozenset([Kind.PARTLY_FROZEN] * settings.frozen + [Kind.NOT_CALLED] * late)


def _passing_reasons(late: bool) -> frozenset[Kind]:
    """Kinds of reasons not to grow that may pass: until then the width is not watched."""
    return FROZEN | ({Kind.IDLE} if late else set())


def may_watch_more(model: nn.Module, waiting: Sequence[Width], allowed: frozenset[Kind]) -> bool:
    """Whether a waiting width can grow by now; not while the whole model is frozen, as a discriminator is at times."""
    if not waiting or not any(parameter.requires_grad for parameter in model.parameters()):
        return False
    return any(width.obstacle(allowed) is None for width in waiting)


def why_nothing_grows(waiting: Sequence[Width], allowed: frozenset[Kind]) -> str:
    """What the waiting widths wait for, and what to do."""
    reasons = [why for width in waiting if (why := width.obstacle(allowed)) is not None]
    listed = "; ".join(f"{width.name}: {why}" for width, why in zip(waiting, reasons, strict=True))
    remedies = ", or ".join(dict.fromkeys(str(why.kind.remedy) for why in reasons))
    return f"no width can grow yet ({listed}): {remedies}"
