"""Need around recurrent layers: gradients at the gates and projections inside their kernels, sample by sample."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

import neurogenesis as ng
from neurogenesis.candidates.folds import fan_out_gradient, fold_gradients
from neurogenesis.candidates.looks import Pass, Recorded
from neurogenesis.passes.context import StepContext
from neurogenesis.passes.inside import inside
from neurogenesis.passes.packing import items_of_rows
from neurogenesis.passes.replay import ModelCall
from neurogenesis.passes.samples import FOLDS, folds, identities
from neurogenesis.surgery.planning import plan_neurons
from tests.cases import randn
from tests.growing import step

KINDS = (nn.LSTM, nn.GRU, nn.RNN)
DEEP: dict[str, Any] = {"num_layers": 2, "bidirectional": True}
COUNT = 3
LENGTHS = torch.tensor([6, 3, 1, 5])


class Reader(nn.Module):
    """A layer in front of a recurrent layer, and what reads its outputs and its last states.

    Args:
        kind: the class of the recurrent layer.
        packed: whether sequences are packed ("padded": and padded again), whether the next layer reads their rows
            ("rows"), and whether the first one does, too ("first").
        given: whether initial states are given.
        tokens: whether the layer in front is an embedding.
        options: arguments of the recurrent layer.
    """

    def __init__(self, kind: Any, packed: str = "", given: bool = False, tokens: bool = False, **options: Any):
        super().__init__()
        torch.manual_seed(0)
        self.packed, self.given = packed, given
        self.act = nn.Tanh()
        self.embed: nn.Module = nn.Embedding(7, 4) if tokens else nn.Linear(3, 4)
        self.rnn = kind(4, 9 if "proj_size" in options else 5, **options)
        size = self.rnn.proj_size or 5
        self.head, self.of_states = nn.Linear(size * (1 + self.rnn.bidirectional), 2), nn.Linear(size, 2)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs at all steps, batch first, and those of the last states."""
        first, rnn = self.rnn.batch_first, self.rnn
        x = x if first else x.transpose(0, 1)
        x = x if self.packed == "first" else self.embed(x).tanh()
        if self.packed:
            x = pack_padded_sequence(x, lengths, batch_first=first, enforce_sorted=False)  # type: ignore[assignment]
        if self.packed == "first":
            x = x._replace(data=self.act(self.embed(x.data)))  # type: ignore[attr-defined]
        outputs, states = rnn(x, hx=self.start(len(lengths))) if self.given else rnn(input=x)
        if self.packed in ("rows", "first"):
            outputs = outputs._replace(data=self.head(outputs.data))
        if self.packed:
            outputs = pad_packed_sequence(outputs, batch_first=first)[0]
        if self.packed not in ("rows", "first"):
            outputs = self.head(outputs)
        states = states[0] if isinstance(states, tuple) else states
        return outputs if first else outputs.transpose(0, 1), self.of_states(states.transpose(0, 1))

    def start(self, items: int) -> Any:
        """Initial states of the present size, from numbers that do not depend on it."""
        weights = list(self.rnn.parameters())
        directions = self.rnn.num_layers * (1 + self.rnn.bidirectional)
        h = torch.linspace(-1, 1, items, dtype=torch.float64)[:, None].expand(directions, items, weights[1].shape[1])
        c = h[..., :1].expand(directions, items, self.rnn.hidden_size)
        return (h.contiguous(), c.contiguous()) if isinstance(self.rnn, nn.LSTM) else h.contiguous()


def loss_of_samples(model: nn.Module, x: Tensor, chosen: Tensor) -> Tensor:
    """The part of some samples in the mean loss of all."""
    outputs, last = model(x, LENGTHS)
    real = torch.arange(outputs.shape[1]) < LENGTHS[:, None]
    losses = (outputs.sin().square().sum(-1) * real).sum(1) + last.cos().square().sum((1, 2))
    return losses[chosen].sum() / len(x)


def inputs(tokens: bool = False) -> Tensor:
    return torch.arange(24).reshape(4, 6) * 5 % 7 if tokens else randn(4, 6, 3).double()


