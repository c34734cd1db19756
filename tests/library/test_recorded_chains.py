"""Candidates that run alone through the modules after their producer: activations and picks are those of the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import neurogenesis as ng
from neurogenesis import metrics
from neurogenesis.candidates.trials import Trials
from neurogenesis.initializations import Select
from neurogenesis.passes.activations import Activations
from tests import oracles, promises
from tests.cases import CASES, Case
from tests.growing import always, loss_of

Found = tuple[Activations, Activations]


def trials_of(model: nn.Module, batches: Sequence[Any], **options: Any) -> dict[str, tuple[ng.Layer, Trials]]:
    """Layers of a model after a training pass on each batch, and their trials."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    strategy = ng.Strategy(always(1), Select(candidates=9))
    grower = ng.Grower(model, optimizer, strategy, example=batches[0], **options)
    for batch in batches:
        loss_of(model, batch).backward()
    found = {}
    for layer in grower.layers:
        assert layer.route is not None
        trials = Trials(model, layer.width, layer.route, grower.buffer.measurement())
        with torch.no_grad():
            found[layer.name] = layer, replace(trials, chain=trials.verified_chain(layer.example))
    return found


def in_both_ways(layer: ng.Layer, trials: Trials, seed: int = 3) -> tuple[Found | None, Found]:
    """Activations of the present neurons and of candidates, from chains and from the whole model."""
    fan_in = layer.random_fan_in(10, torch.Generator().manual_seed(seed))
    return trials.in_chains(fan_in, seed), trials.in_model(fan_in, seed)


def assert_same(fast: Found, slow: Found) -> None:
    for own, expected in zip(fast, slow, strict=True):
        torch.testing.assert_close(own.matrix, expected.matrix, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(own.samples, expected.samples, rtol=1e-4, atol=1e-5)
    H, new = fast[0], fast[1]
    if bool(new.matrix.any()):
        for metric in metrics.METRICS:
            picked = metrics.best_by_products(
                H.products(new), 3, metric, lambda i: metrics.singular_sum(H.matrix, new.of(i))
            )
            expected = oracles.best_candidates(slow[0].matrix, slow[1].matrix, 3, metric)
            assert picked.tolist() == expected, metric


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_chains_give_the_activations_and_picks_of_the_model(case: Case) -> None:
    torch.manual_seed(0)
    model = case.make()
    promises.without_chance(model)
    promises.unsettle(model)
    try:
        found = trials_of(model, [case.example], buffer=64, **case.options)
    except ValueError:
        pytest.skip("refused")
    checked = 0
    for layer, trials in found.values():
        fast, slow = in_both_ways(layer, trials)
        if fast is not None:
            assert_same(fast, slow)
            checked += 1
    if not checked:
        pytest.skip("no chain")


def images(*shape: int, count: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for _ in range(count)]


class TransformerMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.gelu, self.down = nn.LayerNorm(6), nn.Linear(6, 9), nn.GELU(), nn.Linear(9, 6)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(self.gelu(self.up(self.norm(x))))
        return out


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv1, self.conv2 = (nn.Conv2d(n, 5, 3, padding=1) for n in (2, 5, 5))
        self.norm1, self.norm2, self.relu = nn.BatchNorm2d(5), nn.BatchNorm2d(5), nn.ReLU(inplace=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        y = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(h)))))
        y += h
        out: Tensor = self.head(F.relu(y).mean((2, 3)))
        return out


def sequential(*between: nn.Module, producer: nn.Module | None = None, inputs: int = 5) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(2, 5, 3, padding=1) if producer is None else producer,
            *between,
            nn.Conv2d(inputs, 3, 1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )

    return make


CHAINS: dict[str, tuple[Callable[[], nn.Module], list[Tensor], str]] = {
    "dense": (lambda: nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3)), images(20, 6), "0"),
    "dense, more neurons than samples": (
        lambda: nn.Sequential(nn.Linear(6, 90), nn.ReLU(), nn.Linear(90, 3)), images(20, 6), "0",
    ),
    "dense, norm": (
        lambda: nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.SiLU(), nn.Linear(9, 3)), images(20, 6), "0",
    ),
    "transformer": (TransformerMLP, images(8, 5, 6), "up"),
    "convolution, pooling": (sequential(nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)), images(6, 2, 9, 9), "0"),
    "convolution, norm": (sequential(nn.BatchNorm2d(5), nn.ReLU()), images(6, 2, 9, 9), "0"),
    "strided, dilated": (
        sequential(nn.Tanh(), producer=nn.Conv2d(2, 5, 3, 2, 2, dilation=2)), images(6, 2, 9, 9), "0",
    ),
    "padding same": (sequential(nn.ELU(), producer=nn.Conv2d(2, 5, 3, padding="same")), images(6, 2, 9, 9), "0"),
    "sequence": (
        lambda: nn.Sequential(nn.Conv1d(2, 5, 3), nn.ReLU(), nn.AvgPool1d(2), nn.Conv1d(5, 3, 1)), images(6, 2, 9), "0",
    ),
    "volume": (
        lambda: nn.Sequential(nn.Conv3d(2, 5, 3), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(5, 3, 1)),
        images(6, 2, 6, 6, 6), "0",
    ),
    "flattened image": (
        lambda: nn.Sequential(nn.Conv2d(2, 5, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(45, 3)),
        images(6, 2, 8, 8), "0",
    ),
    "residual branch": (Residual, images(6, 2, 5, 5), "conv1"),
    "residual stream": (Residual, images(6, 2, 5, 5), "stem"),
}  # fmt: skip


