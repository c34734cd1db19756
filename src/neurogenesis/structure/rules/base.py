"""Registration and lookup of rules, and helpers that several rules share."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..fills import MEAN, SHIFT
from ..reasons import Kind
from ..terms import Atom, Conflict, Term, factor, is_single, resolve, size, split
from .call import Axes, Call, Rule
from .registered import operation_rule

_RULES: dict[str, Rule] = {}
_FAMILIES: list[tuple[str, Rule]] = []


def rule_for(operation: torch._ops.OpOverload) -> Rule:
    """The rule for an operation; `unknown` if there is none."""
    if given := operation_rule(operation._schema.name):
        return given
    name = operation.overloadpacket.__name__
    # In-place operations use the rule of their functional form: add_ that of add.
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
    """Create new axes for a shape."""
    return [Atom(length) for length in shape]


def with_fresh_rest(call: Call, first: Axes) -> list[Axes]:
    """Axes of all outputs: `first` for the first one, new axes for the others."""
    return [first, *(fresh(output.shape) for output in call.outputs[1:])]


def unknown(call: Call) -> list[Axes]:
    """The rule for operations without one: fix the sizes of all inputs and outputs."""
    inputs = call.tensors()
    outputs = [fresh(output.shape) for output in call.outputs]
    if inputs:  # without inputs it is a factory (zeros, arange), whose axes may still be unified with others
        for axes in [*map(call.axes, inputs), *outputs]:
            for term in axes:
                call.fix(term, f"used by {call.name}, an operation without a rule,", Kind.NO_RULE)
    return outputs


def cut(call: Call, term: Term, at: int) -> tuple[Term, Term]:
    """Split a term at a position; return two new axes if it cannot be split there."""
    return _or_fresh(call, term, (at, size(term) - at), lambda: split(term, at))


def unmerge(call: Call, term: Term, inner: int) -> tuple[Term, Term]:
    """Factor a term into outer and inner axis; return two new axes if that is not possible."""
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
    """Axes given by an operation's `dim` or `dims`; all axes if neither is given."""
    given = call.arguments.get("dim", call.arguments.get("dims"))
    if given is None or given == []:
        return list(range(ndim))
    given = [given] if isinstance(given, int) else list(given)
    return [axis % ndim for axis in given] if ndim else []


def checked(outputs: list[Axes], tensors: Sequence[Tensor]) -> bool:
    """Whether the axes that a rule returned match the shapes of the outputs."""
    return len(outputs) == len(tensors) and all(
        [size(term) for term in axes] == list(tensor.shape) for axes, tensor in zip(outputs, tensors, strict=True)
    )


def elementwise(call: Call) -> list[Axes]:
    """The rule for pointwise operations, with broadcasting."""
    axes = broadcast(call, call.tensors())
    return [list(axes) for _ in call.outputs]


def broadcast(call: Call, tensors: Sequence[Tensor]) -> Axes:
    """Unify the axes of tensors that are combined elementwise; return the axes of the result."""
    result = []
    for axis in range(-max((tensor.ndim for tensor in tensors), default=0), 0):
        terms = [call.axes(tensor)[axis] for tensor in tensors if tensor.ndim >= -axis]
        wide = [term for term in terms if size(term) != 1]
        if wide:
            for term in terms:
                if size(term) == 1:
                    call.fix(term, "a single neuron broadcast over others")
        terms = wide or alike(terms)
        for term in terms[1:]:
            call.unify(terms[0], term)
        result.append(terms[0] if terms else Atom(1))
    if not all(map(call.is_static, tensors)):
        shifts = call.name.removeprefix("aten.").rstrip("_") in ("add", "sub", "rsub", "addmm", "baddbmm")
        for tensor in filter(call.is_static, tensors):
            for axis in range(tensor.ndim):
                call.role(tensor, axis, "carrier", SHIFT if shifts else MEAN)
    return result


def alike(terms: Axes) -> Axes:
    """Of axes of size 1, those that are heads where one of them is: the others are the same for all heads."""
    singles = [term for term in terms if is_single(term)]
    own = [term for term in terms if isinstance(atom := resolve(term), Atom) and atom.own and not is_single(term)]
    return singles + own if singles else terms


@rule("empty_strided", "new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros")
def _factory(call: Call) -> list[Axes]:
    return [fresh(output.shape) for output in call.outputs]


rule(
    "_to_copy", "alias", "bernoulli", "cauchy", "clone", "complex", "copy", "detach", "dropout", "empty_like",
    "exponential", "fill", "full_like", "geometric", "hardswish", "leaky_relu", "lift_fresh", "log_normal",
    "masked_fill", "native_dropout", "normal", "ones_like", "polar", "rand_like", "randint_like", "randn_like",
    "random", "rrelu_with_noise", "uniform", "where", "zero", "zeros_like",
)(elementwise)  # fmt: skip


@rule("log_sigmoid_forward")
def _log_sigmoid(call: Call) -> list[Axes]:
    return with_fresh_rest(call, call.axes(call.arguments["self"]))


@rule("_prelu_kernel")
def _prelu(call: Call) -> list[Axes]:
    weight = call.arguments["weight"]
    call.attribute(weight, "num_parameters", call.axes(weight)[1 if weight.ndim > 1 else 0])
    return elementwise(call)
