"""The models that every promise is checked on: small, one pattern each, with what must be found in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune


@dataclass(frozen=True)
class Case:
    """A model, an example input, the widths that can grow with their sizes, and why others cannot."""

    name: str
    make: Callable[[], nn.Module]
    example: Any
    growable: dict[str, int]
    fixed: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


CASES: list[Case] = []


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def case(
    example: Any, growable: dict[str, int], fixed: dict[str, str] | None = None, **options: Any
) -> Callable[[Callable[[], nn.Module]], Callable[[], nn.Module]]:
    """Add what the decorated function or class builds to the list."""

    def register(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        CASES.append(Case(make.__name__, make, example, growable, fixed or {}, options))
        return make

    return register


OUT = "model's output"
IN = "model's input"


@case(randn(5, 6), {"0": 8, "2": 7}, {"4": OUT, "input of 0": IN})
def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 7), nn.Tanh(), nn.Linear(7, 3))


@case(randn(4, 6), {"0": 1}, {"2": OUT})
def one_neuron() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 1, bias=False), nn.GELU(), nn.Linear(1, 3))


@case(randn(2, 5, 6), {"0": 8}, {"3": OUT})
def mlp_on_sequences() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.SiLU(), nn.Linear(8, 3))


@case(randn(2, 3, 8, 8), {"0": 4, "3": 5, "8": 9})
def conv_flatten() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 3, stride=2), nn.PReLU(5),
        nn.MaxPool2d(2, 1), nn.Dropout2d(0.3), nn.Flatten(), nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 2),
    )  # fmt: skip


@case(randn(2, 3, 12), {"0": 4, "2": 5})
def conv1d() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), nn.ConvTranspose1d(4, 5, 2), nn.AvgPool1d(2), nn.Conv1d(5, 2, 1)
    )


@case(randn(2, 2, 5, 5, 5), {"0": 4, "2": 3})
def conv3d() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(2, 4, 2), nn.BatchNorm3d(4), nn.ConvTranspose3d(4, 3, 2), nn.ELU(), nn.AdaptiveAvgPool3d(1),
        nn.Flatten(), nn.Linear(3, 2),
    )  # fmt: skip


@case(randn(2, 3, 6, 6), {"0": 4, "4": 6})
def instance_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.InstanceNorm2d(4, affine=True, track_running_stats=True), nn.ReLU(),
        nn.InstanceNorm2d(4), nn.Conv2d(4, 6, 1), nn.BatchNorm2d(6, affine=False, track_running_stats=False),
        nn.Conv2d(6, 2, 1),
    )  # fmt: skip


@case(randn(2, 3, 6, 6), {"0": 4})
def depthwise() -> nn.Module:
    """Each of 4 channels has a filter of its own; then two filters each, consumed in 8 columns."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 3, groups=4, padding=1), nn.Conv2d(4, 8, 3, groups=4),
        nn.SyncBatchNorm(8), nn.Hardswish(), nn.Conv2d(8, 2, 1),
    )  # fmt: skip


