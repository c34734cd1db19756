"""Notice the first call of layers that no example has used: a head that is switched on later, an expert, a branch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from ..structure.modes import as_ordinary, ordinary_tensors
from ..structure.randomness import RandomState, random_state_restored
from ..structure.running import is_internal_run
from .replay import Hook, ModelCall, temporary_attributes


class UnusedLayers:
    """Hooks on modules that have not been called yet.

    Args:
        model: the model.
        parameters: names of the parameters that have not been used; their modules are watched.
        on_call: called when one of the modules is about to run, in any mode, with the module and a copy of the
            arguments of the model.
    """

    def __init__(self, model: nn.Module, parameters: Iterable[str], on_call: Callable[[nn.Module, ModelCall], None]):
        self._model, self._on_call = model, on_call
        self._arguments: tuple[Any, Any] | None = None  # of the model, while it runs
        # Before it ran: attributes, such as counters of passes, and generators, which may choose a branch.
        self._numbers: list[tuple[nn.Module, dict[str, Any]]] = []
        self._random: RandomState | None = None
        self._handles: list[Any] = []
        for path in dict.fromkeys(name.rpartition(".")[0] for name in parameters):
            self._handles.append(model.get_submodule(path).register_forward_pre_hook(Hook(self._called)))
        if self._handles:
            self._handles.append(model.register_forward_pre_hook(Hook(self._enter), with_kwargs=True))
            self._handles.append(model.register_forward_hook(Hook(self._leave), always_call=True))

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if not is_internal_run(self._model):
            self._arguments = args, kwargs
            self._numbers = [(each, _numbers(each)) for each in self._model.modules()]
            self._random = RandomState.present(self._model)

    def _leave(self, *_: Any) -> None:
        if not is_internal_run(self._model):
            self._arguments = None

    def _called(self, module: nn.Module, *_: Any) -> None:
        if self._arguments is not None and not is_internal_run(self._model):
            with ordinary_tensors():
                call = ModelCall.of(*as_ordinary(self._arguments)).copied()
            changed = [
                (each, name, value)
                for each, before in self._numbers
                for name, value in before.items()
                if getattr(each, name, value) != value
            ]
            with temporary_attributes(changed), random_state_restored(self._model, self._random):  # the same pass
                self._on_call(module, call)

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._arguments, self._numbers, self._random = None, [], None


def _numbers(module: nn.Module) -> dict[str, Any]:
    """Attributes of a module that are plain numbers."""
    return {name: value for name, value in vars(module).items() if type(value) in (int, float, bool)}
