"""Time of deepening a Llama of 8 blocks by 4, relative to one of its training steps.

    python -m benchmarks.deepening

The batch is 16 x 128 tokens, the example for the rehearsal 1 x 128; medians of five rounds in one process, one thread.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

import neurogenesis as ng
import tests.torchvision_shim  # noqa: F401  before transformers imports torchvision
from neurogenesis.tables import table

SIZES = {"hidden_size": 256, "intermediate_size": 688, "num_attention_heads": 8, "num_key_value_heads": 4}
PARTS = ("training step", "find stacks", "plan and rehearse", "apply")


def seconds(action: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of an action, and its result."""
    started = time.perf_counter()
    result = action()
    return time.perf_counter() - started, result


def timed(first: Any, batch: torch.Tensor, stack: str, blocks: int) -> dict[str, float]:
    """Seconds of each part, on a copy of a model."""
    model = copy.deepcopy(first)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()

    step()  # makes the optimizer's state
    trained, _ = seconds(step)
    found, _ = seconds(lambda: ng.stacks(model, {"input_ids": batch[:1]}))
    planned, plan = seconds(lambda: ng.plan_deepening(model, stack, blocks))
    applied, _ = seconds(lambda: plan.apply(model, optimizer))
    return dict(zip(PARTS, (trained, found, planned, applied), strict=True))


def medians(rounds: int = 5, blocks: int = 8, **sizes: int) -> Mapping[str, float]:
    """Median seconds of each part."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    first = LlamaForCausalLM(LlamaConfig(num_hidden_layers=blocks, vocab_size=512, **{**SIZES, **sizes}))
    batch = torch.randint(512, (16, 128))
    found = [timed(first, batch, "model.layers", 4) for _ in range(rounds)]
    return {part: statistics.median(each[part] for each in found) for part in PARTS}


def main() -> None:
    torch.set_num_threads(1)
    found = medians()
    rows = [(part, f"{1000 * own:.0f}", f"{own / found['training step']:.2f}") for part, own in found.items()]
    print(table(("", "ms", "training steps"), rows))


if __name__ == "__main__":
    main()
