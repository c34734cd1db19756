"""Plans to grow or shrink a width: edits that can be printed and checked before they are applied.

Parameters keep their identity (`torch.utils.swap_tensors`), so references held by optimizers, schedulers and user code
stay valid. Gradients and optimizer state are padded or cut along the same axes.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.optim import Optimizer

from ..structure.axes import layer_of, named_tensors, unwrapped
from ..structure.edits import Change, Edit, edited, grouped
from ..structure.examples import Examples
from ..structure.extensions import Operation, extensions
from ..structure.fills import FanIn
from ..structure.memory import shared_memory, shared_memory_error
from ..structure.modes import ordinary_tensors
from ..structure.reasons import Kind
from ..structure.updates import StructureUpdate, belongs
from ..structure.widths import Width, example_for, known_widths, widths
from ..structure.wrappers import rebuild_reducers
from .ages import add_hooks, release_memory
from .attached import average_of, optimizers_of
from .operations import ResizeTensor, SetAttribute
from .optimizer_state import Optimizers, check_optimizers, state_edits
from .recompiling import renew_recompile_limits

# New values by parameter name, stacked along the axis that grows; other parameters get their defaults. If a parameter
# grows along two axes of the same width, use keys of name and axis.
Values = Mapping[str, Tensor] | Mapping[tuple[str, int], Tensor]


@dataclass(frozen=True)
class Plan:
    """A growth or shrinkage of one width: edits of tensors and module attributes, and changes of existing entries.

    `averaged` are the changes of an averaged copy of the model, whose weights differ; None if they are the same.
    Print it to read it, `check` it against a model, and `apply` it. If applying fails, nothing is changed.
    """

    width: str
    before: int
    after: int
    edits: tuple[Edit, ...]
    attributes: tuple[tuple[str, str, int, int], ...]  # module path, attribute, old value, new value
    changes: tuple[Change, ...] = ()
    averaged: tuple[Change, ...] | None = None

    def __str__(self) -> str:
        verb = "grow" if self.after > self.before else "shrink"
        lines = [f"{verb} {self.width} from {self.before} to {self.after}"]
        for edit in self.edits:
            sign = "+" if edit.change > 0 else "-"
            where = f"{sign}{abs(edit.change)} at {_ranges(edit.positions)}"
            lines.append(f"  {edit.tensor}  axis {edit.axis}  {where}  ({edit.role})")
        for change in self.changes:
            where = f"changed at {_ranges(change.positions)}"
            lines.append(f"  {change.tensor}  axis {change.axis}  {where}  ({change.role})")
        lines += [f"  {path}.{name}: {old} -> {new}" for path, name, old, new in self.attributes]
        return "\n".join(lines)

    def check(self, model: nn.Module, optimizer: Optimizers = None, ema: nn.Module | None = None) -> None:
        """Raise an error unless the plan can be applied; changes nothing."""
        with ordinary_tensors():
            self._operations(model, optimizers_of(model, optimizer), average_of(model, ema))

    def apply(
        self, model: nn.Module, optimizer: Optimizers = None, ema: nn.Module | None = None, *, ages: bool = True
    ) -> None:
        """Apply the plan to the model, the optimizers' state and an averaged copy of the model.

        By default the optimizers and the averaged copy are those of the `Grower` that is attached to the model.
        With `ages`, optimizers use bias corrections for the age of new weights (see `neurogenesis.ages`).
        """
        with Surgery(model, optimizer, ema, ages=ages) as surgery:
            surgery.apply(self)

    def _operations(
        self, model: nn.Module, optimizers: Sequence[Optimizer], ema: nn.Module | None, ages: bool = False
    ) -> list[Operation]:
        """Check the plan and return the operations that it consists of."""
        result: list[Operation] = []
        edits, model = grouped(self.edits), unwrapped(model)
        if ema is not None:
            check_average(model, ema)
        targets = [model] if ema is None else [model, averaged_model(ema)]
        for target in targets:
            tensors, modules = named_tensors(target), dict(target.named_modules(remove_duplicate=False))
            shared = shared_memory(tensors)
            made = self.changes if target is model or self.averaged is None else self.averaged
            changes = {change.tensor: change.added for change in made}
            touched = list(dict.fromkeys([*edits, *changes]))
            _check_programs({name: tensors[name] for name in touched if name in tensors})
            for name in touched:
                own = edits.get(name, [])
                if name in shared:
                    raise ValueError(shared_memory_error(name, shared[name]))
                _check_tensor(name, tensors.get(name), own, changes.get(name))
                resized = own and target is model  # a change alone leaves the optimizer's state as it is
                states = state_edits(name, tensors[name], own, optimizers, ages) if resized else []
                result.append(ResizeTensor(tensors[name], own, states, changes.get(name)))
            for path, name, before, after in self.attributes:
                if getattr(modules.get(path), name, None) != before:
                    raise ValueError(f"{path}.{name} is not {before}: {_CHANGED}")
                result.append(SetAttribute(modules[path], name, before, after))
        check_optimizers(model, edits, optimizers)
        result += [each for target in targets for own in extensions(target) for each in own.follow(target)]
        result += [StructureUpdate(target, self.width, self.edits, self.after - self.before) for target in targets]
        return result


def averaged_model(ema: nn.Module) -> nn.Module:
    """Return the model inside a `torch.optim.swa_utils.AveragedModel`, or `ema` itself if it is a plain copy."""
    return unwrapped(getattr(ema, "module", ema))


def check_average(model: nn.Module, ema: nn.Module) -> None:
    """Raise an error unless `ema` is an average of the model."""
    if not isinstance(ema, nn.Module):
        raise TypeError(f"ema: expected a module, such as torch.optim.swa_utils.AveragedModel, not {ema!r}")
    theirs = dict(averaged_model(ema).named_parameters())
    for name, own in model.named_parameters():
        if name not in theirs or theirs[name].shape != own.shape:
            found = f"has shape {tuple(theirs[name].shape)} there" if name in theirs else "is not there"
            raise ValueError(f"ema: it is no average of this model: {name} of shape {tuple(own.shape)} {found}")


class Surgery:
    """Apply several plans in sequence, all or none; each is made for the model as the previous plan left it.

    Use it as a context manager: an exception inside reverts all plans. By default, the optimizers and the average are
    those of the `Grower` that is attached to the model.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizers = None, ema: nn.Module | None = None, *, ages: bool = True
    ):
        self.model, self.ages = model, ages
        self.optimizers, self.ema = optimizers_of(model, optimizer), average_of(model, ema)
        self._grown = False
        self._applied: list[Operation] = []

    def apply(self, plan: Plan) -> None:
        """Apply one plan."""
        with ordinary_tensors():
            operations = plan._operations(self.model, self.optimizers, self.ema, self.ages)
            self._grown |= plan.after > plan.before
            for each in self.optimizers:
                release_memory(each)
            for operation in operations:
                operation.apply()
                self._applied.append(operation)

    def __enter__(self) -> Surgery:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for operation in reversed(self._applied):
                operation.revert()
        else:
            for operation in self._applied:
                operation.commit()
            if self._applied:
                rebuild_reducers(unwrapped(self.model))
            if self.ages and self._grown:
                for each in self.optimizers:
                    add_hooks(each)
            if self._applied:
                renew_recompile_limits()
        self._applied.clear()


