"""Run a model once and label the axes of all tensors in it.

The model is executed under a dispatch mode that sees every ATen operation, no matter whether a module, a
function or plain arithmetic on raw parameters called it. The rule of each operation relates the axes of its
inputs to those of its outputs. The model is not changed: it runs on copies of its parameters, buffers and
inputs, and the attributes of its modules and the random state are restored.
"""

from __future__ import annotations

import inspect
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.module import (
    _global_forward_hooks_with_kwargs,
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from .fills import Fill
from .randomness import random_state_restored
from .reasons import Kind, Reason
from .rules import Axes, Role, RuleError, unknown
from .rules.base import checked, rule_for
from .rules.taught import is_taught, module_rule
from .terms import Atom, Conflict, Term, fix, leaves, size, unify

Example = Tensor | tuple[Any, ...] | Mapping[str, Any]
Examples = Example | list[Example]


def examples_in(given: Examples) -> list[Example]:
    """One or several examples, as a list."""
    if not isinstance(given, list):
        return [given]
    if not given:
        raise ValueError("example: the list is empty: pass inputs that together use all layers of the model")
    return given


_ONE_DNN: Any = torch.backends.mkldnn


class Rejected(Exception):
    """An operation that does not support a changed size.

    `atoms` are to blame; `certain` means that the rule singled them out among others. `operation` and `frame` say
    what failed and where.
    """

    def __init__(self, operation: str, frame: _Frame, atoms: list[Atom], certain: bool, reason: object):
        self.operation, self.where, self.key = operation, frame.where, frame.key
        self.atoms, self.certain = atoms, certain
        super().__init__(f"{operation} fails in {frame.where}: {reason}")


@dataclass(frozen=True)
class Label:
    """The axes of a tensor and, if it depends on parameters and buffers only, which ones."""

    axes: Axes
    static: bool  # computed from parameters and buffers only
    sources: frozenset[str] = frozenset()  # names of these parameters and buffers
    zeros: frozenset[str] = frozenset()  # sources whose zeros make entries zero
    weight: bool = False  # a parameter, or a view or cast of one
    zero_lost_in: str | None = None  # operation that does not map zero to zero with a nonzero gradient


@dataclass(frozen=True)
class RoleRecord:
    """The role of one axis of a tensor computed from `sources` only."""

    sources: frozenset[str]
    term: Term
    stride: int | None  # None if it is not a view of a parameter
    role: Role
    fill: Fill


@dataclass(frozen=True)
class NormRecord:
    """A weight whose slices along one axis are divided by their norms."""

    sources: frozenset[str]
    terms: Axes
    strides: tuple[int | None, ...]
    axis: int


@dataclass(frozen=True)
class Attribute:
    """An attribute of a module that stores the size of an axis."""

    module: str
    name: str
    term: Term


@dataclass
class _Frame:
    """A running module, and the number of operations it has executed itself."""

    module: nn.Module
    path: str
    operations: int = 0
    opaque: bool = False  # a rule describes the whole module
    fused: bool = False  # whether the kernels of oneDNN were on, which run an LSTM as one operation

    @property
    def where(self) -> str:
        return f"{self.path or 'the model'} ({type(self.module).__name__})"

    @property
    def key(self) -> tuple[type, int]:
        """Identifies an operation across all instances of a module class."""
        return type(self.module), self.operations


_CONSTANT_CALLS: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()


def constant_calls(module: nn.Module) -> int:
    """How many calls of a module precede, in a pass of its model, the first that depends on the model's input.

    0 if none depends on it. An example is a layer that computes a norm of its own weights before it is used.
    """
    return _CONSTANT_CALLS.get(module, 0)


class Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Labels the axes of all tensors of a run, starting from the parameters and buffers.

    A strict tracer is used with changed sizes: if axes no longer match by an operation's rule, or the operation
    fails, it raises `Rejected` with the atoms to blame.
    """

    def __init__(self, model: nn.Module, tensors: Mapping[str, Tensor], axes: dict[str, Axes], strict: bool):
        super().__init__()  # type: ignore[no-untyped-call]
        self.paths = {module: path for path, module in reversed(list(model.named_modules(remove_duplicate=False)))}
        self.modules = dict(model.named_modules(remove_duplicate=False))
        self.strict = strict
        self.tensors = dict(tensors)
        parameters = dict(model.named_parameters())
        self.own = {
            id(tensor): Label(axes[name], True, frozenset([name]), frozenset([name]), name in parameters)
            for name, tensor in tensors.items()
        }
        self.names = {id(tensor): name for name, tensor in tensors.items()}
        self.used: set[str] = set()
        self.called: set[nn.Module] = {model}
        self.by_values = False  # whether the code reads the values of tensors, on which it may branch
        self.labels = WeakTensorKeyDictionary()
        self.frames = [_Frame(model, "")]
        self.roles: list[RoleRecord] = []
        self.norms: list[NormRecord] = []
        self.attributes: list[Attribute] = []
        self.masks: set[str] = set()  # tensors that weights are multiplied by elementwise
        self.operations: dict[tuple[type, int], list[tuple[str, Axes]]] = {}
        self._constant_calls: Counter[nn.Module] = Counter()
        self._reached: set[nn.Module] = set()  # modules whose input has depended on the model's input

    def label_input(self, tensor: Tensor) -> None:
        """Label an input of the model with fixed axes."""
        axes: Axes = [
            Atom(length, fixed=[Reason("a size of the model's input", Kind.INPUT)]) for length in tensor.shape
        ]
        self.labels[tensor] = Label(axes, False)

    def label(self, tensor: Tensor) -> Label:
        """The label of a tensor; a tensor of unknown origin gets fixed axes."""
        if id(tensor) in self.own:
            self.used.add(self.names[id(tensor)])
            return self.own[id(tensor)]
        if tensor not in self.labels:
            reason = Reason("shared with a plain tensor that is neither a parameter nor a buffer", Kind.PLAIN_TENSOR)
            self.labels[tensor] = Label([Atom(length, fixed=[reason]) for length in tensor.shape], True)
        found: Label = self.labels[tensor]
        return found

    def enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Forward pre-hook of all modules."""
        path = self.paths.get(module, self.frames[-1].path)
        self.called.add(module)
        fused = isinstance(module, nn.LSTM) and bool(_ONE_DNN.enabled)
        self.frames.append(_Frame(module, path, opaque=module_rule(module) is not None, fused=fused))
        if fused:  # without them it runs as operations that have rules
            _ONE_DNN.enabled = False
        if args and isinstance(args[0], Tensor) and module not in self._reached:
            if self.label(args[0]).static:
                self._constant_calls[module] += 1
            else:
                self._reached.add(module)
                _CONSTANT_CALLS[module] = self._constant_calls[module]
        if isinstance(module, _NormBase) and args and isinstance(args[0], Tensor):
            axes = self.label(args[0]).axes[:2]
            fits = [term for term in axes if size(term) == module.num_features]
            self.attributes += [Attribute(self.frames[-1].path, "num_features", term) for term in fits[-1:]]

    def leave(self, module: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
        """Forward hook of all modules."""
        *kwargs, output = rest  # if forward() failed, torch passes no keyword arguments
        try:
            if self.frames[-1].opaque and not self._inside_opaque(self.frames[:-1]) and kwargs:
                self._label_module(module, args, kwargs[0], output)
        finally:
            if self.frames.pop().fused:
                _ONE_DNN.enabled = True

    def _label_module(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Label the outputs of a module that has its own rule."""
        rule = module_rule(module)
        assert rule is not None
        call = _ModuleCall(self, module, args, kwargs)
        call.outputs = list(tensors_in(output))
        own = [*module.parameters(), *module.buffers()]
        inputs = [term for tensor in (*call.tensors(), *own) for term in self.label(tensor).axes]
        self._label_outputs(call, rule, inputs, module)

    @staticmethod
    def _inside_opaque(frames: Sequence[_Frame]) -> bool:
        return any(frame.opaque for frame in frames)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = _Call(self, func, args, kwargs or {})
        if self._inside_opaque(self.frames):  # the module's rule describes it
            result = func(*args, **(kwargs or {}))
            if torch.Tag.nondeterministic_seeded in func.tags:
                call.outputs = list(tensors_in(result))
                _remove_randomness(call)
            return result
        inputs = [term for tensor in call.tensors() for term in self.label(tensor).axes]
        self.operations.setdefault(self.frames[-1].key, []).append((call.where, inputs))
        self.by_values |= call.name in _BY_VALUES or _has_mask(call)
        try:
            result = func(*args, **(kwargs or {}))
        except Exception as error:
            raise self._failure(call, rule_for(func), inputs, error) from error
        self.frames[-1].operations += 1
        call.outputs = list(tensors_in(result))
        if torch.Tag.nondeterministic_seeded in func.tags:
            _remove_randomness(call)
        if call.outputs:
            self._label_outputs(call, rule_for(func), inputs)
        return result

    def _failure(self, call: _Call, rule: Callable[..., Any], inputs: Axes, error: Exception) -> Rejected:
        """Build the error for a failed operation: blame the axes that its rule finds in conflict, or else all."""
        try:
            rule(call)
        except Conflict as conflict:
            return self._rejection(call, conflict, inputs, error)
        except Exception:  # the rule needs the outputs, which do not exist
            pass
        return Rejected(call.name, self.frames[-1], _rigid(inputs), False, error)

    def _rejection(self, call: _Call, conflict: Conflict, inputs: Axes, error: Exception) -> Rejected:
        present = _rigid(inputs)
        blamed = _rigid(conflict.suspects) or _rigid(conflict.atoms) or present
        return Rejected(call.name, self.frames[-1], blamed, set(blamed) < set(present), error)

    def _label_outputs(self, call: _Call, rule: Callable[..., list[Axes]], inputs: Axes, *own: nn.Module) -> None:
        labels = [self.label(tensor) for tensor in call.tensors()]
        try:
            outputs = _apply_rule(rule, call, *own)
            if not checked(outputs, call.outputs):
                raise Conflict(*inputs)
        except Conflict as conflict:
            if self.strict and any(atom.rigid for atom in conflict.atoms):
                raise self._rejection(call, conflict, inputs, conflict) from conflict
            for atom in conflict.atoms:
                fix(atom, call.mismatch)
            outputs = unknown(call)
        static = all(label.static for label in labels)
        if call.name == "aten.mul" and any(label.weight for label in labels):
            self.masks.update(*(label.sources for label in labels if label.static and not label.weight))
        sources = frozenset[str]().union(*(label.sources for label in labels)) if static else frozenset[str]()
        weight = call.keeps_values and all(label.weight for label in labels)
        zero_lost_in = next((label.zero_lost_in for label in labels if label.zero_lost_in), None)
        if call.name not in _ZERO_PRESERVING and not call.keeps_values:
            zero_lost_in = zero_lost_in or call.name
        for tensor, axes in zip(call.outputs, outputs, strict=True):
            if id(tensor) not in self.own:  # parameters and buffers keep their labels when changed in place
                self.labels[tensor] = Label(axes, static, sources, _zero_sources(call, labels), weight, zero_lost_in)


def _apply_rule(rule: Callable[..., list[Axes]], call: _Call, *own: nn.Module) -> list[Axes]:
    """Apply a rule; raise `RuleError` if a rule registered by the user fails or returns wrong sizes."""
    if not is_taught(rule):
        return rule(call)
    try:
        outputs = rule(call, *own)
        sizes = [[size(term) for term in axes] for axes in outputs]
    except Conflict:
        raise
    except Exception as error:
        raise RuleError(f"the rule for {call.name} fails in {call.where}: {type(error).__name__}: {error}") from error
    shapes = [list(output.shape) for output in call.outputs]
    if sizes != shapes:
        raise RuleError(f"the rule for {call.name} returns axes of sizes {sizes} in {call.where}, not {shapes}")
    return outputs


# Operations that map zeros to zeros with a nonzero gradient; for products, one zero factor is enough.
_ZERO_PRESERVING = {
    f"aten.{name}"
    for name in (
        "_to_copy _unsafe_view _weight_norm_interface add addmm atan baddbmm bmm cat clone constant_pad_nd "
        "convolution copy detach div dot flip gather index index_select masked_fill mean mm mul mv neg repeat roll "
        "rsub sin stack sub sum tanh where"
    ).split()
}


# Operations by which the values of tensors reach Python, or decide on sizes.
_BY_VALUES = {f"aten.{name}" for name in "_local_scalar_dense _unique2 bincount equal masked_select nonzero".split()}


def _has_mask(call: _Call) -> bool:
    """Whether an operation picks entries by a mask."""
    indices = call.arguments.get("indices") if call.name in ("aten.index", "aten.index_put") else None
    return any(isinstance(each, Tensor) and each.dtype in (torch.bool, torch.uint8) for each in indices or ())


def _zero_sources(call: _Call, labels: list[Label]) -> frozenset[str]:
    """The sources that must be zero for the result to be zero."""
    candidates = [(label, tensor) for label, tensor in zip(labels, call.tensors(), strict=True) if label.sources]
    if call.name == "aten.mul" and candidates:
        # One zero factor is enough; if both were zero, neither would get a gradient.
        return max(candidates, key=lambda pair: (pair[0].weight, pair[1].ndim))[0].zeros
    return frozenset[str]().union(*(label.zeros for label, _ in candidates))


def _remove_randomness(call: _Call) -> None:
    """Replace random outputs by constants, so that runs at different sizes are comparable."""
    for number, tensor in enumerate(call.outputs):
        if call.name == "aten.native_dropout":
            tensor.copy_(call.arguments["input"]) if number == 0 else tensor.fill_(1)
        elif call.name == "aten.dropout":
            tensor.copy_(call.arguments["input"])
        elif tensor.is_floating_point() and "dot_product" not in call.name:
            tensor.fill_(0.5)


class _FailureWatch(TorchFunctionMode):
    """Turns errors raised before an operation reaches the tracer, such as in a reshape, into `Rejected`."""

    def __init__(self, tracer: Tracer):
        super().__init__()
        self.tracer = tracer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except Rejected:
            raise
        except Exception as error:
            terms = [term for tensor in tensors_in((args, kwargs)) for term in self.tracer.label(tensor).axes]
            name = f"aten.{getattr(func, '__name__', func)}"
            raise Rejected(name, self.tracer.frames[-1], _rigid(terms), False, error) from error


def _rigid(terms: Iterable[Term]) -> list[Atom]:
    return [atom for term in terms for atom in leaves(term) if atom.rigid]


class _Call:
    """Implements `rules.Call` for an operation."""

    def __init__(self, tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]):
        self._tracer = tracer
        schema = func._schema.arguments
        self.name = f"aten.{func.overloadpacket.__name__}".removesuffix("_")
        self.arguments = {argument.name: argument.default_value for argument in schema}
        self.arguments.update(zip((argument.name for argument in schema), args, strict=False))
        self.arguments.update(kwargs)
        self.outputs: list[Tensor] = []
        self.keeps_values = func.is_view or self.name in ("aten.clone", "aten._to_copy", "aten._unsafe_view")
        self.where = tracer.frames[-1].where
        self.mismatch = Reason(f"regrouped by {self.name} in {self.where} in a way that no rule describes")
        self._inputs = list(tensors_in((args, kwargs)))

    def tensors(self) -> list[Tensor]:
        return self._inputs

    def axes(self, tensor: Tensor) -> Axes:
        return self._tracer.label(tensor).axes

    def is_static(self, tensor: Tensor) -> bool:
        return self._tracer.label(tensor).static

    def is_weight(self, tensor: Tensor) -> bool:
        return self._tracer.label(tensor).weight

    def unify(self, a: Term, b: Term) -> None:
        try:
            unify(a, b)
        except Conflict as conflict:
            self.misfit(a, conflict)
            self.misfit(b, conflict)

    def fix(self, term: Term, reason: str, kind: Kind = Kind.OPERATION) -> None:
        fix(term, Reason(f"{reason} in {self.where}", kind))

    def misfit(self, term: Term, conflict: Conflict) -> None:
        if self._tracer.strict and _rigid([term]):
            raise conflict if _rigid(conflict.atoms) else Conflict(term) from conflict
        fix(term, self.mismatch)

    def role(self, tensor: Tensor, axis: int, role: Role, fill: Fill) -> None:
        label = self._tracer.label(tensor)
        if not label.static:
            return
        term = label.axes[axis]
        if role == "consumer" and label.zero_lost_in:
            reason = f"consumed by a weight computed by {label.zero_lost_in}, which allows no trainable zero fan-out"
            fix(term, Reason(reason))
            return
        sources = label.zeros if role == "consumer" else label.sources
        self._tracer.roles.append(RoleRecord(sources, term, self._stride(tensor, axis, label), role, fill))

    def normed(self, weight: Tensor, axis: int) -> None:
        label = self._tracer.label(weight)
        if label.static:
            strides = tuple(self._stride(weight, each, label) for each in range(weight.ndim))
            self._tracer.norms.append(NormRecord(label.sources, label.axes, strides, axis % weight.ndim))

    def _stride(self, tensor: Tensor, axis: int, label: Label) -> int | None:
        return tensor.stride(axis) if self._is_view(tensor, label) else None

    def _is_view(self, tensor: Tensor, label: Label) -> bool:
        sources = [self._tracer.tensors[name] for name in label.sources]
        return any(source.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr() for source in sources)

    def owned(self, tensor: Tensor) -> bool:
        sources, path = self._tracer.label(tensor).sources, self._tracer.frames[-1].path
        return any(source.rpartition(".")[0] == path for source in sources)

    def attribute(self, weight: Tensor, name: str, term: Term) -> None:
        owners = {source.rpartition(".")[0] for source in self._tracer.label(weight).sources}
        paths = owners | {self._tracer.frames[-1].path}
        self._tracer.attributes.extend(Attribute(path, name, term) for path in sorted(paths))


class _ModuleCall(_Call):
    """Implements `rules.Call` for a module that has its own rule."""

    def __init__(self, tracer: Tracer, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]):
        self._tracer = tracer
        self.name = type(module).__name__
        bound = inspect.signature(module.forward).bind(*args, **kwargs)
        bound.apply_defaults()
        self.arguments = dict(bound.arguments)
        self.outputs = []
        self.keeps_values = False
        self.where = tracer.frames[-1].where
        self.mismatch = Reason(f"regrouped by {self.where} in a way that its rule does not describe")
        self._inputs = list(tensors_in((args, kwargs)))


def tensors_in(value: Any, inside: tuple[int, ...] = ()) -> Iterator[Tensor]:
    """Yield all tensors in nested tuples, lists, mappings and plain objects, such as the outputs of a model."""
    if isinstance(value, Tensor):
        yield value
    elif id(value) not in inside:  # an object may contain itself
        for item in _items(value):
            yield from tensors_in(item, (*inside, id(value)))


def _items(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (tuple, list)):
        return list(value)
    if isinstance(value, (type, nn.Module, str)) or callable(value):
        return []
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    return [*vars(value).values()] if hasattr(value, "__dict__") else [getattr(value, n, None) for n in slots]


def call_model(model: Callable[..., Any], example: Example) -> Any:
    """Call a model with an example: a tensor, a tuple of arguments or a mapping of keyword arguments."""
    if isinstance(example, Mapping):
        return model(**example)
    return model(*example) if isinstance(example, tuple) else model(example)


_INTERNAL_RUNS: set[nn.Module] = set()


@contextmanager
def internal_run(model: nn.Module) -> Iterator[None]:
    """Mark runs of a model by the library, not its user: hooks that record activations ignore them."""
    outermost = model not in _INTERNAL_RUNS
    _INTERNAL_RUNS.add(model)
    try:
        with warnings.catch_warnings():  # of reentrant activation checkpointing, which is right only in training passes
            warnings.filterwarnings("ignore", "None of the inputs have requires_grad=True")
            yield
    finally:
        if outermost:
            _INTERNAL_RUNS.discard(model)


def is_internal_run(model: nn.Module) -> bool:
    """Whether the library is running the model."""
    return model in _INTERNAL_RUNS


def trace(model: nn.Module, example: Example, tracer: Tracer, tensors: Mapping[str, Tensor], training: bool) -> Any:
    """Run the model under a tracer, with `tensors` in place of its parameters and buffers; return the outputs."""
    copies: dict[Tensor, Tensor] = {}
    example = _copied(example, copies)  # a model may change its input in place
    for tensor in copies.values():
        tracer.label_input(tensor)

    def call(*args: Any, **kwargs: Any) -> Any:
        return torch.func.functional_call(model, dict(tensors), args, kwargs, strict=False)

    with ExitStack() as stack:
        stack.enter_context(internal_run(model))
        stack.enter_context(_preserved(model, training))
        stack.enter_context(warnings.catch_warnings())  # of our hooks, by compiled modules inside the model
        warnings.filterwarnings("ignore", r"Using `torch\.compile\(module\)` when there are global hooks")
        for handle in (
            register_module_forward_pre_hook(tracer.enter),
            register_module_forward_hook(tracer.leave, with_kwargs=True, always_call=True),
        ):
            stack.callback(handle.remove)
            stack.callback(_global_forward_hooks_with_kwargs.pop, handle.id, None)  # remove() leaves it there
        stack.enter_context(tracer)
        if tracer.strict:
            stack.enter_context(_FailureWatch(tracer))
        return call_model(call, example)


def _copied(value: Any, copies: dict[Tensor, Tensor]) -> Any:
    if isinstance(value, Tensor):
        if value not in copies:
            copies[value] = value.detach().clone()
        return copies[value]
    if isinstance(value, Mapping):
        return {key: _copied(item, copies) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_copied(item, copies) for item in value))
    if isinstance(value, (tuple, list)):
        return type(value)(_copied(item, copies) for item in value)
    return value


# Training mode changes only the values these modules compute, and some of them reject small batches.
_VALUES_ONLY = (_BatchNorm, _InstanceNorm, _DropoutNd)


@contextmanager
def _preserved(model: nn.Module, training: bool) -> Iterator[None]:
    """Set training mode; on exit, restore all attributes of all modules and the random state."""
    fastpath = torch.backends.mha.get_fastpath_enabled()
    with restoring_attributes(model):
        for module in model.modules():
            module.training = training and not isinstance(module, _VALUES_ONLY)
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            with random_state_restored(model), torch.compiler.set_stance("force_eager"):
                yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fastpath)


@contextmanager
def restoring_attributes(model: nn.Module) -> Iterator[None]:
    """On exit, restore all attributes of all modules."""
    modules = list(model.modules())
    saved = [dict(vars(module)) for module in modules]
    registered = [[dict(getattr(module, kind)) for kind in _REGISTRIES] for module in modules]
    try:
        yield
    finally:
        for module, attributes, registries in zip(modules, saved, registered, strict=True):
            vars(module).clear()
            vars(module).update(attributes)
            for kind, contents in zip(_REGISTRIES, registries, strict=True):
                getattr(module, kind).clear()
                getattr(module, kind).update(contents)


_REGISTRIES = ("_parameters", "_buffers", "_modules")
