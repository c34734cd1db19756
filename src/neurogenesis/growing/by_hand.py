"""Grow a width by hand, with the same initializations as a `Grower`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial

import torch
from torch import nn

from ..initializations import Initialization, Neurons
from ..layer import Layer
from ..passes.buffers import Buffer
from ..passes.context import StepContext
from ..strategies import Strategy
from ..structure.axes import unwrapped
from ..structure.examples import Examples, examples_in
from ..structure.interfaces import Interface, find_interface
from ..structure.modes import ordinary_tensors
from ..structure.reasons import Kind
from ..structure.widths import Width
from ..surgery.attached import optimizers_of
from ..surgery.checks import Values
from ..surgery.interfaces import plan_interface
from ..surgery.optimizer_state import Optimizers
from ..surgery.plan import Plan
from ..surgery.planning import find_growable, plan_neurons
from ..surgery.reach import fan_ins_of
from ..triggers import Static
from .choosing import as_call, has_convolutions, make_layers, why_not_of_kind


def plan_growth(
    model: nn.Module,
    width: str | Width | Interface,
    count: int,
    *,
    initialization: str | Initialization | Values | float | None = None,
    optimizer: Optimizers = None,
    example: Examples | None = None,
    generator: torch.Generator | None = None,
    margin: bool = True,
    frozen: bool = False,
) -> Plan:
    """Plan the growth of a width; takes the same arguments as `grow`."""
    model, allowed = unwrapped(model), {Kind.PARTLY_FROZEN} if frozen else set[Kind]()
    if (interface := find_interface(model, width, example)) is not None:
        return plan_interface(model, interface, count, initialization, generator=generator, frozen=frozen)
    assert not isinstance(width, Interface)
    initialization = "random" if initialization is None else initialization
    if isinstance(initialization, float):
        raise TypeError(f"initialization: {initialization} is the bias of new outputs, and {width} is a width")
    found, count = find_growable(model, width, count, example, allowed)
    fan_ins = fan_ins_of(model, found, found.initial, optimizers_of(model, optimizer)) if margin else {}
    plan = partial(plan_neurons, model, found, generator=generator, fan_ins=fan_ins, allowed=allowed)
    if isinstance(initialization, Mapping):
        return plan(count, initialization)
    strategy = Strategy(Static(), initialization)
    if (problem := why_not_of_kind(strategy, found)) is not None:
        raise ValueError(f"{found.name} cannot grow in this way: {problem}")
    source = torch.default_generator if generator is None else generator
    with ordinary_tensors():
        with torch.enable_grad():  # probes of the layer run backward
            layer = _make_layer(model, found, strategy, example)
        seed = 0 if layer.route is None else int(torch.randint(2**31, (1,), generator=source, device=source.device))
        with torch.no_grad(), layer.during(StepContext(seed=seed, find_fan_ins=lambda: fan_ins)):
            neurons = strategy.initialization(layer, count, source)
    if not isinstance(neurons, Neurons):
        raise TypeError(
            f"{strategy.initialization} returned a {type(neurons).__name__}: an initialization is a function "
            "(layer, count, generator) -> Neurons; pass a dict of values directly, as initialization={...}"
        )
    if neurons.count == 0:
        raise ValueError(f"{found.name}: no neurons to add: {neurons.why_fewer}")
    if neurons.why_fewer is not None:
        warnings.warn(f"{found.name}: {neurons.count} new neurons, not {count}: {neurons.why_fewer}", stacklevel=3)
    return plan(neurons.count, neurons.values, neurons.changes)


def grow(
    model: nn.Module,
    width: str | Width | Interface,
    count: int,
    *,
    initialization: str | Initialization | Values | float | None = None,
    optimizer: Optimizers = None,
    ema: nn.Module | None = None,
    example: Examples | None = None,
    generator: torch.Generator | None = None,
    ages: bool = True,
    margin: bool = True,
    frozen: bool = False,
) -> Plan:
    """Add neurons at the end of a width; with the default initialization the model's outputs do not change.

    Args:
        model: the model, changed in place; its parameters remain the same objects.
        width: a width of `widths(model, example)`, or its name; or one of `interfaces(model, example)`, such as
            ``"output of classifier"``, ``"vocabulary of embedding"`` or ``"input of stem"``.
        count: number of neurons to add.
        initialization: as in a `Strategy`: "random" (random fan-in, zero bias, zero fan-out) or another name or object
            of `neurogenesis.initializations`, or a function ``(layer, count, generator) -> Neurons``. Or the new values
            themselves, ``{parameter name: tensor}``, stacked along the axis that grows; missing ones are as with
            "random", the default. For an interface: "mean" of the present rows, the default, "zero", "random", or a
            number, the bias of new outputs whose weights are zero; columns of new features are zero by default.
        optimizer: the optimizers that train the model; their state grows too. By default those of the `Grower` that is
            attached to the model.
        ema: an averaged copy of the model such as `torch.optim.swa_utils.AveragedModel`; it grows too. By default that
            of the attached `Grower`.
        example: an input of the model, or a list of several that together use all layers. Required if `widths` has not
            been called for this model, and by initializations that use activations, which are measured on the first.
        generator: source of the random weights; torch's global generator by default.
        ages: whether the optimizer treats new weights as if training had just begun. Otherwise it counts their steps
            like those of old weights: with Adam, new weights then move up to 6.5 times too far.
        margin: whether random fan-in is balanced, and its norm larger than that of the present neurons by as much as
            one gradient step can move it; see `neurogenesis.surgery.reach`. Otherwise it has the mean norm of the
            present neurons, as in the paper.
        frozen: whether to grow the width even if some of its parameters are frozen (``requires_grad`` is False). Their
            new entries are not trained, and the parameters no longer fit their old checkpoints.

    Returns:
        The plan that was applied.

    Example:
        >>> import torch, neurogenesis as ng
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> print(ng.grow(model, "0", 2, example=torch.randn(1, 4)))
        grow 0 from 8 to 10
          0.weight  axis 0  +2 at 8-9  (producer)
          0.bias  axis 0  +2 at 8-9  (producer)
          2.weight  axis 1  +2 at 8-9  (consumer)
          0.out_features: 8 -> 10
          2.in_features: 8 -> 10
    """
    plan = plan_growth(
        model,
        width,
        count,
        initialization=initialization,
        optimizer=optimizer,
        example=example,
        generator=generator,
        margin=margin,
        frozen=frozen,
    )
    plan.apply(model, optimizer, ema, ages=ages)
    return plan


def _make_layer(model: nn.Module, width: Width, strategy: Strategy, example: Examples | None) -> Layer:
    """Layer of a width for an initialization, with the activations of the example if given."""
    initialization = strategy.initialization
    if "gradients" in initialization.needs:
        raise ValueError(
            f"{initialization} needs gradients of the loss, which exist only in training: use a Grower with a Strategy "
            "that has this initialization"
        )
    if initialization.needs and example is None:
        raise ValueError(f"{initialization} needs activations: pass an input as example=")
    if example is None:
        return Layer(model, width, convolutional_network=has_convolutions(model))
    call = as_call(examples_in(example)[0])
    buffer = Buffer(model, call.samples)
    ((layer,), _) = make_layers(model, strategy, [width], list(map(as_call, examples_in(example))), buffer)
    if layer.route is not None:
        buffer.watch({layer.name: (width, layer.route)})
        buffer.add(call)
    return layer
