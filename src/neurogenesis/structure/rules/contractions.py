"""Rules for weighted sums over neurons: matrix products, convolutions, attention, distances."""

from __future__ import annotations

from torch import Tensor

from ..fills import RANDOM, ZERO
from ..reasons import Kind
from ..terms import Atom, Term, product, size
from .base import alike, family, fresh, rule, unmerge, with_fresh_rest
from .call import Axes, Call


def _contract(call: Call, a: Tensor, a_axis: int, b: Tensor, b_axis: int) -> None:
    """Sum over `a_axis` of `a` and `b_axis` of `b`; their other trailing axes become axes of the output."""
    a_axes, b_axes = call.axes(a), call.axes(b)
    contracted = a_axes[a_axis]
    call.unify(contracted, b_axes[b_axis])
    weights = [(tensor, axis) for tensor, axis in ((b, b_axis), (a, a_axis)) if call.is_weight(tensor)]
    if len(weights) == 2 and call.owned(a) != call.owned(b):  # a layer applied to a learned input
        learned, axis = (a, a_axis) if call.owned(b) else (b, b_axis)
        call.role(learned, axis, "producer", RANDOM)
        weights = [pair for pair in weights if pair[0] is not learned]
    if len(weights) == 2:  # a product of two parameters, such as a low-rank update
        call.role(a, a_axis, "consumer", ZERO)
        call.role(b, b_axis, "producer", RANDOM)
        return
    weights = weights or [(t, axis) for t, axis in ((b, b_axis), (a, a_axis)) if call.is_static(t)]
    if not weights:
        call.fix(contracted, "contracted between two activations (such as queries with keys)", Kind.CONTRACTED)
        return
    weight, axis = weights[0]
    call.role(weight, axis, "consumer", ZERO)
    for attribute in ("in_features", "nx"):
        call.attribute(weight, attribute, contracted)
    if weight.ndim > 1:
        other = -3 - axis  # the other one of the last two axes
        call.role(weight, other, "producer", RANDOM)
        for attribute in ("out_features", "nf"):
            call.attribute(weight, attribute, call.axes(weight)[other])


@rule("mm", "addmm")
def _mm(call: Call) -> list[Axes]:
    a = call.arguments["mat1" if call.name == "aten.addmm" else "self"]
    b = call.arguments["mat2"]
    _contract(call, a, -1, b, -2)
    return [_plus_bias(call, [call.axes(a)[0], call.axes(b)[1]])]


@rule("bmm", "baddbmm")
def _bmm(call: Call) -> list[Axes]:
    a = call.arguments["batch1" if call.name == "aten.baddbmm" else "self"]
    b = call.arguments["batch2" if call.name == "aten.baddbmm" else "mat2"]
    _contract(call, a, -1, b, -2)
    batch = call.axes(a)[0]
    call.unify(batch, call.axes(b)[0])
    if not call.is_static(a) and not call.is_static(b):
        call.counts(batch, "heads")
    return [_plus_bias(call, [batch, call.axes(a)[1], call.axes(b)[2]])]


@rule("_grouped_mm")
def _grouped_mm(call: Call) -> list[Axes]:
    """Each group of rows times a matrix of its own; the kernel takes sizes in multiples of 16 bytes only."""
    a, b = call.arguments["self"], call.arguments["mat2"]
    for tensor in (a, b):
        for term in call.axes(tensor)[-2:]:
            call.fix(term, f"a size that {call.name} takes in multiples of 16 bytes only", Kind.ALIGNED)
    rows, columns = call.axes(a)[-2], call.axes(b)[-1]
    call.unify(call.axes(a)[-1], call.axes(b)[-2])
    groups = [] if a.ndim != b.ndim else call.axes(a)[:1] if a.ndim == 3 else [Atom(call.outputs[0].shape[0])]
    return [[*groups, rows, columns]]


@rule("mv", "dot", "vdot", "addmv")
def _mv(call: Call) -> list[Axes]:
    a, b = call.tensors()[-2:]
    _contract(call, a, -1, b, -1)
    return [_plus_bias(call, call.axes(a)[:-1])]


def _plus_bias(call: Call, result: Axes) -> Axes:
    if call.name in ("aten.addmm", "aten.baddbmm", "aten.addmv"):
        bias = call.arguments["self"]
        for term, own in zip(reversed(result), reversed(call.axes(bias)), strict=False):
            if size(own) == size(term):
                call.unify(own, term)
        for axis in range(bias.ndim):
            call.role(bias, axis, "producer", ZERO)
    return result


