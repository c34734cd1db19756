"""Numbers that follow the number of blocks: the index of a block in it, and counts and lists in configs."""

from __future__ import annotations

import copy
import inspect
import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..structure.randomness import random_state_restored
from .runs import Run, reordered

_Place = tuple[tuple[str | int, ...], int]  # attributes, keys and indices that lead to it, and `Counter.extra`


@dataclass(frozen=True)
class Counter:
    """A place that holds the number of blocks, or a list with an entry for each.

    Args:
        module: path of the module that has the object.
        steps: attributes, keys and indices that lead to the place.
        extra: the number in the place is the number of blocks plus this; or a list has so many entries before theirs.
    """

    module: str
    steps: tuple[str | int, ...]
    extra: int = 0

    def __str__(self) -> str:
        name = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in self.steps)
        return f"{self.module}{name}" if self.module else name.removeprefix(".")

    def owner(self, model: nn.Module) -> Any:
        """The object that has the place."""
        found: Any = model.get_submodule(self.module)
        for step in self.steps[:-1]:
            found = item(found, step)
        return found

    def get(self, model: nn.Module) -> Any:
        """What is in the place."""
        return item(self.owner(model), self.steps[-1])


def item(owner: Any, step: str | int) -> Any:
    """An attribute of an object, or an entry of a mapping or list."""
    return owner[step] if isinstance(owner, (dict, list)) else getattr(owner, str(step))  # type: ignore[index]


def set_item(owner: Any, step: str | int, value: Any) -> None:
    """Set an attribute of an object, or an entry of a dict or list."""
    if isinstance(owner, (dict, list)):
        owner[step] = value  # type: ignore[index]
    else:
        setattr(owner, str(step), value)


def indices(model: nn.Module, run: Run) -> tuple[tuple[int, str, str, int], ...]:
    """Integers in blocks that count them, found by comparing blocks.

    Returns:
        Of each: the number of the module in the block, a path in it, the attribute, and its value in the first block.

    With a single block, integers count that equal its position, are no attributes of torch's own layers, and are
    arguments of the constructor whose default, if there is one, is None.
    """
    blocks = [run.modules(model, number) for number in range(len(run))]
    result = []
    for child, first in enumerate(blocks[0]):
        for path, module in first.named_modules():
            others = [own[child].get_submodule(path) for own in blocks]
            for name, value in vars(module).items():
                if type(value) is not int or name == "training":
                    continue
                values = [vars(other).get(name) for other in others]
                if len(values) > 1:
                    counts = values == list(range(value, value + len(values)))
                else:
                    counts = value == _position(model, run) and _counting_argument(module, name)
                if counts:
                    result.append((child, path, name, value))
    return tuple(result)


def _position(model: nn.Module, run: Run) -> int:
    return list(model.get_submodule(run.parent)._modules).index(run.blocks[0][0]) // len(run.blocks[0])


def _counting_argument(module: nn.Module, name: str) -> bool:
    if type(module).__module__.partition(".")[0] == "torch":
        return False
    argument = inspect.signature(type(module)).parameters.get(name)
    return argument is not None and argument.default in (inspect.Parameter.empty, None)


def counters(model: nn.Module, run: Run) -> tuple[Counter, ...]:
    """Counts and lists in the configs of a model, which must be one more for one more block.

    A config is an object from which the class of a module makes a module with the same names of parameters. What counts
    in it is found by trying: with one more there, it makes a module with one more block.
    """
    found: list[Counter] = []
    seen: set[int] = set()
    parts = run.parent.split(".") if run.parent else []
    for depth in range(len(parts) + 1):
        path = ".".join(parts[:depth])
        module = model.get_submodule(path)
        for name, config in vars(module).items():
            if id(config) in seen or not _may_configure(module, config):
                continue
            seen.add(id(config))
            if _names(type(module), config) == _names_of(module):
                found += _counters_in(module, path, name, config, run)
    return tuple(found)


def _may_configure(module: nn.Module, config: Any) -> bool:
    """Whether an object may be the one argument that a module is made from."""
    plain = isinstance(config, (nn.Module, torch.Tensor, str, int, float, type, list, tuple, set)) or config is None
    if plain or callable(config) or not (isinstance(config, dict) or hasattr(config, "__dict__")):
        return False
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    arguments = [each for each in inspect.signature(type(module)).parameters.values() if each.kind in kinds]
    return bool(arguments) and all(each.default is not inspect.Parameter.empty for each in arguments[1:])


