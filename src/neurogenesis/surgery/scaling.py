"""Values that were scaled, kept so that scaling them back restores every bit."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor, nn

from ..structure.kept import kept_of

Held = list[Tensor]


def held_values(model: nn.Module) -> defaultdict[str, Held]:
    """By name, what scaled tensors of a model, and of its optimizers' state, held before and after each scaling."""
    return kept_of(model).scaled


def restored(new: Tensor, old: Tensor, held: Held, shift: float = 0.0) -> Tensor:
    """The tensor that was held before if `new`, which was made of `old` by scaling it, equals it up to rounding.

    A shift has been added before, and subtracted after scaling. What `held` has is forgotten once the values have
    changed otherwise, as in training.
    """
    if not any(_same(old, each) for each in held):
        held[:] = [old.detach().clone()]
    for each in held:
        if each.shape == new.shape and torch.allclose(new + shift, each + shift, rtol=_units(new), atol=0):
            return each.clone()
    held.append(new.detach().clone())
    return new


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a, b)


def _units(tensor: Tensor) -> float:
    """A few units in the last place."""
    return 8 * torch.finfo(tensor.dtype).eps
