r"""Recognize the samples of a training set by their inputs, and count them.

The identity of a sample is a hash of some of its values, exact on every device: two items of batches with the same
values are one sample. So the number of samples is the number of different identities. Of many, only the smallest
:math:`k` identities are kept: if the largest of these is :math:`u` of the whole range of hashes, there are about
:math:`(k - 1) / u` samples, with a relative error of :math:`1 / \sqrt{k}`. (Fewer than k are counted exactly.)

Reference: Bar-Yossef et al., "Counting distinct elements in a data stream" (RANDOM 2002).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from .packing import by_sequences, steps_of_rows
from .processes import ALONE, Processes
from .replay import ModelCall

FOLDS = 16
KEPT = 4096  # identities
VALUES = 64  # of an item that are hashed, spread over it; of integers, such as tokens, the first ones
_LARGEST = 2**63 - 1


def identities(call: ModelCall) -> Tensor | None:
    """The identity of each item of a batch, int64; None if the call has no tensors.

    Of tokens, masked ones do not count, so that it does not matter how far a sequence is padded. The items of packed
    sequences are the sequences.

    Example:
        >>> batch = torch.randn(4, 3)
        >>> first, second = (identities(ModelCall.of([each], {})) for each in (batch, batch.flip(0)))
        >>> torch.equal(first, second.flip(0)), len(first.unique())
        (True, 4)
    """
    packed = [each for each in (*call.args, *call.kwargs.values()) if isinstance(each, PackedSequence)]
    parts = {id(part) for each in packed for part in each}
    tensors = [tensor for tensor in call.tensors if tensor.ndim and tensor.numel() and id(tensor) not in parts]
    hashes = [_of_sequences(each, number) for number, each in enumerate(packed)]
    if not (hashes or tensors):
        return None
    items = len((hashes or tensors)[0])
    mask = call.kwargs.get("attention_mask")
    for number, tensor in enumerate(tensors):
        if len(tensor) == items:
            if tensor is not mask and isinstance(mask, Tensor) and tensor.shape == mask.shape:
                tensor = tensor * mask
            hashes.append(_hashed(tensor, number).to((hashes or tensors)[0].device))
    return mixed(sum(hashes[1:], hashes[0]))


def _of_sequences(packed: PackedSequence, seed: int) -> Tensor:
    """A hash of all rows of each sequence, and of their order."""
    rows = _hashed(packed.data, seed)
    return by_sequences(mixed(rows + steps_of_rows(packed).to(rows.device)), packed)


def _hashed(tensor: Tensor, seed: int) -> Tensor:
    """A sum of some values of each item, times random numbers: exact, whatever the order of the items."""
    bits = _bits(tensor.detach()).reshape(len(tensor), -1)
    count, ordered = bits.shape[1], not (tensor.is_floating_point() or tensor.is_complex())
    chosen, factors = _places(count, ordered, seed, bits.device)
    if chosen is not None:
        bits = bits.index_select(1, chosen)
    return (bits.long() * factors).sum(1)


@lru_cache(maxsize=64)
def _places(count: int, ordered: bool, seed: int, device: torch.device) -> tuple[Tensor | None, Tensor]:
    """Which values are hashed, all if None, and the factors of them."""
    generator = torch.Generator().manual_seed(seed)
    factors = torch.randint(-_LARGEST, _LARGEST, (VALUES,), generator=generator) | 1
    if count <= VALUES:
        return None, factors[:count].to(device)
    chosen = torch.arange(VALUES) if ordered else torch.randperm(count, generator=generator)[:VALUES].sort().values
    return chosen.to(device), factors.to(device)


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _bits(tensor: Tensor) -> Tensor:
    """The bits of numbers, as integers."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.view(_INTEGERS[tensor.element_size()]) if tensor.is_floating_point() else tensor


def mixed(numbers: Tensor) -> Tensor:
    """Hash integers, so that all bits of a result depend on all bits of a number."""
    numbers = numbers.to(torch.int64)
    for factor, shift in ((-4658895280553007687, 32), (-7723592293110705685, 29)):
        numbers = (numbers ^ _shifted(numbers, shift)) * factor
    return numbers ^ _shifted(numbers, 32)


def _shifted(numbers: Tensor, shift: int) -> Tensor:
    """Bits shifted to the right, with zeros on the left."""
    shifted: Tensor = (numbers >> shift) & (2 ** (64 - shift) - 1)
    return shifted


def folds(ids: Tensor) -> Tensor:
    """The fold of each sample, for the whole training."""
    return ids & (FOLDS - 1)


def merged(known: Tensor, *more: Tensor) -> Tensor:
    """The smallest of all different identities."""
    together = torch.cat([known, *(each.to(known.device) for each in more)])
    different: Tensor = torch.unique(together)  # sorted
    return different[:KEPT]


def number_of(smallest: Tensor) -> float:
    """The number of different samples, given the smallest identities.

    Example:
        >>> number_of(merged(mixed(torch.arange(100)), mixed(torch.arange(60, 150))))
        150.0
        >>> 90_000 < number_of(merged(mixed(torch.arange(100_000)))) < 110_000
        True
    """
    if len(smallest) < KEPT:
        return float(len(smallest))
    part = (float(smallest[-1]) + 2.0**63) / 2.0**64
    return (KEPT - 1) / part


