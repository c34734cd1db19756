"""A causal transformer that predicts the next character."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """Causal self-attention, then a dense layer, each behind a norm and added to what came in."""

    def __init__(self, size: int, heads: int, head_size: int, neurons: int):
        super().__init__()
        self.head_size = head_size
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.query, self.key, self.value = (nn.Linear(size, heads * head_size) for _ in range(3))
        self.mix = nn.Linear(heads * head_size, size)
        self.up, self.down = nn.Linear(size, neurons), nn.Linear(neurons, size)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        query, key, value = (
            layer(h).unflatten(-1, (-1, self.head_size)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mix(seen.transpose(1, 2).flatten(2))
        added: Tensor = self.down(F.gelu(self.up(self.norm2(x))))
        return x + added


class Transformer(nn.Module):
    """Embeddings of characters and positions, blocks, and a linear layer that scores the next character.

    Heads and neurons are those of each block.

    Example:
        >>> import torch
        >>> model = Transformer(characters=100, length=64, size=64, head_size=16, heads=[4, 4], neurons=[256, 128])
        >>> model(torch.zeros(3, 64, dtype=torch.int64)).shape
        torch.Size([3, 64, 100])
    """

    def __init__(
        self, *, characters: int, length: int, size: int, head_size: int, heads: Sequence[int], neurons: Sequence[int]
    ):
        super().__init__()
        self.embedding, self.position = nn.Embedding(characters, size), nn.Embedding(length, size)
        sizes = zip(heads, neurons, strict=True)
        self.blocks = nn.ModuleList(Block(size, own_heads, head_size, own) for own_heads, own in sizes)
        self.norm, self.output = nn.LayerNorm(size), nn.Linear(size, characters)
        for each in (self.embedding, self.position):
            nn.init.normal_(each.weight, std=0.02)

    def forward(self, characters: Tensor) -> Tensor:
        x = self.embedding(characters) + self.position.weight[: characters.shape[1]]
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.output(self.norm(x))
        return scores
