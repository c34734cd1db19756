"""The outputs of a model whose sizes its callers rely on, and those that only the model itself reads."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from .examples import tensors_in
from .kept import kept_of


def internal_outputs(model: nn.Module, *which: str | int) -> None:
    """Say which outputs of a model only the model itself reads, so that their sizes may change.

    Outputs with the name of an argument, such as ``past_key_values``, need not be named: the next call reads them.

    Args:
        model: the model.
        which: keys of a mapping, attributes of an object, or positions in a tuple.

    Example:
        >>> import torch, neurogenesis as ng
        >>> class Model(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.a, self.b = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)
        ...
        ...     def forward(self, x):
        ...         hidden = self.a(x).relu()
        ...         return self.b(hidden), hidden
        >>> model = Model()
        >>> ng.widths(model, torch.randn(1, 4))["a"].reason.partition(": ")[0]
        "a size of the model's output, as the model returns what b reads"
        >>> ng.internal_outputs(model, 1)
        >>> ng.widths(model, torch.randn(1, 4))["a"].growable
        True
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: expected a module, not {model!r}")
    for each in which:
        if isinstance(each, bool) or not isinstance(each, str | int):
            raise TypeError(f"expected the name or the position of an output, not {each!r}")
    kept_of(model).internal_outputs = frozenset(which)


def returned(model: nn.Module, outputs: Any) -> list[Tensor]:
    """The tensors in the outputs of a model that its callers read."""
    return [tensor for _, tensor in named_outputs(model, outputs)]


def named_outputs(model: nn.Module, outputs: Any) -> list[tuple[str | int | None, Tensor]]:
    """The same, with the name or position of the output that each belongs to; None if there is a single one."""
    own = kept_of(model).internal_outputs | _arguments(model)
    named: list[tuple[str | int | None, Any]] = [(None, outputs)]
    if isinstance(outputs, Mapping):
        named = [(str(key), value) for key, value in outputs.items() if key not in own]
    elif isinstance(outputs, Sequence) and not isinstance(outputs, str):
        names = getattr(outputs, "_fields", range(len(outputs)))
        kept = enumerate(zip(names, outputs, strict=True))
        named = [(name, value) for number, (name, value) in kept if not {name, number} & own]
    elif not isinstance(outputs, Tensor) and hasattr(outputs, "__dict__"):
        named = [(key, value) for key, value in vars(outputs).items() if key not in own]
    return [(name, tensor) for name, value in named for tensor in tensors_in(value)]


def _arguments(model: nn.Module) -> set[str | int]:
    """The names of a model's arguments, and those of the model inside if it is a wrapper, as of PEFT."""
    names: set[str | int] = set(inspect.signature(model.forward).parameters)
    children = list(model.children())
    alone = len(children) == 1 and not list(model.parameters(recurse=False))
    return names | _arguments(children[0]) if alone else names
