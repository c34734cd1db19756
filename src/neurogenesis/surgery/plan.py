"""Plans to grow or shrink a width: edits that can be printed and checked before they are applied.

Parameters keep their identity (`torch.utils.swap_tensors`), so references held by optimizers, schedulers and user code
stay valid. Gradients and optimizer state are edited with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import nn
from torch.optim import Optimizer

from ..structure.axes import named_tensors, unwrapped
from ..structure.edits import Average, Change, Edit, Scale, TensorEdit, grouped, total_factor
from ..structure.extensions import Operation, extensions
from ..structure.kept import kept_of
from ..structure.labels import AttributeValue
from ..structure.memory import blocks_of, shared_memory, shared_memory_error
from ..structure.modes import ordinary_tensors
from ..structure.paths import attribute_at
from ..structure.recurrent import flatten_weights
from ..structure.updates import StructureUpdate
from ..structure.wrappers import rebuild_reducers
from .ages import add_hooks, release_memory
from .attached import average_of, optimizers_of
from .checks import CHANGED, averaged_model, check_average, check_programs, check_tensor
from .newborn import note_surgery
from .operations import EditTensor, SetAttribute
from .optimizer_state import Optimizers, check_optimizers, state_edits
from .recompiling import renew_recompile_limits
from .resized_interfaces import NoteInterfaces
from .scaling import held_values


@dataclass(frozen=True)
class Plan:
    """A growth or shrinkage of one width: edits of tensors and module attributes, and changes of existing entries.

    `scales` are factors of existing entries that make up for the new size. `averaged` are the changes of an averaged
    copy of the model, whose weights differ; None if they are the same. `interfaces` are the axes of tensors that
    are resized because the user said so, as they have a size of the model's inputs or outputs.
    Print it to read it, `check` it against a model, and `apply` it. If applying fails, nothing is changed.
    """

    width: str
    before: int
    after: int
    edits: tuple[Edit, ...]
    # Of each attribute: path of the module, name, old value, new value.
    attributes: tuple[tuple[str, str, AttributeValue, AttributeValue], ...]
    changes: tuple[Change, ...] = ()
    averaged: tuple[Change, ...] | None = None
    scales: tuple[Scale, ...] = ()
    interfaces: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        verb = "grow" if self.after > self.before else "shrink"
        lines = [f"{verb} {self.width} from {self.before} to {self.after}"]
        lines += [f"  {edit}" for edit in (*self.edits, *self.scales, *self.changes)]
        lines += [f"  {path}.{name}: {_number(old)} -> {_number(new)}" for path, name, old, new in self.attributes]
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
            shared = shared_memory(tensors, blocks_of(target))
            changes = self.changes if target is model or self.averaged is None else self.averaged
            touched: dict[str, list[TensorEdit]] = {}
            everything: list[TensorEdit] = [*changes, *self.scales, *self.edits]
            for edit in everything:
                touched.setdefault(edit.tensor, []).append(edit)
            check_programs({name: tensors[name] for name in touched if name in tensors})
            added = {change.tensor: change.added for change in changes}
            for name, all_edits in touched.items():
                if name in shared:
                    raise ValueError(shared_memory_error(name, shared[name]))
                check_tensor(name, tensors.get(name), all_edits)
                own, (factor, shift) = edits.get(name, []), total_factor(self.scales, name)
                if target is not model:  # new entries that are means are those of its own entries
                    own = [each.within(tensors) if isinstance(each, Average) else each for each in own]
                optimized = optimizers if target is model else []
                held = held_values(target)
                changed = own or factor != 1
                states = state_edits(name, tensors[name], own, optimized, ages, factor, held) if changed else []
                result.append(EditTensor(tensors[name], own, states, factor, added.get(name), shift, held[name]))
            for path, name, before, after in self.attributes:
                if attribute_at(modules.get(path), name) != before:
                    raise ValueError(f"{path}.{name} is not {before}: {CHANGED}")
                if "." in name:  # a field of a config
                    kept_of(target).fields.setdefault((path, name), before)
                result.append(SetAttribute(modules[path], name, before, after))
        check_optimizers(model, edits, optimizers)
        result += [each for target in targets for own in extensions(target) for each in own.follow(target)]
        result += [NoteInterfaces(each, self.interfaces, self.edits) for each in targets if self.interfaces]
        result += [StructureUpdate(target, self.width, self.edits, self.after - self.before) for target in targets]
        return result


class AnyPlan(Protocol):
    """A plan that a surgery can apply: of a width, or of blocks."""

    @property
    def before(self) -> int: ...

    @property
    def after(self) -> int: ...

    def _operations(
        self, model: nn.Module, optimizers: Sequence[Optimizer], ema: nn.Module | None, ages: bool = False
    ) -> list[Operation]: ...


class Surgery:
    """Apply several plans in sequence, all or none; each is made for the model as the previous plan left it.

    Use it as a context manager: an exception inside reverts all plans. By default, the optimizers and the average are
    those of the `Grower` that is attached to the model. With `settle`, the configs of the model follow in the end.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizers = None,
        ema: nn.Module | None = None,
        *,
        ages: bool = True,
        settle: bool = True,
    ):
        self.model, self.ages, self.settle = model, ages, settle
        self.optimizers, self.ema = optimizers_of(model, optimizer), average_of(model, ema)
        self._grown = False
        self._applied: list[Operation] = []
        self._parameters = list(unwrapped(model).parameters())

    def apply(self, plan: AnyPlan) -> None:
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
                for model in (each for each in (self.model, self.ema) if each is not None):
                    flatten_weights(model)
                rebuild_reducers(unwrapped(self.model))
                present = set(map(id, self._parameters))
                new = [own for own in unwrapped(self.model).parameters() if id(own) not in present]
                edits = [(each.tensor, each.edits) for each in self._applied if isinstance(each, EditTensor)]
                note_surgery(unwrapped(self.model), edits, new)
            if self.ages and self._grown:
                for each in self.optimizers:
                    add_hooks(each)
            if self._applied:
                renew_recompile_limits()
                for target in [self.model] if self.ema is None else [self.model, averaged_model(self.ema)]:
                    for extension in extensions(unwrapped(target)) if self.settle else ():
                        extension.settle(unwrapped(target))
        self._applied.clear()


def _number(value: AttributeValue) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
