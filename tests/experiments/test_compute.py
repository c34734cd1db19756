"""Loss against compute: what growing saves against static networks, on made records of which the answer is known."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from neurogenesis import report
from neurogenesis.experiments.presets import PRESETS
from neurogenesis.report.compute import Against, LossCurve, against, front

SEEDS = (1, 2, 3)
OFFSETS = {1: 0.0, 2: 0.03, 3: -0.05}  # of all runs of a seed


def loss_of(gflops: float, seed: int = 1, worse: float = 0.0) -> float:
    """The loss of static networks: a straight line over the logarithm of compute, and what a depth is worse by."""
    return 4 - 0.25 * math.log(gflops) + worse + OFFSETS[seed]


def runs(configuration: int, gflops: float, loss_at: float, worse: float = 0.0, seeds: Any = SEEDS) -> pd.DataFrame:
    """Runs that take some compute, and have the loss of static networks that take other compute."""
    return pd.DataFrame(
        [{"configuration": configuration, "seed": s, "gflops": gflops, "loss": loss_of(loss_at, s, worse)}
         for s in seeds]
    )  # fmt: skip


STATIC = pd.concat([runs(number, gflops, gflops) for number, gflops in enumerate((1000.0, 2000.0, 4000.0))])


def test_a_network_with_the_loss_of_static_ones_of_more_compute_saves_the_difference() -> None:
    found = against(runs(9, 1500.0, 3000.0), STATIC, "gflops")
    assert found is not None
    assert found.saved == pytest.approx(0.5) and found.difference == pytest.approx(-0.25 * math.log(2))
    assert found.saved_error == pytest.approx(0, abs=1e-12) == found.difference_error  # seeds are paired
    assert (found.seeds, found.bound, found.dearer) == (3, "", False)
    dearer = against(runs(9, 4100.0, 3000.0), STATIC, "gflops")
    assert dearer is not None and dearer.dearer and dearer.difference == pytest.approx(0.25 * math.log(4 / 3))
    loses = against(runs(9, 3000.0, 1500.0), STATIC, "gflops")
    assert loses is not None and loses.saved == pytest.approx(-1.0)


def test_errors_are_those_of_paired_seeds() -> None:
    parts = {1: 0.1, 2: 0.2, 3: 0.3}
    grown = pd.concat([runs(9, 1500.0, 1500.0 / (1 - part), seeds=[seed]) for seed, part in parts.items()])
    found = against(grown, STATIC, "gflops")
    assert found is not None
    assert (found.saved, found.saved_error) == (pytest.approx(0.2), pytest.approx(0.1 / math.sqrt(3)))


def test_only_static_networks_that_are_better_than_all_cheaper_ones_count() -> None:
    dominated = [runs(3, 1600.0, 900.0), runs(4, 8000.0, 3900.0)]
    every = pd.concat([STATIC, *dominated])
    assert front(every, "gflops") == [0, 1, 2]
    assert against(runs(9, 1500.0, 3000.0), every, "gflops") == against(runs(9, 1500.0, 3000.0), STATIC, "gflops")


@pytest.mark.parametrize(
    ("gflops", "loss_at", "saved", "bound"),
    [(2000.0, 9000.0, 0.5, "≥"), (500.0, 700.0, 0.5, "≤"), (2000.0, 4000.0, 0.5, ""), (500.0, 1000.0, 0.5, "")],
)
def test_beyond_the_curve_its_end_counts(gflops: float, loss_at: float, saved: float, bound: str) -> None:
    found = against(runs(9, gflops, loss_at), STATIC.assign(loss=STATIC["loss"].round(9)), "gflops")
    exact = against(runs(9, gflops, loss_at).round(9), STATIC.round(9), "gflops")
    assert found is not None and exact is not None
    assert found.saved == pytest.approx(saved, abs=1e-6) and exact.bound == bound


def test_seeds_beyond_different_ends_are_told() -> None:
    grown = pd.concat([runs(9, 1500.0, 500.0, seeds=[1]), runs(9, 1500.0, 9000.0, seeds=[2, 3])])
    found = against(grown, STATIC, "gflops")
    assert found is not None and found.bound == "≈"


def test_seeds_that_static_networks_do_not_have_are_left_out() -> None:
    grown = runs(9, 1500.0, 3000.0)
    some = STATIC[(STATIC["seed"] == 1) | (STATIC["configuration"] == 2)]
    found = against(grown, some, "gflops")
    assert found is not None and found.seeds == 1 and math.isnan(found.saved_error)
    assert found.saved == pytest.approx(0.5)
    # Networks far away with fewer seeds do not cost the others theirs; near ones count, with the seeds that they have.
    more = pd.concat([STATIC, runs(5, 8000.0, 8000.0, seeds=[1]), runs(6, 500.0, 500.0, seeds=[2])])
    found = against(grown, more, "gflops")
    assert found is not None and found.seeds == 3
    near = against(grown, pd.concat([STATIC, runs(7, 2500.0, 3900.0, seeds=[2])]), "gflops")
    assert near is not None and near.seeds == 1 and near.saved < 0.5
    assert against(grown, STATIC[STATIC["configuration"] == 0], "gflops") is None
    assert against(grown.assign(seed=7), STATIC, "gflops") is None


def test_a_curve_that_is_not_monotone_is_reached_where_it_first_is_as_low() -> None:
    curve = LossCurve([1.0, math.e, math.e**2, math.e**3], losses=[4.0, 2.0, 3.0, 1.0])
    assert [round(math.log(curve.amount_for(loss)), 6) for loss in (5.0, 4.0, 3.0, 2.0, 1.5)] == [0, 0, 0.5, 1, 2.75]


def write(directory: Path, widths: dict[str, int], gflops: float, bits: float, **settings: Any) -> None:
    """The record of a run."""
    chosen = PRESETS["gpt-stdlib"](**settings)
    start = {"blocks": chosen.initial} if chosen.strategy.startswith("deepen") else dict.fromkeys(widths, 1)
    start = widths if chosen.static else start
    parameters = sum(1000 * size if name == "blocks" else 1000 * size + 1 for name, size in widths.items())
    result = {"accuracy": 0.5, "test_loss": bits * math.log(2), "bits_per_character": bits, "parameters": parameters,
              "flops": parameters * 10, "training_flops": round(gflops * 1e9), "widths": widths,
              "initial_widths": start, "steps": chosen.epochs * 100, "train_seconds": gflops}  # fmt: skip
    epoch = {"epoch": 1, "step": 100, "widths": widths, "train_seconds": gflops, "fastest_seconds": gflops / 100}
    path = directory / chosen.label
    path.mkdir(parents=True)
    (path / "settings.json").write_text(json.dumps(chosen.record()))
    (path / "result.json").write_text(json.dumps(result))
    (path / "epochs.jsonl").write_text(json.dumps(epoch) + "\n")


def table(text: str, title: str) -> list[dict[str, str]]:
    """The rows of a table in Markdown."""
    lines = [line for line in text.split(f"### {title}\n")[1].split("###")[0].splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def test_the_report_prints_the_compute_that_growing_saves(tmp_path: Path) -> None:
    for seed in SEEDS:
        for depth, worse in ((2, 0.0), (4, 0.1)):  # four blocks are worse than two at equal compute
            for epochs in (10, 20, 40):
                gflops = 100.0 * depth * epochs
                bits = loss_of(gflops, seed, worse)
                write(tmp_path, {"blocks": depth}, gflops, bits, strategy="static", shape=str(depth), epochs=epochs,
                      seed=seed)  # fmt: skip
        # As good as four blocks for 8,000 GFLOPs, and as two blocks for 8,000 exp(-0.4).
        grown = {"strategy": "deepen-zero", "initial": 2, "medium": 4, "at": 0.25}
        write(tmp_path, {"blocks": 4}, 5100.0, loss_of(8000.0, seed, 0.1), seed=seed, **grown)
    out = tmp_path / "out"
    written = report.write([tmp_path], out, ["md", "svg", "html"])
    (row,) = table((out / "gpt-stdlib.md").read_text(), "Compute saved at equal loss")
    assert (row["grows"], row["seeds compared"]) == ("blocks 2 to 4", "3")
    assert row["final size: compute saved, %"] == f"{100 * (1 - 5100 / 8000):.0f} ± 0"
    best = 1 - 5100 / (8000 * math.exp(-0.4))
    assert row["best static: compute saved, %"] == f"{100 * best:.0f} ± 0"
    assert row["minus best static of the same compute"] == f"{0.25 * math.log(1 - best):+.3f} ± 0.000"
    figure = next(path for path in written if "loss-against-compute" in path.name).read_text()
    assert "2 to 4 at 0.25" in figure


def test_the_report_compares_grown_widths_with_static_networks_of_the_same_size(tmp_path: Path) -> None:
    for seed in SEEDS:
        for depth in (1, 2, 4):
            write(tmp_path, {"blocks": depth}, 2000.0 * depth, loss_of(1000.0 * depth, seed), strategy="static",
                  shape=str(depth), seed=seed)  # fmt: skip
        widths = {"blocks.0.up": 2 * seed}  # a different shape for each seed
        write(tmp_path, widths, 3000.0, loss_of(1000.0, seed), strategy="need", neurons=32, seed=seed)
        scratch = loss_of(1000.0, seed) - 0.125
        write(tmp_path, widths, 4000.0, scratch, strategy="static", shape_of="need", neurons=32, seed=seed)
    report.write([tmp_path], tmp_path / "out", ["md", "html"])
    (row,) = table((tmp_path / "out" / "gpt-stdlib.md").read_text(), "Against static networks of the same size")
    assert (row["strategy"], row["grows"]) == ("Need", "neurons 1 to 2-6")
    assert row["minus its final shape from scratch"] == "+0.125 ± 0.000"
    sizes = [math.log(min(2 * seed, 4)) * 0.25 for seed in SEEDS]  # two, four and six thousand parameters, at most four
    assert float(row["minus static of the same parameters"].split(" ± ")[0]) == pytest.approx(sum(sizes) / 3, abs=1e-3)
    assert row["minus static of the same training FLOPs"] == f"{0.25 * math.log(1.5):+.3f} ± 0.000"


def test_networks_without_blocks_or_characters_have_no_table_of_compute(tmp_path: Path) -> None:
    assert isinstance(against(runs(9, 1500.0, 3000.0), STATIC, "gflops"), Against)
    for seed in SEEDS:
        write(tmp_path, {"blocks": 2}, 2000.0, 2.0, strategy="static", shape="2", seed=seed)
    report.write([tmp_path], tmp_path / "out", ["md"])
    assert "Compute saved" not in (tmp_path / "out" / "gpt-stdlib.md").read_text()


def test_schedules_of_transformers_end_at_different_sizes_and_have_no_figure_of_their_own(tmp_path: Path) -> None:
    grows: dict[str, dict[str, int]] = {"neurons": {"final_neurons": 512}, "heads": {"final_heads": 8}}
    for number, options in enumerate(grows.values(), 2):
        widths = {"blocks.0.up": number}
        write(tmp_path, widths, 1000.0 * number, 2.0, strategy="need", schedule="batched", **options)
        write(tmp_path, {"blocks": number}, 2000.0 * number, 2.0, strategy="static", shape=str(number))
    written = [path.name for path in report.write([tmp_path], tmp_path / "out", ["svg"])]
    assert any("loss-against-compute" in name for name in written)
    assert not any("schedules" in name for name in written)
