"""What a rule sees of an operation, and what it returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

from torch import Tensor

from ..fills import Fill
from ..reasons import Kind
from ..terms import Conflict, Term

Axes = list[Term]
Role = Literal["producer", "carrier", "consumer"]


class Call(Protocol):
    """One executed operation, or a module with a rule, as the rule sees it.

    Attributes:
        name: the operation's name.
        arguments: by the names of the operation's schema, or of the module's `forward`; defaults filled in.
        outputs: the tensors it returned.
        where: the module it ran in, for messages.
    """

    name: str
    arguments: dict[str, Any]
    outputs: list[Tensor]
    where: str

    def tensors(self) -> list[Tensor]:
        """All tensors among the arguments."""

    def axes(self, tensor: Tensor) -> Axes:
        """The axes of an argument or a parameter."""

    def is_static(self, tensor: Tensor) -> bool:
        """Whether a tensor was computed from parameters and buffers alone."""

    def is_weight(self, tensor: Tensor) -> bool:
        """Whether a tensor is a parameter or a view of one."""

    def owned(self, tensor: Tensor) -> bool:
        """Whether a tensor is a parameter of the module that runs."""

    def unify(self, a: Term, b: Term) -> None:
        """State that two axes are the same one: they grow together."""

    def fix(self, term: Term, reason: str, kind: Kind = Kind.OPERATION) -> None:
        """State that the size of an axis cannot change, and why; where it runs is added."""

    def misfit(self, term: Term, conflict: Conflict) -> None:
        """State that the size of an axis cannot change because of a conflict."""

    def role(self, tensor: Tensor, axis: int, role: Role, fill: Fill) -> None:
        """State what a parameter's axis does here, and what new neurons get there by default.

        It produces neurons (the rows of a weight: random), consumes them (its columns: zero, so that growth does not
        change the outputs) or carries something per neuron (a scale, a bias).
        """

    def normed(self, weight: Tensor, axis: int) -> None:
        """State that each slice of a weight along an axis is divided by its norm."""

    def attribute(self, weight: Tensor, name: str, term: Term) -> None:
        """Name an attribute of the module, such as ``out_features``, that holds the size of an axis."""


Rule = Callable[[Call], list[Axes]]
