"""Samples are recognized by their inputs, wherever they are seen again, and counted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import neurogenesis as ng
from neurogenesis.passes.processes import Processes
from neurogenesis.passes.replay import ModelCall
from neurogenesis.passes.samples import FOLDS, KEPT, Samples, folds, identities, merged, mixed, number_of
from tests.growing import mlp

X = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
TOKENS = torch.randint(1, 100, (50, 12), generator=torch.Generator().manual_seed(0))

INPUTS: dict[str, Any] = {
    "float32": lambda ids: ((X[ids],), {}),
    "float64": lambda ids: ((X[ids].double(),), {}),
    "half": lambda ids: ((X[ids].half(),), {}),
    "bfloat16": lambda ids: ((X[ids].bfloat16(),), {}),
    "complex": lambda ids: ((torch.complex(X[ids], X[ids] + 1),), {}),
    "bytes": lambda ids: (((TOKENS[ids] % 256).to(torch.uint8),), {}),
    "booleans": lambda ids: (((TOKENS[ids][..., None] >> torch.arange(7) & 1).bool(),), {}),
    "tokens": lambda ids: ((), {"input_ids": TOKENS[ids], "attention_mask": torch.ones_like(TOKENS[ids])}),
    "images": lambda ids: ((X[ids].repeat(1, 200).reshape(-1, 3, 20, 20),), {}),
    "a dictionary": lambda ids: (({"x": X[ids], "y": TOKENS[ids]},), {}),
    "strided": lambda ids: ((X[ids].T.contiguous().T,), {}),
    "several": lambda ids: ((X[ids, :1].expand(-1, 4), X[ids]), {"flag": True, "scale": torch.tensor(2.0)}),
    "a graph": lambda ids: ((X[ids], torch.zeros(2, 7, dtype=torch.int64)), {}),
    "one value": lambda ids: ((X[ids, 0],), {}),
}


def ids_of(name: str, ids: Tensor) -> Tensor:
    found = identities(ModelCall.of(*INPUTS[name](ids)))
    assert found is not None
    return found


@pytest.mark.parametrize("name", INPUTS)
def test_a_sample_has_one_identity_in_any_batch_and_others_have_another(name: str) -> None:
    whole = ids_of(name, torch.arange(50))
    assert whole.dtype == torch.int64 and len(whole.unique()) == 50
    order = torch.randperm(50, generator=torch.Generator().manual_seed(1))
    assert torch.equal(ids_of(name, order), whole[order])
    for size in (1, 3, 33):
        assert torch.equal(ids_of(name, order[:size]), whole[order[:size]])


def test_padding_that_is_masked_makes_no_difference() -> None:
    def padded(length: int, token: int) -> ModelCall:
        ids = torch.full((5, length), token)
        mask = torch.zeros_like(ids)
        for row, used in enumerate((3, 5, 7, 8, 8)):
            ids[row, :used], mask[row, :used] = TOKENS[row, :used], 1
        return ModelCall.of((), {"input_ids": ids, "attention_mask": mask})

    first, second = (identities(padded(length, token)) for length, token in ((8, 0), (20, 99)))
    assert first is not None and second is not None
    assert torch.equal(first, second) and len(first.unique()) == 5


def test_a_call_without_tensors_has_no_samples() -> None:
    assert identities(ModelCall.of((3, "text"), {})) is None
    assert identities(ModelCall.of((torch.tensor(1.0),), {})) is None


def test_folds_have_about_as_many_samples_each() -> None:
    counts = torch.bincount(folds(mixed(torch.arange(1000 * FOLDS))), minlength=FOLDS)
    assert len(counts) == FOLDS and bool(((counts - 1000).abs() < 5 * 1000**0.5).all())


@pytest.mark.parametrize("count", [1, 100, KEPT - 1, KEPT, 20_000, 1_000_000])
def test_the_number_of_samples_is_exact_if_there_are_few_and_close_otherwise(count: int) -> None:
    known = torch.empty(0, dtype=torch.int64)
    for part in mixed(torch.arange(count)).chunk(7):
        known = merged(known, part, part)
    error = 0 if count < KEPT else 4 * count / KEPT**0.5
    assert abs(number_of(known) - count) <= error
    assert len(known) <= KEPT


def test_passes_are_counted_until_all_samples_have_been_seen_again() -> None:
    samples = Samples()
    counted = 0
    for _ in range(60):
        for batch in X.chunk(5):
            if not samples.known:
                samples.add(ModelCall.of((batch,), {}))
                counted += 1
            samples.end_step()
    assert samples.number() == 50
    assert counted < 60 * 5 and samples.known


@dataclass(frozen=True)
class Counting(Processes):
    """A single process that counts exchanges."""

    exchanges: list[int] = field(default_factory=list)

    def gathered(self, rows: Tensor, lengths: Sequence[int] | None = None) -> list[Tensor]:
        self.exchanges.append(len(rows))
        return super().gathered(rows, lengths)


def test_processes_exchange_their_samples_once_for_all_layers_of_a_look() -> None:
    processes, samples = Counting(), Samples()
    samples.join(processes)
    for step in range(1, 4):
        samples.add(ModelCall.of((X[5 * step : 5 * step + 5],), {}))
        samples.end_step()
        assert samples.number() == samples.number() == 2 * 5 * step
        assert processes.exchanges == [length for done in range(1, step + 1) for length in (5 * done, 1)]


def test_a_stream_of_new_samples_is_counted_until_there_are_many() -> None:
    samples, generator = Samples(), torch.Generator().manual_seed(0)
    passes = 0
    while not samples.known:
        samples.add(ModelCall.of((torch.randn(1024, 3, generator=generator),), {}))
        samples.end_step()
        passes += 1
    assert 55 < passes < 80
    assert samples.number() == pytest.approx(2 * 1024 * passes, rel=0.1)  # as many again are expected


def steps(grower: ng.Grower, batches: list[Tensor], **options: Any) -> None:
    (optimizer,) = grower.optimizers
    for batch in batches:
        optimizer.zero_grad()
        grower.model(batch).square().mean().backward()
        optimizer.step()
        grower.step(**{name: value(batch) for name, value in options.items()})


def new_grower(**options: Any) -> ng.Grower:
    model = mlp(6, 3, 3)
    return ng.Grower(model, torch.optim.SGD(model.parameters(), lr=0.0), **options)


def test_a_plain_loop_counts_its_training_set() -> None:
    grower = new_grower()
    steps(grower, [X[torch.randint(50, (8,))] for _ in range(100)])
    assert grower.samples.number() == 50
    grower = new_grower(training_samples=1234)
    steps(grower, [X])
    assert grower.samples.number() == 1234


def test_augmented_inputs_are_new_samples_unless_their_indices_are_given() -> None:
    noisy = [X + 0.1 * torch.randn_like(X) for _ in range(6)]
    grower = new_grower()
    steps(grower, noisy)
    assert grower.samples.number() == 600  # as many again are expected
    grower = new_grower()
    steps(grower, noisy, samples=lambda _: range(50))
    assert grower.samples.number() == 50


def test_indices_are_those_of_all_passes_of_a_step() -> None:
    for given, expected in ((torch.arange(20), 20), (torch.arange(10), 10)):
        grower = new_grower()
        (optimizer,) = grower.optimizers
        for _ in range(3):
            for _ in range(2):
                grower.model(torch.randn(10, 6)).square().mean().backward()
            optimizer.step()
            grower.step(samples=given)
        assert grower.samples.number() == expected


class OfObjects(nn.Sequential):
    """Takes an object, of which the number of items is not known."""

    def forward(self, given: Any) -> Tensor:
        output: Tensor = super().forward(given.x)
        return output


def test_indices_serve_where_inputs_are_no_tensors() -> None:
    class Batch:
        x = X[:10]

    model = OfObjects(nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 3))
    grower = ng.Grower(model, torch.optim.SGD(model.parameters(), lr=0.0))
    steps(grower, [Batch(), Batch()], samples=lambda _: range(10))  # type: ignore[list-item]
    assert grower.samples.number() == 10
    (layer,) = grower.layers
    window = layer.settled(layer.memory["window"])
    assert window.steps == 2 and int(window.records[0].counts.sum()) == 20


@pytest.mark.parametrize("given", [range(7), torch.rand(8), torch.arange(16).reshape(8, 2)], ids=["7", "floats", "2d"])
def test_indices_that_do_not_fit_the_batch_are_refused(given: Any) -> None:
    grower = new_grower()
    with pytest.raises(ValueError, match="samples: expected one integer per item of the batch"):
        steps(grower, [X[:8]], samples=lambda _: given)
    steps(grower, [X[:8]], samples=lambda _: range(8))
    assert grower.samples.number() == 8


def test_the_count_is_saved(tmp_path: Any) -> None:
    grower = new_grower()
    steps(grower, list(X[:40].chunk(5)))
    ng.save(tmp_path / "file.pt", grower.model, grower.optimizers[0], grower=grower)
    other = new_grower()
    ng.load(tmp_path / "file.pt", other.model, other.optimizers[0], grower=other)
    assert other.samples.number() == 80  # as many again are expected
    steps(other, list(X.chunk(5)))
    assert other.samples.number() == 50


def test_strategies_that_do_not_ask_for_samples_do_not_count_them() -> None:
    grower = new_grower(strategy="north-random", buffer=20)
    steps(grower, [X])
    assert grower.samples.number() == 0


# --- what need makes of them ---------------------------------------------------------------------------------


def trained(batch: int | None, targets: Tensor, steps: int = 300, **options: Any) -> ng.Grower:
    """An MLP that grows on 200 samples, with batches of a size or with full batches."""
    torch.manual_seed(0)
    x = torch.randn(len(targets), 6)
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    grower = ng.Grower(model, optimizer, **options)
    for _ in range(steps):
        ids = torch.arange(len(targets)) if batch is None else torch.randint(len(targets), (batch,))
        optimizer.zero_grad()
        (model(x[ids])[:, 0] - targets[ids]).square().mean().backward()
        optimizer.step()
        grower.step()
    return grower


@pytest.mark.parametrize("batch", [None, 32, 3])
def test_random_targets_are_no_need(batch: int | None) -> None:
    targets = torch.randn(200, generator=torch.Generator().manual_seed(1))
    assert trained(batch, targets).widths == {"0": 4, "2": 4}


@pytest.mark.parametrize("batch", [None, 32])
def test_what_a_small_training_set_tells_is_learned_and_no_more(batch: int | None) -> None:
    torch.manual_seed(0)
    x = torch.randn(600, 6)
    grower = trained(batch, (2 * x[:, 0]).sin() + x[:, 1] * x[:, 2])
    assert max(grower.widths.values()) > 4 and math.prod(grower.widths.values()) < 2_000
