"""Configs of Transformers follow the sizes of a model, so that its class builds it as it is.

No table says which field means what. A field is a candidate if it has the value of a size, or of a factor of it, and it
is set if the class, built from the changed config on the meta device, has more of the model's shapes and numbers. All
must agree in the end; otherwise the config stays as it was.
"""

from __future__ import annotations

import copy
import json
import logging
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import PreTrainedModel

from ..structure.axes import Structure
from ..structure.extensions import Operation, libraries_of, register
from ..structure.finding import latest_structure
from ..structure.interfaces import resized_interfaces
from ..structure.kept import kept_of
from ..structure.known import Place
from ..structure.paths import attribute_at, set_attribute
from .config_fields import Change, Misfits, by_factors, differing_pairs, refusal_of, same_values, set_field

Shapes = Mapping[str, tuple[int, ...]]
_TRIALS = 60  # builds in a search
Placed = TypeVar("Placed")


@dataclass(frozen=True)
class Build:
    """What a config decides on in a model: the shapes of tensors, and numbers that are attributes of modules."""

    shapes: dict[str, tuple[int, ...]]
    numbers: dict[Place, float]

    @staticmethod
    def of(model: nn.Module) -> Build:
        """Those of a model as it is."""
        tensors = {**model.state_dict(keep_vars=True), **dict(model.named_buffers())}
        numbers = {
            (path, name): value
            for path, module in model.named_modules()
            for name, value in vars(module).items()
            if type(value) in (int, float) and not name.startswith("_")
        }
        return Build({name: tuple(value.shape) for name, value in tensors.items()}, numbers)

    @staticmethod
    def by(kind: type, config: Any) -> Build:
        """Those of a model of a class that is built from a config; raises whatever the class or the config raises."""
        with torch.random.fork_rng(devices=[]), torch.device("meta"), _silent():
            return Build.of(kind(copy.deepcopy(config)))


