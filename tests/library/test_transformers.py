"""Heads and the stream in training: what comes with them, and what stands in the way of their growth."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.parametrizations import weight_norm

import neurogenesis as ng
from tests.promises import difference, outputs_of, unsettle
from tests.transformer_cases import TOKENS, GroupedAttention, SmallGPT, SplitAttention, layer_norm

TARGETS = (TOKENS + 1) % 7


def rms_norm() -> nn.Module:
    return nn.RMSNorm(6)


def grouped(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    return SmallGPT(lambda: GroupedAttention(**options), rms_norm, tied=False).double()


def loss_of(model: nn.Module) -> Tensor:
    return nn.functional.cross_entropy(model(TOKENS).flatten(0, 1), TARGETS.flatten())


def new_entries(model: nn.Module, width: ng.Width, old: int) -> dict[tuple[str, int], Tensor]:
    """The entries of trained parameters that a growth has added."""
    parameters = dict(model.named_parameters())
    return {
        (axis.tensor, axis.axis): parameters[axis.tensor]
        .detach()
        .index_select(axis.axis, width.positions(axis)[old:].flatten())
        .clone()
        for axis in width.axes
        if axis.tensor in parameters
    }


@pytest.mark.parametrize("kind", ["heads", "stream"])
def test_every_new_weight_has_changed_after_two_gradient_steps(kind: str) -> None:
    model = grouped()
    unsettle(model)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    width = next(each for each in ng.widths(model, TOKENS).growable if each.kind == kind)
    old = width.size
    ng.grow(model, width, 2, optimizer=optimizer, generator=torch.Generator().manual_seed(1))
    before = new_entries(model, width, old)
    for _ in range(2):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
    for place, now in new_entries(model, width, old).items():
        rows = TOKENS.unique() if place == ("wte.weight", 1) else slice(None)  # other tokens do not occur
        assert (now != before[place])[rows].all(), place


@pytest.mark.parametrize("wrap", [torch.compile, DistributedDataParallel], ids=["compile", "DDP"])
def test_wrapped_models_grow_and_train_on(wrap: Any, tmp_path: Any) -> None:
    options = {"backend": "eager"} if wrap is torch.compile else {}
    if wrap is DistributedDataParallel:
        dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    try:
        model = grouped()
        wrapped = wrap(model, **options)
        optimizer = optim.AdamW(wrapped.parameters(), lr=1e-2)
        loss_of(wrapped).backward()
        optimizer.step()
        before = outputs_of(model, TOKENS, False)
        for width in ng.widths(wrapped, TOKENS).growable:
            ng.grow(wrapped, width, 1, optimizer=optimizer)
        assert difference(before, outputs_of(model, TOKENS, False)) < 1e-12
        optimizer.zero_grad()
        loss_of(wrapped).backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        optimizer.step()
        assert model.wte.weight.shape == (7, 7) and model.h[0].attn.q_proj.weight.shape == (24, 7)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


class Divides(GroupedAttention):
    """Demands that the stream is a multiple of the number of heads."""

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[-1] % (self.q_proj.out_features // self.head_dim) == 0, "a multiple of the number of heads"
        return super().forward(x)


def dividing() -> nn.Module:
    return SmallGPT(lambda: Divides(2, 2), rms_norm, tied=False)


def with_weight_norm() -> nn.Module:
    model = grouped()
    for block in model.h:
        weight_norm(block.attn.q_proj)
    return model


def quantized() -> nn.Module:
    quantization = pytest.importorskip("torchao.quantization")
    model = SmallGPT(GroupedAttention, rms_norm, tied=False)
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig(), lambda module, name: name.endswith("proj"))
    return model


class Slopes(GroupedAttention):
    """Computes slopes from the number of heads, as ALiBi does: other heads would get others."""

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:-1], -1, self.head_dim)
        q, k, v = (layer(x).view(shape).transpose(1, 2) for layer in (self.q_proj, self.k_proj, self.v_proj))
        q, k = self.q_norm(q), self.k_norm(k)
        slopes = 2.0 ** (-8 * torch.arange(1, q.shape[1] + 1) / q.shape[1])
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim) + slopes[:, None, None] * torch.arange(x.shape[1])
        return self.o_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


def with_slopes() -> nn.Module:
    return SmallGPT(lambda: Slopes(2, 2), rms_norm, tied=False)


@pytest.mark.parametrize(
    ("make", "name", "reason"),
    [
        (dividing, "wte", "a multiple of the number of heads"),
        (dividing, "h.0.attn.q_proj", "a multiple of the number of heads"),
        (with_weight_norm, "wte", "normalized across by the weight norm of h.0.attn.q_proj"),
        (quantized, "wte", "o_proj.weight, which is stored as Int8Tensor"),
        (with_slopes, "h.0.attn.q_proj", "the outputs change although the new fan-out is zero"),
    ],
)
def test_what_stands_in_the_way_is_said_and_nothing_changes(make: Any, name: str, reason: str) -> None:
    model = make()
    before, shapes = outputs_of(model, TOKENS, False), {name: each.shape for name, each in model.state_dict().items()}
    width = ng.widths(model, TOKENS)[name]
    assert reason in str(width.reason)
    with pytest.raises(ValueError, match="cannot grow"):
        ng.grow(model, name, 1, example=TOKENS)
    assert {name: each.shape for name, each in model.state_dict().items()} == shapes
    assert torch.equal(before[0], outputs_of(model, TOKENS, False)[0])
    assert any(other.growable for other in ng.widths(model, TOKENS))


def test_weight_norm_and_heads_go_together() -> None:
    model = with_weight_norm()
    before = outputs_of(model, TOKENS, False)
    ng.grow(model, "h.0.attn.q_proj", 1, example=TOKENS)
    assert difference(before, outputs_of(model, TOKENS, False)) < 1e-12


def test_blocks_that_a_stack_shares_grow_once() -> None:
    model = grouped()
    model.h = nn.ModuleList([model.h[0]] * 3)
    before = outputs_of(model, TOKENS, False)
    found = ng.widths(model, TOKENS)
    assert [width.kind for width in found.growable] == ["stream", "heads", "neurons"]
    for width in found.growable:
        ng.grow(model, width, 2)
    assert difference(before, outputs_of(model, TOKENS, False)) < 1e-12


def test_heads_that_split_the_stream_are_told_with_their_size() -> None:
    model = SmallGPT(SplitAttention, layer_norm, tied=False)
    found = ng.widths(model, TOKENS)
    assert found["wte"].kind == "stream" and found["wte"].unit == 3
    assert "stream, heads of 3" in str(found)
    ng.grow(model, "wte", 2)
    assert (model.h[0].attn.n_head, model.h[0].attn.n_embd, model.ln_f.normalized_shape) == (4, 12, (12,))