@pytest.mark.parametrize("limit", [4, 15, 1000])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", CHAINS)
def test_usual_layers_have_chains(name: str, training: bool, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for a part of the latest samples, computed in small parts, and with the norms' running statistics."""
    monkeypatch.setattr("neurogenesis.candidates.chains.CHUNK_ENTRIES", 1000)
    make, batches, width = CHAINS[name]
    torch.manual_seed(0)
    model = make()
    promises.unsettle(model)
    layer, trials = trials_of(model, batches, buffer=limit)[width]
    model.train(training)
    fast, slow = in_both_ways(layer, trials)
    assert fast is not None
    assert fast[0].columns == slow[0].columns
    assert_same(fast, slow)


def test_chance_before_the_producer_is_the_same() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3))
    layer, trials = trials_of(model, images(20, 6))["1"]
    fast, slow = in_both_ways(layer, trials)
    assert fast is not None
    assert_same(fast, slow)


class Between(nn.Module):
    """Code of its own between producer and consumer."""

    def __init__(self, code: Callable[[Tensor], Tensor]):
        super().__init__()
        self.code = code
        self.first, self.relu, self.second = nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.relu(self.code(self.first(x))))
        return out


@pytest.mark.parametrize(
    "code",
    [torch.tanh, lambda z: z * 2, lambda z: z.mul_(2), lambda z: F.dropout(z, 0.5), lambda z: z.relu_()],
    ids=["function", "operator", "in place", "dropout", "activation in place"],
)
def test_code_between_modules_leaves_no_chain(code: Callable[[Tensor], Tensor]) -> None:
    layer, trials = trials_of(Between(code), images(20, 6))["first"]
    assert in_both_ways(layer, trials)[0] is None


def test_dropout_leaves_no_chain_in_training() -> None:
    model = nn.Sequential(nn.Linear(6, 9), nn.Dropout(0.5), nn.Linear(9, 3))
    layer, trials = trials_of(model, images(20, 6))["0"]
    assert in_both_ways(layer, trials)[0] is None
    model.eval()
    fast, slow = in_both_ways(layer, trials)
    assert fast is not None
    assert_same(fast, slow)


def test_hooks_of_others_are_followed_or_leave_no_chain() -> None:
    for number in (0, 1):
        model = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3))
        model[number].register_forward_hook(lambda module, args, output: output * 2)
        layer, trials = trials_of(model, images(20, 6))["0"]
        fast, slow = in_both_ways(layer, trials)
        assert (fast is None) == (number == 0)
        if fast is not None:
            assert_same(fast, slow)


class OwnActivation(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)


class Flattens(nn.Module):
    """An activation function of its own, and an image that is flattened by a function."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.pool = nn.Conv2d(2, 5, 3), OwnActivation(), nn.MaxPool2d(2)
        self.second = nn.Linear(45, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(torch.flatten(self.pool(self.act(self.first(x))), 1))
        return out


def test_modules_of_other_kinds_have_chains_if_they_give_the_same() -> None:
    torch.manual_seed(0)
    layer, trials = trials_of(Flattens(), images(6, 2, 8, 8))["first"]
    fast, slow = in_both_ways(layer, trials)
    assert fast is not None
    assert_same(fast, slow)


class Later(nn.Module):
    """Code between the modules that runs only when told."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.relu, self.second, self.told = nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3), False

    def forward(self, x: Tensor) -> Tensor:
        z = self.first(x)
        out: Tensor = self.second(self.relu(z * 2 if self.told else z))
        return out


def test_a_run_that_does_not_take_the_chain_is_noticed() -> None:
    model = Later()
    layer, trials = trials_of(model, images(20, 6))["first"]
    assert in_both_ways(layer, trials)[0] is not None
    model.told = True
    assert in_both_ways(layer, trials)[0] is None


class WritesOver(nn.Module):
    """Writes over the producer's input once the producer has run."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.relu, self.second = nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = x * 1
        z = self.first(h)
        if not torch.is_grad_enabled():
            h.zero_()
        out: Tensor = self.second(self.relu(z))
        return out


def test_inputs_that_are_written_over_leave_no_chain() -> None:
    layer, trials = trials_of(WritesOver(), images(20, 6))["first"]
    assert in_both_ways(layer, trials)[0] is None
