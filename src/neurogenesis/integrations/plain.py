"""Copies of states, and a check that they consist of plain values."""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device)


def copied(value: Any) -> Any:
    """Copy a state: containers and tensors. Of a view, only the visible entries are copied."""
    return _mapped(value, {}, True)


def compact(value: Any) -> Any:
    """Copy the views in a state whose storage is larger: ``torch.save`` would write all of it."""
    return _mapped(value, {}, False)


def _mapped(value: Any, done: dict[int, Any], copy_all: bool) -> Any:
    """Copy containers and tensors, each object once; `done` has copies by id, and the objects, as ids may be reused."""
    if id(value) in done:
        return done[id(value)][0]
    result: Any
    if isinstance(value, Tensor):
        whole = value.layout is not torch.strided or value.untyped_storage().nbytes() <= value.numel() * value.itemsize
        result = value.detach().clone() if copy_all or not whole else value
    elif type(value) in (dict, OrderedDict):
        result = type(value)((key, _mapped(each, done, copy_all)) for key, each in value.items())
        result.__dict__.update(copy.deepcopy(value.__dict__)) if type(value) is OrderedDict else None
    elif type(value) in (list, tuple):
        result = type(value)(_mapped(each, done, copy_all) for each in value)
    else:
        return copy.deepcopy(value) if copy_all else value
    done[id(value)] = result, value
    return result


def unsafe(content: Any, path: str = "") -> Iterator[str]:
    """Paths of values that ``torch.load(weights_only=True)`` would refuse."""
    if type(content) in (dict, OrderedDict, Counter):
        for key, value in content.items():
            yield from unsafe(key, f"a key of {path}") if type(key) is not str else ()
            yield from unsafe(value, f"{path}.{key}" if path else str(key))
    elif type(content) in (list, tuple, set):
        for number, value in enumerate(content):
            yield from unsafe(value, f"{path}[{number}]")
    elif type(content) not in (*_PLAIN, Tensor, nn.Parameter):
        yield f"{path}, a {type(content).__name__}"
