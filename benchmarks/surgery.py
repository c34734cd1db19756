"""Cost of finding widths and of growing, as ratios measured in the same process.

    python -m benchmarks.surgery [--json]

* time to find the widths of a ResNet-50, in forward passes on a batch of two 224 x 224 images;
* time to grow one width of VGG-11 by 8 channels with Adam's state, in training steps at batch size 128;
* memory of that growth: its peak relative to the old and new copies of all resized tensors and their state,
  and the memory in use afterwards relative to the new copy;
* for a Llama of 8 blocks, 256 wide, on 8 x 128 tokens: time to find its widths, in forward passes, and to grow its
  whole stream and the heads of a block with Adam's state, in training steps.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import neurogenesis as ng
import tests.torchvision_shim  # noqa: F401  lets torchvision be imported with a CPU build of torch
from benchmarks.memory import LiveBytes
from neurogenesis.experiments.models import vgg11


def seconds(action: Callable[[], Any]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def finding_widths(rounds: int = 5) -> dict[str, float]:
    """Median time to find the widths of a ResNet-50, and of a forward pass."""
    from torchvision.models import resnet50

    model, images = resnet50(weights=None).eval(), torch.randn(2, 3, 224, 224)

    def forward() -> None:
        with torch.no_grad():
            model(images)

    forward()
    pairs = [(seconds(lambda: ng.widths(model, images)), seconds(forward)) for _ in range(rounds)]
    finding, passing = (statistics.median(times) for times in zip(*pairs, strict=True))
    return {"seconds": finding, "forward_seconds": passing, "ratio": finding / passing}


def growing(name: str, rounds: int = 3) -> dict[str, float]:
    """Median time to grow a width of VGG-11, and of a training step; memory of the growth."""
    model = vgg11()
    optimizer = torch.optim.Adam(model.parameters())
    images, labels = torch.randn(128, 3, 32, 32), torch.randint(0, 10, (128,))
    ng.widths(model, images[:1])

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    step()
    pairs = [(seconds(lambda: ng.grow(model, name, 8, optimizer=optimizer)), seconds(step)) for _ in range(rounds)]
    growth, stepping = (statistics.median(times) for times in zip(*pairs, strict=True))
    optimizer.zero_grad(set_to_none=True)
    memory = memory_of_growth(model, optimizer, name, 8)
    return {"seconds": growth, "step_seconds": stepping, "ratio": growth / stepping, **memory}


def transformer(rounds: int = 3) -> dict[str, float]:
    """Median ratios for a Llama: finding widths to a forward pass, growing the stream and heads to a training step."""
    import transformers as hf

    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 4}
    model = hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=1000, num_hidden_layers=8, **sizes))
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, 1000, (8, 128))
    example = {"input_ids": tokens, "labels": tokens}

    def forward() -> None:
        with torch.no_grad():
            model(**example)

    def step() -> None:
        optimizer.zero_grad()
        model(**example).loss.backward()
        optimizer.step()

    step()
    finding = [seconds(lambda: ng.widths(model, example)) / seconds(forward) for _ in range(rounds)]
    kinds = {width.kind: width for width in reversed(ng.widths(model, example).growable)}

    def growth(kind: str) -> float:
        return seconds(lambda: ng.grow(model, kinds[kind], 1, optimizer=optimizer)) / seconds(step)

    growing = {kind: statistics.median(growth(kind) for _ in range(rounds)) for kind in ("stream", "heads")}
    return {"widths": statistics.median(finding), **growing}


def memory_of_growth(model: nn.Module, optimizer: torch.optim.Optimizer, name: str, count: int) -> dict[str, float]:
    """Peak and final memory of a growth, relative to the copies of all resized tensors and their state."""
    parameters = dict(model.named_parameters())
    edits = ng.plan_growth(model, name, count).edits
    resized = [parameters[tensor] for tensor in {edit.tensor for edit in edits}]

    def tensors() -> list[Tensor]:
        return [
            *resized,
            *(v for p in resized for v in optimizer.state[p].values() if getattr(v, "shape", None) == p.shape),
        ]

    old = sum(tensor.nbytes for tensor in tensors())
    with LiveBytes(tensors()) as live:
        ng.grow(model, name, count, optimizer=optimizer)
    new = sum(tensor.nbytes for tensor in tensors())
    return {"peak_ratio": live.peak / (old + new), "rest_ratio": live.now / new}


GROWN = ("conv2", "conv8", "dense1")  # of VGG-11: an early convolution, the last one, a dense layer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    results: dict[str, Any] = {"widths": finding_widths()}
    for name in GROWN:
        results[f"growth of {name}"] = growing(name)
    results["transformer"] = transformer()
    if arguments.json:
        print(json.dumps(results, indent=2))
        return
    print("time to find the widths of a ResNet-50, in forward passes on two 224 x 224 images")
    print(f"  {results['widths']['ratio']:5.1f}   (limit: 15)")
    print("time to grow a width of VGG-11 by 8 with Adam's state, in training steps at batch size 128, and memory")
    print("  width  steps (limit: 1)  peak / (old + new) (limit: 1)  final / new (limit: 1)")
    for name in GROWN:
        result = results[f"growth of {name}"]
        ratios = f"{result['ratio']:16.3f}  {result['peak_ratio']:29.3f}  {result['rest_ratio']:22.3f}"
        print(f"  {name:6} {ratios}")
    print("a Llama of 8 blocks, 256 wide, on 8 x 128 tokens")
    print(f"  finding widths  {results['transformer']['widths']:7.1f} forward passes   (limit: 15)")
    print(f"  growing stream  {results['transformer']['stream']:7.3f} training steps   (limit: 2)")
    print(f"  growing heads   {results['transformer']['heads']:7.3f} training steps   (limit: 1)")


if __name__ == "__main__":
    main()
