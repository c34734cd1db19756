"""How rules are registered and found, and what several of them share."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..fills import MEAN, ZERO
from ..reasons import Kind
from ..terms import Atom, Conflict, Term, factor, size, split
from .call import Axes, Call, Rule
from .taught import operation_rule

_RULES: dict[str, Rule] = {}
_FAMILIES: list[tuple[str, Rule]] = []


def rule_for(operation: torch._ops.OpOverload) -> Rule:
    """The rule of an operation; `unknown` where there is none."""
    if taught := operation_rule(operation._schema.name):
        return taught
    name = operation.overloadpacket.__name__
    # In-place operations obey the rule of their functional form: add_ that of add.
    found = _RULES.get(name) or _RULES.get(name.rstrip("_"))
    if found:
        return found
    for pattern, candidate in _FAMILIES:
        if re.fullmatch(pattern, name):
            return candidate
    return elementwise if torch.Tag.pointwise in operation.tags else unknown


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for operations by name."""

    def register(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


def family(pattern: str, rule: Rule) -> None:
    """Register a rule for all operations whose name matches a regular expression."""
    _FAMILIES.append((pattern, rule))


def fresh(shape: Sequence[int]) -> Axes:
    """New axes that nothing else has yet."""
    return [Atom(length) for length in shape]


def with_fresh_rest(call: Call, first: Axes) -> list[Axes]:
    """The axes of the first output; those of the others are new."""
    return [first, *(fresh(output.shape) for output in call.outputs[1:])]


def unknown(call: Call) -> list[Axes]:
    """The rule of operations that have none: nothing that goes in or comes out can change its size."""
    inputs = call.tensors()
    outputs = [fresh(output.shape) for output in call.outputs]
    if inputs:  # without inputs it is a factory (zeros, arange): new axes that follow what they meet
        for axes in [*map(call.axes, inputs), *outputs]:
            for term in axes:
                call.fix(term, f"used by {call.name}, an operation without a rule,", Kind.NO_RULE)
    return outputs


def cut(call: Call, term: Term, at: int) -> tuple[Term, Term]:
    """`split`, or two new axes where the term cannot be cut there."""
    return _or_fresh(call, term, (at, size(term) - at), lambda: split(term, at))


def unmerge(call: Call, term: Term, inner: int) -> tuple[Term, Term]:
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


def dimensions(call: Call, ndim: int) -> list[int]:
    """The axes that an operation's dim or dims name; all where it names none."""
    given = call.arguments.get("dim", call.arguments.get("dims"))
    if given is None or given == []:
        return list(range(ndim))
    given = [given] if isinstance(given, int) else list(given)
    return [axis % ndim for axis in given] if ndim else []


def checked(outputs: list[Axes], tensors: Sequence[Tensor]) -> bool:
    """Whether a rule's answer has the shapes that the operation really gave."""
    return len(outputs) == len(tensors) and all(
        [size(term) for term in axes] == list(tensor.shape) for axes, tensor in zip(outputs, tensors, strict=True)
    )


def elementwise(call: Call) -> list[Axes]:
    """The rule of pointwise operations, with broadcasting."""
    axes = broadcast(call, call.tensors())
    return [list(axes) for _ in call.outputs]


def broadcast(call: Call, tensors: Sequence[Tensor]) -> Axes:
    """The axes of tensors combined element by element: those of one place are the same axis."""
    result = []
    for axis in range(-max((tensor.ndim for tensor in tensors), default=0), 0):
        terms = [call.axes(tensor)[axis] for tensor in tensors if tensor.ndim >= -axis]
        wide = [term for term in terms if size(term) != 1]
        if wide:
            for term in terms:
                if size(term) == 1:
                    call.fix(term, "one neuron broadcast over others")
        terms = wide or terms
        for term in terms[1:]:
            call.unify(terms[0], term)
        result.append(terms[0] if terms else Atom(1))
    if not all(map(call.is_static, tensors)):
        shifts = call.name.removeprefix("aten.").rstrip("_") in ("add", "sub", "rsub", "addmm", "baddbmm")
        for tensor in filter(call.is_static, tensors):
            for axis in range(tensor.ndim):
                call.role(tensor, axis, "carrier", ZERO if shifts else MEAN)
    return result


@rule("empty_strided", "new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros")
def _factory(call: Call) -> list[Axes]:
    return [fresh(output.shape) for output in call.outputs]


rule(
    "_to_copy", "alias", "bernoulli", "cauchy", "clone", "copy", "detach", "dropout", "empty_like", "exponential",
    "fill", "full_like", "geometric", "hardswish", "lift_fresh", "log_normal", "masked_fill", "native_dropout",
    "normal", "ones_like", "rand_like", "randint_like", "randn_like", "random", "rrelu_with_noise", "uniform",
    "where", "zero", "zeros_like",
)(elementwise)  # fmt: skip


@rule("log_sigmoid_forward")
def _log_sigmoid(call: Call) -> list[Axes]:
    return with_fresh_rest(call, call.axes(call.arguments["self"]))


@rule("_prelu_kernel")
def _prelu(call: Call) -> list[Axes]:
    weight = call.arguments["weight"]
    call.attribute(weight, "num_parameters", call.axes(weight)[1 if weight.ndim > 1 else 0])
    return elementwise(call)
