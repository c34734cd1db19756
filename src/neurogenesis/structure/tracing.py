"""Run a model once and label the axes of all tensors in it.

The model is executed under a dispatch mode that sees every ATen operation, no matter whether a module, a
function or plain arithmetic on raw parameters called it. The rule of each operation relates the axes of its
inputs to those of its outputs. The model is not changed: it runs on copies of its parameters, buffers and
inputs, and the attributes of its modules and the random state are restored.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.module import (
    _global_forward_hooks_with_kwargs,
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils.weak import WeakTensorKeyDictionary

from .calls import ModuleCall, OperationCall
from .compensations import Compensations
from .derived import derived
from .examples import Example, call_model, copied_example, tensors_in
from .flops import Hidden, Work, is_counted, multiplications, operations_of
from .known import Place
from .labels import Attribute, Frame, Label, Norm, NormRecord, RoleRecord, Site, rigid
from .norms import mark_read, output_of
from .randomness import constant_randomness
from .reasons import Kind, Reason
from .recurrent import attributes_of, restore, without_kernels
from .rules import Axes, Counted, RuleError, unknown
from .rules.base import checked, rule_for
from .rules.registered import is_registered, module_rule
from .running import internal_run, note_constant_calls, preserved
from .stored import Sources, store
from .terms import Atom, Conflict, Term, fix, size
from .watching_sizes import SizeWatch


class Rejected(Exception):
    """An operation that does not support a changed size.

    `atoms` are to blame; `certain` means that the rule singled them out among others. `operation` and `frame` say
    what failed and where.
    """

    def __init__(self, operation: str, frame: Frame, atoms: list[Atom], certain: bool, reason: object):
        self.operation, self.where, self.key = operation, frame.where, frame.key
        self.atoms, self.certain = atoms, certain
        super().__init__(f"{operation} fails in {frame.where}: {reason}")


class Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Labels the axes of all tensors of a run, starting from the parameters and buffers.

    A strict tracer is used with changed sizes: if axes no longer match by an operation's rule, or the operation
    fails, it raises `Rejected` with the atoms to blame.
    """

    def __init__(
        self,
        model: nn.Module,
        tensors: Mapping[str, Tensor],
        axes: dict[str, Axes],
        strict: bool,
        plain: Set[Site] = frozenset(),
    ):
        super().__init__()  # type: ignore[no-untyped-call]
        self.plain = plain  # places where axes of size 1 are no factors
        self.singles: dict[Site, Term] = {}  # those that are
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
        self.inside = {id(part): name for name, tensor in tensors.items() for part in _parts(tensor)}
        self.used: set[str] = set()
        self.called: set[nn.Module] = {model}
        self.by_values = False  # whether the code reads the values of tensors, on which it may branch
        self.labels = WeakTensorKeyDictionary()
        self.inputs: list[Tensor] = []  # of the model
        self.reads: set[Place] = set()  # attributes of modules from which something is computed
        self.frames = [Frame(model, "")]
        self.roles: list[RoleRecord] = []
        self.weight_norms: list[NormRecord] = []
        self.norms: list[Norm] = []  # that are written out
        self.counted: list[tuple[Term, Counted]] = []
        self.copies: list[Term] = []
        self.coarsest = 0.0  # rounding of the least precise activations
        self.attributes: list[Attribute] = []
        self.compensations = Compensations()
        self.masks: set[str] = set()  # tensors that weights are multiplied by elementwise
        self.operations: dict[tuple[type, int], list[tuple[str, Axes]]] = {}
        self.work: Work | None = None  # of the run
        self.sources = Sources(
            self.axes_of, self.attributes, self.reads, self.relabel, lambda term: self.counted.append((term, "heads"))
        )
        self._present: dict[int, Label] = {}  # of the inputs of the running operation, which are looked up often
        self._constant_calls: Counter[nn.Module] = Counter()
        self._reached: set[nn.Module] = set()  # modules whose input has depended on the model's input

    def label_input(self, tensor: Tensor) -> None:
        """Label an input of the model with fixed axes."""
        axes: Axes = [
            Atom(length, fixed=[Reason("a size of the model's input", Kind.INPUT)]) for length in tensor.shape
        ]
        self.labels[tensor] = Label(axes, False)
        self.inputs.append(tensor)

    def label(self, tensor: Tensor) -> Label:
        """The label of a tensor; a tensor of unknown origin gets fixed axes."""
        if id(tensor) in self._present:
            return self._present[id(tensor)]
        if id(tensor) in self.own:
            self.used.add(self.names[id(tensor)])
            return self.own[id(tensor)]
        if tensor not in self.labels:
            reason = self._why_fixed(tensor)
            self.labels[tensor] = Label([Atom(length, fixed=[reason]) for length in tensor.shape], True)
        found: Label = self.labels[tensor]
        return found

    def _why_fixed(self, tensor: Tensor) -> Reason:
        """Why a tensor of unknown origin has fixed axes."""
        name = self.inside.get(id(tensor))
        if name is None:
            return Reason("shared with a plain tensor that is neither a parameter nor a buffer", Kind.PLAIN_TENSOR)
        return Reason(f"shared with {name}, which is stored as {type(self.tensors[name]).__name__}", Kind.PACKED)

    def enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Forward pre-hook of all modules."""
        path = self.paths.get(module, self.frames[-1].path)
        self.called.add(module)
        opaque = module_rule(module) is not None
        self.frames.append(Frame(module, path, opaque=opaque, kernels=without_kernels(module)))
        if not opaque:
            self.attributes += attributes_of(module, path, lambda tensor: self.label(tensor).axes)
        if args and isinstance(args[0], Tensor) and module not in self._reached:
            if self.label(args[0]).static:
                self._constant_calls[module] += 1
            else:
                self._reached.add(module)
                note_constant_calls(module, self._constant_calls[module])
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
            restore(self.frames.pop().kernels)

    def _label_module(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Label the outputs of a module that has its own rule."""
        rule = module_rule(module)
        assert rule is not None
        call = ModuleCall(self, module, args, kwargs)
        call.outputs = list(tensors_in(output))
        own = [*module.parameters(), *module.buffers()]
        inputs = [term for tensor in (*call.tensors(), *own) for term in self.label(tensor).axes]
        self._label_outputs(call, rule, inputs, module)

    @staticmethod
    def _inside_opaque(frames: Sequence[Frame]) -> bool:
        return any(frame.opaque for frame in frames)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = OperationCall(self, func, args, kwargs or {})
        if self._inside_opaque(self.frames):  # the module's rule describes it
            result = func(*args, **(kwargs or {}))
            self._count_hidden(operations_of(func, args, kwargs or {}, result))
            if torch.Tag.nondeterministic_seeded in func.tags:
                call.outputs = list(tensors_in(result))
                constant_randomness(call.name, call.arguments.get("input"), call.outputs)
            return result
        self._present = {}
        self._present = {id(tensor): self.label(tensor) for tensor in call.tensors()}
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
            constant_randomness(call.name, call.arguments.get("input"), call.outputs)
        if call.outputs:
            self._label_outputs(call, rule_for(func), inputs)
            if self.work is not None and is_counted(name := call.name.removeprefix("aten.")):
                found = multiplications(name, call.arguments, call.outputs[0], call.axes)
                self.work.factors += [(self.frames[-1].path, factors) for factors in found]
        self._present = {}
        return result

    def _count_hidden(self, operations: int) -> None:
        """Count operations inside a module that a rule describes."""
        if self.work is None or not operations:
            return
        frame = next(frame for frame in self.frames if frame.opaque)
        own = {id(tensor) for tensor in (*frame.module.parameters(), *frame.module.buffers())}
        names = tuple(name for name, tensor in self.tensors.items() if id(tensor) in own)
        self.work.hidden.append(
            Hidden(frame.path, operations, names, sum(self.tensors[name].numel() for name in names))
        )

    def _failure(self, call: OperationCall, rule: Callable[..., Any], inputs: Axes, error: Exception) -> Rejected:
        """Build the error for a failed operation: blame the axes that its rule finds in conflict, or else all."""
        try:
            rule(call)
        except Conflict as conflict:
            return self._rejection(call, conflict, inputs, error)
        except Exception:  # the rule needs the outputs, which do not exist
            pass
        return Rejected(call.name, self.frames[-1], rigid(inputs), False, error)

    def _rejection(self, call: OperationCall, conflict: Conflict, inputs: Axes, error: Exception) -> Rejected:
        present = rigid(inputs)
        blamed = rigid(conflict.suspects) or rigid(conflict.atoms) or present
        return Rejected(call.name, self.frames[-1], blamed, set(blamed) < set(present), error)

    def _label_outputs(
        self, call: OperationCall, rule: Callable[..., list[Axes]], inputs: Axes, *own: nn.Module
    ) -> None:
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
        if call.name == "aten.mul" and any(label.weight for label in labels):
            self.masks.update(*(label.sources for label in labels if label.static and not label.weight))
        found = derived(call, labels)
        for number, (tensor, axes) in enumerate(zip(call.outputs, outputs, strict=True)):
            if id(tensor) not in self.own:  # parameters and buffers keep their labels when changed in place
                self.labels[tensor] = replace(found, axes=axes, value=output_of(found.value, call.name, number))
                if not found.static and tensor.is_floating_point():
                    self.coarsest = max(self.coarsest, torch.finfo(tensor.dtype).eps)

    def axes_of(self, tensor: Tensor) -> Axes | None:
        """The axes of a tensor that has been labeled; None for others."""
        if id(tensor) in self.own:
            return self.own[id(tensor)].axes
        return self.label(tensor).axes if tensor in self.labels else None

    def relabel(self, tensor: Tensor, axes: Axes) -> None:
        """Give a tensor that has been labeled other axes."""
        if id(tensor) not in self.own and tensor in self.labels:
            self.labels[tensor] = replace(self.labels[tensor], axes=axes)

    def settle(self) -> None:
        """Fix the axes of what looked like a norm and is none, unless copies keep means; complete the attributes."""
        self.sources.complete(self.modules)
        for norm in self.norms:
            if norm.obstacle is not None and norm.averages:
                self.compensations.copies.append((norm.term, replace(norm.obstacle, kind=Kind.NORMALIZED)))
            elif norm.obstacle is not None:
                fix(norm.term, norm.obstacle)


