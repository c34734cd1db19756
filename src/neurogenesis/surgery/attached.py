"""Find the optimizers and the average of a model: those of the attached `Grower`, if there is one."""

from __future__ import annotations

import weakref
from typing import Protocol
from weakref import WeakKeyDictionary

from torch import nn
from torch.optim import Optimizer

from ..structure.axes import unwrapped
from .ages import forget
from .optimizer_state import Optimizers, as_list


class Attached(Protocol):
    """What is attached to a model while it trains."""

    @property
    def ema(self) -> nn.Module | None: ...

    @property
    def optimizers(self) -> list[Optimizer]: ...

    def detach(self, *, keep_ages: bool = False) -> None: ...


_ATTACHED: WeakKeyDictionary[nn.Module, weakref.ref[Attached]] = WeakKeyDictionary()


def attached_to(model: nn.Module) -> Attached | None:
    """What is attached to a model."""
    found = _ATTACHED.get(unwrapped(model))
    return None if found is None else found()


def attach(model: nn.Module, new: Attached) -> None:
    """Attach something to a model, in place of what is attached to it.

    In optimizers that both know, young weights stay young.
    """
    present = attached_to(model)
    if present is not None:
        left = [each for each in present.optimizers if each not in new.optimizers]
        present.detach(keep_ages=True)
        for each in left:
            forget(each, model.parameters())
    _ATTACHED[model] = weakref.ref(new)


def leave(model: nn.Module, old: Attached) -> None:
    """Undo `attach`, unless something else is attached by now."""
    if attached_to(model) is old:
        del _ATTACHED[model]


def optimizers_of(model: nn.Module, given: Optimizers) -> list[Optimizer]:
    """The given optimizers or, if there are none, the ones that are attached to the model."""
    present = attached_to(model)
    return as_list(given) or ([] if present is None else present.optimizers)


def average_of(model: nn.Module, given: nn.Module | None) -> nn.Module | None:
    """The given average or, if there is none, the one that is attached to the model."""
    present = attached_to(model)
    return given if given is not None or present is None else present.ema
