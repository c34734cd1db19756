"""Models that compute in double precision throughout, also where their code asks for single precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode


class _Double(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Turns every request for single precision into one for double, such as ``x.float()`` in a norm."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = tuple(torch.float64 if each is torch.float32 else each for each in args)
        kwargs = {name: torch.float64 if each is torch.float32 else each for name, each in (kwargs or {}).items()}
        return func(*args, **kwargs)


@contextmanager
def double_throughout(model: nn.Module) -> Iterator[None]:
    """Compute in double precision throughout if the model's parameters are in double precision."""
    if any(parameter.dtype is not torch.float64 for parameter in model.parameters() if parameter.is_floating_point()):
        yield
        return
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Double():  # type: ignore[no-untyped-call]
            yield
    finally:
        torch.set_default_dtype(default)
