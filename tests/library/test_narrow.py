"""An untrained model is made small, and its layers keep their scale."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import neurogenesis as ng
from tests.cases import CASES, Case
from tests.growing import mlp
from tests.promises import outputs_of


@pytest.mark.parametrize("case", [case for case in CASES if case.growable], ids=str)
def test_every_growable_width_is_reduced_and_the_model_runs(case: Case) -> None:
    torch.manual_seed(0)
    model = case.make()
    sizes = ng.narrow(model, case.example, 2, exclude=(), **case.options)
    smallest = {name: min(size, 2) for name, size in case.growable.items()}
    assert sizes == smallest | ({"rnn": 3} if case.name == "projected_memory" else {})  # more than are projected
    for training in (False, True):
        outputs_of(model, case.example, training)
    found = ng.widths(model, case.example, **case.options)
    assert {name: found[name].size for name in sizes} == sizes


def test_by_default_a_sixteenth_and_at_least_sixteen_neurons_are_left() -> None:
    assert ng.narrow(mlp(8, 512, 40, 3, 2), torch.randn(2, 8)) == {"0": 32, "2": 16, "4": 3}


def test_outputs_keep_their_variance() -> None:
    ratios = []
    for seed in range(20):
        model = mlp(32, 512, 512, 64)
        torch.manual_seed(seed)
        for layer in model[::2]:
            layer.reset_parameters()
        x = torch.randn(64, 32)
        before = model(x).detach().var(0).mean()
        ng.narrow(model, x)
        ratios.append(float(model(x).detach().var(0).mean() / before))
    assert 0.8 < sum(ratios) / len(ratios) < 1.4  # 0.004 without a correction


def test_parts_of_concatenated_inputs_are_rescaled_as_a_whole() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 64), nn.Linear(4, 16), nn.Linear(80, 2)

        def forward(self, x: torch.Tensor) -> Any:
            return self.c(torch.cat([self.a(x).relu(), self.b(x).relu()], 1))

    model = Two()
    weight = model.c.weight.detach().clone()
    ng.narrow(model, torch.randn(2, 4), 4, include=["a"])
    torch.testing.assert_close(model.c.weight, torch.cat([weight[:, :4], weight[:, 64:]], 1) * (80 / 20) ** 0.5)


def test_masks_are_not_rescaled() -> None:
    model = mlp(4, 64, 3)
    prune.l1_unstructured(model[2], "weight", 0.5)
    mask = model[2].weight_mask.clone()
    ng.narrow(model, torch.randn(2, 4), 16)
    torch.testing.assert_close(model[2].weight_mask, mask[:, :16])


def test_a_small_model_grows_with_an_optimizer_made_before() -> None:
    torch.manual_seed(0)
    model = mlp(6, 64, 64, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    assert ng.narrow(model, torch.randn(2, 6), optimizer=optimizer) == {"0": 16, "2": 16}
    grower = ng.Grower(model, optimizer, "need")
    for _ in range(40):
        x = torch.randn(64, 6)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), x[:, :3].abs() - x[:, 3:]).backward()
        optimizer.step()
        grower.step()
    assert grower.history.events


@pytest.mark.parametrize("size", [0, -1, 0.0, float("nan"), float("inf"), True, "small"])
def test_wrong_sizes_are_refused_before_anything_changes(size: Any) -> None:
    model = mlp(6, 64, 3)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="expected a number of neurons"):
        ng.narrow(model, torch.randn(2, 6), size)
    torch.testing.assert_close(model.state_dict(), before)


@pytest.mark.parametrize("shrink", [ng.narrow, ng.prune])
def test_a_pattern_without_a_match_is_refused(shrink: Any) -> None:
    model, x = nn.Sequential(nn.Linear(6, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 3)), torch.randn(200, 6)
    with pytest.raises(ValueError, match="include: 'nothing' matches no width; growable widths: 0"):
        shrink(model, x, include=["nothing"])
    with pytest.raises(ValueError, match="exclude: 'nothing' matches no width"):
        shrink(model, x, exclude=["nothing"])
    with pytest.raises(ValueError, match="exclude: '1' matches no width; what it matches belongs to the width '0'"):
        shrink(model, x, exclude=["1"])
    assert model[0].out_features == 64


def trained_step(model: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


@pytest.mark.parametrize("sign", ["optimizer", "attached grower", "gradient", "batch norm"])
def test_a_trained_model_is_refused_and_stays_as_it_is(sign: str) -> None:
    model = nn.Sequential(nn.Linear(4, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = None
    if sign == "gradient":
        model.eval()(torch.randn(8, 4)).sum().backward()
    elif sign == "batch norm":
        model(torch.randn(8, 4))
    else:
        optimizer = trained_step(model.eval())
    if sign == "attached grower":
        grower = ng.Grower(model, optimizer)  # kept: it knows the optimizer
        assert grower.optimizers == [optimizer]
        optimizer = None
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=r"the model has been trained .* neurogenesis\.prune\(\)"):
        ng.narrow(model, torch.randn(2, 4), optimizer=optimizer)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_weights_that_look_pretrained_are_narrowed_with_a_warning() -> None:
    model = mlp(32, 64, 64, 4)
    with torch.no_grad():
        model[0].weight[:, :8] *= 5  # as if these inputs mattered
    with pytest.warns(UserWarning, match=r"0\.weight does not look untrained"):
        ng.narrow(model, torch.randn(2, 32))


INITIALIZATIONS = [
    nn.init.kaiming_normal_, nn.init.kaiming_uniform_, nn.init.xavier_normal_, nn.init.xavier_uniform_,
    nn.init.orthogonal_, nn.init.trunc_normal_, nn.init.zeros_, nn.init.eye_,
]  # fmt: skip


@pytest.mark.parametrize("initialize", INITIALIZATIONS)
@pytest.mark.filterwarnings("error")
def test_usual_initializations_look_untrained(initialize: Any) -> None:
    for seed in range(20):
        model = mlp(12, 50, 20, 4)
        torch.manual_seed(seed)
        for layer in model[::2]:
            initialize(layer.weight)
        ng.narrow(model, torch.randn(2, 12))
