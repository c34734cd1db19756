"""Grow every width of many models and check what the library guarantees.

    python -m benchmarks.zoo                      # all families
    python -m benchmarks.zoo torchvision          # one family: torchvision, timm or huggingface
    python -m benchmarks.zoo torchvision --only resnet18 vgg11
    python -m benchmarks.zoo timm --resume zoo.jsonl
    python -m benchmarks.zoo --resume zoo.jsonl --table

For each model, in double precision throughout: find the widths; grow each growable width (by 3 neurons, one head or
group, or to twice its size where entries are copied) and check that the outputs do not change in evaluation and in
training mode (dropout off), up to a relative difference of 1e-10; check that one optimizer step changes the new
weights; and check that removing the new neurons restores the original parameters bit for bit. Widths are grown one at a
time; in the larger variants of torchvision's families, all widths of a model are grown at once. Prints, for each model,
how many widths of each kind have grown, and why the others are fixed; then handled/total and every failure with its
reason. With --table and a file of results, prints them as Markdown tables.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import neurogenesis as ng
from benchmarks.zoo_models import FAMILIES, Maker
from tests.promises import check_all

TOLERANCE = 1e-10


# The smallest of each family, whose widths are grown one at a time.
SMALLEST = """
    alexnet convnext_tiny densenet121 efficientnet_b0 efficientnet_v2_s googlenet inception_v3 maxvit_t mnasnet0_5
    mobilenet_v2 mobilenet_v3_small regnet_x_400mf regnet_y_400mf resnet18 resnet50 resnext50_32x4d
    shufflenet_v2_x0_5 squeezenet1_1 swin_t swin_v2_t vgg11 vgg11_bn vit_b_32 wide_resnet50_2
""".split()


KINDS = ("neurons", "channels", "groups", "heads", "stream")


def examine(make: Maker, alone: bool = True, tolerance: float = TOLERANCE) -> dict[str, Any]:
    """Check one model; return its widths that have grown by kind, the others by reason, and the reason of a failure."""
    torch.manual_seed(0)
    start = time.perf_counter()
    result: dict[str, Any] = {"widths": 0, "growable": 0, "grown": {}, "copied": 0, "fixed": {}, "failure": None}
    try:
        model, example = make()
        found = check_all(model.double(), example, tolerance, alone=alone)
        result.update(counts(found))
        if len(found.growable) < 2:
            result["failure"] = f"fewer than two growable widths: {'; '.join(sorted(result['fixed']))}"
    except Exception as error:
        result["failure"] = f"{type(error).__name__}: {error}"
    return {**result, "seconds": round(time.perf_counter() - start, 1)}


def counts(found: ng.Widths) -> dict[str, Any]:
    """Numbers of widths: all, growable ones by kind, those that grow to multiples only, and fixed ones by reason."""
    return {
        "widths": len(found),
        "growable": len(found.growable),
        "grown": dict(Counter(width.kind for width in found.growable)),
        "copied": sum(width.copied is not None for width in found.growable),
        "fixed": dict(Counter(_in_short(width.reason) for width in found if width.reason is not None)),
    }


def _in_short(reason: str) -> str:
    """A reason without the places that differ between layers."""
    return re.sub(
        r"( in | of )([\w.]+|the model) \(\w+\)", r"", re.sub(r" \(as .*\)$|: .*|, as the model.*", "", reason)
    )


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
        total = f"{record['growable']:4} of {record['widths']:4} widths"
        state = "ok" if record["failure"] is None else f"FAILED: {record['failure']}"
        print(f"{name:32} {total}  {record['seconds']:7.1f} s  {state}", flush=True)
        for line in (_listed(record["grown"]), *(f"fixed: {text} ({n})" for text, n in record["fixed"].items())):
            print(f"    {line}", flush=True)
    failed = [record for record in records if record["failure"]]
    widths = sum(record["growable"] for record in records)
    print(f"{family}: {len(records) - len(failed)}/{len(records)} handled, {widths} widths grown", flush=True)
    for record in failed:
        print(f"  {record['model']}: {record['failure']}")
    return failed


def _listed(grown: dict[str, int]) -> str:
    return ", ".join(f"{grown[kind]} {kind}" for kind in KINDS if kind in grown)


def tables(records: Sequence[dict[str, Any]]) -> str:
    """Results as Markdown: a summary, and for each family what has grown in each model and why the rest is fixed."""
    families = list(dict.fromkeys(record["family"] for record in records))
    lines = ["| models | handled | widths grown | " + " | ".join(KINDS) + " |", "|---" * (3 + len(KINDS)) + "|"]
    for family in families:
        own = [record for record in records if record["family"] == family]
        grown = sum((Counter(record["grown"]) for record in own), Counter[str]())
        handled = sum(record["failure"] is None for record in own)
        cells = [family, f"{handled}/{len(own)}", str(grown.total()), *(str(grown[kind]) for kind in KINDS)]
        lines.append(f"| {' | '.join(cells)} |")
    for family in families:
        own = [record for record in records if record["family"] == family]
        lines += [
            "",
            f"## {family}",
            "",
            "| model | " + " | ".join(KINDS) + " | fixed |",
            "|---" * (2 + len(KINDS)) + "|",
        ]
        for record in own:
            cells = [record["model"], *(str(record["grown"].get(kind, "")) for kind in KINDS)]
            fixed = "; ".join(f"{n} {text}" for text, n in record["fixed"].items() if text not in _ALWAYS)
            lines.append(f"| {' | '.join(cells)} | {record['failure'] or fixed} |")
    return "\n".join(lines)


_ALWAYS = ("a size of the model's input", "a size of the model's output")  # which every model has


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", metavar="family", help=" ".join(FAMILIES))
    parser.add_argument("--only", nargs="+", default=[], help="names of models")
    parser.add_argument(
        "--resume", type=Path, help="file of results: models listed there are skipped, new results are appended"
    )
    parser.add_argument("--table", action="store_true", help="print the results in the file as Markdown")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    known = {}
    if arguments.resume and arguments.resume.exists():
        records = map(json.loads, arguments.resume.read_text().splitlines())
        known = {(record["family"], record["model"]): record for record in records}
    if arguments.table:
        print(tables(list(known.values())))
        return 0
    failed = [run(each, arguments.only, known, arguments.resume) for each in arguments.families or FAMILIES]
    return 1 if any(failed) else 0


if __name__ == "__main__":
    sys.exit(main())
