"""Each trigger decides what its formula says, computed the slow way."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import neurogenesis as ng
from neurogenesis import triggers
from tests import oracles
from tests.growing import mlp, small_vgg, step


def run(model: nn.Module, trigger: triggers.Trigger, steps: int, batch: int, lr: float = 0.01, **options: object):  # type: ignore[no-untyped-def]
    """Train with a trigger that is asked and not obeyed; yields the grower, the batch and what the trigger said."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    said: dict[str, triggers.Decision] = {}

    class Watched(triggers.Trigger):
        needs = trigger.needs

        def start(self, layer: ng.Layer) -> None:
            trigger.start(layer)

        def __call__(self, layer: ng.Layer) -> int:
            decision = trigger(layer)
            said[layer.name] = decision if isinstance(decision, triggers.Decision) else triggers.Decision(decision)
            return 0

    grower = ng.Grower(model, optimizer, ng.Strategy(Watched()), **options)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(0)
    shape = (2, 8, 8) if isinstance(model[0], nn.Conv2d) else (model[0].in_features,)  # type: ignore[index]
    for _ in range(steps):
        x = torch.randn(batch, *shape, generator=generator)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        step(model, optimizer, x)
        grower.step()
        yield grower, x, before, dict(said)


def activations(model: nn.Sequential, tensors: dict[str, torch.Tensor], x: torch.Tensor, consumer: int) -> torch.Tensor:
    """The consumer's input with given parameters: neurons x activations."""
    front = {name: t for name, t in tensors.items() if int(name.split(".")[0]) < consumer}
    h = torch.func.functional_call(model[:consumer], front, (x,)).detach()
    neurons = model[consumer].weight.shape[1] if h.ndim > 2 else None  # type: ignore[union-attr]
    if h.ndim == 2 and isinstance(model[consumer - 1], nn.Flatten):
        return h.unflatten(1, (5, -1)).movedim(1, 0).flatten(1)
    return h.T if neurons is None else h.movedim(1, 0).flatten(1)


@pytest.mark.parametrize("batch", [40, 11])
def test_activation_trigger_is_its_formula_on_the_buffer(batch: int) -> None:
    """With phi_0 the metric of the untrained network on the same samples, when there are twice as many as neurons."""
    model = mlp(10, 12, 9, 3)
    untrained = {name: p.detach().clone() for name, p in model.named_parameters()}
    inputs = torch.zeros(0, 10)
    baseline: dict[int, float] = {}
    for grower, x, _, said in run(model, triggers.Activation(gamma=0.8), 7, batch, lr=0.1, buffer=60):
        inputs = torch.cat([inputs, x])[-60:]
        for consumer, name in ((2, "0"), (4, "2")):
            size = grower.widths[name]
            if len(inputs) < 2 * size:
                assert said[name] == triggers.Decision(0)
                continue
            if consumer not in baseline:
                baseline[consumer] = oracles.effective_rank(activations(model, untrained, inputs, consumer)) / size
            rank = oracles.effective_rank(activations(model, dict(model.named_parameters()), inputs, consumer))
            limit = math.floor(0.8 * baseline[consumer] * size + 1e-9)
            assert said[name] == triggers.Decision(
                max(0, rank - limit), rank / size, pytest.approx(0.8 * baseline[consumer])
            )


def test_activation_trigger_of_convolutions_has_a_maximum_that_is_raised_after_the_decision() -> None:
    model = small_vgg()
    untrained = {name: p.detach().clone() for name, p in model.named_parameters()}
    maxima: dict[str, float] = {}
    for grower, x, _, said in run(model, triggers.Activation(), 6, 16, lr=0.03, buffer=16):
        for consumer, name in ((3, "0"), (7, "3"), (9, "7")):
            size = grower.widths[name]
            if name not in maxima:
                maxima[name] = oracles.effective_rank(activations(model, untrained, x, consumer)) / size
            rank = oracles.effective_rank(activations(model, dict(model.named_parameters()), x, consumer))
            assert said[name].threshold == pytest.approx(0.9 * maxima[name])
            assert said[name].count == max(0, rank - math.floor(0.9 * maxima[name] * size + 1e-9))
            maxima[name] = max(maxima[name], rank / size)


def test_orthogonality_decides_by_its_own_formula() -> None:
    model = mlp(10, 12, 3)
    first = None
    for grower, x, before, said in run(model, triggers.Activation(metric="orthogonality"), 4, 50, buffer=50):
        first = oracles.orthogonality(activations(model, before, x, 2)) if first is None else first
        phi = oracles.orthogonality(activations(model, dict(model.named_parameters()), x, 2))
        expected = max(0, math.ceil(12 * phi) - math.floor(0.97 * first * 12 + 1e-9))
        assert said["0"].count == expected
        assert said["0"].metric == pytest.approx(phi, abs=1e-6)
        assert grower.widths == {"0": 12}


def test_integrated_trigger_counts_neurons_as_far_as_they_are_used() -> None:
    model = mlp(10, 12, 3)
    unit = model[2].weight.detach().norm(dim=0).mean()
    with torch.no_grad():
        model[2].weight[:, :5] = 0
        unit = model[2].weight.norm(dim=0).mean()
    for _, x, _, said in run(model, triggers.Integrated(), 1, 50, buffer=50):
        scale = (model[2].weight.detach().norm(dim=0) / unit).clamp_max(1)
        rank = oracles.effective_rank(activations(model, dict(model.named_parameters()), x, 2) * scale[:, None])
        assert said["0"].metric == rank / 12


