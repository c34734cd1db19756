"""The widths that a `Grower` watches, their layers, and their maximum sizes."""

from __future__ import annotations

import difflib
import inspect
import math
import warnings
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, get_args

from torch import nn
from torch.nn.modules.conv import _ConvNd

from ..candidates.bridge import Bridge
from ..candidates.probes import find_bridge, run_probe, why_positions_mix, why_unsupported
from ..candidates.trials import Trials
from ..layer import Layer
from ..passes.buffers import Buffer
from ..passes.replay import ModelCall
from ..passes.routes import Route, find_routes
from ..strategies import Strategy
from ..structure.axes import layer_of
from ..structure.examples import Example
from ..structure.modes import as_ordinary
from ..structure.reasons import Kind
from ..structure.widths import Kinds, Width, Widths
from ..triggers import Size, resolved_size
from .settings import MaxWidth

FROZEN = frozenset({Kind.FROZEN, Kind.PARTLY_FROZEN})
_GRADIENTS = frozenset({"gradients", "fan-out gradients"})


def choose_widths(
    known: Widths, include: Sequence[str], exclude: Sequence[str], allowed: Container[Kind] = ()
) -> list[Width]:
    """Growable widths whose name, kind, or path of a producer matches the patterns; each must match some width.

    A word that is a kind, such as "heads", means the kind, never a name. Reasons not to grow of the kinds in `allowed`
    do not count.
    """
    growable = [width for width in known if width.obstacle(allowed) is None]
    if not growable:
        raise ValueError(_no_growable_width(known))
    unused = set(map(layer_of, known.structure.unused))  # may have widths that are not known yet
    for what, patterns in (("include", include), ("exclude", exclude)):
        for pattern in patterns:
            named = any(is_meant(width, [pattern]) for width in known) or _matches(unused, [pattern])
            if pattern not in get_args(Kinds) and not named:
                raise ValueError(f"{what}: {pattern!r} matches no width; {_hint(known, pattern)}")
    chosen = [width for width in growable if is_meant(width, include) and not is_meant(width, exclude)]
    if not chosen:
        raise ValueError(
            f"include={list(include)} and exclude={list(exclude)} leave no width to grow; growable widths: "
            f"{', '.join(width.name for width in growable)}"
        )
    return chosen


def is_meant(width: Width, patterns: Iterable[str]) -> bool:
    """Whether patterns match a width's name or the path of a producer, or one of them is its kind."""
    kinds = get_args(Kinds)
    names = {width.name, *(axis.module for axis in width.producers)}
    return any(width.kind == each if each in kinds else _matches(names, [each]) for each in patterns)


