"""Inputs of a model, and the tensors in them and in its outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

Example = Tensor | tuple[Any, ...] | Mapping[str, Any]
Examples = Example | list[Example]


def examples_in(given: Examples) -> list[Example]:
    """One or several examples, as a list."""
    if not isinstance(given, list):
        return [given]
    if not given:
        raise ValueError("example: the list is empty: pass inputs that together use all layers of the model")
    return given


def tensors_in(value: Any, inside: tuple[int, ...] = ()) -> Iterator[Tensor]:
    """Yield all tensors in nested tuples, lists, mappings and plain objects, such as the outputs of a model."""
    if isinstance(value, Tensor):
        yield value
    elif id(value) not in inside:  # an object may contain itself
        for item in _items(value):
            yield from tensors_in(item, (*inside, id(value)))


def _items(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (tuple, list)):
        return list(value)
    if isinstance(value, (type, nn.Module, str)) or callable(value):
        return []
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    return [*vars(value).values()] if hasattr(value, "__dict__") else [getattr(value, n, None) for n in slots]


def call_model(model: Callable[..., Any], example: Example) -> Any:
    """Call a model with an example: a tensor, a tuple of arguments or a mapping of keyword arguments."""
    if isinstance(example, Mapping):
        return model(**example)
    return model(*example) if isinstance(example, tuple) else model(example)


def copied_example(value: Any, copies: dict[Tensor, Tensor]) -> Any:
    """Copy an example; `copies` gets the copy of each of its tensors."""
    if isinstance(value, Tensor):
        if value not in copies:
            copies[value] = value.detach().clone()
        return copies[value]
    if isinstance(value, Mapping):
        return {key: copied_example(item, copies) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(copied_example(item, copies) for item in value))
    if isinstance(value, (tuple, list)):
        return type(value)(copied_example(item, copies) for item in value)
    return value
