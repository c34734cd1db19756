"""Growing and shrinking: the optimizer, gradients, schedulers, averages, hooks; bad input; all or nothing."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.optim import swa_utils

import neurogenesis as ng
from benchmarks.surgery import memory_of_growth
from neurogenesis.structure.axes import named_tensors
from tests import cases, oracles
from tests.cases import randn
from tests.growing import failing_edits
from tests.promises import assert_same, everything, snapshot

X = randn(16, 6)


def trained(make: Callable[[Any], optim.Optimizer], steps: int = 3) -> tuple[nn.Module, optim.Optimizer]:
    torch.manual_seed(0)
    model = cases.mlp()
    ng.widths(model, X)
    optimizer = make(model.parameters())
    for _ in range(steps):
        step(model, optimizer)
    return model, optimizer


def step(model: nn.Module, optimizer: optim.Optimizer) -> None:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (model(X) ** 2).mean()
        loss.backward()
        return loss

    optimizer.step(closure)


OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "SGD": lambda p: optim.SGD(p, 0.1),
    "SGD momentum": lambda p: optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
    "SGD fused": lambda p: optim.SGD(p, 0.1, momentum=0.9, fused=True),
    "Adam": lambda p: optim.Adam(p),
    "Adam foreach": lambda p: optim.Adam(p, foreach=True),
    "Adam fused": lambda p: optim.Adam(p, fused=True),
    "AdamW amsgrad": lambda p: optim.AdamW(p, amsgrad=True),
    "AdamW fused amsgrad": lambda p: optim.AdamW(p, amsgrad=True, fused=True),
    "RMSprop": lambda p: optim.RMSprop(p, momentum=0.9, centered=True),
    "Adagrad": lambda p: optim.Adagrad(p, initial_accumulator_value=0.1),
    "Adagrad fused": lambda p: optim.Adagrad(p, fused=True),
    "Adadelta": lambda p: optim.Adadelta(p),
    "Adamax": lambda p: optim.Adamax(p),
    "NAdam": lambda p: optim.NAdam(p),
    "RAdam": lambda p: optim.RAdam(p),
    "Rprop": lambda p: optim.Rprop(p),
    "ASGD": lambda p: optim.ASGD(p),
    "Adafactor": lambda p: optim.Adafactor(p),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_state_grows_with_its_parameters(name: str) -> None:
    model, optimizer = trained(OPTIMIZERS[name])
    before = copy.deepcopy(optimizer.state_dict()["state"])
    names = [parameter for parameter, _ in model.named_parameters()]
    plan = ng.grow(model, "0", 3, optimizer=optimizer)
    edits = {edit.tensor: edit for edit in plan.edits}
    for number, state in optimizer.state_dict()["state"].items():
        parameter = dict(model.named_parameters())[names[number]]
        for key, value in state.items():
            if key == "births":
                continue  # what they are is the subject of test_ages.py
            old, edit = before[number][key], edits.get(names[number])
            if not isinstance(value, Tensor) or edit is None or value.ndim == 0 or value.shape[edit.axis] == 1:
                assert_same(old, value)  # a step count, a factor without this axis, a parameter left alone
                continue
            assert value.shape[edit.axis] == parameter.shape[edit.axis]
            kept = [i for i in range(value.shape[edit.axis]) if i not in edit.positions.tolist()]
            assert_same(old, value.index_select(edit.axis, torch.tensor(kept)))
            new = value.index_select(edit.axis, edit.positions)
            start = {("Rprop", "step_size"): 1e-2, ("Adagrad", "sum"): 0.1}.get((name, key), 0.0)
            expected = edit.values if (name, key) == ("ASGD", "ax") else torch.full_like(new, start)
            assert_same(expected, new)
    for _ in range(3):
        step(model, optimizer)
    assert all(parameter.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "Adafactor"])
def test_old_weights_train_on_as_if_nothing_had_grown(name: str) -> None:
    """With zero fan-in and fan-out new neurons are inert: every old weight must take exactly the same steps."""
    model, optimizer = trained(OPTIMIZERS[name])
    reference, other = trained(OPTIMIZERS[name])

    inert = {"0.weight": torch.zeros(3, 6), "2.weight": torch.zeros(7, 3)}
    ng.grow(model, "0", 3, optimizer=optimizer, initialization=inert)
    for _ in range(3):
        step(model, optimizer)
        step(reference, other)
    ng.shrink(model, "0", [8, 9, 10], optimizer=optimizer)
    for (name, grown), old in zip(model.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(grown, old, rtol=1e-5, atol=1e-7, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_growing_and_shrinking_gives_back_the_optimizer_state_bit_for_bit(name: str) -> None:
    model, optimizer = trained(OPTIMIZERS[name])
    before = everything(model, optimizer)
    ng.grow(model, "2", 4, optimizer=optimizer)
    ng.shrink(model, "2", [7, 8, 9, 10], optimizer=optimizer)
    assert_same(before, everything(model, optimizer))


def test_shrinking_removes_the_chosen_neurons_everywhere() -> None:
    model, optimizer = trained(OPTIMIZERS["Adam"])
    before = snapshot(model)
    moment = optimizer.state[model[0].weight]["exp_avg"].clone()
    ng.shrink(model, "0", [5, 0], optimizer=optimizer)
    assert_same(oracles.remove(before["0.weight"], 0, [0, 5]), model[0].weight.detach())
    assert_same(oracles.remove(before["0.bias"], 0, [0, 5]), model[0].bias.detach())
    assert_same(oracles.remove(before["2.weight"], 1, [0, 5]), model[2].weight.detach())
    assert_same(oracles.remove(moment, 0, [0, 5]), optimizer.state[model[0].weight]["exp_avg"])


def test_lbfgs_is_refused() -> None:
    model, optimizer = trained(lambda p: optim.LBFGS(p, max_iter=2))
    before = everything(model)
    with pytest.raises(ValueError, match=r"LBFGS .* create a new LBFGS"):
        ng.grow(model, "0", 1, optimizer=optimizer)
    assert_same(before, everything(model))


def test_state_of_another_shape_is_refused() -> None:
    model, optimizer = trained(OPTIMIZERS["SGD"])
    optimizer.state[model[0].weight]["strange"] = torch.zeros(5, 5)
    before = everything(model, optimizer)
    with pytest.raises(ValueError, match=r"'strange' of shape \(5, 5\) for 0\.weight"):
        ng.grow(model, "0", 1, optimizer=optimizer)
    assert_same(before, everything(model, optimizer))


def test_factored_state_of_an_axis_of_size_one_is_refused() -> None:
    model = cases.one_neuron()
    optimizer = optim.Adafactor(model.parameters())
    model(randn(4, 6)).sum().backward()
    optimizer.step()
    with pytest.raises(ValueError, match=r"Adafactor keeps '(row|col)_var'"):
        ng.grow(model, "0", 1, optimizer=optimizer, example=randn(4, 6))


def test_parameter_groups_and_learning_rate_schedules_go_on() -> None:
    def build() -> tuple[nn.Module, optim.Optimizer, list[Any]]:
        torch.manual_seed(0)
        model = cases.mlp()
        ng.widths(model, X)
        decayed = [p for p in model.parameters() if p.ndim > 1]
        others = [p for p in model.parameters() if p.ndim == 1]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "lr": 0.5, "weight_decay": 0}]
        optimizer = optim.AdamW(groups, lr=0.1)
        schedulers = [
            optim.lr_scheduler.LambdaLR(optimizer, [lambda n: 0.9**n, lambda n: 0.8**n]),
            optim.lr_scheduler.OneCycleLR(optimizer, [0.1, 0.2], total_steps=20),
        ]
        return model, optimizer, schedulers

    model, optimizer, schedulers = build()
    _, plain, plain_schedulers = build()
    groups = [[id(p) for p in group["params"]] for group in optimizer.param_groups]
    for number in range(6):
        if number == 3:
            ng.grow(model, "0", 2, optimizer=optimizer)
        step(model, optimizer)
        plain.step()
        for scheduler in (*schedulers, *plain_schedulers):
            scheduler.step()
        keys = ("lr", "weight_decay", "betas", "initial_lr")
        assert [[g[k] for k in keys] for g in optimizer.param_groups] == [
            [g[k] for k in keys] for g in plain.param_groups
        ]
    assert groups == [[id(p) for p in group["params"]] for group in optimizer.param_groups]


@pytest.mark.parametrize("use_buffers", [False, True])
def test_an_averaged_model_grows_too(use_buffers: bool) -> None:
    model = cases.conv_flatten()
    x = randn(2, 3, 8, 8)
    ng.widths(model, x)
    average = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=use_buffers)
    average.update_parameters(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    average.update_parameters(model)
    average.eval()
    before = average(x)
    plan = ng.grow(model, "3", 2, ema=average)
    torch.testing.assert_close(average(x), before)
    assert average.module[3].out_channels == model[3].out_channels == 7
    for edit in plan.edits:
        new = named_tensors(average.module)[edit.tensor].index_select(edit.axis, edit.positions)
        assert_same(edit.values, new.detach())
    average.update_parameters(model)
    ng.shrink(model, "3", [0], ema=average)
    average.update_parameters(model)
    average(x)


def test_gradients_are_padded_so_that_a_step_after_growth_loses_none() -> None:
    model, optimizer = trained(OPTIMIZERS["SGD"])
    optimizer.zero_grad()
    model(X).square().mean().backward()
    before = {name: p.grad.clone() for name, p in model.named_parameters()}
    ng.grow(model, "0", 2, optimizer=optimizer)
    assert_same(torch.cat([before["0.weight"], torch.zeros(2, 6)]), model[0].weight.grad)
    assert_same(torch.cat([before["2.weight"], torch.zeros(7, 2)], 1), model[2].weight.grad)
    assert_same(before["4.weight"], model[4].weight.grad)
    optimizer.step()


def test_growth_between_forward_and_backward_keeps_the_gradients() -> None:
    model, optimizer = trained(OPTIMIZERS["SGD"])
    reference = copy.deepcopy(model)
    optimizer.zero_grad()
    reference.zero_grad()
    loss = model(X).square().mean()
    ng.grow(model, "0", 2, optimizer=optimizer)
    ng.grow(model, "2", 1, optimizer=optimizer)  # 2.weight is resized again: on its other axis
    reference(X).square().mean().backward()
    with pytest.raises(RuntimeError, match="resized twice"):
        loss.backward()
    optimizer.zero_grad()
    loss = model(X).square().mean()
    ng.shrink(model, "2", [7])
    loss.backward()
    grown = dict(model.named_parameters())
    for name, parameter in reference.named_parameters():
        kept = tuple(slice(0, n) for n in parameter.shape)
        torch.testing.assert_close(grown[name].grad[kept], parameter.grad)
    optimizer.step()
    del loss
    assert all(parameter._use_count() == 1 for parameter in model.parameters())


def test_gradients_accumulated_before_growth_count_once() -> None:
    model, _ = trained(OPTIMIZERS["SGD"])
    reference = copy.deepcopy(model)
    for each in (model, reference):
        each.zero_grad()
        each(X).square().mean().backward()
    loss = model(X).sin().mean()
    ng.grow(model, "0", 2)
    loss.backward()
    reference(X).sin().mean().backward()
    for grown, old in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(grown.grad[tuple(slice(0, n) for n in old.shape)], old.grad)


def test_hooks_and_attributes_on_parameters_stay() -> None:
    model = cases.mlp()
    ng.widths(model, X)
    weight, calls = model[0].weight, []
    weight.no_decay = True
    first = weight.register_hook(lambda gradient: calls.append(("gradient", gradient.shape[0])))
    second = weight.register_post_accumulate_grad_hook(lambda p: calls.append(("accumulated", p.shape[0])))
    ng.grow(model, "0", 2)
    model(X).sum().backward()
    assert calls == [("gradient", 10), ("accumulated", 10)]
    assert weight.no_decay
    first.remove()
    second.remove()
    model(X).sum().backward()
    assert len(calls) == 2


def test_frozen_parameters_stay_frozen_and_need_no_optimizer() -> None:
    model = cases.mlp()
    model[0].requires_grad_(False)
    optimizer = optim.Adam([p for p in model.parameters() if p.requires_grad])
    ng.grow(model, "0", 2, optimizer=optimizer, example=X, frozen=True)
    assert [p.requires_grad for p in model.parameters()] == [False, False, True, True, True, True]


def test_an_optimizer_inside_another_object_is_taken_along() -> None:
    class Prepared:
        """As Accelerate's: not an optimizer of torch, and holding one."""

        def __init__(self, optimizer: Any):
            self.optimizer = optimizer

    model = cases.mlp()
    optimizer = optim.Adam(model.parameters())
    model(randn(5, 6)).sum().backward()
    optimizer.step()
    ng.grow(model, "0", 2, optimizer=Prepared(Prepared(optimizer)), example=randn(1, 6))  # type: ignore[arg-type]
    assert set(optimizer.state) == set(model.parameters())
    for parameter, state in optimizer.state.items():
        assert state["exp_avg"].shape == parameter.shape


