"""Rules of what layers do: contract with weights, look up, attend, normalise, reduce."""

from __future__ import annotations

from torch import Tensor

from ..fills import ONE, RANDOM, ZERO, Fill
from ..reasons import Kind
from ..terms import Atom, product, size
from .base import Axes, Call, cut, dimensions, elementwise, family, fresh, rule, unmerge, with_fresh_rest


def _contract(call: Call, a: Tensor, a_axis: int, b: Tensor, b_axis: int) -> None:
    """Sum over a_axis of a and b_axis of b; the other one of their last two axes is an output's."""
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
        call.fix(contracted, "contracted between two activations (as queries with keys)")
        return
    weight, axis = weights[0]
    call.role(weight, axis, "consumer", ZERO)
    for attribute in ("in_features", "nx"):
        call.attribute(weight, attribute, contracted)
    if weight.ndim > 1:
        other = -3 - axis  # of the last two axes the one that is not contracted
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
        call.fix(batch, "tied to a head count: activations are multiplied head by head", Kind.HEADS)
    return [_plus_bias(call, [batch, call.axes(a)[1], call.axes(b)[2]])]


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
    elif groups == size(channels):  # depthwise: each channel has its own filters and no others
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
    call.attribute(weight, "in_channels", channels)
    call.attribute(weight, "out_channels", produced)
    for term in call.axes(x)[-(weight.ndim - 2) :]:
        call.fix(term, "convolved over")
    spatial = fresh(call.outputs[0].shape[-(weight.ndim - 2) :])
    return [[*call.axes(x)[:1], produced, *spatial] if batched else [produced, *spatial]]


def _attention(call: Call) -> list[Axes]:
    query, key, value = (call.axes(call.arguments[name]) for name in ("query", "key", "value"))
    call.unify(query[-1], key[-1])
    call.fix(query[-1], "contracted between two activations (queries with keys)")
    call.unify(key[-2], value[-2])
    call.fix(key[-2], "a sequence attended over")
    for ours in zip(query[:-2], key[:-2], value[:-2], strict=True):
        for term in ours:
            if size(term) == size(ours[0]):
                call.unify(ours[0], term)
            call.fix(term, "tied to a head count", Kind.HEADS)
    return with_fresh_rest(call, [*query[:-1], value[-1]])


@rule("_cdist_forward")
def _distances(call: Call) -> list[Axes]:
    a, b = call.arguments["x1"], call.arguments["x2"]
    call.unify(call.axes(a)[-1], call.axes(b)[-1])
    call.fix(call.axes(a)[-1], "measured across by a distance")
    for tensor, other in ((a, b), (b, a)):
        if call.is_static(tensor) and not call.is_static(other):
            call.role(tensor, -2, "producer", RANDOM)
    return [[*call.axes(a)[:-1], call.axes(b)[-2]]]


def _batch_norm(call: Call) -> list[Axes]:
    x = call.axes(call.arguments["input"])
    # A batch norm without running statistics normalises over every axis but the channels.
    if call.arguments.get("training", False):
        for axis, term in enumerate(x):
            if axis != 1:
                call.fix(term, "normalized across", Kind.NORMALIZED)
    fills = {
        "weight": ONE,
        "bias": ZERO,
        "running_mean": Fill("zero", statistic=True),
        "running_var": Fill("one", statistic=True),
    }
    for name, fill in fills.items():
        vector = call.arguments.get(name)
        if vector is not None:
            call.unify(x[1], call.axes(vector)[0])
            call.role(vector, 0, "carrier", fill)
    return with_fresh_rest(call, x)


@rule("native_layer_norm", "_fused_rms_norm")
def _layer_norm(call: Call) -> list[Axes]:
    x = call.axes(call.arguments["input"])
    count = len(call.arguments["normalized_shape"])
    for term in x[-count:]:
        call.fix(term, "normalized across", Kind.NORMALIZED)
    for name in ("weight", "bias"):
        parameter = call.arguments.get(name)
        if parameter is not None:
            for term, own in zip(x[-count:], call.axes(parameter), strict=True):
                call.unify(term, own)
    return with_fresh_rest(call, x)


@rule("native_group_norm")
def _group_norm(call: Call) -> list[Axes]:
    x = call.axes(call.arguments["input"])
    call.fix(x[1], "normalized across", Kind.NORMALIZED)
    for name in ("weight", "bias"):
        if call.arguments[name] is not None:
            call.unify(x[1], call.axes(call.arguments[name])[0])
    return with_fresh_rest(call, x)


@rule("_weight_norm_interface")
def _weight_norm(call: Call) -> list[Axes]:
    v, g, axis = (call.arguments[name] for name in ("v", "g", "dim"))
    call.unify(call.axes(v)[axis], call.axes(g)[axis])
    call.normed(v, axis)
    return [call.axes(v), call.axes(g)]


@rule(
    "all", "amax", "amin", "any", "argmax", "argmin", "count_nonzero", "linalg_vector_norm", "logsumexp",
    "max", "mean", "median", "min", "nansum", "norm", "prod", "std", "std_mean", "sum", "var", "var_mean",
)  # fmt: skip
def _reduction(call: Call) -> list[Axes]:
    if len(call.tensors()) == 2:  # max(a, b), min(a, b)
        return elementwise(call)
    x = call.axes(call.tensors()[0])
    reduced = dimensions(call, len(x))
    for axis in reduced:
        call.fix(x[axis], f"reduced over by {call.name}")
    kept: Axes = [Atom(1) if axis in reduced else term for axis, term in enumerate(x)]
    if len(x) != call.outputs[0].ndim:
        kept = [term for axis, term in enumerate(x) if axis not in reduced]
    return [list(kept) for _ in call.outputs]


@rule("_softmax", "_safe_softmax", "_log_softmax", "cumsum", "cumprod", "flip", "logcumsumexp", "roll", "sort")
def _across(call: Call) -> list[Axes]:
    x = call.axes(call.tensors()[0])
    softmax = "softmax" in call.name
    for axis in dimensions(call, len(x)):
        if size(x[axis]) > 1:
            call.fix(
                x[axis],
                "normalized across by softmax" if softmax else f"mixed by {call.name}",
                Kind.NORMALIZED if softmax else Kind.OPERATION,
            )
    return [list(x) for _ in call.outputs]


@rule("topk")
def _topk(call: Call) -> list[Axes]:
    x = call.axes(call.arguments["self"])
    axis = call.arguments["dim"] % len(x)
    call.fix(x[axis], "ranked by topk")
    rest = [Atom(call.arguments["k"]) if i == axis else term for i, term in enumerate(x)]
    return [list(rest) for _ in call.outputs]


@rule("glu")
def _glu(call: Call) -> list[Axes]:
    x = list(call.axes(call.arguments["self"]))
    axis = call.arguments["dim"] % len(x)
    value, gate = cut(call, x[axis], size(x[axis]) // 2)
    call.unify(value, gate)
    x[axis] = value
    return [x]


family(r"_scaled_dot_product_\w*attention\w*", _attention)
family(r"\w*batch_norm\w*", _batch_norm)
