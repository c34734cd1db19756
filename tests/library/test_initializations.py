"""Each initialization gives the neurons its formula says, and what it promises of the function holds."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import neurogenesis as ng
from neurogenesis import initializations as how
from neurogenesis import metrics
from neurogenesis.candidates.grown import Candidates, grown_tensors
from neurogenesis.passes.records import NotFinite
from neurogenesis.strategies import INITIALIZATIONS
from tests import oracles, promises
from tests.cases import CASES, Case
from tests.growing import always, loss_of, mlp, small_vgg, step

FEW = {
    "select": how.Select(candidates=5),
    "pre": how.Pre(candidates=5),
    "opt": how.Opt(candidates=5, steps=2),
    "firefly": how.Firefly(candidates=6),
    "nest": how.NeST(candidates=3),
}

REFUSALS = ("cannot", "supports only", "no width", "half a fan-out", "derivative 0", "not 0 at 0", "none of")


def grown(case: Case, name: str) -> tuple[nn.Module, ng.Grower, list[Tensor], list[Tensor]] | None:
    """A model of the cases, grown once in all widths; its outputs before and after. None if that is refused."""
    torch.manual_seed(0)
    model = case.make()
    promises.without_chance(model)
    promises.unsettle(model)
    ng.nn.replace_relu(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    strategy = ng.Strategy(always(2), FEW.get(name, name))
    try:
        grower = ng.Grower(model, optimizer, strategy, example=case.example, buffer=64, **case.options)
    except ValueError as error:
        if not any(word in str(error) for word in REFUSALS):
            raise
        return None
    step(model, optimizer, case.example)
    before = promises.outputs_of(model, case.example, training=True)
    before += promises.outputs_of(model, case.example, training=False)
    events = grower.step(lambda: loss_of(model, case.example))
    after = promises.outputs_of(model, case.example, training=True)
    after += promises.outputs_of(model, case.example, training=False)
    if not events:
        return None
    return model, grower, before, after


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", INITIALIZATIONS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_growth_keeps_or_hardly_changes_the_function(case: Case, name: str) -> None:
    """To rounding for all but Firefly, whose change is its noise, and NeST, which makes neurons that work."""
    result = grown(case, name)
    if result is None:
        assert name != "random" or not case.growable  # which grows whatever can grow
        pytest.skip("refused, or nothing to add")
    model, grower, before, after = result
    assert len(grower.history) > 0
    change = promises.difference(before, after)
    if name == "firefly":
        assert change < 2e-2
    elif name != "nest":
        assert change < 1e-4
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    step(model, optimizer, case.example)


def pass_and_layer(model: nn.Module, x: Any, name: str, strategy: Any, **options: Any) -> ng.Layer:
    """The layer of a model after one training pass."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    grower = ng.Grower(model, optimizer, ng.Strategy(always(1), strategy), example=x, **options)
    loss_of(model, x).backward()
    (layer,) = [each for each in grower.layers if each.name == name]
    return layer


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 5, 1), nn.Conv2d(5, 4, 1)
        self.norm, self.relu, self.head = nn.BatchNorm2d(4), ng.nn.ReLU(), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu(self.norm(self.stem(x)))
        h = h + self.b(self.relu(self.a(h)))
        out: Tensor = self.head(h.mean((2, 3)))
        return out


class Concatenated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(6, 4), nn.Linear(6, 5), nn.Linear(9, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.cat([self.a(x).relu(), self.b(x).relu()], 1))
        return out


