"""Growth under `torch.inference_mode`, whose tensors could never be trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only


@contextmanager
def ordinary_tensors() -> Iterator[None]:
    """Make tensors that can be trained, also where the caller is in inference mode."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():  # leaving inference mode would switch gradients on
        yield


def as_ordinary(value: Any) -> Any:
    """The same with copies of inference tensors, which have no version and cannot be saved for a backward pass."""
    return tree_map_only(Tensor, lambda tensor: tensor.clone() if tensor.is_inference() else tensor, value)
