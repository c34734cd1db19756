"""Need asks whether the gradients of would-be neurons last: exact gradients, an exact statistic, and what follows."""

from __future__ import annotations

import copy
import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import neurogenesis as ng
from neurogenesis.candidates import folds as fold_sums
from neurogenesis.candidates import windows
from neurogenesis.candidates.fits import RIDGE
from neurogenesis.candidates.folds import fan_out_gradient, fold_gradients
from neurogenesis.candidates.looks import Pass, Recorded, joined, sampled_rows
from neurogenesis.candidates.record import ENOUGH_ROWS
from neurogenesis.candidates.rows import row_samples
from neurogenesis.candidates.steps import after_look, record_waiting
from neurogenesis.candidates.windows import Statistics, Window
from neurogenesis.passes.processes import Processes
from neurogenesis.passes.samples import FOLDS, Samples, folds, mixed
from neurogenesis.surgery.planning import plan_neurons
from tests.cases import CASES, Case
from tests.growing import loss_of, mlp, small_vgg
from tests.promises import unsettle, without_chance

COUNT = 3


def watched(model: nn.Module, example: Any, **options: Any) -> ng.Grower | None:
    """A grower after a step that changes nothing, with what it recorded; None if need supports no width."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            grower = ng.Grower(model, optimizer, "need", example=example, **{"max_width": {"heads": "9x"}, **options})
        except ValueError:
            return None
    model.train()
    loss_of(model, example).backward()
    optimizer.step()
    return grower


def prepared(case: Case) -> nn.Module:
    torch.manual_seed(0)
    model = case.make()
    unsettle(model)
    without_chance(model)
    return model


def supported_layers() -> Iterator[tuple[Case, str, bool]]:
    for case in CASES:
        grower = watched(prepared(case), case.example, **case.options)
        if grower is not None:
            for layer in grower.layers:
                if layer.has_gradients and not layer.tensor(layer.consumer).is_complex():
                    yield case, layer.name, any(layer._shortcuts)


SUPPORTED = list(supported_layers())
CHAINED = [(case, name) for case, name, chained in SUPPORTED if chained]


def layer_of(case: Case, name: str) -> tuple[nn.Module, ng.Layer]:
    model = prepared(case)
    grower = watched(model, case.example, **case.options)
    assert grower is not None
    return model, next(layer for layer in grower.layers if layer.name == name)


def explicit_gradients(
    model: nn.Module, layer: ng.Layer, case: Case, fan_ins: list[Tensor], biases: Tensor | None
) -> list[Tensor]:
    """Gradients of the fan-outs of neurons that are really there, with zero fan-out, at each consumer."""
    grown = copy.deepcopy(model)
    grown.zero_grad()
    width = ng.widths(grown, case.example, **case.options)[layer.name]
    values = {}
    for producer, fan_in in zip((layer.producer, *layer.other_producers), fan_ins, strict=True):
        values[producer.tensor, producer.axis] = layer.values(producer, fan_in)
    for bias in layer.biases:
        values[bias.tensor, bias.axis] = torch.zeros(COUNT * bias.per_neuron)
    if biases is not None and layer.bias is not None:
        values[layer.bias.tensor, layer.bias.axis] = layer.values(layer.bias, biases)
    plan_neurons(grown, width, COUNT, values, generator=torch.Generator().manual_seed(0)).apply(grown)
    loss_of(grown.train(), case.example).backward()
    result = []
    for consumer in (seen.route.consumer for seen in layer.records):
        gradient = grown.get_parameter(consumer.tensor).grad
        assert gradient is not None
        for axis in width.axes:
            if axis.tensor == consumer.tensor and axis.axis != consumer.axis:  # fan-out to the present neurons only
                gradient = gradient.index_select(axis.axis, width.positions(axis)[:-COUNT].flatten())
        columns = width.positions(consumer)[-COUNT:].flatten()
        result.append(gradient.movedim(consumer.axis, 0)[columns].flatten(1))
    return result


@pytest.mark.parametrize(("case", "name"), [each[:2] for each in SUPPORTED], ids=lambda each: str(each))
def test_fan_out_gradients_are_those_of_an_explicit_run_with_the_neurons(case: Case, name: str) -> None:
    model, layer = layer_of(case, name)
    if case.name == "used_twice" or (case.name, name) == ("variational_autoencoder", "encode"):
        pytest.skip("of a layer that is used twice, the first use is watched")
    fan_ins = layer.random_fan_ins(COUNT, torch.Generator().manual_seed(1))
    biases = layer.random_biases(fan_ins[0], torch.Generator().manual_seed(2))
    with torch.no_grad():
        passes = layer.passes_with(fan_ins, biases)
    expected = explicit_gradients(model, layer, case, fan_ins, biases)
    for seen, own, gradient in zip(layer.records, passes, expected, strict=True):
        consumer = seen.route.place(model, seen.route.consumer)
        found = sum(fan_out_gradient(consumer, each.h.to(each.D), each.D) for each in own)
        torch.testing.assert_close(found, gradient, rtol=1e-3, atol=1e-5 * max(float(gradient.abs().max()), 1e-6))


@pytest.mark.parametrize(("case", "name"), CHAINED, ids=lambda each: str(each))
def test_the_shortcut_gives_the_same_as_a_run_of_the_model(case: Case, name: str) -> None:
    _, layer = layer_of(case, name)
    fan_ins = layer.random_fan_ins(COUNT, torch.Generator().manual_seed(1))
    biases = layer.random_biases(fan_ins[0], torch.Generator().manual_seed(2))
    with torch.no_grad():
        short = layer.passes_with(fan_ins, biases)
        layer.__dict__["_shortcuts"] = [None] * len(layer.records)
        full = layer.passes_with(fan_ins, biases)
    for a, b in zip(itertools.chain(*short), itertools.chain(*full), strict=True):
        torch.testing.assert_close(a.h, b.h, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("scale", [0.01, 3.0])
def test_biases_of_would_be_neurons_are_as_large_as_what_they_get_from_an_input(scale: float) -> None:
    model = mlp(6, 8, 3)
    grower = ng.Grower(model, torch.optim.Adam(model.parameters()), "need")
    x = scale * torch.randn(64, 6)
    model(x).square().mean().backward()
    layer = grower.layers[0]
    fan_ins = layer.random_fan_ins(2000, torch.Generator().manual_seed(0))
    biases = layer.random_biases(fan_ins[0], torch.Generator().manual_seed(1))
    assert biases is not None
    assert float(biases.std()) == pytest.approx(float(x.square().mean().sqrt() * fan_ins[0].std()), rel=0.1)
    assert abs(float(biases.mean())) < 0.1 * float(biases.std())


@pytest.mark.parametrize("leading", [(400,), (8, 50), ()], ids=str)
@pytest.mark.parametrize("different", [400, 3], ids=["many samples", "few"])
def test_products_of_padded_folds_are_those_of_each_fold(
    leading: tuple[int, ...], different: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    x, D = torch.randn(*leading, 5), torch.randn(*leading, 7)
    samples = mixed(torch.arange(leading[0] if leading else 1) % different)
    consumer = nn.Linear(5, 7)
    found, counts = fold_gradients(consumer, x, D, samples)
    of_row = folds(row_samples(samples, leading, x.device))
    for fold in range(FOLDS):
        own = of_row == fold
        assert counts[fold] == own.sum()
        torch.testing.assert_close(found[fold], x.reshape(-1, 5)[own].T @ D.reshape(-1, 7)[own])
    monkeypatch.setattr(fold_sums, "MAX_PADDING", 0)
    monkeypatch.setattr(fold_sums, "SMALL", 0)
    one_by_one, again = fold_gradients(consumer, x, D, samples)
    torch.testing.assert_close(found, one_by_one)
    assert torch.equal(counts, again)


def test_both_ways_are_taken() -> None:
    assert 20 < len(CHAINED) < len(SUPPORTED)
    assert sum(len(layer_of(case, name)[1].records) > 1 for case, name, _ in SUPPORTED) > 5


# --- the statistic ---------------------------------------------------------------------------------------


TRAINING_SET = 200


def random_passes(
    consumer: nn.Module, steps: int, signal: float = 0.0, seed: int = 0, sizes: tuple[int, int] = (24, 40)
) -> list[list[Pass]]:
    """Steps of two passes each, of some samples of a training set whose gradients are along the candidates in part."""
    generator = torch.Generator().manual_seed(seed)
    positions = () if isinstance(consumer, nn.Linear) else (5, 5)

    def randn(channels: int) -> Tensor:
        return torch.randn(TRAINING_SET, channels, *positions, generator=generator)

    H, h, D = randn(4).relu(), randn(3).relu(), randn(6)
    D = D + signal * h.mean(1, keepdim=True)
    result = []
    for _ in range(steps):
        passes = []
        for size in sizes:
            ids = torch.randint(TRAINING_SET, (size,), generator=generator)
            factor = 1 + 0.1 * torch.randn(1, generator=generator)  # the network changes
            passes.append(Pass(factor * H[ids], factor * h[ids], D[ids], mixed(ids)))
        result.append(passes)
    return result


CONSUMERS: dict[str, Callable[[], nn.Module]] = {
    "dense": lambda: nn.Linear(4, 6),
    "conv": lambda: nn.Conv2d(4, 6, 3, padding=1),
    "transposed": lambda: nn.ConvTranspose2d(4, 6, 3, padding=1),
}


def window_of(layer: ng.Layer) -> Window:
    """The window in progress, in which nothing is put off."""
    return layer.settled(layer.memory["window"])


def new_window(consumer: Any, records: int = 1) -> Window:
    return Window.new([torch.zeros(3, 1, 7)], None, [(torch.Size((4, 7)), consumer.weight.shape)] * records)


def after_step(window: Window, consumers: Sequence[nn.Module], passes: Sequence[Sequence[Pass]]) -> Window:
    return record_waiting(after_look({"width": window}, [consumers], [passes]), [consumers])[0]


def after(consumer: nn.Module, steps: list[list[Pass]]) -> Window:
    window = new_window(consumer)
    for passes in steps:
        window = after_step(window, [consumer], [passes])
    return window


def statistics(window: Window) -> Statistics:
    found = window.statistics(TRAINING_SET)
    assert found is not None
    return found


def oracle(
    consumer: Any, steps: list[list[Pass]], weights_of_steps: Sequence[float] | None = None
) -> tuple[float, float, float, float]:
    """R, its error, the directions of noise, and R of the whole gradient: plain loops, autograd, an ordinary solver."""
    gradients: dict[int, list[Tensor]] = {}  # of each row or image, by fold
    whole_gradients: dict[int, list[Tensor]] = {}
    energies, variances = [], []
    seen: set[int] = set()
    fitted: list[tuple[float, Tensor]] = []  # weights and rows of all steps so far
    coefficients = torch.empty(0)
    new_rows = 0
    for passes in steps:
        shares = [-(-1024 * len(p.H) // sum(len(each.H) for each in passes)) for p in passes]
        X = torch.cat([sampled_rows(consumer, *each).double() for each in zip(passes, shares, strict=True)])
        rows = sum(p.H[:, 0].numel() for p in passes)
        forgotten = min(1.0, rows / (ENOUGH_ROWS * 4))
        fitted = [(weight * (1 - forgotten), own) for weight, own in fitted if forgotten < 1] + [(1.0, X)]
        effective, new_rows = sum(weight * len(own) for weight, own in fitted), new_rows + rows
        if not len(coefficients) or 4 * new_rows >= effective:
            weights = torch.cat([torch.full((len(own),), weight).double() for weight, own in fitted])[:, None]
            X = torch.cat([own for _, own in fitted])
            mean = (weights * X).sum(0) / weights.sum()
            centred = (X - mean) * weights.sqrt()
            ridge = RIDGE * centred[:, :4].square().sum(0).mean()
            padded = torch.cat([centred[:, :4], ridge.sqrt() * torch.eye(4, dtype=torch.float64)])
            target = torch.cat([centred[:, 4:], torch.zeros(4, 3, dtype=torch.float64)])
            slopes = torch.linalg.lstsq(padded, target).solution
            coefficients, new_rows = torch.cat([(mean[4:] - mean[:4] @ slopes)[None], slopes]), 0
        scale = torch.cat([p.D.flatten() for p in passes]).double().square().mean().sqrt()
        energy, variance = torch.zeros(2, 3, dtype=torch.float64)
        means = torch.cat([p.h.movedim(1, -1).reshape(-1, 3) for p in passes]).double().mean(0)
        for p in passes:
            for H, h, D, sample in zip(p.H.double(), p.h.double(), p.D.double(), p.samples, strict=True):  # type: ignore
                H, h = H.movedim(0, -1), h.movedim(0, -1)
                r = h - coefficients[0] - H @ coefficients[1:]
                for of, squares, result in ((r, energy, gradients), (h - means, variance, whole_gradients)):
                    squares += of.reshape(-1, 3).square().mean(0) / sum(len(each.H) for each in passes)
                    layer = copy.deepcopy(consumer).double()
                    axis = 0 if isinstance(consumer, nn.ConvTranspose2d) else 1  # of inputs
                    zeros = torch.zeros(3, 6, *consumer.weight.shape[2:], dtype=torch.float64)
                    layer.weight = nn.Parameter(zeros.movedim(0, axis))
                    (layer(of.movedim(-1, 0)[None]) * D[None] / scale).sum().backward()
                    result.setdefault(int(sample) % 16, []).append(layer.weight.grad.movedim(axis, 0).flatten(1))
                seen.add(int(sample))
        energies.append(energy)
        variances.append(variance)
    positions = 1 if isinstance(consumer, nn.Linear) else 25
    of_steps = torch.tensor(weights_of_steps or [1.0] * len(steps), dtype=torch.float64)
    energy, variance = (of_steps @ torch.stack(each) for each in (energies, variances))
    whole = plain_statistics(whole_gradients, variance, len(seen), positions)
    return (*plain_statistics(gradients, energy, len(seen), positions), whole[0])


def plain_statistics(
    gradients: dict[int, list[Tensor]], squares: Tensor, samples: int, positions: int
) -> tuple[float, float, float]:
    """R, its error, and the directions of noise, of the gradients of each row or image, by fold."""
    S = [(sum(own) / squares[:, None].sqrt()).flatten() for own in gradients.values()]
    n = [float(positions * len(own)) for own in gradients.values()]
    K = range(len(S))
    between = [(k, m) for k in K for m in K if k != m]
    P = sum(float(S[k] @ S[m]) for k, m in between) / sum(n[k] * n[m] for k, m in between)
    v = (sum(float(s @ s) for s in S) - P * sum(each**2 for each in n)) / sum(n) * samples / sum(n)
    mean = sum(S) / sum(n)
    centred = [(s - each * mean) / each**0.5 for s, each in zip(S, n, strict=True)]
    products = torch.tensor([float(centred[k] @ centred[m]) for k, m in between])
    spread = float(products.var(correction=0)) * (len(S) / (len(S) - 2)) ** 2
    error = (2 * spread / sum(n[k] * n[m] for k, m in between)) ** 0.5
    repeated = sum(n) / samples  # rows of a sample
    return P / (v / TRAINING_SET), error / (v / TRAINING_SET), v**2 * repeated**2 / spread


@pytest.mark.parametrize("kind", CONSUMERS)
@pytest.mark.parametrize("steps", [1, 5, 20])
@pytest.mark.parametrize("signal", [0.0, 0.5])
@pytest.mark.parametrize("sizes", [(24, 40), (5, 9)], ids=["enough for a fit", "few"])
def test_the_statistic_is_that_of_plain_loops(kind: str, steps: int, signal: float, sizes: tuple[int, int]) -> None:
    torch.manual_seed(0)
    consumer = CONSUMERS[kind]()
    passes = random_passes(consumer, steps, signal, sizes=sizes)
    with torch.no_grad():
        found = statistics(after(consumer, passes))
    assert found == pytest.approx(oracle(consumer, passes), rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("kind", CONSUMERS)
@pytest.mark.parametrize("sizes", [(24, 40), (16, 16), (5, 9)], ids=["different", "of one size", "few"])
def test_steps_that_are_recorded_together_are_one_with_all_their_passes(kind: str, sizes: tuple[int, int]) -> None:
    torch.manual_seed(0)
    consumer = CONSUMERS[kind]()
    steps = random_passes(consumer, 6, 0.5, sizes=sizes)
    window = new_window(consumer)
    with torch.no_grad():
        for number, passes in enumerate(steps):
            window = after_look({"width": window}, [[consumer]], [[passes]])[0]
            assert window.looks == number + 1
            if number in (3, 5):
                window = record_waiting([Window.from_state(window.state())], [[consumer]])[0]
        found = statistics(window)
    for passes in steps:
        scale = torch.cat([own.D.flatten() for own in passes]).square().mean().sqrt()
        passes[:] = [own._replace(D=own.D / scale) for own in passes]
    together = [[own for passes in steps[:4] for own in passes], [own for passes in steps[4:] for own in passes]]
    assert found == pytest.approx(oracle(consumer, together, [4, 2]), rel=1e-3, abs=1e-5)
    assert window.steps == window.records[0].steps == 6 and window.records[0].items == window.items == 6 * sum(sizes)


class Process(Processes):
    """One of two processes: it notes what it sends, and gets the given sums."""

    count = 2  # type: ignore[assignment]

    def __init__(self, totals: list[Tensor] | None = None):
        super().__init__()
        object.__setattr__(self, "sent", [])
        object.__setattr__(self, "totals", totals)

    def sums(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        self.sent.extend(tensors)  # type: ignore[attr-defined]
        return list(tensors) if self.totals is None else self.totals  # type: ignore[attr-defined]


def test_two_processes_wait_as_long_as_one_with_the_joined_batch() -> None:
    consumer = nn.Linear(4, 6)
    (passes,) = random_passes(consumer, 1, sizes=(5, 3))
    whole = after_look({"width": new_window(consumer)}, [[consumer]], [[passes]])[0].waiting
    sent = []
    for own in passes:
        process = Process()
        after_look({"width": new_window(consumer)}, [[consumer]], [[[own]]], process)
        sent.append(process.sent[0])  # type: ignore[attr-defined]
    for own in passes:
        process = Process([sent[0] + sent[1]])
        found = after_look({"width": new_window(consumer)}, [[consumer]], [[[own]]], process)[0].waiting
        assert (found.rows, found.items, found.numbers) == (whole.rows, whole.items, whole.numbers) == ((8,), (8,), 104)
    alone = Process([sent[0] + after_nothing(consumer)])  # the other process has not run the consumer
    found = after_look({"width": new_window(consumer)}, [[consumer]], [[[passes[0]]]], alone)[0].waiting
    assert found.looks == 0


def after_nothing(consumer: nn.Module) -> Tensor:
    process = Process()
    after_look({"width": new_window(consumer)}, [[consumer]], [[[]]], process)
    sent: Tensor = process.sent[0]  # type: ignore[attr-defined]
    return sent


def test_images_without_a_batch_are_not_joined() -> None:
    consumer = nn.Conv2d(4, 6, 3, padding=1)
    passes = [Pass(torch.randn(4, 5, 5), torch.randn(3, 5, 5), torch.randn(6, 5, 5), mixed(torch.arange(4)))] * 2
    found, factors = joined(consumer, passes, [1.0, 2.0], 10**6)
    assert len(found) == 2 and factors == [1.0, 2.0]
    batched = [
        own._replace(H=own.H[None], h=own.h[None], D=own.D[None], samples=mixed(torch.arange(1))) for own in passes
    ]
    (whole,), (of_items,) = joined(consumer, batched, [1.0, 2.0], 10**6)
    assert whole.H.shape == (2, 4, 5, 5) and of_items.flatten().tolist() == [1.0, 2.0]  # type: ignore[union-attr]
    assert len(joined(consumer, batched, [1.0, 2.0], 10)[0]) == 2  # too many numbers


@pytest.mark.parametrize("size", [64, TRAINING_SET])
def test_without_signal_the_ratio_is_zero_on_average_and_hardly_ever_significant(size: int) -> None:
    """Also if each step has all samples of the training set, so that there is no noise between steps."""
    consumer = nn.Linear(4, 6)
    results = []
    with torch.no_grad():
        for seed in range(60):
            generator = torch.Generator().manual_seed(seed)
            whole = [torch.randn(TRAINING_SET, size, generator=generator) for size in (4, 3, 6)]
            steps = []
            for _ in range(10):
                ids = torch.randperm(TRAINING_SET, generator=generator)[:size]
                steps.append([Pass(*(each[ids] for each in whole), mixed(ids))])
            results.append(statistics(after(consumer, steps)))
    ratios = torch.tensor([found.ratio for found in results])
    assert abs(float(ratios.mean())) < 3 * float(ratios.std()) / 60**0.5
    assert sum(found.ratio > max(1.0, 4 * found.error) for found in results) <= 3


@pytest.mark.parametrize("samples", [16, 100, 512, 2048])
@pytest.mark.parametrize("positions", [1, 49, 256])
def test_two_processes_sample_the_rows_that_one_does(samples: int, positions: int) -> None:
    consumer = nn.Conv1d(3, 2, 3)
    H = torch.arange(3.0 * samples * positions).reshape(samples, 3, positions)
    whole = sampled_rows(consumer, Pass(H, H[:, :1], H), 1024)
    halves = [sampled_rows(consumer, Pass(half, half[:, :1], half), 512) for half in H.chunk(2)]
    assert len(whole) <= 2048 and torch.equal(torch.cat(halves), whole)


def test_of_several_consumers_the_mean_counts() -> None:
    torch.manual_seed(0)
    consumers = [CONSUMERS[kind]() for kind in ("dense", "conv")]
    steps = [random_passes(consumer, 10, 0.5, seed) for seed, consumer in enumerate(consumers)]
    for own in zip(*steps, strict=True):  # the same samples go to both
        own[1][:] = [each._replace(samples=other.samples) for each, other in zip(own[1], own[0], strict=True)]
    window = new_window(consumers[0], 2)
    with torch.no_grad():
        for passes in zip(*steps, strict=True):
            window = after_step(window, consumers, passes)
    both = statistics(window)
    alone = [statistics(after(consumer, own)) for consumer, own in zip(consumers, steps, strict=True)]
    assert both.ratio == pytest.approx(sum(each.ratio for each in alone) / 2)
    assert both.error < max(each.error for each in alone)


def test_a_consumer_that_does_not_run_at_a_step_has_no_rows_then() -> None:
    consumer = nn.Linear(4, 6)
    steps = random_passes(consumer, 10, signal=0.5)
    window, without = new_window(consumer, 2), new_window(consumer)
    with torch.no_grad():
        for number, passes in enumerate(steps):
            missing = number in (4, 9)
            window = after_step(window, [consumer] * 2, [passes, [] if missing else passes])
            without = without if missing else after_step(without, [consumer], [passes])
    assert [record.steps for record in window.records] == [10, 8]
    assert torch.equal(window.records[1].sums, without.records[0].sums)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("leading", "expected"),
    [
        ((4,), [0, 1, 2, 3]),
        ((4, 2), [0, 0, 1, 1, 2, 2, 3, 3]),
        ((2, 4), [0, 1, 2, 3, 0, 1, 2, 3]),  # the time comes first
        ((8,), [0, 0, 1, 1, 2, 2, 3, 3]),  # all tokens
        ((4, 4), [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]),
        ((2, 4, 2), [0, 0, 1, 1, 2, 2, 3, 3, 0, 0, 1, 1, 2, 2, 3, 3]),
    ],
    ids=str,
)
def test_all_rows_of_a_sample_are_in_its_fold(leading: tuple[int, ...], expected: list[int]) -> None:
    assert row_samples(torch.arange(4), leading, torch.device("cpu")).tolist() == expected


def test_rows_of_unknown_samples_are_samples() -> None:
    for samples, leading in ((None, (6,)), (torch.arange(4), (6,)), (torch.arange(4), (3, 5))):
        found = row_samples(samples, leading, torch.device("cpu"))
        assert len(found.unique()) == len(found) == torch.Size(leading).numel()
        assert torch.equal(found, row_samples(samples, leading, torch.device("cpu")))
    assert len(row_samples(torch.arange(4), (), torch.device("cpu"))) == 1


# --- the trigger -----------------------------------------------------------------------------------------


def problem(batch: int = 64, seed: int = 0, noise: float = 0.0) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of a task that takes more than a few neurons."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(12, 6, generator=generator), torch.randn(6, 24, generator=generator)
    while True:
        x = torch.randn(batch, 6, generator=generator)
        y = (x @ weights[0].T).tanh() @ weights[0] @ weights[1][:, :3]
        yield x, y + noise * torch.randn(y.shape, generator=generator) if noise else y


def growing(
    steps: int,
    model: nn.Module | None = None,
    batch: int = 64,
    strategy: Any = "need",
    scale: Any = None,
    noise: float = 0.0,
    **options: Any,
) -> ng.Grower:
    model = mlp(6, 3, 3, 3) if model is None else model
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    grower = ng.Grower(model, optimizer, strategy, **options)
    train(grower, steps, problem(batch, noise=noise), scale)
    return grower


def train(grower: ng.Grower, steps: int, batches: Iterator[tuple[Tensor, Tensor]], scale: Any = None) -> None:
    (optimizer,) = grower.optimizers
    for number in range(steps):
        x, y = next(batches)
        factor = 1.0 if scale is None else scale(number)
        optimizer.zero_grad()
        (factor * (grower.model(x) - y).square().mean()).backward()
        for parameter in grower.model.parameters():
            if parameter.grad is not None:
                parameter.grad /= factor
        optimizer.step()
        grower.step()


def test_a_network_that_is_too_small_grows_and_stops_by_itself() -> None:
    grower = growing(800, noise=1.0, max_width=math.inf)
    assert all(10 < size < 500 for size in grower.widths.values())
    assert grower.history.events[-1].step < 400
    for event in grower.history:
        assert event.metric is not None and event.threshold is not None
        assert event.metric > event.threshold >= 1


def test_noise_is_no_need() -> None:
    grower = growing(0)
    train(grower, 100, ((x, torch.randn(64, 3)) for x, _ in problem()))
    assert not grower.history.events


@pytest.mark.parametrize("batch", [64, 1400], ids=["small batches", "full batches"])
@pytest.mark.parametrize("random", [False, True], ids=["quadratic", "random"])
def test_a_network_grows_if_it_cannot_express_a_third_of_what_there_is_to_learn(batch: int, random: bool) -> None:
    """Classes by the distance from the origin, in ten dimensions, need many neurons of one output."""
    sizes = []
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(1400, 10)
        y = torch.randn(1400, 1).sign() if random else (x.square().sum(1, keepdim=True) - 9.34).sign()
        grower = growing(0, model=mlp(10, 16, 16, 1))
        train(grower, 85, ((x[own], y[own]) for own in iter(lambda n=batch: torch.randperm(1400)[:n], None)))
        sizes.append(grower.widths["0"])
        first, second = (layer.memory["most"] for layer in grower.layers)
        assert first == second or batch < 1400  # of layers that are asked at the same steps
    assert sum(sizes) == 3 * 16 if random else sum(sizes) >= 3 * 22


@pytest.mark.parametrize(
    ("kind", "size", "ratio", "after"),
    [
        ("conv", 2, 0.1, 2),
        ("conv", 2, 0.25, 18),
        ("conv", 4, 0.3, 7),
        ("conv", 8, 1.3, 8),
        ("conv", 8, 2.0, 16),
        ("conv", 12, 2.6, 12),
        ("conv", 16, 3.9, 16),
        ("dense", 4, 2.0, 4),
    ],
)
def test_few_channels_need_fewer_standard_errors(
    kind: str, size: int, ratio: float, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None are needed for 2 and 4 channels of a convolution, 4/3 for 8, 8/3 for 12; but 4 for 4 neurons."""
    monkeypatch.setattr(Window, "statistics", lambda *_: Statistics(ratio, 1.0, 1e9, 0.0))
    first, second = (nn.Linear(6, size), nn.Linear(size, 3))
    if kind == "conv":
        first, second = nn.Conv1d(1, size, 3), nn.Conv1d(size, 3, 3)  # type: ignore[assignment]
    model = nn.Sequential(first, nn.ReLU(), second)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    grower = ng.Grower(model, optimizer)
    for _ in range(10):
        model(torch.randn(64, 1, 6) if kind == "conv" else torch.randn(64, 6)).square().mean().backward()
        optimizer.step()
        grower.step()
    assert grower.widths == {"0": after}


