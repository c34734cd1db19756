"""Sweeps: all runs of a study are done, even if some fail or the sweep is interrupted."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock, Timeout

from neurogenesis.experiments.errors import UsageError
from neurogenesis.experiments.estimates import estimate, plan
from neurogenesis.experiments.progress import SweepProgress
from neurogenesis.experiments.run import run
from neurogenesis.experiments.studies import STUDIES, Study, select_runs
from neurogenesis.experiments.sweep import record_study, sweep
from neurogenesis.experiments.workers import failure_reason
from tests.runs import assert_same_run, command, lines, tiny

STUDY = ("sweep", "digits", "--seeds", "1", "--epochs", "30", "--only", "north-[rwi]*")
LABELS = ["north-random-epochs-30-seed1", "north-weight-epochs-30-seed1", "north-integrated-epochs-30-seed1"]


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
    out = tmp_path_factory.mktemp("uninterrupted")
    done = command(*STUDY, "--out", out)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["[1/3]", "[2/3]", "[3/3]", "all"]
    return out


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
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
    done = command(*STUDY, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    for label in LABELS:
        assert_same_run(uninterrupted / label, tmp_path / label)
    assert {label: (tmp_path / label / "result.json").stat().st_mtime_ns for label in finished} == times


def test_a_study_lists_its_runs(uninterrupted: Path) -> None:
    study = json.loads((uninterrupted / "study.json").read_text())
    assert (study["study"], study["title"]) == ("digits", STUDIES["digits"].title)
    assert sorted(study["runs"]) == sorted(LABELS)
    for label, record in study["runs"].items():
        assert json.loads((uninterrupted / label / "settings.json").read_text()) == record


def test_failed_runs_do_not_stop_the_others_and_are_listed(tmp_path: Path) -> None:
    words = ("sweep", "digits", "--seeds", "1", "--epochs", "1", "--only", "north-[rw]*", "--out", tmp_path, "--quiet")
    damaged, fine = tmp_path / "north-random-epochs-1-seed1", tmp_path / "north-weight-epochs-1-seed1"
    other = tiny(epochs=1, strategy="small")
    run(other, damaged)  # finished, and not what the study means by that name
    done = command(*words)
    assert done.returncode == 1
    first, second = done.stderr.splitlines()
    assert first == "1 of 2 runs failed:"
    assert second.startswith(f"  {damaged}: {damaged} holds a run with other settings (strategy small there, ")
    assert (fine / "result.json").exists()
    assert json.loads((damaged / "settings.json").read_text()) == other.record()
    shutil.rmtree(damaged)
    assert command(*words).returncode == 0


def test_a_run_killed_by_the_system_is_a_failure_too(tmp_path: Path) -> None:
    killed: list[int] = []

    def kill(progress: SweepProgress) -> None:
        if progress.running and not killed:
            wait_until(lambda: (tmp_path / progress.running[0] / "epochs.jsonl").exists())
            (process,) = multiprocessing.active_children()
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            killed.append(process.pid)

    runs = [tiny(epochs=300, strategy="big"), tiny(strategy="small")]
    progress = sweep(runs, tmp_path, workers=1, show=kill)
    assert killed
    assert progress.failed == {runs[0].label: "killed by SIGKILL"}
    assert progress.finished == [runs[1].label]
    assert "killed by SIGKILL" in (tmp_path / runs[0].label / "failure.txt").read_text()


def test_a_run_killed_before_it_started_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tiny(strategy="small")
    (tmp_path / settings.label).mkdir()
    assert failure_reason(tmp_path / settings.label, -signal.SIGKILL) == "killed by SIGKILL"
    assert sweep([settings], tmp_path, workers=1).failed == {}
    assert not (tmp_path / settings.label / "failure.txt").exists()


def test_a_run_that_cannot_be_read_fails_alone(tmp_path: Path) -> None:
    damaged, fine = tiny(strategy="small"), tiny(strategy="medium")
    (tmp_path / damaged.label).mkdir()
    (tmp_path / damaged.label / "settings.json").write_text(json.dumps(damaged.record()))
    (tmp_path / damaged.label / "result.json").write_text("{")
    progress = sweep([damaged, fine], tmp_path, workers=1)
    assert progress.finished == [fine.label]
    assert "result.json is not valid JSON" in progress.failed[damaged.label]


def test_a_run_that_cannot_start_says_why_in_its_directory(tmp_path: Path) -> None:
    settings = tiny(strategy="small")
    (tmp_path / settings.label).mkdir()
    (tmp_path / settings.label / "thesis.tex").write_text("mine")
    record_study(tmp_path, "digits", "", [settings])
    sweep([settings], tmp_path, workers=1)
    assert "is not a run (it has thesis.tex)" in (tmp_path / settings.label / "failure.txt").read_text()


def test_a_run_of_another_process_is_left_alone(tmp_path: Path) -> None:
    settings = tiny(strategy="small")
    (tmp_path / settings.label).mkdir()
    with FileLock(tmp_path / settings.label / "lock"):
        progress = sweep([settings], tmp_path, workers=1)
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
        sweep([tiny()], tmp_path, workers=workers, threads=threads)
    assert not list(tmp_path.iterdir())


def tiny_with_the_same_label() -> Any:
    """Other settings with the same label, as after a change of the preset's defaults."""

    class Changed:
        label = tiny().label

        def record(self) -> dict[str, Any]:
            return {**tiny().record(), "learning_rate": 1.0}

    return Changed()


