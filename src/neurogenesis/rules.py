"""What each operation says about the axes of its inputs and outputs.

A rule takes a `Call` (one executed ATen operation) and returns the axes of each of its outputs. On the way
it unifies axes that must be the same, states which axes cannot change and why, and says what a parameter's
axis does there: produce neurons, consume them, or carry something per neuron (a norm's scale, a bias).

Operations that work element by element need no rule of their own: torch tags them as pointwise.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from .axes import Atom, Conflict, Term, concatenation, factor, product, size, split

Axes = list[Term]


class Call(Protocol):
    """One executed operation, as a rule sees it."""

    name: str
    arguments: dict[str, Any]  # by the names of the operation's schema, defaults filled in
    outputs: list[Tensor]
    where: str  # the module it ran in, for messages

    def tensors(self) -> list[Tensor]: ...
    def axes(self, tensor: Tensor) -> Axes: ...
    def is_static(self, tensor: Tensor) -> bool: ...  # computed from parameters and buffers alone
    def is_weight(self, tensor: Tensor) -> bool: ...  # a parameter or a view of one
    def unify(self, a: Term, b: Term) -> None: ...
    def fix(self, term: Term, reason: str) -> None: ...
    def misfit(self, term: Term, conflict: Conflict) -> None: ...
    def role(self, tensor: Tensor, axis: int, role: str, fill: str) -> None: ...
    def attribute(self, weight: Tensor | None, name: str, term: Term) -> None: ...


Rule = Callable[[Call], list[Axes]]
_RULES: dict[str, Rule] = {}


def rule_for(operation: torch._ops.OpOverload) -> Rule:
    """The rule of an operation; one that says nothing is known where there is none."""
    name = operation.overloadpacket.__name__
    # In-place operations obey the rule of their functional form: add_ that of add.
    found = _RULES.get(name) or _RULES.get(name.rstrip("_"))
    if found:
        return found
    for pattern, rule in _FAMILIES:
        if pattern.match(name):
            return rule
    return _elementwise if torch.Tag.pointwise in operation.tags else _unknown


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


def _fresh(shape: Sequence[int]) -> Axes:
    return [Atom(length) for length in shape]


def _with_fresh_rest(call: Call, first: Axes) -> list[Axes]:
    return [first, *(_fresh(output.shape) for output in call.outputs[1:])]


def _unknown(call: Call) -> list[Axes]:
    reason = f"used by {call.name}, an operation without a rule, in {call.where}"
    inputs = call.tensors()
    outputs = [_fresh(output.shape) for output in call.outputs]
    if inputs:  # without inputs it is a factory (zeros, arange): new axes that follow what they meet
        for axes in [*map(call.axes, inputs), *outputs]:
            for term in axes:
                call.fix(term, reason)
    return outputs


# --- element by element ----------------------------------------------------------------------------------


def _elementwise(call: Call) -> list[Axes]:
    return [_broadcast(call, call.tensors(), output.ndim) for output in call.outputs]


def _broadcast(call: Call, tensors: Sequence[Tensor], ndim: int) -> Axes:
    result = []
    for axis in range(-ndim, 0):
        terms = [call.axes(tensor)[axis] for tensor in tensors if tensor.ndim >= -axis]
        wide = [term for term in terms if size(term) != 1]
        if wide:
            for term in terms:
                if size(term) == 1:
                    call.fix(term, f"one neuron broadcast over others in {call.where}")
        terms = wide or terms
        for term in terms[1:]:
            call.unify(terms[0], term)
        result.append(terms[0] if terms else Atom(1))
    if not all(map(call.is_static, tensors)):
        shifts = call.name.removeprefix("aten.").rstrip("_") in ("add", "sub", "rsub", "addmm", "baddbmm")
        for tensor in filter(call.is_static, tensors):
            for axis in range(tensor.ndim):
                call.role(tensor, axis, "carrier", "zero" if shifts else "mean")
    return result


@_rule("empty_strided", "new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros")
def _factory(call: Call) -> list[Axes]:
    return [_fresh(output.shape) for output in call.outputs]


_rule(
    "_prelu_kernel", "_to_copy", "alias", "bernoulli", "clone", "copy", "detach", "dropout", "empty_like",
    "fill", "full_like", "hardswish", "lift_fresh", "masked_fill", "native_dropout", "ones_like", "rand_like",
    "randn_like", "where", "zero", "zeros_like",
)(_elementwise)  # fmt: skip


# --- contractions ----------------------------------------------------------------------------------------


def _contract(call: Call, a: Tensor, a_axis: int, b: Tensor, b_axis: int) -> None:
    """Sum over a_axis of a and b_axis of b; the other one of their last two axes is an output's."""
    a_axes, b_axes = call.axes(a), call.axes(b)
    contracted = a_axes[a_axis]
    call.unify(contracted, b_axes[b_axis])
    weights = [(tensor, axis) for tensor, axis in ((b, b_axis), (a, a_axis)) if call.is_weight(tensor)]
    if len(weights) == 2:  # a product of two parameters, such as a low-rank update
        call.role(a, a_axis, "consumer", "zero")
        call.role(b, b_axis, "producer", "random")
        return
    weights = weights or [(t, axis) for t, axis in ((b, b_axis), (a, a_axis)) if call.is_static(t)]
    if not weights:
        call.fix(contracted, f"contracted between two activations (as queries with keys) in {call.where}")
        return
    weight, axis = weights[0]
    call.role(weight, axis, "consumer", "zero")
    for attribute in ("in_features", "nx"):
        call.attribute(weight, attribute, contracted)
    if weight.ndim > 1:
        other = -3 - axis  # of the last two axes the one that is not contracted
        call.role(weight, other, "producer", "random")
        for attribute in ("out_features", "nf"):
            call.attribute(weight, attribute, call.axes(weight)[other])


