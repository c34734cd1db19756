"""The model's latest inputs, of all processes that train it together, and activations that are measured on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from .activations import Activations, Batch, SharedActivations
from .processes import ALONE, Processes
from .replay import ModelCall

Runs = Sequence[Mapping[str, Sequence[Tensor]]]
"""Activations by name in each of several calls of the model, of every time that their module was called there."""


class Inputs:
    """Calls of the model in one process, in the order in which they were made.

    Args:
        own: the calls.
    """

    def __init__(self, own: Sequence[ModelCall]):
        self._own = own

    @property
    def passes(self) -> int:
        """Number of calls in the process that has the most."""
        return len(self._own)

    @property
    def shapes(self) -> Sequence[ModelCall]:
        """The calls of all processes; tensors of other processes may have a shape only."""
        return self._own

    @property
    def all(self) -> Sequence[ModelCall]:
        """The calls of all processes with their tensors."""
        return self._own

    def own(self, first: int) -> Sequence[ModelCall]:
        """The calls of this process among those of all, from number `first` on."""
        return self._own[first:]

    def latest(self, runs: Runs, first: int, items: Mapping[str, int], device: torch.device) -> dict[str, Activations]:
        """Activations on the latest items of the calls of all processes.

        Args:
            runs: activations in the calls that are this process's `own`.
            first: the number of the first call.
            items: the number of items for each name.
            device: where the model is.
        """
        return {name: seen.latest(items[name]) for name, seen in together(runs).items()}


class SharedInputs(Inputs):
    """Calls of the model in several processes, which tell each other the shapes when this is made.

    Args:
        own: the calls of this process.
        processes: the processes.
        known: whether all of them `know` each other's shapes already; if None, they ask each other.
    """

    def __init__(self, own: Sequence[ModelCall], processes: Processes, known: bool | None):
        super().__init__(own)
        self._processes, self._described = processes, interleaved(processes.described_calls(own, known))

    @property
    def passes(self) -> int:
        return max(Counter(rank for rank, _ in self._described).values(), default=0)

    @property
    def shapes(self) -> Sequence[ModelCall]:
        return [call for _, call in self._described]

    @cached_property
    def all(self) -> Sequence[ModelCall]:
        return [call for _, call in interleaved(self._processes.calls(self._own))]

    def own(self, first: int) -> Sequence[ModelCall]:
        return [call for rank, call in self._described[first:] if rank == self._processes.rank]

    def latest(self, runs: Runs, first: int, items: Mapping[str, int], device: torch.device) -> dict[str, Activations]:
        processes, ranks = self._processes, [rank for rank, _ in self._described[first:]]
        batches = [[seen[name][0] if name in seen else None for name in items] for seen in runs]
        numbers = torch.tensor([list(map(Batch.numbers, each)) for each in batches], dtype=torch.int64)
        counts = Counter(ranks)
        gathered = processes.gathered(
            numbers.reshape(-1, len(items), 5), [counts[rank] for rank in range(processes.count)]
        )
        of_all = [iter(each.tolist()) for each in gathered]
        described = [(rank, next(of_all[rank])) for rank in ranks]
        result: dict[str, SharedActivations] = {}
        for number, (name, wanted) in enumerate(items.items()):
            ours = [each[number] for each in batches]
            theirs = [Batch.of(rank, each[number]) for rank, each in described]
            if shared := SharedActivations.latest_of(ours, theirs, wanted, processes, device):
                result[name] = shared
        for each in result.values():
            each.together = list(result.values())
        return dict(result)


def inputs_of(own: Sequence[ModelCall], processes: Processes, known: bool | None = None) -> Inputs:
    """The inputs of all processes; see `SharedInputs`."""
    return Inputs(own) if processes is ALONE else SharedInputs(own, processes, known)


def interleaved(calls: Sequence[Sequence[ModelCall]]) -> list[tuple[int, ModelCall]]:
    """The calls of each process in the order in which they were made, with the number of the process.

    The latest calls of all processes were made together, and so on.
    """
    result: list[tuple[int, ModelCall]] = []
    for age in reversed(range(max(map(len, calls)))):
        result += [(rank, own[-1 - age]) for rank, own in enumerate(calls) if age < len(own)]
    return result


def together(runs: Runs) -> dict[str, Activations]:
    """Activations of several calls, by name."""
    names = dict.fromkeys(name for seen in runs for name in seen)
    return {name: Activations([batch for seen in runs for batch in seen.get(name, ())]) for name in names}
