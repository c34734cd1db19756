"""Benchmarks: those of their results that do not depend on the speed of the machine, and that they run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import neurogenesis as ng
from benchmarks import compile as compiling
from benchmarks import (
    decisions,
    deepening,
    dependent,
    depth_steps,
    fan_outs,
    inside,
    newborn,
    overhead,
    pruning,
    selection,
    surgery,
    tables,
    unseen,
    validation,
)
from neurogenesis.experiments.data import load
from neurogenesis.experiments.models import VGG11, vgg11
from neurogenesis.experiments.presets import PRESETS


@pytest.mark.filterwarnings("ignore")
def test_watching_takes_hardly_more_memory() -> None:
    static = overhead.peak_memory(None)
    peaks = {name: overhead.peak_memory(name) for name in ("north-random", "north-select", "north-weight")}
    assert max(peaks.values()) <= 1.15 * static, peaks


def test_a_growth_event_can_be_timed() -> None:
    assert selection.event(ng.strategies.strategy("north-random"), buffer=64, rounds=1) > 0


def test_growth_events_of_convolutions_can_be_timed() -> None:
    figures = selection.vgg_events(0.0625, rounds=1, names=["conv1", "conv8"])
    assert set(figures) == {"conv1", "conv8"}
    assert all(ratio > 0 for ratio in figures.values())


def test_the_widths_whose_growth_is_timed_can_grow() -> None:
    found = ng.widths(vgg11(0.0625), torch.randn(2, 3, 32, 32))
    assert all(found[name].growable for name in surgery.GROWN)


def test_deepening_can_be_timed() -> None:
    pytest.importorskip("transformers")
    small = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1}
    found = deepening.medians(1, 2, **small)
    assert set(found) == set(deepening.PARTS) and min(found.values()) > 0


def test_steps_are_timed_at_every_depth_and_after_growing() -> None:
    settings: Any = PRESETS["gpt-stdlib"]
    found = depth_steps.seconds(1, settings(length=8, batch=2, neurons=8, heads=1, stream=16))
    assert {*map(str, depth_steps.DEPTHS), "3 to 6", "deepening 3 to 6"} <= found.keys() and min(found.values()) > 0
    assert [row[0] for row in depth_steps.rows(found)] == [*map(str, depth_steps.DEPTHS), "3 to 6", "2 to 6", "2 to 4"]
    same = dict.fromkeys(found, 1.0) | {name: 0.0 for name in found if name.startswith("deepening")}
    assert {row[3] for row in depth_steps.rows(same)} == {"", "1.00"}


def test_pruned_networks_have_the_same_sizes_and_folding_helps() -> None:
    pytest.importorskip("torch_pruning")
    task = pruning.Task(lambda: newborn.mlp(64, 32, 32, 10), batch=64, epochs=10, rate=1e-2)
    found = pruning.outcomes(load("digits"), task, seed=1, parts=[1 / 4])
    assert found["whole", 1.0].cut > 0.9
    assert len({found[way, 1 / 4].parameters for way in pruning.WAYS}) == 1
    assert found["prune", 1 / 4].cut > max(found[way, 1 / 4].cut for way in pruning.WAYS[1:])


def test_fan_outs_are_compared_at_the_shape_that_was_grown() -> None:
    found = fan_outs.losses(seed=1, batch=32, steps=80)
    assert list(found) == ["zero", "twins", "shape", "shape-zero"]
    assert len(set(found.values())) == 4 and max(found.values()) < 1


def test_the_time_of_a_table_is_that_of_its_whole_training() -> None:
    found = tables.cost("digits", 2500, seed=1, rounds=1, epochs=30)
    first, second = map(int, found["widths"].split("-"))
    assert first > 16 and second > 16
    assert found["steps"] == 30 and 10 <= found["looks"] < 30
    assert 1 < found["ratio"] < 20


@pytest.mark.parametrize("name", list(unseen.SETS))
def test_the_smallest_size_as_good_is_not_larger_than_the_best(name: str) -> None:
    found = unseen.compared(name, batch=32, seeds=2, steps=40, sizes=(4, 8))
    assert found["smallest"] <= found["best"] in (4, 8)
    assert 0 < found["static"] < 2 and 0 < found["grown"] < 2
    assert len(found["widths"]) == 2 and found["parameters"] > 1


def test_of_dependent_samples_those_that_belong_together_are_told() -> None:
    assert dependent.graph(random_labels=True, blocks=True, seed=1, steps=12) == ((16,), 0)
    assert dependent.series(signal=False, blocks=True, seed=1, steps=24) == ((16, 16), 0)


def test_a_replay_buffer_and_fixed_targets_are_learned_from_the_same_weights() -> None:
    for widths, last in dependent.replay(seed=1, steps=40):
        assert min(widths) >= 16 and last <= 40


def test_sizes_are_compared_on_samples_that_were_left_out() -> None:
    found = validation.differences("wine", (2, 8), seed=1, starts=2, steps=60)
    assert found.test > 2 * found.test_error > 0  # two neurons are too few
    assert found.inside > 2 * found.inside_error > 0
    assert 3 / 124 < found.share < 1


def test_neurons_that_fire_on_no_sample_are_dead() -> None:
    activations = torch.tensor([[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 2.0]])
    assert newborn.dead_share(activations) == 0.5


@pytest.mark.parametrize("way", list(newborn.WAYS))
def test_the_fate_of_new_neurons_is_known(way: str) -> None:
    fate = newborn.fate(load("digits"), newborn.Task(batch=64, epochs=4), way, rate=1e-3, seed=1)
    assert len(fate.dead) == 2
    assert all(0 <= share < 0.5 for share in fate.dead)
    assert fate.loss < 1
    assert fate.accuracy > 0.8


def test_only_new_neurons_are_judged() -> None:
    data = load("digits")
    model = newborn.xavier(newborn.mlp(64, 4, 4, 10))
    with torch.no_grad():
        model.hidden1.bias[:2] = -1e3
        model.hidden1.bias[2:] = 1e3
    assert newborn.outcome(model, data, first=0).dead[0] == 0.5
    assert newborn.outcome(model, data, first=2).dead[0] == 0


def started(initial: int) -> inside.Run:
    """A static network on digits, of which neurons from `initial` on count as new."""
    task = inside.TASKS["digits"]
    run = inside.start(task, task.settings(1), load("digits"), None, "both", 10, final=False)
    run.initial = dict.fromkeys(run.initial, initial)
    return run


def test_twins_and_dead_neurons_are_seen() -> None:
    run = started(12)
    parameters = dict(run.model.named_parameters())
    with torch.no_grad():
        parameters["hidden1.weight"][15] = 2 * parameters["hidden1.weight"][3]
        parameters["hidden1.bias"][14] = -1e3
    before = {name: own.detach().clone() for name, own in parameters.items()}
    with torch.no_grad():
        parameters["hidden1.weight"].mul_(1.1)
    silent = inside.silent_neurons(run)
    assert silent["hidden1"].nonzero().flatten().tolist() == [14]
    found = inside.look(run, before)
    assert found.twins == 2 / 32
    assert found.dead == (1 + int(silent["hidden2"][12:].sum())) / 8
    assert found.rate_in * inside.WINDOW == pytest.approx(0.5 * 0.1 / 1.1)
    assert found.rate_out == pytest.approx(0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", inside.initializations(inside.TASKS["digits"], "both"))
def test_new_neurons_of_each_initialization_are_looked_at(name: str) -> None:
    task = inside.TASKS["digits-norms"]
    settings = type(task.settings(1))(**{**task.options, "medium": 20, "epochs": 2})
    how = inside.initializations(task, "paper")[name]
    then, end = inside.looks(task, settings, load("digits"), how, "paper", final=False)
    for seen in (then, end):
        assert 0 <= seen.twins <= 1 and 0 <= seen.dead <= 1
        assert seen.fan_in > 0 and seen.fan_out > 0 and seen.rate_in > 0


@pytest.mark.parametrize(
    ("rate", "dead", "loss", "expected"),
    [
        (1e-3, [0.0, 0.02], 0.5, "dead <= 2%: met, loss <= static: met"),
        (1e-3, [0.0, 0.03], 1.5, "dead <= 2%: MISSED, loss <= static: MISSED"),
        (3e-3, [0.1, 0.0], 1.5, "dead <= 10%: met"),
        (1e-2, [1.0, 1.0], 1.5, ""),
    ],
)
def test_every_layer_must_meet_the_limit(rate: float, dead: list[float], loss: float, expected: str) -> None:
    static = newborn.Fate([0.0, 0.0], loss=1.0, accuracy=1.0)
    assert newborn.verdict(rate, newborn.Fate(dead, loss, accuracy=1.0), static) == expected


def test_missing_data_is_skipped_with_a_message(tmp_path: Path) -> None:
    assert newborn.found("mnist", tmp_path) == f"mnist is skipped: it is not in {tmp_path}"


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        "overhead --rounds 3 --need 22",
        "selection",
        "loop --rounds 10",
        "newborn --seeds 1 --rates 3e-3 --data .",
        "engine --rounds 1 --runs 20 --directories 50",
    ],
)
def test_benchmarks_print_their_figures(name: str) -> None:
    command = [sys.executable, "-W", "ignore", "-m", f"benchmarks.{name.split()[0]}", *name.split()[1:], "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: dict[str, Any] = json.loads(done.stdout)
    if name == "selection":
        assert figures["same_picked"]
        assert figures["times_faster"] > 100
        assert all(set(ratios) == set(VGG11) for ratios in figures["vgg11"].values())
    elif name.startswith("loop"):
        assert all(0.5 < case["steps"] < 2 for case in figures.values())
    elif name.startswith("newborn"):
        assert set(figures) == {"digits"}
        assert set(figures["digits"]["0.003"]) == set(newborn.WAYS)
    elif name.startswith("engine"):
        assert figures["overhead"] < 5
        assert list(figures["driver MB"]) == ["10", "20"] and figures["growth MB"] < 10
        assert all(0 < milliseconds < 1000 for milliseconds in figures["milliseconds"].values())
    else:
        assert set(figures["VGG-11 / 4, Xavier"]) == set(overhead.STRATEGIES)
        assert set(figures["ages"]) == set(overhead.AGES_LIMITS)
        assert set(figures["need"]) == set(overhead.NEED_LIMITS)


@pytest.mark.parametrize("way", compiling.WAYS)
def test_growth_in_compiled_models_takes_no_more_than_a_graph(way: str) -> None:
    every_step = compiling.measure(way, *compiling.CASES["growth at each of 14 steps"], backend="eager")
    assert (every_step["graphs"], every_step["growths"], every_step["compiled"]) == (0, 14, 0)
    some_steps = compiling.measure(way, *compiling.CASES["growth at 3 of 48 steps"], backend="eager")
    assert (some_steps["growths"], some_steps["compiled"]) == (3, 9)
    assert some_steps["graphs"] == {"eager": 0, "model.compile()": 4}.get(way, 3)


@pytest.mark.parametrize("way", list(decisions.WAYS))
def test_decisions_of_need_are_compared_on_digits(way: str) -> None:
    size = decisions.final_size(decisions.WAYS[way], rate=1e-2, seed=1, epochs=1)
    assert len(size.widths) == 2 and min(size.widths) > 4
    assert size.parameters == 65 * size.widths[0] + (size.widths[0] + 1) * size.widths[1] + 10 * (size.widths[1] + 1)


def test_sizes_are_compared_on_a_logarithmic_scale() -> None:
    half, double = ([decisions.Size((4, 8), factor * n) for n in (100, 400)] for factor in (1, 4))
    found = decisions.summary(double, half)
    assert (found["parameters"], found["ratio"]) == (800, pytest.approx(4))
    assert found["deviation"] == pytest.approx(0.9803, abs=1e-3)  # of ln 100 and ln 400
    assert found["error"] == pytest.approx(found["deviation"])