@case(randn(2, 3, 6, 6), {"0": 2, "2": 3, "4": 2})
def grouped() -> nn.Module:
    """A neuron of a width in front of a grouped convolution is one channel of every group."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 1), nn.ReLU(), nn.Conv2d(6, 9, 3, groups=3), nn.BatchNorm2d(9),
        nn.ConvTranspose2d(9, 6, 2, groups=3), nn.LeakyReLU(), nn.Conv2d(6, 2, 1),
    )  # fmt: skip


@case(randn(2, 3, 4, 4), {"1": 5}, {"0": "GroupNorm"})
def group_norm() -> nn.Module:
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 4, 1), nn.GroupNorm(2, 4)), nn.Conv2d(4, 5, 1), nn.ReLU(), nn.Conv2d(5, 2, 1)
    )


CASES[-1] = Case("group_norm", group_norm, randn(2, 3, 4, 4), {"1": 5, "0.0": 2})


@case(randn(2, 6), {"proj": 4, "up": 8}, {"head": OUT})
class layer_norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj, self.norm, self.up, self.head = (
            nn.Linear(6, 4),
            nn.LayerNorm(4),
            nn.Linear(4, 8),
            nn.Linear(8, 2),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.gelu(self.up(self.norm(self.proj(x)))))


@case(randn(2, 6), {"0": 4, "2": 8})
def rms_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.RMSNorm(4), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


@case(randn(2, 6), {"2": 8}, {"0": "normalized across by softmax in 1 (Softmax)"})
def softmax() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.Softmax(-1), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


@case(randn(2, 3, 8, 8), {"stem": 4, "blocks.0.a": 5, "blocks.1.a": 6})
class residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"n": nn.BatchNorm2d(4), "a": nn.Conv2d(4, m, 1), "b": nn.Conv2d(m, 4, 3, padding=1)})
            for m in (5, 6)
        )
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block["b"](F.relu(block["a"](block["n"](x))))
        return self.head(x.mean((2, 3)))


@case(randn(2, 3, 8, 8), {"stem": 4, "a": 5, "b": 6})
class dense_concatenation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 1), nn.Conv2d(9, 6, 1)
        self.norm, self.head = nn.BatchNorm2d(15), nn.Linear(15 * 9, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = torch.cat([x, self.a(x)], 1)
        x = self.norm(torch.cat([self.b(x), x], 1))
        return self.head(F.adaptive_avg_pool2d(x, 3).flatten(1))


@case(randn(2, 6), {"up": 5, "down": 6, "mix": 7})
class gated_unit(nn.Module):
    """One layer gives values and gates, chunked: a neuron owns a row in each half."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.mix, self.head = (
            nn.Linear(6, 10),
            nn.Linear(5, 6),
            nn.Linear(6, 14),
            nn.Linear(7, 2),
        )

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.up(x).chunk(2, -1)
        return self.head(F.glu(self.mix(self.down(value * gate.sigmoid()))))


@case(randn(2, 6), {"up": 4, "up#2": 5})
class split_by_size(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.a, self.b = nn.Linear(6, 9), nn.Linear(4, 2), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(x)
        a, b = h[:, : self.a.in_features], h[:, self.a.in_features :]
        return self.a(F.relu(a)) + self.b(F.relu(b))


@case(randn(2, 6), {"up": 4})
class split_in_halves(nn.Module):
    """Two halves, which chunk keeps equal, so that they are one width."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.a, self.b = nn.Linear(6, 8), nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.up(x).chunk(2, -1)
        return self.a(F.relu(a)) + self.b(F.relu(b))


class sliced_in_halves(split_in_halves):
    """Two widths that must stay equal for slices to find the border."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(x)
        half = h.shape[1] // 2
        return self.a(F.relu(h[:, :half])) + self.b(F.relu(h[:, half:]))


CASES.append(Case("sliced_in_halves_tied", sliced_in_halves, randn(2, 6), {"up": 4}, {}, {"tie": [["up"]]}))
CASES.append(Case("sliced_in_halves", sliced_in_halves, randn(2, 6), {}, {"up": "by aten.slice in"}))


@case(randn(2, 3, 6, 6), {"conv": 4, "squeeze": 2, "next": 3})
class squeeze_excite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.next = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 3, 1)
        self.squeeze, self.excite, self.head = nn.Conv2d(4, 2, 1), nn.Conv2d(2, 4, 1), nn.Conv2d(3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x)).relu()
        x = x * self.excite(F.silu(self.squeeze(x.mean((2, 3), keepdim=True)))).sigmoid()
        return self.head(self.next(x).relu())


