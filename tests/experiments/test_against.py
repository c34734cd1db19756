"""Growing against searching, pruning and gromo: every way leads to a network of the sizes that it should have."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from benchmarks import against
from benchmarks.against import GUESS, LAST, WAYS, Outcome, Problem, Task, parameters_of, read, run
from neurogenesis.experiments.data import Data


@pytest.fixture
def problem() -> Problem:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(700, 6, generator=generator)
    labels = (inputs[:, :2].sum(1) > 0).long() + (inputs[:, 2] > 0.5).long()
    return Problem(Data((inputs[:600], labels[:600]), (inputs[600:], labels[600:]), 3), Task(2, 50, 3e-3), seed=1)


def fake_grown(widths: tuple[int, int], parameters: int, seconds: float = 1e9) -> Outcome:
    return Outcome("grown", 1, 0.9, 0.1, widths, parameters, 1, 1e-3, seconds)


def ways(problem: Problem, way: str, known: Sequence[Outcome]) -> dict[str, Outcome]:
    outcomes = {each.way: each for each in WAYS[way](problem, known)}
    assert list(outcomes)[-1] == LAST[way]
    assert all(each.train_seconds > 0 and each.predict_seconds > 0 and each.flops > 0 for each in outcomes.values())
    return outcomes


def test_growing_starts_from_the_narrowed_guess(problem: Problem) -> None:
    (grown,) = ways(problem, "grow", []).values()
    assert all(16 <= width <= GUESS * 16 for width in grown.widths)
    assert grown.parameters == parameters_of(problem.network(*grown.widths))


def test_pruned_networks_have_at_most_the_parameters_of_the_grown_one(problem: Problem) -> None:
    pytest.importorskip("torch_pruning")
    most = parameters_of(problem.network(40, 30))
    outcomes = ways(problem, "guess", [fake_grown((40, 30), most)])
    assert outcomes["static, grown widths"].widths == (40, 30)
    assert outcomes[f"static {GUESS}-{GUESS}"].widths == (GUESS, GUESS)
    for way in ("pruned by ng.prune", "pruned by Torch-Pruning"):
        assert 0.9 * most <= outcomes[way].parameters <= most
        assert outcomes[way].train_seconds > outcomes[f"static {GUESS}-{GUESS}"].train_seconds


def test_layers_too_wide_for_the_samples_are_not_pruned_by_us(problem: Problem) -> None:
    pytest.importorskip("torch_pruning")
    inputs, labels = problem.data.train
    few = Problem(Data((inputs[:100], labels[:100]), problem.data.test, 3), problem.task, 1)
    outcomes = ways(few, "guess", [fake_grown((20, 20), parameters_of(few.network(20, 20)))])
    assert "pruned by ng.prune" not in outcomes and "pruned by Torch-Pruning" in outcomes


def test_searches_add_up_the_time_of_their_trials(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna")
    monkeypatch.setattr(against, "TRIALS", (2, 4))
    outcomes = ways(problem, "search", [fake_grown((20, 20), 1)])
    few, many, within = outcomes["Optuna, 2 trials"], outcomes["Optuna, 4 trials"], outcomes[LAST["search"]]
    assert few.train_seconds < many.train_seconds
    assert (few.trials, many.trials, within.trials) == (2, 4, 4)  # there is time for all of them
    assert all(against.LEAST <= width <= against.MOST for each in outcomes.values() for width in each.widths)
    outcomes = ways(problem, "search", [fake_grown((20, 20), 1, seconds=0.0)])
    assert outcomes[LAST["search"]].trials == 1  # but at least one


def test_gromo_grows_to_the_widths_that_it_is_told(problem: Problem) -> None:
    pytest.importorskip("gromo")
    task = Task(epochs=16, batch=50, rate=3e-3)
    outcomes = ways(Problem(problem.data, task, 1), "gromo", [fake_grown((24, 20), 1)])
    for each in outcomes.values():
        assert each.widths[0] == 24 and 16 < each.widths[1] <= 20


def test_what_is_written_down_is_not_repeated(
    problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(against, "load_set", lambda name, seed, root: problem.data)
    run("digits", 1, "grow", tmp_path, None, epochs=1)
    before = (tmp_path / "digits.jsonl").read_text()
    run("digits", 1, "grow", tmp_path, None, epochs=1)
    assert (tmp_path / "digits.jsonl").read_text() == before
    run("digits", 2, "grow", tmp_path, None, epochs=1)
    assert [(each.way, each.seed) for each in read(tmp_path / "digits.jsonl")] == [("grown", 1), ("grown", 2)]
    assert json.loads(before)["widths"] == list(read(tmp_path / "digits.jsonl")[0].widths)


def test_without_a_grown_network_there_is_no_size_to_prune_to(problem: Problem) -> None:
    with pytest.raises(SystemExit, match="add grow to --ways"):
        next(WAYS["guess"](problem, []))
