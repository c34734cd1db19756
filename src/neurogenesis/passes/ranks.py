"""The processes that train copies of a model together, each on its own part of the batch.

What triggers and initializations see is that of all processes: sums over samples are added up, and inputs are
exchanged, so that every process makes the decisions of a single one that trains on the whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_map_only

from .replay import Call


@dataclass(frozen=True)
class _Place:
    """Stands for a tensor in the arguments of a call."""

    number: int


@dataclass(frozen=True)
class Ranks:
    """A process group, or a single process if there is none. Methods must be called in all processes."""

    group: Any = None

    @property
    def count(self) -> int:
        return 1 if self.group is None else dist.get_world_size(self.group)

    def sums(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Sums over processes."""
        if self.group is None:
            return list(tensors)
        dtype = reduce(torch.promote_types, [tensor.dtype for tensor in tensors])
        flat = torch.cat([tensor.detach().to(dtype).flatten() for tensor in tensors])
        dist.all_reduce(flat, group=self.group)
        parts = flat.split([tensor.numel() for tensor in tensors])  # type: ignore[no-untyped-call]
        return [part.reshape(tensor.shape).to(tensor.dtype) for part, tensor in zip(parts, tensors, strict=True)]

    def mean(self, tensor: Tensor) -> Tensor:
        """Mean over processes, as of gradients: each has the loss of its own part of the batch."""
        return tensor if self.group is None else self.sums([tensor])[0] / self.count

    def total(self, numbers: Sequence[int], device: torch.device) -> list[int]:
        """Sum of each number over processes."""
        return self._reduced(numbers, device, dist.ReduceOp.SUM)

    def least(self, numbers: Sequence[int], device: torch.device) -> list[int]:
        """Minimum of each number over processes."""
        return self._reduced(numbers, device, dist.ReduceOp.MIN)

    def _reduced(self, numbers: Sequence[int], device: torch.device, operation: Any) -> list[int]:
        if self.group is None or not numbers:
            return list(numbers)
        tensor = torch.tensor(numbers, device=device)
        dist.all_reduce(tensor, operation, group=self.group)
        return [int(number) for number in tensor]

    def of_first(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        """The tensors of the first process."""
        found = list(tensors)
        if self.group is not None:
            found = [tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in found]
            for tensor in found:
                dist.broadcast(tensor, dist.get_global_rank(self.group, 0), group=self.group)
        return found

    def gathered(self, rows: Tensor) -> list[Tensor]:
        """The rows of each process, which may differ in number."""
        if self.group is None:
            return [rows]
        return [parts[0] for parts in self._exchanged([rows])]

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

    def calls(self, own: Sequence[Call]) -> list[list[Call]]:
        """Calls of the model in each process, with copies of their tensors."""
        if self.group is None:
            return [list(own)]
        tensors: list[Tensor] = []

        def taken_out(tensor: Tensor) -> _Place:
            tensors.append(tensor)
            return _Place(len(tensors) - 1)

        parts = [tree_map_only(Tensor, taken_out, (call.args, call.kwargs, call.autocast)) for call in own]
        described, received = self.objects(parts), self._exchanged(tensors)
        return [
            [Call.from_parts(*tree_map_only(_Place, lambda place: theirs[place.number], each)) for each in calls]  # noqa: B023
            for calls, theirs in zip(described, received, strict=True)
        ]

    def _exchanged(self, own: Sequence[Tensor]) -> list[list[Tensor]]:
        """Tensors of any number, shapes and types of each process, by one exchange of descriptions and one of bytes."""
        device = own[0].device if own else torch.device("cpu")
        descriptions = self.objects([(tuple(tensor.shape), tensor.dtype) for tensor in own])
        sizes = [[math.prod(shape) * dtype.itemsize for shape, dtype in each] for each in descriptions]
        length = max(map(sum, sizes))
        if length == 0:
            return [[torch.empty(shape, dtype=dtype) for shape, dtype in each] for each in descriptions]
        sent = torch.zeros(length, dtype=torch.uint8, device=device)
        offset = 0
        for tensor in own:
            flat = tensor.detach().contiguous().flatten().view(torch.uint8)
            sent[offset : offset + len(flat)] = flat
            offset += len(flat)
        received = [torch.empty_like(sent) for _ in descriptions]
        dist.all_gather(received, sent, group=self.group)
        result = []
        for flat, each, own_sizes in zip(received, descriptions, sizes, strict=True):
            parts = flat[: sum(own_sizes)].split(own_sizes)  # type: ignore[no-untyped-call]
            result.append(
                [part.clone().view(dtype).reshape(shape) for part, (shape, dtype) in zip(parts, each, strict=True)]
            )
        return result


def _short(text: str, length: int = 200) -> str:
    return text if len(text) <= length else f"{text[:length]}..."


ALONE = Ranks()
