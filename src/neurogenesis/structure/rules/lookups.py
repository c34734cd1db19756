"""Rules for reading and writing by index: embeddings, gather and scatter, masks."""

from __future__ import annotations

import torch
from torch import Tensor

from ..fills import RANDOM, Fill
from ..reasons import Kind
from ..terms import Atom, Term, size
from .base import broadcast, cut, rule, with_fresh_rest
from .call import Axes, Call


@rule("embedding")
def _embedding(call: Call) -> list[Axes]:
    weight, indices = call.arguments["weight"], call.arguments["indices"]
    padding = call.arguments["padding_idx"]
    _rows(call, weight, indices)
    # The row of the padding token is zero and gets no gradient, so that it stays zero.
    call.role(weight, 1, "producer", RANDOM if padding < 0 else Fill("random", zero_at=padding))
    call.attribute(weight, "embedding_dim", call.axes(weight)[1])
    return [[*call.axes(indices), call.axes(weight)[1]]]


@rule("_embedding_bag", "_embedding_bag_forward_only")
def _embedding_bag(call: Call) -> list[Axes]:
    weight = call.arguments["weight"]
    _rows(call, weight, call.arguments["indices"])
    call.role(weight, 1, "producer", RANDOM)
    call.attribute(weight, "embedding_dim", call.axes(weight)[1])
    return with_fresh_rest(call, [Atom(call.outputs[0].shape[0]), call.axes(weight)[1]])


def _rows(call: Call, weight: Tensor, indices: Tensor) -> None:
    """Fix the rows of an embedding: one for each token, if the model's input decides which are looked up."""
    kind = Kind.OPERATION if call.is_static(indices) else Kind.TOKENS
    call.fix(call.axes(weight)[0], "rows looked up by index", kind)
    call.attribute(weight, "num_embeddings", call.axes(weight)[0])


def _looked_up(call: Call, x: Tensor, picked: list[int], indices: list[Tensor]) -> None:
    """Fix the axes picked by index; the other axes of a parameter indexed by data produce neurons."""
    for axis in range(x.ndim):
        if axis in picked:
            known = len(picked) == len(indices) == 1 and not call.is_static(x) and call.is_static(indices[0])
            term = _picked_part(call, call.axes(x)[axis], indices[0]) if known else call.axes(x)[axis]
            call.fix(term, "picked by index", Kind.INDEXED)
        elif call.is_weight(x) and not all(map(call.is_static, indices)):
            call.role(x, axis, "producer", RANDOM)


def _picked_part(call: Call, term: Term, index: Tensor) -> Term:
    """The part of an axis that constant indices pick from, such as ``x[..., [-1], :]``."""
    if index.dtype in (torch.bool, torch.uint8) or not index.numel():
        return term
    positions = index % size(term)
    first, last = int(positions.min()), int(positions.max())
    rest = cut(call, term, first)[1] if first else term
    return cut(call, rest, last + 1 - first)[0] if last + 1 < size(term) else rest


@rule("index_select")
def _index_select(call: Call) -> list[Axes]:
    x, index = call.arguments["self"], call.arguments["index"]
    axis = call.arguments["dim"] % x.ndim
    _looked_up(call, x, [axis], [index])
    result = list(call.axes(x))
    result[axis] = call.axes(index)[0] if index.ndim else Atom(1)
    return [result]


@rule("index_add", "index_copy")
def _index_add(call: Call) -> list[Axes]:
    x, source = call.axes(call.arguments["self"]), call.axes(call.arguments["source"])
    dim = call.arguments["dim"] % len(x)
    for axis, (term, other) in enumerate(zip(x, source, strict=True)):
        if axis != dim:
            call.unify(term, other)
            continue
        for each in (term, other):
            call.fix(each, "picked by index", Kind.INDEXED)
    return [list(x)]


@rule("gather", "scatter", "scatter_add", "scatter_reduce")
def _gather(call: Call) -> list[Axes]:
    x, index = call.axes(call.arguments["self"]), call.axes(call.arguments["index"])
    source = call.arguments.get("src")
    dim = call.arguments["dim"] % max(len(x), 1)
    for axis, (term, other) in enumerate(zip(x, index, strict=True)):
        involved = [term, other, *([call.axes(source)[axis]] if isinstance(source, Tensor) else [])]
        for each in involved:
            if axis == dim or size(each) != size(term):
                call.fix(each, "picked by index", Kind.INDEXED)
            else:
                call.unify(term, each)
    return [list(index if call.name == "aten.gather" else x)]


@rule("index")
def _index(call: Call) -> list[Axes]:
    x = call.arguments["self"]
    picked, chosen = _picked(call, x, list(call.arguments["indices"]))
    # Adjacent indexed axes are replaced in place; otherwise the result of indexing comes first.
    place = picked[0] if picked == list(range(picked[0], picked[-1] + 1)) else 0
    kept = [term for axis, term in enumerate(call.axes(x)) if axis not in picked]
    return [[*kept[:place], *chosen, *kept[place:]]]


@rule("index_put", "_index_put_impl")
def _index_put(call: Call) -> list[Axes]:
    x, values = call.arguments["self"], call.axes(call.arguments["values"])
    picked, _ = _picked(call, x, list(call.arguments["indices"]))
    kept = [term for axis, term in enumerate(call.axes(x)) if axis not in picked]
    if picked == list(range(len(picked))):  # the other axes come last, in the values too
        for term, value in zip(reversed(kept), reversed(values), strict=False):
            if size(value) == size(term):
                call.unify(term, value)
    else:
        for term in (*kept, *values):
            call.fix(term, "written by index")
    return [list(call.axes(x))]


def _picked(call: Call, x: Tensor, indices: list[Tensor | None]) -> tuple[list[int], Axes]:
    """The axes that indices pick from (several for a mask), and the axes that replace them."""
    picked: list[int] = []
    tensors = [index for index in indices if index is not None]
    axis = 0
    for index in indices:
        width = index.ndim if index is not None and index.dtype in (torch.bool, torch.uint8) else 1
        if index is not None:
            picked += range(axis, axis + width)
        axis += width
    _looked_up(call, x, picked, tensors)
    if any(index.dtype in (torch.bool, torch.uint8) for index in tensors):
        for term in (term for index in tensors for term in call.axes(index)):
            call.fix(term, "picked by a mask")
        return picked, [Atom(call.outputs[0].shape[picked[0]])] if call.name == "aten.index" else []
    return picked, broadcast(call, tensors)