class Added(nn.Module):
    """Two producers whose sum goes through a function."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 4), nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.c(torch.tanh(self.a(x) + self.b(x)))
        return out


NETWORKS: dict[str, tuple[Any, tuple[int, ...], str, str]] = {
    "dense": (lambda: mlp(10, 7, 3), (30, 10), "0", "2"),
    "one neuron": (lambda: mlp(10, 1, 3), (30, 10), "0", "2"),
    "more neurons than samples": (lambda: mlp(10, 40, 3), (9, 10), "0", "2"),
    "wide": (lambda: mlp(20, 300, 3), (320, 20), "0", "2"),
    "convolution": (small_vgg, (6, 2, 8, 8), "0", "3"),
    "convolution in front of dense": (small_vgg, (6, 2, 8, 8), "3", "7"),
    "residual stream": (Residual, (6, 2, 5, 5), "stem", "a"),
    "residual branch": (Residual, (6, 2, 5, 5), "a", "b"),
    "concatenation": (Concatenated, (30, 6), "b", "head"),
}  # fmt: skip


class Copy:
    """A copy of the model of a layer, which is really grown."""

    def __init__(self, model: nn.Module, x: Tensor, layer: ng.Layer):
        self.model, self.x = copy.deepcopy(model), x
        self.width = ng.widths(self.model, x)[layer.name]

    @contextmanager
    def grown(self, count: int, values: Any) -> Iterator[None]:
        """It has new neurons with these values inside."""
        before = self.width.size
        ng.grow(self.model, self.width, count, initialization=values)
        yield
        ng.shrink(self.model, self.width, range(before, before + count))


def activations_with(other: Copy, layer: ng.Layer, fan_in: Tensor, consumer: str) -> Tensor:
    """H after really growing a copy of the model by one neuron: neurons x activations, the new one last."""
    axis, seen = layer.producer, list[Tensor]()
    module = other.model.get_submodule(consumer)
    hook = module.register_forward_pre_hook(lambda m, args: seen.append(args[0].detach()))
    with other.grown(1, {axis.tensor: layer.values(axis, fan_in[None])}), torch.no_grad():
        other.model(other.x)
        (columns,) = [a for a in other.width.consumers if a.module == consumer]
        positions = other.width.positions(columns)
    hook.remove()
    h = seen[0]
    if h.ndim == 4:
        return h[:, positions[:, 0]].movedim(1, 0).flatten(1)
    return h[:, positions].movedim(1, 0).flatten(1)


@pytest.mark.parametrize("metric", metrics.METRICS)
@pytest.mark.parametrize("least", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_select_picks_what_brute_force_picks(name: str, metric: metrics.Metric, least: bool) -> None:
    make, shape, width, consumer = NETWORKS[name]
    torch.manual_seed(1)
    model, x = make(), torch.randn(shape)
    select = how.Select(metric, candidates=8, least=least)
    layer = pass_and_layer(model, x, width, select)
    fan_in = layer.random_fan_in(8 + 3, torch.Generator().manual_seed(5))
    neurons = select(layer, 3, torch.Generator().manual_seed(5))
    n = len(x)
    scores, other = [], Copy(model, x, layer)
    for candidate in fan_in:
        H = activations_with(other, layer, candidate, consumer)
        if metric == "orthogonality":
            flat = H.unflatten(1, (n, -1)).movedim(1, 2).flatten(0, 1)  # (neurons x positions) x samples
            scores.append((oracles.orthogonality(flat),))
        else:
            scores.append((oracles.effective_rank(H), float(oracles.singular_values(H).sum())))
    sign = 1 if least else -1
    best = sorted(range(len(scores)), key=lambda i: [sign * s for s in scores[i]])[:3]
    chosen = neurons.values[layer.producer.tensor, layer.producer.axis]
    torch.testing.assert_close(chosen, layer.values(layer.producer, fan_in[best]))


@pytest.mark.parametrize("name", ["dense", "convolution", "concatenation"])
def test_select_refuses_candidates_whose_activations_are_not_finite(name: str) -> None:
    make, shape, width, _ = NETWORKS[name]
    layer = pass_and_layer(make(), torch.randn(shape), width, "select")
    fan_in = layer.random_fan_in(3, torch.Generator())
    fan_in[1] = float("inf")
    with pytest.raises(NotFinite, match=f"activations of {width}"):
        how.Select().best(layer, fan_in, 1)


def test_pre_gives_pre_activations_orthogonal_to_the_present_ones() -> None:
    model, x = mlp(40, 7, 3), torch.randn(30, 40)  # as many inputs as samples: the fit is exact
    pre = how.Pre(candidates=4)
    layer = pass_and_layer(model, x, "0", pre)
    neurons = pre(layer, 3, torch.Generator().manual_seed(0))
    Z = model[0](x).detach()
    new = x @ neurons.values["0.weight", 0].T
    assert new.norm() > 0.1
    torch.testing.assert_close(Z.T @ new, torch.zeros(7, 3), atol=1e-3, rtol=0)
    norms = model[0].weight.detach().norm(dim=1).mean()
    torch.testing.assert_close(neurons.values["0.weight", 0].norm(dim=1), norms.expand(3))


def test_pre_is_the_pseudoinverse_of_what_lies_in_the_kernel() -> None:
    model, x = mlp(6, 4, 3), torch.randn(30, 6)
    pre = how.Pre(candidates=0)
    layer = pass_and_layer(model, x, "0", pre)
    neurons = pre(layer, 2, torch.Generator().manual_seed(0))
    Z = model[0](x).detach().double()
    v = torch.randn(2, 30, generator=torch.Generator().manual_seed(0)).double()
    _, _, V = torch.linalg.svd(Z.T, full_matrices=True)
    kernel = V[4:]
    w = (torch.linalg.pinv(x.double()) @ (kernel.T @ kernel @ v.T)).T
    found = neurons.values["0.weight", 0].double()
    cosine = nn.functional.cosine_similarity(found[:, None], w[None], dim=2)
    torch.testing.assert_close(cosine.amax(1), torch.ones(2).double(), atol=1e-5, rtol=0)


def test_pre_adds_nothing_when_neurons_fill_all_samples() -> None:
    model, x = mlp(40, 35, 3), torch.randn(30, 40)
    pre = how.Pre(candidates=4)
    assert pre(pass_and_layer(model, x, "0", pre), 3, torch.Generator()).count == 0


def test_opt_raises_the_sum_of_singular_values() -> None:
    model, x = mlp(10, 7, 3), torch.randn(40, 10)
    layer = pass_and_layer(model, x, "0", "opt")
    sums = []
    for steps in (0, 10):
        opt = how.Opt(candidates=0, steps=steps)
        values = opt(layer, 4, torch.Generator().manual_seed(0)).values["0.weight", 0]
        norms = model[0].weight.detach().norm(dim=1).mean()
        torch.testing.assert_close(values.norm(dim=1), norms.expand(4))
        sums.append(metrics.singular_sum_with(model[:2](x).T.detach(), torch.relu(values @ x.T)).sort().values)
    assert (sums[1] > sums[0]).all()


def test_opt_activates_more_than_the_random_candidates_it_starts_from() -> None:
    """The sum of singular values of the present and the new activations, after selection among as many candidates."""
    model, x = mlp(10, 7, 3), torch.randn(40, 10)
    layer = pass_and_layer(model, x, "0", "opt")
    sums = {}
    for initialization in (how.Random(), how.Select(candidates=50), how.Opt(candidates=50)):
        generator = torch.Generator().manual_seed(1)
        values = initialization(layer, 4, generator).values
        fan_in = values["0.weight", 0] if values else layer.random_fan_in(4, generator).flatten(1)
        torch.testing.assert_close(fan_in.norm(dim=1), model[0].weight.detach().norm(dim=1).mean().expand(4))
        H = torch.cat([model[:2](x).T.detach(), torch.relu(fan_in @ x.T)])
        sums[type(initialization)] = float(torch.linalg.svdvals(H.double()).sum())
    assert sums[how.Opt] > 1.02 * sums[how.Select] > 1.02 * sums[how.Random]


@pytest.mark.filterwarnings("error")
def test_opt_climbs_the_gradient_without_a_warning() -> None:
    layer = pass_and_layer(mlp(10, 7, 3), torch.randn(40, 10), "0", "opt")
    torch.set_warn_always(True)  # else torch warns only once in a process
    try:
        assert how.Opt(candidates=2, steps=1)(layer, 1, torch.Generator().manual_seed(0)).count == 1
    finally:
        torch.set_warn_always(False)


def test_weight_gives_fan_in_of_the_kernel_and_as_much_as_there_is() -> None:
    model, x = mlp(10, 7, 3), torch.randn(20, 10)
    layer = pass_and_layer(model, x, "0", "weight")
    neurons = how.Weight()(layer, 5, torch.Generator().manual_seed(0))
    assert neurons.count == 3
    assert "3 of 10" in (neurons.why_fewer or "")
    product = model[0].weight.detach() @ neurons.values["0.weight", 0].T
    torch.testing.assert_close(product, torch.zeros(7, 3), atol=1e-5, rtol=0)
    full = mlp(5, 7, 3)
    assert how.Weight()(pass_and_layer(full, torch.randn(20, 5), "0", "weight"), 2, torch.Generator()).count == 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("lr", [0.0, 0.05])
def test_width_grown_by_weight_never_passes_the_fan_in(lr: float) -> None:
    model = mlp(9, 6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    grower = ng.Grower(model, optimizer, "north-weight")
    for _ in range(20):
        step(model, optimizer, torch.randn(16, 9))
        grower.step()
        assert grower.widths["0"] <= 9
    assert grower.widths["0"] == 9


def gradient_norm(other: Copy, neurons: how.Neurons) -> float:
    """The norm of the gradient that really added neurons get."""
    before, total = other.width.size, 0.0
    with other.grown(neurons.count, neurons.values):
        other.model.zero_grad()
        loss_of(other.model, other.x).backward()
        for axis in (*other.width.producers, *other.width.consumers):
            parameter = other.model.get_parameter(axis.tensor)
            if parameter.ndim == 1:
                continue  # biases
            assert parameter.grad is not None
            new = other.width.positions(axis)[before:]
            total += float(parameter.grad.movedim(axis.axis, 0)[new].square().sum())
    return total**0.5


@pytest.mark.parametrize("name", ["dense", "convolution", "convolution in front of dense", "residual branch"])
@pytest.mark.parametrize("seed", range(3))
def test_gradmax_gets_the_largest_gradient_of_all_fan_outs_of_its_norm(name: str, seed: int) -> None:
    make, shape, width, _ = NETWORKS[name]
    model = make()
    torch.manual_seed(seed)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    x = torch.randn(shape)
    gradmax = how.GradMax(pairs=False)
    layer = pass_and_layer(model, x, width, gradmax)
    neurons = gradmax(layer, 1, torch.Generator())
    copied = Copy(model, x, layer)
    best = gradient_norm(copied, neurons)
    key = layer.consumer.tensor, layer.consumer.axis
    chosen = neurons.values[key]
    assert chosen.norm() == pytest.approx(float(layer.norms(layer.consumer).mean()), rel=1e-4)
    others = []
    for _ in range(20):
        other = torch.randn(chosen.shape)
        values = {**neurons.values, key: other / other.norm() * chosen.norm()}
        others.append(gradient_norm(copied, how.Neurons(1, values)))
    # Present neurons as fan-outs, which are closer to what matters than random ones.
    for column in layer.of_neurons(layer.consumer):
        values = {**neurons.values, key: layer.values(layer.consumer, column[None] / column.norm() * chosen.norm())}
        others.append(gradient_norm(copied, how.Neurons(1, values)))
    assert best >= max(others) * (1 - 1e-5)
    assert best > 1.05 * sorted(others)[len(others) // 2]


@pytest.mark.parametrize(("pairs", "most"), [(False, 3), (True, 6)])
def test_gradmax_gives_no_more_neurons_than_the_next_layer_has_fan_outs_for(pairs: bool, most: int) -> None:
    model, x, gradmax = mlp(10, 7, 3), torch.randn(20, 10), how.GradMax(pairs)
    neurons = gradmax(pass_and_layer(model, x, "0", gradmax), 9, torch.Generator())
    assert neurons.count == most and neurons.why_fewer is not None
    assert bool(neurons.values["0.weight", 0].any()) == pairs


PAIRED = ["dense", "wide", "convolution", "convolution in front of dense", "residual branch", "residual stream"]


@pytest.mark.parametrize("count", [1, 4, 5])
@pytest.mark.parametrize("name", PAIRED)
def test_pairs_of_gradmax_have_opposite_fan_outs_which_are_those_of_the_paper(name: str, count: int) -> None:
    make, shape, width, _ = NETWORKS[name]
    torch.manual_seed(0)
    model, x, gradmax = make(), torch.randn(shape), how.GradMax()
    layer = pass_and_layer(model, x, width, gradmax)
    one, rest, pairs = layer.consumer, layer.of_neurons(layer.consumer).shape[1:], count // 2

    def fan_outs(neurons: how.Neurons) -> Tensor:
        stacked = neurons.values[one.tensor, one.axis].movedim(one.axis, 0)
        return stacked.reshape(neurons.count, *rest)

    neurons = gradmax(layer, count, torch.Generator().manual_seed(0))
    assert neurons.count == count
    first, second, odd = fan_outs(neurons).split([pairs, pairs, count % 2])
    assert torch.equal(first, -second) and not odd.any()
    torch.testing.assert_close(first, fan_outs(how.GradMax(pairs=False)(layer, pairs or 1, torch.Generator()))[:pairs])
    for axis in layer.width.producers:
        fan_in = neurons.values[axis.tensor, axis.axis].movedim(axis.axis, 0)
        assert torch.equal(fan_in[:pairs], fan_in[pairs : 2 * pairs])
        assert fan_in.ndim == 1 or fan_in.flatten(1).any(1).all()


def around_growth(grower: ng.Grower, x: Tensor, steps: int) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs in training and evaluation before and after the last of some steps, at which the model grows."""
    for _ in range(steps - 1):
        step(grower.model, grower.optimizers[0], x)
        grower.step()
    step(grower.model, grower.optimizers[0], x)
    before = [output for mode in (True, False) for output in promises.outputs_of(grower.model, x, training=mode)]
    assert grower.step()
    after = [output for mode in (True, False) for output in promises.outputs_of(grower.model, x, training=mode)]
    return before, after


