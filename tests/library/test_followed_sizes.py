"""Sizes that a model's code takes from lists, keeps in equal chunks, or that a kernel of size 1 leaves apart, grow."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import neurogenesis as ng
from tests.cases import randn
from tests.promises import assert_outputs, check_all, outputs_of


class Lists(nn.Module):
    """One projection is split by a list of sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = [6, 6, 2]
        self.f, self.h, self.out = nn.Linear(3, 14), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Any:
        query, context, gates = torch.split(self.f(x), self.parts, -1)
        context = F.gelu(context) * gates[..., :1] + context * gates[..., 1:]
        return self.out(query * self.h(context))


class Kept(nn.Module):
    """In evaluation, the biases of all positions are kept for later runs; training forgets them."""

    def __init__(self) -> None:
        super().__init__()
        self.n_head, self.qkv, self.out = 2, nn.Linear(3, 18), nn.Linear(6, 2)
        self.biases = nn.Parameter(torch.rand(2, 9))
        self.register_buffer("index", torch.arange(5)[:, None] - torch.arange(5) + 4, persistent=False)
        self.kept: dict[str, Tensor] = {}

    def train(self, mode: bool = True) -> Kept:
        super().train(mode)
        if mode:
            self.kept = {}
        return self

    def bias(self) -> Tensor:
        if self.training:
            return self.biases[:, self.index]
        return self.kept.setdefault("biases", self.biases[:, self.index])

    def forward(self, x: Tensor) -> Any:
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, self.n_head, -1).transpose(1, 2).chunk(3, -1)
        y = (q @ k.transpose(-2, -1) + self.bias()).softmax(-1) @ v
        return self.out(y.transpose(1, 2).flatten(2))


class Chunks(nn.Module):
    """Each of three equal chunks of the channels has a layer of its own; the results add up in a cascade."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Linear(3, 12), nn.Linear(12, 2)
        self.mix = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Any:
        results: list[Tensor] = []
        for part, mix in zip(self.embed(x).chunk(3, dim=-1), self.mix, strict=True):
            results.append(torch.tanh(mix(part + results[-1] if results else part)))
        return self.out(torch.cat(results, -1))


class Aggregate(nn.Module):
    """A convolution with a kernel of size 1 sums over tokens, and leaves their entries apart."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.sum, self.out = nn.Linear(3, 6), nn.Linear(3, 6), nn.Conv1d(2, 1, 1), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Any:
        tokens = torch.stack([F.gelu(self.a(x[:, 0])), F.gelu(self.b(x[:, 1]))], 1)
        return self.out(self.sum(tokens).squeeze(1))


@pytest.mark.parametrize(
    ("make", "size", "kinds"),
    [
        (Lists, {"f": 6}, {"neurons"}),
        (Kept, {"qkv": 2}, {"heads"}),
        (Chunks, {"embed": 4}, {"neurons"}),
        (Aggregate, {"a": 6}, {"neurons"}),
    ],
    ids=["lists", "kept results", "chunks", "kernels of size 1"],
)
def test_it_grows(make: Any, size: dict[str, int], kinds: set[str]) -> None:
    x = randn(2, 5, 3).double()
    found = ng.widths(make().double(), x)
    assert {width.kind for width in found.growable} == kinds
    assert size.items() <= found.sizes.items()
    check_all(make().double(), x, 1e-10)


def test_lists_of_sizes_remain_lists_and_go_back() -> None:
    model = Lists()
    sizes = model.parts
    ng.grow(model, "f", 3, example=randn(2, 5, 3))
    assert model.parts == [9, 6, 2] and type(model.parts) is list
    copied = copy.deepcopy(model)
    ng.shrink(copied, "f", [6, 7, 8], example=randn(2, 5, 3))
    assert copied.parts == sizes == [6, 6, 2]


def test_finding_widths_leaves_nothing_in_what_a_model_keeps() -> None:
    x, model = randn(2, 5, 3).double(), Kept().double().eval()
    ng.widths(model, x)
    assert model.kept == {}
    before = {False: outputs_of(model, x, False)}
    model.train()
    ng.grow(model, "qkv", 1, example=x)
    assert_outputs(model, x, before, 1e-12)


class Scales(nn.Module):
    """Heads are split into groups of two and three, with a norm across all of them that takes means of products."""

    def __init__(self) -> None:
        super().__init__()
        self.splits, self.embed, self.norm = [4, 6], nn.Conv1d(3, 10, 1), nn.LayerNorm(10)
        self.convs = nn.ModuleList(nn.Conv1d(n, n, 3, padding=1, groups=n) for n in self.splits)
        self.out = nn.Linear(10, 2)

    def forward(self, x: Tensor) -> Any:
        parts = torch.split(self.embed(x.transpose(1, 2)), self.splits, dim=1)
        x = torch.cat([part * conv(part) for part, conv in zip(parts, self.convs, strict=True)], 1)
        return self.out(self.norm(x.transpose(1, 2)))


def test_copies_of_one_part_of_what_a_norm_takes_the_mean_of_are_refused() -> None:
    x = randn(2, 5, 3).double()
    found = ng.widths(Scales().double(), x)
    assert not found.growable
    (reason,) = {str(width.reason) for width in found if "one of several parts" in str(width.reason)}
    assert reason.endswith("where copies of one of several parts would change the mean of all")


class Divided(nn.Module):
    """Channel attention, whose heads split channels that layers in front of it take in chunks."""

    def __init__(self, channels: int, chunks: int, heads: int) -> None:
        super().__init__()
        self.chunks, self.num_heads = chunks, heads
        self.embed, self.qkv, self.out = (
            nn.Linear(3, channels),
            nn.Linear(channels, 3 * channels),
            nn.Linear(channels, 2),
        )

    def forward(self, x: Tensor) -> Any:
        x = torch.cat([part.sigmoid() for part in self.embed(x).chunk(self.chunks, -1)], -1)
        batch, length, channels = x.shape
        q, k, v = self.qkv(x).reshape(batch, length, 3, self.num_heads, -1).permute(2, 0, 3, 4, 1).unbind(0)
        y = (q @ k.transpose(-2, -1)).softmax(-1) @ v
        return self.out(x + y.permute(0, 3, 1, 2).reshape(batch, length, channels))


@pytest.mark.parametrize(("chunks", "heads", "size"), [(2, 4, 2), (4, 4, 1)], ids=["two heads each", "a head each"])
def test_heads_grow_in_all_chunks_at_once(chunks: int, heads: int, size: int) -> None:
    x = randn(2, 5, 3).double()
    (width,) = ng.widths(Divided(12, chunks, heads).double(), x).growable
    assert (width.size, width.unit) == (size, 3 * chunks)
    model = Divided(12, chunks, heads).double()
    ng.grow(model, "embed", 1, example=x)
    assert model.num_heads == heads + chunks
    check_all(Divided(12, chunks, heads).double(), x, 1e-10)


def test_an_axis_that_code_divides_in_two_ways_stays_and_the_reason_says_how() -> None:
    found = ng.widths(Divided(8, 3, 2), randn(2, 5, 3))
    assert found["embed"].reason == "divided in two ways, as 3+3+2 and as 2*4"
