"""Calls of operations and modules, as rules see them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor, nn

from .compensations import Compensation, Compensations, NewEntries
from .examples import tensors_in
from .fills import MEAN, ZERO, Fill
from .labels import Attribute, Frame, Label, NormRecord, RoleRecord, rigid
from .reasons import Kind, Reason
from .rules import Axes, Role
from .terms import Conflict, Term, fix, unify


class Trace(Protocol):
    """The state of a trace, which calls read and add to."""

    strict: bool
    tensors: dict[str, Tensor]
    roles: list[RoleRecord]
    norms: list[NormRecord]
    attributes: list[Attribute]
    compensations: Compensations

    @property
    def frames(self) -> Sequence[Frame]: ...

    def label(self, tensor: Tensor) -> Label: ...


class OperationCall:
    """Implements `rules.Call` for an operation."""

    def __init__(self, trace: Trace, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]):
        self._trace = trace
        schema = func._schema.arguments
        self.name = f"aten.{func.overloadpacket.__name__}".removesuffix("_")
        self.arguments = {argument.name: argument.default_value for argument in schema}
        self.arguments.update(zip((argument.name for argument in schema), args, strict=False))
        self.arguments.update(kwargs)
        self.outputs: list[Tensor] = []
        self.keeps_values = func.is_view or self.name in ("aten.clone", "aten._to_copy", "aten._unsafe_view")
        self.where = trace.frames[-1].where
        self.mismatch = Reason(f"regrouped by {self.name} in {self.where} in a way that no rule describes")
        self._inputs = list(tensors_in((args, kwargs)))

    def tensors(self) -> list[Tensor]:
        return self._inputs

    def axes(self, tensor: Tensor) -> Axes:
        return self._trace.label(tensor).axes

    def is_static(self, tensor: Tensor) -> bool:
        return self._trace.label(tensor).static

    def is_weight(self, tensor: Tensor) -> bool:
        return self._trace.label(tensor).weight

    def unify(self, a: Term, b: Term) -> None:
        try:
            unify(a, b)
        except Conflict as conflict:
            self.misfit(a, conflict)
            self.misfit(b, conflict)

    def fix(self, term: Term, reason: str, kind: Kind = Kind.OPERATION) -> None:
        fix(term, Reason(f"{reason} in {self.where}", kind))

    def misfit(self, term: Term, conflict: Conflict) -> None:
        if self._trace.strict and rigid([term]):
            raise conflict if rigid(conflict.atoms) else Conflict(term) from conflict
        fix(term, self.mismatch)

    def role(self, tensor: Tensor, axis: int, role: Role, fill: Fill) -> None:
        label = self._trace.label(tensor)
        if not label.static:
            return
        term = label.axes[axis]
        if role == "consumer" and label.zero_lost_in:
            reason = f"consumed by a weight computed by {label.zero_lost_in}, which allows no trainable zero fan-out"
            fix(term, Reason(reason))
            return
        sources = label.zeros if role == "consumer" else label.sources
        self._trace.roles.append(RoleRecord(sources, term, self._stride(tensor, axis, label), role, fill))

    def normed(self, weight: Tensor, axis: int) -> None:
        label = self._trace.label(weight)
        if label.static:
            strides = tuple(self._stride(weight, each, label) for each in range(weight.ndim))
            self._trace.norms.append(NormRecord(label.sources, label.axes, strides, axis % weight.ndim))

    def _stride(self, tensor: Tensor, axis: int, label: Label) -> int | None:
        return tensor.stride(axis) if self._is_view(tensor, label) else None

    def _is_view(self, tensor: Tensor, label: Label) -> bool:
        sources = [self._trace.tensors[name] for name in label.sources]
        return any(source.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr() for source in sources)

    def owned(self, tensor: Tensor) -> bool:
        sources, path = self._trace.label(tensor).sources, self._trace.frames[-1].path
        return any(source.rpartition(".")[0] == path for source in sources)

    def attribute(self, weight: Tensor, name: str, term: Term | tuple[Term, ...]) -> None:
        owners = {source.rpartition(".")[0] for source in self._trace.label(weight).sources}
        paths = owners | {self._trace.frames[-1].path}
        self._trace.attributes.extend(Attribute(path, name, term) for path in sorted(paths))

    def compensate(self, what: Tensor | str, term: Term, power: float) -> None:
        scaled = self._trace.compensations.scaled
        if isinstance(what, str):
            frame = self._trace.frames[-1]
            if type(getattr(frame.module, what, None)) in (int, float):
                scaled.append(Compensation(frame.path, what, term, power, self.where))
            else:
                self.fix(term, f"made up for by {what}, which is no number,")
            return
        label = self._trace.label(what)
        if len(label.sources) == 1 and (label.weight or self._is_view(what, label)):
            (name,) = label.sources
            scaled.append(Compensation(name, None, term, power, self.where))
        else:
            self.fix(term, "made up for by a tensor that is computed")

    def new_entries(self, term: Term, fill: Fill) -> None:
        if fill not in (ZERO, MEAN):
            raise ValueError(f"new entries of activations can be ZERO or MEAN, not {fill}")
        self._trace.compensations.entries.append(NewEntries(term, fill, self.where))


class ModuleCall(OperationCall):
    """Implements `rules.Call` for a module that has its own rule."""

    def __init__(self, trace: Trace, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]):
        self._trace = trace
        self.name = type(module).__name__
        bound = inspect.signature(module.forward).bind(*args, **kwargs)
        bound.apply_defaults()
        self.arguments = dict(bound.arguments)
        self.outputs = []
        self.keeps_values = False
        self.where = trace.frames[-1].where
        self.mismatch = Reason(f"regrouped by {self.where} in a way that its rule does not describe")
        self._inputs = list(tensors_in((args, kwargs)))