def _names_of(module: nn.Module) -> set[str]:
    return {name for name, _ in module.named_parameters(remove_duplicate=False)}


def _names(kind: type[nn.Module], config: Any) -> set[str] | None:
    """Names of the parameters of a module made from a config; None if it cannot be made."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # constructors may log what is in a config
    try:
        with warnings.catch_warnings(), torch.device("meta"):
            warnings.simplefilter("ignore")
            return _names_of(kind(config))
    except Exception:  # it is no config, or not of this class
        return None
    finally:
        logging.disable(disabled)


def _counters_in(module: nn.Module, path: str, name: str, config: Any, run: Run) -> list[Counter]:
    """The counters in a config that make one more block."""
    parent = module.get_submodule(run.parent[len(path) :].lstrip("."))
    count, sizes = len(run), {len(run), len(parent._modules) // len(run.blocks[0])}
    prefix = run.parent[len(path) :].lstrip(".")
    expected = _with_one_more(module, prefix, run)
    numbers = [(steps, value - count) for steps, value in _places(config) if type(value) is int and value in sizes]
    before = list(parent._modules).index(run.blocks[0][0]) // len(run.blocks[0])
    lists = [
        (steps, 0 if len(value) == count else before)
        for steps, value in _places(config)
        if isinstance(value, list) and len(value) in sizes and len(value) > 1
    ]
    several = [[each] for each in lists] + [lists] * (len(lists) > 1)
    options = [[number, *more] for more in ([], *several) for number in numbers] + several  # no more than is needed
    options = [[number, *own] for number in numbers if (own := _following(config, number, lists))] + options
    with random_state_restored(module):
        for chosen in options:
            trial = copy.deepcopy(config)
            for steps, _ in chosen:
                owner = _at(trial, steps[:-1])
                value = item(owner, steps[-1])
                set_item(owner, steps[-1], [*value, value[-1]] if isinstance(value, list) else value + 1)
            if _names(type(module), trial) == expected:
                return [Counter(path, (name, *steps), extra) for steps, extra in chosen]
    return []


def _following(config: Any, number: _Place, lists: Sequence[_Place]) -> list[_Place]:
    """The lists that have one more entry in a config that is made with one more in a number."""
    (name, *deeper), _ = number
    if deeper or isinstance(config, dict):
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = type(config)(**{str(name): getattr(config, str(name)) + 1})
    except Exception:  # it needs more, or is made in another way
        return []
    after = {steps: len(value) for steps, value in _places(made) if isinstance(value, list)}
    return [each for each in lists if after.get(each[0]) == len(_at(config, each[0])) + 1]


def _at(config: Any, steps: Sequence[str | int]) -> Any:
    for step in steps:
        config = item(config, step)
    return config


def _with_one_more(module: nn.Module, prefix: str, run: Run) -> set[str]:
    """Names of the parameters of a module with one more block."""
    parent = module.get_submodule(prefix)
    blocks = [[parent.get_submodule(name) for name in names] for names in run.blocks]
    children = reordered(parent, run, [*blocks, blocks[-1]])
    inside = f"{prefix}." if prefix else ""
    names = {name for name in _names_of(module) if not name.startswith(inside)} if inside else set()
    own = {f"{child}.{name}" for child, each in children.items() if each is not None for name in _names_of(each)}
    own |= {name for name, _ in parent.named_parameters(recurse=False)}
    return names | {inside + name for name in own}


def _places(config: Any, deep: int = 2) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Integers and lists in an object and in those that it contains."""
    entries: Sequence[tuple[Any, Any]]
    if isinstance(config, list):
        entries = list(enumerate(config))
    else:
        entries = list(config.items() if isinstance(config, dict) else vars(config).items())
    for name, value in entries:
        yield (name,), value
        inner = isinstance(value, (dict, list)) or (hasattr(value, "__dict__") and not callable(value))
        if deep and inner and not isinstance(value, (nn.Module, torch.Tensor)):
            for steps, found in _places(value, deep - 1):
                yield (name, *steps), found
