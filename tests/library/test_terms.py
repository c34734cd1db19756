"""The algebra of axes, against tensors that carry their neurons' numbers through the real operations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from neurogenesis.structure.reasons import Kind, Reason
from neurogenesis.structure.terms import (
    Atom,
    Conflict,
    Term,
    concatenation,
    factor,
    leaves,
    new_positions,
    owners,
    positions_of,
    product,
    resolve,
    size,
    split,
    unify,
)
from neurogenesis.structure.tracing import Tracer, trace


def test_unifying_an_atom_with_a_sum_binds_it() -> None:
    whole, parts = Atom(96), [Atom(64), Atom(32)]
    unify(whole, concatenation(parts))
    assert list(leaves(whole)) == parts


def test_unifying_sums_with_other_borders_refines_both() -> None:
    a, b = [Atom(4), Atom(6)], [Atom(7), Atom(3)]
    unify(concatenation(a), concatenation(b))
    assert [atom.size for atom in leaves(concatenation(a))] == [4, 3, 3]
    assert list(leaves(concatenation(a))) == list(leaves(concatenation(b)))


def test_unifying_products_with_other_borders_refines_both() -> None:
    a, b = [Atom(4), Atom(6)], [Atom(2), Atom(12)]
    unify(product(a), product(b))
    assert [atom.size for atom in leaves(product(a))] == [2, 2, 6]
    assert list(leaves(product(a))) == list(leaves(product(b)))


def test_a_sum_of_equal_parts_can_be_stacked() -> None:
    a, b = Atom(5), Atom(5)
    outer, inner = factor(concatenation([a, b]), 5)
    assert size(outer) == 2
    assert resolve(a) is resolve(b) is resolve(inner)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([4], [5]),  # sizes
        ([Atom(3), Atom(4)], [Atom(4), Atom(3)]),  # no common refinement of 3*4 and 4*3
    ],
)
def test_what_cannot_be_one_axis_is_a_conflict(a: list[Any], b: list[Any]) -> None:
    terms = [product([x if isinstance(x, Atom) else Atom(x) for x in factors]) for factors in (a, b)]
    with pytest.raises(Conflict):
        unify(*terms)


def test_a_rigid_atom_is_never_refined() -> None:
    rigid = Atom(6, rigid=True)
    for change in (lambda: split(rigid, 2), lambda: factor(rigid, 2), lambda: unify(rigid, Atom(6, rigid=True))):
        with pytest.raises(Conflict):
            change()
    unify(Atom(6), rigid)
    assert resolve(rigid) is rigid


def test_what_is_fixed_stays_fixed_when_it_is_refined() -> None:
    atom = Atom(6, fixed=[Reason("because")])
    head, tail = split(atom, 2)
    assert [leaf.fixed for leaf in (*leaves(head), *leaves(tail))] == [[Reason("because")]] * 2


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["permute", "merge", "merge", "split", "split", "cat", "slice", "unsqueeze"]),
        st.integers(0, 5000),
    ),
    min_size=2,
    max_size=8,
)


def play(x: Tensor, operations: list[tuple[str, int]]) -> Tensor:
    """A sequence of shape operations, chosen by numbers."""
    for name, seed in operations:
        axis = seed % x.ndim
        length = x.shape[axis]
        if name == "permute":
            x = x.movedim(axis, seed // 7 % x.ndim)
        elif name == "merge" and axis + 1 < x.ndim:
            x = x.flatten(axis, axis + 1)
        elif name == "split":
            divisors = [d for d in range(1, length + 1) if length % d == 0]
            x = x.unflatten(axis, (-1, divisors[seed // 7 % len(divisors)]))
        elif name == "cat" and x.numel() < 4000:
            x = torch.cat([x.narrow(axis, 0, (length + 1) // 2), x], axis)
        elif name == "slice" and length > 1:
            divisors = [d for d in range(1, length) if length % d == 0]
            block = divisors[seed // 7 % len(divisors)]  # aligned, as where a merged axis is cut again
            start = seed // 11 % (length // block)
            x = x.narrow(axis, start * block, (1 + seed // 13 % (length // block - start)) * block)
        elif name == "unsqueeze":
            x = x.unsqueeze(axis)
    return x


class Played(nn.Module):
    def __init__(self, shape: list[int], operations: list[tuple[str, int]]):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape))
        self.operations = operations

    def forward(self, x: Tensor) -> Tensor:
        return play(self.weight + x, self.operations)


@settings(max_examples=500)
@given(shape=st.lists(st.sampled_from([2, 3, 4, 6, 12]), min_size=2, max_size=3), operations=OPERATIONS)
def test_owners_follow_the_real_operations(shape: list[int], operations: list[tuple[str, int]]) -> None:
    model = Played(shape, operations)
    weight: Any = [Atom(length) for length in shape]
    tensors = {"weight": model.weight.detach()}
    tracer = Tracer(model, tensors, {"weight": weight}, strict=False)
    output = trace(model, torch.zeros(()), tracer, tensors, training=False)
    terms = tracer.label(output).axes
    assert [size(term) for term in terms] == list(output.shape)
    for axis, length in enumerate(shape):
        # Give each position of the axis the number of the neuron that the algebra says owns it ...
        for atom in set(leaves(weight[axis])):
            if any(reason.kind in (Kind.NO_RULE, Kind.SIZE_ONE) or "no rule" in reason.text for reason in atom.fixed):
                continue
            numbers = owners(weight[axis], atom).reshape([length if i == axis else 1 for i in range(len(shape))])
            real = play(numbers.expand(shape), operations)
            # ... and let the real operations carry the numbers through.
            predicted = [owners(term, atom) for term in terms]
            expected = torch.full((), -1)
            for number, each in enumerate(predicted):
                view = [-1 if i == number else 1 for i in range(len(terms))]
                expected = torch.maximum(expected, each.view(view) if terms else each)
            inside = real >= 0
            assert torch.equal(real[inside], expected.expand(real.shape)[inside])
            assert bool((expected.expand(real.shape)[~inside] == -1).all())


@settings(deadline=None)
@given(st.integers(2, 4), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
def test_a_question_about_another_size_is_answered_as_if_the_atom_had_it(a: int, b: int, c: int, more: int) -> None:
    def made(first: int) -> tuple[Atom, Term]:
        atom = Atom(first)
        return atom, concatenation([Atom(b), product([atom, Atom(c)]), product([Atom(2), atom])])

    atom, term = made(a)
    larger, expected = made(a + more)
    sizes = {atom: a + more}
    assert size(term, sizes) == size(expected)
    assert torch.equal(owners(term, atom, sizes), owners(expected, larger))
    assert torch.equal(new_positions(term, atom, more), positions_of(expected, larger)[a:])
    assert size(term) == b + a * c + 2 * a  # the atom is left alone