@contextmanager
def _silent() -> Iterator[None]:
    """Without remarks on token numbers and generation settings of configs that are only tried."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


class _Search:
    """The search for the changes of a config after which its class builds a model as it is."""

    def __init__(self, model: Any, path: str = "", structure: Structure | None = None):
        self.model, self.wanted = model, Build.of(model)
        self.old = _built_before(model)
        places = None if structure is None else [place[:2] for place in structure.attribute_values()]
        self.traced = None if places is None else set(_below(path, places))
        self.reads = set() if structure is None else set(_below(path, structure.reads))
        root = model if structure is None else structure.model() or model
        self.interfaces = set(_below(path, resized_interfaces(root)))
        self.new, self.changes = self.old, list[Change]()
        self.nearest = self.misfits(self.old)  # of all that was tried
        self.refusal = ""
        self._tried: set[frozenset[str]] = set()

    def run(self) -> bool:
        """Whether the config describes the model after `changes`."""
        if _layers_differ(self.old.shapes, self.wanted.shapes):
            return False
        return not self.nearest or self._changed(copy.deepcopy(self.model.config), [], self.nearest)

    def _changed(self, config: Any, changes: list[Change], left: Misfits) -> bool:
        """Whether more changes leave no misfit; each must leave fewer. Tried first are fields that have the value."""
        pairs, set_before = differing_pairs(left), {change[:2] for change in changes}
        for more in (*same_values(config, pairs), *by_factors(config, pairs)):
            both = [*changes, *more]
            key = frozenset(map(repr, both))
            if key in self._tried or not set_before.isdisjoint(change[:2] for change in more):
                continue
            if len(self._tried) == _TRIALS:
                return False
            self._tried.add(key)
            changed = copy.deepcopy(config)
            if (built := self._built(changed, more)) is None:
                continue
            misfits = self.misfits(built)
            if not misfits and (refusal := refusal_of(changed)) is not None:
                fields = ", ".join(f"{name}={value}" for _, name, value in both)
                self.refusal = f"{type(config).__name__} refuses {fields}: {refusal}"
                continue
            if len(misfits) < len(self.nearest) and self._lacking(built) <= self._lacking(self.old):
                self.nearest = misfits
            if not misfits:
                self.new, self.changes = built, both
                return True
            if len(misfits) < len(left) and self._changed(changed, both, misfits):
                return True
        return False

    def _built(self, config: Any, changes: Iterable[Change]) -> Build | None:
        """What the model's class makes of a config after these changes to it; None if a field means something else."""
        try:
            for change in changes:
                set_field(config, change)
            return Build.by(type(self.model), config)
        except Exception:
            return None

    def set_interfaces(self) -> None:
        """Find the changes that make up for classes and tokens alone: the loss of a model reads their number."""
        config, left = copy.deepcopy(self.model.config), self._wrong_axes(self.old)
        places = {place: pair for place, pair in left.items() if place in self.interfaces}
        for more in same_values(config, list(dict.fromkeys(places.values()))):
            changed = copy.deepcopy(config)
            if (built := self._built(changed, more)) is None:
                continue
            found = self._wrong_axes(built)
            if found.items() < left.items() and places.keys() - found.keys() and refusal_of(changed) is None:
                config, left, self.new = changed, found, built
                self.changes += more

    def _wrong_axes(self, built: Build) -> dict[tuple[str, int], tuple[int, int]]:
        """Lengths as built, and as they are, by tensor and axis, where they differ."""
        return {
            (name, axis): pair
            for name, shape in self.wanted.shapes.items()
            for axis, pair in enumerate(zip(built.shapes.get(name, shape), shape, strict=False))
            if pair[0] != pair[1]
        }

    def _lacking(self, built: Build) -> set[str]:
        """The tensors of the model that a config does not build."""
        return self.wanted.shapes.keys() - built.shapes.keys()

    def parted(self) -> str | None:
        """Two attributes to which the config gives one number, as they have been so far, and which differ by now."""
        counted = [place for place, value in self.wanted.numbers.items() if isinstance(value, float)]
        for first, place in ((a, b) for a in counted for b in counted if a[1] == b[1]):
            same = self.old.numbers.get(first) == self.old.numbers.get(place) == self.wanted.numbers[place]
            if same and self.wanted.numbers[first] != self.wanted.numbers[place]:
                return f"{_dotted(first)} and {_dotted(place)}"
        return None

    def misfits(self, built: Build) -> Misfits:
        """What a config builds with another shape or number than the model has: both, by name."""
        wanted, found = self.wanted.shapes, built.shapes
        result: Misfits = {
            name: (found.get(name), wanted.get(name))
            for name in (*wanted, *(found.keys() - wanted))
            if found.get(name) != wanted.get(name)
        }
        for place, number in self.wanted.numbers.items():
            other = built.numbers.get(place, number)
            if other != number and self._counts(place, number, other):
                result[_dotted(place)] = other, number
        return result

    def _counts(self, place: Place, number: float, other: float) -> bool:
        """Whether it matters that a config gives an attribute another value than it has."""
        if self.traced is None:
            return isinstance(number, float)
        if place in self.traced:
            return True
        # Others matter if the model computes with them, and the changed config is what makes them differ.
        return (isinstance(number, float) or place in self.reads) and other != self.old.numbers.get(place)

    def followers(self) -> Iterator[tuple[nn.Module, str, int]]:
        """Module, name and value of attributes that nothing is computed from, and that the class sets by the config."""
        for place, number in self.wanted.numbers.items():
            new = self.new.numbers.get(place, number)
            known = self.traced is None or place in self.traced or place in self.reads
            if new != number and not known and isinstance(number, int) and self.old.numbers.get(place) == number:
                yield self.model.get_submodule(place[0]), place[1], int(new)


def update_config(model: Any) -> bool:
    """Update a model's config, so that its class builds the model as it is.

    Sizes such as ``intermediate_size``, ``num_attention_heads`` or ``vocab_size`` are set, in nested configs too, and
    the ``eps`` of norms. If the config cannot describe all, as when it has one size for layers that differ, it is not
    changed. Growing and shrinking by hand do this by themselves.

    Returns:
        Whether the config describes the model.
    """
    return config_problem(model) is None


