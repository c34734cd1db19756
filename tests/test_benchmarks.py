"""What the benchmarks measure that does not depend on the machine's speed, and that they run."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

import neurogenesis as ng
from benchmarks import overhead, selection


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("strategy", ["north-random", "north-select", "north-weight"])
def test_watching_takes_hardly_more_memory(strategy: str) -> None:
    assert overhead.memory(strategy) <= 1.15 * overhead.memory(None)


def test_a_growth_event_can_be_timed() -> None:
    assert selection.event(ng.strategies.strategy("north-random"), buffer=64, rounds=1) > 0


@pytest.mark.long
@pytest.mark.parametrize("name", ["overhead --rounds 3", "selection", "loop --rounds 10"])
def test_benchmarks_print_their_figures(name: str) -> None:
    command = [sys.executable, "-W", "ignore", "-m", f"benchmarks.{name.split()[0]}", *name.split()[1:], "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: dict[str, Any] = json.loads(done.stdout)
    if name == "selection":
        assert figures["same_picked"]
        assert figures["times_faster"] > 100
    elif name.startswith("loop"):
        assert all(0.5 < case["steps"] < 2 for case in figures.values())
    else:
        assert set(figures["VGG-11 / 4, Xavier"]) == set(overhead.STRATEGIES)
        assert set(figures["ages"]) == set(overhead.AGES)
