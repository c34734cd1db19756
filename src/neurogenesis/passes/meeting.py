"""Find out whether all processes look at a model, before they exchange anything.

A process that exchanges tensors while the others train on would wait for them until the process group gives up, or
exchange its tensors with their gradients. So processes first meet through the key-value store of their group, which
nothing else waits for. One that trains on without a look says so there.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from typing import Any

import torch.distributed as dist

_MEETINGS: Counter[str] = Counter()  # growers by name of their group, which its processes create in the same order
_PATIENCE = 0.5  # seconds after which a process asks whether the others have trained on


class Meeting:
    """Where the processes that train a model meet before each look.

    Args:
        group: their process group.
    """

    def __init__(self, group: Any):
        self._rank, self._count, self._store = dist.get_rank(group), dist.get_world_size(group), _store_of(group)
        name = str(group.group_name)
        self._name = f"neurogenesis {_MEETINGS[name]}"
        self._missed, self._looks = 0, 0
        _MEETINGS[name] += 1

    def miss(self) -> None:
        """Say that this process trains on without a look; called when a pass begins."""
        self._missed += 1
        if self._store is not None:
            self._store.add(self._key("missed", self._rank), 1)

    def wait(self, problem: str, seconds: float = math.inf) -> None:
        """Wait for all processes; raise RuntimeError with the problem if some have trained on, or do not come.

        Args:
            problem: what is wrong then and what to do, in which {here} and {others} stand for processes.
            seconds: how long to wait for those that have neither come nor trained on; without an error, as an exchange
                of tensors finds out whether they have ended. By default as long as the process group waits.
        """
        store, rank, count = self._store, self._rank, self._count
        if store is None:
            return
        self._looks += 1
        store.set(self._key(self._looks, rank), "")
        if store.add(self._key(self._looks, "present"), 1) == count:
            store.set(self._key(self._looks, "all"), "")
            for each in ("present", "all", *range(count)):  # which all have read
                store.delete_key(self._key(self._looks - 1, each))
        started, pause = time.monotonic(), 1e-4
        while not store.check([self._key(self._looks, "all")]):
            waited = time.monotonic() - started
            if waited > seconds:
                return
            others = [each for each in range(count) if each != rank] if waited > _PATIENCE else []
            gone = [each for each in others if store.add(self._key("missed", each), 0) > self._missed]
            if not gone and waited > 0.8 * store.timeout.total_seconds():  # before the others give up
                gone = [each for each in others if not store.check([self._key(self._looks, each)])]
            if gone:
                raise RuntimeError(problem.format(here=rank, others=", ".join(map(str, gone))))
            time.sleep(pause)
            pause = min(2 * pause, 0.05)

    def _key(self, *parts: object) -> str:
        return "/".join([self._name, *map(str, parts)])


def _store_of(group: Any) -> Any:
    """The store of a process group; None if it has none."""
    try:
        return dist.distributed_c10d._get_process_group_store(group)
    except (AttributeError, KeyError):  # made by other means than torch's own
        return None
