"""Sweeps: all runs of a study are done, even if some fail or the sweep is interrupted."""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock, Timeout

from neurogenesis.cli import main
from neurogenesis.experiments.building import initial_widths, widths_of
from neurogenesis.experiments.engines.pool import pool
from neurogenesis.experiments.engines.processes import failure_reason
from neurogenesis.experiments.errors import UsageError
from neurogenesis.experiments.estimates import estimate, plan
from neurogenesis.experiments.presets import PRESETS
from neurogenesis.experiments.run import run
from neurogenesis.experiments.settings import Settings
from neurogenesis.experiments.studies import STUDIES, Study, select_runs
from neurogenesis.experiments.sweep import record_study, sweep
from neurogenesis.report import read
from tests.runs import assert_same_run, by_name, command, lines, tiny

STUDY = ("sweep", "digits", "--seeds", "1", "--epochs", "15", "--only", "north-[rwi]*")
LABELS = ["north-random-epochs-15-seed1", "north-weight-epochs-15-seed1", "north-integrated-epochs-15-seed1"]


def quick(**changes: Any) -> Settings:
    """Settings of a run whose process has little to import."""
    return tiny("generated", features=4, hidden=2, **changes)


def wait_until(true: Any, seconds: float = 600) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.02)


def free(run: Path) -> bool:
    """Whether no process is writing to a run."""
    try:
        with FileLock(run / "lock", timeout=0):
            return True
    except Timeout:
        return False


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out, shown = tmp_path_factory.mktemp("uninterrupted"), io.StringIO()
    with contextlib.redirect_stdout(shown):
        assert main([*STUDY, "--out", str(out)]) == 0
    assert [line.split()[0] for line in shown.getvalue().splitlines()] == ["[1/3]", "[2/3]", "[3/3]", "all"]
    return out


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
def test_an_interrupted_sweep_that_is_resumed_equals_an_uninterrupted_one(
    number: int, uninterrupted: Path, tmp_path: Path
) -> None:
    call = [sys.executable, "-m", "neurogenesis", *STUDY, "--out", str(tmp_path)]
    process = subprocess.Popen(call, stderr=subprocess.PIPE, text=True, start_new_session=True)
    begun = tmp_path / LABELS[0] / "epochs.jsonl"
    wait_until(lambda: begun.exists() and len(lines(begun)) > 2)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)
    _, said = process.communicate()
    wait_until(lambda: all(free(tmp_path / label) for label in LABELS if (tmp_path / label).exists()))
    finished = [label for label in LABELS if (tmp_path / label / "result.json").exists()]
    assert len(finished) < len(LABELS)
    if number != signal.SIGKILL:
        assert process.returncode == 130
        assert "The same command resumes it." in said
    times = {label: (tmp_path / label / "result.json").stat().st_mtime_ns for label in finished}
    assert main([*STUDY, "--out", str(tmp_path)]) == 0
    for label in LABELS:
        assert_same_run(uninterrupted / label, tmp_path / label)
    assert {label: (tmp_path / label / "result.json").stat().st_mtime_ns for label in finished} == times


def test_a_study_lists_its_runs(uninterrupted: Path) -> None:
    study = json.loads((uninterrupted / "study.json").read_text())
    assert (study["study"], study["title"]) == ("digits", STUDIES["digits"].title)
    assert sorted(study["runs"]) == sorted(LABELS)
    for label, record in study["runs"].items():
        assert json.loads((uninterrupted / label / "settings.json").read_text()) == record


def test_failed_runs_do_not_stop_the_others_and_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sweep", "digits", "--seeds", "1", "--epochs", "1", "--only", "north-[rw]*", "--out", str(tmp_path)]
    damaged, fine = tmp_path / "north-random-epochs-1-seed1", tmp_path / "north-weight-epochs-1-seed1"
    other = tiny(epochs=1, strategy="small")
    run(other, damaged)  # finished, and not what the study means by that name
    assert main([*words, "--quiet"]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first == "1 of 2 runs failed:"
    assert second.startswith(f"  {damaged}: {damaged} holds a run with other settings (strategy small there, ")
    assert (fine / "result.json").exists()
    assert json.loads((damaged / "settings.json").read_text()) == other.record()
    shutil.rmtree(damaged)
    assert main([*words, "--quiet"]) == 0


def test_a_run_killed_by_the_system_is_a_failure_too(tmp_path: Path) -> None:
    runs = [quick(epochs=300, strategy="big"), quick(strategy="small")]

    def kill() -> None:
        wait_until(lambda: (tmp_path / runs[0].label / "epochs.jsonl").exists())
        (process,) = multiprocessing.active_children()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)

    with ThreadPoolExecutor() as threads:
        killed = threads.submit(kill)
        progress = sweep(by_name(*runs), tmp_path, pool(1))
    killed.result()
    assert progress.failed == {runs[0].label: "killed by SIGKILL"}
    assert progress.finished == [runs[1].label]
    assert "killed by SIGKILL" in (tmp_path / runs[0].label / "failure.txt").read_text()


