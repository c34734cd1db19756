"""Which runs of modules are chains: what one returns is what the next one gets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from torch import nn

from .flow import Call, Flow
from .runs import Run


class Ends(NamedTuple):
    """The argument by which a block gets a value, that value, and the one that it returns."""

    place: str
    start: int
    end: int


@dataclass(frozen=True)
class Chain:
    """Blocks of which each gets what the one before it returns.

    Args:
        run: the blocks.
        ends: for each block, what it gets and what it returns; of a single block, all that it may get.
    """

    run: Run
    ends: tuple[tuple[Ends, ...], ...]


def chains(flow: Flow, run: Run) -> Iterator[Chain]:
    """The chains in a run of blocks that return what has the shape of what they get; a single block may be one.

    Nothing but functions without parameters, such as an activation, may stand between two blocks.
    """
    calls = [_calls(flow, run, number) for number in range(len(run))]
    start = 0
    for number in range(len(run)):
        linked = number + 1 < len(run) and bool(_links(flow, calls[number], calls[number + 1]))
        if linked:
            continue
        if calls[start]:
            yield from _of_one_shape(flow, run.part(start, number + 1), calls[start : number + 1])
        start = number + 1


def _calls(flow: Flow, run: Run, number: int) -> list[tuple[Call, Call]]:
    """The calls of the first and of the last module of a block."""
    first, last = run.paths(number)[0], run.paths(number)[-1]
    return list(
        zip(
            [call for call in flow.calls if call.path == first],
            [call for call in flow.calls if call.path == last],
            strict=False,
        )
    )


def _links(flow: Flow, one: Sequence[tuple[Call, Call]], other: Sequence[tuple[Call, Call]]) -> list[str]:
    """The arguments by which a block gets what another one returns, at every call."""
    if not one or len(one) != len(other):
        return []
    found: list[set[str]] = []
    for (_, last), (first, _) in zip(one, other, strict=True):
        source = last.outputs[0] if last.outputs else -1
        found.append({place for place, value in first.inputs.items() if _flows(flow, source, value)})
    return sorted(set.intersection(*found))


def _flows(flow: Flow, source: int, value: int) -> bool:
    """Whether a value is another one, or a function of it alone without parameters."""
    while value != source:
        operation = flow.values[value].operation
        if operation is None:
            return False
        moving = {each for each in operation.operands if not flow.values[each].constant}
        learned = any(flow.values[each].constant for each in operation.operands)
        if len(moving) != 1 or learned:
            return False
        (value,) = moving
    return True


def _of_one_shape(flow: Flow, run: Run, calls: Sequence[Sequence[tuple[Call, Call]]]) -> Iterator[Chain]:
    """Cut a chain where blocks return another shape than they get."""
    places = [_links(flow, one, other) for one, other in pairwise(calls)]
    ends: list[tuple[Ends, ...]] = []
    for number, own in enumerate(calls):
        first, last = own[0]
        known = places[number - 1] if number else places[0] if places else list(first.inputs)
        output = last.outputs[0] if last.outputs else None
        fitting = [(place, first.inputs[place]) for place in known if place in first.inputs]
        ends.append(
            tuple(
                Ends(place, value, output)
                for place, value in fitting
                if output is not None
                and flow.values[value].tensor.is_floating_point()
                and flow.values[value].tensor.shape == flow.values[output].tensor.shape
            )
        )
    start = 0
    for number in range(len(run) + 1):
        if number == len(run) or not ends[number]:
            if number > start:
                yield Chain(run.part(start, number), tuple(ends[start:number]))
            start = number + 1


def repeated(model: nn.Module, run: Run) -> str | None:
    """Why blocks of a run are no blocks of their own; None if each module is there once."""
    seen: dict[int, int] = {}
    for number in range(len(run)):
        for module in run.modules(model, number):
            if id(module) in seen:
                return f"blocks {seen[id(module)]} and {number} are the same module"
            seen[id(module)] = number
    return None
