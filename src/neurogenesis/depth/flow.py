"""The flow of values through a run of a model: every operation, what it reads and what it makes."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from ..structure.examples import Example, call_model, copied_example, tensors_in
from ..structure.randomness import constant_randomness
from ..structure.running import internal_run, preserved


@dataclass(frozen=True)
class Operation:
    """An operation: its function and arguments, the values that it reads, and those that it makes."""

    func: Any
    args: Any
    kwargs: Any
    operands: tuple[int, ...]  # of each tensor among the arguments
    tensors: tuple[Tensor, ...]
    outputs: tuple[int, ...]
    where: str  # path of the module that runs it

    @property
    def name(self) -> str:
        return str(self.func.overloadpacket.__name__).removesuffix("_")

    def with_tensors(self, replaced: Sequence[Tensor]) -> list[Tensor]:
        """Its outputs if its arguments were other tensors."""
        left = iter(replaced)
        args, kwargs = tree_map_only(Tensor, lambda _: next(left).clone(), (self.args, self.kwargs))
        return list(tensors_in(self.func(*args, **kwargs)))


@dataclass
class Value:
    """A tensor at one time: the operation that made it, or the parameter that it is."""

    tensor: Tensor
    operation: Operation | None = None
    parameter: str | None = None
    constant: bool = False  # whether it depends on parameters and buffers alone


@dataclass
class Call:
    """A call of a watched module: the values in its arguments, by their place, and in its outputs."""

    path: str
    inputs: dict[str, int]
    outputs: list[int] = field(default_factory=list)


class Flow(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the operations of a run, and the calls of some modules, in order.

    Random numbers are replaced by constants, so that runs can be compared. Tensors are kept as long as the record is.

    Args:
        model: the model.
        watched: the modules whose calls are recorded.
        record: whether to record operations, or calls alone.
    """

    def __init__(self, model: nn.Module, watched: Iterable[nn.Module], record: bool = True):
        super().__init__()  # type: ignore[no-untyped-call]
        self.values: list[Value] = []
        self.calls: list[Call] = []
        self._of: dict[int, int] = {}  # the present value of each tensor, by the tensor's id
        self._record = record
        self._paths = {module: path for path, module in reversed(list(model.named_modules()))}
        self._watched = list(watched)
        self._open: list[Call] = []

    def begin(self, stack: ExitStack, tensors: Mapping[str, Tensor], parameters: Iterable[str]) -> None:
        """Know the parameters and buffers of the run, and watch modules until the stack is closed."""
        named = set(parameters)
        for name, tensor in tensors.items():
            self._of[id(tensor)] = len(self.values)
            self.values.append(Value(tensor, parameter=name if name in named else None, constant=True))
        for module in self._watched:
            stack.callback(module.register_forward_pre_hook(self._enter, with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(self._leave, with_kwargs=True).remove)

    def value(self, tensor: Tensor) -> int:
        """The present value of a tensor."""
        number = self._of.get(id(tensor))
        if number is None:
            number = self._of[id(tensor)] = len(self.values)
            self.values.append(Value(tensor))
        return number

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        places = [(str(number), value) for number, value in enumerate(args)] + list(kwargs.items())
        inputs = {
            f"{place}.{number}" if number else place: self.value(tensor)
            for place, value in places
            for number, tensor in enumerate(tensors_in(value))
        }
        self._open.append(Call(self._paths[module], inputs))

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        call = self._open.pop()
        call.outputs = [self.value(tensor) for tensor in tensors_in(output)]
        self.calls.append(call)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = tuple(tensors_in((args, kwargs))) if self._record else ()
        operands = tuple(map(self.value, tensors))
        result = func(*args, **kwargs)
        outputs = list(tensors_in(result))
        if torch.Tag.nondeterministic_seeded in func.tags:
            name = f"aten.{func.overloadpacket.__name__}".removesuffix("_")
            constant_randomness(name, args[0] if args else kwargs.get("input"), outputs)
        if self._record and outputs:
            numbers = range(len(self.values), len(self.values) + len(outputs))
            where = self._open[-1].path if self._open else ""
            made = Operation(func, args, kwargs, operands, tensors, tuple(numbers), where)
            constant = all(self.values[each].constant for each in operands)
            for number, tensor in zip(numbers, outputs, strict=True):
                self._of[id(tensor)] = number
                self.values.append(Value(tensor, made, constant=constant))
        return result


def run(
    model: nn.Module, example: Example, flow: Flow, tensors: Mapping[str, Tensor], training: bool, norms: bool = True
) -> Any:
    """Run a model, with `tensors` in place of its parameters and buffers, under a flow; return the outputs.

    Args:
        model: the model, which is not changed.
        example: its input.
        flow: what records the run.
        tensors: parameters and buffers by name; buffers are copied, as a run may change them.
        training: whether to run in training mode, without dropout.
        norms: whether batch norms train, too.
    """
    parameters = dict(model.named_parameters())
    own = {name: tensor if name in parameters else tensor.clone() for name, tensor in tensors.items()}
    example = copied_example(example, {})

    def call(*args: Any, **kwargs: Any) -> Any:
        return torch.func.functional_call(model, own, args, kwargs, strict=False)

    with ExitStack() as stack:
        stack.enter_context(internal_run(model))
        stack.enter_context(preserved(model, training))
        for module in model.modules():
            if isinstance(module, _BatchNorm):
                module.training = training and norms
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(torch.no_grad())
        flow.begin(stack, own, parameters)
        stack.enter_context(flow)
        return call_model(call, example)