def test_a_run_killed_before_it_started_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = quick(strategy="small")
    (tmp_path / settings.label).mkdir()
    assert failure_reason(tmp_path / settings.label, -signal.SIGKILL) == "killed by SIGKILL"
    assert sweep(by_name(settings), tmp_path, pool(1)).failed == {}
    assert not (tmp_path / settings.label / "failure.txt").exists()


def test_a_run_that_cannot_be_read_fails_alone(tmp_path: Path) -> None:
    damaged, fine = quick(strategy="small"), quick(strategy="medium")
    (tmp_path / damaged.label).mkdir()
    (tmp_path / damaged.label / "settings.json").write_text(json.dumps(damaged.record()))
    (tmp_path / damaged.label / "result.json").write_text("{")
    progress = sweep(by_name(damaged, fine), tmp_path, pool(1))
    assert progress.finished == [fine.label]
    assert "result.json is not valid JSON" in progress.failed[damaged.label]


def test_a_run_that_cannot_start_says_why_in_its_directory(tmp_path: Path) -> None:
    settings = quick(strategy="small")
    (tmp_path / settings.label).mkdir()
    (tmp_path / settings.label / "thesis.tex").write_text("mine")
    record_study(tmp_path, "digits", "", by_name(settings))
    sweep(by_name(settings), tmp_path, pool(1))
    assert "is not a run (it has thesis.tex)" in (tmp_path / settings.label / "failure.txt").read_text()


def test_a_run_of_another_process_is_left_alone(tmp_path: Path) -> None:
    settings = quick(strategy="small")
    (tmp_path / settings.label).mkdir()
    with FileLock(tmp_path / settings.label / "lock"):
        progress = sweep(by_name(settings), tmp_path, pool(1))
    assert "another process is writing to" in progress.failed[settings.label]
    assert not (tmp_path / settings.label / "failure.txt").exists()


def test_the_path_of_temporary_files_may_be_long(tmp_path: Path) -> None:
    (tmp_path / ("temporary" * 12)).mkdir()
    places = {**os.environ, "TMPDIR": str(tmp_path / ("temporary" * 12))}
    words = ("sweep", "digits", "--seeds", 1, "--epochs", 1, "--only", "small*", "--out", tmp_path / "runs", "--quiet")
    done = command(*words, env=places)
    assert (done.returncode, done.stderr) == (0, "")


def test_seeds_given_twice_are_run_once() -> None:
    assert len(select_runs("digits", seeds=[1, 2, 1])[1]) == 2 * len(select_runs("digits", seeds=[1])[1])


