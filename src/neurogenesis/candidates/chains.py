"""A shortcut for trial runs: candidates alone, through the modules between producer and consumer.

A trial run of the whole model costs up to a forward pass. If nothing but a chain of modules lies between producer and
consumer, the candidates' activations follow from the producer's input and these modules alone.
"""

from __future__ import annotations

from contextlib import ExitStack

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from ..passes.replay import ModelCall, as_called, temporary_attributes
from ..passes.routes import Route
from ..structure.running import internal_run, restoring_attributes
from ..structure.widths import Width
from .trials import Candidates, Trials, apply_weights


def consumed_by_chain(
    model: nn.Module, width: Width, route: Route, candidates: Candidates, H_prev: Tensor, call: ModelCall, seed: int = 0
) -> Tensor:
    """Candidates in the consumer's input: `Trials.consumed` for routes with a chain.

    Args:
        model: the model.
        width: the width.
        route: a route with a chain.
        candidates: the candidates; only their weights and biases in the first producer are used.
        H_prev: the producer's input.
        call: the call of the model that H_prev is from.
        seed: seed of random operations in the modules.
    """
    assert route.chain is not None
    modules = [model.get_submodule(path) for path in route.chain]
    random = not all(map(_is_deterministic, modules))
    with ExitStack() as stack:
        stack.enter_context(internal_run(model))
        if random:  # or code that is not known: it may also store results
            stack.enter_context(restoring_attributes(model))
        stack.enter_context(as_called(model, call, seed if random else None))
        producer = model.get_submodule(route.producer.module)
        x = apply_weights(producer, H_prev, candidates.fan_in, route.producer, candidates.bias)
        for path, module in zip(route.chain, modules, strict=True):
            tensors = _tensors_of(module, path, width, len(candidates.fan_in))
            x = torch.func.functional_call(module, tensors, (x,), strict=False) if tensors else module(x)
    return x.flatten(1) if route.flattened else x


def _is_deterministic(module: nn.Module) -> bool:
    """Whether a module certainly uses no random numbers."""
    known = type(module).__module__.startswith(("torch.nn.modules.", "neurogenesis."))
    return known and not isinstance(module, (_DropoutNd, nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d))


def _tensors_of(module: nn.Module, path: str, width: Width, count: int) -> dict[str, Tensor]:
    """Parameters and buffers of a module for `count` new neurons alone; the other ones are copied."""
    if not module._parameters and not module._buffers:
        return {}
    tensors = {name: buffer.clone() for name, buffer in module.named_buffers()}
    for axis in width.axes:
        if axis.module == path:
            name = axis.tensor.rpartition(".")[2]
            old = getattr(module, name)
            tensors[name] = width.new_entries(axis, count, old, torch.Generator().manual_seed(0))
    return tensors


def verified_chain(model: nn.Module, width: Width, route: Route, call: ModelCall) -> bool:
    """Whether the chain gives the same as a trial run of the model, in evaluation and in training mode.

    Dropout modules are off in both, as their masks would differ; a dropout that is no module is found this way.
    """
    if route.chain is None:
        return False
    trials = Trials(model, width, route, None)
    H_prev = trials.producer_input(call)
    if H_prev is None:
        return False
    if H_prev.is_floating_point():  # an example of zeros would show nothing
        H_prev = torch.randn(H_prev.shape, generator=torch.Generator().manual_seed(1)).to(H_prev)
    weight = model.get_submodule(route.producer.module).weight
    assert isinstance(weight, Tensor)
    rows = weight.detach().movedim(route.producer.axis, 0)
    generator = torch.Generator().manual_seed(0)
    fan_in = torch.randn(3, 1, *rows.shape[1:], generator=generator).to(rows) / rows[0].numel() ** 0.5
    candidates = Candidates(fan_in)
    for training in (False, True):
        modes = [(module, "training", training and not isinstance(module, _DropoutNd)) for module in model.modules()]
        try:
            with temporary_attributes(modes), torch.no_grad():
                (expected,) = trials.consumed(candidates, H_prev, call, [route])
                found = consumed_by_chain(model, width, route, candidates, H_prev, call)
        except Exception:  # from a module's own code, which may need more than its new neurons or a larger batch
            return False
        if (
            expected is None
            or (found.shape, found.dtype) != (expected.shape, expected.dtype)  # the model may use autocast inside
            or not torch.allclose(found, expected, rtol=1e-4, atol=1e-6)
        ):
            return False
    return True