CASES = [
    *((kind, {"packed": packed}) for kind in KINDS for packed in ("", "padded", "rows", "first")),
    *((kind, {"packed": packed, **DEEP}) for kind in KINDS for packed in ("", "rows")),
    *((kind, {"packed": packed, "bias": False, "batch_first": True}) for kind in KINDS for packed in ("", "padded")),
    (nn.RNN, {"nonlinearity": "relu"}),
    *((nn.LSTM, {"packed": packed, "proj_size": 2}) for packed in ("", "padded", "rows")),
    *((nn.LSTM, {"packed": packed, "proj_size": 2, **DEEP}) for packed in ("", "rows")),
    (nn.LSTM, {"proj_size": 2, "bias": False, "batch_first": True}),
    *((nn.GRU, {"packed": packed, "tokens": True}) for packed in ("", "first")),
]
NAMED = [pytest.param(*case, id=f"{case[0].__name__} {' '.join(map(str, case[1].values()))}") for case in CASES]


@pytest.mark.parametrize(("kind", "options"), NAMED)
def test_gradients_of_would_be_neurons_are_those_of_neurons_that_are_there_in_each_fold(
    kind: Any, options: dict[str, Any]
) -> None:
    model, x = Reader(kind, **options).double(), inputs("tokens" in options)
    grower = ng.Grower(model, optim.SGD(model.parameters(), lr=0.0), "need", example=(x, LENGTHS), seed=0)
    assert {layer.name for layer in grower.layers} == {"embed", "rnn", *(["rnn#2"] if "proj_size" in options else [])}
    loss_of_samples(model, x, torch.ones(4, dtype=torch.bool)).backward()
    grower.optimizers[0].step()
    ids = identities(ModelCall.of((x, LENGTHS), {}))
    assert ids is not None
    fold_of = folds(ids)
    assert len(fold_of.unique()) > 1
    for layer in grower.layers:
        fan_ins = layer.random_fan_ins(COUNT, torch.Generator().manual_seed(1))
        with torch.no_grad(), layer.during(StepContext(samples=grower.samples)):
            passes = layer.passes_with(fan_ins)
            later = layer.passes_with(fan_ins, later=True)
        grown, axes = copy.deepcopy(model), (layer.producer, *layer.other_producers)
        values = {(a.tensor, a.axis): layer.values(a, rows) for a, rows in zip(axes, fan_ins, strict=True)}
        width = ng.widths(grown, (x, LENGTHS))[layer.name]
        plan_neurons(grown, width, COUNT, values, generator=torch.Generator().manual_seed(0)).apply(grown)
        for record, (seen,), (recorded,) in zip(layer.records, passes, later, strict=True):
            assert isinstance(seen, Pass)
            if isinstance(recorded, Recorded):
                torch.testing.assert_close(recorded.completed(seen.h).owners, seen.owners)
            axis = record.route.consumer
            consumer = record.route.place(model, axis)
            found, _ = fold_gradients(consumer, seen.h, seen.D, seen.owners)
            columns = width.positions(axis)[-COUNT:].flatten()
            present = [a for a in width.axes if a.tensor == axis.tensor and a.axis != axis.axis]
            others = [fold for fold in range(FOLDS) if fold not in fold_of.tolist()]
            assert not found[others].any()
            for fold in fold_of.unique().tolist():
                grown.zero_grad()
                loss_of_samples(grown, x, fold_of == fold).backward()
                gradient = grown.get_parameter(axis.tensor).grad
                assert gradient is not None
                for own in present:  # fan-out to the present neurons only
                    gradient = gradient.index_select(own.axis, width.positions(own)[:-COUNT].flatten())
                expected = gradient.movedim(axis.axis, 0)[columns].flatten(1)
                torch.testing.assert_close(found[fold], expected, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("rows", ["one", "several", "packed"])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (nn.LSTM, {**DEEP, "dropout": 0.5}),
        (nn.GRU, {"num_layers": 3, "dropout": 0.5}),
        (nn.RNN, DEEP),
        (nn.LSTM, {"num_layers": 3, "dropout": 0.5, "proj_size": 2, "bidirectional": True}),
        (nn.LSTM, {"num_layers": 2, "dropout": 0.5, "proj_size": 3, "bias": False}),
    ],
)
def test_inputs_times_gradients_are_the_gradient_of_the_weight(
    kind: Any, options: dict[str, Any], batch_first: bool, given: bool, rows: str
) -> None:
    """Of every weight inside a recurrent layer that is watched, with the same dropout between its layers."""
    torch.manual_seed(0)
    rnn = kind(3, 5, batch_first=batch_first, **options).double()
    x: Any = randn(6, 3).double() if rows == "one" else randn(*((4, 6) if batch_first else (6, 4)), 3).double()
    if rows == "packed":
        x = pack_padded_sequence(x, LENGTHS, batch_first=batch_first, enforce_sorted=False)
    depth, items = rnn.num_layers * (1 + rnn.bidirectional), () if rows == "one" else (4,)
    h, c = (randn(depth, *items, size).double() for size in (rnn.proj_size or 5, 5))
    start = ((h, c) if kind is nn.LSTM else h) if given else None
    seen: dict[str, dict[str, Tensor]] = {}
    for name, _ in rnn.named_parameters():
        if (place := inside(name, rnn)) is not None:
            own = seen.setdefault(name, {})
            place.observe("input", lambda tensor, own=own: own.__setitem__("H", tensor))
            place.observe(
                "output", lambda tensor, own=own: tensor.register_hook(lambda D, own=own: own.__setitem__("D", D))
            )
    projections = rnn.num_layers if rnn.proj_size else 0
    assert len(seen) == (1 + projections) * (1 + rnn.bidirectional)
    output, states = rnn(x, start)
    output = output.data if isinstance(output, PackedSequence) else output
    states = states[1] if isinstance(states, tuple) else states
    (output.sin().square().sum() + states.sin().square().sum()).backward()
    for name, own in seen.items():
        found = fan_out_gradient(inside(name, rnn), own["H"], own["D"])  # type: ignore[arg-type]
        torch.testing.assert_close(found.T, rnn.get_parameter(name).grad, rtol=1e-10, atol=1e-14)


