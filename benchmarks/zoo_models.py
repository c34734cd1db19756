"""The models of the zoo: of torchvision, timm and Hugging Face, without downloads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

import neurogenesis as ng
import tests.torchvision_shim  # noqa: F401  lets torchvision be imported with a CPU build of torch

from .zoo_families import families

Maker = Callable[[], tuple[nn.Module, Any]]


def images(size: int, count: int = 2) -> torch.Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def torchvision_models() -> Iterator[tuple[str, Maker]]:
    """All classification models of torchvision, with the smallest input they accept."""
    import torchvision

    for name in torchvision.models.list_models(module=torchvision.models):
        options: dict[str, Any] = {}
        size = 64
        if name.startswith("vit_"):
            size = options["image_size"] = 32 if "h_14" not in name else 28
        elif name == "googlenet":
            options["init_weights"] = False
        elif name == "inception_v3":
            size, options["init_weights"] = 299, False  # its auxiliary head needs the full size
        elif name == "maxvit_t":
            size = 224
        yield (
            name,
            lambda name=name, size=size, options=options: (
                torchvision.models.get_model(name, weights=None, **options),
                images(size),
            ),
        )


TIMM = """
    crossvit_tiny_240 cs3darknet_s cspresnet50 darknet53 deit_tiny_patch16_224 dla34 eca_resnet33ts
    edgenext_xx_small efficientformer_l1 efficientnet_b0 efficientvit_b0 efficientvit_m0 ese_vovnet19b_dw
    fasternet_t0 fbnetc_100 focalnet_tiny_srf gcvit_xxtiny gernet_s ghostnet_100 ghostnetv2_100 gmlp_s16_224
    hardcorenas_a hrnet_w18_small inception_next_tiny legacy_seresnet18 levit_128s mambaout_femto mixer_s32_224
    mnasnet_small mobilenetv4_conv_small mobileone_s0 mobilevit_xxs mvitv2_tiny nest_tiny pit_ti_224 regnetx_002
    repghostnet_050 repvgg_a0 repvit_m0_9 res2net50_26w_4s resmlp_12_224 resnest14d resnet10t rexnet_100
    selecsls42 seresnext26t_32x4d shvit_s1 skresnet18 starnet_s1 swiftformer_xs test_vit tiny_vit_5m_224
    tinynet_e tnt_s_patch16_224 twins_pcpvt_small twins_svt_small visformer_tiny volo_d1_224