_CHANGED = "the model has changed since the plan was made"


def find_growable(
    model: nn.Module,
    width: str | Width,
    count: int,
    example: Examples | None = None,
    allowed: Container[Kind] = (),
) -> tuple[Width, int]:
    """Look up a width and check that it can grow by `count` neurons; return both.

    Reasons of the kinds in `allowed` do not count.
    """
    found = _find_width(model, width, example)
    count = _as_integer(count, found.name, "the number of new neurons")
    if count < 1:
        raise ValueError(f"{found.name}: the number of new neurons must be positive, not {count}")
    if (why := found.obstacle(allowed)) is not None:
        remedy = "" if why.kind.remedy is None else f": {why.kind.remedy}"
        raise ValueError(f"{found.name} cannot grow: {why}{remedy}")
    return found, count


def plan_neurons(
    model: nn.Module,
    width: str | Width,
    count: int,
    values: Values | None = None,
    changes: Mapping[str, Tensor] | None = None,
    *,
    generator: torch.Generator | None = None,
    fan_ins: Mapping[str, FanIn] | None = None,
    allowed: Container[Kind] = (),
) -> Plan:
    """Plan to append neurons to a width of a model whose widths are known.

    Args:
        model: the model.
        width: the width.
        count: number of new neurons.
        values: their values, where these differ from the defaults.
        changes: tensors to add to existing parameters of the width, by name.
        generator: random generator for new weights; torch's global one by default.
        fan_ins: norm and balance of random fan-ins by parameter; by default the mean norm of the existing ones.
        allowed: kinds of reasons not to grow that do not count.
    """
    model = unwrapped(model)
    found, count = find_growable(model, width, count, allowed=allowed)
    tensors, given = named_tensors(model), dict(values or {})
    with ordinary_tensors():
        edits = found.structure.edits(found.atom, count, tensors, generator, fan_ins)
        edits = [_with_values(edit, given) for edit in edits]
    known_keys = {key for edit in edits for key in (edit.tensor, (edit.tensor, edit.axis))}
    if unknown := [key for key in given if key not in known_keys]:
        raise ValueError(f"initialization of {found.name}: {unknown} do not belong to this width")
    places = [(edit.tensor, edit.axis, edit.role) for edit in edits]
    return plan_edits(found, count, edits, _changes(found, changes or {}, places, tensors))


