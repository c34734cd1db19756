"""Rules for operations that change shapes: reshapes, permutations, slices, concatenations, pooling, padding."""

from __future__ import annotations

import math

from ..reasons import Kind
from ..terms import Atom, concatenation, product, size
from .base import cut, dimensions, family, fresh, rule, unknown, unmerge, with_fresh_rest
from .call import Axes, Call, Rule


@rule("as_strided")
def _as_strided(call: Call) -> list[Axes]:
    """Axes with a size and a stride that the input has are the same; others are cut into windows, or all are."""
    x, sizes, strides = call.arguments["self"], list(call.arguments["size"]), call.arguments["stride"]
    axes = call.axes(x)
    if sizes == [size(term) for term in axes]:
        return [axes]  # the same axes with other strides
    if call.arguments["storage_offset"] not in (None, x.storage_offset()):
        return unknown(call)
    places = {pair: axis for axis, pair in enumerate(zip(x.shape, x.stride(), strict=True))}
    found = [places.pop(pair, None) for pair in zip(sizes, strides, strict=True)]
    for axis in places.values():
        call.fix(axes[axis], "cut into windows")
    return [[Atom(length) if axis is None else axes[axis] for axis, length in zip(found, sizes, strict=True)]]


@rule("unsqueeze")
def _unsqueeze(call: Call) -> list[Axes]:
    x = list(call.axes(call.arguments["self"]))
    x.insert(call.arguments["dim"] % (len(x) + 1), Atom(1))
    return [x]


@rule("squeeze")
def _squeeze(call: Call) -> list[Axes]:
    x = call.axes(call.arguments["self"])
    dropped = [axis for axis in dimensions(call, len(x)) if size(x[axis]) == 1]
    for axis in dropped:
        call.fix(x[axis], "an axis of size 1 dropped by squeeze", Kind.SIZE_ONE)
    return [[term for axis, term in enumerate(x) if axis not in dropped]]


@rule("view_as_complex")
def _view_as_complex(call: Call) -> list[Axes]:
    *rest, parts = call.axes(call.arguments["self"])
    call.fix(parts, "the two parts of complex numbers")
    return [rest]


@rule("view_as_real")
def _view_as_real(call: Call) -> list[Axes]:
    return [[*call.axes(call.arguments["self"]), Atom(2)]]


@rule("t", "transpose", "permute")
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


@rule("expand")
def _expand(call: Call) -> list[Axes]:
    x = call.axes(call.arguments["self"])
    shape = call.outputs[0].shape
    result = fresh(shape)
    for back in range(1, len(x) + 1):
        if size(x[-back]) == shape[-back]:
            result[-back] = x[-back]
        else:
            call.fix(x[-back], "a single neuron broadcast over others")
            call.copied(result[-back])
    return [result]


@rule("repeat")
def _repeat(call: Call) -> list[Axes]:
    x = call.axes(call.arguments["self"])
    repeats = call.arguments["repeats"]
    x = [*fresh([1] * (len(repeats) - len(x))), *x]
    return [[term if n == 1 else product([Atom(n), term]) for n, term in zip(repeats, x, strict=True)]]


@rule("cat")
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


@rule("stack")
def _stack(call: Call) -> list[Axes]:
    tensors = call.arguments["tensors"]
    result = list(call.axes(tensors[0]))
    for tensor in tensors[1:]:
        for term, other in zip(result, call.axes(tensor), strict=True):
            call.unify(term, other)
    result.insert(call.arguments["dim"] % (len(result) + 1), Atom(len(tensors)))
    return [result]


@rule("split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes")
def _split(call: Call) -> list[Axes]:
    x = call.axes(call.arguments["self"])
    axis = call.arguments["dim"] % len(x)
    rest = x[axis]
    result = []
    for output in call.outputs:
        length = output.shape[axis]
        part = rest
        if 0 < length < size(rest):
            part, rest = cut(call, rest, length)
        elif length == 0:
            part = Atom(0)
        result.append([part if i == axis else term for i, term in enumerate(x)])
    return result


