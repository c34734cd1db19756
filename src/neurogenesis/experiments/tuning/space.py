"""The space of a search: widths of static networks, or settings by name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ..building import build_network, build_strategy, initial_widths, widths_of
from ..data import Data
from ..errors import UsageError, unknown_name
from ..presets import NAMES
from ..settings import SHAPED, Dense, Settings
from ..shapes import SHAPES

WIDTHS = "widths"
"""The name under which widths are searched."""
_SIZE = "size"
_OF_THE_SEARCH = (NAMES.seed, NAMES.holdout, NAMES.shape, NAMES.shape_of)
_WITH_WIDTHS = (NAMES.strategy, NAMES.hidden, NAMES.initial, NAMES.medium, NAMES.maximum)
_LOG_FACTOR = 10
"""A range whose ends differ by this factor or more is searched on a logarithmic scale."""


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included."""

    low: float
    high: float
    whole: bool
    log: bool

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}"

    @property
    def examples(self) -> tuple[float, ...]:
        """The ends."""
        return self.low, self.high


@dataclass(frozen=True)
class Choices:
    """Some values."""

    values: tuple[Any, ...]

    def __str__(self) -> str:
        return ",".join(map(str, self.values))

    @property
    def examples(self) -> tuple[Any, ...]:
        return self.values


Domain = Range | Choices


@dataclass(frozen=True)
class Space:
    """The domains of a search, and the settings that all of its points have in common."""

    base: Settings
    widths: Mapping[str, Range] = field(default_factory=dict)
    """The width of each layer of a dense network, or one size for a convolutional network."""
    settings: Mapping[str, Domain] = field(default_factory=dict)

    @property
    def domains(self) -> dict[str, Domain]:
        """All domains by name."""
        return {**self.widths, **self.settings}

    def at(self, point: Mapping[str, Any]) -> Settings:
        """The settings of a point, which has a value for each name."""
        changes = {name: point[name] for name in self.settings}
        if self.widths:
            changes[NAMES.shape] = "-".join(_size_text(point[name]) for name in self.widths)
        if self.base.epochs == self.base.usual_epochs and NAMES.epochs not in changes:
            changes[NAMES.epochs] = replace(self.base, **changes).usual_epochs  # which may depend on other settings
        return replace(self.base, **changes)


def _size_text(size: float) -> str:
    return str(size) if isinstance(size, int) else f"{size:.4f}"


def make_space(settings: Settings, searched: Sequence[str]) -> Space:
    """The space of a search: widths, unless settings are named, such as "learning_rate=1e-4..1e-2".

    Raises UsageError if a name or a value is wrong.
    """
    named = [text for text in searched if text != WIDTHS]
    with_widths = len(named) < len(searched) or not searched
    base, widths = settings, {}
    if with_widths:
        if settings.strategy != type(settings)().strategy:
            raise UsageError(
                f"--strategy {settings.strategy} has no effect on a search of widths, whose networks are static: "
                "remove it, or name what to search with --search"
            )
        widths = _widths(settings)
        base = replace(settings, strategy=SHAPED, shape=_size_text(next(iter(widths.values())).low))
    domains = {}
    for text in named:
        name, domain = _parse(type(settings), text)
        if name in domains:
            raise UsageError(f"--search {text}: {name} is given twice")
        if name in _WITH_WIDTHS and with_widths:
            raise UsageError(f"--search {text}: {name} cannot be searched together with {WIDTHS}")
        domains[name] = domain
    space = Space(base, widths, domains)
    _check(space, dict(zip(domains, named, strict=True)))
    return space


def _widths(settings: Settings) -> dict[str, Range]:
    """The widths of each layer of a dense network, or one size for all layers of a convolutional one."""
    low, high = settings.sizes["small"], settings.sizes["big"]
    if not low < high:
        raise UsageError(f"--initial {low:g} and --maximum {high:g}: there are no widths to search in between")
    if not isinstance(settings, Dense):
        return {_SIZE: Range(float(low), float(high), whole=False, log=True)}
    return {name: Range(int(low), int(high), whole=True, log=True) for name in widths_of(settings, low)}


def _parse(preset: type[Settings], text: str) -> tuple[str, Domain]:
    """The setting and the domain that a text names."""
    written, equals, values = text.partition("=")
    name = written.strip().replace("-", "_")
    known = [each.name for each in fields(preset)]
    if name not in known:
        raise unknown_name("setting", written, [each for each in known if each not in _OF_THE_SEARCH])
    if name in _OF_THE_SEARCH:
        raise UsageError(f"--search {text}: {name} cannot be searched, because the search itself sets it")
    if not equals or not values.strip():
        raise UsageError(f"--search {text}: expected a range such as {name}=1..8, or choices such as {name}=1,2,4")
    kind = _kind(get_type_hints(preset)[name])
    if ".." in values:
        return name, _range(text, kind, *values.split("..", 1))
    return name, Choices(tuple(dict.fromkeys(_value(text, kind, part.strip()) for part in values.split(","))))


def _kind(hint: Any) -> Any:
    """The type of a setting, without None."""
    if get_origin(hint) in (Union, UnionType):
        return next(part for part in get_args(hint) if part is not type(None))
    return hint


def _range(text: str, kind: Any, first: str, last: str) -> Range:
    if kind not in (int, float):
        raise UsageError(f"--search {text}: it is not a number: give choices, separated by commas")
    low, high = (_value(text, kind, end.strip()) for end in (first, last))
    if not low < high:
        raise UsageError(f"--search {text}: the range is empty: the first number must be less than the second")
    return Range(low, high, whole=kind is int, log=0 < low * _LOG_FACTOR <= high)


def _value(text: str, kind: Any, value: str) -> Any:
    """A value of the type of a setting."""
    if kind is bool:
        if value not in ("true", "false"):
            raise UsageError(f"--search {text}: expected true or false, not {value!r}")
        return value == "true"
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise UsageError(f"--search {text}: expected {' or '.join(get_args(kind))}, not {value!r}")
        return value
    try:
        number = kind(value)
    except ValueError:
        noun = "a whole number" if kind is int else "a number"
        raise UsageError(f"--search {text}: expected {noun}, not {value!r}") from None
    if kind is float and not math.isfinite(number):
        raise UsageError(f"--search {text}: expected a finite number, not {value!r}")
    return number


def _check(space: Space, texts: Mapping[str, str]) -> None:
    """Try every end and choice once, so that none of them fails only in a trial."""
    usual = {name: domain.examples[0] for name, domain in space.domains.items()}
    for name, text in texts.items():
        for value in space.settings[name].examples:
            try:
                _build(space.at({**usual, name: value}))
            except UsageError as error:
                raise UsageError(f"--search {text}: {error}") from None
    _build(space.at(usual))


def _build(settings: Settings) -> None:
    build_strategy(settings, 1)
    initial_widths(settings)


def initial_parameters(settings: Settings) -> int:
    """The number of parameters before training; static networks keep it."""
    import torch

    _, shape, classes = SHAPES[settings.data_set]
    with torch.device("meta"):
        empty = torch.empty(0, *shape), torch.empty(0)
        network = build_network(settings, Data(empty, empty, classes))
    return sum(parameter.numel() for parameter in network.parameters())
