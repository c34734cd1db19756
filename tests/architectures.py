"""Random networks: layers, norms, branches, residuals, concatenations, gates and flattening, nested at will."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

Spec = tuple[Any, ...]

_WIDTHS = st.integers(1, 6)
_LAYER = st.one_of(
    st.tuples(st.just("conv"), _WIDTHS, st.sampled_from([1, 3]), st.booleans()),
    st.tuples(st.just("grouped"), st.integers(1, 2), st.integers(1, 3)),
    st.tuples(st.just("depthwise"), st.integers(1, 2)),
    st.tuples(st.just("transposed"), _WIDTHS),
    st.tuples(st.just("norm"), st.sampled_from(["batch", "instance", "group", "layer"])),
    st.tuples(st.just("activation"), st.sampled_from(["relu", "prelu", "gelu", "hardswish"])),
    st.tuples(st.just("gate"), _WIDTHS),
    st.tuples(st.just("glu")),
    st.tuples(st.just("pointwise"), _WIDTHS),  # a linear layer on permuted channels
    st.tuples(st.just("pool")),
)


def _nested(inner: st.SearchStrategy[list[Spec]]) -> st.SearchStrategy[list[Spec]]:
    branches = st.lists(inner, min_size=1, max_size=3)
    block = st.one_of(
        _LAYER,
        st.tuples(st.just("residual"), inner),
        st.tuples(st.just("concatenate"), branches),
        st.tuples(st.just("split"), branches),
        st.tuples(st.just("twice"), inner),
    )
    return st.lists(block, max_size=4)


SPECS = st.recursive(st.lists(_LAYER, max_size=3), _nested, max_leaves=5)
HEADS = st.tuples(st.sampled_from(["flatten", "flatten last", "mean"]), st.lists(_WIDTHS, max_size=2))


class Block(nn.Module):
    """A list of layers by specification; every image keeps its size of 4 x 4."""

    def __init__(self, specs: list[Spec], channels: int):
        super().__init__()
        self.layers = nn.ModuleList()
        for spec in specs:
            layer = make(spec, channels)
            self.layers.append(layer)
            with torch.no_grad():
                channels = layer.eval()(torch.zeros(1, channels, 4, 4)).shape[1]
        self.channels = channels

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Residual(nn.Module):
    def __init__(self, specs: list[Spec], channels: int):
        super().__init__()
        self.body = Block(specs, channels)
        self.shortcut = nn.Identity() if self.body.channels == channels else nn.Conv2d(channels, self.body.channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.shortcut(x) + self.body(x)


class Concatenate(nn.Module):
    def __init__(self, branches: list[list[Spec]], channels: int):
        super().__init__()
        self.branches = nn.ModuleList(Block(specs, channels) for specs in branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class Split(nn.Module):
    """A layer's channels cut into pieces by sizes that the code reads off its layers."""

    def __init__(self, branches: list[list[Spec]], channels: int):
        super().__init__()
        self.spread = nn.Conv2d(channels, 2 * len(branches), 1)
        self.narrow = nn.ModuleList(nn.Conv2d(2, 3, 1) for _ in branches)
        self.branches = nn.ModuleList(Block(specs, 3) for specs in branches)

    def forward(self, x: Tensor) -> Tensor:
        pieces = self.spread(x).split([layer.in_channels for layer in self.narrow], 1)
        parts = zip(self.branches, self.narrow, pieces, strict=True)
        return torch.cat([branch(layer(piece)) for branch, layer, piece in parts], 1)


class Twice(nn.Module):
    """A block applied two times, if its output fits its input."""

    def __init__(self, specs: list[Spec], channels: int):
        super().__init__()
        self.body = Block(specs, channels)
        self.back = nn.Conv2d(self.body.channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.back(self.body(self.back(self.body(x))))


class Gate(nn.Module):
    def __init__(self, hidden: int, channels: int):
        super().__init__()
        self.squeeze, self.excite = nn.Linear(channels, hidden), nn.Linear(hidden, channels)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.excite(F.silu(self.squeeze(x.mean((2, 3))))).sigmoid()[:, :, None, None]


class Glu(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.pair = nn.Conv2d(channels, 2 * channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.pair(x).chunk(2, 1)
        return value * gate.sigmoid()


class Pointwise(nn.Module):
    def __init__(self, hidden: int, channels: int):
        super().__init__()
        self.up, self.down = nn.Linear(channels, hidden), nn.Linear(hidden, channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x.permute(0, 2, 3, 1)))).permute(0, 3, 1, 2)


class ChannelNorm(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


def make(spec: Spec, channels: int) -> nn.Module:
    """The layer that a specification describes, for inputs of so many channels."""
    kind, *rest = spec
    match kind:
        case "conv":
            width, kernel, bias = rest
            return nn.Conv2d(channels, width, kernel, padding=kernel // 2, bias=bias)
        case "grouped":
            inputs, outputs = rest
            return nn.Sequential(nn.Conv2d(channels, 2 * inputs, 1), nn.Conv2d(2 * inputs, 2 * outputs, 1, groups=2))
        case "depthwise":
            return nn.Conv2d(channels, rest[0] * channels, 3, padding=1, groups=channels)
        case "transposed":
            return nn.ConvTranspose2d(channels, rest[0], 3, padding=1)
        case "norm":
            norms = {"batch": nn.BatchNorm2d, "instance": nn.InstanceNorm2d, "layer": ChannelNorm}
            return nn.GroupNorm(1, channels) if rest[0] == "group" else norms[rest[0]](channels)
        case "activation":
            kinds = {"relu": nn.ReLU, "gelu": nn.GELU, "hardswish": nn.Hardswish}
            return nn.PReLU(channels) if rest[0] == "prelu" else kinds[rest[0]]()
        case "gate":
            return Gate(rest[0], channels)
        case "glu":
            return Glu(channels)
        case "pointwise":
            return Pointwise(rest[0], channels)
        case "pool":
            return nn.AvgPool2d(3, 1, 1)
    nested: dict[str, Any] = {"residual": Residual, "concatenate": Concatenate, "split": Split, "twice": Twice}
    module: nn.Module = nested[kind](rest[0], channels)
    return module


class Network(nn.Module):
    """A random body on images of 3 x 4 x 4, flattened in some way, and a random multilayer perceptron."""

    def __init__(self, specs: list[Spec], head: tuple[str, list[int]]):
        super().__init__()
        self.flattening, hidden = head
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.body = Block(specs, 4)
        sizes = [self.body.channels * (1 if self.flattening == "mean" else 16), *hidden]
        layers = [nn.Linear(a, b) for a, b in pairwise(sizes)]
        self.head = nn.Sequential(*(each for layer in layers for each in (layer, nn.Tanh())), nn.Linear(sizes[-1], 2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(self.stem(x))
        if self.flattening == "mean":
            return self.head(x.mean((2, 3)))
        return self.head(x.flatten(1) if self.flattening == "flatten" else x.permute(0, 2, 3, 1).flatten(1))
