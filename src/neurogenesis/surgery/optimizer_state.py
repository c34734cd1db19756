"""Resize and scale optimizer state together with its parameters.

If the entries of a parameter are multiplied by f and the model's outputs stay, gradients are divided by f from now on.
State of past gradients is made to fit: it becomes what it would be if they had been divided by f, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.optim import ASGD, LBFGS, Adagrad, Optimizer, RMSprop, Rprop

from ..structure.edits import Edit, adjusted, edited
from .ages import needs_births
from .ages.births import KEY, BirthEdit
from .ages.corrections import step_count
from .scaling import Held, restored

Optimizers = Optimizer | Iterable[Optimizer] | None


@dataclass(frozen=True)
class StateEdit:
    """Edits one state tensor of a parameter: its entries times `factor`, and new ones, `fills` by axis.

    `held` are earlier contents, which scaling back restores.
    """

    state: dict[str, Any]
    key: str
    edits: Sequence[Edit]
    fills: dict[int, Tensor | float]
    factor: float
    held: Held | None = None

    def apply(self) -> None:
        old = self.state[self.key]
        new = edited(adjusted(old, self.factor), self.edits, self.fills)
        self._set(new if self.factor == 1 or self.held is None else restored(new, old, self.held))

    def _set(self, value: Tensor) -> None:
        self.state[self.key] = value

    def reverter(self) -> Callable[[], None]:
        """Return a function that reverts the edit; it keeps the old tensor only if entries are lost."""
        if self.factor != 1 or any(edit.values is None for edit in self.edits):
            return partial(self._set, self.state[self.key])
        inverse = [edit.removal for edit in self.edits]
        return lambda: self._set(edited(self.state[self.key], inverse))


def as_list(optimizers: Optimizers) -> list[Optimizer]:
    """Return one, several or no optimizers as a list, with the optimizers inside wrappers."""
    if optimizers is None:
        return []
    one = isinstance(optimizers, Optimizer) or _wrapped(optimizers) is not None
    given: list[Any] = [optimizers] if one else list(optimizers)  # type: ignore[arg-type]
    return list(dict.fromkeys(each for optimizer in given for each in _unwrapped(optimizer)))


def _unwrapped(optimizer: Any) -> list[Any]:
    """The optimizer inside a wrapper, and the wrapper itself if it has state of its own, as SAM has.

    The optimizer inside comes first, since it makes the steps. Two wrappers have no state of their own: Accelerate's,
    which has no hooks, and Lightning's, whose class derives from the class of the optimizer inside.
    """
    inner = _wrapped(optimizer)
    if inner is None:
        return [optimizer]
    if not hasattr(optimizer, "_optimizer_step_post_hooks") or isinstance(optimizer, type(inner)):
        return _unwrapped(inner)
    return [*_unwrapped(inner), optimizer] if _parameters(inner) == _parameters(optimizer) else [optimizer]


def _wrapped(optimizer: Any) -> Any:
    """The content of a wrapper: an optimizer or another wrapper. None for objects that are not wrappers."""
    found = (getattr(optimizer, name) for name in ("optimizer", "base_optimizer") if hasattr(optimizer, name))
    return next((each for each in found if isinstance(each, Optimizer) or _wrapped(each) is not None), None)


def _parameters(optimizer: Optimizer) -> set[int]:
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


def check_optimizers(model: nn.Module, resized: Iterable[str], optimizers: Sequence[Optimizer]) -> None:
    """Raise ValueError unless the optimizers, if any, hold every resized parameter that is trained."""
    if not optimizers:
        return
    held = set().union(*map(_parameters, optimizers))
    parameters = dict(model.named_parameters())
    if not any(id(parameter) in held for parameter in parameters.values()):
        raise ValueError("the optimizer holds none of the model's parameters: it was created for another model")
    for name in resized:
        parameter = parameters.get(name)
        if parameter is not None and parameter.requires_grad and id(parameter) not in held:
            raise ValueError(
                f"no optimizer given holds {name}: pass all optimizers of the model, as optimizer=[first, second] or, "
                "to a Grower that is there already, as grower.optimizers = [first, second]; or add the parameter to an "
                "optimizer with add_param_group(), or freeze it with requires_grad_(False)"
            )


def state_edits(
    name: str,
    parameter: Tensor,
    edits: Sequence[Edit],
    optimizers: Sequence[Optimizer],
    ages: bool = False,
    factor: float = 1.0,
    held: Mapping[str, Held] | None = None,
) -> list[StateEdit | BirthEdit]:
    """Edits of the optimizers' state of a parameter; raises ValueError if it cannot be resized.

    Args:
        name: name of the parameter.
        parameter: the parameter.
        edits: what is inserted into it, or removed.
        optimizers: the optimizers of the model.
        ages: whether to record the births of new entries for optimizers that need them.
        factor: the factor of the present entries.
        held: earlier contents of state, which scaling back restores, by names that begin with the parameter's.
    """
    result: list[StateEdit | BirthEdit] = []
    for number, optimizer in enumerate(optimizers):
        if isinstance(optimizer, LBFGS):
            raise ValueError(
                "LBFGS keeps one flat history of all parameters, which cannot be resized: grow without "
                "optimizer=, then create a new LBFGS"
            )
        for group in optimizer.param_groups:
            if any(each is parameter for each in group["params"]):
                state = optimizer.state.get(parameter, {})
                for key, value in state.items():
                    own = _edits_of_state(name, key, value, parameter, edits, optimizer) if edits else []
                    scaled = factor ** _power(optimizer, key) if isinstance(value, Tensor) else 1.0
                    if own or scaled != 1:
                        earlier = None if held is None else held[f"{name} {number} {key}"]
                        fills = {edit.axis: _fill(optimizer, group, key, edit) for edit in own}
                        result.append(StateEdit(state, key, own, fills, scaled, earlier))
                born = step_count(group, state) if ages and needs_births(optimizer, group, state) else None
                if edits and (born is not None or KEY in state):
                    result.append(BirthEdit(state, edits, parameter.ndim, born))
    return result


def _edits_of_state(
    name: str, key: str, value: Any, parameter: Tensor, edits: Sequence[Edit], optimizer: Optimizer
) -> list[Edit]:
    """The edits that apply to a state tensor: all edits, some axes only (factored moments) or none (a step count)."""
    if not isinstance(value, Tensor):
        if isinstance(value, (list, tuple)) and any(isinstance(each, Tensor) for each in value):
            raise ValueError(
                f"{type(optimizer).__name__} keeps a list of tensors {key!r} for {name}, which cannot be resized"
            )
        return []
    if value.shape == parameter.shape:
        return list(edits)
    if value.numel() == 1 and value.ndim != parameter.ndim:
        return []
    sizes = list(zip(value.shape, parameter.shape, strict=False))
    fits = value.ndim == parameter.ndim and all(own in (1, whole) for own, whole in sizes)
    # If the edited axis has size 1, it is ambiguous whether the state has that axis or has reduced it.
    if not fits or any(parameter.shape[edit.axis] == 1 for edit in edits):
        raise ValueError(
            f"{type(optimizer).__name__} keeps {key!r} of shape {tuple(value.shape)} for {name} of shape "
            f"{tuple(parameter.shape)}, which cannot be resized with it: delete optimizer.state[parameter] "
            "first to reset its state"
        )
    return [edit for edit in edits if value.shape[edit.axis] != 1]


def _fill(optimizer: Optimizer, group: dict[str, Any], key: str, edit: Edit) -> Tensor | float:
    """Value of a state tensor for new weights: the one that the optimizer itself would initialize it with."""
    if isinstance(optimizer, Rprop) and key == "step_size":
        return float(group["lr"])
    if isinstance(optimizer, Adagrad) and key == "sum":
        return float(group["initial_accumulator_value"])
    if isinstance(optimizer, ASGD) and key == "ax" and edit.values is not None:
        return edit.values
    return 0.0


_OF_GRADIENTS = ("exp_avg", "exp_inf", "grad_avg", "momentum_buffer", "prev")
_OF_SQUARES = ("col_var", "exp_avg_sq", "max_exp_avg_sq", "row_var", "square_avg", "sum", "variance")


def _power(optimizer: Optimizer, key: str) -> int:
    """The power of f by which a state tensor is multiplied where the entries of a parameter are multiplied by f."""
    if key in _OF_GRADIENTS and not (isinstance(optimizer, RMSprop) and key == "momentum_buffer"):  # relative there
        return -1
    if key in _OF_SQUARES:
        return -2
    return 1 if isinstance(optimizer, ASGD) and key == "ax" else 0  # an average of the parameter