@pytest.mark.parametrize("count", [4, 5])
@pytest.mark.parametrize("name", PAIRED)
def test_pairs_of_gradmax_keep_the_function_and_part_at_the_first_step(name: str, count: int) -> None:
    make, shape, width, _ = NETWORKS[name]
    torch.manual_seed(0)
    model, x = make().double(), torch.randn(shape, dtype=torch.float64)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    strategy = ng.Strategy(lambda layer: count if layer.step == 5 else 0, "gradmax")
    grower = ng.Grower(model, optimizer, strategy, example=x, include=[width])
    before, after = around_growth(grower, x, steps=5)
    assert promises.difference(before, after) < 1e-10
    step(model, optimizer, x)
    (layer,) = grower.layers
    first, second, _ = layer.weight.detach()[-count:].split([count // 2, count // 2, count % 2])
    assert ((first - second).norm(dim=1) > 1e-3 * first.norm(dim=1)).all()


def test_neurons_without_fan_in_may_never_fire_again_but_pairs_do() -> None:
    """Where inputs are positive, a step turns a fan-in of zero to one side for all samples."""
    dead = {}
    for pairs in (False, True):
        torch.manual_seed(0)
        model, x = mlp(10, 8, 8), 1 + 0.1 * torch.rand(200, 10)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        strategy = ng.Strategy(lambda layer: 8 if layer.step == 1 else 0, how.GradMax(pairs))
        grower = ng.Grower(model, optimizer, strategy, example=x)
        for _ in range(3):
            step(model, optimizer, x[torch.randperm(200)[:20]])
            grower.step()
        dead[pairs] = int((~(model[:2](x)[:, 8:] > 0).any(0)).sum())
    assert dead[False] >= 2
    assert dead[True] < dead[False]


def _other_producer(layer: ng.Layer, index: int) -> tuple[Tensor, Tensor]:
    """The rows of the second producer in a trial of three candidates, the first a copy of neuron 0."""
    assert layer.route is not None
    candidates = Candidates(torch.zeros(3, 1, 6), sources=torch.tensor([0, -1, -1]))
    tensors, _ = grown_tensors(layer.model, layer.width, layer.route, 3, candidates)
    return tensors["b.weight"][4 + index][None], tensors["b.bias"][4 + index][None]


@pytest.mark.parametrize("name", ["dense", "convolution", "convolution in front of dense", "sum"])
def test_firefly_scores_are_the_gradients_of_neurons_really_added(name: str) -> None:
    make, shape, width, _ = {**NETWORKS, "sum": (Added, (30, 6), "a", "c")}[name]
    torch.manual_seed(0)
    model, x = make(), torch.randn(shape)
    layer = pass_and_layer(model, x, width, "firefly")
    present, columns = layer.of_neurons(layer.producer), layer.of_neurons(layer.consumer)
    copied, fresh = present[:1].clone(), layer.random_fan_in(2, torch.Generator().manual_seed(0))
    fan_in = torch.cat([copied, fresh])
    fan_out = torch.cat([columns[:1] * 1e-4, columns[1:3] * 1e-4])  # small: D is that of the network as it is
    bias = torch.zeros(3, 1)
    bias[0] = layer.of_neurons(layer.biases[0])[0]
    scores = layer.trial_gradients(fan_in, fan_out, bias, torch.tensor([0, -1, -1]))
    norms, other = torch.cat([each.flatten(1) for each in scores], 1).norm(dim=1), Copy(model, x, layer)
    for index in range(3):
        one = slice(index, index + 1)
        values = {
            (layer.producer.tensor, layer.producer.axis): layer.values(layer.producer, fan_in[one]),
            (layer.consumer.tensor, layer.consumer.axis): layer.values(layer.consumer, fan_out[one]),
            (layer.biases[0].tensor, 0): bias[index],
        }
        if name == "sum":  # what the other producer gives: a copy too, or what the trial gave
            rows, offset = _other_producer(layer, index)
            values |= {("b.weight", 0): rows, ("b.bias", 0): offset}
        real = gradient_norm(other, how.Neurons(1, values))
        assert float(norms[index]) == pytest.approx(real, rel=1e-2)


@pytest.mark.parametrize("name", ["dense", "convolution", "residual branch", "residual stream"])
def test_firefly_changes_the_function_by_its_noise(name: str) -> None:
    make, shape, width, _ = NETWORKS[name]
    changes = []
    for noise in (1e-2, 1e-3, 1e-4):
        torch.manual_seed(0)
        model, x = make(), torch.randn(shape)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        strategy = ng.Strategy(always(2), how.Firefly(noise, candidates=20))
        grower = ng.Grower(model, optimizer, strategy, example=x, include=[width])
        step(model, optimizer, x)
        model.eval()
        before = model(x).detach()
        assert grower.step()
        changes.append(float((model(x) - before).detach().norm() / before.norm()))
    assert changes[0] < 0.1
    assert changes[1] < changes[0] / 4
    assert changes[2] < max(changes[1] / 4, 1e-6)


def split(
    name: str, dtype: torch.dtype = torch.float32, **options: Any
) -> tuple[nn.Module, torch.optim.Optimizer, ng.Grower, Tensor, list[Tensor], list[Tensor]]:
    """A model of the networks after some steps of Adam and a split of each neuron; its outputs before and after."""
    make, shape, width, _ = NETWORKS[name]
    torch.manual_seed(0)
    model, x = make().to(dtype), torch.randn(shape, dtype=dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    firefly = how.Firefly(candidates=200, **options)
    size = ng.widths(model, x)[width].size
    strategy = ng.Strategy(lambda layer: size if layer.step == 20 else 0, OnlySplits(**vars(firefly)))
    grower = ng.Grower(model, optimizer, strategy, example=x, include=[width])
    before, after = around_growth(grower, x, steps=20)
    assert grower.widths == {width: 2 * size}
    return model, optimizer, grower, x, before, after


class OnlySplits(how.Firefly):
    """Each present neuron is split, whatever the gradients."""

    @staticmethod
    def _choose(scores: Tensor, sources: Tensor, count: int) -> list[int]:
        return [sources.tolist().index(neuron) for neuron in range(count)]


SPLIT = ["dense", "convolution", "convolution in front of dense", "residual branch", "residual stream"]


@pytest.mark.parametrize("apart", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", SPLIT)
def test_a_split_of_firefly_without_noise_keeps_the_function(name: str, apart: float) -> None:
    *_, before, after = split(name, torch.float64, noise=0.0, apart=apart)
    assert promises.difference(before, after) < 1e-10


@pytest.mark.parametrize("apart", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", SPLIT)
def test_the_halves_of_a_split_have_the_fan_outs_of_the_formula(name: str, apart: float) -> None:
    _, _, grower, _, _, _ = split(name, torch.float64, noise=0.0, apart=apart)
    (layer,) = grower.layers
    size = layer.size // 2
    for axis in layer.consumers:
        parent, child = layer.of_neurons(axis).detach().flatten(1).split(size)
        whole, between = parent + child, (parent - child) / 2
        torch.testing.assert_close(between.norm(dim=1), apart * whole.norm(dim=1) / 2)
    for axis in layer.width.producers:
        parent, child = layer.of_neurons(axis).detach().split(size)
        assert torch.equal(parent, child)


@pytest.mark.parametrize("name", SPLIT)
def test_the_halves_of_a_split_part(name: str) -> None:
    """An optimizer that treats both alike keeps halves with the same fan-out together, but for their noise."""
    distances = {}
    for apart in (0.0, 1.0):
        model, _, grower, x, _, _ = split(name, apart=apart)
        (layer,) = grower.layers
        optimizer, found = torch.optim.Adam(model.parameters(), lr=1e-2), []
        for _ in range(11):
            parent, child = layer.weight.detach().split(layer.size // 2)
            found.append(float((parent - child).norm() / parent.norm()))
            step(model, optimizer, x)
        assert found[0] < 1e-3
        distances[apart] = found
    assert distances[1.0][10] > distances[1.0][1] > 10 * distances[1.0][0]
    assert distances[1.0][10] > 10 * distances[0.0][10]


def test_nest_points_down_the_gradient() -> None:
    """A finite difference: with a little of its fan-out, the loss falls as fast as the auxiliary gradient says."""
    slopes = []
    for seed in range(10):
        torch.manual_seed(seed)
        model, x = mlp(10, 7, 3, activation=nn.Identity), torch.randn(30, 10)  # linear: A is all there is
        layer = pass_and_layer(model, x, "0", "nest")
        neurons = how.NeST()(layer, 1, torch.Generator().manual_seed(seed))
        fan_in, fan_out = neurons.values["0.weight", 0], neurons.values["2.weight", 1]
        assert layer.bridge is not None
        expected = float((layer.auxiliary_gradient() * (fan_out @ fan_in)).sum())
        values = {("0.weight", 0): fan_in, ("2.weight", 1): 1e-3 * fan_out}
        before = float(loss_of(model, x))
        ng.grow(model, "0", 1, initialization=values)
        slope = (float(loss_of(model, x)) - before) / 1e-3
        assert slope == pytest.approx(expected, rel=0.05, abs=1e-3)
        slopes.append(slope)
    assert sum(slope < 0 for slope in slopes) >= 9


def test_nest_keeps_the_convolutional_candidates_that_lower_the_loss_most() -> None:
    model, x = small_vgg(), torch.randn(6, 2, 8, 8)
    nest = how.NeST(candidates=5)
    layer = pass_and_layer(model, x, "0", nest)
    tried: list[float] = []

    def loss_with(values: Any) -> float:
        twin = copy.deepcopy(model)
        ng.widths(twin, x)
        ng.grow(twin, "0", 1, initialization=values)
        tried.append(float(loss_of(twin, x)))
        return tried[-1]

    with layer.during(replace(layer.now, loss_with=loss_with)):
        neurons = nest(layer, 2, torch.Generator().manual_seed(0))
    best = sorted(range(7), key=lambda i: tried[i])[:2]
    assert len(tried) == 7
    fan_in = layer.random_fan_in(7, torch.Generator().manual_seed(0))
    torch.testing.assert_close(neurons.values["0.weight", 0], layer.values(layer.producer, fan_in[best]))
