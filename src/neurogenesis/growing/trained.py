"""A model in training, its optimizers and its average: they are resized together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.optim import LBFGS, Optimizer

from ..structure.axes import named_tensors, unwrapped
from ..structure.fills import FanIn
from ..structure.finding import check_supported
from ..structure.widths import Width
from ..surgery.ages import forget, resume
from ..surgery.optimizer_state import Optimizers, as_list, check_optimizers
from ..surgery.plan import Surgery
from ..surgery.reach import fan_ins_of


@dataclass
class TrainedModel:
    """A model in training.

    Args:
        model: the model.
        optimizers: the optimizers that train it.
        ema: an averaged copy of it, or None.
        ages: whether optimizers treat new weights as if training had just begun.
        on_step: called after each step of an optimizer.
    """

    model: nn.Module
    optimizers: list[Optimizer]
    ema: nn.Module | None
    ages: bool
    on_step: Callable[[], None]
    _handles: list[Any] = field(default_factory=list, init=False)

    def watch_optimizers(self) -> None:
        """Notice steps of the optimizers, and states with young weights that are loaded, or were loaded before."""
        for each in self.optimizers:
            self._handles.append(each.register_step_post_hook(lambda *_: self.on_step()))
            if self.ages:
                self._handles.append(each.register_load_state_dict_post_hook(resume))
                resume(each)

    def replace_optimizers(self, new: list[Optimizer]) -> None:
        """Train with other optimizers from now on."""
        self.leave_optimizers()
        self.optimizers = new
        self.watch_optimizers()

    def leave_optimizers(self, keep_ages: bool = False) -> None:
        """Remove all hooks; young weights count as old from then on, unless `keep_ages`."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self.ages and not keep_ages:
            for optimizer in self.optimizers:
                forget(optimizer, self.model.parameters())

    def surgery(self) -> Surgery:
        """A surgery on the model, the optimizers' state and the average."""
        return Surgery(self.model, self.optimizers, self.ema, ages=self.ages, settle=False)

    def fan_ins(self, width: Width, initial: int) -> Mapping[str, FanIn]:
        """The distribution of random fan-ins of a width, by parameter; see `surgery.reach`."""
        return fan_ins_of(self.model, width, initial, self.optimizers)


def checked_model(model: object) -> nn.Module:
    """The model without wrappers; raise unless it can be resized."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: expected a torch.nn.Module, not a {type(model).__name__}: Grower(model, optimizer)")
    inner = unwrapped(model)
    check_supported(inner, named_tensors(inner))
    return inner


def checked_optimizers(model: nn.Module, optimizer: Optimizers) -> list[Optimizer]:
    """The optimizers as a list; raise unless they train the model and can be resized."""
    optimizers = as_list(optimizer)
    if not optimizers:
        raise TypeError("optimizer: expected the optimizer that trains the model")
    for each in optimizers:
        _check_supported(each)
    check_optimizers(model, dict(model.named_parameters()), optimizers)
    return optimizers


def _check_supported(optimizer: Optimizer) -> None:
    """Raise if an optimizer cannot be resized, or has no hooks for its steps."""
    if isinstance(optimizer, LBFGS):
        raise ValueError(
            "LBFGS keeps one flat history of all parameters, which cannot be resized: use another optimizer, such as "
            "Adam, while the network grows, and LBFGS afterwards"
        )
    if not hasattr(optimizer, "_optimizer_step_post_hooks"):
        raise TypeError(
            f"{type(optimizer).__name__} has no step hooks, unlike the optimizers of torch: if it wraps another "
            "optimizer, pass that one"
        )
