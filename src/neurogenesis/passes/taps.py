"""Hooks that record the inputs of producers and consumers, and the gradients there, in training passes.

They keep only what triggers need, and can be removed completely.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils.rnn import PackedSequence

from ..structure.axes import Axis
from ..structure.running import constant_calls, is_internal_run
from .checkpointing import Awaited, inside_backward
from .packing import items_of_rows
from .processes import ALONE, Processes
from .products import watching
from .records import ConsumerRecord
from .replay import Hook, ModelCall, observe, observe_call


class Taps:
    """Hooks on the producers and consumers of widths.

    Args:
        model: the model.
    """

    def __init__(self, model: nn.Module):
        self.model = model
        self.wanted: frozenset[str] = frozenset()  # widths that are recorded
        self._processes = ALONE
        self._records: Sequence[ConsumerRecord] = ()
        self._call: ModelCall | None = None  # the pass that is recorded
        self._copies = False  # whether inputs are copied
        self._removed = False
        self._stepped = False  # whether the optimizer has stepped since the last backward pass
        self._calls: Counter[tuple[str, ...]] = Counter()  # of modules in this pass
        self._inputs: dict[tuple[str, ...], Tensor] = {}
        self._regions: dict[tuple[str, ...], ModelCall] = {}
        self._items: dict[int, Tensor] = {}  # of packed sequences in this pass, by the number of their rows
        self._awaited: dict[tuple[str, str], list[Awaited]] = {}  # by reentrant activation checkpointing
        self._points: list[Callable[[], Any]] = []  # put hooks where inputs and outputs are read; return their handles
        self._point_handles: list[Any] = []
        self._places: list[nn.Module] = []
        self._watched = ExitStack()  # of the products in this pass
        self._gradient_handles: list[Any] = []

    def watch(self, records: Sequence[ConsumerRecord], norms: bool = True) -> None:
        """Write into these records, in place of others; if `norms`, also the norms of the gradients of parameters."""
        self._records = records
        self._points.clear()
        self._places.clear()
        _remove(self._point_handles)
        _remove(self._gradient_handles)
        layers = [each for each in self.model.modules() if isinstance(each, nn.RNNBase)] if records else []
        self._points += [partial(observe_call, each, self._on_sequences) for each in layers]
        for record in records:
            record.processes, route = self._processes, record.route
            producer, consumer = (route.place(self.model, axis) for axis in (route.producer, route.consumer))
            self._places += [producer, consumer]
            if route.chain is None and route.region is not None:
                self._tap_region(record, self.model.get_submodule(route.region))
            self._tap(record, "H_prev", producer, "input", partial(self._on_input, record, "H_prev"))
            self._tap(record, "H", consumer, "input", partial(self._on_input, record, "H"))
            self._tap(record, "output", consumer, "output", partial(self._on_output, record))
            for axis, role in ((route.producer, "fan-in"), (route.consumer, "fan-out")) if norms else ():
                self._tap_gradient(record, axis, role)

    def want(self, names: frozenset[str]) -> None:
        """Record these widths in the next passes; without any, modules have no hooks, which take time."""
        self.wanted = names
        if names and not self._point_handles:
            self._point_handles = [point() for point in self._points]
        elif not names:
            _remove(self._point_handles)

    def join(self, processes: Processes) -> None:
        """Gradients are averaged over these processes after they are recorded."""
        self._processes = processes
        for record in self._records:
            record.processes = processes

    def begin_pass(self, call: ModelCall | None, copies: bool = False) -> None:
        """Record a training pass that begins.

        Args:
            call: its arguments.
            copies: whether to copy the inputs of modules, because they are overwritten.
        """
        self._call, self._copies = call, copies
        self._calls.clear()
        self._inputs.clear()
        self._regions.clear()
        self._items = {}  # another one: that of the last pass is still used
        self._watch_products()

    def end_pass(self) -> None:
        """The pass has ended; its gradients may still arrive."""
        self._call = None
        self._inputs.clear()
        self._regions.clear()
        self._watched.close()

    def optimizer_stepped(self) -> None:
        """The next gradient is the first after a gradient step, to which all that was recorded belongs."""
        self._stepped = True

    def clear(self) -> None:
        """Clear everything recorded since the last step."""
        for record in self._records:
            record.clear()
        self._awaited.clear()

    def remove(self) -> None:
        self._removed = True  # gradients of earlier passes may still arrive
        self.clear()
        self.watch(())
        self.wanted = frozenset()
        self.end_pass()

    @property
    def without_gradients(self) -> list[str]:
        """Layers that ran without gradients in the passes since the last step, and not again in the backward pass."""
        names = (record.route.consumer.module for record in self._records if self._awaited.get(record.key))
        return list(dict.fromkeys(names))

    def _watch_products(self) -> None:
        """Watch products until the pass ends."""
        self._watched.close()
        self._watched.enter_context(watching(self.model, self._places if self._point_handles else ()))

    # --- hooks -------------------------------------------------------------------------------------------

    def _tap(
        self, record: ConsumerRecord, what: str, module: nn.Module, side: Any, action: Callable[[Tensor], None]
    ) -> None:
        name = record.width.name
        key = *record.key, what

        def wanted() -> bool:
            return name in self.wanted and not is_internal_run(self.model)

        def act(tensor: Tensor) -> None:
            if not wanted():
                return
            if self._call is not None:
                if self._calls[key] <= constant:  # of a layer called more than once, the first call counts
                    self._calls[key] += 1
                    if self._calls[key] > constant:
                        action(tensor)
            elif record.key in self._awaited and what != "H_prev" and inside_backward():
                self._recomputed(record, what, tensor)

        constant = constant_calls(module)

        self._points.append(partial(observe, module, side, act, wanted))

    def _tap_region(self, record: ConsumerRecord, module: nn.Module) -> None:
        key = *record.key, "region"

        def act(call: ModelCall) -> None:
            if record.width.name in self.wanted and self._call is not None and not is_internal_run(self.model):
                self._regions.setdefault(key, call.copied() if self._copies else call)

        self._points.append(partial(observe_call, module, act))

    def _tap_gradient(self, record: ConsumerRecord, axis: Axis, role: str) -> None:
        path, _, name = axis.tensor.rpartition(".")
        parameter = getattr(self.model.get_submodule(path), name)

        def arrived(parameter: Tensor) -> None:
            if record.width.name in self.wanted and parameter.grad is not None and not is_internal_run(self.model):
                record.add_gradient(role, axis, parameter.grad)

        if parameter.requires_grad:
            self._gradient_handles.append(parameter.register_post_accumulate_grad_hook(Hook(arrived)))

    def _on_sequences(self, call: ModelCall) -> None:
        """Note which item of the batch each row of packed sequences comes from."""
        if self._call is not None and not is_internal_run(self.model):
            for each in (*call.args, *call.kwargs.values()):
                if isinstance(each, PackedSequence):
                    self._items[len(each.data)] = items_of_rows(each)

    def _on_input(self, record: ConsumerRecord, what: str, tensor: Tensor) -> None:
        key = (*record.key, what)
        self._inputs[key] = tensor.detach().clone() if self._copies else tensor.detach()

    def _on_output(self, record: ConsumerRecord, tensor: Tensor) -> None:
        H_prev, H = (self._inputs.pop((*record.key, what), None) for what in ("H_prev", "H"))
        call = self._call
        if H_prev is None or H is None or call is None:
            return
        if tensor.requires_grad:
            self._await_gradient(record, call, H_prev, H, tensor, self._regions.pop((*record.key, "region"), None))
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

    def _await_gradient(
        self,
        record: ConsumerRecord,
        call: ModelCall,
        H_prev: Tensor,
        H: Tensor,
        tensor: Tensor,
        region: ModelCall | None = None,
    ) -> None:
        """Record inputs of a width when the gradient at the consumer's output arrives."""
        by_rows, image = self._items, isinstance(record.route.place(self.model, record.route.consumer), _ConvNd)

        def arrived(gradient: Tensor) -> None:
            if self._removed or is_internal_run(self.model):
                return
            if self._stepped:  # the first gradient after a step: earlier pairs belong to that step
                self._stepped = False
                for each in self._records:
                    each.pairs.clear()
            items = by_rows.get(len(H)) if H.ndim == 2 and not image else None
            record.add(call, H_prev, H, gradient.detach(), region, items)

        tensor.register_hook(arrived)  # type: ignore[no-untyped-call]


def _remove(handles: list[Any]) -> None:
    for handle in handles:
        handle.remove()
    handles.clear()