def test_several_optimizers_are_all_taken_along() -> None:
    model = cases.mlp()
    both = [optim.Adam(model[:2].parameters()), optim.SGD(model[2:].parameters(), 0.1, momentum=0.9)]
    model(X).sum().backward()
    for optimizer in both:
        optimizer.step()
    ng.grow(model, "0", 2, optimizer=both, example=X)
    assert both[0].state[model[0].weight]["exp_avg"].shape == (10, 6)
    assert both[1].state[model[2].weight]["momentum_buffer"].shape == (7, 10)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_every_precision_works(dtype: torch.dtype) -> None:
    model = cases.conv_flatten().to(dtype).eval()
    x = randn(2, 3, 8, 8).to(dtype)
    before = model(x)
    for width in ng.widths(model, x).growable:
        ng.grow(model, width, 3)
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    torch.testing.assert_close(model(x), before)


def test_parameters_of_different_precision_work_together() -> None:
    class Mixed(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            for layer in self:
                x = layer(x.to(layer.weight.dtype))
            return x

    model = Mixed(nn.Linear(3, 4).double(), nn.Linear(4, 5).bfloat16(), nn.Linear(5, 2))
    before = model(randn(2, 3))
    for width in ng.widths(model, randn(2, 3)).growable:
        ng.grow(model, width, 2)
    assert [layer.weight.dtype for layer in model] == [torch.float64, torch.bfloat16, torch.float32]
    torch.testing.assert_close(model(randn(2, 3)), before)


def test_the_same_generator_gives_the_same_growth_and_the_global_one_is_left_alone() -> None:
    models = [trained(OPTIMIZERS["SGD"])[0] for _ in range(2)]
    state = torch.get_rng_state()
    for model in models:
        ng.grow(model, "0", 2, generator=torch.Generator().manual_seed(5))
    assert torch.equal(state, torch.get_rng_state())
    assert_same(snapshot(models[0]), snapshot(models[1]))
    ng.grow(models[0], "0", 2, generator=torch.Generator().manual_seed(6))
    assert not torch.equal(models[0][0].weight[-2:], models[0][0].weight[-4:-2])


def test_a_model_that_grew_by_plan_equals_one_that_grew_at_once() -> None:
    first, second = (trained(OPTIMIZERS["SGD"])[0] for _ in range(2))
    plan = ng.plan_growth(first, "0", 2, generator=torch.Generator().manual_seed(5))
    before = everything(second)
    plan.check(second)
    assert_same(before, everything(second))
    plan.apply(first)
    plan.apply(second)
    assert_same(snapshot(first), snapshot(second))
    assert [w.size for w in ng.widths(first, X)] == [10, 7, 3, 6]
    with pytest.raises(ValueError, match="has changed since the plan"):
        plan.apply(first)


def test_values_of_ones_own_are_the_new_weights() -> None:
    model, _ = trained(OPTIMIZERS["SGD"])
    ng.grow(model, "0", 2, initialization={"0.weight": torch.ones(2, 6), "2.weight": torch.full((7, 2), 2.0)})
    assert_same(torch.ones(2, 6), model[0].weight[8:].detach())
    assert_same(torch.full((7, 2), 2.0), model[2].weight[:, 8:].detach())
    assert_same(torch.zeros(2), model[0].bias[8:].detach())


def test_the_row_of_a_padding_token_stays_zero() -> None:
    model = nn.Sequential(nn.Embedding(7, 4, padding_idx=2), nn.Linear(4, 2))
    ng.grow(model, "0", 3, example=torch.arange(6).reshape(2, 3))
    assert not model[0].weight[2].any()
    assert model[0].weight[0, 4:].all()


def test_a_plan_made_before_another_width_grew_is_refused() -> None:
    model, _ = trained(OPTIMIZERS["SGD"])
    plan = ng.plan_growth(model, "0", 2)
    ng.grow(model, "2", 1)
    before = everything(model)
    with pytest.raises(ValueError, match="has changed since the plan was made"):
        plan.apply(model)
    assert_same(before, everything(model))


def test_a_sparse_gradient_is_named() -> None:
    model = nn.Sequential(nn.Embedding(7, 4, sparse=True), nn.Linear(4, 2))
    tokens = torch.arange(6).reshape(2, 3)
    model(tokens).sum().backward()
    with pytest.raises(ValueError, match=r"0\.weight has a sparse gradient"):
        ng.grow(model, "0", 3, example=tokens)


def bad(message: str, error: type[Exception], act: Callable[[nn.Module, optim.Optimizer], Any]) -> Any:
    return pytest.param(message, error, act, id=message)


@pytest.mark.parametrize(
    ("message", "error", "act"),
    [
        bad("did you mean '0'", KeyError, lambda m, o: ng.grow(m, "00", 1, optimizer=o)),
        bad("must be positive, not 0", ValueError, lambda m, o: ng.grow(m, "0", 0, optimizer=o)),
        bad("must be positive, not -2", ValueError, lambda m, o: ng.grow(m, "0", -2, optimizer=o)),
        bad("must be an integer, not 1.5", TypeError, lambda m, o: ng.grow(m, "0", 1.5, optimizer=o)),
        bad("must be an integer, not True", TypeError, lambda m, o: ng.grow(m, "0", True, optimizer=o)),
        bad("4 cannot grow: a size of the model's output", ValueError, lambda m, o: ng.grow(m, "4", 1, optimizer=o)),
        bad("4 cannot shrink: a size of the model's", ValueError, lambda m, o: ng.shrink(m, "4", [0], optimizer=o)),
        bad("cannot remove all 8", ValueError, lambda m, o: ng.shrink(m, "0", range(8), optimizer=o)),
        bad("0 to 7: \\[8\\] is out of range", IndexError, lambda m, o: ng.shrink(m, "0", [8], optimizer=o)),
        bad("0 to 7: \\[-1\\] is out of range", IndexError, lambda m, o: ng.shrink(m, "0", [-1], optimizer=o)),
        bad("no neurons to remove", ValueError, lambda m, o: ng.shrink(m, "0", [], optimizer=o)),
        bad("not a boolean mask", TypeError, lambda m, o: ng.shrink(m, "0", torch.tensor([True, False]))),
        bad("an index must be an integer, not True", TypeError, lambda m, o: ng.shrink(m, "0", [True, False])),
        bad("an index must be an integer, not 0.7", TypeError, lambda m, o: ng.shrink(m, "0", [0.7])),
        bad("unknown initialization 'good'", ValueError, lambda m, o: ng.grow(m, "0", 1, initialization="good")),
        bad(
            "holds none of the model's parameters",
            ValueError,
            lambda m, o: ng.grow(m, "0", 1, optimizer=optim.Adam(cases.mlp().parameters())),
        ),
        bad(
            "no optimizer given holds 0.weight",
            ValueError,
            lambda m, o: ng.grow(m, "0", 1, optimizer=optim.Adam(m[2:].parameters())),
        ),
        bad(
            "expected values of shape \\(1, 6\\) for axis 0, got \\(2, 6\\)",
            ValueError,
            lambda m, o: ng.grow(m, "0", 1, initialization={"0.weight": torch.ones(2, 6)}),
        ),
        bad(
            "not all finite",
            ValueError,
            lambda m, o: ng.grow(m, "0", 1, initialization={"0.weight": torch.full((1, 6), torch.nan)}),
        ),
        bad(
            "\\['4.weight'\\] do not belong",
            ValueError,
            lambda m, o: ng.grow(m, "0", 1, initialization={"4.weight": torch.ones(1)}),
        ),
        bad(
            "ema: it is no average of this model: 0.weight",
            ValueError,
            lambda m, o: ng.grow(m, "0", 1, optimizer=o, ema=nn.Linear(2, 2)),
        ),
    ],
)
def test_bad_input_is_refused_and_changes_nothing(
    message: str, error: type[Exception], act: Callable[[nn.Module, optim.Optimizer], Any]
) -> None:
    model, optimizer = trained(OPTIMIZERS["Adam"])
    before = everything(model, optimizer)
    with pytest.raises(error, match=message):
        act(model, optimizer)
    assert_same(before, everything(model, optimizer))
    assert [width.size for width in ng.widths(model, X)] == [8, 7, 3, 6]


def test_a_model_never_seen_asks_for_an_example() -> None:
    with pytest.raises(ValueError, match=r"call widths\(model, example\) first, or pass example="):
        ng.grow(cases.mlp(), "0", 1)


def test_a_model_changed_by_hand_asks_for_its_widths_again() -> None:
    model = cases.mlp()
    ng.widths(model, X)
    model[2] = nn.Linear(8, 9)
    model[4] = nn.Linear(9, 3)
    with pytest.raises(ValueError, match=r"has changed \(2\.weight has shape \(9, 8\), not \(7, 8\)\)"):
        ng.grow(model, "2", 1)
    ng.grow(model, "2", 1, example=X)
    assert model[4].in_features == 10


def test_an_exported_program_must_be_deleted_first() -> None:
    model, optimizer = trained(OPTIMIZERS["Adam"])
    program = torch.export.export(model, (X,))
    before = everything(model, optimizer)
    with pytest.raises(RuntimeError, match=r"0\.weight cannot be resized while an exported program contains it"):
        ng.grow(model, "0", 1, optimizer=optimizer)
    assert_same(before, everything(model, optimizer))
    del program
    ng.grow(model, "0", 1, optimizer=optimizer)
    assert model[0].out_features == model[2].in_features == len(optimizer.state[model[0].weight]["exp_avg"]) == 9


@pytest.mark.filterwarnings("ignore:The tensor attributes")  # of torch's own layer
def test_programs_are_looked_for_where_recurrent_layers_were_exported_and_only_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.LSTM(3, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[0])

    model, x = Reader(), randn(5, 2, 3)
    monkeypatch.setattr(gc, "get_objects", lambda: pytest.fail("this takes long"))
    ng.grow(model, "rnn", 1, example=x)
    monkeypatch.undo()
    program = torch.export.export(model, (x,))
    with pytest.raises(RuntimeError, match="cannot be resized while an exported program contains it"):
        ng.grow(model, "rnn", 1)
    del program
    ng.grow(model, "rnn", 1)
    assert model.rnn.hidden_size == 6


@pytest.mark.parametrize("failing", range(7))
def test_a_failure_in_the_middle_undoes_everything(failing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when memory runs out: whichever of the edits fails, the model and the optimizer are as before."""
    model, optimizer = trained(OPTIMIZERS["Adam"])
    before, objects = everything(model, optimizer), named_tensors(model)
    failing_edits(monkeypatch, failing)
    with pytest.raises(MemoryError):
        ng.grow(model, "0", 3, optimizer=optimizer)
    monkeypatch.undo()
    assert_same(before, everything(model, optimizer))
    assert all(named_tensors(model)[name] is tensor for name, tensor in objects.items())
    ng.grow(model, "0", 3, optimizer=optimizer)
    step(model, optimizer)


def test_memory_holds_the_old_and_the_new_copy_and_then_the_new_one_alone() -> None:
    model = nn.Sequential(nn.Linear(500, 1000), nn.ReLU(), nn.Linear(1000, 500))
    optimizer = optim.Adam(model.parameters())
    x = randn(2, 500)
    ng.widths(model, x)
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    memory = memory_of_growth(model, optimizer, "0", 4)
    assert memory["peak_ratio"] <= 1
    assert memory["rest_ratio"] == 1


def test_a_compiled_model_follows() -> None:
    model = cases.mlp()
    compiled = torch.compile(model, backend="eager")
    before = compiled(X).detach()
    ng.grow(model, "0", 3, example=X)
    torch.testing.assert_close(compiled(X), before)
    ng.shrink(model, "0", [8, 9, 10])
    torch.testing.assert_close(compiled(X), before)