@case(randn(2, 3, 6, 6), {"inner": 5}, {"a": "divided in two ways", "b": "divided in two ways"})
class channel_shuffle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 9, 1)
        self.inner, self.head = nn.Conv2d(15, 5, 1), nn.Conv2d(5, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.a(x), self.b(self.a(x))], 1)
        n, c, h, w = x.shape
        x = x.view(n, 5, c // 5, h, w).transpose(1, 2).reshape(n, c, h, w)
        return self.head(self.inner(x).relu())


@case(
    randn(2, 5, 8),
    {"value": 2, "out": 8, "mlp.0": 12},
    {"query": "hard-coded"},
)
class transformer_block(nn.Module):
    """The head count stays; each head's values may grow, where the code infers their size."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(8), nn.LayerNorm(8)])
        self.query, self.key, self.value = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.out, self.embed, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        self.mlp = nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        h = self.norms[0](x)
        q, k, v = (layer(h).view(*x.shape[:2], 4, -1).transpose(1, 2) for layer in (self.query, self.key, self.value))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return self.head((x + self.mlp(self.norms[1](x))).mean(1))


@case(randn(2, 5, 8), {"value": 2}, {"query": "hard-coded"})
class attention_by_einsum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (4, -1)) for layer in (self.query, self.key, self.value))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k).softmax(-1)
        return self.out(torch.einsum("bhqk,bkhd->bqhd", scores, v).flatten(2))


@case(randn(2, 5, 8), {}, {"value": "hard-coded"})
class attention_with_written_sizes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).view(2, 5, 4, 2).transpose(1, 2) for layer in (self.query, self.key, self.value))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 5, 8))


@case(randn(2, 5, 8), {"attention.out_proj": 8, "embed": 2, "mlp.0": 6}, {})
class multihead_attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.attention = nn.Linear(8, 8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        return self.mlp(self.attention(x, x, x)[0])


@case(
    randn(2, 5, 8),
    {"layers.0.linear1": 6, "layers.1.linear1": 6},
    {"layers.0.self_attn.in_proj_weight": "model's input"},
)
def transformer_encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 6, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


@case(torch.arange(10).reshape(2, 5) % 7, {"embedding": 4, "hidden": 6}, {"head": OUT})
class embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.hidden, self.head = nn.Embedding(7, 4), nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.relu(self.hidden(self.embedding(tokens))).mean(1))


@case(torch.arange(10).reshape(2, 5) % 7, {"back": 4, "hidden": 6})
class tied_embedding(nn.Module):
    """The output layer is the embedding itself: one parameter at two places."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.hidden, self.back = nn.Embedding(7, 4), nn.Linear(4, 6), nn.Linear(6, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.back(torch.relu(self.hidden(self.embedding(tokens)))))


@case(randn(2, 6), {"first": 5, "again": 4})
class used_twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.back = nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(4, 5)
        self.head = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for _ in range(2):
            x = x + self.back(self.again(x).relu())
        return self.head(x)


@case(randn(2, 6), {"first": 5})
class recurrent_square(nn.Module):
    """A layer that produces and consumes the same width."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.square, self.head = nn.Linear(6, 5), nn.Linear(5, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.head(x + self.square(x).tanh())


@case(randn(2, 6), {"w1": 5, "deep.w": 4})
class raw_parameters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.b1 = nn.Parameter(randn(6, 5)), nn.Parameter(randn(5))
        self.deep = nn.Module()
        self.deep.w, self.scale = nn.Parameter(randn(5, 4)), nn.Parameter(torch.ones(4))
        self.w3 = nn.Parameter(randn(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        return ((torch.relu(x @ self.w1 + self.b1) @ self.deep.w) * self.scale).tanh() @ self.w3


class Transposed(nn.Module):
    """A layer of one's own, whose weight is inputs x outputs."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(randn(inputs, outputs)), nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.flatten(0, -2), self.weight).unflatten(0, x.shape[:-1])


@case(randn(3, 4, 6), {"own": 5, "several": 2, "several#2": 3, "first": 5, "last": 7, "mix": 4})
class products(nn.Module):
    """Weights without layers of torch: in functions, from the left, transposed, and with several axes of outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.own_bias, self.mix = nn.Parameter(randn(5, 6)), nn.Parameter(randn(5)), nn.Parameter(randn(4, 7))
        self.several = nn.Parameter(randn(5, 2, 3))
        self.first, self.last, self.head = Transposed(6, 5), nn.Linear(5, 7), nn.Parameter(randn(2, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.einsum("bti,iko->btko", F.linear(x, self.own, self.own_bias).tanh(), self.several)
        x = self.last(self.first(x.flatten(2)).relu()).tanh()
        x = (self.mix @ x.transpose(1, 2)).tanh()
        return x.transpose(1, 2) @ self.head.T


@case(randn(2, 4, 6, 3), {"0": 5}, {"2": OUT})
def channels_last_linear() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))


@case(randn(2, 3, 4, 4), {"conv": 5})
class pixels_before_channels(nn.Module):
    """Flattened with the channels innermost: a neuron owns every fifth column."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 5, 1), nn.Linear(80, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).relu().permute(0, 2, 3, 1).flatten(1))


@case((randn(2, 3), randn(2, 4)), {"a": 5, "b": 6})
class two_inputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(3, 5), nn.Linear(4, 6), nn.Linear(11, 2)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"logits": self.head(torch.cat([self.a(x), self.b(y)], -1).relu())}


