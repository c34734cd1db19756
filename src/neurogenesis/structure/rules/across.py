"""Rules for operations that combine the entries of an axis: norms, reductions, softmax, ranking, gates."""

from __future__ import annotations

import torch

from ..fills import COPY, MEAN, ONE, SHIFT, ZERO, Fill
from ..reasons import Kind
from ..terms import Atom, Term, concatenation, size
from .base import cut, dimensions, elementwise, family, fresh, rule, unmerge, with_fresh_rest
from .call import Axes, Call


def _batch_norm(call: Call) -> list[Axes]:
    x = call.axes(call.arguments["input"])
    # A batch norm without running statistics normalizes over every axis except the channels.
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
    x = call.arguments["input"]
    axes, count = call.axes(x), len(call.arguments["normalized_shape"])
    weight, bias = call.arguments.get("weight"), call.arguments.get("bias")
    for parameter, fill in ((weight, ONE), (bias, ZERO)):
        if parameter is not None:
            for axis, (term, own) in enumerate(zip(axes[-count:], call.axes(parameter), strict=True)):
                call.unify(term, own)
                call.role(parameter, axis, "carrier", fill)
    if count > 1 or call.is_static(x):
        what = "normalized across together with other axes" if count > 1 else "a parameter that is normalized across"
        for term in axes[-count:]:
            call.fix(term, what, Kind.NORMALIZED)
    elif weight is None:
        call.new_entries(x, -1, COPY)  # there is no gain that could make up for another size
        call.attribute(x, "normalized_shape", (axes[-1],))
    else:
        call.new_entries(x, -1, MEAN if call.name == "aten.native_layer_norm" else ZERO)
        call.compensate(weight, axes[-1], 1 / 2)
        call.compensate(call.arguments["eps"] or torch.finfo(x.dtype).eps, axes[-1], 1)
        call.attribute(weight, "normalized_shape", (axes[-1],))
    return with_fresh_rest(call, axes)


@rule("native_group_norm")
def _group_norm(call: Call) -> list[Axes]:
    x, number = list(call.axes(call.arguments["input"])), call.arguments["group"]
    groups: Term | None = None
    if number == 1:
        call.new_entries(call.arguments["input"], 1, COPY)
    else:
        groups, within = unmerge(call, x[1], size(x[1]) // number)
        call.fix(within, "the channels of a group, which are normalized together,", Kind.GROUPS)
        call.counts(groups, "groups")
    for name, fill in (("weight", ONE), ("bias", ZERO)):
        parameter = call.arguments[name]
        if parameter is not None:
            call.unify(x[1], call.axes(parameter)[0])
            call.role(parameter, 0, "carrier", fill)
            call.attribute(parameter, "num_channels", x[1])
            if groups is not None:
                call.attribute(parameter, "num_groups", groups)
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
    if len(reduced) == 1 and call.name.removeprefix("aten.") in (
        "linalg_vector_norm",
        "mean",
        "std",
        "var",
        "var_mean",
    ):
        call.reduced(call.tensors()[0], reduced[0])
    else:
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


@rule("_thnn_fused_lstm_cell", "_thnn_fused_gru_cell")
def _gates(call: Call) -> list[Axes]:
    """The gates of a recurrent layer on a GPU: blocks of the last axis, one entry of each per neuron."""
    state = call.axes(call.arguments["cx" if "lstm" in call.name else "hx"])
    neurons = state[-1]
    for name in ("input_gates", "hidden_gates", "input_bias", "hidden_bias"):
        tensor = call.arguments[name]
        if tensor is None:
            continue
        term = call.axes(tensor)[-1]
        call.unify(term, concatenation([neurons] * (size(term) // size(neurons))))
        if tensor.ndim == 1:
            call.role(tensor, 0, "carrier", SHIFT)
    states = len(call.outputs) - 1  # the last output is for the backward pass
    return [*([list(state)] * states), fresh(call.outputs[-1].shape)]


family(r"\w*batch_norm\w*", _batch_norm)
