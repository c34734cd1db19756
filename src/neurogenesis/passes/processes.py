"""The processes that train copies of a model together, each on its own part of the batch.

Triggers and initializations see the activations and gradients of all processes: sums over samples are added up, and
inputs are exchanged, so that every process decides as a single one would that trains on the whole batch.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import count
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_map_only

from .meeting import Meeting
from .replay import ModelCall

Item = TypeVar("Item")


@dataclass(frozen=True)
class _Place:
    """Stands for a tensor in the arguments of a call."""

    number: int


@dataclass(frozen=True)
class Processes:
    """A process group, or a single process if there is none. Methods must be called in all processes."""

    group: Any = None
    _described: dict[bytes, list[_Description]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def count(self) -> int:
        return 1 if self.group is None else dist.get_world_size(self.group)

    @property
    def rank(self) -> int:
        """The number of this process."""
        return 0 if self.group is None else dist.get_rank(self.group)

    @property
    def _device(self) -> torch.device:
        """Where tensors must be to be sent."""
        return torch.device("cuda" if "nccl" in dist.get_backend(self.group) else "cpu")

    @cached_property
    def _meeting(self) -> Meeting:
        return Meeting(self.group)

    def meet(self, problem: str, seconds: float = math.inf) -> None:
        """Wait for all processes; raise RuntimeError with the problem if some do not come; see `Meeting.wait`."""
        if self.group is not None:
            self._meeting.wait(problem, seconds)

    def miss(self) -> None:
        """Say that this process trains on without a look."""
        if self.group is not None:
            self._meeting.miss()

    def sums(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Sums over processes."""
        if self.group is None or not tensors:
            return list(tensors)
        dtype = reduce(torch.promote_types, [tensor.dtype for tensor in tensors])
        flat = torch.cat([tensor.detach().to(self._device, dtype).flatten() for tensor in tensors])
        dist.all_reduce(flat, group=self.group)
        parts = flat.split([tensor.numel() for tensor in tensors])  # type: ignore[no-untyped-call]
        return [part.reshape(tensor.shape).to(tensor) for part, tensor in zip(parts, tensors, strict=True)]

    def mean(self, tensor: Tensor) -> Tensor:
        """Mean over processes, as of gradients: each has the loss of its own part of the batch."""
        return tensor if self.group is None else self.sums([tensor])[0] / self.count

    def least(self, numbers: Sequence[int]) -> list[int]:
        """Minimum of each number over processes."""
        if self.group is None or not numbers:
            return list(numbers)
        tensor = torch.tensor(numbers, device=self._device)
        dist.all_reduce(tensor, dist.ReduceOp.MIN, group=self.group)
        return [int(number) for number in tensor]

    def of_first(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        """The tensors of the first process."""
        found = list(tensors)
        if self.group is not None:
            first = dist.get_global_rank(self.group, 0)
            for number, tensor in enumerate(found):
                sent = tensor.detach().to(self._device).clone(memory_format=torch.contiguous_format)
                dist.broadcast(sent, first, group=self.group)
                found[number] = sent.to(tensor.device)
        return found

    def gathered(self, rows: Tensor, lengths: Sequence[int] | None = None) -> list[Tensor]:
        """The rows of each process, which may differ in number; the numbers of all processes, if they are known."""
        if self.group is None:
            return [rows]
        if lengths is None:
            lengths = [int(length) for length in self._received(torch.tensor([len(rows)]))]
        missing = max(lengths) - len(rows)
        padded = torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])]) if missing else rows
        return [theirs[:length] for theirs, length in zip(self._received(padded), lengths, strict=True)]

    def _received(self, own: Tensor) -> list[Tensor]:
        """The tensors of all processes, which have the same shape."""
        sent = own.detach().to(self._device).contiguous()
        found = [torch.empty_like(sent) for _ in range(self.count)]
        dist.all_gather(found, sent, group=self.group)
        return [tensor.to(own.device) for tensor in found]

    def objects(self, own: Any) -> list[Any]:
        """A picklable object of each process."""
        if self.group is None:
            return [own]
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, own, group=self.group)
        return found

    def check_same(self, settings: Mapping[str, Any]) -> None:
        """Raise ValueError in all processes if a setting differs between them."""
        found = self.objects({name: repr(value) for name, value in settings.items()})
        for name in settings:
            for rank, theirs in enumerate(found):
                if theirs[name] != found[0][name]:
                    raise ValueError(
                        f"{name} must be the same in all processes, but is {_short(found[0][name])} in process 0 and "
                        f"{_short(theirs[name])} in process {rank}"
                    )

    def calls(self, own: Sequence[ModelCall]) -> list[list[ModelCall]]:
        """Calls of the model in each process, with copies of their tensors."""
        described = self._descriptions(own)
        received = self._exchanged(_tensors_of(own), [kinds for _, kinds in described])
        return [_with_tensors(calls, theirs) for (calls, _), theirs in zip(described, received, strict=True)]

    def described_calls(self, own: Sequence[ModelCall], known: bool | None = None) -> list[list[ModelCall]]:
        """Calls of the model in each process; tensors of other processes have a shape only.

        Args:
            own: the calls of this process.
            known: whether all processes `know` their own; if None, they tell each other.
        """
        described = self._descriptions(own, known)
        found = [_with_tensors(calls, [kind.empty for kind in kinds]) for calls, kinds in described]
        found[self.rank] = list(own)
        return found

    def know(self, own: Sequence[ModelCall]) -> bool:
        """Whether other processes know the calls of this one, but for the content of tensors."""
        return self.group is None or _key(own) in self._described

    def take_over(self, rank: int | None) -> bool:
        """Whether this process continues what the process of that number has saved; a single one always does."""
        return self.group is None or rank in (None, self.rank)

    def at_once(self, items: Sequence[Item]) -> list[Sequence[Item]]:
        """Parts of some work: a single part for several processes, as one exchange serves all; else one per item."""
        if self.group is None:
            return [[item] for item in items]
        return [items] if items else []

    def tensors(self, own: Sequence[Tensor]) -> list[list[Tensor]]:
        """Copies of the tensors of each process, which may differ in number, shapes and types."""
        return self._exchanged(own, self.objects([_Kind.of(tensor) for tensor in own]))

    def _descriptions(self, own: Sequence[ModelCall], known: bool | None = None) -> list[_Description]:
        """The calls of each process without tensors; they are sent only if some have changed, as most are alike."""
        key = _key(own)
        if known is None:
            (known,) = map(bool, self.least([key in self._described]))
        if not known:
            self._described.clear()
            self._described[key] = self.objects(pickle.loads(key))
        return self._described[key]

    def _exchanged(self, own: Sequence[Tensor], kinds: Sequence[Sequence[_Kind]]) -> list[list[Tensor]]:
        """Tensors of any number, shapes and types of each process, by one exchange of bytes."""
        sizes = [[kind.size for kind in each] for each in kinds]
        missing = max(map(sum, sizes)) - sum(kind.size for kind in map(_Kind.of, own))
        parts = [tensor.detach().to(self._device).contiguous().flatten().view(torch.uint8) for tensor in own]
        sent = torch.cat([*parts, torch.empty(missing, dtype=torch.uint8, device=self._device)])
        received = self._received(sent) if len(sent) else [sent] * self.count
        result = []
        for flat, each, theirs in zip(received, kinds, sizes, strict=True):
            parts = flat[: sum(theirs)].split(theirs)  # type: ignore[no-untyped-call]
            result.append([kind.tensor(part) for kind, part in zip(each, parts, strict=True)])
        return result


