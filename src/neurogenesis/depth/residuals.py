"""Parameters of a block whose zeros make it the identity, found in the operations between its input and its output.

A residual block computes ``y = x + f(x) + g(x) + ...``. From its output, additions are followed back to its input. What
else is added is a branch, and the last parameters of the branch, without which it is zero, are its last projection.

What an operation does is not read from its name: it is done again with zeros in place of some of its arguments, and
with random numbers in place of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from .flow import Flow, Operation, Value

Names = frozenset[str]


@dataclass(frozen=True)
class Projections:
    """Parameters that make a block the identity: those that become zero, and those that become identities.

    If there are none, `reason` says why. If there are, it says why they may not suffice.
    """

    zero: Names = frozenset()
    identity: Names = frozenset()
    reason: str | None = None

    def __bool__(self) -> bool:
        return bool(self.zero or self.identity)


def projections(flow: Flow, start: int, end: int) -> Projections:
    """The projections of a block that maps the value `start` to the value `end`."""
    search = _Search(flow, start)
    found = search.skipped(end)
    if found:
        return Projections(zero=found, reason=search.normed)
    if found is not None:
        return Projections(reason="nothing in it has parameters that could be zero")
    plain = _identity(flow, start, end)
    if plain is not None:
        return plain
    return Projections(reason=search.reason or "its input is not added to its output")


class _Search:
    def __init__(self, flow: Flow, start: int):
        self._values, self._start = flow.values, start
        self._skipped: dict[int, Names | None] = {}
        self._zeros: dict[int, Names | None] = {}
        self.reason: str | None = None
        self.normed: str | None = None

    def skipped(self, value: int) -> Names | None:
        """Parameters whose zeros leave the block's input alone at a value; None if it is not added there."""
        if value == self._start:
            return frozenset()
        if value not in self._skipped:
            self._skipped[value] = None
            self._skipped[value] = self._find_skipped(value)
        return self._skipped[value]

    def _find_skipped(self, value: int) -> Names | None:
        operation = self._values[value].operation
        if operation is None or self._values[value].constant:
            return None
        moving = list(dict.fromkeys(each for each in operation.operands if not self._values[each].constant))
        for main in moving:
            others = [each for each in moving if each != main]
            learned = [each for each in operation.operands if self._learned(each)]
            if not others and not learned:
                return self.skipped(main)  # a function of one value; that it changes nothing is rehearsed
            before = self.skipped(main)
            if before is None:
                continue
            if not others:
                if any(tensor.ndim > 1 for tensor in self._tensors(learned)):
                    continue
                self.normed = "a norm follows the addition of its input"  # which changes nothing only by chance
                return before
            if _adds(operation, main, others):
                branches = [self.zeros(each) for each in others]
                if any(branch is None for branch in branches):
                    self.reason = f"no zeros in its parameters make a branch zero that {operation.name} adds"
                    continue
                return before.union(*(branch for branch in branches if branch is not None))
        return None

    def zeros(self, value: int) -> Names | None:
        """The last parameters whose zeros make a value zero; None if there are none."""
        if value == self._start:
            return None
        if value not in self._zeros:
            self._zeros[value] = None
            self._zeros[value] = self._find_zeros(value)
        return self._zeros[value]

    def _find_zeros(self, value: int) -> Names | None:
        here = self._values[value]
        if here.parameter is not None:
            return frozenset([here.parameter])
        operation = here.operation
        if operation is None:
            return None
        operands = list(dict.fromkeys(operation.operands))
        learned = [each for each in operands if self._learned(each)]
        moving = [each for each in operands if not self._values[each].constant]
        for chosen in _choices(learned, moving):
            if _vanishes(operation, chosen, operation.outputs.index(value)):
                found = [self.zeros(each) for each in chosen]
                if all(each is not None for each in found):
                    return frozenset(chain.from_iterable(each for each in found if each is not None))
        return None

    def _tensors(self, values: Iterable[int]) -> list[Tensor]:
        """The parameters that values are computed from."""
        names = {name for each in values for name in _sources(self._values, each)}
        return [value.tensor for value in self._values if value.parameter in names]

    def _learned(self, value: int) -> bool:
        """Whether a value is computed from parameters alone, and of at least one."""
        return bool(_sources(self._values, value))


