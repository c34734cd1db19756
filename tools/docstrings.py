"""Docstrings as the site shows them: equations as MathML, which needs no script, and `Example:` as a code block."""

from __future__ import annotations

import re
from typing import Any

import griffe
from latex2mathml.converter import convert

_BLOCK = re.compile(r"^( *)\.\. math::((?: [^\n]*)?(?:\n(?=\1 +\S)[^\n]*)*)", re.MULTILINE)
_INLINE = re.compile(r":math:`([^`]+)`")
_TABLE = re.compile(r"^=+(?:  =+)+\n(.*?\n)=+(?:  =+)+\n(.*?\n)=+(?:  =+)+$", re.MULTILINE | re.DOTALL)


def as_markdown(docstring: str) -> str:
    """A docstring with its equations, tables and examples in the form that the site's Markdown knows."""
    text = _BLOCK.sub(lambda m: f"{m[1]}{_mathml(m[2], 'block')}", docstring)
    text = _INLINE.sub(lambda m: _mathml(m[1], "inline"), text)
    text = _TABLE.sub(lambda m: _table(m[1], m[2]), text)
    return re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)


def _mathml(latex: str, display: str) -> str:
    return convert(" ".join(latex.split()), display=display)


def _table(head: str, body: str) -> str:
    rows = [re.split(r" {2,}", line.strip()) for line in (head + body).splitlines()]
    lines = ["| " + " | ".join(cell.replace("``", "`") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


class Docstrings(griffe.Extension):
    """Changes every docstring as it is read."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
