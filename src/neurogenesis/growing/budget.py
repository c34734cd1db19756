"""How many neurons the budget allows, and values that fit when several widths grow at once."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from ..layer import Layer
from ..structure.edits import edited
from ..surgery.plan import Plan


def affordable_count(
    model: nn.Module, limit: int | None, layer: Layer, count: int, also: Sequence[tuple[Layer, int]]
) -> int:
    """How many of so many neurons the limit of parameters allows, when other layers grow as well."""
    if limit is None:
        return count
    structure, atom = layer.width.structure, layer.width.atom
    sizes = {other.width.atom: other.size + added for other, added in also}
    while count and structure.parameters_with(model, {**sizes, atom: atom.size + count}) > limit:
        count -= 1
    return count


def pad_for_growth(key: tuple[str, int], values: Tensor, done: Sequence[Plan]) -> Tensor:
    """Values made before other widths grew, with zeros where these have new neurons; axis -1 if for all of it."""
    name, axis = key
    for plan in done:
        for edit in plan.edits:
            if edit.tensor == name and edit.axis != axis:
                values = edited(values, [edit], {edit.axis: 0.0})
    return values