@rule("slice")
def _slice(call: Call) -> list[Axes]:
    x = list(call.axes(call.arguments["self"]))
    axis = call.arguments["dim"] % len(x)
    length = call.outputs[0].shape[axis]
    if length == size(x[axis]):
        return [x]
    start, step = call.arguments["start"] or 0, call.arguments["step"]
    if length * step == size(x[axis]) and 0 <= start < step:  # each step is a pair, a triple, ...
        x[axis], inner = unmerge(call, x[axis], step)
        call.fix(inner, "sliced with a step")
        return [x]
    if step != 1 or length == 0:
        call.fix(x[axis], "sliced with a step" if length else "sliced to length 0")
        x[axis] = Atom(length)
        return [x]
    start = start + size(x[axis]) if start < 0 else start
    part = cut(call, x[axis], start)[1] if start else x[axis]
    x[axis] = cut(call, part, length)[0] if length < size(part) else part
    return [x]


@rule("select", "unbind")
def _select(call: Call) -> list[Axes]:
    x = list(call.axes(call.arguments["self"]))
    chosen = x.pop(call.arguments["dim"] % len(x))
    call.fix(chosen, "picked by index", Kind.INDEXED)
    return [list(x) for _ in call.outputs]


@rule("_fft_r2c", "_fft_c2r", "_fft_c2c")
def _fft(call: Call) -> list[Axes]:
    x = list(call.axes(call.arguments["self"]))
    for axis in dimensions(call, len(x)):
        call.fix(x[axis], "transformed across")
        x[axis] = Atom(call.outputs[0].shape[axis])
    return [x]


def _pixels(spatial: int) -> Rule:
    """Rule for pooling, padding and resampling, which change only the last `spatial` axes."""

    def rule(call: Call) -> list[Axes]:
        x = call.tensors()[0]
        for term in call.axes(x)[x.ndim - spatial :]:
            call.fix(term, "pooled, padded or resampled")
        return [call.axes(x)[: x.ndim - spatial] + fresh(o.shape[o.ndim - spatial :]) for o in call.outputs]

    return rule


for _spatial in (1, 2, 3):
    _names = r"upsample_\w*|(adaptive_)?(avg|max)_(un)?pool|\w*_pad|grid_sampler_"
    family(rf"_?({_names}){_spatial}d\w*", _pixels(_spatial))


@rule("im2col")
def _im2col(call: Call) -> list[Axes]:
    *batch, channels, height, width = call.axes(call.arguments["self"])
    for term in (height, width):
        call.fix(term, "cut into windows")
    kernel = Atom(math.prod(call.arguments["kernel_size"]))
    return [[*batch, product([channels, kernel]), Atom(call.outputs[0].shape[-1])]]


@rule("col2im")
def _col2im(call: Call) -> list[Axes]:
    *batch, columns, _ = call.axes(call.arguments["self"])
    channels, _ = unmerge(call, columns, math.prod(call.arguments["kernel_size"]))
    return [[*batch, channels, *fresh(call.outputs[0].shape[-2:])]]


@rule("pixel_shuffle", "pixel_unshuffle")
def _pixel_shuffle(call: Call) -> list[Axes]:
    *batch, channels, _, _ = call.axes(call.arguments["self"])
    if call.name == "aten.pixel_shuffle":
        channels, _ = unmerge(call, channels, call.arguments["upscale_factor"] ** 2)
    else:
        channels = product([channels, Atom(call.arguments["downscale_factor"] ** 2)])
    return [[*batch, channels, *fresh(call.outputs[0].shape[-2:])]]


@rule("constant_pad_nd")
def _constant_pad(call: Call) -> list[Axes]:
    x = list(call.axes(call.arguments["self"]))
    pad = call.arguments["pad"]
    for pair in range(len(pad) // 2):
        before, after = pad[2 * pair], pad[2 * pair + 1]
        axis = len(x) - 1 - pair
        if before < 0 or after < 0:
            call.fix(x[axis], "cropped by negative padding")
            x[axis] = Atom(call.outputs[0].shape[axis])
        else:
            x[axis] = concatenation([Atom(before), x[axis], Atom(after)])
    return [x]


@rule("_pack_padded_sequence")
def _pack(call: Call) -> list[Axes]:
    x = call.axes(call.arguments["input"])
    for term in x[:2]:
        call.fix(term, "packed")
    return with_fresh_rest(call, [Atom(call.outputs[0].shape[0]), *x[2:]])


@rule("unfold")
def _unfold(call: Call) -> list[Axes]:
    x = list(call.axes(call.arguments["self"]))
    axis = call.arguments["dimension"] % len(x)
    call.fix(x[axis], "cut into windows")
    x[axis] = Atom(call.outputs[0].shape[axis])
    return [[*x, Atom(call.arguments["size"])]]
