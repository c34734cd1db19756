"""The generators that a pass may draw from: torch's, and the global ones of Python and NumPy."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class RandomState:
    """The states of all generators.

    >>> state = RandomState.present(nn.Linear(2, 3))
    >>> first = torch.rand(2), random.random()
    >>> state.set()
    >>> torch.equal(torch.rand(2), first[0]), random.random() == first[1]
    (True, True)
    """

    cpu: Tensor
    cuda: dict[int, Tensor]
    python: Any
    numpy: Any  # None if the program does not use NumPy

    @classmethod
    def present(cls, model: nn.Module) -> RandomState:
        """The states at present, on the devices of a model."""
        cuda = {device: torch.cuda.get_rng_state(device) for device in _cuda_indices(model)}
        numpy = sys.modules.get("numpy")
        return cls(torch.get_rng_state(), cuda, random.getstate(), numpy and numpy.random.get_state())

    def set(self) -> None:
        """Go back to these states."""
        torch.set_rng_state(self.cpu)
        for device, state in self.cuda.items():
            torch.cuda.set_rng_state(state, device)
        random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)


@contextmanager
def random_state_restored(model: nn.Module, start: RandomState | None = None) -> Iterator[None]:
    """Restore the states of all generators on exit, and begin with others if they are given."""
    present = RandomState.present(model)
    if start is not None:
        start.set()
    try:
        yield
    finally:
        present.set()


def set_seed(devices: Iterable[torch.device], seed: int) -> None:
    """Seed all generators."""
    if all(device.type == "cpu" for device in devices):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed formats a stack trace per absent backend
    else:
        torch.manual_seed(seed)
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)


def constant_randomness(operation: str, given: Any, outputs: Sequence[Tensor]) -> None:
    """Replace the random outputs of an operation by constants, so that runs of different models are comparable.

    Args:
        operation: name of the operation, such as ``aten.bernoulli``.
        given: its input, which dropout returns as it is.
        outputs: its outputs, which are overwritten.
    """
    for number, tensor in enumerate(outputs):
        if operation == "aten.native_dropout":
            tensor.copy_(given) if number == 0 else tensor.fill_(1)
        elif operation == "aten.dropout":
            tensor.copy_(given)
        elif tensor.is_floating_point() and "dot_product" not in operation:
            tensor.fill_(0.5)


def _cuda_indices(model: nn.Module) -> set[int]:
    return {parameter.get_device() for parameter in model.parameters() if parameter.is_cuda}
