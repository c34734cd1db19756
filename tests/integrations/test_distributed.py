"""Two processes train and grow one model as a single process does on the joined batch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import distributed_worker as worker

ROOT = Path(__file__).parents[2]


def torchrun(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Two processes in a directory."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *words]
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=1200)


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str, float]:
    """Results of two processes; after these one of them is killed: what was said then, and in how many seconds."""
    directory = tmp_path_factory.mktemp("two")
    ran = torchrun(directory, "-m", "tests.distributed_worker", "everything")
    assert ran.returncode != 0
    results = directory / "results.pt"
    assert results.exists(), ran.stderr[-5000:]
    return torch.load(results, weights_only=True), ran.stderr, time.time() - results.stat().st_mtime


@pytest.fixture(scope="module")
def both(
    two_processes: tuple[dict[str, Any], str, float], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Results of two processes, and of one."""
    return two_processes[0], worker.everything(tmp_path_factory.mktemp("one"))


def check_equal(two: dict[str, Any], one: dict[str, Any]) -> None:
    assert two["equal"]  # bit by bit in both processes
    assert two["events"] == one["events"]
    for a, b in zip(two["weights"], one["weights"], strict=True):
        assert a.shape == b.shape
        assert torch.allclose(a, b, rtol=0, atol=1e-8)


def test_two_processes_grow_as_one_on_the_joined_batch(both: tuple[dict[str, Any], dict[str, Any]]) -> None:
    two, one = both
    for strategy in worker.STRATEGIES:
        check_equal(two["strategies"][strategy], one["strategies"][strategy])
    grown = [strategy for strategy in worker.STRATEGIES if one["strategies"][strategy]["events"]]
    assert len(grown) >= 5
    for name in ("convolutional", "few samples"):
        for case, alone in one[name].items():
            assert alone["events"], case
            check_equal(two[name][case], alone)
    assert one["wide"]["events"]
    check_equal(two["wide"], one["wide"])
    check_equal(two["accumulation"], one["accumulation"])
    assert one["dropped"]["events"]
    check_equal(two["dropped"], one["dropped"])


def test_compiled_models_grow_as_others(both: tuple[dict[str, Any], dict[str, Any]]) -> None:
    two, one = both
    for found in two["compiled"].values():
        check_equal(found, one["strategies"]["north-random"])


@pytest.mark.long  # importing Transformers takes longer than everything else here
def test_the_trainer_of_transformers_grows_in_two_processes(tmp_path: Path) -> None:
    ran = torchrun(tmp_path, "-m", "tests.distributed_worker", "trainer")
    assert ran.returncode == 0, ran.stderr[-5000:]
    result = torch.load(tmp_path / "results.pt", weights_only=True)
    assert result["equal"] and result["events"]


@pytest.mark.long  # importing Lightning, too
def test_the_trainer_of_lightning_grows_in_two_processes_as_in_one(tmp_path: Path) -> None:
    ran = torchrun(tmp_path, "-m", "tests.distributed_worker", "lightning")
    assert ran.returncode == 0, ran.stderr[-5000:]
    two, one = torch.load(tmp_path / "results.pt", weights_only=True), worker.lightning(tmp_path)
    for name in ("its network", "itself", "whole"):
        assert one[name]["events"]
        check_equal(two[name], one[name])
    assert two["resumed"]["events"] == two["whole"]["events"]
    for a, b in zip(two["resumed"]["weights"], two["whole"]["weights"], strict=True):
        assert torch.equal(a, b)


def test_gradients_are_averaged_after_growth(both: tuple[dict[str, Any], dict[str, Any]]) -> None:
    two, one = both
    for name in ("find_unused_parameters", "static_graph", "gradient_as_bucket_view"):
        assert len(one["options"][name]["events"]) >= 6
        check_equal(two["options"][name], one["options"][name])
    assert two["options"]["comm hook"]["equal"]
    assert two["options"]["comm hook"]["calls"] >= 9


def test_models_that_differ_before_they_are_wrapped_end_up_equal(both: tuple[Any, Any]) -> None:
    two, _ = both
    assert two["made before wrapping"]["equal"] and two["made before wrapping"]["events"]
    assert two["by hand"]["equal"]


def test_resumed_training_is_bit_identical(both: tuple[Any, Any]) -> None:
    for results in both:
        for strategy in ("need", "north-select"):
            whole, after = results["resumed"][f"{strategy} None"], results["resumed"][f"{strategy} 9"]
            assert whole["events"] == after["events"]
            assert all(torch.equal(a, b) for a, b in zip(whole["weights"], after["weights"], strict=True))


def test_the_file_of_the_first_process_serves_all(both: tuple[Any, Any]) -> None:
    whole, after = both[0]["loaded by all"].values()
    assert whole["equal"] and after["equal"]
    before = [event for event in whole["events"] if event[0] <= 9]
    assert after["events"][: len(before)] == before
    assert whole["calls"] == after["calls"] > 0  # in the first process


def test_processes_that_differ_are_refused(both: tuple[Any, Any]) -> None:
    two, _ = both
    assert two["seed"] == "seed must be the same in all processes, but is 0 in process 0 and 1 in process 1"
    assert two["strategy"].startswith("strategy must be the same in all processes")
    assert "(8, 1) in process 0 and (16, 1) in process 1" in two["max_width"]
    assert "training_samples must be the same in all processes" in two["training_samples"]


def test_passes_without_synchronization_do_not_grow(both: tuple[Any, Any]) -> None:
    two, _ = both
    assert two["no_sync"]["events"] == 0
    assert any("ran inside no_sync()" in message for message in two["no_sync"]["warnings"])
    assert any("not wrapped in DistributedDataParallel" in message for message in two["not wrapped"])


def test_sharded_models_are_refused(both: tuple[Any, Any]) -> None:
    two, _ = both
    assert "is sharded over several devices" in two["sharded"]


def test_a_process_that_dies_ends_the_training(two_processes: tuple[dict[str, Any], str, float]) -> None:
    _, said, seconds = two_processes
    assert "Signal 9 (SIGKILL)" in said
    assert seconds < 300  # the process group alone would wait for half an hour


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("stepped_in_one", "grower.step() was called in process 0, but not in process 1: call it after every gradient"),
        ("grower_in_one", "a Grower watches the model in process 0, but none has seen a training pass in process 1"),
    ],
)
def test_what_one_process_does_alone_is_named(what: str, said: str, tmp_path: Path) -> None:
    ran = torchrun(tmp_path, "-m", "tests.distributed_worker", what)
    assert ran.returncode != 0
    assert said in ran.stderr


def test_steps_that_all_processes_skip_are_fine(both: tuple[Any, Any]) -> None:
    two, _ = both
    assert two["skipped"]["equal"] and two["skipped"]["looks"] > 2


def test_the_example_runs(tmp_path: Path) -> None:
    example = ROOT / "examples" / "distributed.py"
    ran = torchrun(tmp_path, str(example))
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "% of the digits" in ran.stdout
    saved = torch.load(tmp_path / "distributed.pt", weights_only=True)
    assert saved["models"][""]["sizes"]["widths"]["0"] > 4
    shown = re.search(r"```py\n(.*?)```", (ROOT / "docs" / "distributed.md").read_text("utf-8"), re.DOTALL)
    assert shown is not None
    assert all(f"    {line}\n" in example.read_text("utf-8") for line in shown[1].splitlines())
