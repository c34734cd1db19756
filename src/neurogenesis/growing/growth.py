"""Growth: new neurons are computed in the current model, then all widths grow, or none if one of them fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from ..history import Event
from ..initializations import Neurons
from ..layer import Layer
from ..structure.fills import FanIn
from ..structure.reasons import Kind
from ..surgery.plan import Plan, Surgery
from ..surgery.planning import pad_for_growth, plan_neurons
from ..triggers import Decision
from .budget import rounded_up, shares
from .dying import DeadNeurons
from .settings import Settings


@dataclass(frozen=True)
class Request:
    """A layer that should grow, why, and by how many neurons."""

    layer: Layer
    decision: Decision
    count: int


def request(layer: Layer, decision: Decision, round_to: int) -> Request:
    """The request of a layer whose trigger has decided: a multiple of `round_to`, within the maximum."""
    if decision.count <= 0:
        return Request(layer, decision, 0)
    multiple = layer.width.multiple(round_to)
    if layer.width.copied is not None:
        count = decision.count // multiple * multiple
    else:
        limits = [limit for limit in (layer.maximum, layer.width.ceiling) if limit is not None]
        maximum = min(limits, default=None)
        count = rounded_up(decision.count, layer.size, multiple, maximum)
    return Request(layer, decision, max(0, count))


Addition = tuple[Request, Neurons]


def new_neurons(requests: Sequence[Request], settings: Settings, generator: torch.Generator) -> list[Addition]:
    """The neurons of all layers that get some, within the budget."""
    if not requests:
        return []
    model, additions = requests[0].layer.model, []
    wanted = [(each.layer, each.count) for each in requests]
    counts = shares(model, settings.budget, wanted, settings.round_to)
    for each, count in zip(requests, counts, strict=True):
        if count:
            seed = int(torch.randint(2**31, (1,), generator=generator))
            with each.layer.during(replace(each.layer.now, seed=seed)):
                additions.append((each, settings.strategy.initialization(each.layer, count, generator)))
    return additions


def add_neurons(
    additions: Sequence[Addition],
    surgery: Surgery,
    fan_ins: Callable[[Layer], Mapping[str, FanIn]],
    generator: torch.Generator,
    allowed: frozenset[Kind],
) -> list[tuple[Plan, float]]:
    """Grow layers one after the other; returns the plans, and the seconds that each took.

    Args:
        additions: the neurons, all computed in the same model.
        surgery: of that model.
        fan_ins: the distribution of random fan-ins of a layer in the model as it is then.
        generator: source of weights that the initialization leaves open.
        allowed: kinds of reasons not to grow that do not count.
    """
    done: list[tuple[Plan, float]] = []
    for each, neurons in additions:
        layer = each.layer
        started, plans = time.perf_counter(), [plan for plan, _ in done]
        plan = plan_neurons(
            layer.model,
            layer.width,
            neurons.count,
            {key: pad_for_growth(key, value, plans) for key, value in neurons.values.items()},
            {name: pad_for_growth((name, -1), change, plans) for name, change in neurons.changes.items()},
            generator=generator,
            fan_ins=fan_ins(layer),
            allowed=allowed,
        )
        surgery.apply(plan)
        done.append((plan, time.perf_counter() - started))
    return done


def drop_dead_neurons(dead: DeadNeurons, step: int, surgery: Surgery, round_to: int) -> dict[Layer, Plan]:
    """Drop the neurons that have been dead for long enough; returns the plans."""
    found = dead.look(step, dead.patience(surgery.optimizers))
    done: dict[Layer, Plan] = {}
    for layer, drop in found.items():
        plan = dead.plan(layer, drop, round_to, surgery.ema)
        if plan is not None:
            surgery.apply(plan)
            done[layer] = plan
    dead.dropped(found, done)
    return done


def events_of(
    step: int, plans: Sequence[Plan], requests: Sequence[Request | None], seconds: Sequence[float]
) -> list[Event]:
    """The events of plans that were applied, and of the requests behind them."""
    return [
        Event(
            step,
            plan.width,
            plan.before,
            plan.after,
            None if request is None else request.decision.metric,
            None if request is None else request.decision.threshold,
            each,
        )
        for plan, request, each in zip(plans, requests, seconds, strict=True)
    ]