def plan_shrinkage(
    model: nn.Module,
    width: str | Width,
    neurons: Sequence[int],
    changes: Mapping[str, Tensor] | None = None,
    *,
    averaged: Mapping[str, Tensor] | None = None,
    example: Examples | None = None,
) -> Plan:
    """Plan to remove neurons from a width.

    Args:
        model: the model.
        width: the width, or its name.
        neurons: the indices of the neurons.
        changes: tensors to add to existing parameters of the width, or of layers that consume it, by name; in their
            present shape.
        averaged: the same for an averaged copy of the model; by default the same changes.
        example: an input of the model, required if its widths are not known.
    """
    model = unwrapped(model)
    found = _find_width(model, width, example)
    if found.fixed is not None:
        raise ValueError(f"{found.name} cannot shrink: {found.fixed}")
    if isinstance(neurons, Tensor) and neurons.dtype is torch.bool:
        raise TypeError(f"{found.name}: expected indices of neurons, not a boolean mask: pass mask.nonzero().flatten()")
    chosen = sorted({_as_integer(neuron, found.name, "an index") for neuron in neurons})
    if not chosen:
        raise ValueError(f"{found.name}: no neurons to remove were given")
    if chosen[0] < 0 or chosen[-1] >= found.size:
        raise IndexError(f"{found.name} has neurons 0 to {found.size - 1}: {neurons} is out of range")
    if len(chosen) == found.size:
        raise ValueError(f"{found.name}: cannot remove all {found.size} neurons: at least one must remain")
    tensors = named_tensors(model)
    edits = found.structure.edits(found.atom, chosen, tensors, None)
    consumers = {axis.module for axis in found.consumers}
    places = [(edit.tensor, edit.axis, edit.role) for edit in edits]
    places += [(name, 0, "consumer") for name in tensors.keys() - grouped(edits) if layer_of(name) in consumers]
    plan = plan_edits(found, -len(chosen), edits, _changes(found, changes or {}, places, tensors))
    return plan if averaged is None else replace(plan, averaged=_changes(found, averaged, places, tensors))


def shrink(
    model: nn.Module,
    width: str | Width,
    neurons: Sequence[int],
    *,
    optimizer: Optimizers = None,
    ema: nn.Module | None = None,
    example: Examples | None = None,
) -> Plan:
    """Remove the neurons with the given indices from a width.

    The other arguments and the result are those of `neurogenesis.grow`.

    Example:
        >>> import torch, neurogenesis as ng
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> plan = ng.shrink(model, "0", [0, 5], example=torch.randn(1, 4))
        >>> model[0].weight.shape, model[2].in_features
        (torch.Size([6, 4]), 6)
    """
    found = _find_width(unwrapped(model), width, example)
    if isinstance(neurons, int):
        raise TypeError(f"{found.name}: expected the indices of the neurons to remove, such as [{neurons}] or range(2)")
    if found.fixed is None and (why := found.structure.held.get(found.atom)) is not None:
        raise ValueError(f"{found.name} cannot shrink: {why}: {why.kind.remedy}")
    plan = plan_shrinkage(model, found, neurons)
    plan.apply(model, optimizer, ema)
    return plan


def _find_width(model: nn.Module, width: str | Width, example: Examples | None) -> Width:
    if not isinstance(width, Width):
        return known_widths(model, example)[width]
    if not belongs(width.structure, model):
        return known_widths(model, example)[width.name]
    problem = width.structure.differs_from(model)
    if problem is None:
        return width  # even if widths() was called with other ties since
    return widths(model, example_for(example, problem))[width.name]


def _as_integer(number: object, width: str, what: str) -> int:
    if isinstance(number, (bool, str)) or not hasattr(number, "__index__"):
        raise TypeError(f"{width}: {what} must be an integer, not {number!r}")
    return index(number)


def _with_values(edit: Edit, given: Mapping[Any, Tensor]) -> Edit:
    values, usual = given.get((edit.tensor, edit.axis), given.get(edit.tensor)), edit.values
    if values is None:
        return edit
    assert usual is not None
    if values.shape != usual.shape:
        raise ValueError(
            f"initialization of {edit.tensor}: expected values of shape {tuple(usual.shape)} for axis "
            f"{edit.axis}, got {tuple(values.shape)}"
        )
    if not values.isfinite().all():
        raise ValueError(f"initialization of {edit.tensor}: the new values are not all finite")
    return replace(edit, values=values.detach().to(usual))


