"""The page on messages quotes messages that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import neurogenesis

SOURCES = Path(neurogenesis.__file__).parent.rglob("*.py")
PAGE = Path(__file__).parents[2] / "docs" / "troubleshooting.md"
QUOTED = re.findall(r"^### `(.*)`$", PAGE.read_text("utf-8"), re.MULTILINE)


def texts(node: ast.AST) -> list[str]:
    """The texts in a module, with … for what is filled in."""
    found = []
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            found.append(each.value)
        elif isinstance(each, ast.JoinedStr):
            found.append("".join(part.value if isinstance(part, ast.Constant) else "…" for part in each.values))
    return found


TEXTS = [text for path in SOURCES for text in texts(ast.parse(path.read_text("utf-8")))]


def exists(message: str) -> bool:
    """Whether a text has the parts of a message between …, in their order; one may be filled in by another text."""
    parts = [re.escape(part) for part in message.split("…")]
    return any(re.search(".*".join(parts), text, re.DOTALL) for text in TEXTS)


def test_the_page_quotes_many_messages_once() -> None:
    assert len(QUOTED) > 40
    assert len(QUOTED) == len(set(QUOTED)) == PAGE.read_text("utf-8").count("\n### ")


@pytest.mark.parametrize("message", QUOTED)
def test_quoted_messages_exist(message: str) -> None:
    assert len(message.replace("…", "").strip()) > 10
    assert exists(message)


def test_a_message_that_is_gone_is_noticed() -> None:
    assert exists("no width is called …; …")
    assert not exists("no width is named …; …")