@pytest.mark.parametrize(("workers", "threads"), [(0, 1), (1, 0), (10_000, 1), (1, 10_000)])
def test_more_threads_than_cores_are_refused(workers: int, threads: int, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--workers"):
        sweep(by_name(tiny()), tmp_path, pool(workers, threads))
    assert not list(tmp_path.iterdir())


def tiny_with_the_same_label() -> Any:
    """Other settings with the same label, as after a change of the preset's defaults."""

    class Changed:
        label = tiny().label

        def record(self) -> dict[str, Any]:
            return {**tiny().record(), "learning_rate": 1.0}

    return Changed()


def test_another_study_is_not_overwritten(tmp_path: Path) -> None:
    record_study(tmp_path, "digits", "", by_name(tiny()))
    record_study(tmp_path, "digits", "", by_name(tiny(seed=2)))
    assert len(json.loads((tmp_path / "study.json").read_text())["runs"]) == 2
    with pytest.raises(UsageError, match="with other settings"):
        record_study(tmp_path, "digits", "", by_name(tiny_with_the_same_label()))
    with pytest.raises(UsageError, match="holds the study digits"):
        record_study(tmp_path, "mnist-lr", "", by_name(tiny()))


def test_parts_of_a_study_can_be_selected() -> None:
    _, runs = select_runs("mnist-lr", seeds=[7], only=["north-select-*"])
    assert [(settings.learning_rate, settings.seed) for settings in runs.values()] == [
        (1e-4, 7), (3e-4, 7), (1e-3, 7), (3e-3, 7), (1e-2, 7)
    ]  # fmt: skip
    with pytest.raises(UsageError, match="Did you mean 'mnist-lr'"):
        select_runs("mnist-lt")
    with pytest.raises(UsageError, match="matches no run"):
        select_runs("mnist-lr", only=["nothing"])


@pytest.mark.parametrize(
    ("study", "pattern", "near"),
    [("digits", "gradmx*", "gradmax-seed1"), ("pays-small", "north-random-seed*", "mnist/north-random-seed1")],
)
def test_every_pattern_must_match_a_run(study: str, pattern: str, near: str) -> None:
    with pytest.raises(UsageError, match=rf"--only '{re.escape(pattern)}' matches no run of {study}; near .*{near}"):
        select_runs(study, only=["*", pattern])


def test_studies_cover_the_figures_of_the_paper() -> None:
    def values(study: Study, name: str) -> set[Any]:
        return {getattr(settings, name) for settings in study.runs()}

    assert values(STUDIES["generated"], "hidden") == {1, 2}
    assert values(STUDIES["mnist-preset"], "schedule") == {"linear", "batched", "dynamic"}
    assert values(STUDIES["mnist-gamma"], "metric") == {"effective_dimension", "orthogonality"}
    assert values(STUDIES["vgg11-cifar10"], "gamma") == {0.9, 0.97, 0.99, None}
    for name in ("mnist-gamma", "mnist-batchsize", "mnist-lr"):
        assert values(STUDIES[name], "holdout") == {0.1}
    for study in STUDIES.values():
        assert values(study, "seed") == set(range(1, study.seeds + 1))


@pytest.mark.filterwarnings("ignore")
def test_a_dry_run_lists_the_runs_and_how_long_they_take(
    uninterrupted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*STUDY, "--out", str(tmp_path), "--dry-run"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [*LABELS, "3"]
    assert not list(tmp_path.iterdir())
    assert main([*STUDY, "--out", str(uninterrupted), "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("finished") == 3 and "nothing to do" in shown


@pytest.mark.filterwarnings("ignore")
def test_estimates_come_from_finished_runs_or_from_steps(uninterrupted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neurogenesis.experiments.estimates.startup_seconds", lambda: 5.0)
    runs = select_runs("digits", seeds=[1, 2], epochs=15, only=["north-random-*"])[1]
    first, second = runs
    result = json.loads((uninterrupted / first / "result.json").read_text())
    seconds = result["train_seconds"] + result["test_seconds"]
    assert estimate(runs, uninterrupted, 1, "cpu") == {second: (seconds + 5.0, seconds + 5.0)}
    timed = estimate(runs, uninterrupted / "nothing", 1, "cpu")
    least, most = (time - 5.0 for time in timed[first])
    assert seconds / 20 < least <= most < seconds * 20
    assert timed[first] == timed[second]
    both = select_runs("digits", seeds=[1], only=["gradmax*", "big*"])[1]
    assert [settings.strategy for settings in both.values()] == ["gradmax", "big"]
    assert "2 of 2 runs to do, 2 at a time" in plan(runs, uninterrupted / "nothing", 2, 1, "cpu")


# --- studies of several presets, and runs of shapes that others grow -----------------------------------------


def grown_and_its_shape(**changes: Any) -> tuple[Settings, Settings]:
    """A run that grows, and the network of its final shape from scratch."""
    grown = PRESETS["generated"](strategy="north-random", epochs=1, batch=256, features=4, hidden=2, **changes)
    return grown, replace(grown, strategy="static", shape_of="north-random")


def shape_in(directory: Path) -> tuple[Any, list[int]]:
    """The shape in a run's settings, and its final sizes."""
    settings, result = (json.loads((directory / name).read_text()) for name in ("settings.json", "result.json"))
    return settings["shape"], list(result["widths"].values())


@pytest.mark.parametrize("workers", [1, 2])
def test_a_grown_shape_is_trained_from_scratch_after_the_run_that_grows_it(workers: int, tmp_path: Path) -> None:
    pairs = [grown_and_its_shape(seed=seed) for seed in (1, 2)]
    runs = by_name(*(shape for _, shape in pairs), *(grown for grown, _ in pairs))
    record_study(tmp_path, "digits", "", runs)
    progress = sweep(runs, tmp_path, pool(workers))
    assert sorted(progress.finished) == sorted(runs)
    for grown, shape in pairs:
        assert progress.finished.index(grown.label) < progress.finished.index(shape.label)
        sizes = list(json.loads((tmp_path / grown.label / "result.json").read_text())["widths"].values())
        assert shape_in(tmp_path / shape.label) == ("-".join(map(str, sizes)), sizes)
    assert sizes != [4, 4]
    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/result.json")}
    shutil.rmtree(tmp_path / pairs[0][1].label)
    record_study(tmp_path, "digits", "", runs)
    assert sorted(sweep(runs, tmp_path, pool(workers)).finished) == sorted(runs)
    changed = [path.parent.name for path, time in times.items() if path.stat().st_mtime_ns != time]
    assert changed == [pairs[0][1].label]


def test_a_shape_is_not_run_if_the_run_that_grows_it_failed(tmp_path: Path) -> None:
    grown, shape = grown_and_its_shape()
    (tmp_path / grown.label).mkdir()
    (tmp_path / grown.label / "thesis.tex").write_text("mine")
    record_study(tmp_path, "digits", "", by_name(grown, shape))
    progress = sweep(by_name(grown, shape), tmp_path, pool(1))
    reason = f"not run: it needs the final shape of {grown.label}, which failed: {progress.failed[grown.label]}"
    assert progress.failed[shape.label] == reason
    assert not progress.finished and not progress.running
    assert {run.path.name: run.failure for run in read([tmp_path]).runs}[shape.label] == reason[:300]
    (tmp_path / grown.label / "thesis.tex").unlink()
    assert not sweep(by_name(grown, shape), tmp_path, pool(1)).failed


def test_a_shape_that_is_selected_alone_needs_a_finished_run(tmp_path: Path) -> None:
    grown, shape = grown_and_its_shape()
    alone = sweep(by_name(shape), tmp_path, pool(1))
    assert alone.failed == {shape.label: f"not run: it needs the final shape of {grown.label}, which is not finished"}
    run(grown, tmp_path / grown.label)
    assert sweep(by_name(shape), tmp_path, pool(1)).finished == [shape.label]


@pytest.mark.filterwarnings("ignore")
def test_the_time_of_a_shape_is_estimated_before_it_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neurogenesis.experiments.estimates.startup_seconds", lambda: 0.0)
    grown, shape = grown_and_its_shape(maximum=2048)
    least, most = estimate(by_name(shape), tmp_path, 1, "cpu")[shape.label]
    assert 0 < 2 * least < most
    grown, shape = grown_and_its_shape()
    run(grown, tmp_path / grown.label)
    least, most = estimate(by_name(shape), tmp_path, 1, "cpu")[shape.label]
    assert 0 < least == most


def test_a_study_of_several_presets_has_a_directory_for_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    only = ("digits/static-8-epochs-1-seed*", "digits/north-random-epochs-1-seed*")
    words = ["sweep", "pays-small", "--only", *only, "--seeds", "1", "--epochs", "1", "--out", str(tmp_path)]
    assert main(words) == 0
    names = [f"digits/{label}-epochs-1-seed1" for label in ("static-8", "north-random")]
    assert sorted(path.relative_to(tmp_path).parent.as_posix() for path in tmp_path.rglob("result.json")) == sorted(
        names
    )
    assert list(json.loads((tmp_path / "study.json").read_text())["runs"]) == names
    assert {run.state for run in read([tmp_path]).runs} == {"finished"}
    assert main([*words, "--dry-run"]) == 0
    assert "nothing to do" in capsys.readouterr().out


@pytest.mark.parametrize("study", ["pays", "pays-small"])
def test_growing_is_compared_with_static_networks_of_several_sizes_in_every_setting(study: str) -> None:
    runs = list(STUDIES[study].runs(seeds=[1]))
    by_setting: dict[tuple[str, float, str], list[Settings]] = {}
    for settings in runs:
        by_setting.setdefault((settings.name, settings.learning_rate, settings.decay), []).append(settings)
    assert {name.removesuffix("-long").removesuffix("-small") for name, _, _ in by_setting} == {
        "digits", "mnist", "vgg11-cifar10", "wrn28-cifar10"
    }  # fmt: skip
    for (name, rate, _), some in by_setting.items():
        small = "-small" in name
        usual = PRESETS[name]().learning_rate
        assert min(abs(rate / usual / factor - 1) for factor in (1 / 3, 1, 3)) < 0.02
        static = [settings for settings in some if settings.shape]
        assert len(static) >= (3 if small else 5)
        (need,) = (settings for settings in some if settings.strategy == "need")
        (shape,) = (settings for settings in some if settings.shape_of)
        assert shape.source == need
        sizes = [initial_widths(settings) for settings in static]
        assert min(widths_of(need, need.initial).values()) <= min(sizes[0].values())
        largest = widths_of(need, need.maximum)
        assert all(largest[width] >= size for widths in sizes for width, size in widths.items())
    assert len(by_setting) == (15 if study == "pays-small" else 24)