def asked(grower: ng.Grower) -> list[int]:
    """The steps at which a decision was made."""
    found: dict[tuple[float, float], int] = {}
    for seen in grower.history.observations:
        if seen.metric is not None and seen.threshold is not None:
            found.setdefault((seen.metric, seen.threshold), seen.step)
    return sorted(set(found.values()))


@pytest.mark.parametrize(
    ("batch", "looks"),
    [(64, [10, 10, 20, 24, 24]), (256, [5, 5, 9, 16, 16]), (1024, [5, 5, 5, 5, 5])],
    ids=["small batches", "larger batches", "large batches"],
)
def test_a_width_is_asked_when_training_has_gone_on_for_as_long_again(batch: int, looks: list[int]) -> None:
    grower = growing(0)
    batches = ((x, torch.randn(batch, 3)) for x, _ in problem(batch))
    looked = 0
    for _ in range(170):
        looked += bool(grower._recorder.taps.wanted) or grower.steps == 0
        train(grower, 1, batches)
    assert not grower.history.events
    steps = asked(grower)
    assert len(steps) == 5 and all(abs(later - 2 * step) <= 1 for step, later in itertools.pairwise(steps))
    assert looked == sum(looks)
    assert " ".join(str(grower).split()).count("next look at step") == 2


@pytest.mark.parametrize(
    ("activation", "size"), [(nn.Identity, 8), (nn.Identity, 16), (nn.ReLU, 64), (nn.Tanh, 64)], ids=str
)
def test_a_linear_task_takes_hardly_more_neurons_than_it_has(activation: type[nn.Module], size: int) -> None:
    """Would-be neurons are combinations of the present ones, or what they add is not in the task.

    Networks whose neurons are not linear may grow a little, because they can only approach a linear function.
    """
    sizes = []
    for seed in range(4):
        torch.manual_seed(seed)
        weight = torch.randn(6, 3)
        model = nn.Sequential(nn.Linear(6, size), activation(), nn.Linear(size, 3))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        grower = ng.Grower(model, optimizer, "need")
        train(grower, 120, ((x, x @ weight + torch.randn(128, 3)) for x in iter(lambda: torch.randn(128, 6), None)))
        assert grower.layers[0].memory["latest"] is not None
        sizes.append(grower.widths["0"])
    assert sum(sizes) <= (4 if activation is nn.Identity else 6) * size


