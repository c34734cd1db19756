"""Configs of Transformers follow heads, the stream, vocabularies and labels; upstream's own code loads the models."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import neurogenesis as ng

pytest.importorskip("transformers")

import transformers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    CLIPConfig,
    CLIPModel,
    CLIPTextConfig,
    CLIPVisionConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

from neurogenesis.integrations.configs import config_problem, update_config
from neurogenesis.integrations.huggingface import from_pretrained, save_pretrained

TOKENS = torch.randint(3, 20, (2, 6), generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
NARROW = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}


class Case(NamedTuple):
    make: Callable[[], Any]
    example: dict[str, Tensor]
    wide: dict[str, int]  # fields of the config after all widths but the feed-forward ones have been doubled
    interface: str
    labels: str  # the field of the interface
    internal: tuple[str, ...] = ()


CASES = {
    "Llama": Case(
        lambda: LlamaForCausalLM(
            LlamaConfig(vocab_size=20, **{**NARROW, "num_attention_heads": 4}, num_key_value_heads=2)
        ),
        {"input_ids": TOKENS},
        {"hidden_size": 16, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 2},
        "vocabulary of model.embed_tokens",
        "vocab_size",
    ),
    "Llama, tied": Case(
        lambda: LlamaForCausalLM(LlamaConfig(vocab_size=20, **NARROW, tie_word_embeddings=True)),
        {"input_ids": TOKENS},
        {"hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 4},
        "vocabulary",
        "vocab_size",
    ),
    "GPT-2": Case(
        lambda: GPT2LMHeadModel(
            GPT2Config(
                vocab_size=20, n_positions=16, n_embd=8, n_layer=2, n_head=2, n_inner=12, bos_token_id=0, eos_token_id=0
            )
        ),
        {"input_ids": TOKENS},
        {"n_embd": 16, "n_head": 4, "n_inner": 12},
        "vocabulary",
        "vocab_size",
    ),
    "BERT": Case(
        lambda: BertForSequenceClassification(BertConfig(vocab_size=20, max_position_embeddings=16, **NARROW)),
        {"input_ids": TOKENS},
        {"hidden_size": 16, "num_attention_heads": 4},
        "output of classifier",
        "num_labels",
    ),
    "ViT": Case(
        lambda: ViTForImageClassification(ViTConfig(image_size=8, patch_size=4, **NARROW)),
        {"pixel_values": IMAGES},
        {"hidden_size": 16, "num_attention_heads": 4},
        "output of classifier",
        "num_labels",
    ),
    "T5": Case(
        lambda: T5ForConditionalGeneration(
            T5Config(vocab_size=20, d_model=8, d_ff=12, d_kv=4, num_layers=2, num_heads=2, decoder_start_token_id=0)
        ),
        {"input_ids": TOKENS, "decoder_input_ids": TOKENS},
        {"num_heads": 4},
        "vocabulary",
        "vocab_size",
    ),
}


def built(name: str) -> tuple[Any, dict[str, Tensor]]:
    torch.manual_seed(0)
    model = CASES[name].make().eval()
    ng.internal_outputs(model, *CASES[name].internal)
    for parameter in model.parameters():  # norms and biases have special values at first
        parameter.data += 0.05 * torch.randn(parameter.shape)
    return model, CASES[name].example


def outputs(model: nn.Module, example: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        found: Tensor = model.eval()(**example).logits
    return found


def doubled(model: nn.Module, example: dict[str, Tensor]) -> None:
    """Double all widths but the feed-forward ones."""
    for width in ng.widths(model, example).growable:
        if width.kind in ("heads", "stream") or "pooler" in width.name:
            ng.grow(model, width, width.size)


@pytest.mark.parametrize("name", CASES)
def test_heads_and_stream_are_saved_and_loaded_by_the_class_alone(name: str, tmp_path: Path) -> None:
    model, example = built(name)
    before = outputs(model, example)
    doubled(model, example)
    assert torch.allclose(outputs(model, example), before, atol=1e-5)
    fields = CASES[name].wide
    assert {field: getattr(model.config, field) for field in fields} == fields
    model.save_pretrained(tmp_path)  # of the class: nothing of ours
    loaded = type(model).from_pretrained(tmp_path)
    assert torch.equal(outputs(loaded, example), outputs(model, example))
    assert config_problem(model) is None


@pytest.mark.parametrize("name", CASES)
def test_new_tokens_and_labels_are_in_the_config(name: str, tmp_path: Path) -> None:
    model, example = built(name)
    before, interface, field = outputs(model, example), CASES[name].interface, CASES[name].labels
    size = before.shape[-1]
    ng.grow(model, interface, 3, example=example)
    assert torch.equal(outputs(model, example)[..., :size], before)
    assert getattr(model.config, field) == size + 3
    target = torch.randint(size + 3, example.get("decoder_input_ids", TOKENS).shape if field == "vocab_size" else (2,))
    model(**{key: value for key, value in example.items() if "decoder" not in key}, labels=target).loss.backward()
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert torch.equal(outputs(loaded, example), outputs(model, example))
    ng.shrink(model, interface, range(size, size + 3))
    assert getattr(model.config, field) == size and torch.equal(outputs(model, example), before)


def test_labels_keep_their_names(tmp_path: Path) -> None:
    model, example = built("BERT")
    model.config.id2label, model.config.label2id = {0: "cat", 1: "dog"}, {"cat": 0, "dog": 1}
    ng.grow(model, "output", 1, example=example)
    assert model.config.id2label == {0: "cat", 1: "dog", 2: "LABEL_2"}
    assert model.config.label2id == {"cat": 0, "dog": 1, "LABEL_2": 2} and model.num_labels == 3


@pytest.mark.parametrize("name", ["Llama", "Llama, tied", "GPT-2", "T5"])
def test_generated_tokens_are_the_same_with_and_without_cache(name: str) -> None:
    model, example = built(name)
    options = {"do_sample": False, "max_new_tokens": 8, "min_new_tokens": 8, "pad_token_id": 0}
    before = model.generate(TOKENS, **options)
    doubled(model, example)
    with_cache, without = (model.generate(TOKENS, use_cache=cache, **options) for cache in (True, False))
    assert torch.equal(with_cache, without) and torch.equal(with_cache, before)


def test_nested_configs_follow(tmp_path: Path) -> None:
    torch.manual_seed(0)
    text = CLIPTextConfig(vocab_size=20, max_position_embeddings=8, projection_dim=8, eos_token_id=1, **NARROW)
    vision = CLIPVisionConfig(image_size=8, patch_size=4, projection_dim=8, **NARROW)
    model = CLIPModel(CLIPConfig(text_config=text.to_dict(), vision_config=vision.to_dict(), projection_dim=8)).eval()
    example = {"input_ids": TOKENS, "pixel_values": IMAGES}
    ng.internal_outputs(model, "text_model_output", "vision_model_output")
    before = model(**example).logits_per_image
    for width in ng.widths(model, example).growable:
        if width.kind in ("heads", "stream") and "vision" in width.name:
            ng.grow(model, width, width.size)
    assert torch.allclose(model(**example).logits_per_image, before, atol=1e-4)
    sizes = [
        (each.hidden_size, each.num_attention_heads) for each in (model.config.text_config, model.config.vision_config)
    ]
    assert sizes == [(8, 2), (16, 4)]
    model.save_pretrained(tmp_path)
    loaded = CLIPModel.from_pretrained(tmp_path)
    assert torch.equal(loaded(**example).logits_per_image, model(**example).logits_per_image)


def test_what_a_config_cannot_say_is_named_and_loaded_with_its_sizes(tmp_path: Path) -> None:
    model, example = built("GPT-2")
    for width in ng.widths(model, example).growable:
        if width.kind == "heads":
            ng.grow(model, width, 1)  # which makes 12 entries of heads in a stream of 8
    problem = config_problem(model)
    assert problem is not None and "GPT2Config gives transformer.h.0.attn.c_attn.weight (8, 24)" in problem
    with pytest.warns(UserWarning, match=r"cannot load this, as GPT2Config gives transformer\.h\.0\.attn\.c_attn"):
        assert not save_pretrained(model, tmp_path)
    assert (model.config.n_head, model.config.n_embd) == (2, 8)
    loaded = from_pretrained(GPT2LMHeadModel, tmp_path)
    assert torch.equal(outputs(loaded, example), outputs(model, example))
    assert torch.equal(loaded.generate(TOKENS, do_sample=False), model.generate(TOKENS, do_sample=False))


def test_a_config_that_refuses_a_number_of_heads_is_quoted() -> None:
    model, example = built("Llama")
    for width in ng.widths(model, example).growable:
        if width.kind == "heads":
            ng.grow(model, width, 1)  # 6 heads
    problem = config_problem(model)
    assert problem is not None and "LlamaConfig refuses num_attention_heads=6, num_key" in problem


def test_a_grown_vocabulary_beside_layers_that_differ_is_loaded_with_its_sizes(tmp_path: Path) -> None:
    model, example = built("Llama")
    ng.grow(model, "model.layers.0.mlp.gate_proj", 3, example=example)
    ng.grow(model, "vocabulary", 2, example=example)
    with pytest.warns(UserWarning, match="one size for layers that differ"):
        save_pretrained(model, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["vocab_size"] == 22  # which the loss reads
    assert model(**example, labels=TOKENS + 2).loss.isfinite()
    loaded = from_pretrained(LlamaForCausalLM, tmp_path)
    assert torch.equal(outputs(loaded, example), outputs(model, example)) and outputs(loaded, example).shape[-1] == 22


@pytest.mark.parametrize("kind", ["Qwen3ForCausalLM", "Gemma3ForCausalLM"])
def test_norms_that_share_an_eps_which_only_some_keep_are_loaded_with_their_sizes(kind: str, tmp_path: Path) -> None:
    family: Any = getattr(transformers, kind)
    torch.manual_seed(0)
    config = family.config_class(vocab_size=20, **NARROW, num_key_value_heads=1, head_dim=4, rms_norm_eps=1e-3)
    model, example = family(config).eval(), {"input_ids": TOKENS}
    before = outputs(model, example)
    ng.grow(
        model, ng.widths(model, example)["model.layers.0.self_attn.o_proj"], 8
    )  # across the norms of the stream only
    assert torch.allclose(outputs(model, example), before, atol=1e-5)
    problem = config_problem(model)
    assert problem is not None and "has one number for model.layers.0.input_layernorm." in problem
    with pytest.warns(UserWarning, match=r"one number for .*self_attn\.q_norm\.\w+, which differ here"):
        assert not save_pretrained(model, tmp_path)
    assert model.config.rms_norm_eps == 1e-3 and model.config.hidden_size == 8
    assert torch.equal(outputs(from_pretrained(family, tmp_path), example), outputs(model, example))
    with pytest.raises(RuntimeError, match="mismatch"):  # never silently another model
        family.from_pretrained(tmp_path)


def test_a_config_is_only_searched_where_the_model_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    model, example = built("Llama")
    assert update_config(model)
    ng.grow(model, "model.layers.0.mlp.gate_proj", 3, example=example)

    def fail(*_: object) -> None:
        raise AssertionError("built again")

    monkeypatch.setattr("neurogenesis.integrations.configs.Build.by", fail)
    assert not update_config(model)


def test_an_intermediate_output_is_named_with_the_way_to_say_that_it_is_internal(tmp_path: Path) -> None:
    model, example = built("T5")
    stream = "encoder.block.0.layer.0.SelfAttention.o"
    reason = ng.widths(model, example)[stream].reason
    assert reason is not None
    assert "call neurogenesis.internal_outputs(model, 'encoder_last_hidden_state') if only" in reason
    ng.internal_outputs(model, "encoder_last_hidden_state")
    before = outputs(model, example)
    options = {"do_sample": False, "max_new_tokens": 8, "min_new_tokens": 8}
    generated = model.generate(TOKENS, **options)
    doubled(model, example)
    assert model.config.d_model == 8 and model.shared.embedding_dim == 16
    assert torch.allclose(outputs(model, example), before, atol=1e-5)
    assert all(torch.equal(model.generate(TOKENS, use_cache=cache, **options), generated) for cache in (True, False))
    # The class would divide the outputs by the root of another width, as it computes that from the config.
    with pytest.warns(UserWarning, match="T5Config gives model_dim 16, which is 8 here"):
        assert not save_pretrained(model, tmp_path)
    loaded = from_pretrained(T5ForConditionalGeneration, tmp_path)
    assert torch.equal(outputs(loaded, example), outputs(model, example))
    assert torch.equal(loaded.generate(TOKENS, **options), generated)
