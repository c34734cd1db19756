"""Optimizer state that follows its parameters through growth and shrinkage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.optim import ASGD, LBFGS, Adagrad, Optimizer, Rprop

from ..structure.edits import Edit, edited
from .ages import treated
from .ages.births import KEY, BirthEdit
from .ages.corrections import steps

Optimizers = Optimizer | Iterable[Optimizer] | None


@dataclass(frozen=True)
class StateEdit:
    """A state tensor of one parameter that is resized with it; `fills` are its new entries, by axis."""

    state: dict[str, Any]
    key: str
    edits: Sequence[Edit]
    fills: dict[int, Tensor | float]

    def resized(self) -> Tensor:
        return edited(self.state[self.key], self.edits, self.fills)

    def make(self) -> None:
        self.put(self.resized())

    def put(self, value: Tensor) -> None:
        self.state[self.key] = value

    def undoing(self) -> Callable[[], None]:
        """What takes the edit back: removing what was added; removed entries must be kept for it."""
        if any(edit.values is None for edit in self.edits):
            return partial(self.put, self.state[self.key])
        inverse = [replace(edit, length=edit.length + edit.change, values=None) for edit in self.edits]
        return lambda: self.put(edited(self.state[self.key], inverse))


def as_list(optimizers: Optimizers) -> list[Optimizer]:
    """One, several or no optimizers as a list."""
    if optimizers is None:
        return []
    one = isinstance(optimizers, Optimizer) or hasattr(optimizers, "optimizer")
    given: list[Any] = [optimizers] if one else list(optimizers)  # type: ignore[arg-type]
    return [_inner(optimizer) for optimizer in given]


def _inner(optimizer: Any) -> Any:
    """The optimizer itself, where something that takes its place, such as Accelerate's, holds it."""
    while not hasattr(optimizer, "_optimizer_step_post_hooks") and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def check_optimizers(model: nn.Module, resized: Iterable[str], optimizers: Sequence[Optimizer]) -> None:
    """Raise unless every resized parameter that is trained belongs to one of the optimizers, if there are any."""
    if not optimizers:
        return
    held = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    parameters = dict(model.named_parameters())
    if not any(id(parameter) in held for parameter in parameters.values()):
        raise ValueError("the optimizer holds none of the model's parameters: it was made for another model")
    for name in resized:
        parameter = parameters.get(name)
        if parameter is not None and parameter.requires_grad and id(parameter) not in held:
            raise ValueError(
                f"no optimizer given holds {name}: pass all that train the model, as optimizer=[first, second], "
                "or freeze it with requires_grad_(False)"
            )


def state_edits(
    name: str, parameter: Tensor, edits: Sequence[Edit], optimizers: Sequence[Optimizer], ages: bool = False
) -> list[StateEdit | BirthEdit]:
    """How the state that the optimizers keep for a parameter is to be resized; raises where it cannot be.

    With `ages`, new entries have their births noted where the optimizer needs to know.
    """
    result: list[StateEdit | BirthEdit] = []
    for optimizer in optimizers:
        if isinstance(optimizer, LBFGS):
            raise ValueError(
                "LBFGS keeps one flat history of all parameters, which cannot be resized: grow without "
                "optimizer=, then make a new LBFGS"
            )
        for group in optimizer.param_groups:
            if any(each is parameter for each in group["params"]):
                state = optimizer.state.get(parameter, {})
                for key, value in state.items():
                    own = _own_edits(name, key, value, parameter, edits, optimizer)
                    if own:
                        fills = {edit.axis: _fill(optimizer, group, key, edit) for edit in own}
                        result.append(StateEdit(state, key, own, fills))
                born = steps(group, state) if ages and treated(optimizer, group, state) else None
                if born is not None or KEY in state:
                    result.append(BirthEdit(state, edits, parameter.ndim, born))
    return result


def _own_edits(
    name: str, key: str, value: Any, parameter: Tensor, edits: Sequence[Edit], optimizer: Optimizer
) -> list[Edit]:
    """The edits that concern a state tensor: all, those of some axes (factored moments) or none (a step count)."""
    if not isinstance(value, Tensor):
        if isinstance(value, (list, tuple)) and any(isinstance(each, Tensor) for each in value):
            raise ValueError(f"{type(optimizer).__name__} keeps a list of tensors {key!r} for {name}: cannot resize")
        return []
    if value.shape == parameter.shape:
        return list(edits)
    if value.numel() == 1 and value.ndim != parameter.ndim:
        return []
    sizes = list(zip(value.shape, parameter.shape, strict=False))
    fits = value.ndim == parameter.ndim and all(own in (1, whole) for own, whole in sizes)
    # Where the edited axis has size 1 there is no telling whether the state has it or has reduced it.
    if not fits or any(parameter.shape[edit.axis] == 1 for edit in edits):
        raise ValueError(
            f"{type(optimizer).__name__} keeps {key!r} of shape {tuple(value.shape)} for {name} of shape "
            f"{tuple(parameter.shape)}, which cannot be resized with it: delete optimizer.state[parameter] "
            "first to start its state anew"
        )
    return [edit for edit in edits if value.shape[edit.axis] != 1]


def _fill(optimizer: Optimizer, group: dict[str, Any], key: str, edit: Edit) -> Tensor | float:
    """What a state tensor holds for new weights: what the optimizer itself would start them with."""
    if isinstance(optimizer, Rprop) and key == "step_size":
        return float(group["lr"])
    if isinstance(optimizer, Adagrad) and key == "sum":
        return float(group["initial_accumulator_value"])
    if isinstance(optimizer, ASGD) and key == "ax" and edit.values is not None:
        return edit.values
    return 0.0