class Samples:
    """The samples that a model has been trained on so far.

    Args:
        total: the number of samples in the training set; if None, those that have been seen are counted.
    """

    def __init__(self, total: int | None = None) -> None:
        self.total = total
        self._smallest = torch.empty(0, dtype=torch.int64)
        self._passes: list[tuple[int, Tensor | None]] = []  # since the last step: calls and identities
        self._identified = 0  # passes of these for which the user has told the identities
        self._recent: list[Tensor] = []  # identities that have not been counted yet
        self._without_new = 0  # items that have passed since the latest new sample
        self._items = 0  # that have been counted
        self._enough = False  # whether the number is known from those that have been counted
        self._number: float | None = None  # found since the last step
        self._processes = ALONE

    def join(self, processes: Processes) -> None:
        """Count the samples of all processes from now on."""
        self._processes, self._number = processes, None

    @property
    def known(self) -> bool:
        """Whether no further passes need to be counted: there are many, or all that come have been seen before."""
        return self.total is not None or self._enough

    def add(self, call: ModelCall) -> None:
        """Note a training pass."""
        self._passes.append((id(call), identities(call)))

    def identify(self, ids: Any) -> None:
        """Note what the user tells about the passes since the last time.

        Args:
            ids: integers, one for each item of the passes, or for each item of a single pass if there are several
                passes of the same samples.
        """
        given = torch.as_tensor(ids)
        if given.ndim != 1 or given.is_floating_point() or given.is_complex():
            raise ValueError(
                f"samples: expected one integer per item of the batch, not {list(given.shape)} of {given.dtype}"
            )
        passes = self._passes[self._identified :]
        sizes = [len(given) // len(passes) if found is None else len(found) for _, found in passes]
        if len(given) == sum(sizes):
            parts = list(mixed(given).split(sizes))  # type: ignore[no-untyped-call]
        elif all(size == len(given) for size in sizes):
            parts = [mixed(given)] * len(passes)
        else:
            raise ValueError(
                f"samples: expected one integer per item of the batch, {' + '.join(map(str, sizes))}, not {len(given)}"
            )
        found = [(key, part) for (key, _), part in zip(passes, parts, strict=True)]
        self._passes[self._identified :] = found
        self._identified = len(self._passes)

    def of(self, call: ModelCall) -> Tensor | None:
        """The identities of the items of a pass since the last step."""
        # The latest: a call that is gone may have had the same id.
        return next((ids for key, ids in reversed(self._passes) if key == id(call)), None)

    def end_step(self) -> None:
        """Count the samples of the passes since the last step."""
        self._number = None
        if not self._passes:
            return
        self._recent += [ids for _, ids in self._passes if ids is not None]
        self._passes.clear()
        self._identified = 0
        if sum(map(len, self._recent)) >= max(256, 2 * len(self._smallest)):
            self._count()

    def _count(self) -> None:
        if not self._recent:
            return
        before, recent = self._smallest, torch.cat([ids.to(self._recent[0].device) for ids in self._recent])
        items = len(recent)
        self._items += items
        if len(before) == KEPT:
            recent = recent[recent < before[-1].to(recent.device)]
        self._smallest = merged(before.to(recent.device), recent)
        self._recent.clear()
        new = len(self._smallest) != len(before) or not torch.equal(self._smallest, before.to(self._smallest.device))
        self._without_new = 0 if new else self._without_new + items
        self._enough = self._is_enough()

    def _is_enough(self) -> bool:
        number = number_of(self._smallest)
        return number > _MANY or 0 < number <= _REPEATED * self._without_new

    def number(self) -> float:
        """The number of samples in the training set: as told, or else of those that have been seen.

        As long as none has been seen twice, as many again are expected.
        """
        if self.total is not None:
            return float(self.total)
        if self._number is None:  # processes exchange it once for all layers
            self._number = self._found()
        return self._number

    def _found(self) -> float:
        self._count()
        self._smallest = merged(*self._processes.gathered(self._smallest))  # so that each process saves those of all
        self._enough = self._is_enough()
        items = sum(int(own) for own in self._processes.gathered(torch.tensor([self._items])))
        found = number_of(self._smallest)
        return found if items > _TWICE * found else 2 * found

    def state(self) -> dict[str, Any]:
        self._count()
        return {"smallest": self._smallest, "without_new": self._without_new, "items": self._items}

    def load(self, state: Mapping[str, Any]) -> None:
        self._smallest, self._without_new = state["smallest"], state["without_new"]
        self._items = state.get("items", 2**62)  # earlier versions did not count them
        self._recent.clear()
        self._enough, self._number = self._is_enough(), None


_TWICE = 1.05  # items per sample: the number of samples has an error of a few percent
_REPEATED = 8  # an eighth of as many items as there are samples, without a new one, shows that there are no more
_MANY = 2**16  # samples: what a training set of so many leaves uncertain is less than what a window can measure