CASES.append(Case("keyword_inputs", two_inputs, {"x": randn(2, 3), "y": randn(2, 4)}, {"a": 5, "b": 6}))


@case(randn(2, 3), {"trunk": 6, "auxiliary.0": 4})
class only_in_training(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head = nn.Linear(3, 6), nn.Linear(6, 2)
        self.auxiliary = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))

    def forward(self, x: Tensor) -> Any:
        x = self.trunk(x).relu()
        return (self.head(x), self.auxiliary(x)) if self.training else self.head(x)


@case(randn(2, 1, 8, 8), {"conv1": 3, "fc1": 6}, {"conv2": "hard-coded"})
class written_flattening(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 3, 3), nn.Conv2d(3, 4, 3)
        self.fc1, self.fc2 = nn.Linear(64, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv2(self.conv1(x).relu()).relu()
        return self.fc2(self.fc1(x.view(-1, 64)).relu())


@case(randn(2, 5, 4), {"embed": 6, "mix": 4, "rnn": 4})
class recurrent(nn.Module):
    """Three gates of 4 rows each, on inputs that are as wide."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = nn.Linear(4, 6), nn.Linear(6, 4)
        self.rnn, self.head = nn.GRU(4, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(self.mix(self.embed(x).relu()))[0][:, -1])


@case(randn(2, 4, 4), {"embed": 5, "rnn": 3, "mix": 7}, {"head": OUT})
class long_short_term_memory(nn.Module):
    """Two layers of two directions, which share one size."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 5)
        self.rnn = nn.LSTM(5, 3, batch_first=True, num_layers=2, bidirectional=True)
        self.mix, self.head = nn.Linear(6, 7), nn.Linear(7, 2)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.rnn(self.embed(x).relu())
        return self.head(self.mix(states[:, -1]).relu())


@case(randn(4, 2, 3), {"rnn": 8, "rnn#2": 3}, {"head": OUT, "input of rnn": IN})
class projected_memory(nn.Module):
    """The states of the cells, and what is projected of them; the next layer reads the last states of both layers."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(3, 8, proj_size=3, num_layers=2, bias=False), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        _, (states, _) = self.rnn(x)
        return self.head(states.transpose(0, 1).flatten(1))


@case(randn(4, 3, 2), {"embed": 5, "rnn": 3}, {"head": OUT})
class packed_sequences(nn.Module):
    """Sequences of different lengths, and an initial state with a size of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn, self.head = nn.Linear(2, 5), nn.GRU(5, 3, bidirectional=True), nn.Linear(6, 2)
        self.size = 3

    def forward(self, x: Tensor) -> Tensor:
        x = nn.utils.rnn.pack_padded_sequence(self.embed(x).relu(), torch.tensor([4, 2, 3]), enforce_sorted=False)
        states, _ = self.rnn(x, torch.zeros(2, 3, self.size, dtype=x.data.dtype))
        return self.head(nn.utils.rnn.pad_packed_sequence(states)[0])


@case(randn(3, 2, 4), {"first": 6, "embed": 5, "encode": 4, "start": 4}, {"head": OUT})
class recurrent_cells(nn.Module):
    """Cells that are called for each step; the first state of one is learned, that of another is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.encode = nn.Linear(4, 5), nn.LSTMCell(5, 4)
        self.start, self.decode = nn.Linear(4, 4), nn.GRUCell(4, 4)
        self.first, self.last = nn.Parameter(randn(1, 6)), nn.RNNCell(4, 6)
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for each in x:
            state = self.encode(self.embed(each).relu(), state)
        middle, last = self.start(state[0]).tanh(), self.first.expand(x.shape[1], -1)
        for _ in x:
            middle = self.decode(state[0], middle)
            last = self.last(middle, last)
        return self.head(last)


@case(randn(3, 4), {"b": 5}, {"a": f"{OUT}, as the model returns what b reads", "c": OUT, "input of a": IN})
class returned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 8), nn.Linear(8, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.a(x).relu()
        return self.c(self.b(hidden).relu()), hidden


@case(randn(3, 4), {"b": 5}, {"a": f"{IN}, which is combined with what a produces"})
class added_to_the_input(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(x + self.a(x).relu()).relu())


@case(randn(2, 4), {"1": 6}, {"0.weight": "_trilinear"})
def unknown_operation() -> nn.Module:
    class Pair(nn.Bilinear):
        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(x, x)

    return nn.Sequential(Pair(4, 4, 5), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2))


CASES[-1] = Case("unknown_operation", unknown_operation, randn(2, 4), {"1": 6}, {"input of 1": "_trilinear"})


@case(randn(2, 6), {"0": 5})
def weight_norm() -> nn.Module:
    norm = nn.utils.parametrizations.weight_norm
    return nn.Sequential(norm(nn.Linear(6, 5)), nn.ReLU(), norm(nn.Linear(5, 2)))


@case(randn(2, 6), {"base": 5, "down": 2})
class low_rank_update(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base, self.head = nn.Linear(6, 5), nn.Linear(5, 3)
        self.up, self.down = nn.Parameter(randn(3, 2)), nn.Parameter(randn(2, 5))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.base(x).relu(), self.head.weight + self.up @ self.down, self.head.bias)


@case(randn(2, 16, 4, 4), {"0": 6, "2": 2})
def pixel_shuffle() -> nn.Module:
    return nn.Sequential(nn.Conv2d(16, 6, 1), nn.ReLU(), nn.Conv2d(6, 8, 1), nn.PixelShuffle(2), nn.Conv2d(2, 3, 1))


@case(randn(2, 3, 4, 4), {"a": 4, "b": 6})
class padded_shortcut(nn.Module):
    """A shortcut widened by zero channels, as in residual networks without projections."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 6, 1), nn.Conv2d(6, 8, 1)
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        y = self.c(self.b(x).relu())
        return self.head(y + F.pad(x, (0, 0, 0, 0, 2, 2)))


@case(randn(2, 3, 6, 6), {"c": 5}, {"a": "convolved over in gate", "b": "pooled"})
class mixed_over_channels(nn.Module):
    """Channels that a convolution or a pooling treats as places."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.gate, self.b = nn.Conv2d(3, 4, 1), nn.Conv1d(1, 1, 3, padding=1), nn.Conv2d(4, 6, 1)
        self.c, self.head = nn.Conv2d(3, 5, 1), nn.Conv2d(5, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        x = x * self.gate(x.mean((2, 3)).unsqueeze(1)).transpose(1, 2).unsqueeze(-1).sigmoid()
        x = F.avg_pool1d(self.b(x).flatten(2).transpose(1, 2), 2).transpose(1, 2).unflatten(2, (6, 6))
        return self.head(self.c(x).relu())


@case(randn(2, 6), {}, {"up": "slice"})
class sliced_in_halves(nn.Module):
    """Halves by arithmetic on the shape, which two widths that grow alike would hide."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.a, self.b = nn.Linear(6, 8), nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(x)
        half = h.shape[1] // 2
        return self.a(h[:, :half].relu()) + self.b(h[:, half:].relu())


@case(randn(2, 3), {"c": 5}, {"a": "depend on the size itself"})
class scaled_by_its_size(nn.Module):
    """A scale computed from the shape, behind a gate that starts at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = nn.Linear(3, 40), nn.Linear(40, 3), nn.Linear(3, 5), nn.Linear(5, 2)
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x).relu()
        return self.d(self.c(x + self.gate * self.b(h) / h.shape[-1] ** 0.5).relu())


@case(randn(2, 3), {"b": 5}, {"a": "aten.softplus"})
class bent_weight_in_training(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(5, 2)
        self.auxiliary = nn.Parameter(randn(2, 4))

    def forward(self, x: Tensor) -> Any:
        h = self.a(x).relu()
        y = self.c(self.b(h).relu())
        return (y, F.linear(h, F.softplus(self.auxiliary))) if self.training else y


@case(randn(2, 3, 8), {"0": 4}, {"1": "weight norm"})
def weight_norm_transposed() -> nn.Module:
    """The norm runs along the input axis: a new row needs a direction, and a zero scale."""
    norm = nn.utils.parametrizations.weight_norm
    return nn.Sequential(nn.Conv1d(3, 4, 3), norm(nn.ConvTranspose1d(4, 5, 3)), nn.ReLU(), nn.Conv1d(5, 2, 1))


@case(randn(2, 4, 6, 6), {"inner": 5, "stem": 4})
class reparametrized_kernels(nn.Module):
    """Two kernels of different size added to one, on a width that it produces and consumes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 1, bias=False)
        self.inner, self.head = nn.Conv2d(4, 5, 1), nn.Conv2d(5, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        weight = self.a.weight + F.pad(self.b.weight, [1] * 4)
        x = x + F.conv2d(x, weight, self.a.bias, padding=1).relu()
        return self.head(self.inner(x).relu())


@case(randn(2, 3, 5, 5), {"conv": 4, "w": 6})
class convolution_by_unfolding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.w, self.head = nn.Conv2d(3, 4, 1), nn.Parameter(randn(6, 4, 3, 3)), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        columns = F.unfold(self.conv(x).relu(), 3, padding=1)
        return self.head((self.w.view(self.w.shape[0], -1) @ columns).relu().mean(-1))


@case(randn(3, 6), {"0": 5})
def pruned() -> nn.Module:
    """Masked weights: the mask lets new neurons through, the weight behind it is zero and can learn."""
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    for layer in (model[0], model[2]):
        prune.random_unstructured(layer, "weight", 0.3)
    return model


TIED = "encode.weight is both the fan-in and the fan-out of these neurons"


@case(randn(3, 6), {"hidden": 4}, {"encode": TIED})
class tied_autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.hidden, self.back = nn.Linear(6, 5), nn.Linear(6, 4), nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.back(self.hidden(x).tanh())
        return F.linear(self.encode(x).relu(), self.encode.weight.t())


@case(randn(4, 2, 6, 6), {"down": 3, "middle": 4, "up": 3, "mix": 5, "wide": 3}, {"head": OUT})
class u_net(nn.Module):
    """Transposed convolutions that read and produce, with strides, dilation, and a size that is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.middle = nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.ConvTranspose2d(3, 4, 2, dilation=2)
        self.up = nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1)
        self.mix, self.wide = nn.Conv2d(6, 5, 1), nn.ConvTranspose2d(5, 3, (2, 3), (1, 2), output_padding=(0, 1))
        self.head = nn.Conv2d(3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        down = self.down(x).relu()
        up = self.up(self.middle(down).tanh(), output_size=(10, 10)).relu()
        x = torch.cat([F.interpolate(down, (10, 10)), up], 1)
        return self.head(self.wide(self.mix(x).tanh()).relu())


@case(randn(2, 2, 6, 6), {}, {"input of encode": TIED})
class tied_convolutional_autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Conv2d(2, 3, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv_transpose2d(self.encode(x).relu(), self.encode.weight)


@case(randn(3, 6), {"0": 5}, {"1": "buffers"})
def random_features() -> nn.Module:
    class Features(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(5, 4)
            self.register_buffer("projection", randn(4, 3))

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) @ self.projection

    return nn.Sequential(nn.Linear(6, 5), Features(), nn.Linear(3, 2))


CASES[-1] = Case("random_features", random_features, randn(3, 6), {"0": 5, "1.projection": 3}, {"1.linear": "buffers"})


@case((randn(5, 4), torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 0]])), {"embed": 6, "message": 6, "update": 7})
class graph_network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.message, self.update = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 7)
        self.head = nn.Linear(7, 2)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.embed(x)
        messages = self.message(x[edges[0]]).relu()
        total = torch.zeros_like(messages[: len(x)]).index_add(0, edges[1], messages)
        return self.head(self.update(total).relu())


@case(randn(6, 4), {"embed": 5, "experts.0.0": 3, "experts.1.0": 3}, {"gate": "across by softmax"})
class mixture_of_experts(nn.Module):
    """Tokens dispatched to experts by masks."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.gate, self.head = nn.Linear(4, 5), nn.Linear(5, 2), nn.Linear(5, 2)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 5)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        scores = self.gate(x).softmax(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            chosen = scores.argmax(-1) == number
            out[chosen] = expert(x[chosen]) * scores[chosen, number, None]
        return self.head(x + out)


@case(randn(2, 4), {"mean": 3, "encode": 6, "decode": 5})
class variational_autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.mean, self.scale = nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(6, 3)
        self.decode, self.out = nn.Linear(3, 5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.encode(x).relu()
        noise = torch.empty_like(self.mean(h)).normal_() * 0  # no chance in the tests
        return self.out(self.decode(self.mean(h) + noise * self.scale(h).exp()).relu())


@case(torch.arange(6).reshape(2, 3), {"table": 4})
class raw_lookup_table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Parameter(randn(7, 4)), nn.Linear(4, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.table[tokens].tanh())


@case(randn(2, 5, 4), {"latents": 3, "mix.0": 6}, {"mix.2": IN})
class learned_queries(nn.Module):
    """A layer applied to a parameter: its own rows are its width, not the parameter's."""

    def __init__(self) -> None:
        super().__init__()
        self.latents, self.head = nn.Parameter(randn(2, 3)), nn.Linear(4, 2)
        self.mix = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 4))

    def forward(self, x: Tensor) -> Tensor:
        queries = self.mix(self.latents)
        return self.head((queries @ x.transpose(1, 2)).softmax(-1) @ x)


@case(randn(2, 6), {"hidden": 5})
class complex_layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(6, 5, dtype=torch.cdouble)
        self.head = nn.Linear(5, 2, dtype=torch.cdouble)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(x.to(self.head.weight.dtype)).tanh()).abs()


@dataclass(slots=True)
class Output:
    logits: Tensor
    features: Tensor


@case(randn(2, 3), {"b": 5}, {"a": OUT})
class slotted_output(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Any:
        features = self.a(x)
        return Output(self.c(self.b(features).relu()), features)


import tests.transformer_cases  # noqa: E402
import tests.vision_cases  # noqa: E402, F401  both add their cases
