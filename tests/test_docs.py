"""Every example printed in the README and the docs runs as printed and prints what it says it prints."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"```python\n(.*?)```\n(?:\n?```text\n(.*?)```)?", re.DOTALL)


@pytest.mark.parametrize("page", [p for p in PAGES if "```python" in p.read_text("utf-8")], ids=lambda page: page.name)
def test_examples_run_as_printed(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # some write files
    blocks = BLOCK.findall(page.read_text("utf-8"))
    assert len(blocks) == page.read_text("utf-8").count("```python")
    names: dict[str, object] = {}  # the blocks of a page are one program
    for code, expected in blocks:
        torch.manual_seed(0)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(page), "exec"), names)
        if expected:
            assert printed.getvalue().rstrip() == expected.rstrip()


def commands(page: Path) -> list[list[str]]:
    """The lines of its shell examples that are our command."""
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("neurogenesis ")]
    return [shlex.split(line, comments=True)[1:] for line in lines]


@pytest.mark.parametrize("page", [p for p in PAGES if commands(p)], ids=lambda page: page.name)
def test_commands_are_given_as_they_are_to_be_called(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from neurogenesis.cli import main
    from neurogenesis.cli.commands import app

    monkeypatch.chdir(tmp_path)
    for words in commands(page):
        app.parse_args(words, exit_on_error=False, print_error=False)
        if words[1] == "digits" and words[0] == "run":
            assert main(words) == 0  # the others take longer, or data
        elif words[0] == "widths":
            assert main(words) == 0
        elif words[0] == "report" and Path(words[1]).exists():
            assert main(words) == 0
            assert Path(capsys.readouterr().out.split()[-1]).exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\((?!http)([^)#]+)", text):
        assert (page.parent / target).exists(), target


def test_the_studies_have_as_many_runs_as_the_docs_say() -> None:
    from neurogenesis.experiments.studies import STUDIES

    rows = re.findall(
        r"^\| (`[^|]*`) \| ([\d, ]+) \|", (ROOT / "docs" / "experiments.md").read_text("utf-8"), re.MULTILINE
    )
    told = {name.strip("` "): int(number) for names, numbers in rows
            for name, number in zip(names.split(","), numbers.split(","), strict=True)}  # fmt: skip
    assert told == {name: len(list(study.runs())) for name, study in STUDIES.items() if not name.endswith("-small")}