@_rule("mm", "addmm")
def _mm(call: Call) -> list[Axes]:
    a = call.arguments["mat1" if call.name == "aten.addmm" else "self"]
    b = call.arguments["mat2"]
    _contract(call, a, -1, b, -2)
    return [_plus_bias(call, [call.axes(a)[0], call.axes(b)[1]])]


@_rule("bmm", "baddbmm")
def _bmm(call: Call) -> list[Axes]:
    a = call.arguments["batch1" if call.name == "aten.baddbmm" else "self"]
    b = call.arguments["batch2" if call.name == "aten.baddbmm" else "mat2"]
    _contract(call, a, -1, b, -2)
    batch = call.axes(a)[0]
    call.unify(batch, call.axes(b)[0])
    if not call.is_static(a) and not call.is_static(b):
        call.fix(batch, f"tied to a head count: {call.where} multiplies activations head by head")
    return [_plus_bias(call, [batch, call.axes(a)[1], call.axes(b)[2]])]


@_rule("mv", "dot", "addmv")
def _mv(call: Call) -> list[Axes]:
    a = call.arguments["mat" if call.name == "aten.addmv" else "self"]
    b = call.arguments["tensor" if call.name == "aten.dot" else "vec"]
    _contract(call, a, -1, b, -1)
    return [_plus_bias(call, call.axes(a)[:-1])]


def _plus_bias(call: Call, result: Axes) -> Axes:
    if call.name in ("aten.addmm", "aten.baddbmm", "aten.addmv"):
        bias = call.arguments["self"]
        for term, own in zip(reversed(result), reversed(call.axes(bias)), strict=False):
            if size(own) == size(term):
                call.unify(own, term)
        for axis in range(bias.ndim):
            call.role(bias, axis, "producer", "zero")
    return result


