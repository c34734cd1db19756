"""Depth of models of transformers and timm."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import neurogenesis as ng
from tests.would_be import check_against_deeper, without_dropout

transformers = pytest.importorskip("transformers")

_SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "vocab_size": 30}
_IDS = torch.arange(12).view(2, 6)


def _of(name: str, **config: Any) -> nn.Module:
    torch.manual_seed(0)
    kind, settings = (getattr(transformers, f"{name}{each}") for each in ("ForCausalLM", "Config"))
    model: nn.Module = kind(settings(**config))
    return model


def llama(blocks: int = 3) -> nn.Module:
    return _of("Llama", num_hidden_layers=blocks, num_key_value_heads=2, **_SIZES)


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=30, bos_token_id=0, eos_token_id=1)
    return transformers.GPT2LMHeadModel(config)


def t5() -> nn.Module:
    config = transformers.T5Config(
        d_model=16, d_kv=4, d_ff=24, num_layers=3, num_heads=4, vocab_size=30, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config)


def modernbert() -> nn.Module:
    """Its first block has no norm, so that it is not one of the others; a list in its config counts it, too."""
    special = {f"{name}_token_id": number for number, name in enumerate(("pad", "bos", "eos", "cls", "sep"))}
    config = transformers.ModernBertConfig(num_hidden_layers=4, local_attention=4, **_SIZES, **special)
    return transformers.ModernBertForMaskedLM(config)


MODELS = {
    "llama": (llama, "model.layers", {"self_attn.o_proj.weight", "mlp.down_proj.weight"}),
    "one llama": (lambda: llama(1), "model.layers", {"self_attn.o_proj.weight", "mlp.down_proj.weight"}),
    "gpt2": (
        gpt2,
        "transformer.h",
        {f"{layer}.c_proj.{kind}" for layer in ("attn", "mlp") for kind in ("weight", "bias")},
    ),
    "neox": (
        lambda: _of("GPTNeoX", num_hidden_layers=2, **_SIZES),
        "gpt_neox.layers",
        {f"{layer}.{kind}" for layer in ("attention.dense", "mlp.dense_4h_to_h") for kind in ("weight", "bias")},
    ),
    "gemma2": (
        lambda: _of("Gemma2", num_hidden_layers=2, num_key_value_heads=2, head_dim=4, **_SIZES),
        "model.layers",
        {"self_attn.o_proj.weight", "mlp.down_proj.weight"},
    ),
    "several lists": (
        lambda: _of("SmolLM3", num_hidden_layers=3, num_key_value_heads=2, pad_token_id=0, **_SIZES),
        "model.layers",
        {"self_attn.o_proj.weight", "mlp.down_proj.weight"},
    ),
    "modernbert": (modernbert, "model.layers", {"attn.Wo.weight", "mlp.Wo.weight"}),
    "t5": (
        t5,
        "decoder.block",
        {f"layer.{name}.weight" for name in ("0.SelfAttention.o", "1.EncDecAttention.o", "2.DenseReluDense.wo")},
    ),
}


def logits(model: nn.Module) -> torch.Tensor:
    inputs = {"input_ids": _IDS} | ({"decoder_input_ids": _IDS} if hasattr(model, "decoder") else {})
    with torch.no_grad():
        found: torch.Tensor = model.eval()(**inputs).logits
    return found


@pytest.mark.parametrize("name", MODELS)
def test_a_deeper_model_computes_the_same_and_its_config_makes_it(name: str) -> None:
    make, stack, zero = MODELS[name]
    model = make().double()
    before = logits(model)
    example = {"input_ids": _IDS} | ({"decoder_input_ids": _IDS} if name == "t5" else {})
    plan = ng.deepen(model, stack, 2, example=example)
    assert torch.allclose(logits(model), before, rtol=1e-10, atol=1e-12)
    assert all({made for _, made, _ in block.made} == zero for block in plan.order if block.new is not None)
    again = type(model)(model.config)
    assert list(again.state_dict()) == list(model.state_dict())
    own = [
        {value for module in block.modules() for key, value in vars(module).items() if key == "layer_idx"}
        for block in model.get_submodule(stack)
    ]
    assert own == [{number} for number in range(len(own))]


def test_a_deeper_llama_generates_and_is_saved(tmp_path: Any) -> None:
    model = llama()
    ng.deepen(model, "model.layers", 2, how="copy", example={"input_ids": _IDS})
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    words = model.generate(_IDS, attention_mask=torch.ones_like(_IDS), **options)
    uncached = model.generate(_IDS, attention_mask=torch.ones_like(_IDS), use_cache=False, **options)
    assert torch.equal(words, uncached)  # each block has its own place in the cache
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert len(again.model.layers) == 5 and torch.equal(logits(again), logits(model))


def test_blocks_behind_whose_addition_a_norm_follows_are_refused() -> None:
    model = transformers.BertModel(transformers.BertConfig(num_hidden_layers=2, **_SIZES))
    stack = ng.stacks(model, _IDS)["encoder.layer"]
    assert not stack.growable and "a norm follows the addition" in str(stack.reason)


@pytest.mark.parametrize("name", ["llama", "gpt2", "t5"])
def test_a_would_be_block_gets_the_gradient_of_a_real_one_in_each_fold(name: str) -> None:
    make, stack, _ = MODELS[name]
    model = without_dropout(make()).train()  # it makes a cache of keys, too
    for module in model.modules():
        for attribute, value in vars(module).items():
            if "drop" in attribute and isinstance(value, float):
                setattr(module, attribute, 0.0)
    ids = torch.arange(24).view(4, 6)
    example = {"input_ids": ids} | ({"decoder_input_ids": ids} if name == "t5" else {})
    wanted = torch.randn_like(model(**example).logits.detach())
    check_against_deeper(model, stack, example, lambda deeper: (deeper(**example).logits.tanh() * wanted).sum())