def _matches(names: Iterable[str], patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _hint(known: Widths, pattern: str) -> str:
    """A hint at the meaning of a pattern that matches neither a width nor a producer."""
    others = {width.name: {axis.module for axis in (*width.carriers, *width.consumers)} for width in known.growable}
    if near := [name for name, modules in others.items() if _matches(modules, [pattern])]:  # such as a norm
        return f"what it matches belongs to the width {' and '.join(map(repr, near[:3]))}"
    near = difflib.get_close_matches(pattern, [width.name for width in known], n=3, cutoff=0.4)
    if near:
        return f"did you mean {' or '.join(map(repr, near))}?"
    return f"growable widths: {', '.join(width.name for width in known.growable)}"


def _no_growable_width(known: Widths) -> str:
    if known.why_none is not None:
        return f"no width of this model can grow: {known.why_none}"
    reasons = {width.name: width.why for width in known}
    remedies = [reason.kind.remedy for reason in reasons.values() if reason is not None and reason.kind.remedy]
    lines = ["no width of this model can grow:", *(f"  {name}: {reason}" for name, reason in reasons.items())]
    if remedies:
        lines += ["what can be done:", *(f"  {remedy}" for remedy in dict.fromkeys(remedies))]
    return "\n".join(lines)


def make_layers(
    model: nn.Module,
    strategy: Strategy,
    chosen: Sequence[Width],
    calls: Sequence[ModelCall],
    buffer: Buffer | None = None,
    asked: Sequence[str] = (),
) -> tuple[list[Layer], dict[str, str]]:
    """Layers of the widths that the strategy supports, as they run in one of the calls, and why not of the others.

    A warning lists these, but for kinds of widths that the strategy does not support: only those in `asked`.

    Args:
        model: the model.
        strategy: the strategy.
        chosen: the widths.
        calls: calls of the model.
        buffer: the inputs that layers are measured on.
        asked: patterns of widths that are to grow.
    """
    routes: dict[str, tuple[Route | str, ModelCall]] = {}
    products = strategy.uses == {"fan-out gradients"}  # others look at modules
    for call in calls if strategy.uses else ():
        missing = [width for width in chosen if isinstance(routes.get(width.name, ("",))[0], str)]
        for name, route_or_reason in find_routes(model, missing, call, products).items():
            if name not in routes or not isinstance(route_or_reason, str):
                routes[name] = route_or_reason, call
    convolutional = has_convolutions(model)
    layers, left_out, unexpected = [], dict[str, str](), dict[str, str]()
    for width in chosen:
        found, call = routes.get(width.name, (None, calls[0]))
        route = None if isinstance(found, str) else found
        problem = found if isinstance(found, str) and strategy.needs else None
        bridge, records = None, False
        of_kind = why_not_of_kind(strategy, width)
        problem = of_kind or problem
        if route is not None and problem is None and strategy.uses & _GRADIENTS:
            find = find_bridge if "gradients" in strategy.uses else why_positions_mix
            bridge = find(model, width, route, call)
            several = route.producer.per_neuron > 1 and "fan-out gradients" in strategy.uses
            if isinstance(bridge, str) and several and "gradients" not in strategy.needs:
                bridge = Trials(model, width, route, None).why_not_run(call)
            records = not isinstance(bridge, str)
            if isinstance(bridge, str) and strategy.needs & _GRADIENTS:
                problem = bridge
            needed = route.others if "fan-out gradients" in strategy.uses else ()
            others = tuple(other for other in needed if why_unsupported(model, other, other.consumer) is None)
            route = replace(route, others=others)
        if route is not None and "trials" in strategy.needs and problem is None:
            probe = run_probe(model, width, route, call)
            problem = probe if isinstance(probe, str) else None
        if problem is not None:
            left_out[width.name] = problem
            if of_kind is None or is_meant(width, [each for each in asked if each != "*"]):
                unexpected[width.name] = problem
            continue
        layer = Layer(
            model,
            width,
            route,
            convolutional_network=convolutional,
            records_gradients=records,
            bridge=bridge if isinstance(bridge, Bridge) else None,
            buffer=buffer,
            example=call,
        )
        strategy.initialization.check(layer)
        layers.append(layer)
    if left_out and not layers:
        raise ValueError(
            f"the strategy can grow none of the widths ({_listed(left_out)}): choose another one, such as "
            "'north-integrated', which looks at activations only, or a schedule, which looks at nothing"
        )
    if unexpected:
        warnings.warn(
            f"these widths do not grow because the strategy cannot watch them: {_listed(unexpected)}", stacklevel=5
        )
    return layers, left_out


def _listed(reasons: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {reason}" for name, reason in reasons.items())


def why_not_of_kind(strategy: Strategy, width: Width) -> str | None:
    """Why a strategy cannot grow widths of a kind; None if it can."""
    trigger, initialization = strategy.trigger, strategy.initialization
    if width.kind in trigger.kinds and width.kind in initialization.kinds:
        return None
    if width.kind == "stream":
        where = width.structure.compensations.where(width.atom)
        able = "random initialization" if "stream" in trigger.kinds else "a schedule"
        return f"{where} runs across it, so that new entries begin as zeros or means: grow it by {able}"
    if width.kind not in trigger.kinds:
        return f"{trigger} compares weights, and those of {width.kind} act in products with each other"
    return f"{initialization} is made for single neurons, not for {width.kind}: grow it by random initialization"


def has_convolutions(model: nn.Module) -> bool:
    return any(isinstance(module, _ConvNd) for module in model.modules())


def set_maximum_sizes(
    layers: Sequence[Layer],
    known: Widths,
    given: MaxWidth,
    round_to: int,
    otherwise: float = math.inf,
    heads: bool = False,
    begun: bool = False,
) -> set[str]:
    """Set the maximum size of each layer from the argument max_width, rounded down to a multiple of `round_to`.

    Args:
        layers: the layers.
        known: all widths of the model.
        given: the argument.
        round_to: sizes are multiples of it.
        otherwise: factor of the initial size for widths without a maximum; infinite if they have none.
        heads: whether heads without a maximum stop at as many neurons as the next layer has outputs.
        begun: whether training has begun: widths that are found then may be larger than the maximum, and stay as they
            are; else that is an error.

    Returns:
        The names of the widths whose maximum is `otherwise`.
    """
    if isinstance(given, Mapping):
        unused = set(map(layer_of, known.structure.unused))  # may have widths that are not known yet
        by_kind = {width.name: given[width.kind] for width in known if width.kind in given}
        named: dict[str, Size] = by_kind | {
            known[name].name: size
            for name, size in given.items()
            if name in known or (name not in unused and name not in get_args(Kinds))
        }
    else:
        named = {} if given is None else {layer.name: given for layer in layers}
    for layer in layers:
        limit = named.get(layer.name, otherwise)
        if heads and layer.width.kind == "heads" and layer.name not in named:
            limit = min(limit * layer.initial, max(layer.initial, _most_heads(layer)))
        if limit == math.inf:
            continue
        layer.maximum = resolved_size(limit, layer.initial, f"max_width of {layer.name}")
        if layer.maximum < layer.size and not begun:
            factor = f": for {limit} times the initial size, pass {limit}.0 or '{limit}x'"
            raise ValueError(
                f"max_width of {layer.name} is {layer.maximum}, below its current size of {layer.size}"
                + (factor if isinstance(limit, int) else "")
            )
        multiple = layer.width.multiple(round_to)
        layer.maximum = max(layer.size, layer.maximum // multiple * multiple)
    others = {layer.name for layer in layers if layer.name not in named and not (heads and layer.width.kind == "heads")}
    return set() if otherwise == math.inf else others


def _most_heads(layer: Layer) -> int:
    """How many heads have as many neurons together as the next layer has outputs: it cannot tell apart more at once."""
    weights = [(layer.tensor(axis), axis.axis) for axis in layer.consumers]
    return min(weight.numel() // weight.shape[axis] for weight, axis in weights) // layer.features


def as_call(example: Example) -> ModelCall:
    example = as_ordinary(example)
    if isinstance(example, Mapping):
        return ModelCall.of((), example)
    return ModelCall.of(example if isinstance(example, tuple) else (example,), {})


def as_example(model: nn.Module, call: ModelCall) -> Example:
    if not call.kwargs:
        return call.args
    bound = inspect.signature(model.forward).bind(*call.args, **call.kwargs)
    example: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            raise ValueError(
                f"the model is called with *{name} and keyword arguments: pass example= with only one kind"
            )
        example |= value if kind is inspect.Parameter.VAR_KEYWORD else {name: value}
    return example
