"""Transformers on which every promise is checked: heads and the stream, in the layouts that people write."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.cases import OUT, case, randn

TOKENS = torch.arange(10).reshape(2, 5) % 7


class SplitAttention(nn.Module):
    """One projection for queries, keys and values, whose heads split the stream, as small GPTs are written."""

    def __init__(self, fused: bool = True) -> None:
        super().__init__()
        self.fused, self.n_head, self.n_embd = fused, 2, 6
        self.c_attn, self.c_proj = nn.Linear(6, 18), nn.Linear(6, 6)
        self.register_buffer("past", torch.tril(torch.ones(1, 1, 5, 5)))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, channels = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        q, k, v = (each.view(batch, length, self.n_head, channels // self.n_head).transpose(1, 2) for each in (q, k, v))
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(-2, -1)) * (1 / math.sqrt(k.size(-1)))
            y = scores.masked_fill(self.past[:, :, :length, :length] == 0, -math.inf).softmax(-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(batch, length, channels))


class Block(nn.Module):
    """A pre-norm block."""

    def __init__(self, attention: nn.Module, norm: Callable[[], nn.Module], width: int = 6) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = norm(), attention, norm()
        self.mlp = nn.Sequential(nn.Linear(width, 5), nn.GELU(), nn.Linear(5, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class SmallGPT(nn.Module):
    """Token and position embeddings, two blocks, a norm, a head, which may share the weight of the embedding."""

    def __init__(self, attention: Callable[[], nn.Module], norm: Callable[[], nn.Module], tied: bool) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(7, 6), nn.Embedding(5, 6)
        self.h = nn.ModuleList(Block(attention(), norm) for _ in range(2))
        self.ln_f, self.lm_head = norm(), nn.Linear(6, 7, bias=False)
        if tied:
            self.lm_head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.size(1), device=tokens.device))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def layer_norm() -> nn.Module:
    return nn.LayerNorm(6)


FEED_FORWARD = {"h.0.mlp.0": 5, "h.1.mlp.0": 5}


@case(TOKENS, {"wte": 2, **FEED_FORWARD}, {"lm_head": OUT})
def gpt() -> nn.Module:
    return SmallGPT(SplitAttention, layer_norm, tied=False)


@case(TOKENS, {"wpe": 2, **FEED_FORWARD}, {"wte": OUT})
def gpt_with_tied_embeddings_and_written_attention() -> nn.Module:
    return SmallGPT(lambda: SplitAttention(fused=False), layer_norm, tied=True)


class WrittenRMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(6)), 1e-5

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


def rotated(x: Tensor) -> Tensor:
    """Rotary positions."""
    angle = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * torch.tensor([1.0, 0.1], dtype=x.dtype)
    cosine, sine = (torch.cat([each, each], -1) for each in (angle.cos(), angle.sin()))
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat([-second, first], -1) * sine


class GroupedAttention(nn.Module):
    """Several heads of queries share one of keys and values; queries and keys are normed, sinks are learned."""

    def __init__(self, query_heads: int = 4, key_heads: int = 2, enable_gqa: bool = True) -> None:
        super().__init__()
        self.head_dim, self.groups, self.enable_gqa = 4, query_heads // key_heads, enable_gqa
        self.q_proj = nn.Linear(6, 4 * query_heads, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(6, 4 * key_heads, bias=False) for _ in range(2))
        self.o_proj = nn.Linear(4 * query_heads, 6, bias=False)
        self.q_norm, self.k_norm = nn.RMSNorm(4), nn.RMSNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:-1], -1, self.head_dim)
        q, k, v = (layer(x).view(shape).transpose(1, 2) for layer in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotated(self.q_norm(q)), rotated(self.k_norm(k))
        if not self.enable_gqa:
            k, v = (each.repeat_interleave(self.groups, 1) for each in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.enable_gqa)
        return self.o_proj(y.transpose(1, 2).reshape(*x.shape[:-1], -1))


HEADS = {"h.0.attn.q_proj": 2, "h.1.attn.q_proj": 2}


@case(TOKENS, {"wte": 6, **HEADS, **FEED_FORWARD}, {"lm_head": OUT})
def grouped_queries() -> nn.Module:
    return SmallGPT(GroupedAttention, WrittenRMSNorm, tied=False)


@case(TOKENS, {"wte": 6, **HEADS, **FEED_FORWARD}, {"lm_head": OUT})
def grouped_queries_with_repeated_keys() -> nn.Module:
    return SmallGPT(lambda: GroupedAttention(enable_gqa=False), lambda: nn.RMSNorm(6), tied=False)


@case(TOKENS, {"wte": 6, **HEADS, **FEED_FORWARD}, {"lm_head": OUT})
def one_key_head() -> nn.Module:
    return SmallGPT(lambda: GroupedAttention(2, 1), WrittenRMSNorm, tied=False)


class BiasedAttention(nn.Module):
    """Attention with slopes per head, a table of relative positions per head and learned sinks, written out."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = 2
        self.qkv, self.out = nn.Linear(6, 24), nn.Linear(8, 6)
        self.slopes, self.sinks = nn.Parameter(torch.tensor([0.5, 0.25])), nn.Parameter(torch.zeros(2))
        self.table = nn.Embedding(9, 2)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).reshape(batch, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        distance = torch.arange(length)[None] - torch.arange(length)[:, None]
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        scores = scores + self.slopes[:, None, None] * distance + self.table(distance + 4).permute(2, 0, 1)
        sinks = self.sinks.reshape(1, -1, 1, 1).expand(batch, -1, length, 1)
        weights = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, -1))


