"""Run a model again on earlier inputs, optionally with other tensors, and watch some of its modules.

The model does not change: buffers are copied, the random state is restored and hooks are removed. The run stops as soon
as every watched module has run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from ..structure.paths import attribute_at, set_attribute
from ..structure.randomness import random_state_restored, set_seed
from ..structure.recurrent import is_recurrent
from ..structure.running import constant_calls, internal_run, restoring_attributes
from .packing import tensor_of, with_tensor
from .products import Place, Wanted, always, watching

Side = Literal["input", "output"]


@dataclass(frozen=True)
class ModelCall:
    """The arguments of a call of the model, and its autocast setting."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    autocast: tuple[str, torch.dtype] | None
    tensors: tuple[Tensor, ...]
    versions: tuple[int, ...]

    @staticmethod
    def of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> ModelCall:
        """Record a call with the current autocast setting."""
        if not kwargs and all(type(arg) is Tensor for arg in args):  # fast path for the usual case
            arguments: tuple[tuple[Any, ...], dict[str, Any]] = tuple(arg.detach() for arg in args), {}
        else:
            arguments = tree_map_only(Tensor, Tensor.detach, (tuple(args), dict(kwargs)))
        call = ModelCall.from_parts(*arguments, None)
        device = call.tensors[0].device.type if call.tensors else "cpu"
        if torch.is_autocast_enabled(device):
            call = replace(call, autocast=(device, torch.get_autocast_dtype(device)))
        return call

    @staticmethod
    def from_parts(
        args: tuple[Any, ...], kwargs: dict[str, Any], autocast: tuple[str, torch.dtype] | None
    ) -> ModelCall:
        leaves = args if not kwargs and all(type(arg) is Tensor for arg in args) else tree_leaves((args, kwargs))
        tensors = tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))
        return ModelCall(args, kwargs, autocast, tensors, tuple(tensor._version for tensor in tensors))

    @property
    def saved(self) -> tuple[tuple[Any, ...], dict[str, Any], tuple[str, torch.dtype] | None]:
        """What `from_parts` needs, for a file: without the rest of a data set that a tensor is a part of."""
        args, kwargs = tree_map_only(Tensor, _alone, (self.args, self.kwargs))
        return args, kwargs, self.autocast

    def copied(self) -> ModelCall:
        """Copy of the call with cloned tensors."""
        args, kwargs = tree_map_only(Tensor, Tensor.clone, (self.args, self.kwargs))
        return ModelCall.from_parts(args, kwargs, self.autocast)

    def with_tensors(self, tensors: Sequence[Tensor]) -> ModelCall:
        """The same call with other tensors."""
        given = iter(tensors)
        args, kwargs = tree_map_only(Tensor, lambda _: next(given), (self.args, self.kwargs))
        return ModelCall.from_parts(args, kwargs, self.autocast)

    @property
    def intact(self) -> bool:
        """Whether the arguments have not been modified in place since the call was recorded."""
        return tuple(tensor._version for tensor in self.tensors) == self.versions

    @property
    def samples(self) -> int:
        return next((tensor.shape[0] for tensor in self.tensors if tensor.ndim), 1)


def _alone(tensor: Tensor) -> Tensor:
    """The tensor, or a copy if its memory holds more than itself, which would be saved, too."""
    if tensor.layout is not torch.strided or tensor.untyped_storage().nbytes() <= tensor.nbytes:
        return tensor
    return tensor.clone()


@dataclass(frozen=True)
class Watch:
    """An action on the input or output of a module; a returned tensor replaces it.

    Calls that come before the first which depends on the model's input do not count (see `constant_calls`).
    """

    module: nn.Module
    side: Side
    action: Callable[[Tensor], Tensor | None]


class _StopRun(BaseException):
    """Stops a run inside the model's forward; not an `Exception`, so that the model does not catch it."""


def replay(
    model: nn.Module,
    call: ModelCall,
    watches: Sequence[Watch],
    *,
    tensors: Mapping[str, Tensor] | None = None,
    attributes: Sequence[tuple[nn.Module, str, Any]] = (),
    seed: int = 0,
    gradients: bool = False,
    evaluation: bool = False,
    products: Sequence[Place] = (),
) -> None:
    """Run the model until every watch has acted.

    Args:
        model: the model.
        call: the arguments.
        watches: actions on inputs and outputs of modules.
        tensors: replacements of parameters and buffers, by name.
        attributes: values of module attributes during the run.
        seed: seed of random operations in the model.
        gradients: whether to record the graph for a backward pass.
        evaluation: whether to run in evaluation mode.
        products: products that others observe in the run.
    """
    if evaluation:
        attributes = [*attributes, *((module, "training", False) for module in model.modules())]
    running = replays(model, tensors=tensors, attributes=attributes, seed=seed, gradients=gradients)
    with running as run, watching(model, products):
        run(call, watches)