def test_between_windows_nothing_is_recorded() -> None:
    grower = growing(200)
    assert max(seen.step for seen in grower.history.latest.values()) < 190
    assert not any(layer.record.pairs for layer in grower.layers if layer.record is not None)
    assert all("window" not in layer.memory for layer in grower.layers)


class Counting(ng.Grower):
    """Counts the steps at which there was something to do."""

    busy = 0

    def _step(self, closure: Callable[[], Any] | None) -> list[ng.history.Event]:
        self.busy += 1
        return super()._step(closure)


class Busy(Counting):
    """Takes every step as if there were something to do."""

    _busy_from = property(lambda self: 0, lambda self, value: None)  # type: ignore[assignment]


@pytest.mark.parametrize("strategy", ["need", "north-select", "gradmax"])
def test_steps_with_nothing_to_do_are_skipped_and_change_nothing(strategy: str) -> None:
    growers = []
    for kind in (Counting, Busy):
        torch.manual_seed(0)
        model = mlp(6, 3, 3, 3)
        grower = kind(model, torch.optim.Adam(model.parameters(), lr=1e-2), strategy, max_width=12)
        train(grower, 300, problem(noise=4.0))
        growers.append(grower)
    skipping, busy = growers
    assert skipping.steps == busy.steps == busy.busy == 300 and skipping.busy < 270
    events, others = ([(each.step, each.width, each.after, each.metric) for each in g.history] for g in growers)
    assert events == others != []
    assert all(torch.equal(a, b) for a, b in zip(skipping.model.parameters(), busy.model.parameters(), strict=True))


