"""Models with stacks of blocks, on which every promise of depth is run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Case:
    """A model, an input, the name of a stack in it, and the parameters that make a copy of its first block nothing."""

    name: str
    make: Callable[[], nn.Module]
    example: Tensor
    stack: str
    zero: tuple[str, ...]


class Attention(nn.Module):
    def __init__(self, size: int, heads: int, dropout: float = 0.0):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and a perceptron, each behind a norm, one after the other or, if `parallel`, side by side."""

    def __init__(self, size: int = 8, index: int = 0, parallel: bool = False, dropout: float = 0.0):
        super().__init__()
        self.index, self.parallel = index, parallel
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.attention = Attention(size, 2, dropout)
        self.mlp = nn.Sequential(nn.Linear(size, 12), nn.GELU(), nn.Linear(12, size), nn.Dropout(dropout))

    def forward(self, x: Tensor) -> Tensor:
        if self.parallel:
            return x + self.attention(self.norm1(x)) + self.mlp(self.norm2(x))
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Language(nn.Module):
    """A causal transformer on numbers of characters."""

    def __init__(self, blocks: int = 3, **others: Any):
        super().__init__()
        self.embedding, self.positions = nn.Embedding(11, 8), nn.Parameter(torch.randn(6, 8))
        self.blocks = nn.ModuleList(Block(index=number, **others) for number in range(blocks))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 11, bias=False)

    def forward(self, characters: Tensor) -> Tensor:
        x = self.embedding(characters) + self.positions[: characters.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class BasicBlock(nn.Module):
    def __init__(self, before: int, after: int, stride: int = 1):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.relu = nn.ReLU(inplace=True)
        changes = stride > 1 or before != after
        self.shortcut = nn.Conv2d(before, after, 1, stride) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += x if self.shortcut is None else self.shortcut(x)
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, blocks: int = 2):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.stage1 = nn.Sequential(*(BasicBlock(4, 4) for _ in range(blocks)))
        self.stage2 = nn.Sequential(BasicBlock(4, 6, 2), *(BasicBlock(6, 6) for _ in range(blocks - 1)))
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stage2(self.stage1(self.stem(x))).mean((2, 3)))


class Scaled(nn.Module):
    """A residual branch with a gain per entry and stochastic depth."""

    def __init__(self, size: int = 8):
        super().__init__()
        self.norm, self.layer, self.gain = nn.LayerNorm(size), nn.Linear(size, size), nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        branch = self.gain * torch.tanh(self.layer(self.norm(x)))
        if self.training:
            branch = branch * torch.bernoulli(torch.full((len(x), 1), 0.5)) / 0.5
        return x + branch


class Plain(nn.Module):
    """Layers of one size with a rectifier behind each."""

    def __init__(self, layers: int = 2):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)
        self.hidden = nn.ModuleList(nn.Linear(8, 8) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        for layer in self.hidden:
            x = F.relu(layer(x))
        return self.last(x)


def perceptron(layers: int = 3) -> nn.Sequential:
    hidden = [each for _ in range(layers) for each in (nn.Linear(8, 8), nn.ReLU())]
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), *hidden, nn.Linear(8, 2))


def convolutional() -> nn.Sequential:
    layers = [each for _ in range(2) for each in (nn.Conv2d(4, 4, 3, padding=1, groups=2), nn.ReLU())]
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), *layers, nn.Flatten(), nn.Linear(64, 2))


def encoder(norm_first: bool = True) -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.1, batch_first=True, norm_first=norm_first)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)


_TEXT = torch.arange(12).view(2, 6) % 11
_TRANSFORMER = ("attention.out.weight", "attention.out.bias", "mlp.2.weight", "mlp.2.bias")
_SEED = torch.Generator().manual_seed(0)
_FEATURES, _IMAGES = torch.randn(5, 4, generator=_SEED), torch.randn(2, 3, 6, 6, generator=_SEED)

CASES = [
    Case("language", Language, _TEXT, "blocks", _TRANSFORMER),
    Case("one block", lambda: Language(1), _TEXT, "blocks", _TRANSFORMER),
    Case("dropout", lambda: Language(dropout=0.5), _TEXT, "blocks", _TRANSFORMER),
    Case("parallel branches", lambda: Language(parallel=True), _TEXT, "blocks", _TRANSFORMER),
    Case("residual network", ResNet, _IMAGES, "stage1", ("bn2.weight", "bn2.bias")),
    Case("one block of a stage", ResNet, _IMAGES, "stage2", ("bn2.weight", "bn2.bias")),
    Case("gains", lambda: nn.Sequential(nn.Linear(4, 8), Scaled(), Scaled()), _FEATURES, "1", ("gain",)),
    Case("perceptron", perceptron, _FEATURES, "2", ("weight", "bias")),
    Case("plain list", Plain, _FEATURES, "hidden", ("weight", "bias")),
    Case("convolutions in groups", convolutional, _IMAGES, "2", ("weight", "bias")),
    Case(
        "torch's encoder",
        encoder,
        torch.randn(2, 5, 8, generator=_SEED),
        "layers",
        ("self_attn.out_proj.weight", "self_attn.out_proj.bias", "linear2.weight", "linear2.bias"),
    ),
]
