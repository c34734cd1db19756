"""Records to and from JSON."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

INVALID = (TypeError, ValueError)
"""What `parse` and `RecordedSettings` raise if the content is not such a record."""


def to_json(record: Any) -> dict[str, Any]:
    """The fields of a record as a JSON object; empty tuples are left out."""
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    return {name: value for name, value in values.items() if value != ()}


def from_json(text: str | bytes) -> Any:
    """The content of a JSON text; numbers that are not finite, like the loss of a diverged run, become null."""
    return json.loads(text, parse_constant=lambda name: None)


def parse(kind: type[T], content: Any) -> T:
    """A record from its JSON object; `msgspec.ValidationError` says what is wrong with it, and where.

    Fields with a default may be missing or null. Unknown fields are ignored.

    Example:
        >>> from neurogenesis.experiments.record import Step
        >>> parse(Step, {"step": 3, "widths": {"hidden1": 8}, "loss": None, "color": "red"}).widths
        {'hidden1': 8}
        >>> parse(Step, {"step": 3, "widths": {"hidden1": "wide"}})
        Traceback (most recent call last):
        msgspec.ValidationError: Expected `int`, got `str` - at `$.widths[...]`
    """
    if isinstance(content, dict):
        content = {name: value for name, value in content.items() if value is not None}
    return msgspec.convert(content, kind, strict=False)
