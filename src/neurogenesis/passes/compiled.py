"""Training passes of a model that `torch.compile` runs.

A pass that is looked at runs eagerly: hooks on its modules would break the graph, and every size of the model would need
graphs of its own for them. All other passes run compiled. The hook before them becomes part of the graph, as an operation
that notes the pass, so it breaks no graph either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from .replay import Hook

_WHY_EAGER = (
    "the grower looks at this training pass, which therefore cannot be part of a graph: pass the compiled model to Grower, "
    "as in Grower(torch.compile(model), optimizer), or, if a function around the model is compiled with fullgraph=True, "
    "call that function uncompiled while grower.eager"
)


class Observer(Protocol):
    """Is told of compiled training passes."""

    def note(self, inputs: Sequence[Tensor]) -> None: ...


_OBSERVERS: WeakValueDictionary[int, Observer] = WeakValueDictionary()
_NUMBERS = count()


# Compilers remove operations without an effect: `written` is declared as written to, so that they keep this one.
@torch.library.custom_op("neurogenesis::note_pass", mutates_args=("written",))
def _note_pass(inputs: list[Tensor], written: Tensor, observer: int) -> None:
    found = _OBSERVERS.get(observer)
    if found is not None:
        found.note(inputs)


@_note_pass.register_fake
def _(inputs: list[Tensor], written: Tensor, observer: int) -> None:
    return None


class PassHook(Hook):
    """A hook on the whole model: eager passes call `action`, compiled ones call nothing.

    With an observer, the hook notes compiled training passes; it is then a pre-hook with keyword arguments.
    """

    def __init__(self, action: Callable[..., Any] | None = None, observer: Observer | None = None):
        super().__init__(action)
        self.eager = True  # whether the action is needed in compiled passes, too
        self.number: int | None = None
        if observer is not None:
            self.number, self.written = next(_NUMBERS), torch.zeros(())
            _OBSERVERS[self.number] = observer

    def __call__(self, module: nn.Module, *args: Any) -> Any:
        if not torch.compiler.is_dynamo_compiling():
            return None if self.action is None else self.action(module, *args)
        if not (module.training and torch.is_grad_enabled()):
            return None
        if self.eager:
            return super().__call__(module, *args)  # breaks the graph
        if self.number is not None:
            inputs = [leaf.detach() for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
            torch.ops.neurogenesis.note_pass(inputs, self.written, self.number)
        return None


class EagerPasses:
    """Switches a model's training passes between eager and compiled. Other passes stay as they are.

    Args:
        model: the model.
        wrapper: what `torch.compile(model)` returned, if the model is called through it.
    """

    def __init__(self, model: nn.Module, wrapper: nn.Module | None = None):
        self._model = model
        # Both attributes are left out of pickles and copies by torch.
        self._places = [(model, "_compiled_call_impl")] if wrapper is None else [(wrapper, "forward")]
        if wrapper is not None and model._compiled_call_impl is not None:
            self._places.append((model, "_compiled_call_impl"))
        self._gates: list[tuple[nn.Module, str, Callable[..., Any], Any]] = []

    def switch(self, eager: bool) -> None:
        """Run the next training passes eagerly, or as the user has it."""
        if not eager:
            self._open()
        elif not self._gates or any(vars(module).get(name) is not gate for module, name, gate, _ in self._gates):
            self._open()
            for module, name in self._places:
                usual = vars(module).get(name)
                gate = _gate(self._model, usual or self._model._call_impl)
                vars(module)[name] = gate
                self._gates.append((module, name, gate, usual))

    def _open(self) -> None:
        for module, name, gate, usual in self._gates:
            if vars(module).get(name) is gate:  # else the user has called model.compile() since
                del vars(module)[name]
                if usual is not None:
                    vars(module)[name] = usual
        self._gates.clear()


def _gate(model: nn.Module, usual: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls a model eagerly in training passes and as usual in others."""
    eagerly = torch.compiler.disable(model._call_impl, reason=_WHY_EAGER)

    def call(*args: Any, **kwargs: Any) -> Any:
        train = model.training and torch.is_grad_enabled()
        return eagerly(*args, **kwargs) if train else usual(*args, **kwargs)

    return call
