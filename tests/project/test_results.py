"""Tables and figures of the pages are those that the records in `results/` give."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pandas as pd
import pytest

from neurogenesis import report
from neurogenesis.report.sections import make_section
from neurogenesis.report.tables import results_table
from tests import fake_runs as fake
from tools.compact import KEPT, RESULTS_ONLY, compact
from tools.results import figures, pages, records
from tools.results.claims import CLAIMS, claims_table
from tools.results.pages import PAGES, TABLES, differences, found, markdown, rebuilt

MOST_BYTES = 20_000_000
ON_PAGES = [(page, name) for page in PAGES for name in found(page.read_text("utf-8"))]


@pytest.mark.parametrize(("page", "name"), ON_PAGES, ids=[f"{page.name}-{name}" for page, name in ON_PAGES])
def test_tables_say_what_the_records_say(page: Path, name: str) -> None:
    told = found(page.read_text("utf-8"))[name]
    assert differences(told, markdown(TABLES[name]())) == [], "run make results"


def test_every_table_is_on_a_page_once_its_records_are_here() -> None:
    shown = {name for _, name in ON_PAGES}
    without_records = {name for name in TABLES if name.startswith("mnist-") and not records.exists(name)}
    assert shown | without_records == set(TABLES)


@pytest.mark.parametrize("name", list(figures.FIGURES))
def test_figures_show_what_the_records_say(name: str) -> None:
    shown = figures.contained(figures.DOCS / name)
    assert figures.alike(shown, figures.numbers(figures.FIGURES[name]())), "run make results"


@pytest.mark.parametrize("name", list(figures.FIGURES))
def test_every_figure_is_on_a_page(name: str) -> None:
    assert any(re.search(rf"\((docs/)?{re.escape(name)}\)", page.read_text("utf-8")) for page in PAGES)


def test_records_are_small() -> None:
    assert sum(path.stat().st_size for path in records.RESULTS.rglob("*") if path.is_file()) <= MOST_BYTES


@pytest.mark.parametrize("kept", [KEPT, RESULTS_ONLY])
def test_compact_records_have_the_same_results(kept: tuple[str, ...], tmp_path: Path) -> None:
    runs = [fake.settings(strategy=strategy, seed=seed) for strategy in ("need", "medium") for seed in (1, 2)]
    study = fake.write_study(tmp_path / "runs", "made", "Made", runs)
    assert compact(study, tmp_path / "results" / "made", kept) == 4
    tables = [results_table(make_section(report.read([place]).studies[0], "made"))
              for place in (study, tmp_path / "results" / "made")]  # fmt: skip
    assert tables[0] == tables[1]


def test_a_page_is_rebuilt_between_its_markers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TABLES, "made", lambda: [{"strategy": "need", "accuracy": "98.1"}])
    before = "Text 1.\n\n<!-- results: made -->\n\n| old |\n\n<!-- end -->\n\nText 2.\n"
    table = "| strategy | accuracy |\n|---|---|\n| need | 98.1 |"
    after = f"Text 1.\n\n<!-- results: made -->\n\n{table}\n\n<!-- end -->\n\nText 2.\n"
    assert rebuilt(before) == rebuilt(after) == after
    assert found(after) == {"made": table}


@pytest.mark.parametrize(
    ("page", "result", "same"),
    [
        ("98.10 ± 0.20", "98.11 ± 0.19", True),  # another machine rounds differently
        ("98.10 ± 0.20", "98.12 ± 0.20", False),
        ("1,234,567", "1,234,568", True),
        ("1,234,567", "1,234,570", False),
        ("| need | 98.1 |", "| nest | 98.1 |", False),
        ("| need | 98.1 |", "| need | |", False),
        ("| +0.12 |", "| -0.12 |", False),
        ("16-16", "16-17", True),
    ],
)
def test_numbers_may_differ_by_rounding(page: str, result: str, same: bool) -> None:
    assert (differences(page, result) == []) is same


def test_a_figure_contains_its_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from neurogenesis.report.figures import Figure
    from neurogenesis.report.figures.style import table

    data = {"rows": pd.DataFrame([{"x": 1 / 3, "y": 2, "strategy": "need"}])}
    chart = table("rows").mark_point().encode(x="x:Q", y="y:Q")
    monkeypatch.setattr(figures, "DOCS", tmp_path)
    monkeypatch.setattr(figures, "FIGURES", {"made.png": lambda: Figure("made", "Made", "", "", chart, data)})
    assert figures.write_figure("made.png")
    assert figures.contained(tmp_path / "made.png") == {"rows": [{"x": 0.3333, "y": 2, "strategy": "need"}]}
    assert not figures.write_figure("made.png")  # it shows these numbers already
    data["rows"].loc[0, "x"] = 0.5
    assert figures.write_figure("made.png")


def test_every_claim_has_a_verdict_and_a_command() -> None:
    rows = claims_table()
    assert len(rows) == len(CLAIMS)
    for row in rows:
        assert row["verdict"] in ("met", "not met", "not comparable", "not run yet")
        assert row["command"].startswith("`neurogenesis sweep ")
        assert row["here"] or row["verdict"] == "not run yet"


@pytest.mark.parametrize("module", [pages, figures, records])
def test_examples(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]
