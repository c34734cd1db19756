"""Growing inside `torch.inference_mode`, where new tensors could not be trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only


@contextmanager
def ordinary_tensors() -> Iterator[None]:
    """Create trainable tensors even if the caller is in inference mode."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():  # leaving inference mode would enable gradients
        yield


def as_ordinary(value: Any) -> Any:
    """Replace inference tensors by clones: they have no version counter and cannot be saved for backward."""
    return tree_map_only(Tensor, lambda tensor: tensor.clone() if tensor.is_inference() else tensor, value)