@_rule("convolution")
def _convolution(call: Call) -> list[Axes]:
    x, weight, bias = (call.arguments[name] for name in ("input", "weight", "bias"))
    groups, transposed = call.arguments["groups"], call.arguments["transposed"]
    batched = x.ndim == weight.ndim
    channels = call.axes(x)[1 if batched else 0]
    into, out = (0, 1) if transposed else (1, 0)
    weight_axes = call.axes(weight)
    if not call.is_static(weight):
        call.fix(channels, f"convolved with a computed kernel in {call.where}")
    if groups == 1:
        call.unify(channels, weight_axes[into])
        produced = weight_axes[out]
        call.role(weight, into, "consumer", "zero")
        call.role(weight, out, "producer", "random")
    elif groups == size(channels):  # depthwise: each channel has its own filters and no others
        if transposed:
            call.unify(channels, weight_axes[0])
            produced = product([channels, weight_axes[1]])
        else:
            multiplier = size(weight_axes[0]) // groups
            call.unify(weight_axes[0], product([channels, Atom(multiplier)]))
            produced = weight_axes[0]
        call.attribute(weight, "groups", channels)
        call.role(weight, 0, "carrier", "random")
    else:
        group, group_in = _unmerge(call, channels, size(channels) // groups)
        reason = f"the number of groups of the grouped convolution {call.where}"
        call.fix(group, reason)
        if transposed:
            call.unify(weight_axes[0], channels)
            group_out = weight_axes[1]
        else:
            group_out = Atom(size(weight_axes[0]) // groups)
            call.unify(weight_axes[0], product([group, group_out]))
            call.unify(weight_axes[1], group_in)
        produced = product([group, group_out])
        call.role(weight, into, "consumer", "zero")
        call.role(weight, out, "producer", "random")
    if bias is not None:
        call.unify(bias_axis := call.axes(bias)[0], produced)
        call.role(bias, 0, "producer" if groups != size(channels) or groups == 1 else "carrier", "zero")
        produced = bias_axis
    call.attribute(weight, "in_channels", channels)
    call.attribute(weight, "out_channels", produced)
    spatial = _fresh(call.outputs[0].shape[-(weight.ndim - 2) :])
    return [[*call.axes(x)[:1], produced, *spatial] if batched else [produced, *spatial]]


def _attention(call: Call) -> list[Axes]:
    query, key, value = (call.axes(call.arguments[name]) for name in ("query", "key", "value"))
    call.unify(query[-1], key[-1])
    call.fix(query[-1], f"contracted between two activations (queries with keys) in {call.where}")
    call.unify(key[-2], value[-2])
    call.fix(key[-2], f"a sequence attended over in {call.where}")
    for ours in zip(query[:-2], key[:-2], value[:-2], strict=True):
        for term in ours:
            if size(term) == size(ours[0]):
                call.unify(ours[0], term)
            call.fix(term, f"tied to a head count in {call.where}")
    return _with_fresh_rest(call, [*query[:-1], value[-1]])


@_rule("embedding")
def _embedding(call: Call) -> list[Axes]:
    weight, indices = call.arguments["weight"], call.arguments["indices"]
    call.fix(call.axes(weight)[0], f"rows looked up by index in {call.where}")
    call.role(weight, 1, "producer", "random")
    call.attribute(weight, "embedding_dim", call.axes(weight)[1])
    return [[*call.axes(indices), call.axes(weight)[1]]]


@_rule("_embedding_bag", "_embedding_bag_forward_only")
def _embedding_bag(call: Call) -> list[Axes]:
    weight = call.arguments["weight"]
    call.fix(call.axes(weight)[0], f"rows looked up by index in {call.where}")
    call.role(weight, 1, "producer", "random")
    call.attribute(weight, "embedding_dim", call.axes(weight)[1])
    return _with_fresh_rest(call, [Atom(call.outputs[0].shape[0]), call.axes(weight)[1]])


# --- normalisation and reductions ------------------------------------------------------------------------


def _batch_norm(call: Call) -> list[Axes]:
    x = call.axes(call.arguments["input"])
    # A batch norm without running statistics normalises over every axis but the channels.
    if call.arguments.get("training", False):
        for axis, term in enumerate(x):
            if axis != 1:
                call.fix(term, f"normalised across in {call.where}")
    fills = {"weight": "one", "bias": "zero", "running_mean": "zero", "running_var": "one"}
    for name, fill in fills.items():
        vector = call.arguments.get(name)
        if vector is not None:
            call.unify(x[1], call.axes(vector)[0])
            call.role(vector, 0, "carrier", fill)
    call.attribute(None, "num_features", x[1])
    return _with_fresh_rest(call, x)


@_rule("native_layer_norm", "_fused_rms_norm")
def _layer_norm(call: Call) -> list[Axes]:
    x = call.axes(call.arguments["input"])
    count = len(call.arguments["normalized_shape"])
    for term in x[-count:]:
        call.fix(term, f"normalised across in {call.where}")
    for name in ("weight", "bias"):
        parameter = call.arguments.get(name)
        if parameter is not None:
            for term, own in zip(x[-count:], call.axes(parameter), strict=True):
                call.unify(term, own)
    return _with_fresh_rest(call, x)


@_rule("native_group_norm")
def _group_norm(call: Call) -> list[Axes]:
    x = call.axes(call.arguments["input"])
    call.fix(x[1], f"normalised across in {call.where}")
    for name in ("weight", "bias"):
        if call.arguments[name] is not None:
            call.unify(x[1], call.axes(call.arguments[name])[0])
    return _with_fresh_rest(call, x)


@_rule("_weight_norm_interface")
def _weight_norm(call: Call) -> list[Axes]:
    v, g, axis = (call.arguments[name] for name in ("v", "g", "dim"))
    # The other axes are normed over, which zero entries do not change: they may grow.
    call.unify(call.axes(v)[axis], call.axes(g)[axis])
    return [call.axes(v), call.axes(g)]


def _dimensions(call: Call, ndim: int) -> list[int]:
    given = call.arguments.get("dim", call.arguments.get("dims"))
    if given is None or given == []:
        return list(range(ndim))
    given = [given] if isinstance(given, int) else list(given)
    return [axis % ndim for axis in given] if ndim else []


@_rule(
    "all", "amax", "amin", "any", "argmax", "argmin", "count_nonzero", "linalg_vector_norm", "logsumexp",
    "max", "mean", "median", "min", "nansum", "norm", "prod", "std", "std_mean", "sum", "var", "var_mean",
)  # fmt: skip
def _reduction(call: Call) -> list[Axes]:
    if len(call.tensors()) == 2:  # max(a, b), min(a, b)
        return _elementwise(call)
    x = call.axes(call.tensors()[0])
    reduced = _dimensions(call, len(x))
    for axis in reduced:
        call.fix(x[axis], f"reduced over by {call.name} in {call.where}")
    kept: Axes = [Atom(1) if axis in reduced else term for axis, term in enumerate(x)]
    if len(x) != call.outputs[0].ndim:
        kept = [term for axis, term in enumerate(x) if axis not in reduced]
    return [list(kept) for _ in call.outputs]


@_rule("_softmax", "_safe_softmax", "_log_softmax", "cumsum", "cumprod", "flip", "logcumsumexp", "roll", "sort")
def _across(call: Call) -> list[Axes]:
    x = call.axes(call.tensors()[0])
    verb = "normalised across" if "softmax" in call.name else f"mixed by {call.name}"
    for axis in _dimensions(call, len(x)):
        if size(x[axis]) > 1:
            call.fix(x[axis], f"{verb} in {call.where}")
    return [list(x) for _ in call.outputs]


@_rule("topk")
def _topk(call: Call) -> list[Axes]:
    x = call.axes(call.arguments["self"])
    axis = call.arguments["dim"] % len(x)
    call.fix(x[axis], f"ranked by topk in {call.where}")
    rest = [Atom(call.arguments["k"]) if i == axis else term for i, term in enumerate(x)]
    return [list(rest) for _ in call.outputs]


@_rule("glu")
def _glu(call: Call) -> list[Axes]:
    x = list(call.axes(call.arguments["self"]))
    axis = call.arguments["dim"] % len(x)
    value, gate = _cut(call, x[axis], size(x[axis]) // 2)
    call.unify(value, gate)
    x[axis] = value
    return [x]


# --- pixels ----------------------------------------------------------------------------------------------


def _pixels(spatial: int) -> Rule:
    """Pooling, padding and resampling: the last axes change, whatever stands before them does not."""

    def rule(call: Call) -> list[Axes]:
        x = call.tensors()[0]
        return [call.axes(x)[: x.ndim - spatial] + _fresh(o.shape[o.ndim - spatial :]) for o in call.outputs]

    return rule


_FAMILIES: list[tuple[re.Pattern[str], Rule]] = [
    (re.compile(r"_scaled_dot_product_\w*attention\w*"), _attention),
    (re.compile(r"\w*batch_norm\w*"), _batch_norm),
    *(
        (re.compile(rf"_?(upsample_\w*|(adaptive_)?(avg|max)_pool|\w*_pad|grid_sampler_){n}d\w*"), _pixels(n))
        for n in (1, 2, 3)
    ),
]


@_rule("im2col")
def _im2col(call: Call) -> list[Axes]:
    *batch, channels, _, _ = call.axes(call.arguments["self"])
    kernel = Atom(math.prod(call.arguments["kernel_size"]))
    return [[*batch, product([channels, kernel]), Atom(call.outputs[0].shape[-1])]]


@_rule("col2im")
def _col2im(call: Call) -> list[Axes]:
    *batch, columns, _ = call.axes(call.arguments["self"])
    channels, _ = _unmerge(call, columns, math.prod(call.arguments["kernel_size"]))
    return [[*batch, channels, *_fresh(call.outputs[0].shape[-2:])]]


@_rule("pixel_shuffle", "pixel_unshuffle")
def _pixel_shuffle(call: Call) -> list[Axes]:
    *batch, channels, _, _ = call.axes(call.arguments["self"])
    if call.name == "aten.pixel_shuffle":
        channels, _ = _unmerge(call, channels, call.arguments["upscale_factor"] ** 2)
    else:
        channels = product([channels, Atom(call.arguments["downscale_factor"] ** 2)])
    return [[*batch, channels, *_fresh(call.outputs[0].shape[-2:])]]


@_rule("constant_pad_nd")
def _constant_pad(call: Call) -> list[Axes]:
    x = list(call.axes(call.arguments["self"]))
    pad = call.arguments["pad"]
    for pair in range(len(pad) // 2):
        before, after = pad[2 * pair], pad[2 * pair + 1]
        axis = len(x) - 1 - pair
        if before < 0 or after < 0:
            call.fix(x[axis], f"cut by a negative padding in {call.where}")
            x[axis] = Atom(call.outputs[0].shape[axis])
        else:
            x[axis] = concatenation([Atom(before), x[axis], Atom(after)])
    return [x]


@_rule("unfold")
def _unfold(call: Call) -> list[Axes]:
    x = list(call.axes(call.arguments["self"]))
    axis = call.arguments["dimension"] % len(x)
    call.fix(x[axis], f"cut into windows in {call.where}")
    x[axis] = Atom(call.outputs[0].shape[axis])
    return [[*x, Atom(call.arguments["size"])]]


def _cut(call: Call, term: Term, at: int) -> tuple[Term, Term]:
    """`split`, or two new axes where the term cannot be cut there."""
    return _or_fresh(call, term, (at, size(term) - at), lambda: split(term, at))


def _unmerge(call: Call, term: Term, inner: int) -> tuple[Term, Term]:
    """`factor`, or two new axes where the term cannot be factored so."""
    return _or_fresh(call, term, (size(term) // inner, inner), lambda: factor(term, inner))


def _or_fresh(
    call: Call, term: Term, sizes: tuple[int, int], attempt: Callable[[], tuple[Term, Term]]
) -> tuple[Term, Term]:
    try:
        return attempt()
    except Conflict as conflict:
        pieces = Atom(sizes[0]), Atom(sizes[1])
        for each in (term, *pieces):
            call.misfit(each, conflict)
        return pieces


# --- shapes ----------------------------------------------------------------------------------------------


@_rule("view", "_unsafe_view", "reshape", "_reshape_alias")
def _reshape(call: Call) -> list[Axes]:
    """Walk both shapes from the right; axes of equal size correspond, others are merged and split."""
    old, new = list(call.axes(call.tensors()[0])), list(call.outputs[0].shape)
    if 0 in new:
        return [_fresh(new)]
    result: Axes = []
    while old or new:
        if old and new and size(old[-1]) == new[-1]:
            result.append(old.pop())
            new.pop()
        elif new and new[-1] == 1:
            result.append(Atom(new.pop()))
        elif old and size(old[-1]) == 1:
            call.fix(old.pop(), f"an axis of size 1 that a reshape drops in {call.where}")
        else:
            merged, lengths = [old.pop()], [new.pop()]
            while (excess := math.prod(map(size, merged)) - math.prod(lengths)) != 0:
                if excess < 0:
                    merged.append(old.pop())
                else:
                    lengths.append(new.pop())
            result.extend(_regroup(call, merged[::-1], lengths[::-1])[::-1])
    return [result[::-1]]


def _regroup(call: Call, merged: Axes, lengths: list[int]) -> Axes:
    result: Axes = []
    try:
        rest = product(merged)
        for length in lengths[:0:-1]:
            rest, inner = factor(rest, length)
            result.append(inner)
        return [rest, *result[::-1]]
    except Conflict as conflict:
        result = _fresh(lengths)
        for term in [*merged, *result]:
            call.misfit(term, conflict)
        return result


@_rule("as_strided")
def _as_strided(call: Call) -> list[Axes]:
    x = call.arguments["self"]
    if list(call.arguments["size"]) == [size(term) for term in call.axes(x)]:
        return [call.axes(x)]  # other strides for the same axes
    return _unknown(call)


@_rule("unsqueeze")
def _unsqueeze(call: Call) -> list[Axes]:
    x = list(call.axes(call.arguments["self"]))
    x.insert(call.arguments["dim"] % (len(x) + 1), Atom(1))
    return [x]


@_rule("squeeze")
def _squeeze(call: Call) -> list[Axes]:
    x = call.axes(call.arguments["self"])
    dropped = [axis for axis in _dimensions(call, len(x)) if size(x[axis]) == 1]
    for axis in dropped:
        call.fix(x[axis], f"an axis of size 1 that is squeezed in {call.where}")
    return [[term for axis, term in enumerate(x) if axis not in dropped]]


@_rule("t", "transpose", "permute")
def _permute(call: Call) -> list[Axes]:
    x = call.axes(call.arguments["self"])
    if call.name.rstrip("_") == "aten.permute":
        order = [axis % len(x) for axis in call.arguments["dims"]]
    else:
        order = list(range(len(x)))
        a, b = call.arguments.get("dim0", 0), call.arguments.get("dim1", -1)
        if len(x) > 1:
            order[a], order[b] = order[b], order[a]
    return [[x[axis] for axis in order]]


@_rule("expand")
def _expand(call: Call) -> list[Axes]:
    x = call.axes(call.arguments["self"])
    shape = call.outputs[0].shape
    result = _fresh(shape)
    for back in range(1, len(x) + 1):
        if size(x[-back]) == shape[-back]:
            result[-back] = x[-back]
        else:
            call.fix(x[-back], f"one neuron broadcast over others in {call.where}")
    return [result]


@_rule("repeat")
def _repeat(call: Call) -> list[Axes]:
    x = call.axes(call.arguments["self"])
    repeats = call.arguments["repeats"]
    x = [*_fresh([1] * (len(repeats) - len(x))), *x]
    return [[term if n == 1 else product([Atom(n), term]) for n, term in zip(repeats, x, strict=True)]]


@_rule("cat")
def _cat(call: Call) -> list[Axes]:
    tensors = [tensor for tensor in call.arguments["tensors"] if tensor.shape != (0,)]
    axis = call.arguments["dim"] % tensors[0].ndim
    result = list(call.axes(tensors[0]))
    for tensor in tensors[1:]:
        for other in range(tensor.ndim):
            if other != axis:
                call.unify(result[other], call.axes(tensor)[other])
    result[axis] = concatenation(call.axes(tensor)[axis] for tensor in tensors)
    return [result]


@_rule("stack")
def _stack(call: Call) -> list[Axes]:
    tensors = call.arguments["tensors"]
    result = list(call.axes(tensors[0]))
    for tensor in tensors[1:]:
        for term, other in zip(result, call.axes(tensor), strict=True):
            call.unify(term, other)
    result.insert(call.arguments["dim"] % (len(result) + 1), Atom(len(tensors)))
    return [result]


@_rule("split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes")
def _split(call: Call) -> list[Axes]:
    x = call.axes(call.arguments["self"])
    axis = call.arguments["dim"] % len(x)
    rest = x[axis]
    result = []
    for output in call.outputs:
        length = output.shape[axis]
        part = rest
        if 0 < length < size(rest):
            part, rest = _cut(call, rest, length)
        elif length == 0:
            part = Atom(0)
        result.append([part if i == axis else term for i, term in enumerate(x)])
    return result


@_rule("slice")
def _slice(call: Call) -> list[Axes]:
    x = list(call.axes(call.arguments["self"]))
    axis = call.arguments["dim"] % len(x)
    length = call.outputs[0].shape[axis]
    if length == size(x[axis]):
        return [x]
    if call.arguments["step"] != 1 or length == 0:
        call.fix(x[axis], f"sliced with a step in {call.where}")
        x[axis] = Atom(length)
        return [x]
    start = call.arguments["start"] or 0
    start = start + size(x[axis]) if start < 0 else start
    part = _cut(call, x[axis], start)[1] if start else x[axis]
    x[axis] = _cut(call, part, length)[0] if length < size(part) else part
    return [x]


@_rule("select", "unbind")
def _select(call: Call) -> list[Axes]:
    x = list(call.axes(call.arguments["self"]))
    chosen = x.pop(call.arguments["dim"] % len(x))
    call.fix(chosen, f"picked by index in {call.where}")
    return [list(x) for _ in call.outputs]


@_rule("index_select")
def _index_select(call: Call) -> list[Axes]:
    x = list(call.axes(call.arguments["self"]))
    axis = call.arguments["dim"] % len(x)
    call.fix(x[axis], f"picked by index in {call.where}")
    x[axis] = Atom(call.outputs[0].shape[axis])
    return [x]


@_rule("gather")
def _gather(call: Call) -> list[Axes]:
    x, index = call.axes(call.arguments["self"]), call.axes(call.arguments["index"])
    for term in x:
        call.fix(term, f"picked by index in {call.where}")
    return [list(index)]


@_rule("index")
def _index(call: Call) -> list[Axes]:
    x = call.axes(call.arguments["self"])
    indices = list(call.arguments["indices"])
    if any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices):
        return _unknown(call)
    picked = [axis for axis, index in enumerate(indices) if index is not None]
    for axis in picked:
        call.fix(x[axis], f"picked by index in {call.where}")
    tensors = [indices[axis] for axis in picked]
    chosen = _broadcast(call, tensors, max(index.ndim for index in tensors))
    # Indexed axes that stand together are replaced in place, others move to the front.
    place = picked[0] if picked == list(range(picked[0], picked[-1] + 1)) else 0
    kept = [term for axis, term in enumerate(x) if axis not in picked]
    return [[*kept[:place], *chosen, *kept[place:]]]


def checked(outputs: list[Axes], tensors: Sequence[Tensor]) -> bool:
    """Whether a rule's answer has the shapes that the operation really gave."""
    return len(outputs) == len(tensors) and all(
        [size(term) for term in axes] == list(tensor.shape) for axes, tensor in zip(outputs, tensors, strict=True)
    )
