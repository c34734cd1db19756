"""Derive the labels of outputs from those of inputs: which parameters they depend on, which zeros make them zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .calls import OperationCall
from .labels import Label, Maker, Norm
from .norms import divided_by, fill_of, value_of
from .terms import Term, resolve, shares


def derived(call: OperationCall, labels: Sequence[Label]) -> Label:
    """The label of the outputs of an operation, but for their axes, from the labels of its inputs."""
    static = all(label.static for label in labels)
    zero_lost_in = next((label.zero_lost_in for label in labels if label.zero_lost_in), None)
    if call.name not in _ZERO_PRESERVING and not call.keeps_values:
        zero_lost_in = zero_lost_in or call.name
    weight = call.keeps_values and all(label.weight for label in labels)
    result = Label(
        [],
        static,
        frozenset[str]().union(*(label.sources for label in labels)) if static else frozenset[str](),
        _zero_sources(call, labels),
        weight=weight,
        zero_lost_in=zero_lost_in,
        shift=_shift(call, labels[0]) if static and len(labels) == 1 else 0.0,
    )
    if static:
        return result
    if call.name.endswith("_like") or all(label.static or label.noise for label in labels):
        return replace(result, noise=True)
    value, (norms, scaled) = value_of(call, labels, call.reduction), _norms(call, labels)
    origin = labels[0].origin if call.name in _SAME_VALUES else object()
    return replace(result, value=value, norms=norms, scaled=scaled, makers=_makers(call, labels), origin=origin)


def _shift(call: OperationCall, label: Label) -> float:
    """What has been added to a parameter so far; 0 if it was computed otherwise."""
    if call.keeps_values:
        return label.shift
    number = call.arguments.get("other")
    if call.name == "aten.add" and label.weight and isinstance(number, int | float) and call.arguments["alpha"] == 1:
        return float(number)
    return 0.0


def _norms(call: OperationCall, labels: Sequence[Label]) -> tuple[frozenset[Norm], frozenset[Norm]]:
    """The norms whose output this is, and those with a gain so far; completes those that are written out."""
    divided = divided_by(call, labels)
    if divided is not None and divided.norm is not None:
        norm = divided.norm
        norm.divided, norm.scaled = True, norm.scaled or not norm.power
        call.fill_new(divided.base, norm.term, fill_of(divided))
        return frozenset([norm]), frozenset[Norm]()
    if call.completed:
        return frozenset(call.completed), frozenset(call.completed)
    active = [label for label in labels if not label.static]
    norms = frozenset[Norm]().union(*(label.norms for label in active))
    if norms and call.name in _FLAT:
        call.flat(norms)
    if not norms or not (_is_linear(call) or call.name in _KEEPING_ZEROS) or _contracted(call):
        _keep_queries_from_zero(call, labels)
        return frozenset(), frozenset()
    scaled = frozenset[Norm]().union(*(label.scaled for label in active))
    if call.name in ("aten.add", "aten.sub"):
        for norm in norms:
            norm.shifted |= any(
                label.weight and any(shares(norm.term, term) for term in label.axes) for label in labels
            )
    if call.name in ("aten.mul", "aten.div"):
        for label, tensor in zip(labels, call.tensors(), strict=True):
            along = [norm for norm in norms if label.static and any(shares(norm.term, term) for term in label.axes)]
            own = [norm for norm in along if norm not in scaled and call.name == "aten.mul"]
            scaled |= frozenset(own)
            for norm in own:
                call.compensate(tensor, norm.term, norm.power, minus=norm.minus)
                call.attribute(tensor, "normalized_shape", (norm.term,))
                norm.scaled = True

    def covers(label: Label, norm: Norm) -> bool:
        """Whether the entries along the axis of a norm come from a norm, if there are any."""
        along = any(shares(norm.term, term) for term in label.axes)
        return not along or any(shares(norm.term, other.term) for other in label.norms)

    kept = frozenset(norm for norm in norms if all(covers(label, norm) for label in active))
    return kept, kept & scaled


def _keep_queries_from_zero(call: OperationCall, labels: Sequence[Label]) -> None:
    """Copy entries that norms would leave at zero in both factors of a product: neither would get a gradient."""
    if len(labels) > 1 and not (labels[0].static or labels[1].static) and not call.name.endswith(("mul", "add")):
        both = [(a, b) for a in labels[0].norms for b in labels[1].norms if shares(a.term, b.term)]
        for norm in dict.fromkeys(norm for pair in both for norm in pair):
            call.copy(norm.term, f"normalized across in {norm.where}, which would leave new queries and keys at zero")


def _makers(call: OperationCall, labels: Sequence[Label]) -> frozenset[Maker]:
    """What the entries of activations come from."""
    ended = call.completed or [each.norm for each in [divided_by(call, labels)] if each is not None and each.norm]
    if ended:
        return frozenset(Maker(frozenset(), norm.term, None) for norm in ended)
    contracted = _contracted(call)
    produced = {Maker(each.sources, each.term, each.stride) for each in call.recorded if each.role == "producer"}
    found = set(produced)
    products = call.name in ("aten.mul", "aten.div")
    kept, other = (_zero_factor(labels) if call.name == "aten.mul" else None) or (None, frozenset[str]())
    for label, tensor in zip(labels, call.tensors(), strict=True):
        if kept is not None and label is not kept:
            continue
        if not label.static:
            others = [other for other in labels if other is not label] if products else []
            found |= {
                _passed_on(maker, call, others)
                for maker in label.makers
                if not any(shares(maker.term, term) for term in contracted)
            }
            if not other.isdisjoint(frozenset[str]().union(*(maker.sources for maker in label.makers))):
                found = {replace(maker, twice=True) for maker in found}
        elif label.sources and not products and not contracted and not produced and _is_linear(call):
            strides = tensor.stride() if call.is_view_of_parameter(tensor) else [None] * tensor.ndim
            found |= {
                Maker(label.sources, term, stride)
                for term, stride, length in zip(label.axes, strides, tensor.shape, strict=True)
                if length > 1
            }
    return frozenset(found)


def _zero_factor(labels: Sequence[Label]) -> tuple[Label, frozenset[str]] | None:
    """The factor of a product of activations that is to be zero, and what makes the other one.

    If both were zero, neither would get a gradient.
    """
    if len(labels) != 2 or not all(any(maker.sources for maker in label.makers) for label in labels):
        return None
    fitting = [label for label in labels if all(maker.zero for maker in label.makers)]
    if not fitting or not _same_axes(*labels):
        return None
    others = (maker.sources for label in labels if label is not fitting[-1] for maker in label.makers)
    return fitting[-1], frozenset[str]().union(*others)


def _same_axes(a: Label, b: Label) -> bool:
    """Whether the last axes of two activations are the same, so that zeros of one meet entries of the other."""
    return bool(a.axes and b.axes) and resolve(a.axes[-1]) == resolve(b.axes[-1])


def _passed_on(maker: Maker, call: OperationCall, factors: Sequence[Label]) -> Maker:
    """A maker behind an operation, which is a product with `factors` if there are any."""
    factors = [label for label in factors if not label.noise]  # such as the mask of a dropout
    along = [label for label in factors if any(shares(maker.term, term) for term in label.axes)]
    if not _is_linear(call) or any(not label.static for label in along) or (along and call.name == "aten.div"):
        keeps = call.name in ("aten.mul", "aten.div") or _is_linear(call) or call.name in _KEEPING_ZEROS
        return replace(maker, linear=False, zero=maker.zero and keeps)
    return replace(maker, factors=maker.factors.union(*(label.sources for label in along))) if along else maker


def _contracted(call: OperationCall) -> list[Term]:
    """The axes that an operation sums over with a weight."""
    return [each.term for each in call.recorded if each.role == "consumer"]


def _is_linear(call: OperationCall) -> bool:
    """Whether an operation maps each entry along an axis linearly, and all in the same way but for a product."""
    return call.keeps_values or bool(_contracted(call)) or call.name.removeprefix("aten.") in _LINEAR


def _zero_sources(call: OperationCall, labels: Sequence[Label]) -> frozenset[str]:
    """The sources that must be zero for the result to be zero."""
    candidates = [(label, tensor) for label, tensor in zip(labels, call.tensors(), strict=True) if label.sources]
    if call.name == "aten.mul" and candidates:
        # One zero factor is enough; if both were zero, neither would get a gradient.
        return max(candidates, key=lambda pair: (pair[0].weight, pair[1].ndim))[0].zeros
    return frozenset[str]().union(*(label.zeros for label, _ in candidates))


# Operations that map zeros to zeros with a nonzero gradient; for products, one zero factor is enough.
_ZERO_PRESERVING = {
    f"aten.{name}"
    for name in (
        "_to_copy _unsafe_view _weight_norm_interface add addmm atan baddbmm bmm cat clone constant_pad_nd "
        "convolution copy detach div dot flip gather index index_select masked_fill mean mm mul mv neg repeat roll "
        "rsub sin stack sub sum tanh where"
    ).split()
}

# Operations that treat all entries along an axis alike, and linearly.
_LINEAR = set(
    "_to_copy _unsafe_view add addmm avg_pool1d avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d bmm "
    "cat clone constant_pad_nd copy detach div dropout flip gather index index_put index_select masked_fill mean mul "
    "native_dropout neg repeat roll rsub select_scatter slice_scatter stack sub sum upsample_bilinear2d "
    "upsample_nearest2d where".split()
)
# Other operations on single entries that map zero to zero with a nonzero gradient, and those where it is zero.
_KEEPING_ZEROS = {f"aten.{name}" for name in "atan elu erf gelu hardswish leaky_relu mish silu sin tanh".split()}
_FLAT = {f"aten.{name}" for name in "hardtanh relu relu6 rrelu_with_noise threshold".split()}
_SAME_VALUES = {"aten._to_copy", "aten.alias", "aten.clone", "aten.detach"}
