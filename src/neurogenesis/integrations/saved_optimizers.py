"""States of optimizers with the names of parameters: torch matches them by position alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ..surgery.ages import resume

Names = Mapping[int, str]  # names of parameters by id; those of other models are not in it


def optimizer_state(optimizer: Optimizer, names: Names) -> dict[str, Any]:
    """The state of an optimizer, and the names of its parameters in order."""
    return {**optimizer.state_dict(), "names": _names(optimizer, names)}


def check_optimizers(
    optimizers: Sequence[Optimizer],
    states: Sequence[Mapping[str, Any]],
    names: Names,
    left_out: Sequence[str],
    where: str,
) -> None:
    """Raise ValueError unless the states are of these optimizers.

    Args:
        optimizers: the optimizers; if there are none, no state is loaded.
        states: what `optimizer_state` returned for each.
        names: names of parameters.
        left_out: prefixes of parameters whose models are not loaded.
        where: the name of the file or snapshot in messages.
    """
    if optimizers and len(optimizers) != len(states):
        raise ValueError(f"{where} has the state of {len(states)} optimizers, not of {len(optimizers)}")
    for optimizer, state in zip(optimizers, states, strict=False):
        kind, present, saved = type(optimizer).__name__, _names(optimizer, names), state["names"]
        if list(map(len, present)) != list(map(len, saved)):
            raise ValueError(
                f"{kind} has parameter groups of {list(map(len, present))} parameters, and the saved one of "
                f"{list(map(len, saved))}: create it as before"
            )
        for name, other in zip(chain(*present), chain(*saved), strict=True):
            expected = "" if other.startswith(tuple(left_out)) else other
            if name != expected:
                raise ValueError(_difference(kind, name, expected))


def _difference(kind: str, name: str, other: str) -> str:
    present = f"parameter {name!r}" if name else "a parameter of another model"
    saved = repr(other) if other else "a parameter of another model"
    return (
        f"{kind} has {present} where the saved one has {saved}: create it with its parameters in the same order. If it "
        "trains several models, pass those that were saved together, as model={'first': first, 'second': second}, or "
        "load each file with its own model"
    )


def load_optimizer(optimizer: Optimizer, saved: Mapping[str, Any], names: Names) -> None:
    """Load a state that was checked.

    Parameters of models that are loaded later may not have their saved shapes yet: their state stays as it is.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    others = [number for number, parameter in enumerate(parameters) if id(parameter) not in names]
    state = dict(saved["state"])
    if not all(_may_belong(state.get(number, {}), parameters[number]) for number in others):
        present = optimizer.state_dict()["state"]
        for number in others:
            state.pop(number, None)
            if number in present:
                state[number] = present[number]
    optimizer.load_state_dict({"state": state, "param_groups": saved["param_groups"]})
    resume(optimizer)


def _may_belong(state: Mapping[str, Any], parameter: Tensor) -> bool:
    """Whether a state has the shapes of a parameter; its tensors may be reduced along axes, or scalars."""
    return all(
        value.numel() == 1
        or (
            value.ndim == parameter.ndim and all(a in (1, b) for a, b in zip(value.shape, parameter.shape, strict=True))
        )
        for value in state.values()
        if isinstance(value, Tensor)
    )


def _names(optimizer: Optimizer, names: Names) -> list[list[str]]:
    return [[names.get(id(each), "") for each in group["params"]] for group in optimizer.param_groups]
