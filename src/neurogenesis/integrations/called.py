"""Find the module that a training step calls as its model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from ..passes.replay import Hook
from ..structure.wrappers import is_redirected


class OutermostCalls:
    """Records the outermost modules with trained parameters that are called in training passes.

    Args:
        root: the module that is watched, with its submodules.
        on_first: called before the first such pass, with the path of the module and the arguments of the pass.
    """

    def __init__(self, root: nn.Module, on_first: Callable[[str, tuple[Any, ...], dict[str, Any]], None]):
        self.paths: list[str] = []  # in the order of their first calls
        self._on_first = on_first
        self._inside: list[bool] = []  # for each call that has not ended, whether it is one of a model
        self._busy = False
        self._handles: list[Any] = []
        for path, module in root.named_modules():
            if any(parameter.requires_grad for parameter in module.parameters()):
                before, after = Hook(partial(self._enter, path)), Hook(self._leave)
                self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
                self._handles.append(module.register_forward_hook(after, always_call=True))

    @property
    def others(self) -> list[str]:
        """Paths of called modules outside the first one."""
        return [path for path in self.paths[1:] if not is_inside(path, self.paths[0])]

    def _enter(self, path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._ignores():
            return
        own = not is_redirected(module)
        outermost = own and not any(self._inside) and module.training and torch.is_grad_enabled()
        self._inside.append(own)
        if outermost and path not in self.paths:
            self.paths.append(path)
            if len(self.paths) == 1:
                self._busy = True  # the model may be run to find its widths
                try:
                    self._on_first(path, args, kwargs)
                finally:
                    self._busy = False

    def _leave(self, *_: Any) -> None:
        if not self._ignores():
            self._inside.pop()

    def _ignores(self) -> bool:
        return self._busy or torch._C._current_graph_task_id() != -1  # checkpointing runs modules in backward passes

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def is_inside(path: str, outer: str) -> bool:
    """Whether a path is the other one or below it."""
    return outer == "" or path == outer or path.startswith(f"{outer}.")
