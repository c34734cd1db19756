"""The `Grower` that is attached to a model, with its optimizers and its average of the weights."""

from __future__ import annotations

import weakref
from typing import Protocol

from torch import nn
from torch.optim import Optimizer

from ..structure.axes import unwrapped
from ..structure.kept import kept_of
from .ages import forget
from .optimizer_state import Optimizers, as_list


class Attached(Protocol):
    """An object that is attached to a model while it trains."""

    @property
    def ema(self) -> nn.Module | None: ...

    @property
    def optimizers(self) -> list[Optimizer]: ...

    def detach(self, *, keep_ages: bool = False) -> None: ...

    def inputs_resized(self) -> None:
        """Called when the model takes inputs of another size from now on."""


def attached_to(model: nn.Module) -> Attached | None:
    """The object that is attached to a model, if there is one."""
    found: weakref.ref[Attached] | None = kept_of(unwrapped(model)).attached
    return None if found is None else found()


def attach(model: nn.Module, new: Attached) -> None:
    """Attach an object to a model; it replaces the present one.

    Young weights stay young in the optimizers that both objects have.
    """
    present = attached_to(model)
    if present is not None:
        left = [each for each in present.optimizers if each not in new.optimizers]
        present.detach(keep_ages=True)
        for each in left:
            forget(each, model.parameters())
    kept_of(model).attached = weakref.ref(new)


def leave(model: nn.Module, old: Attached) -> None:
    """Undo `attach`, unless another object has been attached since."""
    if attached_to(model) is old:
        kept_of(model).attached = None


def optimizers_of(model: nn.Module, given: Optimizers) -> list[Optimizer]:
    """The given optimizers; if there are none, the optimizers that are attached to the model."""
    present = attached_to(model)
    return as_list(given) or ([] if present is None else present.optimizers)


def average_of(model: nn.Module, given: nn.Module | None) -> nn.Module | None:
    """The given average; if there is none, the average that is attached to the model."""
    present = attached_to(model)
    return given if given is not None or present is None else present.ema
