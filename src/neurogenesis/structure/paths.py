"""Modules, tensors and attributes by their names; modules in a tenth of the time of `torch.nn.Module.get_submodule`."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from torch import Tensor, nn


def submodule(model: nn.Module, path: str) -> nn.Module:
    """The module at a path, as `model.get_submodule(path)` returns it.

    Example:
        >>> model = nn.Sequential(nn.Sequential(nn.Linear(2, 3)), nn.ReLU())
        >>> submodule(model, "0.0"), submodule(model, "") is model
        (Linear(in_features=2, out_features=3, bias=True), True)
    """
    module = model
    for name in path.split(".") if path else ():
        found = module._modules.get(name)
        if found is None:
            return model.get_submodule(path)  # of a module that looks it up in its own way, or an error
        module = found
    return module


def tensor_at(model: nn.Module, name: str) -> Tensor:
    """A parameter, buffer or other tensor of a module, such as a pruned weight, by its full name."""
    path, _, own = name.rpartition(".")
    found: Tensor = getattr(submodule(model, path), own)
    return found


def attribute_at(module: nn.Module | None, name: str, default: Any = None) -> Any:
    """The value of an attribute, or of a field of a config (``config.hidden_size``); a list of numbers as a tuple.

    Example:
        >>> module = nn.Identity()
        >>> module.sizes = [2, 3]
        >>> attribute_at(module, "sizes")
        (2, 3)
        >>> set_attribute(module, "sizes", (4, 3))
        >>> module.sizes
        [4, 3]
    """
    value: Any = module
    for each in name.split("."):
        value = getattr(value, each, default)
    return tuple(value) if isinstance(value, list) and all(isinstance(each, int) for each in value) else value


def set_attribute(module: nn.Module, name: str, value: Any) -> None:
    """Set an attribute, or a field of a config; what is a list remains one."""
    path, _, own = name.rpartition(".")
    owner: Any = attrgetter(path)(module) if path else module
    listed = isinstance(value, tuple) and isinstance(getattr(owner, own, None), list)
    setattr(owner, own, list(value) if listed else value)
