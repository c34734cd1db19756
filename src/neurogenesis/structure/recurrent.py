"""Recurrent layers of torch: the attributes that hold their sizes, and kernels that hide what they compute.

The gates of a layer are blocks of rows: ``weight_hh_l0`` of an LSTM of n neurons has 4 n rows, and a neuron owns one in
each block. All layers and directions share one size, as their initial states are one tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .labels import Attribute
from .rules import Axes
from .terms import Sizes, size

_ONE_DNN: Any = torch.backends.mkldnn
_CUDNN: Any = torch.backends.cudnn

Kernels = tuple[bool, bool]  # whether those of oneDNN and of cuDNN are on


def is_recurrent(module: nn.Module) -> bool:
    """Whether a module is a recurrent layer, or a cell, of torch."""
    return isinstance(module, nn.RNNBase | nn.RNNCellBase)


def without_kernels(module: nn.Module) -> Kernels | None:
    """Switch off the kernels that run a recurrent layer as one operation; returns what `restore` needs.

    Without them, it runs as operations that have rules.
    """
    if not is_recurrent(module):
        return None
    before = bool(_ONE_DNN.enabled), bool(_CUDNN.enabled)
    _ONE_DNN.enabled = _CUDNN.enabled = False
    return before


def restore(kernels: Kernels | None) -> None:
    """Switch kernels on again."""
    if kernels is not None:
        _ONE_DNN.enabled, _CUDNN.enabled = kernels


def flatten_weights(model: nn.Module) -> None:
    """Put the weights of each recurrent layer into one block of memory, where kernels on GPUs want them."""
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()


def attributes_of(module: Any, path: str, axes: Callable[[Tensor], Axes]) -> Iterator[Attribute]:
    """The attributes of a recurrent layer that hold sizes; `axes` are those of a parameter."""
    if not is_recurrent(module):
        return
    suffix = "_l0" if isinstance(module, nn.RNNBase) else ""
    yield Attribute(path, "input_size", axes(getattr(module, f"weight_ih{suffix}"))[1])
    state = axes(getattr(module, f"weight_hh{suffix}"))[1]
    if getattr(module, "proj_size", 0):
        yield Attribute(path, "proj_size", state)
        state = axes(module.weight_hr_l0)[1]
    yield Attribute(path, "hidden_size", state)


@dataclass(frozen=True)
class Bound:
    """A size that must stay below another one."""

    smaller: Attribute
    larger: Attribute

    def room(self, sizes: Sizes | None = None) -> int:
        """By how much the smaller one may grow at other sizes of atoms."""
        return size(self.larger.terms[0], sizes) - 1 - size(self.smaller.terms[0], sizes)

    def obstacle(self, sizes: Sizes) -> str | None:
        """What is wrong if atoms have other sizes; None if nothing is."""
        if self.room(sizes) >= 0:
            return None
        smaller, larger = (f"{own.module}.{own.name} = {own.value(sizes)}" for own in (self.smaller, self.larger))
        return f"{smaller.lstrip('.')} must be less than {larger.lstrip('.')}"


def bounds_of(attributes: Iterable[Attribute]) -> list[Bound]:
    """What LSTMs with projections demand: kernels take equal sizes for a layer without projections."""
    by_name = {(each.module, each.name): each for each in attributes}
    pairs = ((each, by_name.get((each.module, "hidden_size"))) for each in by_name.values() if each.name == "proj_size")
    return [Bound(smaller, larger) for smaller, larger in pairs if larger is not None]
