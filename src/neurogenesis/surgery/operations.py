"""The single operations of surgery, each of which can be undone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from ..structure.edits import Edit, edited
from .ages.births import BirthEdit
from .optimizer_state import StateEdit


class Operation(Protocol):
    """Something to `do`, which `undo` takes back and `settle` completes when all others are done too."""

    def do(self) -> None: ...
    def undo(self) -> None: ...
    def settle(self) -> None: ...


class Setting:
    """Set an attribute of a module."""

    def __init__(self, module: nn.Module, name: str, before: int, after: int):
        self.module, self.name, self.before, self.after = module, name, before, after

    def do(self) -> None:
        setattr(self.module, self.name, self.after)

    def undo(self) -> None:
        setattr(self.module, self.name, self.before)

    def settle(self) -> None:
        pass


class Resizing:
    """Resize a parameter or buffer in place, with its gradient and what optimizers keep for it.

    What is to be `added` to its present entries is so in the new contents: the old ones stay as they are.
    """

    def __init__(
        self,
        tensor: Tensor,
        edits: Sequence[Edit],
        states: Sequence[StateEdit | BirthEdit],
        added: Tensor | None = None,
    ):
        self.tensor, self.edits, self.states, self.added = tensor, edits, states, added
        self.other: Tensor | None = None  # has the contents that the tensor does not have now
        self.undoings: list[Callable[[], None]] = []

    def do(self) -> None:
        present = self.tensor.detach()
        new = edited(present if self.added is None else present + self.added.to(present), self.edits)
        if isinstance(self.tensor, nn.Parameter):
            new = nn.Parameter(new, requires_grad=self.tensor.requires_grad)
            if self.tensor.grad is not None:
                new.grad = resized_gradient(self.tensor.grad, self.edits)
        _swap(self.tensor, new)
        self.other = new
        try:
            # One after the other, the old one dropped when the new one is there: growth can be taken back
            # without it, and the memory for that is what the parameter's new contents free.
            for each in self.states:
                undoing = each.undoing()
                each.make()
                self.undoings.append(undoing)
        except BaseException:
            self.undo()
            raise

    def undo(self) -> None:
        assert self.other is not None
        _swap(self.tensor, self.other)
        self.other = None
        while self.undoings:
            self.undoings.pop()()

    def settle(self) -> None:
        """Let gradients of a forward pass that ran before arrive at the parameter, resized."""
        assert self.other is not None
        if _held_elsewhere(self.other) and self.other.requires_grad:
            parameter, edits = self.tensor, self.edits
            self.other.grad = None  # the parameter has it already, resized: only what comes is passed on

            def pass_on(old: Tensor) -> None:
                assert old.grad is not None
                gradient = resized_gradient(old.grad, edits)
                if gradient.shape != parameter.shape:
                    raise RuntimeError(
                        "a parameter was resized twice since the forward pass whose backward runs now: "
                        "call backward before the second time"
                    )
                parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
                old.grad = None

            self.other.register_post_accumulate_grad_hook(pass_on)  # type: ignore[no-untyped-call]


def resized_gradient(gradient: Tensor, edits: Sequence[Edit]) -> Tensor:
    """A gradient with zeros for new entries."""
    return edited(gradient, edits, {edit.axis: 0.0 for edit in edits})


def _held_elsewhere(tensor: Tensor) -> bool:
    """Whether the graph of a forward pass holds the contents of a tensor."""
    uses: int = tensor._use_count()  # type: ignore[attr-defined]
    return uses > 1


def _swap(tensor: Tensor, other: Tensor) -> None:
    """Exchange the contents of two tensors; their identities, and what a user hung on them, stay."""
    if _held_elsewhere(tensor) or _held_elsewhere(other):
        # swap_tensors refuses then, or makes the graph's backward fail; `Resizing.settle` sees to it instead.
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
