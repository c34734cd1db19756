"""Reports: statistics, reading of records, figures in all formats, and the page in a browser."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import pytest
import vl_convert
from hypothesis import given
from hypothesis import strategies as st

from neurogenesis import report
from neurogenesis.experiments.errors import UsageError
from neurogenesis.experiments.record import Step
from neurogenesis.experiments.settings import STATIC
from neurogenesis.report.figures import Palette, figures
from neurogenesis.report.figures.against_size import _front
from neurogenesis.report.figures.style import Legend
from neurogenesis.report.numbers import ellipse, evenly, plus_minus, significant
from neurogenesis.report.pictures import VEGA_LITE, save
from neurogenesis.report.sections import Section, make_section, missing_note, panels
from neurogenesis.report.steps import summarize
from neurogenesis.report.tables import cost_table, results_table
from tests import fake_runs as fake
from tests.experiments.test_against_static import small_study as small_comparison

Studies = Callable[[str], Path]
FEW = ("north-select", "gradmax", "medium")
SHORT: dict[str, Any] = {"epochs": [3]}


def dynamic(place: Path) -> Path:
    runs = fake.combinations(preset=["mnist"], strategy=(*FEW, "small"), seed=[1, 2], **SHORT)
    return fake.write_study(place, "mnist-dynamic", "MNIST, growth when triggers say so", runs)


def schedules(place: Path) -> Path:
    grown = fake.combinations(preset=["mnist"], strategy=FEW[:2], schedule=["linear", "batched"], seed=[1], **SHORT)
    static = fake.combinations(preset=["mnist"], strategy=["medium"], seed=[1], **SHORT)
    return fake.write_study(place, "mnist-preset", "Fixed schedules", grown + static)


def gamma(place: Path) -> Path:
    metrics = ["effective_dimension", "orthogonality"]
    grown = fake.combinations(
        preset=["mnist"],
        strategy=["north-select"],
        gamma=[0.9, 0.97],
        metric=metrics,
        seed=[1],
        holdout=[0.1],
        **SHORT,
    )
    static = fake.combinations(preset=["mnist"], strategy=["medium"], seed=[1], holdout=[0.1], **SHORT)
    return fake.write_study(place, "mnist-gamma", "Gamma", grown + static)


def learning_rate(place: Path) -> Path:
    runs = fake.combinations(
        preset=["mnist"], strategy=["north-select", "small"], learning_rate=[0.001, 0.003], seed=[1], **SHORT
    )
    return fake.write_study(place, "mnist-lr", "Learning rate", runs)


def batch(place: Path) -> Path:
    runs = fake.combinations(preset=["mnist"], strategy=FEW[:2], batch=[32, 512], seed=[1], **SHORT)
    return fake.write_study(place, "mnist-batchsize", "Batch size", runs)


def generated(place: Path) -> Path:
    runs = fake.combinations(
        preset=["generated"], strategy=["north-select"], features=[4, 32], hidden=[1, 2], seed=[1],
        initial=[4], maximum=[512],
    )  # fmt: skip
    return fake.write_study(place, "generated", "Features", [run | {"epochs": 2 * run["hidden"]} for run in runs])


def vgg(place: Path) -> Path:
    grown = fake.combinations(preset=["vgg11-cifar10"], strategy=["north-select"], gamma=[0.9, 0.97], seed=[1], **SHORT)
    others = fake.combinations(preset=["vgg11-cifar10"], strategy=["north-weight", "medium"], seed=[1], **SHORT)
    return fake.write_study(place, "vgg11-cifar10", "VGG-11 on CIFAR-10", grown + others)


def wrn(place: Path) -> Path:
    runs = fake.combinations(preset=["wrn28-cifar10"], strategy=FEW, seed=[1], **SHORT)
    return fake.write_study(place, "wrn28-cifar10", "WRN-28 on CIFAR-10", runs)


def trigger_cost(place: Path) -> Path:
    runs = fake.combinations(preset=["vgg11-cifar10"], strategy=["north-select", "small"], seed=[1], epochs=[1])
    return fake.write_study(place, "trigger-cost", "Seconds per mini-batch", runs)


def one_run(place: Path) -> Path:
    return fake.write_run(place / "digits", fake.settings("digits", epochs=6, initial=16, maximum=128))


KINDS = {
    kind.__name__: kind
    for kind in (
        one_run, dynamic, schedules, gamma, learning_rate, batch, generated, vgg, wrn, trigger_cost
    )
}  # fmt: skip


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> Studies:
    """The directory of a kind of study, written once."""
    written: dict[str, Path] = {}

    def study(kind: str) -> Path:
        if kind not in written:
            written[kind] = KINDS[kind](tmp_path_factory.mktemp(kind))
        return written[kind]

    return study


def sections_of(*paths: Path) -> list[Section]:
    return [make_section(study, study.name) for study in report.read(paths).studies]


def palette_of(one: Section) -> Palette:
    return Palette.of(c.strategy for c in one.configurations)


def names_of(one: Section) -> list[str]:
    return [figure.name.removeprefix(f"{one.name}-") for figure in figures(one, palette_of(one))]


# --- statistics --------------------------------------------------------------------------------------------


def test_mean_and_sample_deviation() -> None:
    assert plus_minus([2.0, 4.0, 9.0], ".3f") == f"5.000 ± {((9 + 1 + 16) / 2) ** 0.5:.3f}"
    assert significant([20.0, 40.0, 90.0], 0.1) == "5.00 ± 3.61"


def test_a_single_value_has_no_deviation() -> None:
    assert (plus_minus([3.0], ".1f"), significant([3.0])) == ("3.0", "3.00")
    assert (plus_minus([]), significant([])) == ("—", "—")


def contour(xs: Any, ys: Any, corners: int = 40) -> Any:
    return ellipse(pd.DataFrame({"x": xs, "y": ys}), corners).to_numpy()


@pytest.mark.parametrize("seed", range(5))
def test_ellipse_is_the_contour_of_the_gaussian(seed: int) -> None:
    points = np.random.default_rng(seed).normal(size=(6, 2)) @ np.array([[3.0, 1.0], [0.2, 0.5]]) + [100, 5]
    drawn = contour(points[:, 0], points[:, 1], corners=400) - points.mean(0)
    eigenvalues, axes = np.linalg.eigh(np.cov(points.T))
    assert np.allclose(((drawn @ axes) ** 2 / eigenvalues).sum(1), 1)  # one standard deviation in every direction
    assert np.allclose(np.abs(drawn @ axes).max(0), np.sqrt(eigenvalues), rtol=1e-3)
    assert np.allclose(drawn[0], drawn[-1])


def test_degenerate_ellipses() -> None:
    assert len(contour([1.0], [2.0])) == 0
    assert set(contour([5.0, 5.0], [1.0, 3.0])[:, 0]) == {5.0}
    assert set(contour([1.0, 3.0], [5.0, 5.0])[:, 1]) == {5.0}
    assert set(map(tuple, contour([1.0, 1.0], [2.0, 2.0]))) == {(1.0, 2.0)}


@pytest.mark.parametrize("best", ["accuracy", "time"])
@pytest.mark.parametrize("seed", range(6))
def test_the_front_has_the_means_that_no_other_mean_beats(seed: int, best: str) -> None:
    random = np.random.default_rng(seed)
    points = {tuple(map(int, point)) for point in random.integers(0, 7, (12, 2))}
    sign = 1 if best == "accuracy" else -1
    front = [
        (x, y) for x, y in sorted(points) if not any(a <= x and sign * b >= sign * y for a, b in points - {(x, y)})
    ]
    legend = Legend({"NeST": "#000"})
    scale = alt.Scale(domain=[0, 6])
    drawn = _front(legend, best).mark_line()
    drawn = drawn.encode(x=alt.X("size:Q", scale=scale, axis=None), y=alt.Y(f"{best}:Q", scale=scale, axis=None))
    drawn = drawn.add_params(legend.shown).properties(width=600, height=600, padding=0)
    rows = [{"strategy": "NeST", "size": x, best: y} for x, y in points]
    svg = vl_convert.vegalite_to_svg({**drawn.to_dict(), "datasets": {"means": rows}}, vl_version=VEGA_LITE)
    (path,) = re.findall(r'aria-roledescription="line mark"[^>]* d="M([^"]*)"', svg) or [""]
    corners = [tuple(map(float, corner.split(","))) for corner in path.rstrip("Z").split("L")]
    assert [(x / 100, 6 - y / 100) for x, y in corners] == front


@given(st.integers(0, 2000), st.integers(2, 50))
def test_evenly_spaced(count: int, limit: int) -> None:
    found = evenly(count, limit)
    assert len(found) == min(count, limit) and found == sorted(set(found))
    if count:
        assert found[0] == 0 and found[-1] == count - 1


# --- steps -------------------------------------------------------------------------------------------------


def stepped(sizes: list[int]) -> Iterator[Step]:
    for step, size in enumerate(sizes, 1):
        yield Step(step=step, widths={"a": size}, metric={"a": 0.9}, threshold={"a": 0.8})


def test_long_runs_are_thinned_and_keep_every_growth() -> None:
    sizes = [4 + step // 500 for step in range(10_000)]
    found = summarize(stepped(sizes), {"a": 4}, limit=100)
    grown = found.moments["a"].dropna(subset="before")
    assert list(zip(grown.index, grown["before"], grown["size"], strict=True)) == [
        (500 * n + 1, 3 + n, 4 + n) for n in range(1, 20)
    ]
    assert len(found.moments["a"]) <= 105
    assert found.growths == 19 and found.count == 10_000


def test_more_growths_than_points_are_merged_without_losing_any() -> None:
    found = summarize(stepped([4 + step for step in range(1000)]), {"a": 4}, limit=50)
    grown = found.moments["a"].dropna(subset="before")
    assert len(grown) <= 50
    assert grown["changes"].sum() == 999
    assert grown["before"].tolist() == [4, *grown["size"][:-1]]
    assert grown["size"].iloc[-1] == 1003


def test_dropped_neurons_are_told_from_growth() -> None:
    found = summarize(stepped([4, 6, 6, 5, 7]), {"a": 4}, limit=100)
    assert (found.growths, found.drops) == (2, 1)
    changes = found.moments["a"].dropna(subset="before")
    assert list(zip(changes["before"], changes["size"], strict=True)) == [(4, 6), (6, 5), (5, 7)]


def test_steps_that_are_recorded_twice_count_once() -> None:
    found = summarize([*stepped([4, 6, 6]), *stepped([4, 6, 6])], {"a": 4}, limit=100)
    assert (found.count, found.growths, len(found.times)) == (3, 1, 2)


def test_a_timeline_marks_dropped_neurons(tmp_path: Path) -> None:
    run = fake.write_run(tmp_path / "run", fake.settings(epochs=1))
    (one,) = sections_of(tmp_path)
    (timeline,) = [figure for figure in figures(one, palette_of(one)) if figure.choices]
    assert "drop" not in timeline.choices[0].about + timeline.caption + timeline.chart.to_json()
    lines = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
    for name in lines[-1]["widths"]:
        lines[-1]["widths"][name] -= 1
    fake.write_lines(run / "steps.jsonl", lines)
    (one,) = sections_of(tmp_path)
    (timeline,) = [figure for figure in figures(one, palette_of(one)) if figure.choices]
    assert f"{len(lines[-1]['widths'])} drops of dead neurons" in timeline.choices[0].about
    assert "dead neurons dropped" in timeline.caption and '"drop"' in timeline.chart.to_json()


def test_cost_leaves_the_first_step_out() -> None:
    times = [(9.0, 9.0, 9.0), (1.0, 0.1, 0.0), (3.0, 0.3, 0.2)]
    steps = [
        Step(step=step, widths={}, seconds=seconds, trigger_seconds=trigger, initialization_seconds=initialization)
        for step, (seconds, trigger, initialization) in enumerate(times, 1)
    ]
    found = summarize(steps, {}, 10).times.mean()
    assert (found["seconds"], found["trigger"], found["initialization"]) == pytest.approx((2.0, 0.2, 0.1))


# --- configurations ----------------------------------------------------------------------------------------


def test_seeds_are_grouped(tmp_path: Path) -> None:
    for seed, (accuracy, size) in enumerate([(0.97, 100), (0.98, 120), (0.96, 110)], 1):
        run = fake.write_run(tmp_path / f"run{seed}", fake.settings(strategy="gradmax", seed=seed, epochs=2))
        result = json.loads((run / "result.json").read_text())
        fake.write_json(run / "result.json", result | {"accuracy": accuracy, "parameters": size, "train_seconds": 60})
    (one,) = sections_of(tmp_path)
    table = results_table(one)
    row = dict(zip(table.columns, (cell.text for cell in table.rows[0]), strict=True))
    assert (row["strategy"], row["runs"]) == ("GradMax", "3")
    assert (row["test accuracy, %"], row["parameters"]) == ("97.00 ± 1.00", "110 ± 10")
    assert row["training time, s"] == "60.0 ± 0.0"


def test_a_single_run_has_no_deviation_in_the_table(studies: Studies) -> None:
    table = results_table(sections_of(studies("one_run"))[0])
    assert not any("±" in cell.text for cell in table.rows[0])


def test_settings_that_follow_from_others_are_ignored(studies: Studies) -> None:
    (one,) = sections_of(studies("generated"))
    assert one.varied == ["hidden", "features"]  # and not the epochs, which follow from them


def test_growing_settings_do_not_split_static_networks(studies: Studies) -> None:
    (one,) = sections_of(studies("gamma"))
    assert one.accuracy == "validation accuracy"
    assert [len(c.runs) for c in one.configurations] == [1] * 5
    static = one.configurations[-1]
    assert (static.name, static.values, static.label()) == ("Medium static", {}, "")
    assert all(static in some for _, some in panels(one.finished))


def test_static_networks_of_different_sizes_are_not_grouped(tmp_path: Path) -> None:
    runs = fake.combinations(
        preset=["mnist"], strategy=["big"], maximum=[256, 784], initial=[64], seed=[1, 2], epochs=[2]
    )
    (one,) = sections_of(fake.write_study(tmp_path, "study", "Study", runs))
    assert [(c.values, len(c.runs)) for c in one.configurations] == [({"maximum": 256}, 2), ({"maximum": 784}, 2)]


def test_copies_of_a_run_count_once(tmp_path: Path) -> None:
    for name, state in (("a", "unfinished"), ("b", "finished"), ("c", "finished")):
        fake.write_run(tmp_path / name, fake.settings(epochs=2), state=state)
    records = report.read([tmp_path])
    assert [run.path.name for run in records.runs] == ["b"]
    assert {(skipped.path.name, skipped.reason) for skipped in records.skipped} == {
        ("a", f"is a copy of {tmp_path / 'b'}"),
        ("c", f"is a copy of {tmp_path / 'b'}"),
    }


def test_a_run_that_was_moved_within_its_study_is_not_missing(tmp_path: Path) -> None:
    runs = fake.combinations(preset=["mnist"], strategy=["north-pre"], seed=[1, 2], epochs=[2])
    place = fake.write_study(tmp_path, "study", "Study", runs, absent=["north-pre-seed1"])
    fake.write_run(place / "moved", runs[0], state="unfinished")
    assert {(run.path.name, run.state) for run in report.read([tmp_path]).runs} == {
        ("moved", "unfinished"),
        ("north-pre-seed2", "finished"),
    }


def test_a_run_that_failed_before_it_had_a_record_says_why(tmp_path: Path) -> None:
    runs = fake.combinations(preset=["mnist"], strategy=["north-pre"], seed=[1, 2], epochs=[2])
    place = fake.write_study(tmp_path, "study", "Study", runs, absent=["north-pre-seed1"])
    (place / "north-pre-seed1").mkdir()
    (place / "north-pre-seed1" / "failure.txt").write_text("killed by SIGKILL\n")
    records = report.read([tmp_path])
    assert {(run.settings.seed, run.state, run.failure) for run in records.runs} == {
        (1, "failed", "killed by SIGKILL"),
        (2, "finished", ""),
    }
    assert not records.skipped


def test_the_ablation_of_select_is_a_separate_strategy(tmp_path: Path) -> None:
    runs = fake.combinations(preset=["mnist"], strategy=["north-select"], least=[False, True], seed=[1], epochs=[2])
    (one,) = sections_of(fake.write_study(tmp_path, "study", "Study", runs))
    assert [c.name for c in one.configurations] == ["NORTH-Select", "NORTH-Select, least"]


def test_default_and_given_gamma_are_distinguished(tmp_path: Path) -> None:
    runs = fake.combinations(preset=["mnist"], strategy=["north-select"], gamma=[None, 0.9], seed=[1], epochs=[2])
    (one,) = sections_of(fake.write_study(tmp_path, "study", "Study", runs))
    assert [c.label() for c in one.configurations] == ["gamma default", "gamma 0.9"]


def test_gammas_in_tables_are_those_of_the_runs(tmp_path: Path) -> None:
    north = fake.combinations(
        preset=["mnist"], strategy=["north-select", "north-weight"], gamma=[None, 0.9], epochs=[2]
    )
    fixed = fake.combinations(preset=["mnist"], strategy=["north-random"], schedule=["linear"], epochs=[2])
    others = fake.combinations(preset=["mnist"], strategy=["mine", "gradmax", "small"], epochs=[2])
    (one,) = sections_of(fake.write_study(tmp_path, "study", "Study", [*north, *fixed, *others]))
    table = results_table(one)
    column = list(table.columns).index("gamma")
    assert [(row[0].text, row[column].text) for row in table.rows] == [
        ("NORTH-Select", "0.97 (default)"),
        ("NORTH-Select", "0.9"),
        ("NORTH-Random", "—"),
        ("NORTH-Weight", "0.99 (default)"),
        ("NORTH-Weight", "0.9"),
        ("GradMax", "—"),
        ("mine", "default"),
        ("Small static", "—"),
    ]


@pytest.mark.parametrize(
    ("strategy", "every", "last", "told"),
    [
        ("north-select", 1, 90, ""),
        ("north-select", 1, 40, " A width that is at its maximum is no longer measured."),
        (
            "north-weight",
            1,
            40,
            " A width that is at its maximum or has as many neurons as inputs is no longer measured",
        ),
        ("north-select", 50, 40, ""),  # the next look would be after the end
    ],
)
def test_a_timeline_says_why_lines_end(strategy: str, every: int, last: int, told: str, tmp_path: Path) -> None:
    run = fake.write_run(tmp_path / "run", fake.settings(strategy=strategy, epochs=3, every=every))
    lines = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
    assert len(lines) == 90
    for line in lines:
        line["metric"] = line["threshold"] = {name: 0.5 for name in line["widths"] if line["step"] <= last}
    fake.write_lines(run / "steps.jsonl", lines)
    (one,) = sections_of(tmp_path)
    (timeline,) = [figure for figure in figures(one, palette_of(one)) if figure.choices]
    about = timeline.choices[0].about
    assert told in about and bool(told) == ("no longer measured" in about)


@pytest.mark.parametrize(
    ("kind", "order"),
    [
        ("dynamic", ["Results", "Test accuracy and", "Cost of a step", "Growth of a run"]),
        ("trigger_cost", ["Cost of a step", "Test accuracy and", "Results", "Growth of a run"]),
    ],
)
def test_tables_are_where_readers_expect_them(kind: str, order: list[str], studies: Studies, tmp_path: Path) -> None:
    text = report.write([studies(kind)], tmp_path)[0].read_text("utf-8")
    places = [text.index(f"<h3>{title}") for title in order]
    assert places == sorted(places)


def test_long_tables_follow_the_figures(tmp_path: Path) -> None:
    runs = fake.combinations(
        preset=["mnist"], strategy=["north-select"], gamma=[k / 100 for k in range(65, 90)], epochs=[2]
    )
    place = fake.write_study(tmp_path, "study", "Study", runs)
    text = report.write([place], tmp_path / "out")[0].read_text("utf-8")
    assert text.index("<h3>Sensitivity") < text.index("<h3>Results") < text.index("<h3>Growth of a run")


def test_cost_is_relative_to_small_static(studies: Studies) -> None:
    table = cost_table(sections_of(studies("trigger_cost"))[0])
    assert table is not None
    rows = {row[0].text: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    ratio = float(rows["NORTH-Select"]["step, ms"].sort_key) / float(rows["Small static"]["step, ms"].sort_key)
    assert rows["NORTH-Select"]["relative to Small static"].sort_key == pytest.approx(ratio)
    assert rows["Small static"]["relative to Small static"].text == "1.00"
    assert rows["Small static"]["trigger, ms"].text == "0"


# --- reading -----------------------------------------------------------------------------------------------


def test_runs_are_found_at_any_depth_and_once(tmp_path: Path) -> None:
    chosen = fake.settings(epochs=2)
    fake.write_run(tmp_path / "a" / "b" / "c", chosen)
    fake.write_run(tmp_path / "d", chosen | {"seed": 2})
    found = report.read([tmp_path / "a" / "b" / "c", tmp_path, tmp_path / "a"])
    assert sorted(run.path.name for run in found.runs) == ["c", "d"]
    assert not found.skipped


def test_a_run_of_a_sweep_may_be_given_before_the_sweep(studies: Studies) -> None:
    sweep = studies("dynamic")
    found = report.read([sweep / "gradmax-seed1", sweep])
    assert len(found.studies) == 1 and {run.state for run in found.runs} == {"finished"}


def test_a_run_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    found = report.read([Path(__file__).parents[1] / "data" / "run"])
    (run,) = found.runs
    assert not found.skipped
    assert (run.state, run.settings.strategy, run.settings.maximum) == ("unfinished", "north-random", 16)
    assert (run.steps.count, run.steps.growths, len(run.epochs)) == (6, 9, 1)
    assert next(run.steps.sizes["hidden1"].items()) == (0, 5) and run.epochs[0].widths == {"hidden1": 10, "hidden2": 9}
    assert report.draw(found, tmp_path) == [tmp_path / "report.html"]


def test_truncated_lines_are_skipped(tmp_path: Path) -> None:
    run = fake.write_run(tmp_path / "run", fake.settings(epochs=2), state="unfinished")
    for name in ("steps.jsonl", "epochs.jsonl"):
        text = (run / name).read_text()
        (run / name).write_text(text + text.splitlines()[0][:40])
    found = report.read([tmp_path])
    assert found.runs[0].state == "unfinished" and found.runs[0].steps.count == 30
    assert sorted(skipped.path.name for skipped in found.skipped) == ["epochs.jsonl", "steps.jsonl"]
    assert "line 31" in str(found.skipped)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("settings.json", "{"),
        ("settings.json", "[]"),
        ("settings.json", '{"editor.fontSize": 12}'),
        ("settings.json", '{"preset": "mnist", "strategy": ["a"], "seed": 1}'),
        ("result.json", '{"accuracy": NaN}'),
        ("result.json", '{"accuracy": 0.9, "parameters": Infinity}'),
        ("environment.json", "7"),
        ("environment.json", '{"earlier": 7}'),
        ("epochs.jsonl", '{"epoch": Infinity}\n7\nnull\n\n'),
        ("steps.jsonl", '{"step": 1, "widths": 3}\n"\n'),
        ("steps.jsonl", "\x00\x01"),
        ("study.json", '{"study": 1, "runs": {"a": 3}}'),
    ],
)
def test_damaged_files_are_skipped_and_named(name: str, content: str, tmp_path: Path) -> None:
    fake.write_run(tmp_path / "good", fake.settings(epochs=2))
    broken = fake.write_run(tmp_path / "broken", fake.settings(seed=2, epochs=2))
    (broken / name).write_text(content)
    found = report.read([tmp_path])
    assert broken / name in [skipped.path for skipped in found.skipped]
    assert "good" in [run.path.name for run in found.runs]
    sections = [make_section(study, "any") for study in found.studies]
    assert all(figures(one, Palette.of(["north-select"])) for one in sections)


def test_foreign_files_and_directories_are_skipped(tmp_path: Path) -> None:
    fake.write_run(tmp_path / "runs" / "good", fake.settings(epochs=2))
    (tmp_path / "runs" / "notes.txt").write_text("to do")
    (tmp_path / "runs" / "report.html").write_text("an earlier report")
    (tmp_path / "runs" / "data" / "deep").mkdir(parents=True)
    (tmp_path / "runs" / "data" / "deep" / "images.bin").write_bytes(b"\xff")
    (tmp_path / "runs" / "loop").symlink_to(tmp_path / "runs")
    headless = fake.write_run(tmp_path / "runs" / "headless", fake.settings(seed=2, epochs=2))
    (headless / "settings.json").unlink()
    found = report.read([tmp_path / "runs", tmp_path / "nowhere"])
    reasons = {skipped.path.name: skipped.reason for skipped in found.skipped}
    assert reasons["notes.txt"] == "is not part of a run"
    assert reasons["data"] == "contains no record of a run"
    assert reasons["headless"] == "has no settings.json"
    assert reasons["nowhere"] == "does not exist"
    assert not {"report.html", "loop", "images.bin"} & reasons.keys()
    assert [run.path.name for run in found.runs] == ["good"]
    text = report.draw(found, tmp_path / "out")[0].read_text("utf-8")
    assert all(str(one.path) in text and one.reason in text for one in found.skipped)


def test_a_foreign_settings_file_above_runs_is_ignored(tmp_path: Path) -> None:
    fake.write_json(tmp_path / "settings.json", {"editor.fontSize": 12})
    fake.write_run(tmp_path / "good", fake.settings(epochs=2))
    assert [run.path.name for run in report.read([tmp_path]).runs] == ["good"]


def test_runs_of_an_unknown_preset_are_drawn(tmp_path: Path) -> None:
    fake.write_run(tmp_path / "run", fake.settings("my-preset", "my-strategy", epochs=2))
    (one,) = sections_of(tmp_path)
    assert one.title == "my-strategy on my-preset" and "timeline" in names_of(one)


def test_runs_without_widths_are_drawn(tmp_path: Path) -> None:
    run = fake.write_run(tmp_path / "run", fake.settings(epochs=3))
    for name in ("steps.jsonl", "epochs.jsonl"):
        lines = [json.loads(line) for line in (run / name).read_text().splitlines()]
        fake.write_lines(run / name, [line | {"widths": {}} for line in lines])
    result = json.loads((run / "result.json").read_text())
    fake.write_json(run / "result.json", result | {"widths": {}, "initial_widths": {}})
    (one,) = sections_of(tmp_path)
    assert names_of(one) == [CURVES, TIMELINE]
    assert report.write([run], tmp_path / "out", ("html", "md"))


def test_diverged_runs_are_drawn(tmp_path: Path) -> None:
    run = fake.write_run(tmp_path / "run", fake.settings(epochs=3))
    lines = [json.loads(line) for line in (run / "epochs.jsonl").read_text().splitlines()]
    fake.write_lines(run / "epochs.jsonl", [line | {"loss": float("nan")} for line in lines])
    assert len(report.write([run], tmp_path / "out", ("html", "svg"))) > 2


def test_missing_failed_and_unfinished_runs_are_named(tmp_path: Path) -> None:
    runs = fake.combinations(preset=["mnist"], strategy=["north-pre", "small"], seed=[1, 2, 3], epochs=[4])
    place = fake.write_study(tmp_path, "study", "Study", runs, absent=["north-pre-seed1"])
    for name, chosen, state in (("north-pre-seed3", runs[2], "failed"), ("small-seed2", runs[4], "unfinished")):
        shutil.rmtree(place / name)
        fake.write_run(place / name, chosen, state=state)
    (place / "small-seed3" / "settings.json").write_text("{")
    records = report.read([tmp_path])
    (one,) = [make_section(study, study.name) for study in records.studies]
    note = missing_note(one.configurations)
    assert note == (
        "4 of 6 runs are not shown: 1 failed (NORTH-Pre seed 3), 1 unfinished (Small static seed 2), "
        "1 unreadable (Small static seed 3), 1 missing (NORTH-Pre seed 1)"
    )
    drawn = figures(one, Palette.of(["north-pre", "small"]))
    assert all(figure.note == note for figure in drawn if not figure.choices)
    assert [row[1].text for row in results_table(one).rows] == ["1 of 3", "1 of 3"]
    assert [choice.label for figure in drawn for choice in figure.choices] == [
        "NORTH-Pre, seed 2",
        "NORTH-Pre, seed 3 (failed)",
    ]
    text = report.draw(records, tmp_path / "out")[0].read_text("utf-8")
    assert note in text and "failed: RuntimeError: out of memory" in text


def test_many_missing_runs_are_counted_and_failed_ones_still_named(tmp_path: Path) -> None:
    runs = fake.combinations(preset=["mnist"], strategy=["north-pre"], seed=list(range(1, 10)), epochs=[2])
    place = fake.write_study(
        tmp_path, "study", "Study", runs, absent=[f"north-pre-seed{seed}" for seed in range(3, 10)]
    )
    shutil.rmtree(place / "north-pre-seed2")
    fake.write_run(place / "north-pre-seed2", runs[1], state="failed")
    (one,) = sections_of(tmp_path)
    assert missing_note(one.configurations) == "8 of 9 runs are not shown: 1 failed (NORTH-Pre seed 2), 7 missing"


def test_unfinished_runs_have_a_timeline(tmp_path: Path) -> None:
    fake.write_run(tmp_path / "run", fake.settings(epochs=4), state="unfinished")
    (one,) = sections_of(tmp_path)
    assert names_of(one) == ["timeline"]
    assert report.write([tmp_path], tmp_path / "out", ("html", "svg"))


def test_no_runs_are_an_error_that_names_the_paths(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="empty") as error:
        report.write([tmp_path / "empty", tmp_path / "nowhere"], tmp_path / "out")
    assert "nowhere: does not exist" in str(error.value)
    assert not (tmp_path / "out").exists()


def test_unknown_formats_and_places_that_cannot_be_written(studies: Studies, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'gif'"):
        report.write([studies("one_run")], tmp_path, ("gif",))
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write to"):
        report.write([studies("one_run")], tmp_path / "file")


# --- figures -----------------------------------------------------------------------------------------------

SIZE, CURVES, WIDTHS, TIMELINE = "accuracy-and-time-against-size", "learning-curves", "widths", "timeline"
RELATIVE = ["relative-widths", "relative-widths-at-the-end"]


FIGURES = {
    "one_run": [CURVES, WIDTHS, TIMELINE],
    "dynamic": [SIZE, CURVES, WIDTHS, TIMELINE],
    "schedules": ["schedules", CURVES, TIMELINE],
    "gamma": [SIZE, "sensitivity-to-gamma", CURVES, WIDTHS, TIMELINE],
    "learning_rate": [SIZE, "sensitivity-to-learning-rate", CURVES, WIDTHS, TIMELINE],
    "batch": [SIZE, "sensitivity-to-batch", CURVES, WIDTHS, TIMELINE],
    "generated": ["widths-against-features", "sensitivity-to-features", CURVES, TIMELINE],
    "vgg": [SIZE, "sensitivity-to-gamma", CURVES, *RELATIVE, TIMELINE],
    "wrn": [SIZE, CURVES, *RELATIVE, TIMELINE],
    "trigger_cost": [SIZE, *RELATIVE, TIMELINE],
}
STARTS = {"png": b"\x89PNG", "svg": b"<svg", "pdf": b"%PDF"}


@pytest.mark.parametrize("kind", FIGURES)
def test_each_study_has_its_figures_and_each_figure_each_format(kind: str, studies: Studies, tmp_path: Path) -> None:
    (one,) = sections_of(studies(kind))
    drawn = {figure.name.removeprefix(f"{one.name}-"): figure for figure in figures(one, palette_of(one))}
    assert list(drawn) == FIGURES[kind]
    before = [name for other in list(FIGURES)[: list(FIGURES).index(kind)] for name in FIGURES[other]]
    for name, figure in drawn.items():
        growing = [run for run in one.runs if run.settings.strategy not in STATIC]
        assert not figure.choices or len(figure.choices) == len(growing)
        formats = ["svg"] if name in before else list(STARTS)  # other formats are made from that one
        written = save(replace(figure, choices=figure.choices[:1]), tmp_path, formats)
        assert [path.suffix[1:] for path in written] == formats
        for form, path in zip(formats, written, strict=True):
            content = path.read_bytes()
            assert content.startswith(STARTS[form]) and len(content) > 2000
        svg = written[formats.index("svg")].read_text("utf-8")
        assert "NaN" not in svg
        assert figure.choices or "_legend_labels" in svg  # marks that Vega-Lite makes for clicks
        if name not in before:
            figure.chart.to_dict()  # raises an error if it is not valid


def test_a_file_for_each_figure_and_each_run(studies: Studies, tmp_path: Path) -> None:
    written = report.write([studies("schedules"), studies("one_run")], tmp_path / "out", ("svg", "html"))
    assert len(set(written)) == len(written) == 1 + (2 + 4) + (2 + 1)
    assert all(path.parent == tmp_path / "out" and path.exists() for path in written)
    assert {"report.html", "mnist-preset-schedules.svg", "digits-widths.svg", "digits-timeline-digits.svg"} <= {
        path.name for path in written
    }


def test_figures_of_a_page_are_those_of_the_files(studies: Studies, page: Path) -> None:
    content = json.loads(re.findall(r'id="figures">(.*?)</script>', page.read_text("utf-8"), re.DOTALL)[0])
    (one,) = sections_of(studies("dynamic"))
    for figure in figures(one, palette_of(one)):
        titled = figure.standalone(figure.choices[0] if figure.choices else None)
        assert content[figure.name]["specification"].items() <= titled.items()


# --- the page ----------------------------------------------------------------------------------------------

MALICIOUS = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"


def test_the_page_is_complete_and_loads_nothing(page: Path) -> None:
    text = page.read_text("utf-8")
    assert not re.search(r"""(src|href)\s*=\s*["']?\s*(https?:)?//""", text)
    assert "@import" not in text and not re.search(r"url\(\s*['\"]?http", text)
    assert "$schema" not in text.split('id="figures">')[1].split("</script>")[0]
    assert text.count("<script") == text.count("</script>") == 3


