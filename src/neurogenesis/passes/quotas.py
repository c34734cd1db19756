"""How many of the model's latest inputs each width is measured on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..structure.widths import Width
from .replay import ModelCall
from .routes import Route


@dataclass(frozen=True)
class Rows:
    """Number of rows of activations that a width has per item of a batch: in sequences, one at each position.

    Args:
        per_item: the number in the call that it was found in.
        tensor: which of the call's tensors has as many entries on its second axis, such as the token numbers.
    """

    per_item: int = 1
    tensor: int | None = None

    @staticmethod
    def of(per_item: int, call: ModelCall) -> Rows:
        if per_item <= 1:
            return Rows()
        lengths = [tensor.shape[1] if tensor.ndim > 1 else None for tensor in call.tensors]
        return Rows(per_item, lengths.index(per_item) if per_item in lengths else None)

    def in_item(self, call: ModelCall) -> int:
        """The number in another call, whose sequences may have another length."""
        if self.tensor is None or self.tensor >= len(call.tensors) or call.tensors[self.tensor].ndim < 2:
            return self.per_item
        return call.tensors[self.tensor].shape[1]


@dataclass(frozen=True)
class Quota:
    """Numbers of samples in a measurement.

    Args:
        limit: the number of samples: items of a batch or, for widths in `rows`, rows of activations.
        widths: the widths that are measured, and where.
        rows: rows per item of the widths that have more than one.
    """

    limit: int
    widths: Mapping[str, tuple[Width, Route]] = field(default_factory=dict)
    rows: Mapping[str, Rows] = field(default_factory=dict)

    def reached(self, name: str, calls: Sequence[ModelCall]) -> bool:
        """Whether calls hold as many samples of a width as a measurement should have."""
        rows = self.rows.get(name, Rows())
        return sum(call.samples * rows.in_item(call) for call in calls) >= self.limit

    def items(self, name: str, calls: Sequence[ModelCall], share: int = 1) -> int:
        """Number of latest items of calls, made by one of `share` processes, that a width is measured on.

        Those of sequences are whole, and have two rows per neuron if there are as many: rows cost little there.
        """
        rows = self.rows.get(name)
        if rows is None:
            return -(-self.limit // share)
        own = self.widths[name][0]
        items, missing = 0, -(-max(self.limit, 2 * own.size * own.features) // share)
        for call in reversed(calls):
            taken = min(call.samples, -(-missing // max(1, rows.in_item(call))))
            items, missing = items + taken, missing - taken * rows.in_item(call)
            if missing <= 0:
                break
        return items

    def most_items(self, names: Iterable[str], calls: Sequence[ModelCall], share: int = 1) -> int:
        """The largest number of latest items that some width is measured on."""
        return max((self.items(name, calls, share) for name in names), default=-(-self.limit // share))

    def first(self, names: Iterable[str], calls: Sequence[ModelCall]) -> int:
        """Index of the oldest call that widths are measured on."""
        missing, first = self.most_items(names, calls), len(calls)
        while missing > 0 and first > 0:
            first -= 1
            missing -= calls[first].samples
        return first
