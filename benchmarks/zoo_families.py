"""More families of Hugging Face for the zoo: how each finds heads, experts, positions and norms differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

import neurogenesis as ng

TOKENS = torch.randint(3, 60, (2, 9), generator=torch.Generator().manual_seed(0))
IDS = {"input_ids": TOKENS}
TEXT = {**IDS, "attention_mask": torch.ones_like(TOKENS)}
PAIRS = {**IDS, "decoder_input_ids": TOKENS}

COMMON: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
SPECIALS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
WORDS = {**COMMON, **SPECIALS, "vocab_size": 60, "max_position_embeddings": 32}
SHARED = {**WORDS, "num_key_value_heads": 2}
EXPERTS = {**SHARED, "num_experts": 3, "num_experts_per_tok": 2}
LOCAL_EXPERTS = {**SHARED, "num_local_experts": 3, "num_experts_per_tok": 2}
QWEN_EXPERTS = {**EXPERTS, "moe_intermediate_size": 24, "decoder_sparse_step": 1}
LATENT = {  # queries and keys of few entries, from which heads are made
    **WORDS,
    "num_key_value_heads": 4,
    "kv_lora_rank": 12,
    "q_lora_rank": 14,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
}
FALCON = {**SPECIALS, "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SIDES = {
    **SPECIALS,
    "vocab_size": 60,
    "d_model": 32,
    "decoder_start_token_id": 1,
    "max_position_embeddings": 32,
    **{f"{side}_layers": 1 for side in ("encoder", "decoder")},
    **{f"{side}_attention_heads": 4 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 48 for side in ("encoder", "decoder")},
}
T5 = {"vocab_size": 60, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4}
GPT = {"vocab_size": 60, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4}
MAMBA = {**SPECIALS, "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}
VISION = {**COMMON, "image_size": 16, "patch_size": 4}
SWIN = {
    "image_size": 32,
    "patch_size": 4,
    "embed_dim": 16,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 4,
}
STAGES = {"hidden_sizes": [8, 12, 16, 20], "depths": [1, 1, 1, 1]}
SEGMENTS = {
    "num_encoder_blocks": 2,
    "depths": [1, 1],
    "sr_ratios": [2, 1],
    "hidden_sizes": [16, 24],
    "patch_sizes": [7, 3],
    "strides": [4, 2],
    "num_attention_heads": [2, 3],
    "mlp_ratios": [2, 2],
    "decoder_hidden_size": 20,
}
SOUND = {
    **COMMON,
    **SPECIALS,
    "vocab_size": 60,
    "conv_dim": (16, 16),
    "conv_stride": (5, 2),
    "conv_kernel": (10, 3),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "apply_spec_augment": False,
    "mask_time_prob": 0.0,
}
ENCODED = ("encoder_last_hidden_state",)  # an output that only the model reads


def pixels(size: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    return {"pixel_values": torch.randn(2, 3, size, size, generator=generator, dtype=torch.float64)}


def sound(length: int) -> dict[str, Any]:
    return {"input_values": torch.randn(2, length, generator=torch.Generator().manual_seed(0), dtype=torch.float64)}


CAUSAL, LABELS, PICTURES = "ForCausalLM", "ForSequenceClassification", "ForImageClassification"
# Name: prefix of the classes, suffix of the model's, an example, options of its config, outputs that only it reads.
FAMILIES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any], tuple[str, ...]]] = {
    "beit": ("Beit", PICTURES, pixels(16), VISION, ()),
    "cohere2": ("Cohere2", CAUSAL, IDS, SHARED, ()),
    "convnextv2": ("ConvNextV2", PICTURES, pixels(32), STAGES, ()),
    "data2vec_text": ("Data2VecText", LABELS, TEXT, WORDS, ()),
    "deepseek_v2": ("DeepseekV2", CAUSAL, IDS, {**LATENT, "n_group": 1, "topk_group": 1}, ()),
    "deepseek_v3": ("DeepseekV3", CAUSAL, IDS, {**LATENT, "n_group": 2, "topk_group": 2}, ()),
    "deit": ("DeiT", PICTURES, pixels(16), VISION, ()),
    "falcon": ("Falcon", CAUSAL, IDS, {**FALCON, "new_decoder_architecture": False, "multi_query": True}, ()),
    "falcon_new": ("Falcon", CAUSAL, IDS, {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}, ()),
    "gemma3": ("Gemma3Text", "Gemma3ForCausalLM", IDS, {**SHARED, "head_dim": 8}, ()),
    "glm": ("Glm", CAUSAL, IDS, {**SHARED, "head_dim": 8}, ()),
    "gpt_bigcode": ("GPTBigCode", CAUSAL, IDS, {**GPT, "attn_pdrop": 0.0}, ()),
    "gpt_neo": (
        "GPTNeo",
        CAUSAL,
        IDS,
        {"vocab_size": 60, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global"], 2]]},
        (),
    ),
    "gpt_oss": ("GptOss", CAUSAL, IDS, {**LOCAL_EXPERTS, "head_dim": 8}, ()),
    "granite": ("Granite", CAUSAL, IDS, SHARED, ()),
    "hubert": ("Hubert", "ForCTC", sound(400), SOUND, ()),
    "llama4": (
        "Llama4Text",
        "Llama4ForCausalLM",
        IDS,
        {**LOCAL_EXPERTS, "head_dim": 8, "num_experts_per_tok": 1, "intermediate_size_mlp": 40},
        (),
    ),
    "longformer": ("Longformer", LABELS, TEXT, {**WORDS, "attention_window": 4}, ()),
    "longt5": ("LongT5", "ForConditionalGeneration", PAIRS, {**T5, "local_radius": 3}, ENCODED),
    "mamba2": ("Mamba2", CAUSAL, IDS, {**MAMBA, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 4}, ()),
    "mbart": ("MBart", "ForConditionalGeneration", PAIRS, SIDES, ENCODED),
    "mixtral": ("Mixtral", CAUSAL, IDS, LOCAL_EXPERTS, ()),
    "modernbert": ("ModernBert", LABELS, TEXT, {**WORDS, "local_attention": 4}, ()),
    "mpnet": ("MPNet", LABELS, TEXT, WORDS, ()),
    "nemotron": ("Nemotron", CAUSAL, IDS, SHARED, ()),
    "olmo": ("Olmo", CAUSAL, IDS, SHARED, ()),
    "olmo2": ("Olmo2", CAUSAL, IDS, SHARED, ()),
    "olmoe": ("Olmoe", CAUSAL, IDS, EXPERTS, ()),
    "pegasus": ("Pegasus", "ForConditionalGeneration", PAIRS, SIDES, ENCODED),
    "phi": ("Phi", CAUSAL, IDS, SHARED, ()),
    "phi3": ("Phi3", CAUSAL, IDS, SHARED, ()),
    "poolformer": ("PoolFormer", PICTURES, pixels(64), STAGES, ()),
    "qwen2_moe": ("Qwen2Moe", CAUSAL, IDS, {**QWEN_EXPERTS, "shared_expert_intermediate_size": 20}, ()),
    "qwen3_moe": ("Qwen3Moe", CAUSAL, IDS, {**QWEN_EXPERTS, "head_dim": 8}, ()),
    "segformer": ("Segformer", "ForSemanticSegmentation", pixels(64), SEGMENTS, ()),
    "smollm3": ("SmolLM3", CAUSAL, IDS, SHARED, ()),
    "stablelm": ("StableLm", CAUSAL, IDS, SHARED, ()),
    "starcoder2": ("Starcoder2", CAUSAL, IDS, SHARED, ()),
    "swinv2": ("Swinv2", PICTURES, pixels(32), SWIN, ()),
    "t5_gated": (
        "T5",
        "ForConditionalGeneration",
        PAIRS,
        {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        ENCODED,
    ),
    "wav2vec2": ("Wav2Vec2", "ForCTC", sound(400), SOUND, ()),
}


def made(name: str) -> tuple[nn.Module, Any]:
    """A small model and an example; experts run one after the other, as their kernel has no double precision."""
    import transformers as hf

    prefix, suffix, example, options, internal = FAMILIES[name]
    kind = getattr(hf, suffix if hasattr(hf, suffix) else f"{prefix}{suffix}")
    config = getattr(hf, f"{prefix}Config")(**options)
    model = kind(config)
    if model._can_set_experts_implementation():
        model.set_experts_implementation("eager")
    ng.internal_outputs(model, *internal)
    return model.requires_grad_(True), example


def families() -> Iterator[tuple[str, Callable[[], tuple[nn.Module, Any]]]]:
    """Names of the families, and functions that make a model and an example of each."""
    for name in FAMILIES:
        yield name, lambda name=name: made(name)  # type: ignore[misc]
