"""Searches: every trial is an ordinary run, nothing is repeated, and the test split is used at the end only."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

from neurogenesis.cli import main
from neurogenesis.experiments import building
from neurogenesis.experiments.engines import HERE, Ended, Engine, Job, NextJob, Place
from neurogenesis.experiments.engines.processes import write_failure
from neurogenesis.experiments.errors import UsageError
from neurogenesis.experiments.presets import PRESETS
from neurogenesis.experiments.record import Result
from neurogenesis.experiments.run import run
from neurogenesis.experiments.tuning import against_growing
from neurogenesis.experiments.tuning.choice import Goal, Sampler
from neurogenesis.experiments.tuning.space import Choices, Range, initial_parameters, make_space
from neurogenesis.experiments.tuning.tune import Outcome, plan_search, tune
from neurogenesis.report import read, write
from neurogenesis.report.searches import make_searches
from neurogenesis.report.searches_tables import approaches_table, budgets_table
from tests.experiments.test_sweep import wait_until
from tests.runs import assert_same_run, here, lines, records, without_times

USUAL = {"epochs": 2, "batch": 256}


def search(
    out: Path,
    trials: int,
    *searched: str,
    objective: str = "accuracy",
    max_parameters: int | None = None,
    engine: Engine | None = None,
    sampler: Sampler = "optuna",
    **changes: Any,
) -> Outcome:
    """A search on the digits whose trials take a moment."""
    goal = Goal(objective, max_parameters)
    settings = PRESETS["digits"](**{**USUAL, **changes})
    return tune(plan_search(settings, searched, goal, trials), out, goal, trials, engine or here, HERE, sampler=sampler)


def results(found: Outcome) -> dict[str, Result]:
    every = {trial.name: trial.result(found.out) for trial in found.trials}
    return {name: result for name, result in every.items() if result is not None}


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A search of six trials, the last of which depends on the results of the others."""
    return search(tmp_path_factory.mktemp("search"), 6)


def test_the_best_trial_is_trained_on_the_whole_training_split(six: Outcome) -> None:
    found = results(six)
    assert sorted(found) == [f"trial-0{number}" for number in range(1, 7)]
    (chosen,) = six.chosen
    assert found[chosen.name].accuracy == max(result.accuracy for result in found.values())
    assert {path.name for path in (six.out / "chosen").iterdir()} == {chosen.name}
    tried, final = (
        json.loads((six.out / name / "settings.json").read_text()) for name in (chosen.name, chosen.final_name)
    )
    assert (tried.pop("holdout"), final.pop("holdout")) == (0.1, 0.0)
    assert tried == final and tried["strategy"] == "static"


def test_widths_are_searched_between_the_smallest_and_the_maximum(six: Outcome) -> None:
    shapes = [list(result.widths.values()) for result in results(six).values()]
    assert all(4 <= size <= 64 for shape in shapes for size in shape)
    assert any(first != second for first, second in shapes)


