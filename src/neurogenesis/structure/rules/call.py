"""The interface between rules and the tracer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

from torch import Tensor

from ..fills import Fill
from ..known import Wanted
from ..reasons import Kind
from ..terms import Conflict, Term

Axes = list[Term]
Role = Literal["producer", "carrier", "consumer"]
Counted = Literal["heads", "groups", "channels"]


class Call(Protocol):
    """One executed operation, or a module with a rule, as the rule sees it.

    Attributes:
        name: the operation's name.
        arguments: by name, as in the operation's schema or the module's `forward`, with defaults filled in.
        outputs: the tensors that it returned.
        where: the module that it ran in, for messages.
    """

    name: str
    arguments: dict[str, Any]
    outputs: list[Tensor]
    where: str

    @property
    def batched(self) -> bool:
        """Whether it is part of a matrix product or of `einsum`, which reshape what they do not sum over."""

    def wanted(self) -> list[Wanted]:
        """The lengths that the code wants the axes of its output to have."""

    def may_add_single(self, axis: int) -> bool:
        """Whether an axis of the output may be a new factor of size 1; it may not if earlier ones were none there."""

    def added_single(self, axis: int, term: Term) -> None:
        """Note that an axis of the output is such a factor."""

    def tensors(self) -> list[Tensor]:
        """All tensors among the arguments."""

    def axes(self, tensor: Tensor) -> Axes:
        """The axes of an argument or a parameter."""

    def is_static(self, tensor: Tensor) -> bool:
        """Whether a tensor was computed from parameters and buffers only."""

    def is_weight(self, tensor: Tensor) -> bool:
        """Whether a tensor is a parameter, or a view or cast of one."""

    def owned(self, tensor: Tensor) -> bool:
        """Whether a tensor is computed from a parameter of the running module."""

    def unify(self, a: Term, b: Term) -> None:
        """State that two axes are the same, so that they grow together."""

    def fix(self, term: Term, reason: str, kind: Kind = Kind.OPERATION) -> None:
        """State that an axis cannot change its size, and why; `where` is appended to the reason."""

    def misfit(self, term: Term, conflict: Conflict) -> None:
        """State that an axis cannot change its size because of a conflict."""

    def role(self, tensor: Tensor, axis: int, role: Role, fill: Fill) -> None:
        """Record the role of a parameter's axis, and the default fill for new neurons.

        An axis produces neurons (rows of a weight, filled with random values), consumes them (columns, filled with
        zeros so that growth does not change the outputs) or carries a value per neuron (a scale, a bias).
        """

    def normed(self, weight: Tensor, axis: int) -> None:
        """Record that each slice of a weight along an axis is divided by its norm."""

    def attribute(self, weight: Tensor, name: str, term: Term | tuple[Term, ...]) -> None:
        """Record that an attribute of the module, such as ``out_features``, stores the size of an axis.

        A tuple of axes is for one that stores a tuple, such as ``normalized_shape``.
        """

    def reduced(self, tensor: Tensor, axis: int) -> None:
        """State that entries along an axis are combined to one: it cannot change, unless this is part of a norm."""

    def counts(self, term: Term, what: Counted) -> None:
        """State what an axis counts, if not neurons: heads, multiplied one by one, channels or groups."""

    def copied(self, term: Term) -> None:
        """State that a new axis holds copies of one entry."""

    def is_copied(self, term: Term) -> bool:
        """Whether an axis holds copies, and has not been combined with others since."""

    def compensate(self, what: Tensor | str | float, term: Term, power: float, minus: int = 0) -> None:
        """Record that a parameter, or an attribute of the module, makes up for the size n of an axis.

        It is multiplied by ((n - minus) / (n' - minus)) ** power when the axis is resized to n'. A number stands for
        the attribute that holds it.
        """

    def new_entries(self, tensor: Tensor, axis: int, fill: Fill) -> None:
        """Record what new entries of activations along an axis must be: `ZERO`, or `MEAN` or `COPY` of present ones.

        They are those that a norm across the axis, which the operation is, maps to zero. What adds to them gets zeros
        or means as new entries, and what reads the outputs gets random columns. Copies of all entries leave means as
        they are, and get zero columns.
        """


Rule = Callable[[Call], list[Axes]]
