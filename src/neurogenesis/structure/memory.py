"""Detect parameters and buffers that share memory without being the same object: resizing would untie them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def shared_memory(tensors: Mapping[str, Tensor], blocks: Mapping[str, str] | None = None) -> dict[str, str]:
    """Map each tensor that shares memory with another one to that other tensor.

    Parameters count as sharing if they are slices of one storage, as with optimizers that flatten parameters: the
    flat tensor would no longer alias them. Buffers count only if they overlap, and so do parameters of one of `blocks`.
    """
    found: dict[str, str] = {}
    for a, b in [*_overlapping(tensors), *_same_storage(tensors, blocks or {})]:
        found.setdefault(a, b)
        found.setdefault(b, a)
    return found


def _overlapping(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, str]]:
    extents = sorted((str(t.device), *_extent(t), name) for name, t in tensors.items() if _has_memory(t))
    last: tuple[str, int, int, str] | None = None  # the extent that ends last
    for extent in extents:
        device, start, stop, name = extent
        if last is not None and device == last[0] and start < last[2]:
            yield name, last[3]
        if last is None or device != last[0] or stop > last[2]:
            last = extent


def _same_storage(tensors: Mapping[str, Tensor], blocks: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    together: dict[tuple[str, int], list[str]] = {}
    for name, tensor in tensors.items():
        if isinstance(tensor, nn.Parameter) and _has_memory(tensor):
            together.setdefault((str(tensor.device), tensor.untyped_storage().data_ptr()), []).append(name)
    for first, *others in together.values():
        if len({blocks.get(name, name) for name in (first, *others)}) > 1:
            yield from ((name, first) for name in others)


def blocks_of(model: nn.Module) -> dict[str, str]:
    """The recurrent layer that each of its parameters belongs to.

    Kernels on GPUs want them in one block of memory, but take others, too.
    """
    layers = [(path, module) for path, module in model.named_modules() if isinstance(module, nn.RNNBase)]
    return {f"{path}.{name}".lstrip("."): path for path, module in layers for name, _ in module.named_parameters()}


def _has_memory(tensor: Tensor) -> bool:
    """Whether a tensor is an ordinary dense tensor with addressable memory."""
    return (
        tensor.numel() > 0
        and tensor.layout is torch.strided
        and not tensor.is_meta
        and not is_traceable_wrapper_subclass(tensor)
    )


def _extent(tensor: Tensor) -> tuple[int, int]:
    """Addresses of the first byte of a tensor and of the byte after its last."""
    start, itemsize = tensor.data_ptr(), tensor.element_size()
    last = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * itemsize


def shared_memory_error(name: str, other: str) -> str:
    """Error message for two tensors that share memory."""
    return (
        f"{name} shares its memory with {other}, and resizing would untie them: give each its own memory with "
        "parameter.data = parameter.data.clone(), or assign the same parameter to both modules"
    )
