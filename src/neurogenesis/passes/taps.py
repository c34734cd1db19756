"""Hooks that see what a user's own training step does: the model's inputs, and gradients at the outputs of layers.

They act in training passes only (training mode, gradients on), keep no more than triggers need, and can be removed
without a trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..structure.axes import Axis
from ..structure.tracing import is_internal_run, tensors_in
from .buffers import Buffer
from .replay import Call, Hook, observe
from .seen import Seen


class Taps:
    """All hooks on one model.

    Args:
        model: the model.
        buffer: takes the inputs of training passes.
        on_first_call: called once, before the first training pass, with its arguments.
    """

    def __init__(self, model: nn.Module, buffer: Buffer, on_first_call: Callable[[Call], None] | None = None):
        self.model, self.buffer = model, buffer
        self.passes = 0  # training passes since the last step
        self.backwards = 0  # of these, how many had a backward pass
        self.backward_visible = True  # whether the model's outputs show that
        self.muted = False  # while we run the model ourselves
        self.recording = False
        self._on_first_call = on_first_call
        self._call: Call | None = None
        self.wanted: frozenset[str] = frozenset()  # widths whose gradients the next step will ask for
        self._watched: Sequence[Seen] = ()
        self.fresh = False  # whether a gradient step has been taken since the last pass
        self._seen: set[tuple[str, str]] = set()
        self._inputs: dict[str, Tensor] = {}
        self._handles: list[Any] = [
            model.register_forward_pre_hook(Hook(self._enter), with_kwargs=True),
            model.register_forward_hook(Hook(self._leave), always_call=True),
        ]

    def watch(self, widths: Sequence[Seen]) -> None:
        """Note the gradients of widths."""
        self._watched = widths
        for seen in widths:
            route = seen.route
            producer, consumer = map(self.model.get_submodule, (route.producer.module, route.consumer.module))
            self._tap(seen, "H_prev", producer, "input", partial(self._input, seen))
            self._tap(seen, "output", consumer, "output", partial(self._output, seen))
            for axis, role in ((route.producer, "fan-in"), (route.consumer, "fan-out")):
                self._tap_gradient(seen, axis, role)

    def _tap(self, seen: Seen, what: str, module: nn.Module, side: Any, action: Callable[[Tensor], None]) -> None:
        name = seen.width.name
        key = name, what

        def act(tensor: Tensor) -> None:
            wanted = self.recording and name in self.wanted and not is_internal_run(self.model)
            if wanted and key not in self._seen:  # a layer called twice counts the first time
                self._seen.add(key)
                action(tensor)

        self._handles.append(observe(module, side, act))

    def _tap_gradient(self, seen: Seen, axis: Axis, role: str) -> None:
        path, _, name = axis.tensor.rpartition(".")
        parameter = getattr(self.model.get_submodule(path), name)

        def arrived(parameter: Tensor) -> None:
            if seen.width.name in self.wanted and not self.muted and parameter.grad is not None:
                seen.add_gradient(role, axis, parameter.grad)

        if parameter.requires_grad:
            self._handles.append(parameter.register_post_accumulate_grad_hook(Hook(arrived)))

    def begin(self, call: Call) -> None:
        """Find out what to watch, the first time."""
        if self._on_first_call is not None:
            self.muted = True
            try:
                with torch.enable_grad():
                    self._on_first_call(call)
            finally:
                self.muted = False
            self._on_first_call = None

    # --- what happens in a pass --------------------------------------------------------------------------

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if (
            module is not self.model
            or self.muted
            or is_internal_run(module)
            or not (self.model.training and torch.is_grad_enabled())
        ):
            return
        if torch._C._current_graph_task_id() != -1:
            return  # a checkpoint computes a pass again in the middle of its backward
        if self.buffer.calls and not self.buffer.calls[-1].intact:
            self.buffer.overwritten = True
        call = Call.of(args, kwargs)
        if self.buffer.overwritten:  # the inputs are somebody's to write into: keep copies
            call = call.copied()
        self.begin(call)
        self.recording, self._call = True, call
        self._seen.clear()
        self._inputs.clear()
        self.passes += 1
        self.buffer.add(call)

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if module is self.model and self.recording and not self.muted and not is_internal_run(module):
            self.recording = False
            self._inputs.clear()
            if self._call is not None and not self._call.intact:
                self.buffer.overwritten = True  # by the model itself
            outputs = [tensor for tensor in tensors_in(output) if tensor.requires_grad]
            self.backward_visible = bool(outputs)
            for tensor in outputs:
                tensor.register_hook(self._went_backward)  # type: ignore[no-untyped-call]

    def _went_backward(self, gradient: Tensor) -> None:
        self.backwards += 1

    def _input(self, seen: Seen, tensor: Tensor) -> None:
        self._inputs[seen.width.name] = tensor.detach().clone() if self.buffer.overwritten else tensor.detach()

    def _output(self, seen: Seen, tensor: Tensor) -> None:
        H_prev, call = self._inputs.pop(seen.width.name, None), self._call
        if H_prev is None or call is None or not tensor.requires_grad:
            return

        def arrived(gradient: Tensor) -> None:
            if self.muted:
                return
            if self.fresh:  # the first gradient after a gradient step: what was there belongs to that one
                self.fresh = False
                for each in self._watched:
                    each.pairs.clear()
            seen.add(call, H_prev, gradient.detach())

        tensor.register_hook(arrived)  # type: ignore[no-untyped-call]

    def forget(self) -> None:
        """Drop what was seen since the last step."""
        for seen in self._watched:
            seen.clear()

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.buffer.calls.clear()
        self.buffer.forget()
        self._inputs.clear()