def test_the_page_shows_the_environment(studies: Studies, tmp_path: Path) -> None:
    (path,) = report.write([studies("one_run")], tmp_path)
    footer = path.read_text("utf-8").partition("<footer>")[2].partition("</footer>")[0]
    for name, value in (("commit", "0123abc"), ("torch", "2.13.0"), ("threads", "1, 2")):
        assert f"<dt>{name}</dt><dd>{value}</dd>" in footer


def test_records_are_escaped(tmp_path: Path) -> None:
    chosen = fake.settings(f"preset{MALICIOUS}", MALICIOUS, epochs=2, extra=MALICIOUS)
    run = fake.write_run(tmp_path / "runs" / "run", chosen)
    fake.write_json(run / "environment.json", {MALICIOUS: MALICIOUS})
    fake.write_json(tmp_path / "runs" / "study.json", {"study": MALICIOUS, "title": MALICIOUS, "runs": {"run": chosen}})
    text = report.write([tmp_path / "runs"], tmp_path / "out")[0].read_text("utf-8")
    assert "<img src=x" not in text and "<script>alert" not in text
    assert text.count("<script") == text.count("</script>") == 3
    for path in report.write([tmp_path / "runs"], tmp_path / "out", ("svg",)):
        assert path.parent == tmp_path / "out"


