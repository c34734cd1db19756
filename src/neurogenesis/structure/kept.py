"""What the library keeps of a module beside it; the module's own attributes would be saved and copied with it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, WeakSet

from torch import Tensor, nn


@dataclass(eq=False)
class Kept:
    """What is kept of a module, each part by the file that is named.

    Attributes:
        structures: those that follow each of its resizes (`updates`).
        widths: the latest, so that growth by hand needs no example again (`finding`).
        wrappers: the `DistributedDataParallel`s around it, whose reducers follow its resizes (`wrappers`).
        internal_outputs: outputs that only the model itself reads, as the user has said (`outputs`).
        resized_interfaces: axes of tensors that have the size of an input or output and were resized (`interfaces`).
        interfaces: those found last (`interfaces`).
        stacks: those found last (`depth.stacks`).
        origins: stacks that have got other blocks (`origins`).
        surgeries: when entries of parameters were added (`surgery.newborn`).
        built: what its config builds, and that config (`integrations.configs`).
        fields: fields of its config that follow sizes, with the values that built it (`integrations.configs`).
        internal_run: whether the library runs it, which hooks ignore (`running`).
        constant_calls: the number of its calls before the first that depends on the model's input (`running`).
        attached: the `Grower`, so that growth by hand uses its optimizers, and another one replaces it (`attached`).
        scaled: what scaled tensors were before, so that scaling them back restores every bit (`scaling`).
    """

    structures: WeakSet[Any] = field(default_factory=WeakSet)
    widths: Any = None
    wrappers: WeakSet[Any] = field(default_factory=WeakSet)
    internal_outputs: frozenset[str | int] = frozenset()
    resized_interfaces: frozenset[tuple[str, int]] = frozenset()
    interfaces: Any = None
    stacks: Any = None
    origins: tuple[Any, ...] = ()
    surgeries: Any = None
    built: Any = None
    fields: dict[tuple[str, str], Any] = field(default_factory=dict)
    internal_run: bool = False
    constant_calls: int = 0
    attached: ReferenceType[Any] | None = None
    scaled: defaultdict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list))


_KEPT: WeakKeyDictionary[nn.Module, Kept] = WeakKeyDictionary()


def kept_of(module: nn.Module) -> Kept:
    """What is kept of a module, as long as it exists."""
    found = _KEPT.get(module)
    if found is None:
        found = _KEPT[module] = Kept()
    return found
