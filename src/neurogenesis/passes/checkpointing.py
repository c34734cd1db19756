"""Activation checkpointing (`torch.utils.checkpoint`), which computes parts of a pass again in the backward pass.

Without `use_reentrant`, the first run has gradients and is recorded as any other. With it, the first run has none: what
is recorded there waits for the second.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from .replay import ModelCall


class Awaited(NamedTuple):
    """Inputs of producer and consumer in a run without gradients, which may be computed again in the backward pass."""

    call: ModelCall
    H_prev: Tensor
    H: Tensor
    versions: tuple[int, int]

    @staticmethod
    def of(call: ModelCall, H_prev: Tensor, H: Tensor) -> Awaited:
        return Awaited(call, H_prev, H, (H_prev._version, H._version))

    def is_for(self, H: Tensor) -> bool:
        """Whether the consumer got the same input again."""
        return (self.H_prev._version, self.H._version) == self.versions and torch.equal(self.H, H)


def inside_backward() -> bool:
    """Whether the current pass is computed again, inside a backward pass."""
    return bool(torch._C._current_graph_task_id() != -1)


def places(args: Any, kwargs: Any) -> tuple[Any, ...]:
    """Where the tensors of a call are in memory, by which it is recognized when it is computed again."""
    return tuple((tensor.data_ptr(), tensor.shape) for tensor in ModelCall.of(args, kwargs).tensors)


@contextmanager
def saving_apart() -> Iterator[None]:
    """Hide computations from a checkpoint around them, which counts the tensors that it must compute again."""
    with saved_tensors_hooks(_as_is, _as_is):
        yield


def _as_is(tensor: Tensor) -> Tensor:
    return tensor