@case(TOKENS, {"wte": 6, "h.0.attn.qkv": 2, "h.1.attn.qkv": 2, **FEED_FORWARD}, {"lm_head": OUT})
def parameters_per_head() -> nn.Module:
    return SmallGPT(BiasedAttention, layer_norm, tied=False)


class PostNorm(nn.Module):
    """The addition comes before the norm: only copies of all entries leave mean and variance."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm_0 = nn.Embedding(7, 6), nn.LayerNorm(6)
        self.attention, self.norm_1 = GroupedAttention(), nn.LayerNorm(6)
        self.mlp, self.norm_2 = nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 6)), nn.LayerNorm(6)
        self.head = nn.Linear(6, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm_0(self.embed(tokens))
        x = self.norm_1(x + self.attention(x))
        return self.head(self.norm_2(x + self.mlp(x))[:, 0])


@case(TOKENS, {"embed": 6, "attention.q_proj": 2, "mlp.0": 5}, {"head": OUT})
def post_norm() -> nn.Module:
    return PostNorm()


class CrossAttention(nn.Module):
    """Learned queries read the input."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.inner, self.heads = nn.Parameter(randn(4, 6)), nn.Linear(5, 6), 2
        self.to_q, self.to_kv, self.to_out = nn.Linear(6, 8), nn.Linear(6, 16), nn.Linear(8, 6)
        self.norm_q, self.norm_x, self.norm = (nn.LayerNorm(6) for _ in range(3))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        queries = self.queries.expand(x.shape[0], -1, -1)
        q, (k, v) = self.to_q(self.norm_q(queries)), self.to_kv(self.norm_x(self.inner(x))).chunk(2, dim=-1)
        q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (q, k, v))
        y = queries + self.to_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return self.head(self.norm(y).mean(1))


@case(randn(2, 7, 5), {"inner": 6, "to_q": 2}, {"to_out": "a parameter that is normalized across", "head": OUT})
def cross_attention() -> nn.Module:
    return CrossAttention()


class VisionTransformer(nn.Module):
    """Patches, a class token and positions."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 6, 4, 4)
        self.cls, self.positions = nn.Parameter(randn(1, 1, 6)), nn.Parameter(randn(1, 5, 6))
        self.h = nn.ModuleList([Block(SplitAttention(fused=True), layer_norm)])
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.positions
        for block in self.h:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


@case(randn(2, 3, 8, 8), {"patch": 2, "h.0.mlp.0": 5}, {"head": OUT})
def vision_transformer() -> nn.Module:
    return VisionTransformer()


class WrittenLayerNorm(nn.Module):
    """Over the channels of images, with the centered input computed twice."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(6)), nn.Parameter(torch.zeros(6))
        self.eps = 1e-6

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        x = (x - mean) * torch.rsqrt(variance + self.eps)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