def test_the_random_numbers_of_training_are_those_without_a_watch() -> None:
    def trained(watched: bool) -> list[Tensor]:
        model = Reader(nn.LSTM, num_layers=2, dropout=0.5, proj_size=2)
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        grower = ng.Grower(model, optimizer, "need", example=(inputs().float(), LENGTHS), seed=0) if watched else None
        torch.manual_seed(1)
        for _ in range(4):
            step(model, optimizer, (inputs().float(), LENGTHS))
            if grower is not None:
                grower.step()
        return [parameter.detach() for parameter in model.parameters()]

    for a, b in zip(trained(False), trained(True), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("reentrant", [False, True])
def test_gates_are_watched_inside_activation_checkpointing(reentrant: bool) -> None:
    class Checkpointed(Reader):
        inside = True

        def forward(self, x: Tensor, lengths: Tensor) -> Any:  # type: ignore[override]
            x = self.embed(x).tanh()
            run = self.rnn if not self.inside else lambda x: checkpoint(self.rnn, x, use_reentrant=reentrant)
            return self.head(run(x)[0])

    seen = []
    for inside_checkpoint in (False, True):
        model, x = Checkpointed(nn.GRU).double(), inputs()
        del model.of_states
        model.inside = inside_checkpoint
        grower = ng.Grower(model, optim.SGD(model.parameters(), lr=0.0), "need", example=(x, LENGTHS), seed=0)
        step(model, grower.optimizers[0], (x, LENGTHS))
        layer = grower.layers[0]
        fan_ins = layer.random_fan_ins(COUNT, torch.Generator().manual_seed(1))
        ((found,),) = layer.passes_with(fan_ins)
        seen.append(found)
    for name in ("H", "h", "D"):
        torch.testing.assert_close(getattr(seen[0], name), getattr(seen[1], name), rtol=0, atol=1e-15)


def test_the_items_of_packed_sequences_are_the_sequences_however_they_are_packed() -> None:
    """As an input of a model, too: in any order, and beside others of any length."""
    x = inputs()
    packed = pack_padded_sequence(x, LENGTHS, batch_first=True, enforce_sorted=False)
    rows = items_of_rows(packed)
    for item, length in enumerate(LENGTHS.tolist()):
        assert torch.equal(packed.data[rows == item], x[item, :length])
    ids = identities(ModelCall.of((packed,), {}))
    assert ids is not None
    assert ids.shape == (4,)
    for order in ([2, 0, 1, 3], [3, 1]):
        some = pack_padded_sequence(x[order], LENGTHS[order], batch_first=True, enforce_sorted=False)
        found = identities(ModelCall.of((), {"x": some}))
        assert found is not None
        assert torch.equal(found, ids[order])
    longer = pack_padded_sequence(x, LENGTHS + torch.tensor([0, 0, 0, 1]), batch_first=True, enforce_sorted=False)
    changed = identities(ModelCall.of((longer,), {}))
    assert changed is not None
    assert (changed == ids).tolist() == [True, True, True, False]


class Tagger(nn.Module):
    """A model of packed sequences, which returns a packed sequence's rows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.rnn, self.head = nn.Linear(3, 2), nn.GRU(2, 2), nn.Linear(2, 3)

    def forward(self, x: PackedSequence) -> Tensor:
        states, _ = self.rnn(x._replace(data=self.embed(x.data).tanh()))
        return self.head(states.data)


def test_a_model_of_packed_sequences_that_is_too_small_grows() -> None:
    model = Tagger()
    optimizer = optim.Adam(model.parameters(), lr=0.02)
    grower = ng.Grower(model, optimizer, seed=0)
    for number in range(60):
        generator = torch.Generator().manual_seed(number)
        x, lengths = torch.randn(32, 6, 3, generator=generator), torch.randint(2, 7, (32,), generator=generator)
        signs = torch.stack([x[..., 0].sign(), (x[..., 0] * x[..., 1]).sign(), (x.cumsum(1)[..., 2]).sign()], -1)
        given, wanted = (pack_padded_sequence(each, lengths, True, enforce_sorted=False) for each in (x, signs))
        optimizer.zero_grad()
        (model(given) - wanted.data).square().mean().backward()
        optimizer.step()
        grower.step()
    assert all(size > 2 for size in grower.widths.values())
    assert set(grower.widths) == {"embed", "rnn"}


def test_would_be_neurons_do_not_make_a_projection_as_large_as_what_it_projects() -> None:
    """32 of them and 4 present ones: of equal sizes, kernels take a layer for one without projections."""
    torch.manual_seed(0)

    class Projected(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.LSTM(3, 36, proj_size=4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[0])

    model = Projected()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    grower = ng.Grower(model, optimizer, "need", example=randn(5, 4, 3))
    for _ in range(3):
        step(model, optimizer, randn(5, 4, 3))
        grower.step()
    layer = next(each for each in grower.layers if each.name == "rnn#2")
    assert layer.memory["window"]


class Own(nn.LSTM):
    def forward(self, x: Tensor, hx: Any = None) -> Any:  # type: ignore[override]
        return super().forward(2 * x, hx)


class Cells(nn.Module):
    def __init__(self, size: int, hidden: int):
        super().__init__()
        self.cell = nn.GRUCell(size, hidden)

    def forward(self, x: Tensor) -> Any:
        state = self.cell(x[0])
        return torch.stack([state := self.cell(each, state) for each in x]), state


@pytest.mark.parametrize(
    ("kind", "reason"),
    [(Own, "rnn is a recurrent layer with a forward method of its own"), (Cells, "rnn.cell is a recurrent cell")],
)
def test_what_need_cannot_watch_says_why_and_grows_on_a_schedule(kind: Any, reason: str) -> None:
    class Embedded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.rnn, self.head = nn.Linear(3, 4), kind(4, 5), nn.Linear(5, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(self.embed(x).tanh())[0])

    model, x = Embedded(), randn(4, 6, 3)
    with pytest.warns(UserWarning, match=f"embed: its consumer {reason}"):
        ng.Grower(model, optim.SGD(model.parameters(), lr=0.1), "need", example=x)
    grower = ng.Grower(model, optim.SGD(model.parameters(), lr=0.1), ng.Strategy(ng.triggers.Linear(2, 7), "random"))
    for _ in range(3):
        step(model, grower.optimizers[0], x)
        grower.step()
    assert set(grower.widths.values()) == {7}
