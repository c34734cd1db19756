"""Find the sizes of a model's widths from the shapes of its tensors."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .terms import Atom, Sizes, Term, leaves, size
from .widths import Width, Widths


@dataclass(frozen=True)
class _Equation:
    """An axis of a tensor and the length that it must have."""

    tensor: str
    axis: int
    term: Term
    length: int


def sizes_from_shapes(widths: Widths, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Sizes of all widths that can be resized, such that the tensors of the model have the given shapes.

    Args:
        widths: the widths of the model as it is.
        shapes: shapes by the name of the parameter or buffer. Widths that none of them depends on keep their sizes.

    Raises:
        ValueError: if there are no such sizes; names the first width that differs.
    """
    equations = []
    for name, shape in shapes.items():
        axes = widths.structure.axes[name]
        if len(axes) != len(shape):
            raise ValueError(f"{name} should have shape {tuple(shape)}, but has {len(axes)} axes in the model")
        equations += [_Equation(name, axis, *pair) for axis, pair in enumerate(zip(axes, shape, strict=True))]
    names = {atom: width for width in widths for atom in leaves(width._term)}
    known = {atom: atom.size for equation in equations for atom in leaves(equation.term) if atom.fixed}
    source: dict[Atom, _Equation] = {}  # of each size that was found
    open_equations = list(equations)
    while open_equations:
        left = []
        for equation in open_equations:
            unknown = {atom for atom in leaves(equation.term) if atom not in known}
            if len(unknown) > 1:
                left.append(equation)
                continue
            for atom in unknown:
                known[atom], source[atom] = _solved(equation, atom, known), equation
            if size(equation.term, known) != equation.length:
                raise ValueError(_difference(equation, names, known, source))
        if len(left) == len(open_equations):  # each has several unknown sizes
            left = _assume_unchanged(left, known)
        open_equations = left
    return {width.name: known[width.atom] for width in widths if width.fixed is None and width.atom in known}


def _solved(equation: _Equation, atom: Atom, known: Sizes) -> int:
    """The size of an atom with which an axis has its length, or nearly if there is none."""
    candidates = range(1, equation.length + 1)
    return 1 + bisect_left(candidates, equation.length, key=lambda n: size(equation.term, {**known, atom: n}))


def _assume_unchanged(equations: Sequence[_Equation], known: dict[Atom, int]) -> list[_Equation]:
    """Keep the sizes of axes that have their length already."""
    for equation in equations:
        if size(equation.term, known) == equation.length:
            known.update({atom: atom.size for atom in leaves(equation.term) if atom not in known})
            return [other for other in equations if other is not equation]
    first = equations[0]
    raise ValueError(
        f"{first.tensor} should have {first.length} on axis {first.axis}, which is {first.term} in the model: more "
        "than one of these sizes can change: call neurogenesis.resize() with the right sizes first"
    )


def _difference(
    equation: _Equation, names: Mapping[Atom, Width], known: Sizes, source: Mapping[Atom, _Equation]
) -> str:
    """Why an axis cannot have its length, by the width that differs."""
    where = f"{equation.tensor} should have {equation.length} on axis {equation.axis}"
    present = size(equation.term)
    for atom in leaves(equation.term):
        other = source.get(atom)
        if other is not None and other is not equation:
            return (
                f"width {names[atom].name!r} does not fit: {where}, but {other.tensor} gives it {known[atom]} neurons, "
                f"which makes {size(equation.term, known)}"
            )
    width = next((names[atom] for atom in leaves(equation.term) if atom in names), None)
    if width is None:
        return f"{where}, not {present}"
    reason = f", and it cannot be resized: {width.fixed}" if width.fixed is not None else ""
    return f"width {width.name!r} does not fit: {where}, not {present}{reason}"