""".split()


VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4}
STAGES = {"depths": (1, 1, 1, 1), "embed_dims": (8, 16, 24, 32)}
# Transformers and mixers, made small: the arguments are those of their classes.
SMALL: dict[str, tuple[int, dict[str, Any]]] = {
    "beit_base_patch16_224": (32, VIT),
    "cait_xxs24_224": (32, VIT),
    "coat_lite_tiny": (64, {"img_size": 64}),
    "coatnet_nano_rw_224": (64, {"img_size": 64}),
    "convit_tiny": (32, VIT),
    "convnext_atto": (32, {"depths": (1, 1, 2, 1), "dims": (8, 12, 16, 20)}),
    "convnextv2_atto": (32, {"depths": (1, 1, 2, 1), "dims": (8, 12, 16, 20)}),
    "davit_tiny": (64, {**STAGES, "num_heads": (1, 2, 3, 4)}),
    "deit_tiny_distilled_patch16_224": (32, VIT),
    "eva02_tiny_patch14_224": (32, VIT),
    "eva_giant_patch14_224": (32, VIT),
    "hiera_tiny_224": (224, {"embed_dim": 16, "stages": (1, 1, 1, 1)}),
    "maxvit_rmlp_pico_rw_256": (64, {"img_size": 64}),
    "naflexvit_base_patch16_gap": (32, {key: VIT[key] for key in VIT if key != "img_size"}),
    "poolformer_s12": (64, {"layers": (1, 1, 1, 1), "embed_dims": (8, 12, 16, 20)}),
    "pvt_v2_b0": (64, {**STAGES, "num_heads": (1, 2, 3, 4)}),
    "resnetv2_50": (64, {"layers": (1, 1, 1, 1)}),
    "swin_tiny_patch4_window7_224": (
        32,
        {"img_size": 32, "window_size": 4, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 4)},
    ),
    "swinv2_cr_tiny_224": (
        32,
        {"img_size": 32, "window_size": 4, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 4)},
    ),
    "swinv2_tiny_window8_256": (
        32,
        {"img_size": 32, "window_size": 4, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 4)},
    ),
    "vit_small_patch16_18x2_224": (32, VIT),
    "vit_small_patch16_rope_224": (32, VIT),
    "vit_tiny_patch16_224": (32, VIT),
    "xcit_nano_12_p16_224": (32, VIT),
}


def timm_models() -> Iterator[tuple[str, Maker]]:
    """A broad sample of timm: one model for almost every architecture family, transformers made small."""
    import timm

    def make(name: str) -> tuple[nn.Module, Any]:
        model = timm.create_model(name, num_classes=10)
        size = model.default_cfg["input_size"][-1]
        # Attention and mixer models are built for one size; convolutional ones also accept smaller images.
        for smaller in (64, 96, 128):
            with torch.no_grad():
                try:
                    model.eval()(torch.randn(1, 3, smaller, smaller))
                    model.train()(torch.randn(2, 3, smaller, smaller))
                except (RuntimeError, AssertionError, ValueError):
                    continue
            size = smaller
            break
        return timm.create_model(name, num_classes=10), images(size)

    def make_small(name: str) -> tuple[nn.Module, Any]:
        size, options = SMALL[name]
        return timm.create_model(name, num_classes=10, **options), images(size)

    for name in sorted([*TIMM, *SMALL]):
        yield name, lambda name=name: (make_small if name in SMALL else make)(name)


def huggingface_models() -> Iterator[tuple[str, Maker]]:
    """Families of transformers of Hugging Face from small configurations, without downloads."""
    import transformers as hf

    tokens = torch.randint(0, 60, (2, 9), generator=torch.Generator().manual_seed(0))
    ids = {"input_ids": tokens}
    text = {**ids, "attention_mask": torch.ones_like(tokens)}
    pairs = {**ids, "decoder_input_ids": tokens}
    common = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    words = {**common, "vocab_size": 60}
    vision = {**common, "image_size": 16, "patch_size": 4}
    shared = {**words, "num_key_value_heads": 2}
    t5 = {"vocab_size": 60, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    gpt2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 60, "n_positions": 16}
    opt = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 48}
    sides = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in (("layers", 1), ("ffn_dim", 48))}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    whisper = {**sides, **heads, "vocab_size": 60, "d_model": 32, "num_mel_bins": 8, "max_source_positions": 8}
    specials = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    sound = torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    clip = {"text_config": {**words, **specials}, "vision_config": vision, "projection_dim": 16}
    makers: dict[str, tuple[Callable[[], nn.Module], Any]] = {
        "bert": (lambda: hf.BertForSequenceClassification(hf.BertConfig(**words)), text),
        "clip": (lambda: hf.CLIPModel(hf.CLIPConfig(**clip)), {**text, "pixel_values": images(16)}),
        "distilbert": (
            lambda: hf.DistilBertForSequenceClassification(
                hf.DistilBertConfig(vocab_size=60, dim=32, n_layers=2, n_heads=4, hidden_dim=48)
            ),
            text,
        ),
        "gemma": (lambda: hf.GemmaForCausalLM(hf.GemmaConfig(**shared, head_dim=8)), ids),
        "gpt2": (lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**gpt2)), ids),
        "gpt_neox": (lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**words)), ids),
        "llama": (lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**shared)), ids),
        "mistral": (lambda: hf.MistralForCausalLM(hf.MistralConfig(**shared)), ids),
        "opt": (lambda: hf.OPTForCausalLM(hf.OPTConfig(**opt, word_embed_proj_dim=32)), ids),
        "qwen2": (lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**shared)), ids),
        "qwen3": (lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**shared, head_dim=8)), ids),
        "roberta": (
            lambda: hf.RobertaForSequenceClassification(hf.RobertaConfig(**words, max_position_embeddings=16)),
            text,
        ),
        "t5": (lambda: hf.T5ForConditionalGeneration(hf.T5Config(**t5, decoder_start_token_id=0)), pairs),
        "vit": (lambda: hf.ViTForImageClassification(hf.ViTConfig(**vision)), {"pixel_values": images(16)}),
        "whisper": (
            lambda: hf.WhisperForConditionalGeneration(hf.WhisperConfig(**whisper, **specials)),
            {"input_features": sound, "decoder_input_ids": tokens},
        ),
    }
    # Outputs besides those that these models are trained on, which would fix the widths of hidden layers.
    hidden = {
        "clip": ("text_embeds", "image_embeds", "text_model_output", "vision_model_output"),
        "t5": ("encoder_last_hidden_state",),
        "whisper": ("encoder_last_hidden_state",),
    }

    def made(name: str) -> tuple[nn.Module, Any]:
        make, example = makers[name]
        model = make().requires_grad_(True)  # Whisper's positions are frozen
        ng.internal_outputs(model, *hidden.get(name, ()))
        return model, example

    everything = {name: lambda name=name: made(name) for name in makers}
    yield from sorted({**everything, **dict(families())}.items())


FAMILIES = {"torchvision": torchvision_models, "timm": timm_models, "huggingface": huggingface_models}
