"""The claims of the paper are judged by the records: made ones here, for which the answers are known."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from neurogenesis.experiments.record import RecordedSettings
from neurogenesis.experiments.settings import Settings
from neurogenesis.experiments.studies import STUDIES
from neurogenesis.report.names import strategy_name
from tools.results import claims, records
from tools.results.claims import claims_table
from tools.results.tables import dynamic_table, preset_table

Outcome = tuple[float, tuple[int, ...]]
"""Accuracy in percent, and widths."""


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory in the place of results/."""
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    clear()
    yield tmp_path
    clear()


def clear() -> None:
    for cached in (records.study, records.section, records.comparison):
        cached.cache_clear()


def write(place: Path, study: str, outcome: Callable[[Settings, str], Outcome], seeds: int = 3) -> None:
    """The records of a study, with outcomes by the settings and the name of the strategy."""
    runs = {}
    for name, settings in ((STUDIES[study].name(each), each) for each in STUDIES[study].runs(range(1, seeds + 1))):
        runs[name] = settings.record()
        accuracy, sizes = outcome(settings, strategy_name(RecordedSettings(runs[name])))
        widths = {f"hidden{number}": size for number, size in enumerate(sizes, 1)}
        result = {
            "accuracy": (accuracy + 0.1 * (settings.seed - 2)) / 100, "parameters": sum(sizes), "loss": 0.1,
            "widths": widths, "initial_widths": widths, "steps": 100, "train_seconds": 10.0,
        }  # fmt: skip
        write_json(place / study / name / "settings.json", runs[name])
        write_json(place / study / name / "result.json", result)
    write_json(place / study / "study.json", {"study": study, "title": study, "runs": runs})
    clear()


def write_json(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def verdicts(study: str) -> list[str]:
    return [row["verdict"] for row in claims_table() if row["command"] == f"`neurogenesis sweep {study}`"]


def figures(study: str) -> list[str]:
    return [row["here"] for row in claims_table() if row["command"] == f"`neurogenesis sweep {study}`"]


def test_without_records_nothing_is_claimed() -> None:
    assert {row["verdict"] for row in claims_table()} == {"not run yet"}


# --- generated data -------------------------------------------------------------------------------------------


def as_claimed(settings: Any, strategy: str) -> Outcome:
    first = {"north-weight": 64, "north-select": 512, "north-pre": 512, "north-random": 512}.get(strategy, 20)
    return (97.5 if settings.features == 32 else 99.5), (first, 30)[: settings.hidden]


def less_accurate(settings: Any, strategy: str) -> Outcome:
    accuracy, sizes = as_claimed(settings, strategy)
    return (98.0 if strategy == "nest" and settings.features == 2 else accuracy), sizes


def wider(settings: Any, strategy: str) -> Outcome:
    accuracy, sizes = as_claimed(settings, strategy)
    return accuracy, (65 if strategy == "north-weight" else sizes[0], *sizes[1:])


def narrower(settings: Any, strategy: str) -> Outcome:
    accuracy, sizes = as_claimed(settings, strategy)
    return accuracy, (400 if strategy == "north-pre" else sizes[0], *sizes[1:])


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (as_claimed, ["met", "met", "met"]),
        (less_accurate, ["not met", "met", "met"]),
        (wider, ["met", "not met", "met"]),
        (narrower, ["met", "met", "not met"]),
    ],
)
def test_claims_on_generated_data(
    results: Path, monkeypatch: pytest.MonkeyPatch, outcome: Any, expected: list[str]
) -> None:
    parts = ({**STUDIES["generated"].parts[0], "features": (2, 32)},)  # a part of the study is enough
    monkeypatch.setitem(STUDIES, "generated", replace(STUDIES["generated"], parts=parts))
    write(results, "generated", outcome)
    assert verdicts("generated") == expected
    assert all("3 seeds" in figure for figure in figures("generated"))


# --- MNIST ----------------------------------------------------------------------------------------------------

CLAIMED: Mapping[str, Outcome] = {
    "north-select": (98.2, (200, 100)), "north-pre": (97.9, (150, 90)), "north-random": (98.1, (180, 95)),
    "north-weight": (97.6, (120, 80)), "gradmax": (97.0, (100, 100)), "firefly": (97.0, (110, 110)),
    "nest": (97.0, (120, 120)), "small": (97.0, (64, 64)), "medium": (97.9, (256, 256)), "big": (98.2, (784, 784)),
}  # fmt: skip


def dynamic(**changes: Outcome) -> Callable[[Settings, str], Outcome]:
    known = {**CLAIMED, **{name.replace("_", "-"): outcome for name, outcome in changes.items()}}
    return lambda settings, strategy: known.get(strategy, (97.0, (100, 90)))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ["met", "met", "met", "met"]),
        ({"nest": (99.0, (120, 120))}, ["not met", "met", "met", "met"]),
        ({"gradmax": (97.0, (100, 784))}, ["met", "not met", "met", "met"]),
        ({"north_pre": (97.9, (100, 140))}, ["met", "met", "not met", "met"]),
        ({"north_select": (97.0, (200, 100)), "big": (98.15, (784, 784))}, ["not met", "met", "met", "not met"]),
        ({"north_random": (98.3, (784, 100)), "big": (98.2, (400, 400))}, ["met", "not met", "met", "not met"]),
    ],
)
def test_claims_on_growth_that_decides_itself(results: Path, changes: Any, expected: list[str]) -> None:
    write(results, "mnist-dynamic", dynamic(**changes))
    assert verdicts("mnist-dynamic") == expected


