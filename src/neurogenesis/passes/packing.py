r"""Packed sequences (`torch.nn.utils.rnn`): all items of all sequences as rows of one matrix, step after step.

At step t there are rows of the :math:`b_t` sequences that are longer than t, in descending order of length.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence


def tensor_of(given: Any) -> Any:
    """The rows of a packed sequence; anything else as it is."""
    return given.data if isinstance(given, PackedSequence) else given


def with_tensor(given: Any, tensor: Tensor) -> Any:
    """A packed sequence with other rows, or just these if it is none."""
    return given._replace(data=tensor) if isinstance(given, PackedSequence) else tensor


def items_of_rows(packed: PackedSequence) -> Tensor:
    """The item of the batch that each row comes from.

    Example:
        >>> from torch.nn.utils.rnn import pack_sequence
        >>> items_of_rows(pack_sequence([torch.ones(1), torch.ones(3)], enforce_sorted=False))
        tensor([1, 0, 1, 1])
    """
    sizes = packed.batch_sizes
    places = torch.arange(int(sizes.sum())) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    return places if packed.sorted_indices is None else packed.sorted_indices.cpu()[places]


def by_sequences(numbers: Tensor, packed: PackedSequence) -> Tensor:
    """Sums of integers over the rows of each sequence, in the order of the batch."""
    nothing = numbers.new_zeros(int(packed.batch_sizes[0]))
    return nothing.index_add(0, items_of_rows(packed).to(numbers.device), numbers)


def steps_of_rows(packed: PackedSequence) -> Tensor:
    """The step of each row."""
    return torch.arange(len(packed.batch_sizes)).repeat_interleave(packed.batch_sizes)


def shifted(rows: Tensor, packed: PackedSequence, backwards: bool) -> Tensor:
    """For each row that of the step before, or after it if `backwards`; zeros if there is none."""
    first, before = int(packed.batch_sizes[0]), _before(packed).to(rows.device)
    if backwards:
        return torch.zeros_like(rows).index_copy(0, before, rows[first:])
    return torch.cat([torch.zeros_like(rows[:first]), rows[before]])


def ends(rows: Tensor, packed: PackedSequence, backwards: bool) -> Tensor:
    """The row of the last step of each item of the batch, or of the first step if `backwards`."""
    sizes = packed.batch_sizes
    first = torch.arange(int(sizes[0]))
    lengths = (sizes > first[:, None]).sum(1)
    places = first if backwards else (sizes.cumsum(0) - sizes)[lengths - 1] + first
    found = rows[places.to(rows.device)]
    return found if packed.unsorted_indices is None else found[packed.unsorted_indices]


def _before(packed: PackedSequence) -> Tensor:
    """The row of the step before, for each row after the first step."""
    sizes = packed.batch_sizes
    return torch.arange(int(sizes[0]), int(sizes.sum())) - sizes[:-1].repeat_interleave(sizes[1:])
