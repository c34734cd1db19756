r"""Layers under weight norm, :math:`W = g\,v/\|v\|`: which tensors these are, and the weight they make."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _WeightNorm
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.weight_norm import WeightNorm

_LENGTHS = {".parametrizations.weight.original1": ".parametrizations.weight.original0", ".weight_v": ".weight_g"}


def lengths_of(model: nn.Module, tensor: str) -> str | None:
    """The name of g where a tensor is the v of a weight norm; None where it is anything else."""
    ending = next((ending for ending in _LENGTHS if f".{tensor}".endswith(ending)), None)
    if ending is None or _dim(model, _layer(tensor)) is None:
        return None
    return f".{_layer(tensor)}{_LENGTHS[ending]}".replace("..", ".").removeprefix(".")


def weight_of(model: nn.Module, tensor: str) -> Tensor:
    """A weight as its layer computes with it: that of v is g v / ||v||."""
    lengths = lengths_of(model, tensor)
    if lengths is None:
        return _tensor(model, tensor)
    dim = _dim(model, _layer(tensor))
    assert dim is not None
    return torch._weight_norm(_tensor(model, tensor), _tensor(model, lengths), dim)


def _tensor(model: nn.Module, name: str) -> Tensor:
    path, _, leaf = name.rpartition(".")
    found: Tensor = getattr(model.get_submodule(path), leaf)
    return found.detach()


def _layer(tensor: str) -> str:
    """The path of the layer that a v belongs to."""
    ending = next(ending for ending in _LENGTHS if f".{tensor}".endswith(ending))
    return f".{tensor}".removesuffix(ending).removeprefix(".")


def _dim(model: nn.Module, path: str) -> int | None:
    """The axis along which a layer's weight is normed, if it is, and nothing else is done to it."""
    module: Any = model.get_submodule(path)
    if is_parametrized(module, "weight"):
        steps = list(module.parametrizations["weight"])
        return steps[0].dim if len(steps) == 1 and isinstance(steps[0], _WeightNorm) else None
    return next((each.dim for each in module._forward_pre_hooks.values() if isinstance(each, WeightNorm)), None)


def why_not_watched(module: nn.Module) -> str | None:
    """Why a module whose weight is not a parameter cannot be tried with other weights, if that is the reason."""
    if is_parametrized(module, "weight"):
        kinds = ", ".join(type(step).__name__.lstrip("_") for step in module.parametrizations["weight"])  # type: ignore
        return (
            f"has its weight computed by a parametrization ({kinds}), and only for weight norm alone is it known what "
            "gives a wanted weight"
        )
    if any(isinstance(each, WeightNorm) for each in module._forward_pre_hooks.values()):
        return (
            "is under torch.nn.utils.weight_norm, which writes to the layer whenever it runs: use "
            "torch.nn.utils.parametrizations.weight_norm instead"
        )
    return None