def _parts(tensor: Tensor) -> Iterator[Tensor]:
    """The tensors inside a parameter that is made of others, such as quantized values and their scales."""
    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        for name in names:
            part = getattr(tensor, name)
            yield part
            yield from _parts(part)


def _apply_rule(rule: Callable[..., list[Axes]], call: OperationCall, *own: nn.Module) -> list[Axes]:
    """Apply a rule; raise `RuleError` if a rule registered by the user fails or returns wrong sizes."""
    if not is_registered(rule):
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


# Operations by which the values of tensors reach Python, or decide on sizes.
_BY_VALUES = {f"aten.{name}" for name in "_local_scalar_dense _unique2 bincount equal masked_select nonzero".split()}


def _has_mask(call: OperationCall) -> bool:
    """Whether an operation picks entries by a mask."""
    indices = call.arguments.get("indices") if call.name in ("aten.index", "aten.index_put") else None
    return any(isinstance(each, Tensor) and each.dtype in (torch.bool, torch.uint8) for each in indices or ())


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
            raise Rejected(name, self.tracer.frames[-1], rigid(terms), False, error) from error


def trace(model: nn.Module, example: Example, tracer: Tracer, tensors: Mapping[str, Tensor], training: bool) -> Any:
    """Run the model under a tracer, with `tensors` in place of its parameters and buffers; return the outputs."""
    copies: dict[Tensor, Tensor] = {}
    example = copied_example(example, copies)  # a model may change its input in place
    tracer.work = Work.on(example)
    for tensor in copies.values():
        tracer.label_input(tensor)

    def call(*args: Any, **kwargs: Any) -> Any:
        return torch.func.functional_call(model, dict(tensors), args, kwargs, strict=False)

    with ExitStack() as stack:
        stack.enter_context(internal_run(model))
        stack.enter_context(preserved(model, training))
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
        else:
            stack.callback(store(model, tracer.sources))
            stack.enter_context(SizeWatch(tracer.sources))
        outputs = call_model(call, example)
    mark_read(tracer.label(tensor) for tensor in tensors_in(outputs))
    tracer.settle()
    return outputs
