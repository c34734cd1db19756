"""Would-be blocks, compared with a model that really has them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import neurogenesis as ng
from neurogenesis.candidates.blocks import WouldBe, would_be_block
from neurogenesis.candidates.folds import fold_gradients
from neurogenesis.candidates.rows import Gain
from neurogenesis.depth.stacks import Stack
from neurogenesis.passes.blocks import BlockTaps, Seen
from neurogenesis.passes.products import Product
from neurogenesis.passes.samples import folds, mixed


def without_dropout(model: nn.Module) -> nn.Module:
    """A model in double precision whose passes can be repeated."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.double()


def seen_in(model: nn.Module, stack: Stack, loss: Callable[[nn.Module], Tensor]) -> list[tuple[WouldBe, Seen]]:
    """What a training pass shows of the would-be blocks of a stack."""
    would_be = [would_be_block(model, stack, number) for number in range(stack.blocks)]
    taps = BlockTaps(model, lambda number, *of: would_be[number].trial(model, *of), lambda: None)
    taps.watch({number: (own.modules[0], own.modules[-1]) for number, own in enumerate(would_be)})
    taps.want(True)
    loss(model).backward()
    found = [(would_be[each.block], each) for each in taps.seen]
    taps.want(False)
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())
    return found


def in_layout(place: nn.Module, gradient: Tensor, like: Tensor) -> Tensor:
    """The gradient of a fan-out, inputs x outputs, in the layout of a parameter."""
    if isinstance(place, Gain):
        return gradient[:, 0].view_as(like)
    if isinstance(place, Product):  # x @ weight, as in GPT-2
        return gradient
    if isinstance(place, nn.Linear):
        return gradient.T
    return gradient.view(len(gradient), like.shape[0], *like.shape[2:]).movedim(0, 1)


def check_against_deeper(model: nn.Module, name: str, example: Any, loss: Callable[[nn.Module], Tensor]) -> None:
    """Compare the gradients of would-be blocks, fold by fold, with those of a model that really has them."""
    stack = ng.stacks(model, example)[name]
    state = copy.deepcopy(model.state_dict())
    found = seen_in(model, stack, loss)
    assert len(found) == stack.blocks
    items = len(next(iter(example.values())) if isinstance(example, dict) else example)
    samples = mixed(torch.arange(items))
    model.load_state_dict(state)  # running statistics
    for would_be, seen in found:
        passes = seen.made.passes(would_be.projections, seen.gradient, samples)
        pairs = zip(would_be.projections, passes, strict=True)
        own = {each: fold_gradients(each.place, *one[0][1:4])[0] for each, one in pairs if one}
        assert own
        deeper = copy.deepcopy(model)
        ng.deepen(deeper, stack.name, 1, at=[seen.block], example=example)
        new = ng.stacks(deeper, example)[stack.name].run.modules(deeper, seen.block + 1)
        for fold in folds(samples).unique().tolist():
            deeper.zero_grad()
            chosen = folds(samples) == fold
            handle = new[-1].register_forward_hook(lambda *of, chosen=chosen: only(of[-1], chosen))
            loss(deeper).backward()
            handle.remove()
            for each, gradients in own.items():
                real = new[each.module].get_parameter(each.name).grad
                assert real is not None
                mine = in_layout(each.place, gradients[fold], real)
                assert torch.allclose(mine, real, rtol=0, atol=1e-10 * float(real.abs().max())), (each.name, fold)


def only(output: Any, chosen: Tensor) -> None:
    """Pass the gradient of some items back."""
    stream = output if isinstance(output, Tensor) else output[0]
    stream.register_hook(lambda gradient: gradient * chosen.view(-1, *[1] * (gradient.ndim - 1)))  # type: ignore[no-untyped-call]
