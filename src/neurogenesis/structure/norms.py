r"""Norms across an axis, given as one operation or written out in Python: what makes up for another size of the axis.

With n' instead of n entries, of which the new ones are normalized to zero, the second moment is n / n' times as large.
The other outputs stay if epsilon is multiplied by n / n', and the gain by :math:`\sqrt{n / n'}`. New entries are
normalized to zero if they are zero themselves (RMSNorm) or the mean of the present ones (LayerNorm).

A norm that is written out is recognized step by step: `value_of` says what each result is in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from .fills import MEAN, ZERO, Fill
from .labels import Label, Norm, Value
from .rules import Call


def value_of(call: Call, labels: Sequence[Label], norm: Norm | None) -> Value | None:
    """What the result of an operation is in a norm; marks norms as broken whose results are used otherwise.

    Args:
        call: the operation.
        labels: of its inputs.
        norm: the norm that a reduction may belong to.
    """
    found = _step(call, labels, norm)
    if call.name.removeprefix("aten.") not in _KEEPING:
        mark_read(labels)
    if found is None:
        for label in labels:
            value = label.value
            if value is not None and value.norm is not None:
                value.norm.broken |= not _divides(call, labels)
    return found


def mark_read(labels: Iterable[Label]) -> None:
    """Mark the norms whose results these are as read."""
    for label in labels:
        if label.value is not None and label.value.norm is not None:
            label.value.norm.read = True


def _step(call: Call, labels: Sequence[Label], norm: Norm | None) -> Value | None:
    name = call.name.removeprefix("aten.")
    if not labels or labels[0].static:
        return None
    first, value = labels[0], labels[0].value
    if name in _KEEPING:
        return value
    if norm is not None:
        return _reduced(call, name, first, norm)
    if name == "sub" and len(labels) == 2:
        mean = labels[1].value
        if mean is not None and mean.kind == "mean" and mean.of is first.origin and call.arguments["alpha"] == 1:
            return Value("centered", first.origin, first, None, True, mean.norm)
    if name == "pow" and call.arguments.get("exponent") == 2:
        return _square(first)
    if name == "mul" and len(labels) == 2 and first.origin is labels[1].origin:
        return _square(first)
    if value is None or value.norm is None or len(labels) > 1:
        return None
    if name == "add" and value.kind in ("moment", "root") and isinstance(call.arguments["other"], int | float):
        power = (1 if value.kind == "moment" else 0.5) * (value.norm.power > 0)
        call.compensate(float(call.arguments["other"]), value.norm.term, power, minus=value.norm.minus)
        return value
    if name == "clamp_min" and not value.norm.power:
        return value
    to = {"sqrt": {"moment": "root"}, "rsqrt": {"moment": "inverse"}, "reciprocal": {"root": "inverse"}}
    if name == "pow":
        to["pow"] = {"moment": {0.5: "root", -0.5: "inverse"}.get(call.arguments.get("exponent"), "")}  # type: ignore[arg-type]
    kind = to.get(name, {}).get(value.kind)
    return replace(value, kind=kind) if kind else None  # type: ignore[arg-type]


def output_of(value: Value | None, operation: str, number: int) -> Value | None:
    """What an output of an operation is, of which `value` is the first."""
    if operation == "aten.var_mean" and number == 1 and value is not None:
        return replace(value, kind="mean")
    return value


def _square(label: Label) -> Value:
    value = label.value
    if value is not None and value.kind == "centered":  # which may be computed once more for the division
        return replace(value, kind="square")
    return Value("square", label.origin, label)


def _reduced(call: Call, name: str, first: Label, norm: Norm) -> Value | None:
    value = first.value
    norm.averages = name == "mean" or (name in ("var", "std", "var_mean") and call.arguments.get("correction") == 0)
    if name == "mean":
        if value is not None and value.kind == "square":
            if value.mean is not None:
                value.mean.within = norm
            return replace(value, kind="moment", norm=norm)
        return Value("mean", first.origin, first, norm)
    if name == "linalg_vector_norm":
        norm.power = 0.0
        if value is not None and value.kind == "centered":
            if value.mean is not None:
                value.mean.within = norm
            return replace(value, kind="root", norm=norm)
        return Value("root", first.origin, first, norm)
    norm.minus = int(call.arguments.get("correction", 1) or 0)
    return Value("root" if name == "std" else "moment", first.origin, first, norm, True)


def _divides(call: Call, labels: Sequence[Label]) -> bool:
    return divided_by(call, labels) is not None


def divided_by(call: Call, labels: Sequence[Label]) -> Value | None:
    """The root, or its inverse, that an operation divides the activations by that it was computed of, if it does."""
    if len(labels) != 2:
        return None
    pairs = {"aten.mul": [(0, 1, "inverse"), (1, 0, "inverse")], "aten.div": [(0, 1, "root")]}.get(call.name, [])
    for x, by, kind in pairs:
        value, own = labels[by].value, labels[x].value
        if value is None or value.kind != kind or value.norm is None:
            continue
        same = value.of is labels[x].origin
        if value.centered and value.of is value.base.origin:  # of a variance: what is divided must be centered
            same = own is not None and own.kind == "centered" and own.of is value.of
        if same:
            return value
    return None


def fill_of(value: Value) -> Fill:
    """What new entries in front of the norm must be."""
    return MEAN if value.centered else ZERO


_KEEPING = set(
    "_to_copy _unsafe_view alias clone detach expand permute reshape squeeze t transpose unsqueeze view".split()
)