class Forced(ng.triggers.Need):
    """Need, but one width grows by two neurons at the eighth step, and no other."""

    def __init__(self, name: str):
        super().__init__()
        object.__setattr__(self, "name", name)

    def decide(self, layers: Sequence[ng.Layer]) -> list[ng.Decision]:
        grows = [layer.name == self.name and layer.step == 8 for layer in layers]  # type: ignore[attr-defined]
        found = zip(super().decide(layers), grows, strict=True)
        return [replace(decision, count=2 if now else 0, wait=1) for decision, now in found]

    def keeps(self, layers: Sequence[ng.Layer], samples: Samples) -> None:
        """It decides at every step."""


class Joined(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 3), nn.Linear(6, 4), nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Any:
        return self.c(torch.cat([self.a(x).relu(), self.b(x).relu()], 1))


@pytest.mark.parametrize(
    ("kind", "grown", "watched", "kept"),
    [
        ("dense", "0", "2", True),
        ("dense", "2", "0", True),
        ("dense", "2", "2", False),
        ("conv", "0", "3", True),
        ("conv", "3", "0", True),
        ("joined", "a", "b", False),
    ],
)
def test_a_window_outlives_the_growth_of_neighbours(
    kind: str, grown: str, watched: str, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a rate of zero and equal batches, each step has the same gradient, for old fan-outs."""
    for place in ("record", "windows"):
        monkeypatch.setattr(f"neurogenesis.candidates.{place}.ENOUGH_ROWS", 2)  # so that no passes wait
    torch.manual_seed(0)
    model = {"dense": lambda: mlp(6, 3, 4, 3), "conv": small_vgg, "joined": Joined}[kind]()
    example = torch.randn(64, 2, 8, 8) if kind == "conv" else torch.randn(64, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    grower = ng.Grower(model, optimizer, ng.Strategy(Forced(grown), "random"), example=example[:2])
    windows = []
    for _ in range(9):
        optimizer.zero_grad()
        loss_of(model, example).backward()
        optimizer.step()
        grower.step()
        layer = next(layer for layer in grower.layers if layer.name == watched)
        windows.append(window_of(layer) if "window" in layer.memory else None)
    *_, before, window = windows
    assert window is not None
    assert window.steps == (9 if kept else 1)
    assert window.shapes == tuple(seen.shapes for seen in layer.records)
    if kept:
        assert before is not None
        last, earlier = window.records[0].sums, before.records[0].sums
        assert last is not None and earlier is not None
        old = earlier != 0
        torch.testing.assert_close(8 / 9 * last[old], earlier[old], rtol=1e-3, atol=1e-5)
        assert old.any() and last.shape == earlier.shape


def test_passes_wait_until_there_are_enough_rows_for_a_fit_and_are_dropped_if_a_neighbour_grows() -> None:
    model = mlp(6, 3, 4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    grower = ng.Grower(model, optimizer, ng.Strategy(Forced("2"), "random"))
    found = []
    for _ in range(9):
        x = torch.randn(4, 6)
        optimizer.zero_grad()
        loss_of(model, x).backward()
        optimizer.step()
        grower.step()
        x.zero_()  # those that wait are copies
        window = window_of(grower.layers[0])
        found.append((window.steps, window.waiting.looks, window.items))
        assert all(each.H.abs().sum() > 0 for own in window.waiting.passes for step in own for each in step)
    # 18 rows are enough for 3 inputs. At the eighth step, the next layer grows.
    assert found[:7] == [(0, 1, 4), (0, 2, 8), (0, 3, 12), (0, 4, 16), (5, 0, 20), (5, 1, 24), (5, 2, 28)]
    assert found[7:] == [(5, 0, 20), (5, 1, 24)]


def test_passes_go_on_waiting_if_a_distant_width_grows() -> None:
    model = mlp(6, 3, 4, 5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    grower = ng.Grower(model, optimizer, ng.Strategy(Forced("4"), "random"))
    for _ in range(8):
        optimizer.zero_grad()
        loss_of(model, torch.randn(4, 6)).backward()
        optimizer.step()
        grower.step()
    found = [window_of(layer).looks for layer in grower.layers if "window" in layer.memory]
    # Of the second one, whose consumer has new outputs, six steps were recorded and two dropped.
    assert grower.widths["4"] == 7 and found == [8, 6]


def test_a_step_that_is_too_large_for_products_does_not_count() -> None:
    model = mlp(6, 3, 3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    grower = ng.Grower(model, optimizer, "need")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is not finite
        for number in range(12):
            optimizer.zero_grad()
            loss_of(model, torch.randn(4, 6) * (1e25 if number == 1 else 1)).tanh().backward()
            optimizer.step()
            grower.step()
    assert len(grower.history.observations) and grower.history.observations[-1].step > 8


def test_passes_whose_products_overflow_are_not_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recorded, "finite", True)
    model = mlp(6, 3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    grower = ng.Grower(model, optimizer, "need")
    for number in range(12):
        optimizer.zero_grad()
        loss_of(model, torch.randn(4, 6) * (1e25 if number == 1 else 1)).tanh().backward()
        optimizer.step()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            grower.step()
        assert bool(warned) == (number == 9)  # when the window ends
    window = window_of(grower.layers[0])
    assert (window.steps, window.waiting.looks) == (0, 2)


def test_steps_without_rows_for_a_fit_are_lost_if_no_more_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "MOST_WAITING", 1)
    model = mlp(6, 3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    grower = ng.Grower(model, optimizer, "need")
    found = []
    for _ in range(5):
        optimizer.zero_grad()
        loss_of(model, torch.randn(2, 6)).backward()
        optimizer.step()
        grower.step()
        window = window_of(grower.layers[0])
        found.append((window.looks, window.behind))
    # A fit of 3 inputs takes 6 rows; of those before, a ninth is forgotten at each step.
    assert found == [(0, True), (0, True), (0, True), (1, False), (2, False)]


class Consumers(nn.Module):
    """A hidden layer with two consumers; the second one may run at random, or get other samples."""

    def __init__(self, second: str = "usual") -> None:
        super().__init__()
        self.hidden, self.a, self.b = nn.Linear(6, 4), nn.Linear(4, 3), nn.Linear(4, 3)
        self.second = second

    def forward(self, x: Tensor) -> Any:
        y = self.a(self.hidden(x).relu())
        if self.second == "sometimes" and self.training and torch.rand(()) < 0.5:
            return y
        if self.second == "some samples" and self.training:
            chosen = torch.rand(len(x)) < 0.7
            return y.index_add(0, chosen.nonzero().flatten(), self.b(self.hidden(x[chosen]).relu()))
        return y + self.b(self.hidden(x.flip(1) if self.second == "other inputs" else x).relu())


def hidden_layer(model: nn.Module, **options: Any) -> ng.Layer:
    grower = watched(model, torch.randn(64, 6), **options)
    assert grower is not None
    return next(layer for layer in grower.layers if layer.name == "hidden")


def test_a_producer_that_is_called_twice_gets_its_own_inputs() -> None:
    layer = hidden_layer(Consumers("other inputs"))
    fan_in = torch.randn(3, 1, 6)
    with torch.no_grad():
        (first,), (second,) = layer.passes_with([fan_in])
    assert layer.record is not None
    x = layer.record.pairs[0].H_prev
    torch.testing.assert_close(first.h, (x @ fan_in[:, 0].T).relu())
    torch.testing.assert_close(second.h, (x.flip(1) @ fan_in[:, 0].T).relu())


@pytest.mark.parametrize("frozen", ["a", "b"])
def test_a_frozen_consumer_is_not_asked(frozen: str) -> None:
    model = Consumers()
    model.get_submodule(frozen).requires_grad_(False)
    layer = hidden_layer(model, frozen=True)
    with torch.no_grad():
        passes = layer.passes_with([torch.randn(3, 1, 6)])
    assert [bool(own) for own in passes] == [frozen != "a", frozen != "b"]


@pytest.mark.parametrize("second", ["usual", "sometimes", "some samples", "other inputs"])
def test_several_consumers_are_trained_and_resumed_to_the_bit(second: str) -> None:
    def make() -> ng.Grower:
        torch.manual_seed(0)
        model = Consumers(second)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        return ng.Grower(model, optimizer, "need", example=torch.randn(8, 6), seed=0)

    whole = make()
    train(whole, 120, problem())
    half, batches = make(), problem()
    train(half, 13, batches)
    states = copy.deepcopy([each.state_dict() for each in (half, half.model, half.optimizers[0])])
    random = torch.get_rng_state()
    resumed = make()
    for each, state in zip((resumed, resumed.model, resumed.optimizers[0]), states, strict=True):
        each.load_state_dict(state)
    torch.set_rng_state(random)
    train(resumed, 107, batches)
    assert (whole.history.events or second == "other inputs") and resumed.widths == whole.widths
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name


def test_growth_by_hand_of_another_producers_input_begins_a_new_window() -> None:
    class TwoProducers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.other, self.more, self.out = (nn.Linear(*n) for n in ((6, 4), (6, 3), (3, 4), (4, 3)))

        def forward(self, x: Tensor) -> Any:
            return self.out((self.hidden(x) + self.more(self.other(x).relu())).relu())

    model = TwoProducers()
    grower = growing(3, model)
    ng.grow(model, "other", 2, optimizer=grower.optimizers[0])
    train(grower, 1, problem())
    layer = next(layer for layer in grower.layers if layer.name == "hidden")
    assert window_of(layer).steps == 1


def test_a_consumer_with_too_few_rows_does_not_hold_up_the_others() -> None:
    class Flattened(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.pooled, self.flat = nn.Conv2d(2, 4, 3), nn.Linear(4, 3), nn.Linear(4 * 36, 3)

        def forward(self, x: Tensor) -> Any:
            h = self.hidden(x).relu()
            return self.pooled(h.mean((2, 3))) + self.flat(h.flatten(1))

    model = Flattened()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    grower = ng.Grower(model, optimizer, "need")
    for _ in range(4):
        loss_of(model, torch.randn(16, 2, 8, 8)).backward()
        optimizer.step()
        grower.step()
    (layer,) = grower.layers
    window = window_of(layer)
    assert window.steps == 4 and [record.steps for record in window.records] == [4, 0]


def test_the_scale_of_the_loss_makes_no_difference_even_if_it_changes() -> None:
    plain = growing(110)
    scaled = growing(110, scale=lambda number: 2.0 ** (number % 7))
    assert [str(event) for event in plain.history] == [str(event) for event in scaled.history]
    assert len(plain.history) > 4


def test_several_passes_before_a_step_count_as_one_step() -> None:
    whole = growing(10)
    model = mlp(6, 3, 3, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    parts = ng.Grower(model, optimizer, "need")
    batches = problem()
    for _ in range(10):
        x, y = next(batches)
        optimizer.zero_grad()
        for half in (slice(0, 32), slice(32, 64)):
            ((model(x[half]) - y[half]).square().mean() / 2).backward()
        optimizer.step()
        parts.step()
    assert whole.widths == parts.widths != {"0": 3, "2": 3}
    for a, b in zip(whole.history, parts.history, strict=True):
        assert (a.metric, a.threshold) == pytest.approx((b.metric, b.threshold), rel=1e-3)


@pytest.mark.parametrize("batch", [5, 32, 64])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
def test_decisions_are_those_of_windows_in_which_nothing_is_put_off(
    batch: int, activation: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fits and candidates wait for the end of a window: slow, each at its own step."""
    found = []
    for slow in (False, True):
        if slow:
            monkeypatch.setattr("neurogenesis.candidates.steps.MOST_READY", 0)
            monkeypatch.setattr("neurogenesis.candidates.chains.FEW_INPUTS", 0)
            monkeypatch.setattr(ng.triggers.Need, "keeps", ng.triggers.Trigger.keeps)
        torch.manual_seed(0)
        layers = nn.Linear(6, 3), activation(), nn.Linear(3, 3), activation(), nn.Linear(3, 3)
        grower = growing(25, nn.Sequential(*layers), batch)
        windows = [layer.memory["window"] for layer in grower.layers if "window" in layer.memory]
        assert not (slow and any(window.ready for window in windows))
        found.append([(event.step, event.width, event.after) for event in grower.history][:2])
        ratios = [each.metric for each in grower.history.observations if each.metric is not None]
        found.append(ratios[:2])  # later, weights have drifted apart
    assert found[0] == found[2] and found[1]  # whether anything grows in these steps depends on the processor
    assert found[1] == pytest.approx(found[3], rel=1e-3)


@pytest.mark.parametrize(("stop", "batch"), [(3, 64), (17, 64), (91, 64), (3, 5), (29, 5)])
def test_resuming_in_a_window_changes_no_bit(stop: int, batch: int) -> None:
    whole = growing(110, batch=batch)
    first = growing(stop, batch=batch)
    windows = [window_of(own) for own in first.layers if "window" in own.memory]
    assert batch == 64 or any(window.waiting.looks for window in windows)
    states = [copy.deepcopy(each.state_dict()) for each in (first, first.model, first.optimizers[0])]
    model = mlp(6, 3, 3, 3)
    second = ng.Grower(model, torch.optim.Adam(model.parameters(), lr=1e-2), "need")
    for each, state in zip((second, model, second.optimizers[0]), states, strict=True):
        each.load_state_dict(state)
    batches = problem(batch)
    for _ in range(stop):
        next(batches)
    train(second, 110 - stop, batches)
    assert [str(event) for event in second.history] == [str(event) for event in whole.history]
    expected = whole.model.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())


