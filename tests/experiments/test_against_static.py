"""Does growing pay: grown networks compared with the curve of static ones, in numbers, tables and figures."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from neurogenesis import report
from neurogenesis.experiments.presets import PRESETS
from neurogenesis.experiments.studies import select_runs
from neurogenesis.experiments.sweep import record_study, sweep
from neurogenesis.report.against_static import (
    AgainstStatic,
    StaticCurve,
    compares_with_static,
    difference,
    make_against_static,
)
from neurogenesis.report.against_static_tables import differences, losses_table, settings_table, summary_table
from neurogenesis.report.figures import Palette, against_static
from neurogenesis.report.figures.figure import rows_of
from neurogenesis.report.names import strategy_name
from neurogenesis.report.tables import Cell, Table, markdown
from tests import fake_runs as fake
from tests.runs import here

# --- the curve and differences from it ------------------------------------------------------------------------

CURVE = StaticCurve([1.0, 2.0, 4.0], means=[90.0, 94.0, 95.0], errors=[0.3, 0.4, 0.1])


def test_the_curve_is_linear_between_its_points() -> None:
    assert CURVE.at([1.0, 1.25, 2.0, 3.0, 4.0]).tolist() == pytest.approx([90.0, 91.0, 94.0, 94.5, 95.0])


def test_the_error_of_the_curve_comes_from_the_points_next_to_it() -> None:
    assert CURVE.error_at([2.0]) == pytest.approx(0.4)
    assert CURVE.error_at([1.25]) == pytest.approx(math.sqrt((0.75 * 0.3) ** 2 + (0.25 * 0.4) ** 2))
    assert CURVE.error_at([3.0]) == pytest.approx(math.sqrt((0.5 * 0.4) ** 2 + (0.5 * 0.1) ** 2))
    assert CURVE.error_at([1.0, 2.0]) == pytest.approx(math.sqrt((0.5 * 0.3) ** 2 + (0.5 * 0.4) ** 2))


def test_the_curve_is_not_extrapolated() -> None:
    for position, mean, error in ((0.0, 90.0, 0.3), (9.0, 95.0, 0.1)):
        assert not CURVE.covers([2.0, position])
        assert (CURVE.at([position]).tolist(), CURVE.error_at([position])) == ([mean], error)
    assert CURVE.covers([1.0, 4.0])


def test_a_curve_of_one_size_is_that_size_everywhere() -> None:
    curve = StaticCurve([2.0], means=[90.0], errors=[0.5])
    assert curve.at([1.0, 2.0, 3.0]).tolist() == [90.0] * 3
    assert curve.error_at([3.0]) == 0.5


def test_the_difference_of_networks_of_one_size() -> None:
    found = difference([3.0, 3.0, 3.0], [95.0, 95.2, 95.4], CURVE)
    assert found.mean == pytest.approx(0.7)
    of_seeds, of_curve = 0.2 / math.sqrt(3), math.sqrt(0.2**2 + 0.05**2)
    assert found.error == pytest.approx(math.sqrt(of_seeds**2 + of_curve**2))
    assert not found.outside


def test_networks_of_different_sizes_are_compared_each_at_its_own() -> None:
    found = difference([1.0, 4.0], [91.0, 94.0], CURVE)  # one point above the curve, and one below
    assert found.mean == pytest.approx(0.0)
    of_seeds, of_curve = math.sqrt(2) / math.sqrt(2), math.sqrt((0.5 * 0.3) ** 2 + (0.5 * 0.1) ** 2)
    assert found.error == pytest.approx(math.sqrt(of_seeds**2 + of_curve**2))


def test_networks_beyond_the_curve_are_compared_with_its_end_and_marked() -> None:
    found = difference([3.0, 5.0], [95.0, 96.0], CURVE)
    assert (found.mean, found.outside) == (pytest.approx(0.75), True)


def test_a_difference_of_a_single_seed_has_no_error() -> None:
    found = difference([2.0], [95.0], CURVE)
    assert (found.mean, found.outside) == (1.0, False) and math.isnan(found.error)
    single = StaticCurve([1.0, 2.0], means=[90.0, 94.0], errors=[math.nan, 0.4])
    assert math.isnan(difference([1.5, 1.5], [95.0, 96.0], single).error)
    assert difference([2.0, 2.0], [95.0, 96.0], single).error == pytest.approx(math.sqrt(0.5**2 + 0.4**2))


# --- a study of known numbers ---------------------------------------------------------------------------------

STATIC = {"8": (100, 10.0, [90.0, 90.2]), "32": (10_000, 40.0, [94.0, 94.4])}  # parameters, seconds, accuracies
NEED = [(1000, 20.0, 93.0), (1000, 20.0, 93.4)]  # in the middle of both logarithms
SHAPE = [(1000, 20.0, 92.0), (1000, 20.0, 92.0)]
RANDOM = [(100, 80.0, 90.0), (400, 80.0, 91.0)]


def write(place: Path, rate: float = 0.003, better: float = 0.0, seeds: Sequence[int] = (1, 2)) -> dict[str, Any]:
    """The runs of a setting, in which need is better than it is in others by some points."""
    runs: dict[str, Any] = {}

    def add(values: Sequence[tuple[int, float, float]], **changes: Any) -> None:
        for seed, (size, time, accuracy) in zip(seeds, values, strict=False):
            name = f"mnist/{changes['strategy']}{changes.get('shape', '')}-{rate}-{seed}"
            runs[name] = fake.settings(learning_rate=rate, seed=seed, epochs=1, **changes)
            fake.write_run(place / name, runs[name], steps_per_epoch=2)
            path = place / name / "result.json"
            known = {"accuracy": accuracy / 100, "parameters": size, "train_seconds": time}
            fake.write_json(path, json.loads(path.read_text()) | known)

    for shape, (size, time, accuracies) in STATIC.items():
        add([(size, time, accuracy) for accuracy in accuracies], strategy="static", shape=shape)
    add([(size, time, accuracy + better) for size, time, accuracy in NEED], strategy="need", initial=8)
    add(SHAPE, strategy="static", shape="30-20", shape_of="need", initial=8)
    add(RANDOM, strategy="north-random")
    return runs


def comparison_of(place: Path, runs: Mapping[str, Any]) -> AgainstStatic:
    fake.write_json(place / "study.json", {"study": "pays", "title": "Does growing pay?", "runs": runs})
    (study,) = report.read([place]).studies
    assert study.against_static
    return make_against_static(study, study.name)


def summary_of(comparison: AgainstStatic) -> Table:
    table = summary_table(comparison)
    assert table is not None
    return table


def texts(table: Table) -> list[dict[str, str]]:
    return [dict(zip(table.columns, (cell.text for cell in row), strict=True)) for row in table.rows]


def test_differences_by_hand(tmp_path: Path) -> None:
    (setting,) = comparison_of(tmp_path, write(tmp_path)).settings
    by_name = {c.name: c for c in setting.compared}
    assert list(by_name) == ["NORTH-Random", "Need", "Need's shape from scratch"]
    curve = setting.curve("parameters")
    assert curve is not None
    assert list(map(math.exp, curve.positions)) == pytest.approx([100, 10_000])
    assert curve.means == pytest.approx([90.1, 94.2])
    assert curve.errors == pytest.approx([0.1, 0.2])  # half the difference of two values
    found = setting.difference(by_name["Need"], "parameters")
    assert found is not None
    assert found.mean == pytest.approx(93.2 - (90.1 + 94.2) / 2)
    assert found.error == pytest.approx(math.sqrt(0.2**2 + (0.5 * 0.1) ** 2 + (0.5 * 0.2) ** 2))
    assert setting.difference(by_name["Need"], "seconds") == found
    slow = setting.difference(by_name["NORTH-Random"], "seconds")
    assert slow is not None
    assert (slow.mean, slow.outside) == (pytest.approx(90.5 - 94.2), True)


OPERATIONS = {  # of a sample, and of the training in multiples of that: 3,000 for networks that do not grow
    "static8": (200, 3000), "static32": (20_000, 3000), "need": (20_000, 300), "static30-20": (2000, 3000),
    "north-random": (200, 30),
}  # fmt: skip


def record_operations(place: Path) -> None:
    for path in place.glob("mnist/*/result.json"):
        flops, times = OPERATIONS[path.parent.name.split("-0.003-")[0]]
        fake.write_json(path, json.loads(path.read_text()) | {"flops": flops, "training_flops": flops * times})


def test_networks_are_compared_at_the_same_operations_of_the_network_and_of_the_training(tmp_path: Path) -> None:
    runs = write(tmp_path)
    record_operations(tmp_path)
    comparison = comparison_of(tmp_path, runs)
    (setting,) = comparison.settings
    by_name = {c.strategy: c for c in setting.compared}
    known = {  # need ends with the operations of the larger network, and trained with those in the middle of both
        ("need", "flops"): (93.2 - 94.2, False),
        ("need", "training_flops"): (93.2 - (90.1 + 94.2) / 2, False),
        ("need's shape", "flops"): (92.0 - (90.1 + 94.2) / 2, False),
        ("need's shape", "training_flops"): (92.0 - (90.1 + 94.2) / 2, False),
        ("north-random", "flops"): (90.5 - 90.1, False),
        ("north-random", "training_flops"): (90.5 - 90.1, True),  # with less than the smallest static network
    }
    for (strategy, quantity), (mean, outside) in known.items():
        found = setting.difference(by_name[strategy], quantity)  # type: ignore[arg-type]
        assert found is not None, (strategy, quantity)
        assert (found.mean, found.outside) == (pytest.approx(mean), outside), (strategy, quantity)
    for table in (summary_of(comparison), settings_table(comparison)):
        need = next(row for row in texts(table) if row["strategy"] == "Need")
        assert (need["of the same FLOPs"][:5], need["of the same training FLOPs"][:5]) == ("-1.00", "+1.05")


def test_training_that_takes_more_operations_for_less_accuracy_is_no_reference(tmp_path: Path) -> None:
    runs = write(tmp_path)
    record_operations(tmp_path)
    for path in tmp_path.glob("mnist/static8-*/result.json"):  # trained for much longer
        fake.write_json(path, json.loads(path.read_text()) | {"training_flops": 10**9})
    (setting,) = comparison_of(tmp_path, runs).settings
    means = {each: setting.curve(each) for each in ("parameters", "flops", "training_flops")}  # type: ignore[arg-type]
    assert [len(curve.means) for curve in means.values() if curve] == [2, 2, 1]


def test_what_was_not_recorded_has_no_curve_and_no_column(tmp_path: Path) -> None:
    comparison = comparison_of(tmp_path, write(tmp_path))
    (setting,) = comparison.settings
    assert setting.curve("flops") is None and setting.difference(setting.compared[0], "flops") is None
    for table in (summary_of(comparison), settings_table(comparison)):
        assert not [column for column in table.columns if "FLOPs" in column]


def test_slower_and_less_accurate_networks_are_no_reference_for_time(tmp_path: Path) -> None:
    runs = write(tmp_path)
    for path in tmp_path.glob("mnist/static8-*/result.json"):  # the smallest network was the slowest, by chance
        fake.write_json(path, json.loads(path.read_text()) | {"train_seconds": 90.0})
    (setting,) = comparison_of(tmp_path, runs).settings
    by_time, by_parameters = setting.curve("seconds"), setting.curve("parameters")
    assert by_time is not None and by_parameters is not None
    assert by_time.means == pytest.approx([94.2])
    assert len(by_parameters.means) == 2
    need = next(c for c in setting.compared if c.strategy == "need")
    found = setting.difference(need, "seconds")
    assert found is not None and found.outside
    assert found.mean == pytest.approx(93.2 - 94.2)


def test_every_setting_and_strategy_has_a_row(tmp_path: Path) -> None:
    rows = texts(settings_table(comparison_of(tmp_path, write(tmp_path))))
    assert [row["strategy"] for row in rows] == ["NORTH-Random", "Need", "Need's shape from scratch", "Static"]
    need, best = rows[1], rows[3]
    assert (need["preset"], need["learning rate"], need["decay"], need["seeds"]) == ("mnist", "0.003", "none", "2")
    assert (need["test accuracy, %"], need["parameters"]) == ("93.20 ± 0.28", "1,000")
    assert need["minus static of the same parameters"] == need["of the same time"] == "+1.05 ± 0.23"
    assert rows[0]["of the same time"] == "-3.70 ± 0.54 †"
    assert (rows[0]["sizes over seeds"], need["sizes over seeds"]) == ("4.00", "1.00")
    assert (best["test accuracy, %"], best["widths"]) == ("94.20 ± 0.28", "32-32")
    assert best["minus static of the same parameters"] == "—"


def test_strategies_are_summarized_over_settings(tmp_path: Path) -> None:
    runs = write(tmp_path) | write(tmp_path, rate=0.001, better=-2.0)
    comparison = comparison_of(tmp_path, runs)
    assert [setting.title for setting in comparison.settings] == [
        "mnist, lr 0.001, constant",
        "mnist, lr 0.003, constant",
    ]
    rows = texts(summary_of(comparison))
    assert [row["strategy"] for row in rows] == ["NORTH-Random", "Need", "Need's shape from scratch"]
    need = rows[1]  # 1.05 above the curve at one rate, 0.95 below it at the other
    assert need["minus static of the same parameters"] == "+0.05 ± 1.00"
    assert (need["settings"], need["settings below the curve"]) == ("2", "1 of 2")
    assert need["largest gap to the best static"] == "+3.00"
    assert (rows[0]["sizes over seeds"], rows[0]["sizes over settings"]) == ("4.00", "4.00")


def test_a_single_setting_keeps_its_own_error(tmp_path: Path) -> None:
    comparison = comparison_of(tmp_path, write(tmp_path))
    error = math.sqrt(0.2**2 + 0.05**2 + 0.1**2)
    found = differences(comparison).set_index("strategy")
    assert found["parameters error"]["need"] == pytest.approx(error)
    need = texts(summary_of(comparison))[1]
    assert need["minus static of the same parameters"] == f"+1.05 ± {error:.2f}"
    assert need["settings below the curve"] == "0 of 1"


def test_networks_with_real_targets_are_not_summarized(tmp_path: Path) -> None:
    runs = write(tmp_path)
    for name in runs:
        runs[name] |= {"preset": "tabular", "table": "friedman1"}
        fake.write_json(tmp_path / name / "settings.json", runs[name])
    comparison = comparison_of(tmp_path, runs)
    assert summary_table(comparison) is None
    assert len(settings_table(comparison).rows) == 4
    assert report.write([tmp_path], tmp_path / "out", ["html", "md"])


def test_a_single_seed_has_differences_without_errors(tmp_path: Path) -> None:
    comparison = comparison_of(tmp_path, write(tmp_path, seeds=[1]))
    need = texts(settings_table(comparison))[1]
    assert need["minus static of the same parameters"] == "+1.00"
    assert texts(summary_of(comparison))[1]["settings below the curve"] == "—"


def test_runs_that_differ_in_more_than_size_are_not_compared(tmp_path: Path) -> None:
    runs = write(tmp_path)
    name = next(name for name in runs if name.startswith("mnist/need"))
    shutil.rmtree(tmp_path / name)
    runs[name] |= {"epochs": 2}
    fake.write_run(tmp_path / name, runs[name], steps_per_epoch=2)
    titles = {setting.title: len(setting.section.runs) for setting in comparison_of(tmp_path, runs).settings}
    assert titles == {"mnist, lr 0.003, epochs 1, constant": len(runs) - 1, "mnist, lr 0.003, epochs 2, constant": 1}


LOSSES = {"8": [0.5, 0.7], "32": [0.5, 0.58]}  # standard errors 0.1 and 0.04


def test_losses_are_compared_with_the_best_and_the_smallest_static_network_as_good(tmp_path: Path) -> None:
    runs = write(tmp_path)
    assert losses_table(comparison_of(tmp_path, runs)) is None  # of earlier versions
    for name, settings in runs.items():
        loss = LOSSES[settings["shape"]][settings["seed"] - 1] if settings.get("shape") in LOSSES else 0.55
        path = tmp_path / name / "result.json"
        changes = {"test_loss": 2 * loss, "lowest_test_loss": loss, "steps": 100 if "shape_of" in settings else 50}
        fake.write_json(path, json.loads(path.read_text()) | changes)
    table = losses_table(comparison_of(tmp_path, runs))
    assert table is not None
    random, need = texts(table)
    assert (random["strategy"], need["strategy"], need["seeds"]) == ("NORTH-Random", "Need", "2")
    assert (need["lowest test loss"], need["last test loss"]) == ("0.5500", "1.1000")
    assert (need["best static"], need["its size"], need["smallest as good"]) == ("0.5400 ± 0.0400", "32", "32")
    assert (need["shape from scratch"], need["parameters"], need["time"]) == ("0.5500", "0.10", "2.00")
    assert (random["shape from scratch"], random["time"]) == ("—", "—")
    for path in tmp_path.glob("mnist/static8-*/result.json"):
        fake.write_json(path, json.loads(path.read_text()) | {"lowest_test_loss": 0.579})
    table = losses_table(comparison_of(tmp_path, runs))
    assert table is not None and texts(table)[1]["smallest as good"] == "8"


def test_the_study_of_tables_shows_losses(tmp_path: Path) -> None:
    study, runs = select_runs("tabular", [1], epochs=22, only=["*-batch-2500-table-wine-*"])
    record_study(tmp_path / "tabular", "tabular", study.title, runs)
    assert not sweep(runs, tmp_path / "tabular", here).failed
    (found,) = report.read([tmp_path]).studies
    comparison = make_against_static(found, "tabular")
    table = losses_table(comparison)
    assert table is not None
    (row,) = texts(table)
    results = {name: json.loads((tmp_path / "tabular" / name / "result.json").read_text()) for name in runs}
    losses = {name.split("-")[1]: each["lowest_test_loss"] for name, each in results.items() if "of-need" not in name}
    need = losses.pop("epochs")
    assert row["lowest test loss"] == f"{need:.4f}"
    assert (row["best static"], row["its size"]) == (f"{min(losses.values()):.4f}", min(losses, key=losses.__getitem__))
    assert row["shape from scratch"] != "—" and row["widths"] == "16-16"
    assert len(runs) == 9 and set(losses) == {"4", "8", "16", "32", "64", "128", "256"}
    figure = against_static(comparison, Palette.of([strategy_name(run.settings) for run in comparison.runs]))[-1]
    networks = figure.data["networks 0"].set_index("strategy")
    assert figure.name == "tabular-loss"
    assert sorted(networks["value"]["Static"]) == pytest.approx(sorted(losses.values()), rel=1e-4)


def test_epochs_that_follow_from_other_settings_are_no_setting_of_their_own(tmp_path: Path) -> None:
    runs: dict[str, Any] = {}
    for batch in (32, 2500):
        for shape in ("8", "16", None):
            strategy = {"strategy": "static", "shape": shape} if shape else {"strategy": "need"}
            settings = PRESETS["tabular"](table="wine", batch=batch, **strategy)
            runs[settings.label] = settings.record()
            fake.write_run(tmp_path / settings.label, {**fake.settings(), **runs[settings.label]}, steps_per_epoch=1)
    titles = [setting.title for setting in comparison_of(tmp_path, runs).settings]
    assert titles == ["tabular, lr 0.003, batch size 32, constant", "tabular, lr 0.003, batch size 2500, constant"]


def test_a_record_with_settings_of_another_version_is_reported_all_the_same(tmp_path: Path) -> None:
    runs = write(tmp_path)
    for name in runs:
        runs[name] |= {"preset": "tabular", "table": "iris"}
        fake.write_json(tmp_path / name / "settings.json", runs[name])
    (setting,) = comparison_of(tmp_path, runs).settings
    assert setting.preset == "tabular" and len(setting.compared) == 3


# --- reports --------------------------------------------------------------------------------------------------


def small_study(place: Path, absent: Sequence[str] = ()) -> Path:
    """Two presets, two learning rates, two seeds."""
    runs: dict[str, Any] = {}
    for preset, usual in (("digits", 0.01), ("mnist", 0.003)):
        for rate in (usual, 3 * usual):
            for seed in (1, 2):
                common = {"learning_rate": rate, "seed": seed, "epochs": 2}
                for chosen in (
                    *(fake.settings(preset, "static", shape=shape, **common) for shape in ("16", "64", "256")),
                    fake.settings(preset, "need", **common, initial=8),
                    fake.settings(preset, "static", shape_of="need", **common, initial=8),
                    fake.settings(preset, "north-random", **common),
                ):
                    kind = chosen.get("shape_of") or chosen.get("shape", "")
                    runs[f"{preset}/{chosen['strategy']}{kind}-{rate}-{seed}"] = chosen
    return fake.write_comparison(place, "pays-small", "Does growing pay?", runs, absent)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_study(tmp_path_factory.mktemp("study"))


def test_a_report_has_tables_and_figures_in_all_formats(study: Path, tmp_path: Path) -> None:
    written = [path.name for path in report.write([study], tmp_path, ["html", "md", "png", "svg"])]
    figure = "pays-small-accuracy"
    pictures = [f"{name}.{form}" for name in (f"{figure}-in-short", figure) for form in ("png", "svg")]
    assert written == ["report.html", "pays-small.md", *pictures]
    tables = (tmp_path / "pays-small.md").read_text()
    assert tables.count("\n| Need | ") == 4 + 3  # in each setting; over all and for each preset
    page = (tmp_path / "report.html").read_text()
    assert "Need&#39;s shape from scratch" in page and f'id="{figure}-in-short"' in page
    assert not report.read([study]).skipped


def test_a_report_in_the_directory_of_its_study_is_not_taken_for_a_run(tmp_path: Path) -> None:
    place = small_study(tmp_path)
    report.write([place], place, ["html", "md"])
    assert not report.read([place]).skipped


def test_the_runs_of_a_preset_have_an_ordinary_report_too(study: Path) -> None:
    (one,) = report.read([study / "mnist"]).studies
    assert (one.name, one.against_static) == ("mnist", False)


def test_only_studies_with_static_networks_of_several_sizes_have_a_curve() -> None:
    from neurogenesis.experiments.record import RecordedSettings

    grown = fake.settings(strategy="north-random")
    sizes = [fake.settings(strategy="static", shape=shape) for shape in ("8", "16", "8-16")]
    assert compares_with_static(map(RecordedSettings, [grown, *sizes]))
    assert not compares_with_static(map(RecordedSettings, [grown, sizes[0], sizes[2]]))
    assert not compares_with_static(map(RecordedSettings, sizes))
    assert not compares_with_static(
        map(RecordedSettings, [grown, *(fake.settings(strategy=s) for s in ("small", "big"))])
    )


def test_a_study_without_finished_runs_has_a_report(tmp_path: Path) -> None:
    place = small_study(tmp_path)
    for path in place.rglob("result.json"):
        path.unlink()
    (page, tables) = report.write([place], tmp_path / "out", ["html", "md"])
    assert "48 of 48 runs are not shown: 48 unfinished" in page.read_text()
    assert tables.read_text() == ""


def test_missing_runs_are_named(tmp_path: Path) -> None:
    absent = ["mnist/staticneed-0.003-2"]
    place = small_study(tmp_path, absent)
    (place / absent[0]).mkdir()
    (place / absent[0] / "failure.txt").write_text("not run: it needs the final shape of need, which failed\n")
    found = report.read([place])
    (page,) = report.draw(found, tmp_path / "out")
    assert "1 of 48 runs are not shown: 1 failed" in page.read_text()
    assert "failed: not run: it needs the final shape of need, which failed" in page.read_text()


def drawn(study: Path) -> tuple[AgainstStatic, list[Any]]:
    found = report.read([study])
    comparison = make_against_static(found.studies[0], "pays-small")
    return comparison, against_static(comparison, Palette.of(strategy_name(run.settings) for run in found.runs))


def test_the_figure_shows_the_curve_and_every_network(study: Path) -> None:
    comparison, (short, full) = drawn(study)
    assert len(full.data) == 2 * len(comparison.settings) and len(short.data) == 2 * 2
    assert full.chart.to_dict() and short.chart.to_dict()  # raise an error if they are not valid
    for index, setting in enumerate(comparison.settings):
        rows = {row["strategy"]: row for row in rows_of(full.data[f"networks {index}"])}
        assert set(rows) == {"Static", "NORTH-Random", "Need", "Need's shape from scratch"}
        for c in setting.compared:
            results = [run.result for run in c.runs if run.result is not None]
            mean = sum(100 * result.accuracy for result in results) / len(results)
            assert rows[c.name]["value"] == pytest.approx(100 - mean, rel=1e-4)
            assert rows[c.name]["least"] == min(result.parameters for result in results)
            assert rows[c.name]["most"] == max(result.parameters for result in results)
            assert rows[c.name]["high"] <= rows[c.name]["value"] <= rows[c.name]["low"]
        curve = setting.curve("parameters")
        assert curve is not None
        line = {round(math.log(row["parameters"]), 3): row["value"] for row in rows_of(full.data[f"curve {index}"])}
        for position, mean in zip(curve.positions, curve.means, strict=True):
            assert line[round(position, 3)] == pytest.approx(100 - mean, rel=1e-4)


def test_the_smaller_figure_shows_presets_at_their_own_learning_rate(study: Path) -> None:
    _, (short, _) = drawn(study)
    titles = [chart["title"]["text"] for chart in short.specification["concat"]]
    assert titles == ["mnist, lr 0.003, constant", "digits, lr 0.01, constant"]


def test_a_shape_from_scratch_is_a_hollow_mark_of_the_strategy_that_grew_it(study: Path) -> None:
    _, (_, full) = drawn(study)
    rows = {row["strategy"]: row for row in rows_of(full.data["networks 0"])}
    need, shape = rows["Need"], rows["Need's shape from scratch"]
    assert need["color"] == shape["color"] == need["fill"] != shape["fill"] == "#ffffff"
    (legend,) = {
        json.dumps(layer["encoding"]["shape"]["scale"])
        for chart in full.specification["concat"]
        for layer in chart["layer"]
        if "shape" in layer.get("encoding", {})
    }
    shapes = dict(zip(*(json.loads(legend)[key] for key in ("domain", "range")), strict=True))
    assert shapes["Need"] == shapes["Need's shape from scratch"]
    assert len(set(shapes.values())) == len(shapes) - 1


def test_a_perfect_network_has_a_place_on_the_logarithmic_axis(tmp_path: Path) -> None:
    place = small_study(tmp_path)
    for path in place.rglob("need*/result.json"):
        fake.write_json(path, json.loads(path.read_text()) | {"accuracy": 1.0})
    _, (_, full) = drawn(place)
    assert all((rows["value"] > 0).all() for rows in full.data.values())


def test_markdown_tables_survive_any_text() -> None:
    table = Table("Title", "Caption.", ["a|b", "c"], [[Cell("x|y\n", 0.0), Cell("\\", 0.0)]])
    assert markdown([table]).splitlines()[-3:] == ["| a\\|b | c |", "|---|---|", "| x\\|y | \\\\ |"]