def test_page_of_sixty_long_runs_is_small(tmp_path: Path) -> None:
    for index in range(60):
        chosen = fake.settings(strategy=("north-select", "gradmax", "nest")[index % 3], seed=index, epochs=5)
        fake.write_run(tmp_path / "runs" / str(index), chosen, steps_per_epoch=100)
    (page,) = report.write([tmp_path / "runs"], tmp_path)
    assert page.stat().st_size < 6e6


@pytest.fixture(scope="module")
def page(studies: Studies, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a study."""
    return report.write([studies("dynamic")], tmp_path_factory.mktemp("page"))[0]


TIMEOUT = 300_000  # milliseconds, enough for a busy machine


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="no browser test: pip install playwright")
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no browser test: there is no chromium on the path")
    with api.sync_playwright() as driver:
        options = ["--no-sandbox", "--disable-gpu"]
        launched = driver.chromium.launch(executable_path=found, args=options, timeout=TIMEOUT)
        yield launched
        launched.close()


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[[Path], Any]]:
    """Open a page; it must not load or log anything."""
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    context.set_default_timeout(TIMEOUT)
    logged: list[str] = []

    def open_page(path: Path) -> Any:
        tab = context.new_page()
        tab.on("console", lambda message: logged.append(f"{message.type}: {message.text}"))
        tab.on("pageerror", lambda error: logged.append(str(error)))
        tab.on("dialog", lambda dialog: (logged.append(dialog.message), dialog.dismiss()))
        tab.on("request", lambda request: logged.append(request.url) if request.url.startswith("http") else None)
        tab.goto(path.resolve().as_uri())
        tab.wait_for_selector("html[data-drawn]")
        return tab

    yield open_page
    context.close()
    assert not logged


DRAWN = """(colour) => Object.fromEntries([...document.querySelectorAll(".chart")].map((chart) => [
    chart.dataset.figure,
    [...chart.querySelectorAll(".role-mark path, .role-mark line")].filter((mark) => !colour ||
        [mark.getAttribute("fill"), mark.getAttribute("stroke")].includes(colour)).length]))"""


def test_every_figure_is_drawn(studies: Studies, opened: Callable[[Path], Any], tmp_path: Path) -> None:
    kinds = ("one_run", "dynamic", "schedules", "gamma", "generated", "vgg")
    (page,) = report.write([studies(kind) for kind in kinds], tmp_path)
    tab = opened(page)
    drawn = tab.evaluate(DRAWN, None)
    assert len(drawn) == page.read_text("utf-8").count("<figure ") and min(drawn.values()) > 0
    for width in (1200, 600, 390):
        tab.set_viewport_size({"width": width, "height": 900})
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.locator("nav a").count() == tab.locator("h2").count() == len(kinds)


def test_a_click_on_a_legend_hides_and_shows(page: Path, opened: Callable[[Path], Any]) -> None:
    tab = opened(page)
    select, gradmax = "#0072B2", "#D55E00"
    named = [name for name in tab.evaluate(DRAWN, None) if not name.endswith("timeline")]
    before, others = tab.evaluate(DRAWN, select), tab.evaluate(DRAWN, gradmax)
    assert all(before[name] and others[name] for name in named)
    entry = tab.locator(f'.chart[data-figure="{named[0]}"] .role-legend-label text', has_text="NORTH-Select")
    entry.click()
    tab.wait_for_function(f"(named) => named.every((name) => ({DRAWN})('{select}')[name] === 0)", arg=named)
    assert all(tab.evaluate(DRAWN, gradmax)[name] == others[name] for name in named)
    for name in named:
        labels = tab.locator(f'.chart[data-figure="{name}"] .role-legend-label text')
        dimmed = {label.text_content(): float(label.get_attribute("opacity") or 1) for label in labels.all()}
        assert dimmed["NORTH-Select"] < 0.5 < dimmed["GradMax"]
    tab.locator(f'.chart[data-figure="{named[-1]}"] .role-legend-label text', has_text="NORTH-Select").click()
    tab.wait_for_function(f"JSON.stringify(({DRAWN})('{select}')) === '{json.dumps(before, separators=(',', ':'))}'")


def test_hiding_all_shows_all_again(page: Path, opened: Callable[[Path], Any]) -> None:
    tab = opened(page)
    before = tab.evaluate(DRAWN, None)
    entries = tab.locator(".chart").first.locator(".role-legend-label text")
    for index in range(entries.count()):
        entries.nth(index).click()
    tab.wait_for_function(f"JSON.stringify(({DRAWN})()) === '{json.dumps(before, separators=(',', ':'))}'")


def test_the_select_box_changes_the_timeline(page: Path, opened: Callable[[Path], Any]) -> None:
    tab = opened(page)
    figure = tab.locator('figure[id$="timeline"]')
    about, drawing = figure.locator(".about").text_content(), figure.locator("svg.marks").inner_html()
    assert about.split()[0] != "0"  # the first is a run that grew
    figure.locator("select").select_option(label="GradMax, seed 2")
    tab.wait_for_function("(about) => document.querySelector('.about').textContent !== about", arg=about)
    assert figure.locator("svg.marks").inner_html() != drawing
    assert figure.locator("svg.marks").count() == 1


def test_tables_are_sorted_by_a_click(page: Path, opened: Callable[[Path], Any]) -> None:
    tab = opened(page)
    table = tab.locator("table").first

    def column() -> list[float]:
        cells = table.locator("tbody td:nth-child(4)").all_text_contents()
        return [float(cell.split(" ")[0].replace(",", "")) for cell in cells]

    assert column() != sorted(column())
    table.locator("th", has_text="parameters").click()
    assert column() == sorted(column())
    table.locator("th", has_text="parameters").click()
    assert column() == sorted(column(), reverse=True)


def test_records_cannot_run_code(opened: Callable[[Path], Any], tmp_path: Path) -> None:
    for seed in (1, 2):
        fake.write_run(tmp_path / "runs" / str(seed), fake.settings("mnist", MALICIOUS, seed=seed, epochs=3))
    fake.write_run(tmp_path / "runs" / "small", fake.settings("mnist", "small", epochs=3))
    tab = opened(report.write([tmp_path / "runs"], tmp_path)[0])
    assert tab.locator("td").first.text_content() == MALICIOUS
    tab.locator(".chart").first.locator(".mark-symbol.role-mark path").first.hover(force=True)
    tab.locator("#vg-tooltip-element", has_text=MALICIOUS).wait_for(state="attached")
    assert tab.locator("img").count() == 0


def test_a_comparison_with_static_networks_is_drawn_and_hides_on_a_click(
    opened: Callable[[Path], Any], tmp_path: Path
) -> None:
    (page,) = report.write([small_comparison(tmp_path)], tmp_path / "out")
    tab = opened(page)
    random, need = "#009E73", "#000000"
    before, others = tab.evaluate(DRAWN, random), tab.evaluate(DRAWN, need)
    assert len(before) == 2 and min(before.values()) > 0 and min(others.values()) > 0
    tab.locator(".chart").first.locator(".role-legend-label text", has_text="NORTH-Random").click()
    tab.wait_for_function(f"Object.values(({DRAWN})('{random}')).every((marks) => marks === 0)")
    assert tab.evaluate(DRAWN, need) == others
    for width in (1200, 390):
        tab.set_viewport_size({"width": width, "height": 900})
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
