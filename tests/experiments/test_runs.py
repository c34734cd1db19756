"""Runs: what settings mean, what is recorded, and that an interrupted run ends like an uninterrupted one."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from filelock import FileLock

import neurogenesis as ng
from neurogenesis.experiments.building import build_data, build_network, build_strategy, initial_widths, widths_of
from neurogenesis.experiments.data import Data
from neurogenesis.experiments.errors import UsageError
from neurogenesis.experiments.models import mlp
from neurogenesis.experiments.parsing import to_json
from neurogenesis.experiments.presets import PRESETS, default_gamma, settings_from
from neurogenesis.experiments.progress import Display
from neurogenesis.experiments.record import Environment, Epoch, Result, Step
from neurogenesis.experiments.run import run
from neurogenesis.experiments.settings import Convolutional, Dense, Settings
from neurogenesis.experiments.signals import Interrupted
from neurogenesis.experiments.studies import STUDIES
from neurogenesis.experiments.training import accuracy_and_loss, sample_order
from tests.real_data import ROOT, needs
from tests.runs import assert_same_run, lines, records, tiny

OLD_RUN = Path(__file__).parents[1] / "data" / "run"  # written by an earlier version, stopped after an epoch
GROWING = [name for name in ng.strategies.STRATEGIES if name != "static"]

# --- settings -----------------------------------------------------------------------------------------------

PAPER = {  # learning rate, batch, epochs, widths, initial, medium, maximum, buffer, decay
    "generated": (3e-4, 128, (20 + 4 * 16) * 1, 1, 4, None, 512, 1024, "none"),
    "mnist": (3e-3, 512, 20, 2, 64, 256, 784, 1568, "none"),
    "fashion-mnist": (3e-3, 512, 20, 2, 64, 256, 784, 1568, "none"),
    "vgg11-cifar10": (3e-4, 128, 100, 10, 0.25, 1.0, 2.0, 128, "cosine"),
    "vgg11-cifar100": (3e-4, 128, 100, 10, 0.25, 1.0, 2.0, 128, "cosine"),
    "wrn28-cifar10": (3e-3, 128, 50, 4, 0.25, 1.0, 6.0, 128, "cosine"),
}


@pytest.mark.parametrize("name", PAPER)
def test_presets_are_set_as_in_the_paper(name: str) -> None:
    settings: Any = PRESETS[name]()
    rate, batch, epochs, widths, initial, medium, maximum, buffer, decay = PAPER[name]
    assert (settings.learning_rate, settings.batch, settings.epochs) == (rate, batch, epochs)
    assert (settings.initial, settings.maximum, settings.buffer) == (initial, maximum, buffer)
    assert medium in (None, settings.medium)
    assert (settings.decay, settings.every, settings.scale, settings.gamma) == (decay, None, 0.5, None)
    assert len(widths_of(settings, 1.0)) == widths
    gamma = build_strategy(replace(settings, strategy="north-select"), 10).trigger
    assert gamma == ng.triggers.Activation()  # 0.97, and 0.9 with convolutions


@pytest.mark.parametrize(("features", "hidden"), [(1, 1), (8, 2), (32, 1)])
def test_generated_data_is_trained_on_longer_the_more_features_and_layers(features: int, hidden: int) -> None:
    made: Any = PRESETS["generated"]
    assert made(features=features, hidden=hidden).epochs == (20 + 4 * features) * hidden
    assert made(features=features, hidden=hidden, epochs=3).epochs == 3
    labels = {made(features=features, hidden=hidden, epochs=epochs).label for epochs in (None, 3, 84)}
    assert len(labels) == (2 if made(features=features, hidden=hidden).epochs == 84 else 3)


@pytest.mark.parametrize("name", PRESETS)
def test_settings_come_back_from_their_record(name: str) -> None:
    settings = PRESETS[name](seed=3, gamma=0.5)
    assert settings_from(json.loads(json.dumps(settings.record()))) == settings


@pytest.mark.parametrize("study", STUDIES)
def test_runs_of_a_study_have_unique_names(study: str) -> None:
    runs = list(STUDIES[study].runs())
    assert len({STUDIES[study].name(settings) for settings in runs}) == len(runs)
    assert len(runs) == len(set(map(str, runs)))
    for settings in runs[: len(runs) // STUDIES[study].seeds]:
        build_strategy(settings, 10)  # none has an option that does nothing


@pytest.mark.parametrize("size", ["small", "medium", "big"])
@pytest.mark.parametrize("name", ["mnist", "vgg11-cifar10-small", "wrn28-cifar10-small"])
def test_static_networks_have_the_size_of_their_name(name: str, size: str) -> None:
    settings = PRESETS[name](strategy=size)
    shape = (784,) if isinstance(settings, Dense) else (3, 32, 32)
    x, y = torch.rand(2, *shape), torch.tensor([0, 1])
    model = build_network(settings, Data((x, y), (x, y), 10))
    named = dict(model.named_modules())
    for width, expected in widths_of(settings, settings.sizes[size]).items():
        assert named[width].weight.shape[0] == expected  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("mnist", "183-275", [183, 275]),
        ("mnist", "48", [48, 48]),
        ("vgg11-cifar10-small", "0.0625", [4, 8, 16, 16, 32, 32, 32, 32, 256, 256]),
        ("vgg11-cifar10-small", "3-4-5-6-7-8-9-10-11-12", range(3, 13)),
        ("wrn28-cifar10-small", "0.5", [8, 8, 16, 32]),
        ("wrn28-cifar10-small", "3-4-5-6", [3, 4, 5, 6]),
    ],
)
def test_a_static_network_can_have_any_shape(name: str, shape: str, expected: Sequence[int]) -> None:
    settings = PRESETS[name](strategy="static", shape=shape)
    x = torch.rand(2, *((784,) if isinstance(settings, Dense) else (3, 32, 32)))
    model = build_network(settings, Data((x, torch.tensor([0, 1])), (x, torch.tensor([0, 1])), 10))
    named: dict[str, Any] = dict(model.named_modules())
    assert [named[width].weight.shape[0] for width in widths_of(settings, 1.0)] == list(expected)
    assert list(initial_widths(settings).values()) == list(expected)
    assert model(x).shape == (2, 10)


def test_a_shape_of_equal_sizes_is_trained_like_the_network_of_that_size(tmp_path: Path) -> None:
    sizes = [run(tiny(strategy="small"), tmp_path / "small")]
    sizes += [run(tiny(strategy="static", shape=shape), tmp_path / shape) for shape in ("4", "4-4")]
    assert len({(result.accuracy, result.loss, result.parameters) for result in sizes}) == 1


def test_settings_without_a_shape_are_recorded_as_before_there_were_shapes() -> None:
    assert not {"shape", "shape_of", "max_parameters", "max_flops"} & tiny().record().keys()
    shaped = tiny(strategy="static", shape="8-4", shape_of="north-random")
    assert settings_from(shaped.record()) == shaped


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strategy": "small", "max_flops": 1000}, "--max-flops has no effect on small"),
        ({"max_flops": 600}, "max_flops=600, but a forward pass of one sample already takes 624 operations"),
        ({"max_parameters": 300}, "max_parameters=300, but the model already has 330 parameters"),
        ({"strategy": "nroth-select"}, "Did you mean 'north-select'"),
        ({"strategy": "gradmax", "gamma": 0.9}, "--gamma has no effect on gradmax"),
        ({"strategy": "small", "metric": "orthogonality"}, "--metric has no effect on small"),
        ({"strategy": "north-random", "least": True}, "--least has no effect on north-random"),
        ({"strategy": "north-weight", "buffer": 100}, "--buffer has no effect on north-weight"),
        ({"strategy": "medium", "every": 2}, "--every has no effect on medium: remove"),
        ({"schedule": "linear", "every": 2}, r"--every has no effect on need \(linear\): remove"),
        ({"strategy": "big", "schedule": "linear"}, "do not grow"),
        ({"batch": 0}, "--batch: expected a positive number"),
        ({"learning_rate": -1.0}, "--learning-rate: expected a positive number"),
        ({"holdout": 1.0}, "--holdout"),
        ({"initial": 40}, "--initial, --medium and --maximum"),
        ({"hidden": 0}, "--hidden: expected a positive number"),
        ({"gamma": float("inf")}, "--gamma: expected a positive number"),
        ({"scale": float("nan"), "strategy": "gradmax"}, "--scale: expected a positive number"),
        ({"strategy": "static"}, "--strategy static: give its sizes with --shape"),
        ({"strategy": "static", "shape_of": "north-random"}, "--shape-of north-random: give the sizes with --shape"),
        (
            {"strategy": "static", "shape": "8-8-8"},
            "--shape 8-8-8: expected one size, or 2 for hidden1, hidden2, not 3",
        ),
        ({"strategy": "static", "shape": "8-0"}, "--shape: expected positive sizes such as 128 or 183-275, not '8-0'"),
        ({"strategy": "static", "shape": "8-x"}, "--shape: expected positive sizes"),
        ({"strategy": "static", "shape": "0"}, "--shape: expected positive sizes"),
        ({"strategy": "static", "shape": ""}, "--shape: expected positive sizes"),
        ({"strategy": "static", "shape": "0.5"}, "--shape: expected a number of neurons, not 0.5"),
        ({"strategy": "static", "shape": "8", "schedule": "linear"}, "widths of static networks do not grow"),
        ({"strategy": "north-random", "shape": "8-8"}, "--shape has no effect on north-random"),
        ({"strategy": "small", "shape_of": "gradmax"}, "--shape-of has no effect on small"),
        ({"holdout": 1e-5}, "cannot hold out 0 of 1348 training samples"),
    ],
)
def test_bad_settings_are_named_and_nothing_is_written(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        run(tiny(**changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("name", "limit"), [("max_flops", 2000), ("max_parameters", 1000)])
def test_growth_stays_within_the_limits_of_the_settings(name: str, limit: int, tmp_path: Path) -> None:
    settings = tiny(strategy="north-random", **{name: limit})
    result = run(settings, tmp_path / "run")
    used = {"max_flops": result.flops, "max_parameters": result.parameters}[name]
    assert used is not None and 0.9 * limit < used <= limit
    assert settings_from(settings.record()) == settings and f"{name.replace('_', '-')}-{limit}" in settings.label


def test_settings_reach_trigger_and_initialization() -> None:
    found = build_strategy(tiny(strategy="north-select", gamma=0.8, metric="orthogonality", least=True), 10)
    assert found.trigger == ng.triggers.Activation(gamma=0.8, metric="orthogonality")
    assert found.initialization == ng.initializations.Select(metric="orthogonality", least=True)
    assert build_strategy(tiny(strategy="gradmax", scale=1.0), 10).trigger == ng.triggers.Gradient(scale=1.0)
    assert build_strategy(tiny(strategy="firefly", margin=False), 10).initialization == ng.initializations.Firefly(
        apart=0.0
    )
    assert build_strategy(tiny(strategy="gradmax", margin=False), 10).initialization == ng.initializations.GradMax(
        False
    )
    scheduled = build_strategy(tiny(strategy="nest", schedule="batched"), 10)
    assert scheduled.trigger == ng.triggers.Batched(10, {"hidden1": 32, "hidden2": 32})
    assert scheduled.initialization == ng.initializations.NeST()


@pytest.mark.parametrize("strategy", GROWING)
def test_defaults_are_those_of_the_strategies(strategy: str) -> None:
    assert build_strategy(PRESETS["mnist"](strategy=strategy), 10) == ng.strategies.strategy(strategy)


@pytest.mark.parametrize("strategy", ["north-random", "north-integrated", "north-weight"])
def test_default_gammas_are_those_of_the_triggers(strategy: str) -> None:
    trigger: Any = ng.strategies.strategy(strategy).trigger
    for convolutional in (False, True):
        layer: Any = SimpleNamespace(convolutional_network=convolutional)
        used = trigger.gamma if strategy == "north-weight" else trigger._gamma(layer)
        assert used == default_gamma(strategy, convolutional)


# --- records ------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*fewer|.*kernel")
@pytest.mark.parametrize("strategy", [*GROWING, "small", "medium", "big"])
def test_a_run_records_every_step_and_how_it_ended(strategy: str, tmp_path: Path) -> None:
    result = run(tiny(strategy=strategy), tmp_path)
    assert json.loads((tmp_path / "result.json").read_text()) == to_json(result)
    steps, epochs = lines(tmp_path / "steps.jsonl"), lines(tmp_path / "epochs.jsonl")
    assert [line["step"] for line in steps] == list(range(1, 1 + 3 * 6))
    assert [line["epoch"] for line in epochs] == [1, 2, 3]
    assert epochs[-1]["accuracy"] == result.accuracy > 0.1
    assert steps[-1]["widths"] == result.widths
    for before, after in pairwise(steps):
        for width, size in before["widths"].items():
            assert after["widths"][width] >= size
    sizes = [64, *result.widths.values(), 10]
    assert result.parameters == sum((fan_in + 1) * fan_out for fan_in, fan_out in pairwise(sizes))
    assert abs(sum(line["seconds"] for line in steps) - result.train_seconds) < 1e-3
    growing = strategy in GROWING
    assert any(line["threshold"] for line in steps) == growing
    environment = json.loads((tmp_path / "environment.json").read_text())
    assert environment["torch"] == torch.__version__ and environment["threads"] == 1


def test_a_record_has_exactly_the_declared_fields(tmp_path: Path) -> None:
    run(tiny(strategy="north-random"), tmp_path)

    def names(kind: Any) -> list[str]:
        return [field.name for field in fields(kind)]

    assert list(json.loads((tmp_path / "result.json").read_text())) == names(Result)
    assert [*json.loads((tmp_path / "environment.json").read_text()), "earlier"] == names(Environment)
    assert {tuple(line) for line in lines(tmp_path / "steps.jsonl")} == {tuple(names(Step))}
    assert {tuple(line) for line in lines(tmp_path / "epochs.jsonl")} == {tuple(names(Epoch))}


@pytest.mark.parametrize("name", ["wine", "random"])
def test_networks_on_tables_are_tested_by_their_loss_and_end_when_the_lowest_is_long_ago(
    name: str, tmp_path: Path
) -> None:
    settings: Any = PRESETS["tabular"](table=name, strategy="static", shape="64", batch=2500, learning_rate=0.02)
    result = run(settings, tmp_path)
    losses = [line["test_loss"] for line in lines(tmp_path / "epochs.jsonl")]
    assert (result.lowest_test_loss, result.test_loss) == (min(losses), losses[-1])
    lowest = 20 * (1 + losses.index(min(losses)))
    assert result.steps == 20 * len(losses) < 3000  # one step per epoch
    assert result.steps - 20 <= 300 + 2.5 * lowest < result.steps
    data = build_data(settings, None)
    model = build_network(settings, data)
    model.load_state_dict(torch.load(tmp_path / "checkpoint.pt", weights_only=True)["model"])
    outputs, (_, y) = model(data.test[0]).detach(), data.test
    if name == "random":
        expected = torch.nn.functional.mse_loss(outputs, y)
        accuracy = 1 - float(expected / (y - y.mean()).square().mean())
    else:
        expected = torch.nn.functional.cross_entropy(outputs, y)
        accuracy = float((outputs.argmax(1) == y).float().mean())
    assert result.test_loss == pytest.approx(float(expected), rel=1e-5)
    assert result.accuracy == pytest.approx(accuracy, rel=1e-5)


@pytest.mark.parametrize("batch", [32, 100, 309, 2500])
def test_tables_are_trained_on_for_about_3000_steps_at_most(batch: int) -> None:
    settings: Any = PRESETS["tabular"](batch=batch)
    assert settings.epochs * -(-309 // batch) == pytest.approx(3000, rel=0.01)
    assert settings.label == ("need-seed1" if batch == 32 else f"need-batch-{batch}-seed1")


def test_the_loss_recorded_is_that_of_training(tmp_path: Path) -> None:
    settings = tiny(strategy="small", epochs=1)
    run(settings, tmp_path)
    data = build_data(settings, None)
    model = build_network(settings, data)
    batch = sample_order(len(data.train[0]), settings.seed, 1)[: settings.batch]
    first = torch.nn.functional.cross_entropy(model(data.train[0][batch]), data.train[1][batch])
    assert lines(tmp_path / "steps.jsonl")[0]["loss"] == pytest.approx(first.item(), rel=1e-6)


@pytest.mark.parametrize("schedule", ["linear", "batched"])
def test_schedules_end_at_the_medium_size(schedule: Any, tmp_path: Path) -> None:
    result = run(tiny(strategy="north-random", schedule=schedule, epochs=4), tmp_path)
    assert set(result.widths.values()) == {32}
    grown = [line["step"] for line in lines(tmp_path / "steps.jsonl") if line["initialization_seconds"]]
    assert max(grown) <= 18  # of 24: the first three quarters


def test_held_out_samples_are_not_trained_on(tmp_path: Path) -> None:
    settings = tiny(holdout=0.5)
    whole, part = build_data(tiny(), None), build_data(settings, None)
    assert len(part.train[0]) == len(part.test[0]) == len(whole.train[0]) // 2
    run(settings, tmp_path)
    assert len(lines(tmp_path / "steps.jsonl")) == 3 * 3


# --- interrupted and resumed ----------------------------------------------------------------------------------

CASES = {
    **{name: tiny(strategy=name) for name in GROWING},
    "big": tiny(strategy="big"),
    "linear": tiny(strategy="north-select", schedule="linear"),
    "linear, without ages": tiny(strategy="north-select", schedule="linear", ages=False),
    "cosine": tiny(strategy="north-random", decay="cosine"),
    "generated": tiny("generated", features=4, hidden=2, batch=900, maximum=64),
    "tabular": tiny("tabular", table="wine", epochs=11, batch=62),  # tested after 20 steps and at the end
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Settings], Path]:
    """The directory of an uninterrupted run, which is done once; it is not to be changed."""

    @cache
    def directory(settings: Settings) -> Path:
        out = tmp_path_factory.mktemp("finished") / "run"
        run(settings, out)
        return out

    return directory


@pytest.fixture
def failed(failed_once: Path, tmp_path: Path) -> Path:
    """A run that failed in its second epoch."""
    return shutil.copytree(failed_once, tmp_path / "failed")


@pytest.fixture(scope="module")
def failed_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("failed") / "run"
    with pytest.raises(RuntimeError, match="a planned failure"):
        run(tiny(), out, displays=[Stop(9, fail)])
    return out


class Stop(Display):
    """Calls a function at a step."""

    def __init__(self, step: int, action: Any):
        self.step, self.action = step, action

    def on_step(self, step: Step) -> None:
        if step.step == self.step:
            self.action()


def fail() -> None:
    raise RuntimeError("a planned failure")


@pytest.mark.filterwarnings("ignore:.*fewer|.*kernel")
@pytest.mark.parametrize("case", CASES)
def test_a_failed_run_resumes_from_its_last_epoch_and_ends_the_same(
    case: str, finished: Callable[[Settings], Path], tmp_path: Path
) -> None:
    settings = CASES[case]
    with pytest.raises(RuntimeError, match="a planned failure"):
        run(settings, tmp_path / "cut", displays=[Stop(9, fail)])
    assert "a planned failure" in (tmp_path / "cut" / "failure.txt").read_text()
    run(settings, tmp_path / "cut")
    assert_same_run(finished(settings), tmp_path / "cut")
    assert not (tmp_path / "cut" / "failure.txt").exists()


def test_a_run_of_an_earlier_version_is_resumed(tmp_path: Path) -> None:
    shutil.copytree(OLD_RUN, tmp_path / "run")
    with pytest.warns(UserWarning, match="resumes elsewhere"):
        result = run(tiny(strategy="north-random", maximum=16, medium=8, buffer=64), tmp_path / "run")
    steps, epochs = lines(tmp_path / "run" / "steps.jsonl"), lines(tmp_path / "run" / "epochs.jsonl")
    assert steps[:6] == lines(OLD_RUN / "steps.jsonl")[:6]
    assert epochs[:1] == lines(OLD_RUN / "epochs.jsonl")[:1]
    assert [line["step"] for line in steps] == list(range(1, 19)) and len(epochs) == 3
    assert all(size >= steps[5]["widths"][width] for width, size in steps[6]["widths"].items())
    assert result.accuracy > epochs[0]["accuracy"]
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["earlier"] == [json.loads((OLD_RUN / "environment.json").read_text())]


@pytest.mark.parametrize("ages", [True, False])
def test_ages_are_kept_with_a_run_unless_they_are_switched_off(ages: bool, tmp_path: Path) -> None:
    run(tiny(strategy="north-random", schedule="batched", ages=ages), tmp_path)
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["optimizer"]["state"]
    assert any("births" in each for each in state.values()) is ages


@pytest.mark.parametrize("step", [1, 6, 8, 18])  # the last two of an epoch are at its end
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_is_saved_resumes_and_ends_the_same(
    step: int, number: int, finished: Callable[[Settings], Path], tmp_path: Path
) -> None:
    def interrupt() -> None:
        os.kill(os.getpid(), number)

    if step == 18:  # the last one: nothing is left to interrupt
        run(tiny(), tmp_path / "cut", displays=[Stop(step, interrupt)])
    else:
        with pytest.raises(Interrupted, match="stopped"):
            run(tiny(), tmp_path / "cut", displays=[Stop(step, interrupt)])
        assert len(lines(tmp_path / "cut" / "steps.jsonl")) == step
        run(tiny(), tmp_path / "cut")
    assert_same_run(finished(tiny()), tmp_path / "cut")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("step", [7, 8])  # within an epoch, and at the end of one that is not tested
def test_a_run_that_is_tested_after_several_epochs_resumes_and_ends_the_same(
    step: int, finished: Callable[[Settings], Path], tmp_path: Path
) -> None:
    settings = tiny("tabular", table="wine", epochs=15, batch=62)
    with pytest.raises(Interrupted, match="stopped"):
        run(settings, tmp_path / "cut", displays=[Stop(step, lambda: os.kill(os.getpid(), signal.SIGINT))])
    assert len(lines(tmp_path / "cut" / "steps.jsonl")) == step
    run(settings, tmp_path / "cut")
    assert_same_run(finished(settings), tmp_path / "cut")
    tested = lines(tmp_path / "cut" / "epochs.jsonl")
    assert [(line["epoch"], line["step"]) for line in tested] == [(10, 20), (15, 30)]
    losses = [line["loss"] for line in lines(tmp_path / "cut" / "steps.jsonl")]
    assert tested[0]["loss"] == pytest.approx(sum(losses[:20]) / 20, rel=1e-4)  # of batches of the same size
    assert tested[1]["loss"] == pytest.approx(sum(losses[20:]) / 10, rel=1e-4)


def test_a_resumed_run_ends_as_early_as_one_that_was_not_interrupted(
    finished: Callable[[Settings], Path], tmp_path: Path
) -> None:
    settings: Any = PRESETS["tabular"](table="wine", strategy="static", shape="32", batch=2500, learning_rate=0.02)
    steps = json.loads((finished(settings) / "result.json").read_text())["steps"]
    assert 300 < steps < 1000
    with pytest.raises(Interrupted, match="stopped"):
        run(settings, tmp_path / "cut", displays=[Stop(290, lambda: os.kill(os.getpid(), signal.SIGINT))])
    run(settings, tmp_path / "cut")
    assert_same_run(finished(settings), tmp_path / "cut")


@pytest.mark.parametrize("how", ["missing", "short"])
@pytest.mark.parametrize("name", ["steps.jsonl", "epochs.jsonl"])
def test_a_run_whose_record_has_lost_lines_is_not_resumed(name: str, how: str, failed: Path) -> None:
    if how == "missing":
        (failed / name).unlink()
    else:
        os.truncate(failed / name, 10)
    place = re.escape(str(failed))
    with pytest.raises(UsageError, match=rf"{name} is shorter than it was .* delete {place} and run again"):
        run(tiny(), failed)


@pytest.mark.parametrize("left", ["settings.json.part", "failure.txt", "log.txt", "lock"])
def test_a_directory_without_settings_can_be_used(left: str, tmp_path: Path) -> None:
    (tmp_path / left).write_text("")
    run(tiny(strategy="small"), tmp_path)
    assert not (tmp_path / "failure.txt").exists()


@pytest.mark.parametrize("torn", ["lines", "checkpoint"])
def test_what_a_kill_leaves_incomplete_is_repeated(
    torn: str, failed: Path, finished: Callable[[Settings], Path]
) -> None:
    if torn == "lines":  # killed after the lines of an epoch were written, or some of them
        with (failed / "steps.jsonl").open("a") as file:
            file.write('{"step":7,"loss":1}\n{"step":8,"lo')
    else:
        (failed / "checkpoint.pt.part").write_bytes(b"half")
    run(tiny(), failed)
    assert_same_run(finished(tiny()), failed)
    assert not list(failed.glob("*.part"))


def test_a_finished_run_is_not_repeated(tmp_path: Path) -> None:
    settings = tiny(strategy="small")
    result = run(settings, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir() if path.name != "lock"}
    with FileLock(tmp_path / "lock"):  # nothing is written, which a read-only place would not allow
        assert run(settings, tmp_path) == result
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir() if path.name != "lock"} == before


def test_the_same_seed_gives_the_same_run_and_another_one_another(
    finished: Callable[[Settings], Path], tmp_path: Path
) -> None:
    for name, seed in (("same", 1), ("other", 2)):
        run(tiny(seed=seed), tmp_path / name)
    assert_same_run(finished(tiny(seed=1)), tmp_path / "same")
    assert records(tmp_path / "same")["steps.jsonl"] != records(tmp_path / "other")["steps.jsonl"]


def test_every_epoch_and_every_seed_has_its_own_order() -> None:
    orders = [tuple(sample_order(100, seed, epoch).tolist()) for seed in (-1, 0, 1, 2, 2**70) for epoch in (1, 2, 3)]
    assert len(set(orders)) == len(orders)
    assert all(sorted(each) == list(range(100)) for each in orders)
    assert tuple(sample_order(100, 1, 2).tolist()) in orders


def test_a_change_of_environment_is_recorded(tmp_path: Path) -> None:
    settings = tiny(strategy="small")
    with pytest.raises(RuntimeError, match="a planned failure"):
        run(settings, tmp_path, threads=2, displays=[Stop(9, fail)])
    with pytest.warns(UserWarning, match="threads 2 before, 1 now"):
        run(settings, tmp_path, threads=1)
    environment = json.loads((tmp_path / "environment.json").read_text())
    assert environment["threads"] == 1 and environment["earlier"][0]["threads"] == 2


def test_the_number_of_threads_is_restored(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    run(tiny(strategy="small"), tmp_path, threads=before + 1)
    assert torch.get_num_threads() == before


def test_the_checkpoint_holds_the_network_that_was_tested(tmp_path: Path) -> None:
    settings = tiny(strategy="north-random")
    result = run(settings, tmp_path)
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    data = build_data(settings, None)
    model = mlp(64, *result.widths.values(), 10)
    model.load_state_dict(state["model"])
    assert accuracy_and_loss(model, data.test)[0] == result.accuracy


# --- directories that cannot be used ------------------------------------------------------------------------


def test_a_directory_with_other_settings_is_left_alone(finished: Callable[[Settings], Path]) -> None:
    directory = finished(tiny())
    before = records(directory)
    with pytest.raises(UsageError, match=r"other settings \(strategy need there, north-pre here, buffer"):
        run(tiny(strategy="north-pre"), directory)
    assert records(directory) == before


def test_a_directory_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(UsageError, match=r"not a run \(it has thesis.tex\)"):
        run(tiny(), tmp_path)
    assert not (tmp_path / "settings.json").exists()


def test_a_result_without_settings_is_not_a_run(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(UsageError, match=r"is not a run \(it has result.json and no settings.json\)"):
        run(tiny(), tmp_path)


def test_a_damaged_result_is_named(tmp_path: Path) -> None:
    settings = tiny(strategy="small")
    run(settings, tmp_path)
    (tmp_path / "result.json").write_text('{"accuracy": 0.9}')
    with pytest.raises(UsageError, match=r"result.json is not the result of a run .* and run again"):
        run(settings, tmp_path)


def test_two_processes_do_not_write_the_same_run(tmp_path: Path) -> None:
    with FileLock(tmp_path / "lock"), pytest.raises(UsageError, match="another process"):
        run(tiny(), tmp_path)


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=re.escape(f"cannot write to {tmp_path / 'file' / 'run'}: Not a directory")):
        run(tiny(), tmp_path / "file" / "run")


@pytest.mark.parametrize(
    ("name", "content"), [("settings.json", b"{damaged"), ("settings.json", b"[]"), ("checkpoint.pt", b"{damaged")]
)
def test_a_damaged_run_is_named(name: str, content: bytes, failed: Path) -> None:
    (failed / name).write_bytes(content)
    place = re.escape(str(failed))
    with pytest.raises(UsageError, match=rf"{place}/{name}.*delete {place} and run again"):
        run(tiny(), failed)


def test_divergence_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the loss is .* training diverged"):
        run(tiny(strategy="big", learning_rate=1e12, epochs=20), tmp_path)
    (why,) = (tmp_path / "failure.txt").read_text().splitlines()
    assert why.startswith("the loss is") and "diverged" in why


# --- real data ----------------------------------------------------------------------------------------------


@needs("mnist")
def test_mnist_is_learned_in_an_epoch(tmp_path: Path) -> None:
    result = run(PRESETS["mnist"](epochs=1, strategy="north-random"), tmp_path, root=ROOT)
    assert result.steps == 118
    assert result.accuracy > 0.9


@needs("cifar10")
def test_a_strategy_that_does_not_support_the_network_is_rejected_before_anything_is_written(tmp_path: Path) -> None:
    made: Any = PRESETS["vgg11-cifar10-small"]
    with pytest.raises(UsageError, match="--strategy north-pre supports dense layers only"):
        run(made(strategy="north-pre", images=64), tmp_path / "run", root=ROOT)
    assert not (tmp_path / "run").exists()


@needs("cifar10")
@pytest.mark.parametrize("preset", ["vgg11-cifar10-small", "wrn28-cifar10-small"])
@pytest.mark.filterwarnings("ignore:widths with more neurons than samples")
def test_convolutional_networks_grow_on_cifar_and_can_be_resumed(preset: str, tmp_path: Path) -> None:
    made: Any = PRESETS[preset]
    settings = made(epochs=2, images=64, test_images=16, batch=32, buffer=32, strategy="north-random", gamma=0.5)
    assert isinstance(settings, Convolutional)
    result = run(settings, tmp_path / "whole", root=ROOT, threads=1)
    assert set(result.widths) == set(result.standard_widths)
    assert any(size > result.initial_widths[width] for width, size in result.widths.items())
    with pytest.raises(RuntimeError, match="a planned failure"):
        run(settings, tmp_path / "cut", root=ROOT, threads=1, displays=[Stop(3, fail)])
    run(settings, tmp_path / "cut", root=ROOT, threads=1)
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_a_run_drops_neurons_that_have_died(tmp_path: Path) -> None:
    settings = tiny(strategy="north-random", prune=True, learning_rate=0.1, epochs=16, initial=16)
    run(settings, tmp_path / "run", displays=[Display()])
    sizes = [line["widths"]["hidden1"] for line in lines(tmp_path / "run" / "steps.jsonl")]
    assert any(after < before for before, after in pairwise(sizes))
