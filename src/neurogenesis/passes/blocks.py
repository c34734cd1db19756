"""Hooks on the blocks of a stack: their arguments, what they return, and the gradient there, in training passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..structure.examples import tensors_in
from ..structure.running import is_internal_run
from .checkpointing import inside_backward
from .replay import Hook, ModelCall

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Seen(NamedTuple):
    """A block in a training pass.

    Args:
        block: its number.
        made: what the action has made of its arguments and its output.
        gradient: the gradient at its output.
        call: the call of the model.
    """

    block: int
    made: Any
    gradient: Tensor
    call: ModelCall | None


class BlockTaps:
    """Hooks on the blocks of a stack.

    Args:
        model: the model.
        action: called with the number of a block, its arguments and what it returns, when it has run.
        call: the pass of the model that is running, or runs again in the backward pass.
    """

    def __init__(
        self, model: nn.Module, action: Callable[[int, Arguments, Tensor], Any], call: Callable[[], ModelCall | None]
    ):
        self.model, self._action, self._call = model, action, call
        self.seen: list[Seen] = []
        self._blocks: Mapping[int, tuple[nn.Module, nn.Module]] = {}
        self._handles: list[Any] = []
        self._arguments: dict[int, Arguments] = {}
        self._noted: set[int] = set()  # blocks that have run with gradients in the forward pass

    def watch(self, blocks: Mapping[int, tuple[nn.Module, nn.Module]]) -> None:
        """Watch the first and last modules of these blocks, by number, in place of others."""
        self.want(False)
        self._blocks = blocks

    def want(self, wanted: bool) -> None:
        """Watch the next passes, or not; what was seen is forgotten."""
        self.seen.clear()
        self._arguments.clear()
        self._noted.clear()
        if wanted and not self._handles:
            for number, (first, last) in self._blocks.items():
                self._handles += [
                    first.register_forward_pre_hook(Hook(partial(self._before, number)), with_kwargs=True),
                    last.register_forward_hook(Hook(partial(self._after, number))),
                ]
        elif not wanted:
            for handle in self._handles:
                handle.remove()
            self._handles.clear()

    def _before(self, number: int, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.is_grad_enabled() and not is_internal_run(self.model):
            self._arguments[number] = args, kwargs

    def _after(self, number: int, module: nn.Module, args: Any, output: Any) -> None:
        """A block has run: with reentrant activation checkpointing, for the second time, in the backward pass."""
        arguments = self._arguments.pop(number, None)
        stream = next(tensors_in(output), None)
        if arguments is None or stream is None or not stream.requires_grad or is_internal_run(self.model):
            return
        if inside_backward():
            if number in self._noted:
                return
        else:
            self._noted.add(number)
        made, call = self._action(number, arguments, stream), self._call()

        def arrived(gradient: Tensor) -> None:
            if self._handles:
                self.seen.append(Seen(number, made, gradient.detach().clone(), call))

        stream.register_hook(arrived)  # type: ignore[no-untyped-call]
