"""Training passes of a model that `torch.compile` runs.

A pass that is looked at runs eagerly: hooks on its modules would break the graph, and every size of the model would
need graphs of its own for them. All other passes run compiled. The hook before them becomes part of the graph, as an
operation that notes the pass, so it breaks no graph either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch._dynamo import OptimizedModule
from torch.utils._pytree import tree_leaves

from .replay import NOT_IN_GRAPHS, Hook, is_export


class Observer(Protocol):
    """An object that is told of compiled training passes."""

    def note(self, inputs: Sequence[Tensor]) -> None: ...


_OBSERVERS: WeakValueDictionary[int, Observer] = WeakValueDictionary()  # by number: a graph holds no objects
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
        if is_export():
            return None
        if not torch.compiler.is_dynamo_compiling():
            return None if self.action is None else self.action(module, *args)
        if not (module.training and torch.is_grad_enabled()):
            return None
        if self.eager:
            return self.act(module, *args)  # breaks the graph
        if self.number is not None:
            inputs = [leaf.detach() for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
            torch.ops.neurogenesis.note_pass(inputs, self.written, self.number)
        return None


_METHOD = "_compiled_call_impl"  # what model.compile() sets


class EagerPasses:
    """Switches a model's training passes between eager and compiled. Other passes stay as they are.

    Args:
        model: the model.
        wrapper: what `torch.compile(model)` returned, if the model is called through it.
    """

    def __init__(self, model: nn.Module, wrapper: nn.Module | None = None):
        self._model, self._wrapper = model, wrapper
        self._gates: list[Gate] = []

    def switch(self, eager: bool) -> None:
        """Run the next training passes eagerly, or as the user has it."""
        if eager and self._gates and all(gate.closed for gate in self._gates):
            return
        while self._gates:
            self._gates.pop().open()
        if eager:
            self._gates = [Gate(self._model, *place) for place in self._places()]

    def _places(self) -> list[tuple[nn.Module, nn.Module, str]]:
        """The modules that are called, where their calls can be replaced: the module and the name of an attribute.

        These are the model or its wrapper, and every module inside that is compiled by itself. Torch leaves both
        attributes out of pickles and copies.
        """
        model, wrapper = self._model, self._wrapper
        places = [(model, model, _METHOD) if wrapper is None else (model, wrapper, "forward")]
        for module in model.modules():
            if isinstance(module, OptimizedModule):
                places.append((module._orig_mod, module, "forward"))
            elif vars(module).get(_METHOD) is not None and (module is not model or wrapper is not None):
                places.append((module, module, _METHOD))
        return places

    @property
    def compiled(self) -> bool:
        """Whether the user compiles the model, or a module inside it."""
        others = [module for module in self._model.modules() if module is not self._model]
        inside = any(isinstance(each, OptimizedModule) or vars(each).get(_METHOD) is not None for each in others)
        present = vars(self._model).get(_METHOD)
        return self._wrapper is not None or inside or _usual(present) is not None

    @property
    def bypassed(self) -> bool:
        """Whether the model was compiled while its training passes are to run eagerly."""
        return any(gate.bypassed for gate in self._gates)


class Gate:
    """Stands in for the attribute by which torch calls a module: training passes run eagerly, others as usual."""

    def __init__(self, model: nn.Module, called: nn.Module, module: nn.Module, name: str):
        self._attributes, self._name = vars(module), name
        present = self._attributes.get(name)
        # The gate of another grower is replaced, not kept inside this one.
        self._usual = _usual(present)
        self._call = _EagerInTraining(model, called, self._usual)
        self._attributes[name] = self._call

    @property
    def closed(self) -> bool:
        return self._attributes.get(self._name) is self._call

    @property
    def bypassed(self) -> bool:
        present = self._attributes.get(self._name)
        return present is not None and not isinstance(present, _EagerInTraining)

    def open(self) -> None:
        if self.closed:
            del self._attributes[self._name]
            if self._usual is not None:
                self._attributes[self._name] = self._usual


class _EagerInTraining:
    """A call of a module: eager in training passes, else as usual, which is as torch does if `usual` is None."""

    def __init__(self, model: nn.Module, called: nn.Module, usual: Callable[..., Any] | None):
        self.usual, self._model, self._otherwise = usual, model, usual or called._call_impl
        self._eagerly = torch.compiler.disable(called._call_impl, reason=NOT_IN_GRAPHS)  # type: ignore[no-untyped-call]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        train = self._model.training and torch.is_grad_enabled() and not is_export()
        return self._eagerly(*args, **kwargs) if train else self._otherwise(*args, **kwargs)


def _usual(present: Any) -> Any:
    """What an attribute is without a gate."""
    return present.usual if isinstance(present, _EagerInTraining) else present
