"""The parameter budget, and values of new neurons when several widths grow in one step."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from ..layer import Layer
from ..structure.edits import edited
from ..surgery.plan import Plan


def affordable_count(
    model: nn.Module, limit: int | None, layer: Layer, count: int, also: Sequence[tuple[Layer, int]]
) -> int:
    """Largest number of neurons, at most `count`, within the parameter limit if the layers in `also` grow as well."""
    if limit is None:
        return count
    structure, atom = layer.width.structure, layer.width.atom
    sizes = {other.width.atom: other.size + added for other, added in also}
    while count and structure.parameters_with(model, {**sizes, atom: atom.size + count}) > limit:
        count -= 1
    return count


def pad_for_growth(key: tuple[str, int], values: Tensor, done: Sequence[Plan]) -> Tensor:
    """Pad values that were computed before other widths grew with zeros at the new neurons of these widths.

    Args:
        key: the parameter, and the axis along which the values are stacked, or -1 if they cover the whole parameter.
        values: the values.
        done: the plans applied since.
    """
    name, axis = key
    for plan in done:
        for edit in plan.edits:
            if edit.tensor == name and edit.axis != axis:
                values = edited(values, [edit], {edit.axis: 0.0})
    return values
