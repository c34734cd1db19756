"""What is checked of a model, its optimizers and its average before anything is resized."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping, Sequence
from operator import index
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from ..structure.axes import unwrapped
from ..structure.edits import Edit, TensorEdit

# New values by parameter name, stacked along the axis that grows; other parameters get their defaults. If a parameter
# grows along two axes of the same width, use keys of name and axis.
Values = Mapping[str, Tensor] | Mapping[tuple[str, int], Tensor]

CHANGED = "the model has changed since the plan was made"


def averaged_model(ema: nn.Module) -> nn.Module:
    """Return the model inside a `torch.optim.swa_utils.AveragedModel`, or `ema` itself if it is a plain copy."""
    return unwrapped(getattr(ema, "module", ema))


def check_average(model: nn.Module, ema: nn.Module) -> None:
    """Raise an error unless `ema` is an average of the model."""
    if not isinstance(ema, nn.Module):
        raise TypeError(f"ema: expected a module, such as torch.optim.swa_utils.AveragedModel, not {ema!r}")
    theirs = dict(averaged_model(ema).named_parameters())
    for name, own in model.named_parameters():
        if name not in theirs or theirs[name].shape != own.shape:
            found = f"has shape {tuple(theirs[name].shape)} there" if name in theirs else "is not there"
            raise ValueError(f"ema: it is no average of this model: {name} of shape {tuple(own.shape)} {found}")


def check_tensor(name: str, tensor: Tensor | None, edits: Sequence[TensorEdit]) -> None:
    """Raise an error unless a tensor can be edited."""
    if tensor is None:
        raise ValueError(f"{name} is missing: {CHANGED}")
    for edit in edits:
        if (misfit := edit.misfit(tensor)) is not None:
            raise ValueError(f"{name} {misfit}: {CHANGED}")
    if tensor.grad is not None and tensor.grad.layout is not torch.strided:
        raise ValueError(f"{name} has a sparse gradient: call optimizer.step() and zero_grad() first")


def check_programs(tensors: Mapping[str, Tensor]) -> None:
    """Raise an error if an exported program contains one of the tensors: it has their sizes built in.

    Programs are looked for among all objects, which takes long, only if a tensor has weak references as exporting
    leaves them: with callbacks, unlike those of recurrent layers.
    """
    if not any(each.__callback__ for tensor in tensors.values() for each in weakref.getweakrefs(tensor)):
        return
    gc.collect()  # programs that were deleted may wait for it
    programs = [each for each in gc.get_objects() if type(each) is ExportedProgram]
    held = {id(tensor) for program in programs for tensor in program.state_dict.values()}
    for name, tensor in tensors.items():
        if id(tensor) in held:
            raise RuntimeError(f"{name} cannot be resized while an exported program contains it: delete that first")


def as_count(number: object, width: str) -> int:
    """A number of new neurons; raises an error unless it is a positive integer."""
    count = _as_integer(number, width, "the number of new neurons")
    if count < 1:
        raise ValueError(f"{width}: the number of new neurons must be positive, not {count}")
    return count


def as_indices(neurons: Sequence[int], width: str, size: int) -> list[int]:
    """Indices of neurons to remove, in order; raises an error unless some neurons remain."""
    if isinstance(neurons, Tensor) and neurons.dtype is torch.bool:
        raise TypeError(f"{width}: expected indices of neurons, not a boolean mask: pass mask.nonzero().flatten()")
    chosen = sorted({_as_integer(neuron, width, "an index") for neuron in neurons})
    if not chosen:
        raise ValueError(f"{width}: no neurons to remove were given")
    if chosen[0] < 0 or chosen[-1] >= size:
        raise IndexError(f"{width} has neurons 0 to {size - 1}: {neurons} is out of range")
    if len(chosen) == size:
        raise ValueError(f"{width}: cannot remove all {size} neurons: at least one must remain")
    return chosen


def _as_integer(number: object, width: str, what: str) -> int:
    if isinstance(number, (bool, str)) or not hasattr(number, "__index__"):
        raise TypeError(f"{width}: {what} must be an integer, not {number!r}")
    return index(number)


def with_values(edit: Edit, given: Mapping[Any, Tensor]) -> Edit:
    """An edit with the values given for its tensor, or for that and the axis, if there are any."""
    values, usual = given.get((edit.tensor, edit.axis), given.get(edit.tensor)), edit.values
    if values is None:
        return edit
    assert usual is not None
    if values.shape != usual.shape:
        raise ValueError(
            f"initialization of {edit.tensor}: expected values of shape {tuple(usual.shape)} for axis "
            f"{edit.axis}, got {tuple(values.shape)}"
        )
    if not values.isfinite().all():
        raise ValueError(f"initialization of {edit.tensor}: the new values are not all finite")
    return Edit(edit.tensor, edit.axis, edit.length, edit.positions, values.detach().to(usual), edit.role)
