"""Recurrent layers: gates, layers, directions, projections and states, against recurrences written out."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

import neurogenesis as ng
from tests.cases import randn
from tests.growing import step
from tests.oracles import insert

KINDS = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}  # and the number of gates
OPTIONS: list[dict[str, Any]] = [
    {},
    {"num_layers": 2, "bidirectional": True},
    {"bias": False, "batch_first": True},
    {"num_layers": 3, "dropout": 0.0},
]


class Reader(nn.Module):
    """A recurrent layer and what reads its outputs and its last states."""

    def __init__(self, kind: type[nn.RNNBase], **options: Any):
        super().__init__()
        torch.manual_seed(0)
        self.rnn: Any = kind(3, 5, **options)
        states = self.rnn.proj_size or 5
        self.head = nn.Linear(states * (2 if options.get("bidirectional") else 1), 2)
        self.of_states = nn.Linear(states, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        outputs, states = self.rnn(x)
        states = states[0] if isinstance(states, tuple) else states
        return self.head(outputs), self.of_states(states)


def one_step(kind: type[nn.RNNBase], x: Tensor, hc: tuple[Tensor, Tensor], weights: Sequence[Any]) -> Any:
    """One step of one layer, gate by gate; see the documentation of torch."""
    w, u, b, v = (None if each is None else each.chunk(KINDS[kind]) for each in weights)
    h, c = hc
    nothing = [0.0] * KINDS[kind]
    own = [x @ each.T + bias for each, bias in zip(w, b or nothing, strict=True)]
    back = [h @ each.T + bias for each, bias in zip(u, v or nothing, strict=True)]
    if kind is nn.RNN:
        return (own[0] + back[0]).tanh(), c
    if kind is nn.GRU:
        r, z = (own[0] + back[0]).sigmoid(), (own[1] + back[1]).sigmoid()
        return (1 - z) * (own[2] + r * back[2]).tanh() + z * h, c
    i, f, g, o = (a + b for a, b in zip(own, back, strict=True))
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def written_out(rnn: Any, x: Tensor) -> Tensor:
    """Outputs of a recurrent layer, time x batch x features."""
    x = x.transpose(0, 1) if rnn.batch_first else x
    for layer in range(rnn.num_layers):
        directions = []
        for suffix in ("", "_reverse")[: 1 + rnn.bidirectional]:
            names = [f"{name}_l{layer}{suffix}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
            weights = [getattr(rnn, name, None) for name in names]
            size = weights[1].shape[1]
            hc = (x.new_zeros(x.shape[1], size), x.new_zeros(x.shape[1], len(weights[1]) // KINDS[type(rnn)]))
            seen = []
            for each in reversed(x) if suffix else x:
                hc = one_step(type(rnn), each, hc, weights)
                seen.append(hc[0])
            directions.append(torch.stack(seen[::-1] if suffix else seen))
        x = torch.cat(directions, -1)
    return x


def blocks(rnn: Any, width: ng.Width, count: int) -> Iterator[tuple[str, int, list[int]]]:
    """By name and axis of each parameter, where new neurons belong: at the end of each gate and of each direction."""
    gates, size = KINDS[type(rnn)], width.size
    for name, parameter in rnn.named_parameters():
        for axis, repeats in ((0, gates), (1, parameter.shape[1] // size if parameter.ndim > 1 else 0)):
            if axis == 1 and ("weight_ih_l0" in name or not repeats):
                continue
            starts = [size + block * (size + count) for block in range(repeats)]
            yield f"rnn.{name}", axis, [start + each for start in starts for each in range(count)]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda each: ",".join(each) or "plain")
@pytest.mark.parametrize("kind", KINDS)
def test_new_neurons_have_random_gates_and_no_fan_out(kind: type[nn.RNNBase], options: dict[str, Any]) -> None:
    model, x = Reader(kind, **options).double(), randn(4, 4, 3).double()
    found = ng.widths(model, x)
    assert {width.name: width.size for width in found.growable} == {"rnn": 5}
    rnn, before = model.rnn, {name: p.detach().clone() for name, p in model.named_parameters()}
    outputs, last = rnn(x)
    places = list(blocks(rnn, found["rnn"], 2))
    plan = ng.grow(model, "rnn", 2, generator=torch.Generator().manual_seed(1))
    assert {(edit.tensor, edit.axis): edit.positions.tolist() for edit in plan.edits if "rnn" in edit.tensor} == {
        (name, axis): positions for name, axis, positions in places
    }
    after = dict(model.named_parameters())
    rows = {name: positions for name, axis, positions in places if axis == 0}
    columns = {name: positions for name, axis, positions in places if axis == 1}
    for name, positions in rows.items():  # the old entries, with what was inserted between them
        new, expected = after[name].detach(), before[name]
        if name in columns:
            assert not new[:, columns[name]].any()  # no fan-out into old gates, nor into new ones yet
            expected = insert(expected, 1, columns[name], new.new_zeros(len(expected), len(columns[name])))
        assert torch.equal(new, insert(expected, 0, positions, new[positions]))
        if "weight" in name:  # recurrent ones, too
            kept = [each for each in range(new.shape[1]) if each not in columns.get(name, [])]
            assert new[positions][:, kept].all(), f"{name} has zeros in the fan-in of new neurons"
        else:
            assert not new[positions].any()
    assert rnn.hidden_size == 7
    grown, grown_last = rnn(x)
    for old, new in ((outputs, grown), *zip(states_of(last), states_of(grown_last), strict=True)):
        directions = new.shape[-1] // 7
        kept = [7 * direction + each for direction in range(directions) for each in range(5)]
        torch.testing.assert_close(new[..., kept], old, rtol=0, atol=1e-14)
    grown = grown.transpose(0, 1) if rnn.batch_first else grown
    torch.testing.assert_close(grown, written_out(rnn, x), rtol=0, atol=1e-14)


def states_of(last: Any) -> tuple[Tensor, ...]:
    return last if isinstance(last, tuple) else (last,)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_of_the_kernels_are_the_parameters(kind: type[nn.RNNBase]) -> None:
    model, x = Reader(kind, num_layers=2), randn(4, 2, 3)
    ng.grow(model, "rnn", 2, example=x)
    held = list(model.rnn.parameters())
    assert all(a is b for a, b in zip(model.rnn._flat_weights, held, strict=True))
    assert [name for name, _ in model.rnn.named_parameters()] == model.rnn._flat_weights_names
    expected = model(x)
    model.rnn.flatten_parameters()
    ng.shrink(model, "rnn", [6, 5])
    assert model.rnn.hidden_size == 5
    for a, b in zip(expected, model(x), strict=True):
        torch.testing.assert_close(a, b)


def test_weights_in_one_block_of_memory_are_flattened_again() -> None:
    """As for the kernels of GPUs; a block that other parameters share is refused."""

    class Counting(nn.LSTM):
        flattened = 0

        def flatten_parameters(self) -> None:
            Counting.flattened += 1

    model, x = nn.Sequential(Reader(Counting)), randn(4, 2, 3)
    held = list(model[0].rnn.parameters())
    block = torch.cat([each.detach().flatten() for each in held])
    for each, part in zip(held, block.split([each.numel() for each in held]), strict=True):
        each.data = part.view_as(each)
    ng.widths(model, x)
    expected, before = model(x), Counting.flattened
    ng.grow(model, "0.rnn", 2)
    assert Counting.flattened == before + 1
    for a, b in zip(expected, model(x), strict=True):
        torch.testing.assert_close(a, b)
    model[0].head.bias.data = held[2].data[:2]
    with pytest.raises(ValueError, match="shares its memory"):
        ng.grow(model, "0.rnn", 1)


@pytest.mark.parametrize("kind", KINDS)
def test_every_new_weight_learns_within_two_steps(kind: type[nn.RNNBase]) -> None:
    """The fan-out learns at once, the fan-in and what new neurons tell each other when there is a fan-out."""
    model, x = Reader(kind, num_layers=2, bidirectional=True).double(), randn(4, 6, 3).double()
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    step(model, optimizer, x)
    plan = ng.grow(model, "rnn", 2, optimizer=optimizer, example=x)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        assert all(optimizer.state[parameter][name].shape == parameter.shape for name in ("exp_avg", "exp_avg_sq"))
    for _ in range(2):
        step(model, optimizer, x)
    for edit in plan.edits:
        same = dict(model.named_parameters())[edit.tensor].detach() == before[edit.tensor]
        assert not same.index_select(edit.axis, edit.positions).any(), f"{edit} has not learned"


@pytest.mark.parametrize("kind", KINDS)
def test_schedules_grow_hidden_sizes_while_they_train(kind: type[nn.RNNBase]) -> None:
    model, x = Reader(kind), randn(4, 6, 3)
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    grower = ng.Grower(model, optimizer, ng.Strategy(ng.triggers.Linear(8, final=9), "random"), seed=0)
    losses = []
    for _ in range(12):
        losses.append(float(step(model, optimizer, x)))
        grower.step()
    assert model.rnn.hidden_size == grower.widths["rnn"] == 9
    assert [event.after for event in grower.history] == [6, 7, 8, 9]
    assert losses[-1] < losses[0]


class Projected(Reader):
    def __init__(self) -> None:
        super().__init__(nn.LSTM, proj_size=2)


def test_projections_stay_smaller_than_what_is_projected() -> None:
    """Of equal sizes, the kernels of torch take a layer for one without projections."""
    model, x = Projected().double(), randn(4, 2, 3).double()
    found = ng.widths(model, x)
    assert found.sizes == {"rnn": 5, "rnn#2": 2}
    expected = model(x)
    with pytest.raises(ValueError, match=r"rnn#2 cannot grow by 3: rnn.proj_size = 5 must be less than .* = 5: resize"):
        ng.grow(model, "rnn#2", 3)
    with pytest.raises(ValueError, match=r"rnn cannot shrink by 3: rnn.proj_size = 2 must be less than .* = 2: resize"):
        ng.shrink(model, "rnn", [0, 1, 2])
    ng.grow(model, "rnn#2", 2)
    ng.grow(model, "rnn", 1)
    assert (model.rnn.hidden_size, model.rnn.proj_size) == (6, 4)
    for a, b in zip(expected, model(x), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-14)
    optimizer = optim.SGD(model.parameters(), lr=0.01)
    grower = ng.Grower(model, optimizer, ng.Strategy(ng.triggers.Linear(4, final={"rnn": 7, "rnn#2": 9}), "random"))
    for _ in range(6):
        step(model, optimizer, x)
        grower.step()
    assert grower.widths == {"rnn": 7, "rnn#2": 6}


@pytest.mark.parametrize("given", ["by the user", "by the model"])
def test_states_that_cross_the_border_of_the_model_fix_its_size(given: str) -> None:
    class Stateful(Reader):
        def forward(self, x: Tensor, state: Tensor | None = None) -> Any:  # type: ignore[override]
            outputs, state = self.rnn(x, state)
            return self.head(outputs) if given == "by the user" else (self.head(outputs), state)

    example = (randn(4, 2, 3), randn(1, 2, 5)) if given == "by the user" else randn(4, 2, 3)
    model = Stateful(nn.GRU)
    del model.of_states
    assert ("model's input" if given == "by the user" else "model's output") in (
        ng.widths(model, example)["rnn"].reason or ""
    )


def test_a_written_size_of_an_initial_state_fixes_it() -> None:
    class Written(Reader):
        def forward(self, x: Tensor) -> Any:  # type: ignore[override]
            return self.head(self.rnn(x, torch.zeros(1, 2, 5))[0])

    model = Written(nn.GRU)
    del model.of_states
    reason = ng.widths(model, randn(4, 2, 3))["rnn"].reason
    assert reason == "the model fails when it grows: Expected hidden size (1, 2, 8), got [1, 2, 5]"


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_the_gates_of_a_gpu_are_blocks(cell: str) -> None:
    """There, cells run as one operation each, which is computed here in its stead."""
    library = torch.library.Library("aten", "IMPL")
    gates = 4 if cell == "lstm" else 3

    def lstm(own: Tensor, back: Tensor, c: Tensor, b: Tensor | None = None, v: Tensor | None = None) -> Any:
        i, f, g, o = (own + b + back + v).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c, own.new_zeros(1)

    def gru(own: Tensor, back: Tensor, h: Tensor, b: Tensor | None = None, v: Tensor | None = None) -> Any:
        (r, z, n), (rh, zh, nh) = (own + b).chunk(3, -1), (back + v).chunk(3, -1)
        z = (z + zh).sigmoid()
        return (1 - z) * (n + (r + rh).sigmoid() * nh).tanh() + z * h, own.new_zeros(1)

    library.impl(f"_thnn_fused_{cell}_cell", lstm if cell == "lstm" else gru, "CPU")

    class Fused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.u = nn.Parameter(randn(5 * gates, 3)), nn.Parameter(randn(5 * gates, 5))
            self.b, self.v = nn.Parameter(randn(5 * gates)), nn.Parameter(randn(5 * gates))
            self.head = nn.Linear(5, 2)

        def forward(self, x: Tensor) -> Tensor:
            state = x.new_zeros(x.shape[1], self.head.in_features)
            cell_state = state
            for each in x:
                own, back = each @ self.w.T, state @ self.u.T
                if cell == "lstm":
                    state, cell_state, _ = torch.ops.aten._thnn_fused_lstm_cell(own, back, cell_state, self.b, self.v)
                else:
                    state, _ = torch.ops.aten._thnn_fused_gru_cell(own, back, state, self.b, self.v)
            return self.head(state)

    with torch.no_grad():
        model = Fused().double()
        found = ng.widths(model, randn(4, 2, 3).double())
        assert {width.name: width.size for width in found.growable} == {"w": 5}
        assert found["w"].producers[0].per_neuron == gates
        expected = model(randn(4, 2, 3).double())
        ng.grow(model, "w", 2)
        torch.testing.assert_close(model(randn(4, 2, 3).double()), expected, rtol=0, atol=1e-14)
    library._destroy()


@pytest.mark.parametrize("kind", KINDS)
def test_need_grows_a_hidden_size_that_is_too_small_and_goes_on_to_the_bit(kind: type[nn.RNNBase]) -> None:
    """Two units cannot hold three signs: of a number, of its sum with the last one, and of their product."""

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.rnn: Any = kind(1, 2)
            self.head = nn.Linear(2, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[0])

    def train(model: nn.Module, grower: ng.Grower, first: int, last: int) -> None:
        for number in range(first, last):
            x = torch.randn(6, 64, 1, generator=torch.Generator().manual_seed(number))
            sums = torch.cat([x.sign(), (x + x.roll(1, 0)).sign(), (x * x.roll(1, 0)).sign()], -1)
            loss = (model(x)[1:] - sums[1:]).square().mean()
            grower.optimizers[0].zero_grad()
            loss.backward()
            grower.optimizers[0].step()
            grower.step()

    def fresh() -> tuple[Any, ng.Grower]:
        model = Classifier()
        optimizer = optim.Adam(model.parameters(), lr=0.02)
        return model, ng.Grower(model, optimizer, "need", example=torch.randn(6, 2, 1), seed=0)

    model, grower = fresh()
    train(model, grower, 0, 35)
    file = io.BytesIO()
    ng.save(file, model, grower.optimizers[0], grower)
    train(model, grower, 35, 60)
    assert model.rnn.hidden_size == grower.widths["rnn"] > 2
    file.seek(0)
    resumed, other = fresh()
    ng.load(file, resumed, other.optimizers[0], other)
    train(resumed, other, 35, 60)
    for a, b in zip(model.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("strategy", "grows"),
    [("north-random", True), ("north-integrated", True), ("north-weight", True), ("gradmax", False)],
)
def test_strategies_grow_recurrent_layers_or_say_why_not(strategy: str, grows: bool) -> None:
    model, x = Reader(nn.LSTM), randn(5, 8, 3)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    if not grows:
        with pytest.raises(ValueError, match="rnn: rnn is a recurrent layer"):
            ng.Grower(model, optimizer, strategy, example=x)
        return
    grower = ng.Grower(model, optimizer, strategy, example=x, max_width=9)
    for _ in range(3):
        step(model, optimizer, x)
        grower.step()
    assert 5 <= model.rnn.hidden_size == grower.widths["rnn"] <= 9