@contextmanager
def replays(
    model: nn.Module,
    *,
    tensors: Mapping[str, Tensor] | None = None,
    attributes: Sequence[tuple[nn.Module, str, Any]] = (),
    seed: int = 0,
    gradients: bool = False,
) -> Iterator[Callable[[ModelCall, Sequence[Watch]], None]]:
    """Context with a function that runs the model on a call until every watch has acted; arguments as in `replay`."""
    devices = {tensor.device for tensor in model.parameters()}

    def run(call: ModelCall, watches: Sequence[Watch]) -> None:
        pending, constant = list(watches), [constant_calls(watch.module) for watch in watches]
        replacements = {name: buffer.clone() for name, buffer in model.named_buffers()} | dict(tensors or {})

        def act(number: int, watch: Watch, tensor: Tensor) -> Tensor | None:
            constant[number] -= 1
            if constant[number] >= 0:
                return None
            result = watch.action(tensor)
            if watch in pending:
                pending.remove(watch)
                if not pending:
                    raise _StopRun
            return result

        with ExitStack() as stack:
            stack.enter_context(restoring_attributes(model))  # a model may count its calls or store results
            for number, watch in enumerate(watches):
                stack.callback(observe(watch.module, watch.side, partial(act, number, watch)).remove)
            stack.enter_context(as_called(model, call, None))  # the state is restored once, after all runs
            set_seed(devices, seed)
            stack.enter_context(watching(model, [watch.module for watch in watches], replacements))
            if gradients:  # the second run of a checkpoint would lack our changes
                stack.enter_context(without_checkpointing())
            with torch.set_grad_enabled(gradients), suppress(_StopRun):
                if replacements:
                    torch.func.functional_call(model, replacements, call.args, call.kwargs, strict=False)
                else:
                    model(*call.args, **call.kwargs)

    with (
        internal_run(model),
        temporary_attributes(attributes),
        random_state_restored(model),
        torch.compiler.set_stance("force_eager"),
    ):
        yield run


@contextmanager
def without_checkpointing() -> Iterator[None]:
    """Let `torch.utils.checkpoint.checkpoint` just run what it is given, by whatever name a model has imported it."""
    module: Any = torch.utils.checkpoint
    kept = {name: getattr(module, name) for name in ("CheckpointFunction", "_checkpoint_without_reentrant_generator")}
    module.CheckpointFunction, module._checkpoint_without_reentrant_generator = _Run, _nothing
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(module, name, value)


class _Run:
    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        return function(*args)


def _nothing(*args: Any, **kwargs: Any) -> Iterator[None]:
    yield


@contextmanager
def as_called(model: nn.Module, call: ModelCall, seed: int | None) -> Iterator[None]:
    """Set the autocast mode of a call, and a seed if one is given; the states of generators are restored afterwards."""
    with ExitStack() as stack:
        if seed is not None:
            devices = {tensor.device for tensor in model.parameters()}
            stack.enter_context(random_state_restored(model))
            set_seed(devices, seed)
        if call.autocast is not None:
            stack.enter_context(torch.autocast(call.autocast[0], dtype=call.autocast[1]))
        yield


def is_export() -> bool:
    """Whether the current pass only exports or traces the model."""
    return torch.compiler.is_exporting() or torch._C._get_tracing_state() is not None


NOT_IN_GRAPHS = (
    "the grower looks at this training pass, which therefore cannot be part of a graph: call model.compile() before "
    "Grower(model, optimizer), or pass the compiled model, as in Grower(torch.compile(model), optimizer); if a "
    "function around the model is compiled with fullgraph=True, call that function uncompiled while grower.eager"
)


class Hook:
    """A hook that does nothing in copies and pickles of its module, nor while the module is exported or traced."""

    def __init__(self, action: Callable[..., Any] | None = None):
        self.action = action

    def __call__(self, *args: Any) -> Any:
        return None if self.action is None or is_export() else self.act(*args)

    @torch.compiler.disable(reason=NOT_IN_GRAPHS)  # type: ignore[no-untyped-call,untyped-decorator]
    def act(self, *args: Any) -> Any:
        assert self.action is not None
        return self.action(*args)

    @property
    def __name__(self) -> str:  # torch.jit.script asks for it
        raise AttributeError(
            "torch.jit.script cannot compile a model that is watched by a Grower: call grower.detach() first, or use "
            "torch.jit.trace or torch.export.export"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Hook:
        return Hook()

    def __reduce__(self) -> tuple[type[Hook], tuple[()]]:
        return Hook, ()


def observe(module: nn.Module, side: Side, action: Callable[[Tensor], Tensor | None], wanted: Wanted = always) -> Any:
    """Call `action` with the input or output of a module whenever it runs; returns a handle with `remove`.

    The output of a recurrent layer is that without its states; of packed sequences, these are the rows.
    Where it takes another run to find what is observed, there is none unless `wanted()`.
    """
    if isinstance(module, Place):
        return module.observe(side, Hook(action), wanted)
    if side == "output":

        def after(_: nn.Module, args: Any, output: Any) -> Any:
            if isinstance(output, tuple) and is_recurrent(module):
                first = tensor_of(output[0])
                new = action(first) if isinstance(first, Tensor) else None
                return None if new is None else (with_tensor(output[0], new), *output[1:])
            return action(output) if isinstance(output, Tensor) else None

        return module.register_forward_hook(Hook(after))

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args and isinstance(first := tensor_of(args[0]), Tensor):
            new = action(first)
            return None if new is None else ((with_tensor(args[0], new), *args[1:]), kwargs)
        name = next((name for name, value in kwargs.items() if isinstance(tensor_of(value), Tensor)), None)
        if name is None:
            return None
        new = action(tensor_of(kwargs[name]))
        return None if new is None else (args, {**kwargs, name: with_tensor(kwargs[name], new)})

    return module.register_forward_pre_hook(Hook(before), with_kwargs=True)


def observe_call(module: nn.Module, action: Callable[[ModelCall], None]) -> Any:
    """Call `action` with the arguments of a module whenever it runs; returns a handle with `remove`."""

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        action(ModelCall.of(args, kwargs))

    return module.register_forward_pre_hook(Hook(before), with_kwargs=True)


@contextmanager
def temporary_attributes(values: Sequence[tuple[nn.Module, str, Any]]) -> Iterator[None]:
    """Set attributes of modules inside the context and restore them afterwards."""
    before = [(module, name, attribute_at(module, name)) for module, name, _ in values]
    try:
        for module, name, value in values:
            set_attribute(module, name, value)
        yield
    finally:
        for module, name, value in before:
            set_attribute(module, name, value)