def test_width_4_grows() -> None:
    model = mlp(10, 4, 3)
    (*_, (_, _, _, said)) = run(model, triggers.Activation(), 1, 50, buffer=50)
    assert said["0"].count == 1


def test_weight_trigger_is_its_formula() -> None:
    model = mlp(30, 12, 9, 3)
    first = {i: oracles.effective_rank(model[i].weight.detach()) / model[i].out_features for i in (0, 2)}
    for _, _, _, said in run(model, triggers.Weight(), 3, 20, lr=0.1):
        for i in (0, 2):
            size = model[i].out_features
            rank = oracles.effective_rank(model[i].weight.detach())
            assert said[str(i)].count == max(
                0, min(rank - math.floor(0.99 * first[i] * size), model[i].in_features - size)
            )


@pytest.mark.parametrize("scale", [0.5, 0.05, 0.005])
@pytest.mark.parametrize("mean", [False, True])
def test_gradient_trigger_counts_singular_values_of_the_auxiliary_gradient(scale: float, mean: bool) -> None:
    model = mlp(10, 6, 5, 3)
    caught: dict[str, torch.Tensor] = {}

    def catch(module: nn.Module, args: tuple[torch.Tensor], output: torch.Tensor) -> None:
        number = next(i for i in (0, 2, 4) if model[i] is module)
        if output.requires_grad:
            caught[f"in{number}"] = args[0].detach()
            output.register_hook(lambda gradient: caught.update({f"D{number}": gradient}))

    for i in (0, 2, 4):
        model[i].register_forward_hook(catch)
    for _, _, _, said in run(model, triggers.Gradient(scale, mean), 3, 30):
        for producer, consumer in ((0, 2), (2, 4)):
            singular = torch.linalg.svdvals(caught[f"D{consumer}"].T @ caught[f"in{producer}"])
            norms = model[producer].weight.grad.norm(dim=1) + model[consumer].weight.grad.norm(dim=0)
            threshold = scale * float(norms.mean() if mean else norms.sum())
            decision = said[str(producer)]
            assert decision.threshold == pytest.approx(threshold, rel=1e-4)
            assert decision.count == int((singular > threshold).sum())
            assert decision.metric is not None
            assert decision.metric >= float(singular[0]) * (1 - 1e-5)


def test_schedules_reach_the_final_width_when_three_quarters_are_done() -> None:
    for trigger in (triggers.Linear(steps=40, final=20), triggers.Batched(steps=40, final=2.5)):
        model = mlp(10, 8, 3)
        optimizer = torch.optim.Adam(model.parameters())
        grower = ng.Grower(model, optimizer, ng.Strategy(trigger))
        sizes = []
        for _ in range(40):
            step(model, optimizer, torch.randn(5, 10))
            grower.step()
            sizes.append(grower.widths["0"])
        assert sizes[-1] == 20
        assert sizes.index(20) == 29  # the 30th step
        additions = [b - a for a, b in zip([8, *sizes], sizes, strict=False) if b > a]
        assert len(additions) == (12 if isinstance(trigger, triggers.Linear) else 8)
        assert set(additions) == {1} if isinstance(trigger, triggers.Linear) else max(additions) - min(additions) <= 1


def test_a_schedule_without_a_final_width_says_so() -> None:
    model = mlp(10, 8, 3)
    optimizer = torch.optim.Adam(model.parameters())
    grower = ng.Grower(model, optimizer, ng.Strategy(triggers.Linear(steps=4)))
    step(model, optimizer, torch.randn(5, 10))
    with pytest.raises(ValueError, match="no final size for 0"):
        grower.step()


@pytest.mark.parametrize(
    ("strategy", "bridge", "recorded"),
    [("need", False, True), ("gradmax", True, True), ("nest", True, True), ("north-random", False, False)],
)
def test_a_bridge_is_kept_for_those_who_use_it_and_gradients_are_recorded_for_all_who_do(
    strategy: str, bridge: bool, recorded: bool
) -> None:
    model = mlp(6, 5, 3)
    grower = ng.Grower(model, torch.optim.SGD(model.parameters(), lr=0.1), strategy, example=torch.randn(4, 6))
    (layer,) = grower.layers
    assert (layer.bridge is not None) == bridge
    model(torch.randn(4, 6)).sum().backward()
    assert layer.has_gradients == recorded == layer.records_gradients


def test_a_layer_remembers_nothing_of_a_look_but_its_step() -> None:
    seen = []

    def trigger(layer: ng.Layer) -> int:
        seen.append((layer.step, layer.now.measurement is not None, layer.now.seed))
        if layer.step == 2:
            raise ArithmeticError("on purpose")
        return 1

    model = mlp(6, 5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    grower = ng.Grower(model, optimizer, ng.Strategy(trigger), example=torch.randn(4, 6))
    (layer,) = grower.layers
    step(model, optimizer, torch.randn(4, 6))
    grower.step()
    step(model, optimizer, torch.randn(4, 6))
    with pytest.raises(ArithmeticError, match="on purpose"):
        grower.step()
    assert [each[:2] for each in seen] == [(1, True), (2, True)]
    assert seen[0][2] != seen[1][2]
    assert (layer.step, layer.now.measurement, layer.now.seed) == (2, None, 0)
