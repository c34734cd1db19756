"""Families of Transformers whose code finds heads, experts and gates in ways of its own grow, or say why not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import neurogenesis as ng
from tests.promises import check_all

pytest.importorskip("transformers")

import transformers as hf

from neurogenesis.integrations.huggingface import from_pretrained, save_pretrained

TOKENS = torch.randint(3, 20, (2, 6), generator=torch.Generator().manual_seed(0))
IDS = {"input_ids": TOKENS}
SIZES: dict[str, Any] = {
    "vocab_size": 20,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 12,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SHARED = {**SIZES, "num_key_value_heads": 2}
EXPERTS = {**SHARED, "num_local_experts": 2, "num_experts_per_tok": 2}
FALCON = {name: SIZES[name] for name in SIZES if name not in ("intermediate_size", "max_position_embeddings")}
IMAGES = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
SEGMENTS = {"num_encoder_blocks": 1, "depths": [1], "sr_ratios": [2], "hidden_sizes": [16], "patch_sizes": [7]}


def made(family: str, kind: str, experts: str = "eager", **options: Any) -> Any:
    torch.manual_seed(0)
    name = kind if hasattr(hf, kind) else f"{family}{kind}"
    model = getattr(hf, name)(getattr(hf, f"{family}Config")(**options))
    if model._can_set_experts_implementation():
        model.set_experts_implementation(experts)
    return model


def mamba2() -> nn.Module:
    sizes = {name: SIZES[name] for name in SIZES if name not in ("intermediate_size", "num_attention_heads")}
    return made("Mamba2", "ForCausalLM", **sizes, state_size=4, num_heads=4, head_dim=8, n_groups=2, chunk_size=4)  # type: ignore[no-any-return]


def segformer() -> nn.Module:
    options = {**SEGMENTS, "strides": [4], "num_attention_heads": [2], "mlp_ratios": [2], "decoder_hidden_size": 12}
    return made("Segformer", "ForSemanticSegmentation", **options)  # type: ignore[no-any-return]


# Kinds of the widths that grow, and how many of them by copies of all entries.
FAMILIES: dict[str, tuple[Callable[[], nn.Module], dict[str, Tensor], dict[str, int], int]] = {
    "experts in one tensor": (
        lambda: made("Mixtral", "ForCausalLM", **EXPERTS),
        IDS,
        {"stream": 1, "heads": 1, "neurons": 1},
        0,
    ),
    "gates and values in turn": (
        lambda: made("GptOss", "ForCausalLM", **EXPERTS, head_dim=4),
        IDS,
        {"stream": 1, "heads": 1, "neurons": 1},
        0,
    ),
    "one key head, picked by index": (
        lambda: made("Falcon", "ForCausalLM", **FALCON, new_decoder_architecture=False, multi_query=True),
        IDS,
        {"stream": 1, "heads": 1, "neurons": 1},
        0,
    ),
    "groups of queries with a key, picked by index": (
        lambda: made("Falcon", "ForCausalLM", **FALCON, new_decoder_architecture=True, num_kv_heads=2),
        IDS,
        {"stream": 1, "heads": 1, "neurons": 1},
        0,
    ),
    "one key head, copied": (
        lambda: made(
            "GPTBigCode", "ForCausalLM", vocab_size=20, n_positions=16, n_embd=16, n_layer=1, n_head=4, attn_pdrop=0.0
        ),
        IDS,
        {"stream": 1, "heads": 1, "neurons": 1},
        0,
    ),
    "slices of one projection by numbers in the config": (
        lambda: made("Phi3", "ForCausalLM", **SHARED),
        IDS,
        {"stream": 1, "heads": 1, "neurons": 1},
        0,
    ),
    "rotary embeddings as complex numbers": (
        lambda: made("Llama4Text", "Llama4ForCausalLM", **EXPERTS, head_dim=4, intermediate_size_mlp=12, moe_layers=[]),
        IDS,
        {"stream": 1, "heads": 1, "neurons": 1},
        0,
    ),
    "a norm across all heads": (
        lambda: made("Olmo2", "ForCausalLM", **SHARED),
        IDS,
        {"stream": 2, "neurons": 1},
        1,
    ),
    "norms without a gain": (
        lambda: made("Olmo", "ForCausalLM", **SHARED),
        IDS,
        {"stream": 1, "heads": 1, "neurons": 1},
        1,
    ),
    "a norm across a product of two parts of one layer": (mamba2, IDS, {"stream": 3}, 2),
    "windows of a sequence": (
        lambda: made("Longformer", "ForSequenceClassification", **SIZES, attention_window=4),
        {**IDS, "attention_mask": torch.ones_like(TOKENS)},
        {"stream": 1, "neurons": 2},
        1,
    ),
    "hidden states that are collected by hooks": (
        segformer,
        {"pixel_values": IMAGES},
        {"stream": 1, "heads": 1, "neurons": 2, "channels": 1},
        1,
    ),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_families_grow_without_a_change_of_their_outputs(name: str) -> None:
    make, example, kinds, copied = FAMILIES[name]
    found = check_all(make().double(), example, tolerance=1e-10)
    assert Counter(width.kind for width in found.growable) == kinds
    assert sum(width.copied is not None for width in found.growable) == copied


def test_a_kernel_that_takes_multiples_only_is_named_with_the_way_around_it() -> None:
    model = made("Mixtral", "ForCausalLM", experts="grouped_mm", **EXPERTS)
    width = ng.widths(model, IDS)["model.embed_tokens"]
    assert width.reason is not None and width.why is not None
    assert width.reason.startswith("a size that aten._grouped_mm takes in multiples of 16 bytes only in model.layers.0")
    assert "model.set_experts_implementation('eager')" in str(width.why.kind.remedy)
    model.set_experts_implementation("eager")
    assert ng.widths(model, IDS)["model.embed_tokens"].growable


def test_slopes_that_are_made_for_a_number_of_heads_are_named() -> None:
    model = made("Mpt", "ForCausalLM", vocab_size=20, d_model=16, n_layers=1, n_heads=4, max_seq_len=16)
    why = ng.widths(model, IDS)["transformer.blocks.0.attn.Wqkv"].why
    assert why is not None and why.text.startswith(
        "used with something made for this number of heads, as slopes of ALiBi"
    )
    assert "in a buffer of the layer" in str(why.kind.remedy)


def test_finding_widths_leaves_hooks_as_they_are() -> None:
    model = segformer().eval()
    ng.widths(model, {"pixel_values": IMAGES.float()})
    seen = model(IMAGES.float(), output_hidden_states=True).hidden_states
    assert len(seen) == 1


def test_layers_that_read_the_number_of_heads_from_one_config_grow_together_and_are_saved(tmp_path: Path) -> None:
    options = {**SHARED, "num_hidden_layers": 2}
    model = made("Phi3", "ForCausalLM", **options).eval()
    found = ng.widths(model, IDS)
    (heads,) = (width for width in found.growable if width.kind == "heads")
    before = model(**IDS).logits
    ng.grow(model, heads, 1)  # a key head with its two queries, in both layers
    assert torch.allclose(model(**IDS).logits, before, atol=1e-6)
    assert [layer.self_attn.num_key_value_heads for layer in model.model.layers] == [3, 3]
    assert model.config.num_attention_heads == 6
    with pytest.warns(UserWarning, match="Phi3Config gives"):  # it has no field for the size of a head
        assert not save_pretrained(model, tmp_path)
    assert model.config.num_attention_heads == 6
    loaded = from_pretrained(type(model), tmp_path)
    assert torch.equal(loaded(**IDS).logits, model(**IDS).logits)
    ng.widths(loaded, IDS)
    with pytest.warns(UserWarning, match="Phi3Config gives"):
        save_pretrained(loaded, tmp_path / "again")
    assert torch.equal(from_pretrained(type(model), tmp_path / "again")(**IDS).logits, model(**IDS).logits)
    ng.shrink(model, heads, [2])
    assert model.config.num_attention_heads == 4 and model.config.num_key_value_heads == 2


def test_finding_widths_leaves_configs_as_they_are() -> None:
    model = made("Phi3", "ForCausalLM", **SHARED)
    before = dict(vars(model.config))
    ng.widths(model, IDS)
    assert {name: (type(value), value) for name, value in vars(model.config).items()} == {
        name: (type(value), value) for name, value in before.items()
    }
