r"""Layers under weight norm, :math:`W = g\,v/\|v\|`: the names of g and v, and the resulting weight."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _WeightNorm
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.weight_norm import WeightNorm

from .paths import tensor_at

_LENGTHS = {".parametrizations.weight.original1": ".parametrizations.weight.original0", ".weight_v": ".weight_g"}


def lengths_of(model: nn.Module, tensor: str) -> str | None:
    """Name of g if a tensor is the v of a weight norm, else None."""
    ending = next((ending for ending in _LENGTHS if f".{tensor}".endswith(ending)), None)
    if ending is None or _dim(model, _layer(tensor)) is None:
        return None
    return f".{_layer(tensor)}{_LENGTHS[ending]}".replace("..", ".").removeprefix(".")


def weight_of(model: nn.Module, tensor: str) -> Tensor:
    """The weight that a layer computes with: g v / ||v|| for the v of a weight norm, else the tensor itself."""
    lengths = lengths_of(model, tensor)
    if lengths is None:
        return _tensor(model, tensor)
    dim = _dim(model, _layer(tensor))
    assert dim is not None
    return torch._weight_norm(_tensor(model, tensor), _tensor(model, lengths), dim)


def _tensor(model: nn.Module, name: str) -> Tensor:
    return tensor_at(model, name).detach()


def _layer(tensor: str) -> str:
    """Path of the layer that a v belongs to."""
    ending = next(ending for ending in _LENGTHS if f".{tensor}".endswith(ending))
    return f".{tensor}".removesuffix(ending).removeprefix(".")


def _dim(model: nn.Module, path: str) -> int | None:
    """The axis of a layer's weight norm; None if it has none or has other parametrizations as well."""
    module: Any = model.get_submodule(path)
    if is_parametrized(module, "weight"):
        steps = list(module.parametrizations["weight"])
        return steps[0].dim if len(steps) == 1 and isinstance(steps[0], _WeightNorm) else None
    return next((each.dim for each in module._forward_pre_hooks.values() if isinstance(each, WeightNorm)), None)


def why_not_watched(module: nn.Module) -> str | None:
    """Why a module with a computed weight cannot be run with other weights; None if it can."""
    if is_parametrized(module, "weight"):
        kinds = ", ".join(type(step).__name__.lstrip("_") for step in module.parametrizations["weight"])  # type: ignore
        return f"has its weight computed by a parametrization ({kinds}); only weight norm alone is supported"
    if any(isinstance(each, WeightNorm) for each in module._forward_pre_hooks.values()):
        return (
            "uses torch.nn.utils.weight_norm, which writes to the layer in every forward pass: use "
            "torch.nn.utils.parametrizations.weight_norm instead"
        )
    if any(isinstance(each, BasePruningMethod) for each in module._forward_pre_hooks.values()):
        return (
            "has a mask of torch.nn.utils.prune: call prune.remove(layer, 'weight') first, or use a trigger and an "
            "initialization that measure nothing, such as triggers.Linear and 'random'"
        )
    return None
