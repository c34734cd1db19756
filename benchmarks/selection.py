"""What picking among candidates costs, measured side by side in one run.

    python -m benchmarks.selection [--json]

1,000 candidates for a width of 256 on 1,568 samples: all at once, and with one singular value decomposition
each (20 of them, scaled up). The same candidates must be picked.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import torch

from neurogenesis import metrics
from tests import oracles

WIDTH, SAMPLES, CANDIDATES, TIMED, PICKED = 256, 1568, 1000, 20, 8


def selection(rounds: int = 3) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(784, SAMPLES, generator=generator)
    present = (torch.randn(WIDTH, 784, generator=generator) @ inputs / 28).relu()
    candidates = (torch.randn(CANDIDATES, 784, generator=generator) @ inputs / 28).relu()
    some = candidates[:TIMED]
    ratios = []
    for _ in range(rounds):
        start = time.perf_counter()
        metrics.best_candidates(present, candidates, PICKED)
        fast = time.perf_counter() - start
        start = time.perf_counter()
        for candidate in some:  # as one would write it: the singular values of the matrix as it is
            torch.linalg.svdvals(torch.cat([present, candidate[None]]) / SAMPLES**0.5)
        slow = (time.perf_counter() - start) * CANDIDATES / TIMED
        ratios.append(slow / fast)
    picked = metrics.best_candidates(present, some, PICKED).tolist()
    same = picked == oracles.best_candidates(present, some, PICKED, "effective_dimension")
    return {"times_faster": statistics.median(ratios), "same_picked": same}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    result = selection()
    if parser.parse_args().json:
        print(json.dumps(result))
    else:
        print(f"{CANDIDATES} candidates, width {WIDTH}, {SAMPLES} samples, against one decomposition each")
        print(f"  {result['times_faster']:.0f} times faster (bar: 500); the same picked: {result['same_picked']}")


if __name__ == "__main__":
    main()
