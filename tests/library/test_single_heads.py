"""A single head grows in every layout that several heads grow in. Other axes of size 1 are no factors."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import neurogenesis as ng
from tests.cases import randn
from tests.promises import check_all

X = randn(2, 5, 3).double()
Qkv = tuple[Tensor, Tensor, Tensor]


class Attention(nn.Module):
    """Attention with one head, whose layout and computation are functions."""

    def __init__(self, apart: Callable[[Any, Tensor], Qkv], attend: Callable[[Any, Qkv], Tensor], size: int = 6):
        super().__init__()
        self.apart, self.attend = apart, attend
        self.n_head, self.head_dim = 1, size
        if apart in (kinds_first, heads_first):
            self.qkv = nn.Linear(size, 3 * size)
        else:
            self.q, self.k, self.v = (nn.Linear(size, size) for _ in range(3))
        self.out = nn.Linear(size, size)

    def forward(self, x: Tensor) -> Any:
        return self.out(self.attend(self, self.apart(self, x)))


def separate(self: Any, x: Tensor) -> Qkv:
    return self.q(x), self.k(x), self.v(x)


def viewed(self: Any, x: Tensor) -> Qkv:
    batch, length, channels = x.shape
    shape = batch, length, self.n_head, channels // self.n_head
    q, k, v = (each.view(shape).transpose(1, 2) for each in separate(self, x))
    return q, k, v


def by_size_of_a_head(self: Any, x: Tensor) -> Qkv:
    q, k, v = (each.view(*x.shape[:-1], -1, self.head_dim).transpose(1, 2) for each in separate(self, x))
    return q, k, v


def unflattened(self: Any, x: Tensor) -> Qkv:
    q, k, v = (each.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for each in separate(self, x))
    return q, k, v


def kinds_first(self: Any, x: Tensor) -> Qkv:
    batch, length, _ = x.shape
    q, k, v = self.qkv(x).reshape(batch, length, 3, self.n_head, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
    return q, k, v


def heads_first(self: Any, x: Tensor) -> Qkv:
    batch, length, _ = x.shape
    q, k, v = self.qkv(x).view(batch, length, self.n_head, -1).transpose(1, 2).chunk(3, -1)
    return q, k, v


def in_batches(self: Any, x: Tensor) -> Qkv:
    batch, length, _ = x.shape
    q, k, v = (
        each.transpose(0, 1).reshape(length, batch * self.n_head, self.head_dim).transpose(0, 1)
        for each in separate(self, x)
    )
    return q, k, v


def fused(self: Any, qkv: Qkv) -> Tensor:
    return F.scaled_dot_product_attention(*qkv).transpose(1, 2).flatten(2)


def written_out(self: Any, qkv: Qkv) -> Tensor:
    q, k, v = qkv
    y = ((q @ k.transpose(-2, -1)) * self.head_dim**-0.5).softmax(-1) @ v
    return y.transpose(1, 2).reshape(q.shape[0], q.shape[2], -1)


def by_einsum(self: Any, qkv: Qkv) -> Tensor:
    q, k, v = qkv
    weights = torch.einsum("...qd,...kd->...qk", q, k).softmax(-1)
    return torch.einsum("bhqk,bhkd->bhqd", weights, v).transpose(1, 2).flatten(2)


def by_bmm(self: Any, qkv: Qkv) -> Tensor:
    q, k, v = (each.reshape(-1, *each.shape[-2:]) for each in qkv)
    y = torch.bmm(torch.bmm(q, k.transpose(1, 2)).softmax(-1), v)
    return y.view(-1, self.n_head, *y.shape[1:]).transpose(1, 2).flatten(2)


def in_a_stream_of_its_size(self: Any, qkv: Qkv) -> Tensor:
    y = F.scaled_dot_product_attention(*qkv)
    batch, heads, length, size = y.shape
    return y.transpose(1, 2).contiguous().view(batch, length, heads * size)


class Model(nn.Module):
    """A stream of two blocks of attention, behind norms."""

    def __init__(self, attention: Callable[[], nn.Module], size: int = 6):
        super().__init__()
        self.embed, self.head, self.last = nn.Linear(3, size), nn.Linear(size, 2), nn.LayerNorm(size)
        self.attentions = nn.ModuleList(attention() for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(2))

    def forward(self, x: Tensor) -> Any:
        x = self.embed(x)
        for norm, attention in zip(self.norms, self.attentions, strict=True):
            x = x + attention(norm(x))
        return self.head(self.last(x))


def single_heads(model: nn.Module) -> list[ng.Width]:
    """Widths of a single head, or of a stream that it splits."""
    found = ng.widths(model, X)
    return [width for width in found.growable if width.size == 1 and width.kind in ("heads", "stream")]


LAYOUTS = [
    *((apart, attend) for apart in (viewed, by_size_of_a_head, unflattened) for attend in (fused, written_out)),
    *((apart, attend) for apart in (kinds_first, heads_first) for attend in (fused, by_einsum, by_bmm)),
    (viewed, by_einsum),
    (viewed, in_a_stream_of_its_size),
    (unflattened, by_bmm),
]


@pytest.mark.parametrize(("apart", "attend"), LAYOUTS, ids=lambda each: each.__name__)
def test_a_single_head_grows_in_every_layout(apart: Any, attend: Any) -> None:
    model = Model(lambda: Attention(apart, attend)).double()
    assert single_heads(copy.deepcopy(model))
    check_all(model, X, 1e-10)


def test_heads_that_are_merged_with_samples_grow() -> None:
    def back(self: Any, qkv: Qkv) -> Tensor:
        q, k, v = qkv
        y = (q @ k.transpose(1, 2)).softmax(-1) @ v
        samples = y.shape[0] // self.n_head
        return y.transpose(0, 1).reshape(y.shape[1], samples, -1).transpose(0, 1)

    model = Model(lambda: Attention(in_batches, back)).double()
    assert [width.size for width in single_heads(copy.deepcopy(model))] == [1, 1]
    check_all(model, X, 1e-10)


@pytest.mark.parametrize("need_weights", [False, True])
def test_a_single_head_of_a_layer_of_torch_grows(need_weights: bool) -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = nn.MultiheadAttention(6, 1, batch_first=True)

        def forward(self, x: Tensor) -> Any:
            return self.own(x, x, x, need_weights=need_weights)[0]

    model = Model(Layer).double()
    (width,) = single_heads(copy.deepcopy(model))
    assert (width.kind, width.unit) == ("stream", 6)
    check_all(model, X, 1e-10)


def test_attributes_follow_a_single_head_and_go_back() -> None:
    model = Model(lambda: Attention(by_size_of_a_head, fused)).double()
    model.attentions[0].apart = viewed
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    ng.grow(model, "attentions.1.q", 2, example=X)
    assert model.attentions[1].q.weight.shape == (18, 6)
    assert model.attentions[1].out.in_features == 18
    ng.shrink(model, "attentions.1.q", [1, 2])
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


class PerHead(Attention):
    """Parameters of each head: a scale and a table of biases; and a mask that is the same for all heads."""

    def __init__(self) -> None:
        super().__init__(viewed, fused)
        self.scale = nn.Parameter(torch.rand(1, 1, 1))
        self.table = nn.Parameter(torch.rand(9, 1))
        self.register_buffer("mask", torch.ones(1, 1, 5, 5).tril().log())
        self.register_buffer("index", torch.arange(5)[:, None] - torch.arange(5) + 4)

    def forward(self, x: Tensor) -> Any:
        q, k, v = viewed(self, x)
        bias = self.table[self.index.flatten()].view(5, 5, -1).permute(2, 0, 1).unsqueeze(0)
        y = (q @ k.transpose(-2, -1) * self.scale + bias + self.mask).softmax(-1) @ v
        return self.out(y.transpose(1, 2).flatten(2))


def test_parameters_of_a_single_head_grow_with_it_and_what_is_the_same_for_all_heads_does_not() -> None:
    model = Model(PerHead).double()
    (width,) = [each for each in single_heads(model) if each.name != "attentions.1.q"]
    ng.grow(model, width, 1)
    assert [tuple(model.attentions[0].get_parameter(name).shape) for name in ("scale", "table")] == [(2, 1, 1), (9, 2)]
    assert model.attentions[0].mask.shape == (1, 1, 5, 5)
    check_all(Model(PerHead).double(), X, 1e-10)


def test_one_head_of_keys_for_several_of_queries_stays_one() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head_dim, self.q, self.k, self.v = 2, nn.Linear(6, 6), nn.Linear(6, 2), nn.Linear(6, 2)
            self.out = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Any:
            q, k, v = (each(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for each in (self.q, self.k, self.v))
            y = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
            return self.out(y.transpose(1, 2).flatten(2))

    model = Model(Shared).double()
    found = ng.widths(model, X)
    assert [width.size for width in found.growable if width.kind == "heads"] == [3, 3]
    check_all(model, X, 1e-10)


class Windows(nn.Module):
    """One window of all positions, a channel that is unsqueezed, and a mean that keeps its axis: no heads."""

    def __init__(self) -> None:
        super().__init__()
        self.window, self.groups = 5, 1
        self.up, self.gate, self.down = nn.Linear(6, 8), nn.Linear(8, 1), nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Any:
        batch, length, _ = x.shape
        h = self.up(x).view(batch, length // self.window, self.window, self.groups, -1)
        h = h * h.mean(1, keepdim=True) * torch.sigmoid(self.gate(h))
        return self.down(h.reshape(batch, -1, 8 * self.groups))


def test_other_axes_of_size_one_are_no_heads_and_hide_nothing_that_can_grow() -> None:
    model = Model(Windows).double()
    found = ng.widths(model, X)
    assert {width.kind for width in found.growable} == {"stream"}
    wide = Model(lambda: nn.Sequential(nn.Linear(6, 8), nn.Unflatten(-1, (1, 8)), nn.Flatten(2), nn.Linear(8, 6)))
    sizes = ng.widths(wide.double(), X).sizes
    assert sizes["attentions.0.0"] == 8
    check_all(wide, X, 1e-10)


def test_heads_that_code_counts_in_numbers_stay_and_the_reason_says_so() -> None:
    def counted(self: Any, x: Tensor) -> Qkv:
        q, k, v = (each.view(2, 5, 1, 6).transpose(1, 2) for each in separate(self, x))
        return q, k, v

    found = ng.widths(Model(lambda: Attention(counted, fused)).double(), X)
    reason = found["attentions.0.q"].reason
    assert reason is not None and reason.startswith("contracted between two activations (queries with keys)")


def test_a_grower_adds_heads_to_a_single_one() -> None:
    model = Model(lambda: Attention(by_size_of_a_head, fused))
    optimizer = torch.optim.Adam(model.parameters())
    schedule = ng.Strategy(ng.triggers.Batched(2, final="3x", batches=2))
    grower = ng.Grower(model, optimizer, schedule, example=X.float(), include=["heads"])
    assert grower.widths == {"attentions.0.q": 1, "attentions.1.q": 1}
    for _ in range(3):
        model(X.float()).square().mean().backward()
        optimizer.step()
        grower.step()
    assert grower.widths == {"attentions.0.q": 3, "attentions.1.q": 3}


def test_would_be_heads_are_measured_beside_a_single_one() -> None:
    model = Model(lambda: Attention(by_size_of_a_head, fused))
    optimizer = torch.optim.Adam(model.parameters())
    grower = ng.Grower(model, optimizer, example=X.float(), include=["heads"], max_width={"heads": 4})
    model(X.float()).square().mean().backward()
    layer = next(each for each in grower.layers if each.name == "attentions.1.q")
    ((seen,),) = layer.passes_with(layer.random_fan_ins(3, torch.Generator().manual_seed(1)))
    assert seen.h.shape == (2, 5, 18)
