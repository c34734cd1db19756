"""Torch's own attention modules: a head is a unit of the embedding that they split, and of the stream around them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import neurogenesis as ng
from tests.promises import difference, unsettle


class Encoder(nn.Module):
    """A stack of torch's layers between an embedding and an output layer."""

    def __init__(self, **options: Any):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 4, 6, 0.0, batch_first=True, **options)
        self.embed, self.head = nn.Linear(3, 8), nn.Linear(8, 2)
        self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(8), enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x)))


class Both(nn.Module):
    """An encoder and a decoder of torch, of the same embedding size."""

    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        self.source, self.target, self.head = nn.Linear(3, 8), nn.Linear(3, 8), nn.Linear(8, 2)
        self.both = nn.Transformer(8, 2, 1, 1, 6, 0.0, batch_first=True, norm_first=norm_first)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.both(self.source(x), self.target(x[:, :4])))


class Reader(nn.Module):
    """Queries of one size, keys and values of others."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(3, 8), nn.Linear(3, 5), nn.Linear(3, 7)
        self.attention = nn.MultiheadAttention(8, 2, kdim=5, vdim=7, batch_first=True, add_bias_kv=True)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(self.query(x), self.key(x), self.value(x), need_weights=False)[0])


def made(model: nn.Module) -> tuple[nn.Module, Tensor]:
    model = model.double().eval()
    unsettle(model)
    return model, torch.randn(2, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [True, False])
def test_the_fast_path_of_an_encoder_layer_agrees_after_growth(norm_first: bool, activation: str) -> None:
    model, x = made(Encoder(norm_first=norm_first, activation=activation))
    before = model(x).detach()
    found = ng.widths(model, x)
    for width in found.growable:
        ng.grow(model, width, width.size if width.copied is not None else 2)
    assert {width.kind for width in found.growable} == {"stream", "neurons"}
    assert all(layer.self_attn.num_heads * 2 == layer.self_attn.embed_dim > 8 for layer in model.encoder.layers)
    slow = model(x)
    assert difference([before], [slow.detach()]) < 1e-10
    layers = []
    fast = torch._transformer_encoder_layer_fwd

    def counted(*args: Any) -> Tensor:
        layers.append(args)
        return fast(*args)

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(torch, "_transformer_encoder_layer_fwd", counted)
        assert difference([before], [model(x)]) < 1e-10
    assert len(layers) == 2  # it did run


@pytest.mark.parametrize("norm_first", [True, False])
def test_an_encoder_and_a_decoder_grow_by_a_head_with_the_stream(norm_first: bool) -> None:
    model, x = made(Both(norm_first))
    before = model(x).detach()
    found = ng.widths(model, x)
    stream = next(width for width in found.growable if width.kind == "stream")
    assert stream.unit == 4
    ng.grow(model, stream, stream.size if stream.copied is not None else 1)
    size = 4 * stream.size
    attention = model.both.decoder.layers[0].multihead_attn
    assert (attention.embed_dim, attention.kdim, attention.vdim, attention.num_heads) == (size, size, size, stream.size)
    assert attention.in_proj_weight.shape == (3 * size, size) and attention.head_dim == 4
    assert difference([before], [model(x).detach()]) < 1e-10


def test_keys_and_values_of_other_sizes_grow_by_themselves() -> None:
    model, x = made(Reader())
    before = model(x).detach()
    found = ng.widths(model, x)
    for name, count in (("key", 2), ("value", 1), ("query", 1)):
        ng.grow(model, found[name], count)
    attention = model.attention
    assert (attention.embed_dim, attention.kdim, attention.vdim, attention.num_heads) == (12, 7, 8, 3)
    assert difference([before], [model(x).detach()]) < 1e-10
    fresh = Reader().double()
    ng.load_state_dict(fresh, model.state_dict(), example=x)
    assert torch.equal(fresh(x), model(x))


def test_attention_on_the_models_own_input_keeps_its_size_and_says_why() -> None:
    model = nn.TransformerEncoderLayer(8, 2, 6, batch_first=True, norm_first=True)
    found = ng.widths(model, torch.randn(2, 5, 8))
    assert [width.name for width in found.growable] == ["linear1"]
    assert "a size of the model's input" in (found["self_attn.in_proj_weight"].reason or "")
