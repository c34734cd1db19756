"""The rule for reshapes, which merge axes and split them."""

from __future__ import annotations

import math

from ..known import NO, YES, Wanted
from ..reasons import Kind
from ..terms import (
    Atom,
    Conflict,
    Term,
    factor,
    is_single,
    leaves,
    product,
    resolve,
    size,
    take_single,
    with_singles_apart,
)
from .base import fresh, rule
from .call import Axes, Call


@rule("view", "_unsafe_view", "reshape", "_reshape_alias")
def _reshape(call: Call) -> list[Axes]:
    """Match both shapes from the right: axes of equal size correspond, others are merged and split.

    An axis of size 1 is a factor if the code knows that its length may change, such as a single head.
    """
    shape = list(call.outputs[0].shape)
    if 0 in shape:
        return [fresh(shape)]
    found = _Matching(call, call.axes(call.tensors()[0])).matched()
    for terms in found.values():
        if any(call.is_copied(term) for term in terms):
            for single in filter(is_single, terms):
                call.fix(single, "one head of keys for all of queries", Kind.HEADS)
    return [[product(found[axis]) for axis in range(len(shape))]]


class _Matching:
    """Matches the factors of axes with wanted lengths, from the right."""

    def __init__(self, call: Call, axes: Axes):
        self.call, self.new = call, call.wanted()
        factors = [[term] if call.batched else with_singles_apart(term) for term in axes]
        self.old = [term for each in factors for term in each]
        self.origins = [axis for axis, each in enumerate(factors) for _ in each]  # the axes that they are factors of
        self.result: list[tuple[Wanted, Term]] = []  # from the right

    def matched(self) -> dict[int, Axes]:
        """The factors of each new axis."""
        while self.old or self.new:
            if self.old and self.new and self._fits():
                self.result.append((self.new.pop(), self.old.pop()))
            elif self.new and self.new[-1].length == 1:
                self._add_one(self.new.pop())
            elif self.old and size(self.old[-1]) == 1 and not (is_single(self.old[-1]) and self._belongs_left()):
                self._drop_one(self.old.pop())
            else:
                self._regroup()
        found: dict[int, Axes] = {}
        for wanted, term in reversed(self.result):
            found.setdefault(wanted.axis, []).append(term)
        return found

    def _fits(self) -> bool:
        written = is_single(self.old[-1]) and self.new[-1].written
        return size(self.old[-1]) == self.new[-1].length and not written

    def _belongs_left(self) -> bool:
        """Whether an axis of size 1 is a factor of the next axis rather than of the last one."""
        (atom,) = leaves(self.old[-1])
        if self.call.batched:
            return False
        if not self.result or not self.new:
            return bool(self.new)
        wanted, right = self.result[-1]
        included_left, included_right = self.new[-1].includes(atom), wanted.includes(atom)
        if not {included_left, included_right}.isdisjoint((YES, NO)):
            return included_left > included_right
        left, own, last = (dict(enumerate(self.origins)).get(len(self.old) + place) for place in (-2, -1, 0))
        if own in (left, last):
            return own != last
        return atom.beside is not None and resolve(atom.beside) != resolve(right)

    def _drop_one(self, term: Term) -> None:
        if self.call.batched:
            return
        if is_single(term) and self.result:
            wanted, right = self.result[-1]
            self.result[-1] = wanted, product([term, right])
        else:
            self.call.fix(term, "an axis of size 1 dropped by a reshape", Kind.SIZE_ONE)

    def _add_one(self, wanted: Wanted) -> None:
        """Add an axis of size 1: a factor of a neighbour, or a new axis."""
        taken = None
        if wanted.may_change and self.call.may_add_single(wanted.axis):
            if self.result and not self.result[-1][0].is_that_of(self.result[-1][1]):
                right, term = self.result[-1]
                if (taken := take_single(term)) is not None:
                    self.result[-1] = right, taken[1]
            if taken is None and self.old and (taken := take_single(self.old[-1], inner=True)) is not None:
                self.old[-1] = taken[1]
        if taken is not None:
            self.call.added_single(wanted.axis, taken[0])
        self.result.append((wanted, Atom(1) if taken is None else taken[0]))

    def _regroup(self) -> None:
        """Merge axes until they have as many entries as the next lengths, and split them."""
        merged, group = [self.old.pop()], [self.new.pop()]
        while (excess := math.prod(map(size, merged)) - math.prod(each.length for each in group)) != 0:
            if excess < 0:
                merged.append(self.old.pop())
            else:
                group.append(self.new.pop())
        for term in merged:
            others = (atom for other in merged if other is not term and size(other) > 1 for atom in leaves(other))
            if self.call.is_copied(term) and not all(atom.fixed for atom in others):  # of several heads of keys
                self.call.fix(term, "the number of copies made", Kind.HEADS)
        before = len(self.result)
        try:
            rest = product(merged[::-1])
            for each in group[:-1]:
                if each.length == 1:
                    self.old.append(rest)
                    self._add_one(each)
                    rest = self.old.pop()
                    continue
                rest, inner = factor(rest, each.length)
                self.result.append((each, inner))
            self.result.append((group[-1], rest))
        except Conflict as conflict:
            pieces = fresh([each.length for each in group])
            del self.result[before:]
            self.result += zip(group, pieces, strict=True)
            for term in [*merged, *pieces]:
                self.call.misfit(term, conflict)
