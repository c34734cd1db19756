"""The algebra of axes: which axes of a model's tensors are the same axis.

An axis is described by a term over *atoms*, the indivisible sizes of a model:

* an `Atom` is an independent size, such as the 64 output channels of a convolution;
* a `Product` is the result of merging axes with a reshape, outermost factor first
  (flattening 64 channels of 7 x 7 pixels gives ``64*7*7``);
* a `Sum` is the result of a concatenation, in order (``64+32``).

`unify` states that two terms describe the same axis. It refines atoms where necessary: unifying an atom of
size 96 with ``64+32`` binds the atom to the sum. The atoms that remain can be resized independently of each
other, and every axis knows which of its positions belong to which atom.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from math import prod

import torch
from torch import Tensor

from .reasons import Kind, Reason

_ids = count()
_ADDED_ONE = Reason("an axis of size 1 added by a reshape", Kind.SIZE_ONE)
_DROPPED_ONE = Reason("an axis of size 1 dropped by a reshape", Kind.SIZE_ONE)


class Conflict(Exception):
    """Two terms cannot describe the same axis.

    `atoms` are all atoms involved, `suspects` those that do not occur in both terms.
    """

    def __init__(self, *terms: Term):
        self.atoms = [atom for term in terms for atom in leaves(term)]
        shared = set.intersection(*(set(leaves(term)) for term in terms)) if len(terms) == 2 else set()
        self.suspects = [atom for atom in self.atoms if atom not in shared]
        super().__init__(" and ".join(str(resolve(term)) for term in terms))


@dataclass(eq=False)
class Atom:
    """An independent size.

    Args:
        size: the number of positions.
        rigid: whether it cannot be refined.
        fixed: the reasons why it cannot change.
        beside: the axis beside which it is a factor even if it is 1, such as the number of heads, if there is one.
        own: whether it is the size of a parameter's axis, which is one of heads, if it is 1, where heads meet it.
    """

    size: int
    rigid: bool = False
    fixed: list[Reason] = field(default_factory=list)
    beside: Term | None = None
    own: bool = False
    bound: Term | None = None
    id: int = field(default_factory=lambda: next(_ids))

    def __str__(self) -> str:
        return str(self.size)


@dataclass(frozen=True)
class Product:
    """Merged axes, outermost first."""

    factors: tuple[Term, ...]

    def __str__(self) -> str:
        return "*".join(f"({f})" if isinstance(f, Sum) else str(f) for f in self.factors)


@dataclass(frozen=True)
class Sum:
    """Concatenated axes, in order."""

    parts: tuple[Term, ...]

    def __str__(self) -> str:
        return "+".join(map(str, self.parts))


Term = Atom | Product | Sum
Sizes = Mapping[Atom, int]  # hypothetical sizes of atoms; atoms not listed keep their current size


def resolve(term: Term) -> Term:
    """Replace every bound atom by the term it is bound to, and flatten nested products and sums."""
    if isinstance(term, Atom):
        if term.bound is None:
            return term
        term.bound = resolve(term.bound)
        return term.bound
    children = term.factors if isinstance(term, Product) else term.parts
    resolved = [resolve(child) for child in children]
    if all(old is new for old, new in zip(children, resolved, strict=True)):
        return term
    return product(resolved) if isinstance(term, Product) else concatenation(resolved)


def product(terms: Iterable[Term]) -> Term:
    """Merge axes into one, outermost first. Factors of size 1 are dropped and become fixed, unless they are single."""
    factors: list[Term] = []
    ones: list[Term] = []
    for term in map(resolve, terms):
        if size(term) == 1 and not is_single(term):
            ones.append(term)
        else:
            factors.extend(term.factors if isinstance(term, Product) else [term])
    if not factors:
        factors, ones = ones[-1:] or [Atom(1)], ones[:-1]
    for one in ones:
        fix(one, _DROPPED_ONE)
    return factors[0] if len(factors) == 1 else Product(tuple(factors))


def concatenation(terms: Iterable[Term]) -> Term:
    """Concatenate axes."""
    parts: list[Term] = []
    for term in map(resolve, terms):
        if size(term):
            parts.extend(term.parts if isinstance(term, Sum) else [term])
    if not parts:
        return Atom(0)
    return parts[0] if len(parts) == 1 else Sum(tuple(parts))


def size(term: Term, sizes: Sizes | None = None) -> int:
    """Number of positions of an axis, with atoms at their current sizes or at `sizes`."""
    term = resolve(term) if isinstance(term, Atom) else term
    if isinstance(term, Atom):
        return term.size if sizes is None else sizes.get(term, term.size)
    if isinstance(term, Product):
        return prod(size(factor, sizes) for factor in term.factors)
    return sum(size(part, sizes) for part in term.parts)


def leaves(term: Term) -> Iterator[Atom]:
    """Yield the atoms of a term in order, with repetitions."""
    term = resolve(term)
    if isinstance(term, Atom):
        yield term
    else:
        for child in term.factors if isinstance(term, Product) else term.parts:
            yield from leaves(child)


def shares(a: Term, b: Term) -> bool:
    """Whether two axes have an atom in common."""
    return not set(leaves(a)).isdisjoint(leaves(b))


def fix(term: Term, reason: Reason) -> None:
    """Mark all atoms of a term as fixed, for the given reason."""
    for atom in leaves(term):
        if reason not in atom.fixed:
            atom.fixed.append(reason)


def split(term: Term, at: int) -> tuple[Term, Term]:
    """Cut an axis in two at a position: ``term = head + tail``."""
    term = resolve(term)
    if isinstance(term, Atom):
        pieces = Atom(at), Atom(term.size - at)
        _bind(term, Sum(pieces))
        return pieces
    if isinstance(term, Product):
        inner = product(term.factors[1:])
        outer_at, remainder = divmod(at, size(inner))
        if remainder:
            raise Conflict(term)
        head, tail = split(term.factors[0], outer_at)
        for piece in (head, tail):  # one of several heads, for example
            if isinstance(piece, Atom) and piece.size == 1 and not piece.fixed:
                piece.beside = piece.beside or inner
        return product([head, inner]), product([tail, inner])
    heads: list[Term] = []
    tails = list(term.parts)
    while at > 0:
        part = tails.pop(0)
        if size(part) > at:
            part, rest = split(part, at)
            tails.insert(0, rest)
        heads.append(part)
        at -= size(part)
    return concatenation(heads), concatenation(tails)


def factor(term: Term, inner: int) -> tuple[Term, Term]:
    """Split an axis as a reshape does: ``term = outer * inner``, where `inner` is the size of the inner axis."""
    term = resolve(term)
    outer, remainder = divmod(size(term), inner)
    if remainder:
        raise Conflict(term)
    if inner == 1:
        return term, Atom(1, fixed=[_ADDED_ONE])
    if outer == 1:
        return Atom(1, fixed=[_ADDED_ONE]), term
    if isinstance(term, Atom):
        factors = Atom(outer), Atom(inner)
        _bind(term, Product(factors))
        return factors
    if isinstance(term, Product):
        *rest, last = term.factors
        if size(last) % inner == 0:
            last_outer, last_inner = factor(last, inner)
            return product([*rest, last_outer]), last_inner
        if inner % size(last):
            raise Conflict(term)
        rest_outer, rest_inner = factor(product(rest), inner // size(last))
        return rest_outer, product([rest_inner, last])
    pieces = [factor(part, inner) for part in term.parts]
    for _, other in pieces[1:]:
        unify(pieces[0][1], other)
    return concatenation(outer for outer, _ in pieces), resolve(pieces[0][1])


def unify(a: Term, b: Term) -> None:
    """State that two terms describe the same axis; raises `Conflict` if they cannot."""
    a, b = resolve(a), resolve(b)
    if a is b or a == b:
        return
    if size(a) != size(b):
        raise Conflict(a, b)
    if isinstance(a, Atom) and not a.rigid:
        _bind(a, b)
    elif isinstance(b, Atom) and not b.rigid:
        _bind(b, a)
    elif isinstance(a, Sum) or isinstance(b, Sum):
        _unify_parts(a, b)
    elif isinstance(a, Product) and isinstance(b, Product):
        _unify_factors(list(a.factors), list(b.factors))
    else:
        raise Conflict(a, b)


def _unify_parts(a: Term, b: Term) -> None:
    while True:
        first, second = _first_part(a), _first_part(b)
        shorter = min(size(first), size(second))
        if shorter == size(a):
            unify(a, b)
            return
        (first, a), (second, b) = split(a, shorter), split(b, shorter)
        unify(first, second)


def _first_part(term: Term) -> Term:
    term = resolve(term)
    return term.parts[0] if isinstance(term, Sum) else term


def _unify_factors(a: list[Term], b: list[Term]) -> None:
    while a and b:
        if 1 in (len(a), len(b)) and any(map(is_single, (*a[:-1], *b[:-1]))):
            unify(product(a), product(b))
            return
        last_a, last_b = a.pop(), b.pop()
        if is_single(last_a) != is_single(last_b):
            raise Conflict(product([*a, last_a]), product([*b, last_b]))
        if size(last_a) > size(last_b):
            outer, last_a = factor(last_a, size(last_b))
            a.append(outer)
        elif size(last_b) > size(last_a):
            outer, last_b = factor(last_b, size(last_a))
            b.append(outer)
        unify(last_a, last_b)


def _bind(atom: Atom, term: Term) -> None:
    if atom.rigid or any(leaf is atom for leaf in leaves(term)):
        raise Conflict(atom, term)
    for reason in atom.fixed:
        fix(term, reason)
    if isinstance(term, Atom):
        term.beside, term.own = term.beside or atom.beside, term.own or atom.own
    atom.bound = term


def is_single(term: Term) -> bool:
    """Whether an axis is a factor of another one although it is 1, such as the number of heads of a single head."""
    term = resolve(term)
    return isinstance(term, Atom) and term.beside is not None and term.size == 1


def with_singles_apart(term: Term) -> list[Term]:
    """The factors of an axis, outermost first, with single ones on their own."""
    term = resolve(term)
    if not isinstance(term, Product) or not any(map(is_single, term.factors)):
        return [term]
    result: list[Term] = []
    for each in term.factors:
        if is_single(each) or not result or is_single(result[-1]):
            result.append(each)
        else:
            result[-1] = product([result[-1], each])
    return result


def without(term: Term, other: Term) -> Term | None:
    """What is left of merged axes without the outermost one, or without the innermost one; None if it is neither."""
    whole, part = _factors(term), _factors(other)
    n = len(part)
    if n >= len(whole):
        return None
    if whole[:n] == part:
        return product(whole[n:])
    return product(whole[:-n]) if whole[-n:] == part else None


def _factors(term: Term) -> list[Term]:
    term = resolve(term)
    return list(term.factors) if isinstance(term, Product) else [term]


def take_single(term: Term, inner: bool = False) -> tuple[Term, Term] | None:
    """Take a factor of size 1 out of an axis, as its outermost factor or as its innermost one.

    Returns the factor and the rest; None if that is not possible, or if the axis is fixed.
    """
    term = resolve(term)
    if not _has_room(term, inner):
        return None
    if isinstance(term, Atom):
        rest = Atom(term.size)
        single = Atom(1, beside=rest)
        _bind(term, Product((rest, single) if inner else (single, rest)))
        return single, rest
    if isinstance(term, Product):
        *outer, last = term.factors if inner else term.factors[::-1]
        if is_single(last):
            return last, product(outer if inner else outer[::-1])
        taken = take_single(last, inner)
        assert taken is not None
        return taken[0], product([*outer, taken[1]] if inner else [taken[1], *outer[::-1]])
    pieces = [take_single(part, inner) for part in term.parts]
    taken_of_all = [piece for piece in pieces if piece is not None]
    for piece in taken_of_all[1:]:
        unify(taken_of_all[0][0], piece[0])
    return taken_of_all[0][0], concatenation(rest for _, rest in taken_of_all)


def _has_room(term: Term, inner: bool) -> bool:
    """Whether a factor can be taken out of an axis, on its inner or its outer side."""
    term = resolve(term)
    if isinstance(term, Atom):
        return not term.rigid and term.size > 1 and not term.fixed
    if isinstance(term, Product):
        side = term.factors[-1 if inner else 0]
        return is_single(side) or _has_room(side, inner)
    return all(_has_room(part, inner) for part in term.parts)


def owners(term: Term, atom: Atom, sizes: Sizes | None = None) -> Tensor:
    """For each position of an axis, the index of the neuron of `atom` that owns it, or -1."""
    term = resolve(term)
    if isinstance(term, Atom):
        length = size(term, sizes)
        return torch.arange(length) if term is atom else torch.full((length,), -1)
    if isinstance(term, Sum):
        return torch.cat([owners(part, atom, sizes) for part in term.parts])
    result = torch.tensor([-1])
    for each in term.factors:
        result = torch.maximum(result[:, None], owners(each, atom, sizes)[None, :]).flatten()
    return result


def positions_of(term: Term, atom: Atom, sizes: Sizes | None = None) -> Tensor:
    """Positions that each neuron of an atom owns on an axis, of shape (neurons, per neuron)."""
    owner = owners(term, atom, sizes)
    return owner.sort(stable=True).indices[(owner < 0).sum() :].reshape(size(atom, sizes), -1)


def new_positions(term: Term, atom: Atom, count: int, sizes: Sizes | None = None) -> Tensor:
    """Positions that `count` new neurons of an atom would own on an axis, of shape (count, per neuron)."""
    before = size(atom, sizes)
    return positions_of(term, atom, {**(sizes or {}), atom: before + count})[before:]
