r"""Remove neurons at the least change of the function."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import nn

from ..explained import Moments, Remaining, Unfolded, total_loss
from ..passes.inputs import Inputs
from ..passes.measurements import Measurement
from ..passes.quotas import Quota
from ..passes.replay import ModelCall
from ..structure.axes import unwrapped
from ..structure.examples import Example
from ..structure.finding import known_widths
from ..structure.modes import ordinary_tensors
from ..structure.widths import Width, Widths
from ..surgery.attached import average_of
from ..surgery.optimizer_state import Optimizers
from ..surgery.plan import Plan, Surgery
from .choosing import FROZEN, as_call, as_example, choose_widths
from .consumers import Consumer, find_consumers, measure, plan_removal

# Neurons are removed by default as long as all of them together lose less than this part of the outputs' variance.
TOLERANCE = 1e-9

Size = int | float
Enough = Callable[[int, float], bool]  # maps the number of neurons left, and the loss without one more


def prune(
    model: nn.Module,
    data: Example | list[Example],
    *,
    to: Size | Mapping[str, Size] | None = None,
    max_parameters: int | None = None,
    include: Sequence[str] = ("*",),
    exclude: Sequence[str] = (),
    tie: Sequence[str | Sequence[str]] = (),
    optimizer: Optimizers = None,
    ema: nn.Module | None = None,
    frozen: bool = False,
) -> list[Plan]:
    r"""Remove the neurons that the others explain best, and fold what they explain into the consumers.

    Removed is, one after the other, the neuron with the least

    .. math:: \sum_\text{consumers} \frac{v_j \|w_j\|^2}{\text{variance of the consumer's outputs}},

    where :math:`v_j` is the part of its variance that the others do not explain, and :math:`w_j` its fan-out; see
    `neurogenesis.explained`. Dead neurons, which are constant, go first.

    Without `to` and `max_parameters`, only neurons are removed that are dead or that the others explain completely: on
    the data, the outputs do not change.

    Args:
        model: the model, changed in place; its parameters remain the same objects.
        data: inputs on which activations are measured, in evaluation mode: a tensor, a tuple of arguments or a dict of
            keyword arguments, or a list of these. Each neuron needs at least twice as many activations as its width
            has neurons.
        to: the size of each width afterwards: an int (number of neurons), a float (part of the present size), or a
            mapping from names to either. Widths that are smaller are not changed.
        max_parameters: the number of parameters of the model afterwards, at most: neurons are removed where the loss
            is least per parameter.
        include: patterns or kinds of widths to prune, as in `Grower`.
        exclude: patterns or kinds of widths not to prune.
        tie: groups of patterns of widths that change together, as in `neurogenesis.widths`.
        optimizer: the optimizers that train the model; their state is cut too. By default those of the `Grower` that is
            attached to the model.
        ema: an averaged copy of the model, which is cut too; its own weights take what is folded. By default that of
            the attached `Grower`.
        frozen: whether to prune widths that have frozen parameters, too.

    Returns:
        The plans that were applied, one for each width that was changed.

    Example:
        >>> import torch, neurogenesis as ng
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> with torch.no_grad():
        ...     model[0].bias[5] = -100.0  # it never fires
        >>> (plan,) = ng.prune(model, torch.randn(64, 4))
        >>> plan.after, model[2].in_features
        (7, 7)
    """
    if to is not None and max_parameters is not None:
        raise ValueError("prune: pass to= or max_parameters=, not both")
    model, calls = unwrapped(model), _as_calls(data)
    known = known_widths(model, partial(as_example, model, calls[0]), tie=tie)
    ema = average_of(model, ema)
    sizes = _target_sizes(choose_widths(known, include, exclude, FROZEN if frozen else ()), known, to)
    with ordinary_tensors(), torch.no_grad():
        consumers = _measurable(model, sizes, calls[0], named=isinstance(to, Mapping))
        if max_parameters is not None:
            sizes = _sizes_within(model, max_parameters, consumers, calls)
        with Surgery(model, optimizer, ema) as surgery:
            plans = []
            for width in consumers:
                size = sizes[width]
                if size is not None and size >= width.size:
                    continue
                own = {width: consumers[width]}
                (moments,) = _measured(model, own, calls).values()
                removed = _least(model, width, own[width], moments, _enough(size))
                if removed:
                    plans.append(plan_removal(model, width, own[width], moments, removed, ema))
                    surgery.apply(plans[-1])
    return plans


def _as_calls(data: Example | list[Example]) -> list[ModelCall]:
    calls = [as_call(each) for each in (data if isinstance(data, list) else [data])]
    if not calls:
        raise ValueError("prune: the list of inputs is empty")
    return calls


def _target_sizes(
    chosen: Sequence[Width], known: Widths, to: Size | Mapping[str, Size] | None
) -> dict[Width, int | None]:
    """The size that each width is to have; None if only what changes nothing is to be removed."""
    if not isinstance(to, Mapping):
        return {width: _target(width, to) for width in chosen}
    named = {known[name]: size for name, size in to.items()}
    for width in named:
        if width not in chosen:
            why = "include= and exclude= leave it out" if width.reason is None else width.reason
            raise ValueError(f"prune: {width.name} cannot be pruned: {why}")
    return {width: _target(width, named[width]) for width in chosen if width in named}


def _target(width: Width, size: Size | None) -> int | None:
    if size is None:
        return None
    if isinstance(size, bool) or not isinstance(size, (int, float)) or not 0 < size < math.inf:
        raise ValueError(
            f"prune: size of {width.name}: expected a number of neurons, such as 16, or a part, such as 0.5, not "
            f"{size!r}"
        )
    return size if isinstance(size, int) else max(1, round(size * width.size))


def _measurable(
    model: nn.Module, chosen: Sequence[Width] | Mapping[Width, object], call: ModelCall, named: bool
) -> dict[Width, list[Consumer]]:
    """Consumers of the widths that can be measured; others are an error if they were named, and else a warning."""
    found = {width: find_consumers(model, width) for width in chosen}
    consumers = {width: own for width, own in found.items() if not isinstance(own, str)}
    problems = {width.name: own for width, own in found.items() if isinstance(own, str)}
    for width, own in measure(_on(model, call), consumers, evaluation=True).items():
        if isinstance(own, str):
            problems[width.name] = own
            del consumers[width]
    if problems:
        listed = "; ".join(f"{name}: {reason}" for name, reason in problems.items())
        if named or not consumers:
            raise ValueError(f"prune: these widths cannot be pruned: {listed}")
        warnings.warn(f"these widths are not pruned: {listed}", stacklevel=3)
    return consumers


def _on(model: nn.Module, call: ModelCall) -> Measurement:
    """The model on the inputs of one call."""
    return Measurement(model, Inputs([call]), Quota(call.samples))


def _measured(
    model: nn.Module, consumers: Mapping[Width, Sequence[Consumer]], calls: Sequence[ModelCall]
) -> dict[Width, list[Moments]]:
    """Moments at all consumers on all inputs."""
    totals: dict[Width, list[Moments]] = {}
    for call in calls:
        for width, own in measure(_on(model, call), consumers, evaluation=True).items():
            if isinstance(own, str):
                raise ValueError(f"prune: {width.name} cannot be measured on all inputs: {own}")
            before = totals.get(width)
            totals[width] = own if before is None else [a + b for a, b in zip(before, own, strict=True)]
    for width, own in totals.items():
        if any(not bool(moments.products.isfinite().all()) for moments in own):
            raise ValueError(f"prune: the activations of {width.name} are not finite")
        rows = min(moments.rows for moments in own)
        if rows < 2 * width.size:
            raise ValueError(
                f"prune: {width.name} has {width.size} neurons, but the data gives only {rows} activations of each: "
                "pass at least twice as many, or leave the width out with exclude="
            )
    return totals


def _enough(size: int | None) -> Enough:
    if size is None:
        return lambda left, lost: lost > TOLERANCE
    return lambda left, lost: left <= size


def _least(
    model: nn.Module, width: Width, consumers: Sequence[Consumer], moments: Sequence[Moments], enough: Enough
) -> list[int]:
    """Neurons to remove one after the other, each with the least loss, until there are few enough."""
    states = [consumer.remaining(model, width, own) for consumer, own in zip(consumers, moments, strict=True)]
    removed: list[int] = []
    lost = 0.0
    while len(removed) < width.size - 1:
        losses = total_loss(states, removed)
        neuron = int(losses.argmin())
        lost += float(losses[neuron])
        if enough(width.size - len(removed), lost):
            break
        _remove(states, neuron)
        removed.append(neuron)
    return removed


def _remove(states: Sequence[Remaining | Unfolded], neuron: int) -> None:
    for state in states:
        state.remove(neuron)


def _sizes_within(
    model: nn.Module, limit: int, consumers: Mapping[Width, Sequence[Consumer]], calls: Sequence[ModelCall]
) -> dict[Width, int | None]:
    """Sizes of the widths within a number of parameters, by removing where the loss is least per parameter."""
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise ValueError(f"prune: max_parameters: expected a positive integer, not {limit!r}")
    structure = next(iter(consumers)).structure

    def parameters(sizes: Mapping[Width, int]) -> int:
        return structure.parameters_with(model, {width.atom: size for width, size in sizes.items()})

    if parameters(dict.fromkeys(consumers, 1)) > limit:
        raise ValueError(
            f"prune: max_parameters={limit}, but one neuron in each width already makes "
            f"{parameters(dict.fromkeys(consumers, 1))} parameters"
        )
    measured = _measured(model, consumers, calls)
    states = {
        width: [each.remaining(model, width, own) for each, own in zip(consumers[width], measured[width], strict=True)]
        for width in consumers
    }
    sizes, removed = {width: width.size for width in consumers}, {width: list[int]() for width in consumers}
    losses = {width: total_loss(states[width]) for width in consumers}
    tensors = {width: {axis.tensor for axis in width.axes} for width in consumers}
    total, saved = parameters(sizes), dict[Width, int]()
    stale = set(consumers)
    while total > limit:
        for width in stale:
            saved[width] = total - parameters(sizes | {width: sizes[width] - 1})
        width = min((each for each in consumers if sizes[each] > 1), key=lambda w: float(losses[w].min()) / saved[w])
        neuron = int(losses[width].argmin())
        _remove(states[width], neuron)
        removed[width].append(neuron)
        losses[width] = total_loss(states[width], removed[width])
        sizes[width] -= 1
        total -= saved[width]
        stale = {each for each in consumers if tensors[each] & tensors[width]}  # a neuron of theirs has fewer weights
    return dict(sizes)
