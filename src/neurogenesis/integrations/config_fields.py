"""Fields of configs of Transformers that may hold a size, and their changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Misfits = dict[str, tuple[Any, Any]]  # what a config builds and what a model has, by name
Change = tuple[tuple[str, ...], str, Any]  # path of the nested config, name of the field, value


def differing_pairs(misfits: Misfits) -> list[tuple[float, float]]:
    """Sizes and numbers as built, and as they are, where they differ."""
    found: dict[tuple[float, float], None] = {}
    for built, wanted in misfits.values():
        if isinstance(built, tuple) and isinstance(wanted, tuple):
            found.update(dict.fromkeys(zip(built, wanted, strict=False)))
        elif not isinstance(built, tuple) and not isinstance(wanted, tuple):
            found[built, wanted] = None
    return [pair for pair in found if pair[0] != pair[1]]


def same_values(config: Any, pairs: Sequence[tuple[float, float]]) -> Iterator[list[Change]]:
    """Changes of fields that have the old value: numbers, or names by number; then of fields that are not set."""
    fields = list(_fields(config))
    for old, new in pairs:
        for path, name, value in fields:
            if type(value) is type(old) and value == old:
                yield [(path, name, new)]
        counted = [
            (path, name, _counted(value, int(new)))
            for path, name, value in fields
            if isinstance(value, dict) and isinstance(old, int) and len(value) == old and _is_counted(value)
        ]
        for path in dict.fromkeys(path for path, *_ in counted):
            yield [change for change in counted if change[0] == path]
    for _, new in pairs:
        yield from ([(path, name, new)] for path, name, value in fields if value is None and isinstance(new, int))


def by_factors(config: Any, pairs: Sequence[tuple[float, float]]) -> Iterator[list[Change]]:
    """Changes of fields that are a factor of the old value, or that the value is divided by, such as heads."""
    for old, new in pairs:
        if not isinstance(old, int) or not isinstance(new, int) or min(old, new) < 1:
            continue
        for path, name, value in _fields(config):
            if type(value) is int and value > 0 and value != old:
                if old % value == 0 and value * new % old == 0:
                    yield [(path, name, value * new // old)]
                if value * old % new == 0 and value * old != value * new:
                    yield [(path, name, value * old // new)]


def _is_counted(value: Mapping[Any, Any]) -> bool:
    """Whether a dict names the numbers from 0 on, or numbers names so."""
    numbers = list(range(len(value)))
    return bool(value) and (list(value) == numbers or list(value.values()) == numbers)


def _counted(value: Mapping[Any, Any], size: int) -> dict[Any, Any]:
    """Such a dict with another number of entries; new ones have the names that Transformers gives to labels."""
    pairs = list(value.items())[:size]
    named = isinstance(pairs[0][1], str)
    more = [(n, f"LABEL_{n}") if named else (f"LABEL_{n}", n) for n in range(len(pairs), size)]
    return dict([*pairs, *more])


def _fields(config: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str, Any]]:
    """Path, name and value of each field in a config and in nested configs."""
    for name, value in vars(config).items():
        if hasattr(value, "to_diff_dict"):  # a config
            yield from _fields(value, (*path, name))
        elif not name.startswith("_"):
            yield path, name, value


def set_field(config: Any, change: Change) -> None:
    path, field, value = change
    for name in path:
        config = getattr(config, name)
    setattr(config, field, value)


def refusal_of(config: Any) -> str | None:
    """Why a config could not be saved and loaded; None if it can."""
    try:
        type(config).from_dict(config.to_dict())
    except Exception as error:
        return str(error).strip().splitlines()[-1].strip()
    return None
