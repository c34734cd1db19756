"""Grow every width of many models and check what the library guarantees.

    python -m benchmarks.zoo                      # all families
    python -m benchmarks.zoo torchvision          # one family: torchvision, timm or huggingface
    python -m benchmarks.zoo torchvision --only resnet18 vgg11
    python -m benchmarks.zoo timm --resume zoo.jsonl

For each model, in float64: find the widths; grow each growable width by 3 neurons with random fan-in and zero
fan-out, and check that the outputs do not change in evaluation and in training mode (dropout off), up to a
relative difference of 1e-9; check that one optimizer step changes the new weights; and check that removing the new
neurons restores the original parameters bit for bit. Widths are grown one at a time; in the larger variants of
torchvision's families, all widths of a model are grown at once. Prints handled/total and every failure with its
reason.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tests.torchvision_shim  # noqa: F401  lets torchvision be imported with a CPU build of torch
from tests.promises import check_all

Maker = Callable[[], tuple[nn.Module, Any]]
TOLERANCE = 1e-9


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
    convit_tiny convnextv2_atto cs3darknet_s cspresnet50 darknet53 deit_tiny_patch16_224 dla34 eca_resnet33ts
    edgenext_xx_small efficientformer_l1 efficientnet_b0 efficientvit_b0 efficientvit_m0 ese_vovnet19b_dw
    fasternet_t0 fbnetc_100 focalnet_tiny_srf gernet_s ghostnet_100 ghostnetv2_100 gmlp_s16_224 hardcorenas_a
    hrnet_w18_small inception_next_tiny legacy_seresnet18 levit_128s mambaout_femto mixer_s32_224 mnasnet_small
    mobilenetv4_conv_small mobileone_s0 mobilevit_xxs pit_ti_224 poolformer_s12 pvt_v2_b0 regnetx_002
    repghostnet_050 repvgg_a0 repvit_m0_9 res2net50_26w_4s resmlp_12_224 resnest14d resnet10t rexnet_100
    selecsls42 seresnext26t_32x4d shvit_s1 skresnet18 starnet_s1 swiftformer_xs test_vit tiny_vit_5m_224
    tinynet_e tnt_s_patch16_224 twins_pcpvt_small visformer_tiny vit_tiny_patch16_224 xcit_nano_12_p16_224
""".split()


def timm_models() -> Iterator[tuple[str, Maker]]:
    """A broad sample of timm: one model for almost every architecture family."""
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

    for name in TIMM:
        yield name, lambda name=name: make(name)


def huggingface_models() -> Iterator[tuple[str, Maker]]:
    """Language and vision transformers of Hugging Face in small configurations, without downloads."""
    import transformers as hf

    tokens = torch.randint(0, 60, (2, 9), generator=torch.Generator().manual_seed(0))
    text = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    common = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    bert = {**common, "vocab_size": 60}
    gpt2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 60, "n_positions": 16}
    vit = {**common, "image_size": 16, "patch_size": 4}
    llama = {**common, "vocab_size": 60, "num_key_value_heads": 2}
    yield "bert", lambda: (hf.BertForSequenceClassification(hf.BertConfig(**bert)), text)
    yield (
        "distilbert",
        lambda: (
            hf.DistilBertModel(hf.DistilBertConfig(vocab_size=60, dim=32, n_layers=2, n_heads=4, hidden_dim=48)),
            text,
        ),
    )
    yield "gpt2", lambda: (hf.GPT2LMHeadModel(hf.GPT2Config(**gpt2)), {"input_ids": tokens})
    yield "llama", lambda: (hf.LlamaForCausalLM(hf.LlamaConfig(**llama)), {"input_ids": tokens})
    yield "vit", lambda: (hf.ViTForImageClassification(hf.ViTConfig(**vit)), {"pixel_values": images(16)})


FAMILIES = {"torchvision": torchvision_models, "timm": timm_models, "huggingface": huggingface_models}


# The smallest of each family, whose widths are grown one at a time.
SMALLEST = """
    alexnet convnext_tiny densenet121 efficientnet_b0 efficientnet_v2_s googlenet inception_v3 maxvit_t mnasnet0_5
    mobilenet_v2 mobilenet_v3_small regnet_x_400mf regnet_y_400mf resnet18 resnet50 resnext50_32x4d
    shufflenet_v2_x0_5 squeezenet1_1 swin_t swin_v2_t vgg11 vgg11_bn vit_b_32 wide_resnet50_2
""".split()


def examine(make: Maker, alone: bool = True, tolerance: float = TOLERANCE) -> dict[str, Any]:
    """Check one model; return its numbers of widths and the reason of a failure."""
    torch.manual_seed(0)
    start = time.perf_counter()
    result: dict[str, Any] = {"widths": 0, "growable": 0, "failure": None}
    try:
        model, example = make()
        found = check_all(model.double(), example, tolerance, alone=alone)
        result.update(widths=len(found), growable=len(found.growable))
        if len(found.growable) < 2:
            reasons = sorted({width.reason.partition(" in ")[0] for width in found if width.reason})
            result["failure"] = f"fewer than two growable widths: {'; '.join(reasons)}"
    except Exception as error:
        result["failure"] = f"{type(error).__name__}: {error}"
    return {**result, "seconds": round(time.perf_counter() - start, 1)}


def run(family: str, only: list[str], known: dict[tuple[str, str], dict[str, Any]], file: Path | None) -> list[Any]:
    """Check the models of a family, except those with known results; print and record each result."""
    records = []
    for name, make in FAMILIES[family]():
        if only and name not in only:
            continue
        record = known.get((family, name))
        if record is None:
            alone = family != "torchvision" or name in SMALLEST
            record = {"family": family, "model": name, "alone": alone, **examine(make, alone)}
            if file:
                with file.open("a") as lines:
                    lines.write(json.dumps(record) + "\n")
        records.append(record)
        counts = f"{record['growable']:4} of {record['widths']:4} widths"
        state = "ok" if record["failure"] is None else f"FAILED: {record['failure']}"
        print(f"{name:32} {counts}  {record['seconds']:7.1f} s  {state}", flush=True)
    failed = [record for record in records if record["failure"]]
    widths = sum(record["growable"] for record in records)
    print(f"{family}: {len(records) - len(failed)}/{len(records)} handled, {widths} widths grown", flush=True)
    for record in failed:
        print(f"  {record['model']}: {record['failure']}")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", metavar="family", help=" ".join(FAMILIES))
    parser.add_argument("--only", nargs="+", default=[], help="names of models")
    parser.add_argument(
        "--resume", type=Path, help="file of results: models listed there are skipped, new results are appended"
    )
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    known = {}
    if arguments.resume and arguments.resume.exists():
        records = map(json.loads, arguments.resume.read_text().splitlines())
        known = {(record["family"], record["model"]): record for record in records}
    failed = [run(each, arguments.only, known, arguments.resume) for each in arguments.families or FAMILIES]
    return 1 if any(failed) else 0


if __name__ == "__main__":
    sys.exit(main())
