"""Every example printed in the README and the docs runs as printed and prints what it says it prints."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"```python\n(.*?)```\n(?:\n?```text\n(.*?)```)?", re.DOTALL)


@pytest.mark.parametrize("page", [p for p in PAGES if "```python" in p.read_text()], ids=lambda page: page.name)
def test_examples_run_as_printed(page: Path) -> None:
    blocks = BLOCK.findall(page.read_text())
    assert len(blocks) == page.read_text().count("```python")
    names: dict[str, object] = {}  # the blocks of a page are one program
    for code, expected in blocks:
        torch.manual_seed(0)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(page), "exec"), names)
        if expected:
            assert printed.getvalue().rstrip() == expected.rstrip()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target