@rule("convolution")
def _convolution(call: Call) -> list[Axes]:
    x, weight, bias = (call.arguments[name] for name in ("input", "weight", "bias"))
    groups, transposed = call.arguments["groups"], call.arguments["transposed"]
    batched = x.ndim == weight.ndim
    channels = call.axes(x)[1 if batched else 0]
    into, out = (0, 1) if transposed else (1, 0)
    weight_axes = call.axes(weight)
    if not call.is_static(weight):
        call.fix(channels, "convolved with a computed kernel")
    if groups == 1:
        call.unify(channels, weight_axes[into])
        produced = weight_axes[out]
        call.role(weight, into, "consumer", ZERO)
        call.role(weight, out, "producer", RANDOM)
    elif groups == size(channels):  # depthwise: each channel has its own filters
        if transposed:
            call.unify(channels, weight_axes[0])
            produced = product([channels, weight_axes[1]])
        else:
            multiplier = size(weight_axes[0]) // groups
            call.unify(weight_axes[0], product([channels, Atom(multiplier)]))
            produced = weight_axes[0]
        call.attribute(weight, "groups", channels)
        call.role(weight, 0, "carrier", RANDOM)
    else:
        group, group_in = unmerge(call, channels, size(channels) // groups)
        call.fix(group, "the number of groups of a grouped convolution", Kind.GROUPS)
        if transposed:
            call.unify(weight_axes[0], channels)
            group_out = weight_axes[1]
        else:
            group_out = Atom(size(weight_axes[0]) // groups)
            call.unify(weight_axes[0], product([group, group_out]))
            call.unify(weight_axes[1], group_in)
        produced = product([group, group_out])
        call.role(weight, into, "consumer", ZERO)
        call.role(weight, out, "producer", RANDOM)
    if bias is not None:
        call.unify(bias_axis := call.axes(bias)[0], produced)
        call.role(bias, 0, "producer" if groups != size(channels) or groups == 1 else "carrier", ZERO)
        produced = bias_axis
    if groups == 1 or groups != size(channels):
        call.counts(produced, "channels")
    call.attribute(weight, "in_channels", channels)
    call.attribute(weight, "out_channels", produced)
    spatial = fresh(call.outputs[0].shape[-(weight.ndim - 2) :])
    for axis, term in enumerate(call.axes(x)[-(weight.ndim - 2) :]):
        if weight.shape[2 + axis] == 1 and size(term) == size(spatial[axis]):
            spatial[axis] = term  # a kernel of size 1 leaves positions apart
        else:
            call.fix(term, "convolved over")
    return [[*call.axes(x)[:1], produced, *spatial] if batched else [produced, *spatial]]


def _attention(call: Call) -> list[Axes]:
    query, key, value = (call.axes(call.arguments[name]) for name in ("query", "key", "value"))
    call.unify(query[-1], key[-1])
    call.fix(query[-1], "contracted between two activations (queries with keys)", Kind.CONTRACTED)
    call.unify(key[-2], value[-2])
    call.fix(key[-2], "a sequence attended over")
    for wide, *terms in zip(query[:-2], key[:-2], value[:-2], strict=True):
        for term in terms:
            if size(term) == size(wide):
                _unify_heads(call, wide, term)
            elif size(term) == 1:
                call.fix(term, "one head of keys for all of queries", Kind.HEADS)
            else:  # several heads of queries share one of keys
                shared = Atom(size(wide) // size(term))
                call.fix(shared, "the number of query heads per key head", Kind.HEADS)
                call.unify(wide, product([term, shared]))
        call.counts(wide, "heads")
    bias = call.arguments.get("attn_mask", call.arguments.get("attn_bias"))
    if bias is not None:
        for term, own in zip(reversed([*query[:-1], key[-2]]), reversed(call.axes(bias)), strict=False):
            if size(own) == size(term):
                _unify_heads(call, term, own)
    return with_fresh_rest(call, [*query[:-1], value[-1]])


def _unify_heads(call: Call, heads: Term, other: Term) -> None:
    if size(heads) > 1 or len(alike([heads, other])) == 2:
        call.unify(heads, other)


@rule("_cdist_forward")
def _distances(call: Call) -> list[Axes]:
    a, b = call.arguments["x1"], call.arguments["x2"]
    call.unify(call.axes(a)[-1], call.axes(b)[-1])
    call.fix(call.axes(a)[-1], "summed over by a distance")
    for tensor, other in ((a, b), (b, a)):
        if call.is_static(tensor) and not call.is_static(other):
            call.role(tensor, -2, "producer", RANDOM)
    return [[*call.axes(a)[:-1], call.axes(b)[-2]]]


family(r"_scaled_dot_product_\w*attention\w*", _attention)
