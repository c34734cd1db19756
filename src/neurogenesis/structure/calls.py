"""Calls of operations and modules, as rules see them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence, Set
from typing import Any, Protocol

from torch import Tensor, nn

from .compensations import Compensation, Compensations, NewEntries
from .examples import tensors_in
from .fills import COPY, MEAN, ZERO, Fill
from .known import Wanted, wanted
from .labels import Attribute, Frame, Label, Norm, NormRecord, RoleRecord, Site, rigid
from .reasons import Kind, Reason
from .rules import Axes, Counted, Role
from .stored import Sources
from .terms import Conflict, Product, Term, fix, resolve, shares, size, unify


class Trace(Protocol):
    """The state of a trace, which calls read and add to."""

    strict: bool
    tensors: dict[str, Tensor]
    roles: list[RoleRecord]
    weight_norms: list[NormRecord]
    norms: list[Norm]
    counted: list[tuple[Term, Counted]]
    copies: list[Term]
    attributes: list[Attribute]
    compensations: Compensations
    sources: Sources
    singles: dict[Site, Term]
    plain: Set[Site]

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
        self.recorded: list[RoleRecord] = []
        self.reduction: Norm | None = None
        self.completed: list[Norm] = []

    @property
    def batched(self) -> bool:
        return self._trace.sources.batched

    def wanted(self) -> list[Wanted]:
        return wanted(self.outputs[0].shape, self._trace.sources.given)

    def _site(self, axis: int) -> Site:
        frame = self._trace.frames[-1]
        return frame.path, frame.operations, axis

    def may_add_single(self, axis: int) -> bool:
        return self._site(axis) not in self._trace.plain

    def added_single(self, axis: int, term: Term) -> None:
        self._trace.singles[self._site(axis)] = term

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
        norms = [norm for each in self._inputs for norm in self._trace.label(each).norms]
        behind = role == "consumer" and any(shares(norm.term, term) for norm in norms)
        self.recorded.append(RoleRecord(sources, term, self._stride(tensor, axis, label), role, fill, behind))
        self._trace.roles.append(self.recorded[-1])

    def normed(self, weight: Tensor, axis: int) -> None:
        label = self._trace.label(weight)
        if label.static:
            strides = tuple(self._stride(weight, each, label) for each in range(weight.ndim))
            self._trace.weight_norms.append(NormRecord(label.sources, label.axes, strides, axis % weight.ndim))

    def _stride(self, tensor: Tensor, axis: int, label: Label) -> int | None:
        return tensor.stride(axis) if self._is_view(tensor, label) else None

    def _is_view(self, tensor: Tensor, label: Label) -> bool:
        sources = [self._trace.tensors[name] for name in label.sources]
        return any(source.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr() for source in sources)

    def is_view_of_parameter(self, tensor: Tensor) -> bool:
        """Whether a tensor computed from parameters and buffers shares the memory of one."""
        return self._is_view(tensor, self._trace.label(tensor))

    def owned(self, tensor: Tensor) -> bool:
        sources, path = self._trace.label(tensor).sources, self._trace.frames[-1].path
        return any(source.rpartition(".")[0] == path for source in sources)

    def attribute(self, weight: Tensor, name: str, term: Term | tuple[Term, ...]) -> None:
        owners = {source.rpartition(".")[0] for source in self._trace.label(weight).sources}
        paths = owners | {self._trace.frames[-1].path}
        self._trace.attributes.extend(Attribute(path, name, term) for path in sorted(paths))

    def reduced(self, tensor: Tensor, axis: int) -> None:
        label, reason = self._trace.label(tensor), Reason(f"reduced over by {self.name} in {self.where}")
        if label.static:
            fix(label.axes[axis], reason)
            return
        self.reduction = Norm(label.axes[axis], reason, self.where)
        self._trace.norms.append(self.reduction)

    def counts(self, term: Term, what: Counted) -> None:
        self._trace.counted.append((term, what))

    def copied(self, term: Term) -> None:
        self._trace.copies.append(term)

    def is_copied(self, term: Term) -> bool:
        return any(resolve(term) is each for each in self._trace.copies)

    def compensate(self, what: Tensor | str | float, term: Term, power: float, minus: int = 0) -> None:
        scaled = self._trace.compensations.scaled
        if isinstance(what, Tensor):
            label = self._trace.label(what)
            if len(label.sources) == 1 and (label.weight or label.shift or self._is_view(what, label)):
                (name,) = label.sources
                scaled.append(Compensation(name, None, term, power, self.where, minus, label.shift))
            else:
                self.fix(term, "made up for by a tensor that is computed")
            return
        if not power or what == 0:
            return
        frame = self._trace.frames[-1]
        found = what if isinstance(what, str) else _attribute_with(frame.module, what)
        if found is not None and isinstance(getattr(frame.module, found, ""), int | float | None):
            value = None if isinstance(what, str) else float(what)
            scaled.append(Compensation(frame.path, found, term, power, self.where, minus, value=value))
        else:
            text = f"{what}, which is no number," if isinstance(what, str) else f"the number {what:g} in its code"
            self.fix(term, f"made up for by {text}")

    def new_entries(self, tensor: Tensor, axis: int, fill: Fill) -> None:
        label = self._trace.label(tensor)
        term = label.axes[axis]
        norm = Norm(term, Reason(f"normalized across in {self.where}"), self.where, divided=True, scaled=True)
        norm.shifted = any(
            each.role == "carrier" and each.fill == ZERO and shares(each.term, term) for each in self.recorded
        )
        self.completed.append(norm)
        self._trace.norms.append(norm)
        self.fill_new(label, term, fill)

    def flat(self, norms: Iterable[Norm]) -> None:
        """Record that the outputs of norms reach an operation which maps zero to zero with a gradient of zero."""
        for norm in norms:
            norm.flat = self.name
            if norm.shifted:
                self._trace.compensations.shifted.append(norm.term)

    def fill_new(self, label: Label, term: Term, fill: Fill) -> None:
        """Record how new entries of activations along an axis come about."""
        if fill not in (ZERO, MEAN, COPY):
            raise ValueError(f"new entries of activations can be ZERO, MEAN or COPY, not {fill}")
        record = self._trace.compensations.entries
        record.append(NewEntries(term, fill, self.where))
        if fill == COPY:
            self._copy(term, "normalized across together with other axes")
            return
        for maker in label.makers:
            if not shares(maker.term, term):
                continue
            if fill == ZERO and maker.twice:
                self._copy(term, "normalized across after a product of two outputs of one layer")
            elif fill == MEAN and not maker.sources:
                self._copy(term, "normalized across after the output of another norm was added (post-norm)")
            elif fill == MEAN and not maker.linear:
                self._copy(term, "normalized across after operations that do not map means to means")
            elif fill == MEAN and isinstance(resolve(term), Product) and size(maker.term) < size(term):
                self._copy(term, "normalized across together with other axes")
            elif maker.sources:
                record.append(NewEntries(term, fill, self.where, maker))

    def _copy(self, term: Term, reason: str) -> None:
        self.copy(term, f"{reason} in {self.where}")

    def copy(self, term: Term, reason: str) -> None:
        """State that an axis grows by copies of all its entries only."""
        self._trace.compensations.copies.append((term, Reason(reason, Kind.NORMALIZED)))


def _attribute_with(module: nn.Module, value: float) -> str | None:
    """Name of the attribute of a module that holds a number; if several do, of the one that is called epsilon."""
    close = [
        name
        for name, own in vars(module).items()
        if isinstance(own, float) and abs(own - value) <= 1e-6 * abs(value)  # kernels round it to single precision
    ]
    named = [name for name in close if "eps" in name]
    if not close and getattr(module, "eps", 0.0) is None:  # the machine's epsilon
        return "eps"
    return next(iter(named or close), None)


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
        self.recorded: list[RoleRecord] = []
        self.reduction: Norm | None = None
        self.completed: list[Norm] = []
