"""A slice of benchmarks/zoo.py: one model of each kind that public model collections hold."""

from __future__ import annotations

import pytest

from benchmarks.zoo import FAMILIES, examine

SLICE = {
    "torchvision": [
        "googlenet", "mnasnet0_5", "mobilenet_v3_small", "resnet18", "shufflenet_v2_x0_5", "squeezenet1_1",
        "swin_t", "vit_b_32",
    ],
    "timm": ["ghostnet_100", "levit_128s", "resnet10t", "test_vit"],
    "huggingface": ["bert", "distilbert", "gpt2", "llama", "vit"],
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
    assert result["growable"] > 1
