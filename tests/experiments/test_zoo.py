"""A slice of benchmarks/zoo.py: one model of each kind that public model collections hold."""

from __future__ import annotations

import pytest

from benchmarks.zoo import examine
from benchmarks.zoo_models import FAMILIES

SLICE = {
    "torchvision": [
        "googlenet", "mnasnet0_5", "mobilenet_v3_small", "resnet18", "shufflenet_v2_x0_5", "squeezenet1_1",
        "swin_t", "vit_b_32",
    ],
    "timm": [
        "beit_base_patch16_224", "cait_xxs24_224", "convnextv2_atto", "ghostnet_100", "levit_128s", "resnet10t",
        "swin_tiny_patch4_window7_224", "vit_tiny_patch16_224",
    ],
    "huggingface": ["bert", "distilbert", "gemma", "gpt2", "gpt_neox", "llama", "t5", "vit", "whisper"],
}  # fmt: skip


SLOW = {"ghostnet_100", "googlenet", "mnasnet0_5", "vit_b_32"}


@pytest.mark.parametrize(
    ("family", "name"),
    [
        pytest.param(family, name, marks=[pytest.mark.long] if name in SLOW else [])
        for family in SLICE
        for name in SLICE[family]
    ],
)
def test_public_models_keep_every_promise(family: str, name: str) -> None:
    result = examine(dict(FAMILIES[family]())[name])
    assert result["failure"] is None
    assert result["growable"] == sum(result["grown"].values()) > 1
    assert result["widths"] == result["growable"] + sum(result["fixed"].values())
    if name in STREAMS:
        assert result["grown"]["stream"] >= 1


# Transformers whose heads grow, alone or with the stream that they split.
STREAMS = {"beit_base_patch16_224", "cait_xxs24_224", "gemma", "gpt2", "gpt_neox", "llama", "t5", "vit", "whisper"}
