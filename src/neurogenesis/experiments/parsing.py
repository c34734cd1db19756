"""Records to and from JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, TypeVar, get_type_hints

from .record import Measurements, Sizes

T = TypeVar("T")

INVALID = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
"""What `parse` raises if the content is not such a record."""


def to_json(record: Any) -> dict[str, Any]:
    """The fields of a record as a JSON object; empty tuples are left out."""
    return {name: value for name, value in vars(record).items() if value != ()}


def parse(kind: type[T], content: Any) -> T:
    """A record from its JSON object; one of `INVALID` is raised if it is not such a record.

    Fields with a default may be missing, null or not finite. Unknown fields are ignored.

    Example:
        >>> from neurogenesis.experiments.record import Step
        >>> parse(Step, {"step": 3, "widths": {"hidden1": 8}, "loss": float("nan")}).widths
        {'hidden1': 8}
    """
    values, given = {}, dict(content)
    for name, required, convert in _converters(kind):  # type: ignore[arg-type]  # types are hashable
        if required or given.get(name) is not None:
            value = convert(given[name])
            if required or value is not None:
                values[name] = value
    return kind(**values)


@cache
def _converters(kind: Any) -> list[tuple[str, bool, Callable[[Any], Any]]]:
    """Of each field its name, whether it is required, and what converts its value."""
    types = get_type_hints(kind)
    found = []
    for one in fields(kind):
        required = one.default is MISSING and one.default_factory is MISSING
        convert = _finite if types[one.name] is float and not required else _CONVERTERS.get(types[one.name], _as_is)
        found.append((one.name, required, convert))
    return found


def _finite(value: Any) -> float | None:
    """A number, or None if it is missing or not finite, like the loss of a diverged run."""
    number = float(value) if value is not None else math.nan
    return number if math.isfinite(number) else None


def _number(value: Any) -> float:
    number = _finite(value)
    if number is None:
        raise ValueError(f"{value!r} is not a finite number")
    return number


def _sizes(value: Any) -> dict[str, int]:
    return {str(name): int(size) for name, size in value.items()}


def _measurements(value: Any) -> dict[str, float]:
    numbers = ((str(name), _finite(number)) for name, number in value.items())
    return {name: number for name, number in numbers if number is not None}


def _objects(value: Any) -> list[dict[str, Any]]:
    return [dict(each) for each in value]


def _as_is(value: Any) -> Any:
    return value


_CONVERTERS: dict[Any, Callable[[Any], Any]] = {
    int: int,
    str: str,
    float: _number,
    float | None: _finite,
    Sizes: _sizes,
    Sizes | None: lambda value: _sizes(value) if value else None,
    Measurements: _measurements,
    Sequence[Mapping[str, Any]]: _objects,
}