def config_problem(model: Any, path: str = "", structure: Structure | None = None) -> str | None:
    """Why the config of a model cannot describe it; None if it does. Then the config has been updated.

    Args:
        model: the model.
        path: of the model, in a larger one that the structure describes.
        structure: by default the last that was found for the model.
    """
    try:
        search = _Search(model, path, structure or latest_structure(model))
    except Exception as error:
        return f"{type(model).__name__} cannot be built from its config alone: {error}"
    fits = search.run()
    if not fits:
        search.set_interfaces()
    followers = list(search.followers())
    for change in search.changes:
        set_field(model.config, change)
    for module, name, value in followers:
        setattr(module, name, value)
    if fits:
        fields = kept_of(model).fields
        fields.update({place: attribute_at(model.get_submodule(place[0]), place[1]) for place in fields})
        return None
    kind = type(model.config).__name__
    if _layers_differ(search.old.shapes, search.wanted.shapes):
        return f"{kind} has one size for layers that differ here"
    name, (built, wanted) = next(iter(search.nearest.items()))
    if isinstance(wanted, float) and (parted := search.parted()) is not None:
        return f"{kind} has one number for {parted}, which differ here"
    return search.refusal or f"{kind} gives {name} {built}, which is {wanted} here"


@contextmanager
def as_built(model: nn.Module) -> Iterator[None]:
    """Give the fields of configs that follow sizes the values that built the model, from which others follow.

    A model that is built from such a config is resized to the saved sizes, and its fields are set then.
    """
    places = [(model.get_submodule(path), name, value) for (path, name), value in kept_of(model).fields.items()]
    present = [attribute_at(module, name) for module, name, _ in places]
    try:
        for module, name, value in places:
            set_attribute(module, name, value)
        yield
    finally:
        for (module, name, _), value in zip(places, present, strict=True):
            set_attribute(module, name, value)


def _layers_differ(built: Shapes, wanted: Shapes) -> bool:
    """Whether layers of different sizes, whose names differ in numbers only, are built alike by a config."""
    shapes: dict[tuple[str, tuple[int, ...]], set[tuple[int, ...]]] = {}
    for name, shape in built.items():
        shapes.setdefault((re.sub(r"\d+", "*", name), shape), set()).add(wanted.get(name, ()))
    return any(len(each) > 1 for each in shapes.values())


def _dotted(place: Place) -> str:
    return ".".join(filter(None, place))


def _below(path: str, places: Iterable[tuple[str, Placed]]) -> Iterator[tuple[str, Placed]]:
    """Places in a submodule, with paths from there on."""
    for own, name in places:
        if not path or f"{own}.".startswith(f"{path}."):
            yield own[len(path) + 1 :] if path else own, name


def _built_before(model: Any) -> Build:
    """What the present config builds; it is remembered until the config changes."""
    key = json.dumps(model.config.to_dict(), default=repr, sort_keys=True)
    known: tuple[str, Build] | None = kept_of(model).built
    if known is None or known[0] != key:
        known = kept_of(model).built = key, Build.by(type(model), model.config)
    return known[1]


# --- configs follow surgery ------------------------------------------------------------------------------


def has_adapters(model: nn.Module) -> bool:
    """Whether a model has adapters of PEFT: then these are saved, not the model."""
    return isinstance(getattr(model, "peft_config", None), Mapping) and "peft" in libraries_of(model)


class Configs:
    """The extension for models of Transformers: after surgery by hand, their configs follow if they can."""

    def limit(self, model: nn.Module, structure: Structure) -> None:
        """Nothing: operations show all limits."""

    def idle(self, model: nn.Module) -> Container[str]:
        """Nothing."""
        return ()

    def follow(self, model: nn.Module) -> Sequence[Operation]:
        """Nothing, for a config may only be right once all layers have been resized."""
        return ()

    def settle(self, model: nn.Module) -> None:
        """Update the config of each model of Transformers that is not part of another one."""
        if has_adapters(model):
            return
        found = [(path, each) for path, each in model.named_modules() if isinstance(each, PreTrainedModel)]
        inner = {id(each) for _, own in found for each in own.modules() if each is not own}
        for path, each in found:
            if id(each) not in inner:
                config_problem(each, path, latest_structure(model))


register(Configs())
