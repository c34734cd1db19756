"""The sizes of widths that give the tensors of a model the shapes in a state."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from .axes import named_tensors
from .terms import Atom, Sizes, Term, leaves, size
from .widths import Width, Widths


@dataclass(frozen=True)
class _Equation:
    """An axis of a tensor and the length that it must have."""

    tensor: str
    axis: int
    term: Term
    length: int


def shapes_in(model: nn.Module, state: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes in a state of the tensors that the model has."""
    return {name: tuple(state[name].shape) for name in named_tensors(model) if isinstance(state.get(name), Tensor)}


def sizes_from_shapes(
    widths: Widths,
    shapes: Mapping[str, Sequence[int]],
    saved: Mapping[str, int] | None = None,
    fixed: Sizes | None = None,
) -> dict[str, int]:
    """Sizes of the widths that can be resized, such that the tensors of the model have the given shapes.

    Args:
        widths: the widths of the model as it is.
        shapes: shapes by the name of the parameter or buffer.
        saved: sizes by the name of the width; they count where the shapes leave a choice. Widths without them keep
            their sizes there.
        fixed: sizes that are known, of the model's inputs and outputs; the others keep theirs.

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
    free = {width.name: width.atom for width in widths if width.fixed is None}
    assumed = {free[name]: number for name, number in (saved or {}).items() if name in free}
    known = {atom: atom.size for equation in equations for atom in leaves(equation.term) if atom.fixed}
    known.update(fixed or {})
    source: dict[Atom, _Equation] = {}  # of each size that was found
    open_equations = equations
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
            left = _assume(left, known, assumed)
        open_equations = left
    found = {**assumed, **known}
    return {name: found[atom] for name, atom in free.items() if atom in found}


def _solved(equation: _Equation, atom: Atom, known: Sizes) -> int:
    """The size of an atom that gives an axis its length or, if there is none, the smallest that makes it longer."""
    candidates = range(1, equation.length + 1)
    return 1 + bisect_left(candidates, equation.length, key=lambda n: size(equation.term, {**known, atom: n}))


def _assume(equations: Sequence[_Equation], known: dict[Atom, int], assumed: Sizes) -> list[_Equation]:
    """Assume sizes, or the present ones, where they give an axis its length; returns the other equations."""
    for equation in equations:
        sizes = {atom: known.get(atom, assumed.get(atom, atom.size)) for atom in leaves(equation.term)}
        if size(equation.term, sizes) == equation.length:
            known.update(sizes)
            return [other for other in equations if other is not equation]
    first = equations[0]
    raise ValueError(
        f"{first.tensor} should have {first.length} on axis {first.axis}, which is {first.term} in the model: more "
        "than one of these sizes can change: call neurogenesis.resize() with the right sizes first"
    )


def _difference(
    equation: _Equation, names: Mapping[Atom, Width], known: Sizes, source: Mapping[Atom, _Equation]
) -> str:
    """Why an axis cannot have its length: the width whose size differs."""
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
    fixed = [reason for atom in leaves(equation.term) for reason in atom.fixed] if width is None else width.fixed
    why = fixed[0] if isinstance(fixed, list) and fixed else fixed
    reason = f", and it cannot be resized: {why}" if why else ""
    whose = "" if width is None else f"width {width.name!r} does not fit: "
    return f"{whose}{where}, not {present}{reason}"