@case(randn(2, 3, 8, 8), {"stem": 6, "expand": 8}, {"head": OUT})
class convolutions_normed_over_channels(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.mix, self.norm = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 3, padding=1, groups=6), WrittenLayerNorm()
        self.expand, self.contract, self.head = nn.Conv2d(6, 8, 1), nn.Conv2d(8, 6, 1), nn.Linear(6, 3)
        self.scale, self.last = nn.Parameter(0.1 * torch.ones(6, 1, 1)), WrittenLayerNorm()

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.scale * self.contract(F.gelu(self.expand(self.norm(self.mix(x)))))
        return self.head(self.last(x).mean((2, 3)))


@case(randn(2, 3, 8, 8), {"stem": 4, "down": 4, "middle": 4}, {"head": OUT})
class unet_with_group_norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm_0 = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(4, 8)
        self.down, self.norm_1 = nn.Conv2d(8, 8, 2, 2), nn.GroupNorm(4, 8)
        self.middle, self.norm_2 = nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(4, 8)
        self.head = nn.Conv2d(16, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.norm_0(self.stem(x)))
        y = F.silu(self.norm_1(self.down(x)))
        y = F.silu(self.norm_2(self.middle(y)))
        return self.head(torch.cat([x, F.interpolate(y, scale_factor=2)], 1))


@case(randn(2, 5, 6), {"fused": 3, "up": 7})
class heads_of_a_fused_projection(nn.Module):
    """A head has rows in the queries, the keys and the values of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.fused, self.out, self.up, self.head = nn.Linear(6, 18), nn.Linear(6, 6), nn.Linear(6, 7), nn.Linear(7, 2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (-1, 2)).transpose(1, 2) for each in self.fused(x).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return self.head(self.up(x).tanh())


class SharedKeys(nn.Module):
    """Two heads of queries share a head of keys and values; queries and keys are turned by their positions."""

    def __init__(self, size: int, heads: int, keys: int, each: int):
        super().__init__()
        self.each = each
        self.q, self.k, self.v = (nn.Linear(size, n * each, bias=n > keys) for n in (heads, keys, keys))
        self.out = nn.Linear(heads * each, size, bias=False)

    def forward(self, x: Tensor, *, turns: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        q, k, v = (layer(x).view(*x.shape[:2], -1, self.each).transpose(1, 2) for layer in (self.q, self.k, self.v))
        cos, sin = turns
        q, k = (cos * t + sin * torch.cat([-t[..., self.each // 2 :], t[..., : self.each // 2]], -1) for t in (q, k))
        h = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        return self.out(h.transpose(1, 2).flatten(2))


@case(
    torch.arange(12).reshape(2, 6) % 7,
    {"embedding": 8, "attentions.0.q": 2, "attentions.1.q": 2, "gates.0": 9, "gates.1": 9},
    {"head": OUT},
)
class decoder_with_shared_keys(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head, self.norm = nn.Embedding(7, 8), nn.Linear(8, 7, bias=False), nn.RMSNorm(8)
        self.attentions = nn.ModuleList([SharedKeys(8, 4, 2, 4), SharedKeys(8, 6, 2, 2)])
        self.norms = nn.ModuleList(nn.RMSNorm(8) for _ in range(4))
        self.gates, self.ups = (nn.ModuleList(nn.Linear(8, 9, bias=False) for _ in range(2)) for _ in range(2))
        self.downs = nn.ModuleList(nn.Linear(9, 8, bias=False) for _ in range(2))

    def forward(self, tokens: Tensor) -> Tensor:
        x, places = self.embedding(tokens), torch.arange(tokens.shape[1])
        mask = places[:, None] >= places
        for attend, gate, up, down, *norms in zip(
            self.attentions, self.gates, self.ups, self.downs, self.norms[::2], self.norms[1::2], strict=True
        ):
            speeds = 10.0 ** -torch.arange(0, attend.each, 2).to(x)
            angles = (places[:, None] * speeds).repeat(1, 2)
            x = x + attend(norms[0](x), turns=(angles.cos(), angles.sin()), mask=mask)
            h = norms[1](x)
            x = x + down(F.silu(gate(h)) * up(h))
        return self.head(self.norm(x))
