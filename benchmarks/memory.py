"""The memory of all tensors that are alive."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.weak import WeakIdKeyDictionary


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of some tensors and of all that operations make, while they live."""

    def __init__(self, before: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.storages = WeakIdKeyDictionary()
        for tensor in before:
            self.storages[tensor.untyped_storage()] = True
        self.peak = self.now

    @property
    def now(self) -> int:
        return sum(storage.nbytes() for storage in self.storages)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            if isinstance(tensor, Tensor):
                self.storages[tensor.untyped_storage()] = True
        self.peak = max(self.peak, self.now)
        return result
