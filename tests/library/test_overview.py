"""`print(grower)`: the widths, what was measured against what, and what is being waited for."""

from __future__ import annotations

import math

import pytest
import torch

import neurogenesis as ng
from tests.growing import always, mlp, step


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


def table(grower: ng.Grower) -> dict[str, list[str]]:
    """The lines of the table by width: size, maximum, measured, threshold, step, and what is said."""
    head, _, *lines, compute = str(grower).splitlines()
    assert compute.endswith("of training so far")
    assert head.split() == ["width", "size", "maximum", "measured", "threshold", "at", "step"]
    return {line.split()[0]: line.split(maxsplit=6)[1:] for line in lines}


@pytest.mark.filterwarnings("ignore:nothing can be measured yet")
def test_a_grower_prints_what_it_measured_and_what_it_waits_for() -> None:
    model, generator = mlp(10, 20, 6, 3), torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters())
    grower = ng.Grower(model, optimizer, "north-random", max_width={"0": math.inf, "2": 6})
    assert str(grower).startswith("before the first batch: the widths are not known yet")
    assert grower.widths == {}
    for _ in range(8):
        step(model, optimizer, torch.randn(15, 10, generator=generator))
        grower.step()
        if grower.steps == 1:
            assert table(grower) == {
                "0": ["20", "unlimited", "-", "-", "1", "waiting: 15 of 40 activations per neuron seen"],
                "2": ["6", "6", "-", "-", "-", "at its maximum"],
            }
    seen = grower.history.latest["0"]
    assert seen.metric is not None
    measured = [f"{seen.metric:.4g}", f"{seen.threshold:.4g}", str(seen.step)]
    assert table(grower)["0"] == [str(grower.widths["0"]), "unlimited", *measured]


def test_with_an_example_the_widths_are_known_before_the_first_batch() -> None:
    model = mlp(10, 20, 6, 3)
    optimizer = torch.optim.Adam(model.parameters())
    grower = ng.Grower(model, optimizer, "north-random", example=torch.randn(2, 10), max_width=30)
    assert grower.widths == {"0": 20, "2": 6}
    assert table(grower) == {
        "0": ["20", "30", "-", "-", "-", "before the first gradient step"],
        "2": ["6", "30", "-", "-", "-", "before the first gradient step"],
    }


@pytest.mark.filterwarnings("ignore:nothing can be measured yet")
def test_printing_changes_nothing() -> None:
    weights = []
    for printing in (False, True):
        model, generator = mlp(10, 8, 6, 3), torch.Generator().manual_seed(0)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        grower = ng.Grower(model, optimizer, "north-random", max_width=20)
        state = torch.get_rng_state()
        for _ in range(6):
            step(model, optimizer, torch.randn(10, 10, generator=generator))
            if printing:  # between the gradient step and ours, when activations are of another network
                str(grower)
            grower.step()
            if printing:
                str(grower)
        assert torch.equal(state, torch.get_rng_state())
        assert len(grower.history) > 0
        weights.append(model.state_dict())
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


@pytest.mark.filterwarnings("ignore:nothing can be measured yet")
def test_printing_runs_nothing() -> None:
    model = mlp(10, 8, 3)
    optimizer = torch.optim.Adam(model.parameters())
    grower = ng.Grower(model, optimizer, "north-random", max_width=20)
    calls: list[str] = []
    model[0].register_forward_hook(lambda *_: calls.append("ran"))
    for size in (5, 40):  # nothing can be measured yet, and then it can
        step(model, optimizer, torch.randn(size, 10))
        calls.clear()
        grower.step()
        looked = len(calls)
        str(grower)
        assert looked > 0 and len(calls) == looked


def test_what_is_not_measured_is_not_waited_for() -> None:
    model = mlp(10, 8, 3)
    optimizer = torch.optim.Adam(model.parameters())
    grower = ng.Grower(model, optimizer, ng.Strategy(always(1)))
    step(model, optimizer, torch.randn(5, 10))
    grower.step()
    assert table(grower) == {"0": ["9", "128", "-", "-", "1"]}


def test_the_table_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlp(10, 20, 6, 3)
    grower = ng.Grower(model, torch.optim.Adam(model.parameters()), "need", example=torch.randn(2, 10))
    monkeypatch.setenv("COLUMNS", "75")
    assert str(grower).splitlines()[2:4] == [
        "0      20    1280     -         -          -        before the first",
        "                                                    gradient step",
    ]


def test_operations_are_printed() -> None:
    model = mlp(10, 20, 3)
    optimizer = torch.optim.Adam(model.parameters())
    grower = ng.Grower(model, optimizer, ng.Strategy(lambda layer: 0), example=torch.randn(2, 10))
    for _ in range(2):
        step(model, optimizer, torch.randn(50, 10))
        grower.step()
    assert str(grower).splitlines()[-1] == "520 FLOPs for a sample, 156 kFLOPs of training so far"