def _choices(learned: Sequence[int], moving: Sequence[int]) -> Iterable[Sequence[int]]:
    """Operands that may become zero together, those with the last parameters first."""
    yield from ([each] for each in learned)
    if len(learned) > 1:
        yield learned
    yield from ([each] for each in moving)
    if len(learned) + len(moving) > 1:
        yield [*moving, *learned]


def _vanishes(operation: Operation, chosen: Sequence[int], output: int) -> bool:
    """Whether an output of an operation is zero if the chosen operands are, whatever the others are."""
    tensors = _replaced(operation, set(chosen))
    try:
        result = operation.with_tensors(tensors)[output]
    except Exception:  # it accepts only certain values, such as sorted ones
        return False
    return result.is_floating_point() and not bool(result.any())


def _adds(operation: Operation, main: int, others: Sequence[int]) -> bool:
    """Whether an operation returns its main operand if the others are zero."""
    tensors = _replaced(operation, set(others))
    given = next(new for new, number in zip(tensors, operation.operands, strict=True) if number == main)
    try:
        result = operation.with_tensors(tensors)[0]
    except Exception:
        return False
    return result.shape == given.shape and bool(torch.equal(result, given))


def _replaced(operation: Operation, zero: set[int]) -> list[Tensor]:
    """Tensors in place of those of an operation: zeros for some, random numbers from [1/2, 3/2) for the others."""
    numbers = torch.rand(1021, generator=torch.Generator().manual_seed(0)) + 0.5  # repeated: faster than millions
    drawn: dict[int, Tensor] = {}
    for tensor, number in zip(operation.tensors, operation.operands, strict=True):
        if number in drawn:
            continue
        if number in zero:
            drawn[number] = torch.zeros_like(tensor)
        elif tensor.is_floating_point():
            repeated = numbers.to(tensor).repeat(tensor.numel() // len(numbers) + 1)
            drawn[number] = repeated[: tensor.numel()].view(tensor.shape)
        else:
            drawn[number] = tensor
    return [drawn[number] for number in operation.operands]


def _identity(flow: Flow, start: int, end: int) -> Projections | None:
    """The matrices of a chain without branches that become identities, and its biases, which become zero."""
    value, matrices, biases = end, set[str](), set[str]()
    while value != start:
        operation = flow.values[value].operation
        if operation is None:
            return None
        moving = [each for each in dict.fromkeys(operation.operands) if not flow.values[each].constant]
        names = {name for each in operation.operands for name in _sources(flow.values, each)}
        own = {name: _tensor(flow, name) for name in names}
        if len(moving) != 1:
            return None
        if own and not any(each.ndim > 1 for each in own.values()):
            return Projections(reason=f"its input is not added to its output, and {operation.name} has parameters")
        for name, tensor in own.items():
            if tensor.ndim > 1 and tensor.shape[0] != tensor.shape[1] * _groups(operation):
                return None
            (matrices if tensor.ndim > 1 else biases).add(name)
        value = moving[0]
    return Projections(frozenset(biases), frozenset(matrices)) if matrices else None


def _groups(operation: Operation) -> int:
    names = [each.name for each in operation.func._schema.arguments]
    given = dict(zip(names, operation.args, strict=False)) | operation.kwargs
    groups = given.get("groups", 1)
    return groups if isinstance(groups, int) else 1


def _sources(values: Sequence[Value], value: int) -> Names:
    """The parameters that a constant value is computed from."""
    here = values[value]
    if not here.constant:
        return frozenset()
    if here.operation is None:
        return frozenset() if here.parameter is None else frozenset([here.parameter])
    return frozenset().union(*(_sources(values, each) for each in here.operation.operands))


def _tensor(flow: Flow, name: str) -> Tensor:
    return next(value.tensor for value in flow.values if value.parameter == name)
