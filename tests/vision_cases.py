"""Vision models on which every promise is checked: windows, tables of positions, norms that run over positions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.cases import IN, OUT, case, randn

IMAGES = randn(2, 3, 8, 8)


class WindowAttention(nn.Module):
    """Attention within shifted windows, whose number of heads is also a part of a tuple and of a table's shape."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.dim, self.num_heads, self.bias_shape = dim, num_heads, (4, 4, num_heads)
        self.norm, self.qkv, self.proj = nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.table = nn.Parameter(0.02 * randn(9, num_heads))
        at = torch.stack(torch.meshgrid(torch.arange(2), torch.arange(2), indexing="ij")).flatten(1)
        self.register_buffer(
            "index", ((at[:, :, None] - at[:, None]) + 1).mul(torch.tensor([3, 1])[:, None, None]).sum(0)
        )

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        windows = torch.roll(self.norm(x), (-1, -1), (1, 2)).view(b, h // 2, 2, w // 2, 2, c)
        windows = windows.permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, c)
        qkv = self.qkv(windows).reshape(-1, 4, 3, self.num_heads, c // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        bias = self.table[self.index.flatten()].view(self.bias_shape).permute(2, 0, 1)
        y = (q @ k.transpose(-2, -1) * (self.dim // self.num_heads) ** -0.5 + bias).softmax(-1) @ v
        y = self.proj(y.transpose(1, 2).reshape(-1, 4, c)).view(b, h // 2, w // 2, 2, 2, c)
        return x + torch.roll(y.permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c), (1, 1), (1, 2))


@case(IMAGES, {"patch": 2}, {"head": OUT, "input of patch": IN})
class shifted_windows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch, self.norm, self.head = nn.Conv2d(3, 8, 2, 2), nn.LayerNorm(8), nn.Linear(8, 2)
        self.blocks = nn.Sequential(WindowAttention(8, 2), WindowAttention(8, 2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.patch(x).permute(0, 2, 3, 1))
        return self.head(self.norm(x).mean((1, 2)))


@case(IMAGES, {"stem": 4, "mix": 5}, {"head": OUT})
class norm_over_channels_and_positions(nn.Module):
    """GroupNorm with one group: only copies of all channels keep its mean and variance."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.mix = nn.Conv2d(3, 4, 3), nn.GroupNorm(1, 4), nn.Conv2d(4, 5, 1)
        self.back, self.head = nn.Conv2d(5, 4, 1), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.back(F.gelu(self.mix(self.norm(x))))
        return self.head(x.mean((2, 3)))


@case(IMAGES, {"stem": 4, "up": 6}, {"head": OUT})
class responses_over_their_mean(nn.Module):
    """The responses of channels are divided by their mean, which copies of all channels keep."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.up, self.down, self.head = (
            nn.Conv2d(3, 4, 3),
            nn.Conv2d(4, 6, 1),
            nn.Conv2d(6, 4, 1),
            nn.Linear(4, 2),
        )
        self.gain, self.bias = nn.Parameter(randn(6, 1, 1)), nn.Parameter(randn(6, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = F.gelu(self.up(x))
        response = y.norm(dim=(2, 3), keepdim=True)
        y = y + self.gain * y * (response / (response.mean(1, keepdim=True) + 1e-6)) + self.bias
        return self.head((x + self.down(y)).mean((2, 3)))


@case(IMAGES, {"stem": 3, "qkv": 2}, {"head": OUT})
class attention_of_channels(nn.Module):
    """Channels of a head attend to each other: queries and keys are contracted over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = 2
        self.stem, self.norm, self.head = nn.Conv2d(3, 3, 2, 2), nn.LayerNorm(3), nn.Linear(3, 2)
        self.qkv, self.proj = nn.Linear(3, 12), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).flatten(2).transpose(1, 2)
        b, n, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 4, 1)
        weights = (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)).softmax(-1)
        x = x + self.proj((weights @ v).permute(0, 3, 1, 2).reshape(b, n, -1))
        return self.head(x.mean(1))


@case(randn(2, 5, 6), {"embed": 2, "mlp.0": 5}, {"head": OUT})
class packed_attention(nn.Module):
    """nn.MultiheadAttention returns the mean of its weights over heads, which nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.attention = nn.Linear(6, 8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 2)
        self.mlp = nn.Sequential(nn.Linear(8, 5), nn.GELU(), nn.Linear(5, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        y = self.norm(x)
        x = x + self.attention(y, y, y)[0]
        return self.head(self.norm(x + self.mlp(self.norm(x))))
