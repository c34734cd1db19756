"""Hooks that record the model's inputs and the gradients at layer outputs in the user's training passes.

They act only in training passes (training mode with gradients enabled), keep only what triggers need, and can be
removed completely.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..structure.axes import Axis
from ..structure.tracing import constant_calls, is_internal_run, tensors_in
from ..structure.wrappers import active_wrapper, is_redirected
from .buffers import Buffer
from .checkpointing import Awaited, inside_backward, places, saving_apart
from .compiled import EagerPasses, PassHook
from .meeting import Meeting
from .processes import ALONE, Processes
from .records import ConsumerRecord
from .replay import Call, Hook, observe
from .samples import Samples


class Taps:
    """All hooks on one model.

    Args:
        model: the model.
        buffer: stores the inputs of training passes.
        on_first_call: called once before the first training pass, with its arguments, or with the given examples.
        keep_inputs: whether to store the inputs of every pass in the buffer.
        on_processes: called in the first pass that runs in several processes, and whenever these change.
        wrapper: what `torch.compile` made of the model, if the user calls that.
        on_failure: called with the error if a pass of the model fails.
    """

    def __init__(
        self,
        model: nn.Module,
        buffer: Buffer,
        on_first_call: Callable[[Sequence[Call]], None] | None = None,
        keep_inputs: bool = True,
        on_processes: Callable[[Processes], None] | None = None,
        wrapper: nn.Module | None = None,
        on_failure: Callable[[BaseException], None] = lambda _: None,
        samples: Samples | None = None,
    ):
        self.model, self.buffer, self.keep_inputs = model, buffer, keep_inputs
        self.samples = samples  # to be counted
        self.forward_passes = 0  # training passes since the last step
        self.backward_passes = 0  # backward passes that reached the model's outputs since the last step
        self.backward_visible = True  # whether the model's outputs can show a backward pass
        self.muted = False  # set while the library itself runs the model
        self.recording = False
        self.processes = ALONE  # the processes that train the model together
        self.synchronized = True  # whether the gradients of the latest pass are averaged over them
        self.meeting: Meeting | None = None  # where these processes meet before they look
        self.unseen_step = False  # whether the optimizer has stepped since the last call of grower.step()
        self._on_processes = on_processes
        self._on_failure = on_failure
        self._on_first_call = on_first_call
        self._call: Call | None = None
        self.wanted: frozenset[str] = frozenset()  # widths whose gradients are needed at the next step
        self.idle = False  # whether nothing is recorded: training passes are only counted, which takes no time
        self._watched: Sequence[ConsumerRecord] = ()
        self.stepped_since_backward = False  # whether the optimizer has stepped since the last backward pass
        self._calls: Counter[tuple[str, ...]] = Counter()  # of modules in this pass
        self._inputs: dict[tuple[str, ...], Tensor] = {}
        # Reentrant activation checkpointing runs parts of the model, or all of it, without gradients at first.
        self._awaited: dict[tuple[str, str], list[Awaited]] = {}
        self._without_gradients: set[tuple[Any, ...]] = set()
        self._points: list[tuple[nn.Module, Any, Callable[[Tensor], None]]] = []  # where inputs and outputs are read
        self._point_handles: list[Any] = []
        self._gradient_handles: list[Any] = []
        self._pass_hooks = [PassHook(self._before_forward, observer=self), PassHook(self._after_forward)]
        self._handles: list[Any] = [
            model.register_forward_pre_hook(self._pass_hooks[0], with_kwargs=True),
            model.register_forward_hook(self._pass_hooks[1], always_call=True),
        ]
        self._eager_passes = EagerPasses(model, wrapper)
        self.run_eagerly(True)  # to find the widths before the first pass

    def watch(self, widths: Sequence[ConsumerRecord], norms: bool = True) -> None:
        """Record the inputs and gradients of widths and, if `norms`, the norms of their parameters' gradients.

        They replace those that have been recorded so far.
        """
        self._watched = widths
        self._points.clear()
        _remove(self._point_handles)
        _remove(self._gradient_handles)
        for record in widths:
            route = record.route
            producer, consumer = map(self.model.get_submodule, (route.producer.module, route.consumer.module))
            self._tap(record, "H_prev", producer, "input", partial(self._on_input, record, "H_prev"))
            self._tap(record, "H", consumer, "input", partial(self._on_input, record, "H"))
            self._tap(record, "output", consumer, "output", partial(self._on_output, record))
            for axis, role in ((route.producer, "fan-in"), (route.consumer, "fan-out")) if norms else ():
                self._tap_gradient(record, axis, role)

    def _tap(
        self, record: ConsumerRecord, what: str, module: nn.Module, side: Any, action: Callable[[Tensor], None]
    ) -> None:
        name = record.width.name
        key = *record.key, what

        def act(tensor: Tensor) -> None:
            if name not in self.wanted or is_internal_run(self.model):
                return
            if self.recording:
                if self._calls[key] <= constant:  # of a layer called more than once, the first call counts
                    self._calls[key] += 1
                    if self._calls[key] > constant:
                        action(tensor)
            elif record.key in self._awaited and what != "H_prev" and inside_backward():
                self._recomputed(record, what, tensor)

        constant = constant_calls(module)

        self._points.append((module, side, act))

    def want(self, names: frozenset[str], eagerly: bool = False) -> None:
        """Record these widths in the next passes; without any, modules have no hooks, which take time.

        Passes that are recorded run eagerly even if the model is compiled, and all if `eagerly`.
        """
        self.wanted = names
        self.idle = not (names or self.keep_inputs or self._on_first_call is not None)
        if self.idle:
            self._call, self.backward_visible, self.synchronized = None, False, True
        self.run_eagerly(bool(names) or eagerly)
        if names and not self._point_handles:
            self._point_handles = [observe(*point) for point in self._points]
        elif not names:
            _remove(self._point_handles)

    def run_eagerly(self, eager: bool) -> None:
        """Run the next training passes eagerly, or compiled if the user compiles the model."""
        for hook in self._pass_hooks:
            hook.eager = eager
        self._eager_passes.switch(eager)

    @property
    def compiled(self) -> bool:
        """Whether the user compiles the model, or modules inside it."""
        return self._eager_passes.compiled

    @property
    def eager(self) -> bool:
        """Whether the next training passes run eagerly."""
        return self._pass_hooks[0].eager

    def _tap_gradient(self, record: ConsumerRecord, axis: Axis, role: str) -> None:
        path, _, name = axis.tensor.rpartition(".")
        parameter = getattr(self.model.get_submodule(path), name)

        def arrived(parameter: Tensor) -> None:
            if record.width.name in self.wanted and not self.muted and parameter.grad is not None:
                record.add_gradient(role, axis, parameter.grad, alone=self.processes is ALONE)

        if parameter.requires_grad:
            self._gradient_handles.append(parameter.register_post_accumulate_grad_hook(Hook(arrived)))

    def begin(self, calls: Sequence[Call]) -> None:
        """Run `on_first_call` if it has not run yet."""
        if self._on_first_call is not None:
            self.muted = True
            try:
                with torch.enable_grad(), saving_apart():
                    self._on_first_call(calls)
            finally:
                self.muted = False
            self._on_first_call = None

    def start_again(self, on_first_call: Callable[[Sequence[Call]], None]) -> None:
        """Watch no widths any more, and wait for a first training pass."""
        self.clear_records()
        self.watch(())
        self.wanted, self._on_first_call = frozenset(), on_first_call
        self._call, self.idle = None, False
        self.buffer.forget_widths()
        self.run_eagerly(True)

    # --- hooks -------------------------------------------------------------------------------------------

    def _before_forward(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if module is not self.model:
            return
        if self.idle:
            if module.training and torch.is_grad_enabled():
                self._count_pass()
                if self.samples is not None and not self.samples.known:
                    self.samples.add(Call.of(args, kwargs))
        elif not is_redirected(module):
            self.enter(args, kwargs)

    def enter(self, args: Any, kwargs: Any) -> None:
        """Begin to record a pass of the model if it is a training pass."""
        if self.muted or is_internal_run(self.model) or not self.model.training:
            return
        if not torch.is_grad_enabled():
            self._without_gradients.add(places(args, kwargs))
            return
        if not any(parameter.requires_grad for parameter in self.model.parameters()):
            return  # frozen for the time being, as a discriminator while the generator is trained
        if inside_backward():  # activation checkpointing computes a pass again
            where = places(args, kwargs)
            if where not in self._without_gradients:
                return  # it was recorded
            self._without_gradients.discard(where)
        if self._eager_passes.bypassed:
            raise RuntimeError("model.compile() was called after Grower(model, optimizer): call it before")
        self._find_processes()
        latest = self.buffer.latest or self._call
        if latest is not None and not latest.intact:
            self.buffer.inputs_overwritten = True
        self._call = None
        if self.keep_inputs or self.wanted or self._on_first_call is not None:
            call = Call.of(args, kwargs)
            if self.buffer.inputs_overwritten:  # the model or the caller reuses its inputs: keep copies
                call = call.copied()
            self.begin([call])
            self._call = call
            if self.samples is not None:
                self.samples.add(call)
            if self.keep_inputs:
                self.buffer.add(call)
        self.recording = True
        self._calls.clear()
        self._inputs.clear()
        self._count_pass()

    def _count_pass(self) -> None:
        self.forward_passes += 1
        if self.unseen_step:
            self.unseen_step = False
            if self.meeting is not None:
                self.meeting.miss()

    def note(self, inputs: Sequence[Tensor]) -> None:
        """Note a training pass that runs compiled; arguments other than tensors are those of the last eager pass."""
        if self.muted:
            return
        self._find_processes()
        self._count_pass()
        self.backward_visible = False
        like = self._call
        if self.keep_inputs and like is not None and len(like.tensors) == len(inputs):
            copies = [tensor.clone() for tensor in inputs]  # the graph may reuse their memory
            self.buffer.add(like.with_tensors(copies))

    def _find_processes(self) -> None:
        """Find the processes of the `DistributedDataParallel` that runs the model."""
        wrapper = active_wrapper(self.model)
        if wrapper is None:
            return
        self.synchronized = wrapper.require_backward_grad_sync
        processes = Processes(wrapper.process_group)
        if processes.count > 1 and processes != self.processes:
            self.processes, self.meeting = processes, Meeting(processes)
            self.meeting.wait(
                "a Grower watches the model in process {here}, but none has seen a training pass in process {others}: "
                "create it in every process"
            )
            if self._on_processes is not None:
                self._on_processes(processes)

    def _after_forward(self, module: nn.Module, args: Any, output: Any) -> None:
        if output is None and (error := sys.exc_info()[1]) is not None and not is_internal_run(module):
            self._on_failure(error)
        if module is self.model and self.recording and not self.muted and not is_internal_run(module):
            self.recording = False
            self._inputs.clear()
            if self._call is not None and not self._call.intact:
                self.buffer.inputs_overwritten = True  # by the model itself
            # The hook takes time, and whether there was a backward pass matters only if the step is looked at.
            outputs = [tensor for tensor in tensors_in(output) if tensor.requires_grad] if self.wanted else []
            self.backward_visible = bool(outputs)
            for tensor in outputs:
                tensor.register_hook(self._on_backward)  # type: ignore[no-untyped-call]

    def _on_backward(self, gradient: Tensor) -> None:
        self.backward_passes += 1

    def _on_input(self, record: ConsumerRecord, what: str, tensor: Tensor) -> None:
        kept = tensor.detach().clone() if self.buffer.inputs_overwritten else tensor.detach()
        key = (*record.key, what)
        self._inputs[key] = kept

    def _on_output(self, record: ConsumerRecord, tensor: Tensor) -> None:
        H_prev, H = (self._inputs.pop((*record.key, what), None) for what in ("H_prev", "H"))
        call = self._call
        if H_prev is None or H is None or call is None:
            return
        if tensor.requires_grad:
            self._await_gradient(record, call, H_prev, H, tensor)
        elif not torch.is_grad_enabled():
            self._awaited.setdefault(record.key, []).append(Awaited.of(call, H_prev, H))

    def _recomputed(self, record: ConsumerRecord, what: str, tensor: Tensor) -> None:
        """Record what is computed again in the backward pass, with gradients, by reentrant activation checkpointing."""
        key = (*record.key, "H")
        if what == "H":
            self._inputs[key] = tensor.detach()
            return
        H = self._inputs.pop(key, None)
        if H is None or not tensor.requires_grad:
            return
        for number, awaited in enumerate(self._awaited[record.key]):
            if awaited.is_for(H):
                del self._awaited[record.key][number]
                self._await_gradient(record, awaited.call, awaited.H_prev, awaited.H, tensor)
                return

    @property
    def without_gradients(self) -> list[str]:
        """Layers that ran without gradients in the passes since the last step, and not again in the backward pass."""
        names = (record.route.consumer.module for record in self._watched if self._awaited.get(record.key))
        return list(dict.fromkeys(names))

    def _await_gradient(self, record: ConsumerRecord, call: Call, H_prev: Tensor, H: Tensor, tensor: Tensor) -> None:
        """Record inputs of a width when the gradient at the consumer's output arrives."""

        def arrived(gradient: Tensor) -> None:
            if self.muted:
                return
            if self.stepped_since_backward:  # the first gradient after a step: earlier pairs belong to that step
                self.stepped_since_backward = False
                for each in self._watched:
                    each.pairs.clear()
            record.add(call, H_prev, H, gradient.detach())

        tensor.register_hook(arrived)  # type: ignore[no-untyped-call]

    def clear_records(self) -> None:
        """Clear everything recorded since the last step."""
        for record in self._watched:
            record.clear()
        self._awaited.clear()
        self._without_gradients.clear()

    def remove(self) -> None:
        for handles in (self._handles, self._point_handles, self._gradient_handles):
            _remove(handles)
        self.run_eagerly(False)
        self._points.clear()
        self.muted, self._call = True, None
        self.clear_records()
        self.buffer.clear()
        self._inputs.clear()


def _remove(handles: list[Any]) -> None:
    for handle in handles:
        handle.remove()
    handles.clear()