def test_another_study_is_not_overwritten(tmp_path: Path) -> None:
    record_study(tmp_path, "digits", "", [tiny()])
    record_study(tmp_path, "digits", "", [tiny(seed=2)])
    assert len(json.loads((tmp_path / "study.json").read_text())["runs"]) == 2
    with pytest.raises(UsageError, match="with other settings"):
        record_study(tmp_path, "digits", "", [tiny_with_the_same_label()])
    with pytest.raises(UsageError, match="holds the study digits"):
        record_study(tmp_path, "mnist-lr", "", [tiny()])


def test_parts_of_a_study_can_be_selected() -> None:
    _, runs = select_runs("mnist-lr", seeds=[7], only=["north-select-*"])
    assert [(settings.learning_rate, settings.seed) for settings in runs] == [
        (1e-4, 7), (3e-4, 7), (1e-3, 7), (3e-3, 7), (1e-2, 7)
    ]  # fmt: skip
    with pytest.raises(UsageError, match="Did you mean 'mnist-lr'"):
        select_runs("mnist-lt")
    with pytest.raises(UsageError, match="matches no run"):
        select_runs("mnist-lr", only=["nothing"])


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
def test_a_dry_run_lists_the_runs_and_how_long_they_take(uninterrupted: Path, tmp_path: Path) -> None:
    done = command(*STUDY, "--out", tmp_path, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == [*LABELS, "3"]
    assert not list(tmp_path.iterdir())
    done = command(*STUDY, "--out", uninterrupted, "--dry-run")
    assert done.stdout.count("finished") == 3 and "nothing to do" in done.stdout


@pytest.mark.filterwarnings("ignore")
def test_estimates_come_from_finished_runs_or_from_steps(uninterrupted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neurogenesis.experiments.estimates._startup_seconds", lambda: 5.0)
    runs: Sequence[Any] = select_runs("digits", seeds=[1, 2], epochs=30, only=["north-random-*"])[1]
    result = json.loads((uninterrupted / runs[0].label / "result.json").read_text())
    seconds = result["train_seconds"] + result["test_seconds"]
    assert estimate(runs, uninterrupted, 1, "cpu") == {runs[1].label: (seconds + 5.0, seconds + 5.0)}
    timed = estimate(runs, uninterrupted / "nothing", 1, "cpu")
    least, most = (time - 5.0 for time in timed[runs[0].label])
    assert seconds / 20 < least <= most < seconds * 20
    assert timed[runs[0].label] == timed[runs[1].label]
    both = select_runs("digits", seeds=[1], only=["gradmax*", "big*"])[1]
    assert [settings.strategy for settings in both] == ["gradmax", "big"]
    assert "2 of 2 runs to do, 2 at a time" in plan(runs, uninterrupted / "nothing", 2, 1, "cpu")