def test_growth_ends_at_a_multiple_of_the_initial_size_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ng.triggers.Need, "limit", 2)
    with pytest.warns(UserWarning, match="stopped at 2 times the initial size"):
        grower = growing(60)
    assert max(grower.widths.values()) == 6
    assert growing(60, max_width=9.0).widths != grower.widths != growing(60, max_parameters=10_000).widths


@pytest.mark.parametrize(
    "earlier",
    [
        "Strategy(trigger=Need(window=20, ratio=0.025, candidates=32), initialization=Random())",
        "Strategy(trigger=Need(window=48, candidates=32), initialization=Small(part=0.5))",
        "Strategy(trigger=Need(window=48, candidates=32), initialization=Random())",
    ],
)
def test_a_state_of_an_earlier_rule_goes_on_with_the_present_one(earlier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows that compared steps, or had no whole gradients, are begun again."""
    monkeypatch.setattr("neurogenesis.candidates.steps.MOST_READY", 0)
    grower = growing(8)
    state = grower.state_dict()
    assert state["strategy"] == "Strategy(trigger=Need(window=48, candidates=32), initialization=Twins())"
    del state["samples"]
    for layer in state["layers"].values():
        if "ratio" in earlier:
            layer["memory"]["window"] = {"records": [], "steps": 8}
        else:
            (record,) = layer["memory"]["window"]["records"]
            record["sums"] = record["sums"][:, :32]
            layer["memory"].pop("most")
    other = growing(0, mlp(6, 3, 3, 3))
    other.load_state_dict({**state, "strategy": earlier})
    train(other, 12, problem())
    assert other.steps == 20 and other.history.events


def test_a_state_with_another_initialization_is_that_of_another_strategy() -> None:
    strategy = ng.Strategy(ng.triggers.Need(), "random")
    model = mlp(6, 3, 3, 3)
    grower = ng.Grower(model, torch.optim.Adam(model.parameters()), strategy)
    state = grower.state_dict()
    grower.load_state_dict(state)
    with pytest.raises(ValueError, match="another strategy"):
        grower.load_state_dict(growing(0).state_dict())


def test_growth_leaves_the_function_unchanged() -> None:
    model = mlp(6, 3, 3, 3)
    x = next(problem())[0]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    grower, batches, grown = ng.Grower(model, optimizer, "need"), problem(), 0
    for _ in range(100):
        inputs, y = next(batches)
        optimizer.zero_grad()
        (model(inputs) - y).square().mean().backward()
        optimizer.step()
        before = model(x).detach()
        grown += len(grower.step())
        torch.testing.assert_close(model(x), before)
    assert grown > 2


class Detached(nn.Module):
    """Its second branch does not take part in the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.used = mlp(6, 3, 3)
        self.unused = mlp(6, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.used(x) + self.unused(x).detach()
        return out


def test_a_width_without_influence_on_the_loss_does_not_grow() -> None:
    torch.manual_seed(0)
    model = Detached()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    grower = ng.Grower(model, optimizer, "need", example=torch.randn(2, 6))
    batches = problem()
    for _ in range(20):
        x, y = next(batches)
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        grower.step()
    assert grower.widths["used.0"] > 3
    assert grower.widths["unused.0"] == 3


def test_a_gradient_of_zero_is_no_need() -> None:
    consumer = nn.Linear(4, 6)
    zeros = [[p._replace(D=torch.zeros_like(p.D)) for p in passes] for passes in random_passes(consumer, 5)]
    with torch.no_grad():
        assert statistics(after(consumer, zeros)).ratio == 0.0


@pytest.mark.filterwarnings("error")
def test_a_batch_of_one_is_enough_if_there_are_many() -> None:
    grower = growing(150, batch=1)
    assert any(seen.metric is not None for seen in grower.history.observations)


def test_a_window_longer_than_the_training_does_no_harm() -> None:
    grower = growing(12, strategy=ng.Strategy(ng.triggers.Need(window=10_000)))
    assert all(size >= 3 for size in grower.widths.values())
    assert all(window_of(layer).steps <= 12 for layer in grower.layers)


def test_a_step_that_is_not_finite_does_not_count() -> None:
    model = mlp(6, 3, 3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    grower, batches = ng.Grower(model, optimizer, "need"), problem()
    for number in range(4):
        x, y = next(batches)
        optimizer.zero_grad()
        ((float("inf") if number == 2 else 1.0) * (model(x) - y).square().mean()).backward()
        if number == 2:
            optimizer.zero_grad()  # as a gradient scaler does
        optimizer.step()
        if number == 2:
            with pytest.warns(UserWarning, match="not finite"):
                grower.step()
        else:
            grower.step()
    windows = [window_of(layer) for layer in grower.layers]
    sums = [window.records[0].sums for window in windows]
    assert all(each is not None and each.isfinite().all() for each in sums)
    assert max(window.steps for window in windows) == 3


@pytest.mark.parametrize("kind", ["dense", "conv"])
def test_mixed_precision_measures_as_single_precision_does(kind: str) -> None:
    def measured(dtype: torch.dtype | None) -> list[float]:
        model = mlp(6, 3, 3, 3) if kind == "dense" else small_vgg()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        grower = ng.Grower(model, optimizer, "need")
        generator = torch.Generator().manual_seed(0)
        for _ in range(10):
            x = torch.randn(64, *((6,) if kind == "dense" else (2, 8, 8)), generator=generator)
            y = x.flatten(1)[:, :3].abs()
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                out = model(x)
            (out.float() - y).square().mean().backward()
            optimizer.step()
            grower.step()
        return [seen.metric for seen in grower.history.latest.values() if seen.metric is not None]

    single = measured(None)
    assert len(single) >= 2
    assert measured(torch.bfloat16) == pytest.approx(single, rel=0.2, abs=0.5)


def test_inputs_that_are_not_finite_do_not_stay_among_the_rows_of_a_fit() -> None:
    model = mlp(6, 12, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    grower, batches = ng.Grower(model, optimizer, "need"), problem(batch=4)
    for number in range(40):
        x, y = next(batches)
        optimizer.zero_grad()
        (model(x * float("inf") if number == 1 else x) - y).square().mean().backward()
        if number == 1:
            optimizer.zero_grad()
            optimizer.step()
            with pytest.warns(UserWarning, match="not finite"):
                grower.step()
        else:
            optimizer.step()
            grower.step()
    assert any(seen.metric is not None for seen in grower.history.observations)


def test_a_width_at_its_maximum_is_not_watched() -> None:
    model = mlp(6, 3, 3, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    grower = ng.Grower(model, optimizer, "need", max_width=4)
    train(grower, 20, problem())
    assert grower.widths == {"0": 4, "2": 4}
    assert not grower._recorder.taps.wanted
    assert not model[2]._forward_pre_hooks


def test_a_change_of_precision_begins_a_new_window() -> None:
    grower = growing(3)
    grower.model.double()
    (optimizer,) = grower.optimizers
    optimizer.state.clear()
    x, y = next(problem())
    optimizer.zero_grad()
    (grower.model(x.double()) - y).square().mean().backward()
    optimizer.step()
    grower.step()
    assert all(window_of(layer).steps == 1 for layer in grower.layers)


def test_a_shortcut_found_with_an_example_of_zeros_is_right() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.second(self.first(x).relu_())
            return out

    model = InPlace()
    grower = ng.Grower(model, torch.optim.SGD(model.parameters(), lr=0.1), "need", example=torch.zeros(2, 6))
    assert grower.layers[0]._shortcuts == [None]


class FunctionalDropout(nn.Module):
    def __init__(self, dropped: bool) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)
        self.dropped = dropped

    def forward(self, x: Tensor) -> Any:
        return self.down(nn.functional.dropout(self.act(self.up(x)), 0.5, self.training and self.dropped))


@pytest.mark.parametrize("dropped", [False, True])
def test_the_shortcut_is_not_taken_past_a_dropout_that_is_no_module(dropped: bool) -> None:
    grower = watched(FunctionalDropout(dropped), torch.randn(64, 6))
    assert grower is not None
    (layer,) = grower.layers
    with torch.no_grad():
        ((one,),) = layer.passes_with([torch.ones(5, 1, 6)])
    assert [chain is not None for chain in layer._shortcuts] == [not dropped]
    assert 0.3 * dropped <= float((one.h == 0).double().mean()) <= 0.7 * dropped


@pytest.mark.parametrize("strategy", ["gradmax", "firefly", "need"])
def test_inputs_that_the_caller_reuses_are_copied(strategy: str) -> None:
    model = mlp(6, 3, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    grower, batches, held = ng.Grower(model, optimizer, strategy), problem(), torch.empty(64, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(12):
            optimizer.zero_grad()
            for _ in range(2):
                x, y = next(batches)
                held.copy_(x)
                (model(held) - y).square().mean().backward()
            optimizer.step()
            grower.step()
    assert any(seen.metric is not None for seen in grower.history.observations)


@pytest.mark.parametrize(("options", "message"), [({"window": 0}, "window"), ({"candidates": 0}, "candidates")])
def test_wrong_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ng.triggers.Need(**options)
