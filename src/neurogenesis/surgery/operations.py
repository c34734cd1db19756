"""The elementary operations of surgery. Each can be reverted."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ..structure.edits import Edit, adjusted, edited
from ..structure.labels import AttributeValue
from ..structure.paths import set_attribute
from .ages.births import BirthEdit
from .optimizer_state import StateEdit
from .scaling import Held, restored


class SetAttribute:
    """Set an attribute of a module."""

    def __init__(self, module: nn.Module, name: str, before: AttributeValue, after: AttributeValue):
        self.module, self.name, self.before, self.after = module, name, before, after

    def apply(self) -> None:
        set_attribute(self.module, self.name, self.after)

    def revert(self) -> None:
        set_attribute(self.module, self.name, self.before)

    def commit(self) -> None:
        pass


class EditTensor:
    """Edit a parameter or buffer in place, with its gradient and its optimizer state.

    Entries are adjusted by `factor`, `added` and `shift` first, then inserted or removed. The old contents are kept for
    `revert`; `held` are earlier ones, which scaling back restores.
    """

    def __init__(
        self,
        tensor: Tensor,
        edits: Sequence[Edit],
        states: Sequence[StateEdit | BirthEdit],
        factor: float = 1.0,
        added: Tensor | None = None,
        shift: float = 0.0,
        held: Held | None = None,
    ):
        self.tensor, self.edits, self.states = tensor, edits, states
        self.factor, self.added, self.shift, self.held = factor, added, shift, held
        self.swapped_out: Tensor | None = None  # the old contents while the edit is applied
        self.reverters: list[Callable[[], None]] = []

    def apply(self) -> None:
        new = edited(adjusted(self.tensor.detach(), self.factor, self.added, self.shift), self.edits)
        if self.factor != 1 and self.held is not None:
            new = restored(new, self.tensor.detach(), self.held, self.shift)
        if isinstance(self.tensor, nn.Parameter):
            new = nn.Parameter(new, requires_grad=self.tensor.requires_grad)
            if self.tensor.grad is not None:
                new.grad = edited_gradient(self.tensor.grad, self.edits, self.factor)
        _swap(self.tensor, new)
        self.swapped_out = new
        try:
            # State tensors are replaced one at a time, and growth frees each old one at once. Reverting it cuts the
            # new tensor, which fits in the memory that the parameter's new contents have left.
            for each in self.states:
                reverter = each.reverter()
                each.apply()
                self.reverters.append(reverter)
        except BaseException:
            self.revert()
            raise

    def revert(self) -> None:
        assert self.swapped_out is not None
        _swap(self.tensor, self.swapped_out)
        self.swapped_out = None
        while self.reverters:
            self.reverters.pop()()

    def commit(self) -> None:
        """Redirect gradients of an earlier forward pass to the resized parameter."""
        assert self.swapped_out is not None
        if _held_elsewhere(self.swapped_out) and self.swapped_out.requires_grad:
            parameter, edits, factor = self.tensor, self.edits, self.factor
            self.swapped_out.grad = None  # the parameter has it already, resized: only new gradients are passed on

            def forward_gradient(old: Tensor) -> None:
                assert old.grad is not None
                gradient = edited_gradient(old.grad, edits, factor)
                if gradient.shape != parameter.shape:
                    raise RuntimeError(
                        "a parameter was resized twice between a forward pass and its backward pass: call backward() "
                        "before resizing again"
                    )
                parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
                old.grad = None

            self.swapped_out.register_post_accumulate_grad_hook(forward_gradient)  # type: ignore[no-untyped-call]


def edited_gradient(gradient: Tensor, edits: Sequence[Edit], factor: float) -> Tensor:
    """The gradient of an edited parameter: with zeros for new entries, and divided by the factor of the others."""
    return edited(adjusted(gradient, 1 / factor), edits, {edit.axis: 0.0 for edit in edits})


def _held_elsewhere(tensor: Tensor) -> bool:
    """Whether the graph of a forward pass holds a reference to the contents of a tensor."""
    uses: int = tensor._use_count()  # type: ignore[attr-defined]
    return uses > 1


def _swap(tensor: Tensor, other: Tensor) -> None:
    """Swap the contents of two tensors; their identities, attributes and hooks stay."""
    if _held_elsewhere(tensor) or _held_elsewhere(other) or weakref.getweakrefs(tensor):
        # swap_tensors would raise an error, or break the backward pass; `EditTensor.commit` makes that pass work.
        # Weak references, such as those that compiling and exporting leave, stay valid: the tensor keeps its identity.
        torch._C._swap_tensor_impl(tensor, other)
    else:
        other.__dict__.update(tensor.__dict__)
        other.__class__ = type(tensor)
        torch.utils.swap_tensors(tensor, other)  # type: ignore[no-untyped-call]
    for kind in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        hooks = getattr(tensor, kind, None)
        if hooks:  # they are registered with the contents that were swapped out: register them again
            setattr(tensor, kind, None)
            setattr(tensor, kind, hooks)
