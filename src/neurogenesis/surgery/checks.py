"""What is checked of a model, its optimizers and its average before anything is resized."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from ..structure.axes import unwrapped
from ..structure.edits import TensorEdit

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

    Exporting leaves weak references to parameters, so that programs need be looked for only if there are some.
    """
    if not any(weakref.getweakrefs(tensor) for tensor in tensors.values()):
        return
    gc.collect()  # programs that were deleted may wait for it
    programs = [each for each in gc.get_objects() if type(each) is ExportedProgram]
    held = {id(tensor) for program in programs for tensor in program.state_dict.values()}
    for name, tensor in tensors.items():
        if id(tensor) in held:
            raise RuntimeError(f"{name} cannot be resized while an exported program contains it: delete that first")