def test_trials_do_not_depend_on_the_test_split(six: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = building.load

    def without_test_split(name: str, root: Path | None) -> Any:
        data = load(name, root)
        return replace(data, test=(torch.full_like(data.test[0], torch.nan), torch.full_like(data.test[1], 9)))

    monkeypatch.setattr(building, "load", without_test_split)
    blind = search(tmp_path, 6)
    for trial in six.trials:
        assert records(blind.out / trial.name) == records(six.out / trial.name)
    assert [trial.name for trial in blind.chosen] == [trial.name for trial in six.chosen]
    (final,) = (trial.final_result(tmp_path) for trial in blind.chosen)
    assert final is not None and final.accuracy == 0.0  # this one is tested on it


def test_a_search_that_goes_on_equals_a_longer_one(six: Outcome, tmp_path: Path) -> None:
    first = search(tmp_path, 3)
    times = {trial.name: (tmp_path / trial.name / "result.json").stat().st_mtime_ns for trial in first.trials}
    longer = search(tmp_path, 6)
    for trial in six.trials:
        assert_same_run(six.out / trial.name, tmp_path / trial.name)
    assert [trial.name for trial in longer.chosen] == [trial.name for trial in six.chosen]
    assert {name: (tmp_path / name / "result.json").stat().st_mtime_ns for name in times} == times
    assert json.loads((tmp_path / "search.json").read_text())["budgets"] == [3, 6]


def test_another_seed_gives_other_trials(six: Outcome, tmp_path: Path) -> None:
    other = search(tmp_path, 1, seed=2)
    assert other.trials[0].settings.shape != six.trials[0].settings.shape


def test_a_killed_search_goes_on_where_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    code = f"from tests.experiments.test_tune import *; search(Path({str(killed)!r}), 3, epochs=10)"
    process = subprocess.Popen([sys.executable, "-c", code])
    begun = killed / "trial-02" / "epochs.jsonl"
    wait_until(lambda: begun.exists() and len(lines(begun)) > 2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (killed / "trial-02" / "result.json").exists()
    finished = (killed / "trial-01" / "result.json").stat().st_mtime_ns
    words = ["tune", "digits", "--trials", "3", "--epochs", "10", "--batch", "256", "--workers", "1"]
    assert main([*words, "--out", str(killed)]) == 0
    said = capsys.readouterr().out.splitlines()
    uninterrupted = search(whole, 3, epochs=10)
    (chosen,) = uninterrupted.chosen
    for name in (*(trial.name for trial in uninterrupted.trials), chosen.final_name):
        assert_same_run(whole / name, killed / name)
    assert (killed / "trial-01" / "result.json").stat().st_mtime_ns == finished
    assert len(list(killed.glob("trial-*"))) == 3
    assert [line.split()[1] for line in said[:4]] == ["trial-01", "trial-02", "trial-03", chosen.final_name]
    assert said[4].startswith(f"{chosen.name}: validation accuracy ") and said[5].startswith("3 trials; ")


def test_a_proposal_that_was_not_completed_is_made_again(six: Outcome, tmp_path: Path) -> None:
    import optuna

    search(tmp_path, 1)
    study = optuna.load_study(study_name="search", storage=f"sqlite:///{tmp_path / 'search.db'}")
    study.ask()  # as a process leaves it that is killed before it has chosen any value
    search(tmp_path, 2)
    assert_same_run(six.out / "trial-02", tmp_path / "trial-02")


def test_larger_networks_than_allowed_are_not_trained(tmp_path: Path) -> None:
    found = search(tmp_path, 4, max_parameters=1200)
    assert len(found.trials) == 4 and found.too_large > 0
    assert all(result.parameters <= 1200 for result in results(found).values())
    assert len(list(tmp_path.glob("trial-*"))) == 4
    assert json.loads((tmp_path / "search.json").read_text())["too_large"] == found.too_large
    again = search(tmp_path, 4, max_parameters=1200)
    assert (again.trials, again.too_large) == (found.trials, found.too_large)


def test_networks_that_grew_too_large_are_not_chosen(tmp_path: Path) -> None:
    growing = {"strategy": "north-random", "every": 1, "buffer": 256}
    smallest = initial_parameters(PRESETS["digits"]())
    found = search(tmp_path, 2, "learning_rate=1e-3..1e-2", max_parameters=smallest, **growing)
    assert all(result.parameters > smallest for result in results(found).values())
    assert found.chosen == []


def test_the_whole_front_is_trained_if_both_objectives_count(tmp_path: Path) -> None:
    found = search(tmp_path, 6, objective="pareto")
    tried = results(found)

    def beaten(name: str) -> bool:
        mine = tried[name]
        return any(
            (other.accuracy >= mine.accuracy and other.parameters <= mine.parameters)
            and (other.accuracy, other.parameters) != (mine.accuracy, mine.parameters)
            for other in tried.values()
        )

    assert {trial.name for trial in found.chosen} == {name for name in tried if not beaten(name)}
    assert all(trial.final_result(tmp_path) is not None for trial in found.chosen)


def test_settings_can_be_searched_instead_of_widths(tmp_path: Path) -> None:
    found = search(tmp_path, 4, "learning-rate=1e-3..1e-1", "batch=128,256", "decay=none,cosine", strategy="small")
    assert {trial.settings.batch for trial in found.trials} == {128, 256}
    assert all(1e-3 <= trial.settings.learning_rate <= 1e-1 for trial in found.trials)
    assert {trial.settings.strategy for trial in found.trials} == {"small"}


def test_a_failed_trial_counts_and_does_not_stop_the_search(tmp_path: Path) -> None:
    def engine(next_job: NextJob, ended: Ended, place: Place) -> None:
        def next_or_failed() -> Job | None:
            while (job := next_job()) is not None and job.name == "trial-02":
                job.directory.mkdir()
                ended(job, write_failure(job.directory, "killed by SIGKILL"))
            return job

        here(next_or_failed, ended, place)

    found = search(tmp_path, 3, engine=engine)
    assert found.failed == {"trial-02": "killed by SIGKILL"}
    assert sorted(results(found)) == ["trial-01", "trial-03"]
    again = search(tmp_path, 3)
    assert (again.failed, sorted(results(again))) == (found.failed, sorted(results(found)))


def test_ranges_over_a_factor_of_ten_are_searched_on_a_logarithmic_scale() -> None:
    settings = PRESETS["mnist"]()
    space = make_space(settings, ["learning_rate=1e-4..1e-3", "batch=32..64"])
    assert space.settings == {
        "learning_rate": Range(1e-4, 1e-3, whole=False, log=True),
        "batch": Range(32, 64, whole=True, log=False),
    }
    assert make_space(settings, ["ages=true,false"]).settings == {"ages": Choices((True, False))}
    both = make_space(settings, ["widths", "learning_rate=1e-4..1e-2"])
    assert list(both.domains) == ["hidden1", "hidden2", "learning_rate"]
    assert both.at({"hidden1": 70, "hidden2": 300, "learning_rate": 1e-3}).shape == "70-300"


def test_convolutional_networks_are_scaled_as_a_whole() -> None:
    settings = PRESETS["vgg11-cifar10-small"]()
    space = make_space(settings, ())
    assert space.domains == {"size": Range(0.0625, 0.5, whole=False, log=True)}
    point = space.at({"size": 0.25})
    assert initial_parameters(point) == initial_parameters(replace(settings, strategy="medium"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--search", "learning_rat=1..2"), "Did you mean 'learning_rate'"),
        (("--search", "learning_rate"), "expected a range such as learning_rate=1..8"),
        (("--search", "learning_rate=1e-2..1e-4"), "the range is empty"),
        (("--search", "learning_rate=1e-2..1e-2"), "the range is empty"),
        (("--search", "learning_rate=low..high"), "expected a number, not 'low'"),
        (("--search", "learning_rate=1e-3..inf"), "expected a finite number"),
        (("--search", "batch=32,64.5"), "expected a whole number, not '64.5'"),
        (("--search", "batch=0..64"), "--batch: expected a positive number, not 0"),
        (("--search", "decay=none,linear"), "expected none or cosine or final, not 'linear'"),
        (("--search", "decay=none..cosine"), "it is not a number"),
        (("--search", "prune=yes"), "expected true or false, not 'yes'"),
        (("--search", "strategy=need,nead"), "Did you mean 'need'"),
        (("--search", "seed=1,2"), "seed cannot be searched"),
        (("--search", "batch=32,64", "--search", "batch=1..2"), "batch is given twice"),
        (("--search", "widths", "--search", "hidden=1,2"), "cannot be searched together with widths"),
        (("--search", "widths", "--search", "gamma=0.5..0.9"), "--gamma has no effect on static"),
        (("--strategy", "gradmax"), "--strategy gradmax has no effect on a search of widths"),
        (("--initial", "64"), "there are no widths to search"),
        (("--max-parameters", "100"), "--max-parameters 100: the smallest network has 330"),
        (("--max-parameters", "0"), "--max-parameters: expected a positive number"),
        (("--trials", "0"), "--trials: expected a positive number"),
        (("--workers", "0"), "--workers"),
        (("--device", "nowhere"), "--device nowhere"),
        (("--data", "somewhere"), "--data has no effect on digits"),
        (("--sampler", "asha", "--objective", "pareto"), "--objective pareto needs --sampler optuna"),
        (("--sampler", "asha", "--search", "epochs=1..5"), "--search epochs needs --sampler optuna"),
        (("--sampler", "asha", "--gpus", "1.5"), "--gpus 1.5: expected a whole number, or a fraction of one"),
        (("--engine", "ray", "--workers", "0"), "--workers: expected a positive number"),
        (("--engine", "ray", "--device", "cuda"), "--device cuda with no --gpus"),
        (("--engine", "ray", "--address", "ray://127.0.0.1:1"), "Ray Client is not supported"),
        (("--address", "auto", "--engine", "pool"), "--address has no effect with --engine pool"),
    ],
)
def test_what_is_wrong_is_said_before_any_run(
    words: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    medium = ("--medium", "64") if words[0] == "--initial" else ()
    assert main(["tune", "digits", *words, *medium]) == 1
    said = capsys.readouterr().err
    assert message in said and len(said.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_without_optuna_the_command_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert main(["tune", "digits", "--out", str(tmp_path / "out")]) == 1
    assert "pip install 'torch-neurogenesis[tune]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# --- trials that are stopped early ---------------------------------------------------------------------------


def halved(out: Path, trials: int, **changes: Any) -> Outcome:
    """A search with ASHA, in which a learning rate is by far the better one."""
    return search(out, trials, "learning_rate=1e-2,1e-6", sampler="asha", strategy="small", **{"epochs": 9, **changes})


def epochs_done(out: Path) -> dict[str, int]:
    return {path.parent.name: len(lines(path)) for path in sorted(out.glob("trial-*/epochs.jsonl"))}


@pytest.fixture(scope="module")
def four_halved(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return halved(tmp_path_factory.mktemp("halved"), 4, seed=14)


def test_trials_that_are_behind_are_stopped_and_not_chosen(four_halved: Outcome, tmp_path: Path) -> None:
    out = four_halved.out
    rates = {trial.name: trial.settings.learning_rate for trial in four_halved.trials}
    assert rates == {"trial-01": 1e-2, "trial-02": 1e-6, "trial-03": 1e-6, "trial-04": 1e-2}
    done = epochs_done(out)
    assert (done["trial-01"], done["trial-02"], done["trial-03"]) == (9, 1, 1)
    assert (out / "trial-02" / "stopped.txt").read_text().startswith("stopped after epoch 1 of 9")
    assert not (out / "trial-02" / "result.json").exists()
    states = {run.path.name: run.state for study in read([out]).studies for run in study.searches[0].trials}
    assert states == {name: "finished" if epochs == 9 else "stopped" for name, epochs in done.items()}
    (chosen,) = four_halved.chosen
    assert done[chosen.name] == 9 and four_halved.failed == {}
    run(chosen.settings, tmp_path / "alone")
    assert_same_run(tmp_path / "alone", out / chosen.name)  # although it paused to be compared


def test_a_search_that_stops_trials_and_goes_on_equals_a_longer_one(four_halved: Outcome, tmp_path: Path) -> None:
    halved(tmp_path, 2, seed=14)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("epochs.jsonl")}
    longer = halved(tmp_path, 4, seed=14)
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert epochs_done(tmp_path) == epochs_done(four_halved.out)
    assert [trial.name for trial in longer.chosen] == [trial.name for trial in four_halved.chosen]


def test_a_killed_search_compares_with_the_same_results(four_halved: Outcome, tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    def killed_after(jobs: int) -> Engine:
        def engine(next_job: NextJob, ended: Ended, place: Place) -> None:
            done = 0

            def told(job: Job, reason: str | None) -> None:
                nonlocal done
                done += 1
                if done == jobs:
                    raise Killed  # before the search knows
                ended(job, reason)

            here(next_job, told, place)

        return engine

    for jobs in (1, 2, 3):
        with pytest.raises(Killed):
            halved(tmp_path, 4, seed=14, engine=killed_after(jobs))
    found = halved(tmp_path, 4, seed=14)
    assert epochs_done(tmp_path) == epochs_done(four_halved.out)
    for trial in found.trials:
        assert records_of_epochs(tmp_path / trial.name) == records_of_epochs(four_halved.out / trial.name)


def records_of_epochs(out: Path) -> Any:
    return without_times(lines(out / "epochs.jsonl"))


def test_a_directory_of_something_else_is_left_alone(six: Outcome, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(UsageError, match=r"is not a search \(it has thesis.tex\)"):
        search(tmp_path, 1)
    with pytest.raises(UsageError, match="holds another search"):
        search(six.out, 6, seed=2)
    with pytest.raises(UsageError, match="its objective differ"):
        search(six.out, 6, objective="pareto")
    with FileLock(six.out / "lock"), pytest.raises(UsageError, match="another process is writing to"):
        search(six.out, 6)


def test_a_report_shows_front_budget_and_history_beside_grown_networks(six: Outcome, tmp_path: Path) -> None:
    grown = tmp_path / "grown"
    result = run(PRESETS["digits"](strategy="need", **USUAL), grown)
    found = read([six.out, grown])
    assert not found.skipped
    searches = make_searches(next(study for study in found.studies if study.searches), "search")
    (budget,) = searches.budgets
    tried = results(six)
    assert budget.trial_seconds == pytest.approx(sum(each.train_seconds for each in tried.values()))
    assert [trial.path.name for trial, _ in budget.chosen] == [trial.name for trial in six.chosen]
    need, searched = searches.approaches
    assert (need.name, need.networks[0].result) == ("Need", result)
    final = six.chosen[0].final_result(six.out)
    assert final is not None
    assert searched.networks[0].seconds == pytest.approx(budget.trial_seconds + final.train_seconds)
    assert [row[0].text for row in approaches_table(searches).rows] == ["Need", "Search, 6 trials"]
    cells = dict(zip(budgets_table(searches).columns, budgets_table(searches).rows[0], strict=True))
    assert (cells["trials finished"].text, cells["failed"].text) == ("6 of 6", "0")
    assert cells["test accuracy, %"].text == f"{100 * final.accuracy:.2f}"
    names = {path.name for path in write([six.out, grown], tmp_path / "report", ("html", "md", "svg"))}
    assert {"report.html", "tune-digits.md", "tune-digits-front.svg", "tune-digits-history.svg"} <= names
    assert "Search, 6 trials" in (tmp_path / "report" / "report.html").read_text()


def test_the_history_never_falls_and_ends_at_the_best(six: Outcome) -> None:
    from neurogenesis.report.figures.searches import _history

    (study,) = read([six.out]).studies
    rows = _history(study.searches[0], 1.0)
    best = rows["best"].tolist()
    assert best == sorted(best) and len(best) == 6
    assert best[-1] == pytest.approx(100 * max(result.accuracy for result in results(six).values()), rel=1e-4)
    assert rows["seconds"].tolist() == sorted(rows["seconds"])


def test_growing_is_compared_with_searches_of_several_budgets(tmp_path: Path) -> None:
    comparisons = against_growing.plan_comparisons(["digits"], [1], [1, 2], epochs=1)
    shown: list[tuple[int, int]] = []
    failed = against_growing.compare(
        comparisons, tmp_path, [1, 2], here, HERE, lambda now: shown.append((len(now.finished), now.total))
    )
    assert failed == {} and shown[-1][0] == shown[-1][1]
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    assert against_growing.compare(comparisons, tmp_path, [1, 2], here, HERE, lambda now: None) == {}
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")} == times
    (study,) = read([tmp_path]).studies
    searches = make_searches(study, "comparison")
    names = ["NORTH-Select", "Need", "Search, 1 trial", "Search, 2 trials"]
    assert [(found.name, len(found.networks)) for found in searches.approaches] == [(name, 1) for name in names]
    shorter, longer = searches.approaches[2:]
    assert all(one.seconds < two.seconds for one, two in zip(shorter.networks, longer.networks, strict=True))
    alone = search(tmp_path / "alone", 2, epochs=1, batch=64)  # the same trials as without others beside
    assert [trial.settings.shape for trial in alone.trials] == [
        run.settings.shape for run in searches.searches[0].trials
    ]


def test_epochs_that_follow_from_a_searched_setting_follow_it() -> None:
    space = make_space(PRESETS["tabular"](), ["batch=8,2500"])
    assert [space.at({"batch": batch}).epochs * -(-309 // batch) for batch in (8, 2500)] == pytest.approx(
        [3000] * 2, rel=0.01
    )
    assert make_space(PRESETS["tabular"](epochs=7), ["batch=8,2500"]).at({"batch": 8}).epochs == 7


def test_trainings_that_end_by_themselves_are_not_stopped_by_asha() -> None:
    with pytest.raises(UsageError, match="tabular needs --sampler optuna"):
        plan_search(PRESETS["tabular"](), ["batch=8,2500"], Goal(), 2, "asha")