@dataclass(frozen=True)
class _Kind:
    """Shape, type and kind of device of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str

    @staticmethod
    def of(tensor: Tensor) -> _Kind:
        return _Kind(tuple(tensor.shape), tensor.dtype, tensor.device.type)

    @property
    def size(self) -> int:
        """Number of bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def empty(self) -> Tensor:
        """A tensor without content."""
        return torch.empty(self.shape, dtype=self.dtype, device="meta")

    def tensor(self, content: Tensor) -> Tensor:
        """The tensor whose bytes these are, in memory of its own: torch cannot save tensors of two types in one."""
        return content.clone().view(self.dtype).reshape(self.shape).to(self.device)


_Description = tuple[list[Any], list[_Kind]]
"""Parts of calls with places instead of tensors, and the kinds of the tensors."""


def _key(calls: Sequence[ModelCall]) -> bytes:
    """The description of calls, by which they can be compared."""
    numbers = count()
    parts = tree_map_only(
        Tensor, lambda _: _Place(next(numbers)), [(call.args, call.kwargs, call.autocast) for call in calls]
    )
    description: _Description = parts, [_Kind.of(tensor) for tensor in _tensors_of(calls)]
    return pickle.dumps(description)


def _tensors_of(calls: Sequence[ModelCall]) -> list[Tensor]:
    return [tensor for call in calls for tensor in call.tensors]


def _with_tensors(parts: Sequence[Any], tensors: Sequence[Tensor]) -> list[ModelCall]:
    return [ModelCall.from_parts(*tree_map_only(_Place, lambda place: tensors[place.number], each)) for each in parts]


def _short(text: str, length: int = 200) -> str:
    return text if len(text) <= length else f"{text[:length]}..."


ALONE = Processes()

Result = TypeVar("Result")
Sums = Generator[list[Tensor], list[Tensor], Result]
"""A computation that yields tensors to be added up over processes, gets the sums, and so on; see `summed`."""


def summed(computations: Sequence[Sums[Result]], processes: Processes) -> list[Result]:
    """Results of computations that need sums over processes: one exchange serves all of them at a time.

    Example:
        >>> def twice(x):
        ...     (total,) = yield [x]
        ...     (total,) = yield [total + 1]
        ...     return int(total)
        >>> summed([twice(torch.tensor(1)), twice(torch.tensor(5))], ALONE)
        [2, 6]
    """
    results: dict[int, Result] = {}
    sums: dict[int, Any] = dict.fromkeys(range(len(computations)))  # a generator is started with None
    while sums:
        wanted = {}
        for number, own in sums.items():
            try:
                wanted[number] = computations[number].send(own)
            except StopIteration as end:
                results[number] = end.value
        totals = iter(processes.sums([tensor for tensors in wanted.values() for tensor in tensors]))
        sums = {number: [next(totals) for _ in tensors] for number, tensors in wanted.items()}
    return [results[number] for number in range(len(computations))]