def test_the_behavior_of_the_paper_is_told_beside_the_defaults(results: Path) -> None:
    write(results, "mnist-dynamic", dynamic())
    write(results, "mnist-paper", dynamic(north_select=(97.0, (200, 100))))
    assert verdicts("mnist-dynamic") == ["met"] * 4  # of the defaults
    last = figures("mnist-dynamic")[-1]
    own, _, without = last.partition("; without ages and margin: ")
    assert own.startswith("NORTH-Select +0.00 ± 0.08 points to Big static with 300 ± 0 parameters of 1,568")
    assert without.startswith("NORTH-Select -1.20 ± 0.08 points") and without.endswith("(not met)")


@pytest.mark.parametrize(("better", "expected"), [(("north-select", "north-pre"), "met"), ((), "not met")])
def test_claims_on_fixed_schedules(results: Path, better: tuple[str, ...], expected: str) -> None:
    write(results, "mnist-preset", lambda settings, strategy: (98.5 if strategy in better else 98.0, (256, 256)))
    assert verdicts("mnist-preset") == [expected]
    assert figures("mnist-preset")[0].startswith(f"{2 * len(better)} of 8 are better")


def test_two_seeds_are_too_few_to_judge(results: Path) -> None:
    write(results, "mnist-dynamic", dynamic(), seeds=2)
    assert verdicts("mnist-dynamic") == ["not run yet"] * 4
    assert set(figures("mnist-dynamic")) == {"24 of 24 runs are done"}


def test_tables_of_mnist(results: Path) -> None:
    write(results, "mnist-dynamic", dynamic())
    columns = ["strategy", "seeds", "test accuracy, %", "parameters", "hidden1", "hidden2"]
    assert list(dynamic_table()[0]) == columns
    write(results, "mnist-paper", dynamic(north_select=(97.0, (200, 100))))
    rows = {row["strategy"]: row for row in dynamic_table()}
    assert all(list(row)[:6] == columns and len(row) == 10 for row in rows.values())
    assert rows["NORTH-Select"]["test accuracy, %"] == "98.20 ± 0.10"
    assert rows["NORTH-Select"]["without ages and margin: test accuracy, %"] == "97.00 ± 0.10"
    assert rows["Big static"]["without ages and margin: hidden1"] == ""
    write(results, "mnist-preset", lambda settings, strategy: (98.0, (256, 256)))
    scheduled = preset_table()
    assert len(scheduled) == 15 and {row["schedule"] for row in scheduled} == {"linear", "batched", "static"}


# --- small variants -------------------------------------------------------------------------------------------


def write_small(place: Path, study: str) -> None:
    """Records of a small study of a convolutional network, in which strategies differ in their widths."""
    runs = {}
    for settings in STUDIES[study].runs():
        name = STUDIES[study].name(settings)
        runs[name] = settings.record()
        own = {"north-select": 0.5, "big": 0.5, "small": 0.125}.get(settings.strategy, 0.25)
        names = ("stem", "group1") if "wrn" in study else ("conv1", "conv2", "dense1", "dense2")
        sizes = {each: int(64 * own / (4 if each.startswith("dense") and settings.strategy != "big" else 1))
                 for each in names}  # fmt: skip
        result = {
            "accuracy": 0.55 if settings.strategy == "big" else 0.5, "parameters": sum(sizes.values()), "widths": sizes,
            "initial_widths": sizes, "standard_widths": dict.fromkeys(names, 64), "steps": 10,
            "train_seconds": 1.0 if settings.strategy == "small" else 2.0,
        }  # fmt: skip
        write_json(place / study / name / "settings.json", runs[name])
        write_json(place / study / name / "result.json", result)
    write_json(place / study / "study.json", {"study": study, "title": study, "runs": runs})
    clear()


def test_small_variants_are_not_comparable(results: Path) -> None:
    for study in ("vgg11-cifar10-small", "wrn28-cifar10-small", "trigger-cost-small"):
        write_small(results, study)
    assert verdicts("vgg11-cifar10-small") == ["not comparable"] * 2
    assert figures("vgg11-cifar10-small") == [
        "-5.00 ± 0.00 points to Big static with 80 parameters of 128; 2 seeds",
        "dense layers at 0.12 and 0.12 of the standard network, convolutions at 0.50; 2 seeds",
    ]
    assert figures("wrn28-cifar10-small")[0].startswith("mean widths relative to the standard network, at most 1: ")
    (cost,) = figures("trigger-cost-small")
    assert cost.startswith("NORTH-Random 2.00, NORTH-Select 2.00") and cost.endswith("2 seeds")


def test_every_strategy_with_a_cost_in_the_paper_is_in_the_study() -> None:
    assert set(claims.COSTS) <= {settings.strategy for settings in STUDIES["trigger-cost"].runs()}