def _changes(
    width: Width,
    given: Mapping[str, Tensor],
    places: Sequence[tuple[str, int, str]],
    tensors: Mapping[str, Tensor],
) -> tuple[Change, ...]:
    """Changes of existing parameters; changes by zero are left out.

    `places` are the name, axis and role of all that may be changed; of several axes of a tensor, the one is reported
    along which the fewest positions change.
    """
    made = [_change(width, name, added, places, tensors) for name, added in given.items()]
    return tuple(change for change in made if len(change.positions))


def _change(
    width: Width,
    name: str,
    added: Tensor,
    places: Sequence[tuple[str, int, str]],
    tensors: Mapping[str, Tensor],
) -> Change:
    own = [(axis, role) for tensor, axis, role in places if tensor == name]
    if not own:
        raise ValueError(f"changes of {width.name}: {name!r} does not belong to this width")
    if added.shape != tensors[name].shape:
        shapes = f"expected shape {tuple(tensors[name].shape)}, got {tuple(added.shape)}"
        raise ValueError(f"changes of {name}: {shapes}")
    if not added.isfinite().all():
        raise ValueError(f"changes of {name}: the values are not all finite")
    made = [Change(name, axis, added.detach(), role) for axis, role in own]
    return min(made, key=lambda change: len(change.positions))


def plan_edits(width: Width, change: int, edits: Sequence[Edit], changes: Sequence[Change] = ()) -> Plan:
    """Plan to resize a width by edits of its axes, with the attributes that store its size."""
    attributes = width.structure.attribute_changes(width.atom, change)
    return Plan(width.name, width.size, width.size + change, tuple(edits), tuple(attributes), tuple(changes))


def _ranges(positions: Tensor) -> str:
    """Format positions as ranges: 8-9, 24-25."""
    numbers = positions.tolist()
    starts = [n for i, n in enumerate(numbers) if i == 0 or numbers[i - 1] != n - 1]
    stops = [n for i, n in enumerate(numbers) if i == len(numbers) - 1 or numbers[i + 1] != n + 1]
    pieces = [str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, stops, strict=True)]
    return ", ".join(pieces[:3]) + (f" and {len(pieces) - 3} more ranges" if len(pieces) > 3 else "")


def _check_tensor(name: str, tensor: Tensor | None, edits: Sequence[Edit], added: Tensor | None) -> None:
    if tensor is None:
        raise ValueError(f"{name} is missing: {_CHANGED}")
    if added is not None and added.shape != tensor.shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, which its changes do not fit: {_CHANGED}")
    for edit in edits:
        if tensor.ndim <= edit.axis or tensor.shape[edit.axis] != edit.length:
            shape = tuple(tensor.shape)
            raise ValueError(f"{name} of shape {shape} should have {edit.length} on axis {edit.axis}: {_CHANGED}")
        if edit.values is not None:
            actual, expected = list(tensor.shape), list(edit.values.shape)
            actual[edit.axis] = expected[edit.axis]
            if actual != expected:
                raise ValueError(f"{name} has shape {tuple(tensor.shape)}, which new values do not fit: {_CHANGED}")
    if tensor.grad is not None and tensor.grad.layout is not torch.strided:
        raise ValueError(f"{name} has a sparse gradient: call optimizer.step() and zero_grad() first")


def _check_programs(tensors: Mapping[str, Tensor]) -> None:
    """Raise an error if an exported program contains one of the tensors: it has their sizes built in.

    Exporting leaves weak references to parameters, so that programs need be looked for only if there are some.
    """
    if not any(weakref.getweakrefs(tensor) for tensor in tensors.values()):
        return
    gc.collect()  # programs that were deleted may wait for it
    programs = [each for each in gc.get_objects() if type(each) is ExportedProgram]
    held = {id(tensor) for program in programs for tensor in program.state_dict.values()}
    for name, tensor in tensors.items():
        if id(tensor) in held:
            raise RuntimeError(f"{name} cannot be resized while an exported program contains it: delete that first")


def pad_for_growth(key: tuple[str, int], values: Tensor, plans: Sequence[Plan]) -> Tensor:
    """Pad values that were computed before other widths grew with zeros at the new neurons of these widths.

    Args:
        key: the parameter, and the axis along which the values are stacked, or -1 if they cover the whole parameter.
        values: the values.
        plans: the plans applied since.
    """
    name, axis = key
    for plan in plans:
        for edit in plan.edits:
            if edit.tensor == name and edit.axis != axis:
                values = edited(values, [edit], {edit.axis: 0.0})
    return values
