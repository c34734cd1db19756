"""Every example printed in the README and the docs runs as printed and prints what it says it prints."""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import shlex
from pathlib import Path

import pytest
import torch

from tools import printed
from tools.printed import differences, examples

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", [p for p in PAGES if "```python" in p.read_text("utf-8")], ids=lambda page: page.name)
def test_examples_run_as_printed(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # some write files
    names: dict[str, object] = {}  # the blocks of a page are one program
    for code, told, varies in examples(page.read_text("utf-8")):
        torch.manual_seed(0)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, str(page), "exec"), names)
        if told:
            assert differences(out.getvalue(), told, varies) == []


TABLE = """\
width  size  maximum    measured   threshold  at step
-----------------------------------------------------
0      97    unlimited  -0.009927  0.0428     422      done until step 864, unless another width grows"""


@pytest.mark.parametrize(("old", "new"), [("-0.009927", "-0.009926"), ("-0.009927", "-0.01"), ("0.0428 ", "0.04281"),
                                          ("-0.009927", "-9.7e-03"), ("-----", "-------")])  # fmt: skip
def test_processors_may_round_differently(old: str, new: str) -> None:
    assert old in TABLE and differences(TABLE.replace(old, new), TABLE) == []


OTHERS = [("422", "423"), ("97", "98"), ("0.0428", "0.0435"), ("-0.009927", "0.009927"), ("-0.009927", "nan"),
          ("done", "waits"), ("\n0 ", "\n1 "), ("422", "422.5"), ("width", "size"), ("grows", "grows\n")]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), OTHERS)
def test_other_words_sizes_and_measurements_are_noticed(old: str, new: str) -> None:
    assert old in TABLE and differences(TABLE.replace(old, new) + ".", TABLE + ".") != []


@pytest.mark.parametrize(("old", "new"), [("97", "50"), ("97", "190"), ("422", "500"), ("-0.009927", "0.0123")])
def test_numbers_of_long_runs_may_vary(old: str, new: str) -> None:
    assert differences(TABLE.replace(old, new), TABLE, varies=True) == []


TOO_MUCH = [("97", "40"), ("97", "200"), ("422", "20"), ("0.0428", "0.428"), ("-0.0099", "-0.99"), ("\n0 ", "\n1 "),
            ("done", "waits"), ("unlimited", "9")]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), TOO_MUCH)
def test_numbers_of_long_runs_do_not_vary_at_will(old: str, new: str) -> None:
    assert old in TABLE and differences(TABLE.replace(old, new), TABLE, varies=True) != []


def test_the_example_of_the_comparison_runs() -> None:
    found = doctest.testmod(printed)
    assert (found.failed, found.attempted) == (0, 2)


def test_pages_say_which_numbers_vary() -> None:
    page = """
```python
1
```

```python
2
```

```text
22
```

```python
3
```

<!-- numbers vary -->
```text
33
```
"""
    assert examples(page) == [("1\n", "", False), ("2\n", "22\n", False), ("3\n", "33\n", True)]
    with pytest.raises(AssertionError, match="above no output"):
        examples(page.replace("```python\n3", "```py\n3"))


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
        found = (page.parent / target).resolve()
        assert found.exists(), target
        assert page.parent == ROOT or found.is_relative_to(ROOT / "docs"), f"{target} is not part of the site"


def test_the_studies_have_as_many_runs_as_the_docs_say() -> None:
    from neurogenesis.experiments.studies import STUDIES

    rows = re.findall(
        r"^\| (`[^|]*`) \| ([\d, ]+) \|", (ROOT / "docs" / "experiments.md").read_text("utf-8"), re.MULTILINE
    )
    told = {name.strip("` "): int(number) for names, numbers in rows
            for name, number in zip(names.split(","), numbers.split(","), strict=True)}  # fmt: skip
    assert told == {name: len(list(study.runs())) for name, study in STUDIES.items() if not name.endswith("-small")}
