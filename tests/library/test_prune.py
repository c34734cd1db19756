"""Neurons are removed that the others explain best, and what they explain is folded into the consumers."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.optim.swa_utils import AveragedModel
from torch.utils._pytree import tree_map_only

import neurogenesis as ng
from neurogenesis.explained import Moments, Remaining, coefficients, staying, total_loss
from neurogenesis.growing.dying import DeadNeurons, momentum
from neurogenesis.structure.axes import named_tensors
from tests import oracles
from tests.cases import CASES, Case
from tests.growing import mlp, step
from tests.promises import difference, outputs_of, unsettle, without_chance


def varied(example: Any, count: int) -> list[Any]:
    """Inputs like the example, with other random numbers."""
    generator = torch.Generator().manual_seed(1)

    def redrawn(tensor: Tensor) -> Tensor:
        return torch.randn(tensor.shape, generator=generator) if tensor.dtype == torch.float32 else tensor

    return [tree_map_only(Tensor, redrawn, example) for _ in range(count)]


def double(model: nn.Module, width: ng.Width) -> None:
    """Add a copy of the first neuron, with one and a half times its fan-out, or copies of all neurons."""
    if width.copied is not None:
        ng.grow(model, width, width.size)
        return
    tensors, values = named_tensors(model), {}
    for axis in width.axes:
        own = tensors[axis.tensor].detach().index_select(axis.axis, width.positions(axis)[0])
        values[axis.tensor, axis.axis] = 1.5 * own if axis.role == "consumer" and own.is_floating_point() else own
    ng.grow(model, width, 1, initialization=values)


def dead_dense(*dead: int) -> nn.Sequential:
    """A dense network in which some neurons of the first layer never fire."""
    model = mlp(5, 8, 6, 3)
    with torch.no_grad():
        model[0].bias[list(dead)] = -100.0
        model[2].bias[:] = 1.0
    return model


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


X = torch.randn(256, 5, generator=torch.Generator().manual_seed(0))


# --- exact and fast ----------------------------------------------------------------------------------------


def random_consumers(seed: int) -> list[tuple[Tensor, Tensor, bool]]:
    """What some consumers get of the same neurons, some of which are nearly dependent, and their weights."""
    generator = torch.Generator().manual_seed(seed)
    neurons, rows = 5 + seed % 5, 60
    hidden = torch.randn(neurons, rows, generator=generator, dtype=torch.float64)
    hidden = hidden + torch.randn(neurons, 3, generator=generator, dtype=torch.float64) @ hidden[:3]
    result = []
    for number in range(1 + seed % 3):
        scale = 10 ** torch.empty(neurons, 1, dtype=torch.float64).uniform_(-2, 2, generator=generator)
        H = scale * (hidden + number).relu() if seed % 2 else scale * (hidden + 1).tanh()
        weight = torch.randn(neurons, 2 + number, generator=generator, dtype=torch.float64) / scale
        result.append((H, weight, bool((seed + number) % 2)))
    return result


@pytest.mark.parametrize("seed", range(24))
def test_downdates_choose_and_fold_like_fits_repeated_after_every_removal(seed: int) -> None:
    consumers = random_consumers(seed)
    neurons = len(consumers[0][0])
    expected, folded = oracles.pruned(consumers, 2)
    states = [Remaining(Moments.of(H).covariance(constant), weight) for H, weight, constant in consumers]
    removed: list[int] = []
    while len(removed) < neurons - 2:
        removed.append(int(total_loss(states, removed).argmin()))
        for state in states:
            state.remove(removed[-1])
    assert removed == expected
    stays = staying(neurons, removed)
    for (H, weight, constant), (new_weight, new_constant) in zip(consumers, folded, strict=True):
        moments = Moments.of(H)
        beta = coefficients(moments.covariance(constant), removed)
        torch.testing.assert_close(weight[stays] + beta.T @ weight[removed], new_weight, rtol=1e-6, atol=1e-8)
        if constant:
            left = moments.mean[removed] - beta @ moments.mean[stays]
            torch.testing.assert_close(left @ weight[removed], new_constant, rtol=1e-6, atol=1e-8)


def test_losses_add_up_to_the_change_of_the_outputs() -> None:
    ((H, weight, _),) = random_consumers(3)
    H = H - H.mean(1, keepdim=True)
    state, removed, lost = Remaining(Moments.of(H).covariance(), weight), list[int](), 0.0
    for _ in range(4):
        losses = total_loss([state], removed)
        removed.append(int(losses.argmin()))
        lost += float(losses[removed[-1]])
        state.remove(removed[-1])
    stays = staying(len(H), removed)
    beta = coefficients(Moments.of(H).covariance(), removed)
    before, after = H.T @ weight, H[stays].T @ (weight[stays] + beta.T @ weight[removed])
    assert lost == pytest.approx(float((before - after).square().sum() / before.square().sum()), rel=1e-6)


def test_the_choice_does_not_depend_on_the_scale_of_neurons() -> None:
    ((H, weight, _),) = random_consumers(9)[:1]
    scale = torch.logspace(-3, 3, len(H), dtype=torch.float64)[:, None]
    losses = [Remaining(Moments.of(s * H).covariance(), weight / s).losses for s in (1, scale)]
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-5, atol=0)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("left", [2, 5])
def test_a_dense_layer_is_cut_and_folded_like_the_slow_computation(bias: bool, left: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3, bias=bias)).double()
    x = X.double()
    removed, ((weight, constant),) = oracles.pruned([(model[:2](x).detach().T, model[2].weight.detach().T, bias)], left)
    before = copy.deepcopy(model)
    (plan,) = ng.prune(model, x, to=left)
    assert (plan.width, plan.before, plan.after) == ("0", 8, left)
    torch.testing.assert_close(model[0].weight, before[0].weight[staying(8, removed)])
    torch.testing.assert_close(model[2].weight.T, weight, rtol=1e-6, atol=1e-8)
    if bias:
        torch.testing.assert_close(model[2].bias, before[2].bias + constant, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("padding", [0, 1])
def test_a_convolution_is_cut_and_folded_like_the_slow_computation(padding: int) -> None:
    """A constant cannot be folded where the consumer pads with zeros: it is fitted without one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 6, 3), nn.Sigmoid(), nn.Conv2d(6, 4, 3, padding=padding)).double()
    x = torch.randn(3, 2, 9, 9).double()
    H, weight = model[:2](x).detach().movedim(1, 0).flatten(1), model[2].weight.detach().movedim(1, 0)
    removed, ((new, constant),) = oracles.pruned([(H, weight.flatten(1), not padding)], 3)
    before = copy.deepcopy(model)
    ng.prune(model, x, to=3)
    torch.testing.assert_close(model[0].weight, before[0].weight[staying(6, removed)])
    torch.testing.assert_close(model[2].weight.movedim(1, 0).flatten(1), new, rtol=1e-6, atol=1e-8)
    expected = before[2].bias if padding else before[2].bias + constant.unflatten(0, (4, 9)).sum(1)
    torch.testing.assert_close(model[2].bias, expected, rtol=1e-6, atol=1e-8)


def test_folding_changes_outputs_less_than_removing_the_same_neurons() -> None:
    model = mlp(5, 32, 32, 3)
    cut = copy.deepcopy(model)
    before = model(X)
    for plan in ng.prune(model, X, to=0.5):
        ng.shrink(cut, plan.width, plan.edits[0].positions.tolist(), example=X[:2])
    folded, removed = ((after - before).square().mean() for after in (model(X), cut(X)))
    assert folded < 0.2 * removed


# --- the function is kept ----------------------------------------------------------------------------------

UNMEASURED = {
    "raw_parameters", "only_in_training", "low_rank_update", "pruned", "complex_layers", "mixture_of_experts",
    "recurrent", "long_short_term_memory", "projected_memory", "packed_sequences", "recurrent_cells",
    "shifted_windows",
}  # fmt: skip
UNFOLDED = {  # consumers that are no layers, compute or share their weights, or feed back
    "tied_embedding": {"back"}, "recurrent_square": {"first"}, "weight_norm": {"0"}, "weight_norm_transposed": {"0"},
    "reparametrized_kernels": {"stem"}, "convolution_by_unfolding": {"conv"},
    "multihead_attention": {"embed"},
    "products": {"own", "several", "several#2", "last", "mix"},
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:these widths are not pruned")
@pytest.mark.parametrize(
    "case", [case for case in CASES if case.growable and case.name not in UNMEASURED], ids=lambda case: case.name
)
def test_copies_of_neurons_are_removed_without_changing_outputs(case: Case) -> None:
    torch.manual_seed(0)
    model = case.make()
    unsettle(model)
    without_chance(model)
    found = ng.widths(model, case.example, **case.options)
    for name in case.growable:
        double(model, found[name])
    data = varied(case.example, 40)
    before = [each for x in data[:3] for each in outputs_of(model, x, training=False)]
    ng.prune(model, data)
    assert difference(before, [each for x in data[:3] for each in outputs_of(model, x, training=False)]) < 1e-5
    larger = {name for name, size in case.growable.items() if found[name].size > size}
    streams = {name for name in case.growable if found[name].kind == "stream"}  # each entry changes all others
    assert larger == UNFOLDED.get(case.name, set()) | streams


@pytest.mark.parametrize("training", [False, True])
def test_dependent_neurons_are_folded_exactly_in_both_modes(training: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 3)).double()
    before = outputs_of(model, X.double(), training)
    plan = ng.prune(model, X.double())[0]
    assert (plan.width, plan.after) == ("0", 5)  # 5 inputs make no more than 5 independent neurons
    assert difference(before, outputs_of(model, X.double(), training)) < 1e-6


def test_dead_neurons_go_first() -> None:
    model = dead_dense(1, 4)
    before = model(X)
    plans = ng.prune(model, X, to={"0": 6})
    assert plans[0].edits[0].positions.tolist() == [1, 4]
    torch.testing.assert_close(model(X), before)


def test_without_a_size_only_dead_and_explained_neurons_go() -> None:
    model = dead_dense(0, 7)
    before = model(X)
    (plan,) = ng.prune(model, X)
    assert (plan.width, plan.before, plan.after) == ("0", 8, 6)
    torch.testing.assert_close(model(X), before)
    assert ng.prune(model, X) == []


def test_a_constant_goes_into_the_bias() -> None:
    model = mlp(5, 8, 3, activation=nn.Sigmoid)
    with torch.no_grad():
        model[0].weight[2] = 0.0
    before = model(X)
    (plan,) = ng.prune(model, X)
    assert plan.edits[0].positions.tolist() == [2]
    assert "2.bias  axis 0  changed at 0-2  (consumer)" in str(plan)
    torch.testing.assert_close(model(X), before)


def test_a_constant_in_front_of_zero_padding_stays() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3, padding=1))
    with torch.no_grad():
        model[0].weight[:2] = 0.0
        model[0].bias[:2] = torch.tensor([1.0, -1.0])  # a constant of 1, and one of 0
    x = torch.randn(4, 1, 8, 8)
    before = model(x)
    (plan,) = ng.prune(model, x)
    assert plan.edits[0].positions.tolist() == [1]
    torch.testing.assert_close(model(x), before)


def test_channels_with_batch_norm_are_cut_with_their_statistics() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 3, 3))
    with torch.no_grad():
        model[1].running_mean.uniform_(-1, 1)
        model[1].bias[3] = -100.0
    model.eval()
    x = torch.randn(8, 2, 8, 8)
    before, statistics = model(x), model[1].running_mean.clone()
    ng.prune(model, x)
    assert model[1].num_features == 5
    torch.testing.assert_close(model[1].running_mean, statistics[[0, 1, 2, 4, 5]])
    torch.testing.assert_close(model(x), before)


class Stream(nn.Module):
    """A residual stream with three consumers, which get it after norms of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(5, 8), nn.Linear(8, 3)
        self.norms = nn.ModuleList(nn.BatchNorm1d(8) for _ in range(2))
        self.up = nn.ModuleList(nn.Linear(8, 6, bias=bias) for bias in (True, False))
        self.down = nn.ModuleList(nn.Linear(6, 8) for _ in range(2))

    def forward(self, x: Tensor) -> Any:
        x = self.stem(x)
        for norm, up, down in zip(self.norms, self.up, self.down, strict=True):
            x = x + down(up(norm(x).relu()).relu())
        return self.head(x)


def test_every_consumer_of_a_stream_takes_its_own_fit() -> None:
    torch.manual_seed(0)
    model = Stream().double().eval()
    x, seen = X.double(), list[Tensor]()
    consumers = [model.up[0], model.up[1], model.head]
    handles = [each.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach().T)) for each in consumers]
    model(x)
    for handle in handles:
        handle.remove()
    given = zip(seen, consumers, strict=True)
    slow = [(H, layer.weight.detach().T, layer.bias is not None) for H, layer in given]
    removed, folded = oracles.pruned(slow, 5)
    (plan,) = ng.prune(model, x, to={"stem": 5})
    assert plan.edits[0].positions.tolist() == sorted(removed)
    for layer, (weight, _) in zip(consumers, folded, strict=True):
        torch.testing.assert_close(layer.weight.T, weight, rtol=1e-6, atol=1e-8)


def test_a_layer_called_twice_is_measured_in_both_calls() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(5, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x).relu()) + self.b(self.a(x - 50.0).relu())  # type: ignore[no-any-return]

    torch.manual_seed(0)
    model = Twice()
    with torch.no_grad():
        model.a.weight[0], model.a.bias[0] = -1.0, -100.0  # fires in the second call only
    before = model(X)
    ng.prune(model, X)
    torch.testing.assert_close(model(X), before, rtol=1e-4, atol=1e-4)
    assert model.a.bias[0] == -100.0


def test_consumers_with_computed_weights_lose_neurons_without_folding() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), weight_norm(nn.Linear(8, 3), dim=1))
    with torch.no_grad():
        model[0].bias[2] = -100.0
    (plan,) = ng.prune(model, X, to=7)
    assert plan.edits[0].positions.tolist() == [2] and not plan.changes


def test_layers_that_use_their_weight_otherwise_are_not_folded_into() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, 2 * self.weight, self.bias)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), Doubled(8, 3))
    weight = model[2].weight.detach().clone()
    (plan,) = ng.prune(model, X, to=6)
    assert not plan.changes
    assert torch.equal(model[2].weight, weight[:, staying(8, plan.edits[0].positions.tolist())])


def test_the_mode_and_buffers_of_the_model_stay() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.ReLU(), nn.Linear(8, 3)).train()
    model(X)
    statistics = model[1].running_mean.clone()
    ng.prune(model, X, to=7)
    assert model.training and model[1].training
    assert set(model[1].running_mean.tolist()) < set(statistics.tolist())


# --- sizes and budgets -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("to", "sizes"),
    [(4, (4, 4)), (0.5, (4, 3)), ({"2": 2}, (8, 2)), ({"0": 0.25, "2": 5}, (2, 5)), (100, (8, 6)), (0.01, (1, 1))],
)
def test_sizes_are_numbers_parts_or_by_name(to: Any, sizes: tuple[int, int]) -> None:
    model = mlp(5, 8, 6, 3)
    plans = ng.prune(model, X, to=to)
    assert (model[0].out_features, model[2].out_features) == sizes
    assert [plan.width for plan in plans] == [
        name for name, size, old in zip("02", sizes, (8, 6), strict=True) if size < old
    ]
    assert model(X).shape == (256, 3)


def test_patterns_choose_widths() -> None:
    model = mlp(5, 8, 6, 3)
    ng.prune(model, X, to=2, include=["0"])
    ng.prune(model, X, to=3, exclude=["0"])
    assert (model[0].out_features, model[2].out_features) == (2, 3)


def test_several_batches_count_as_one() -> None:
    models = [mlp(5, 8, 6, 3) for _ in range(2)]
    ng.prune(models[0], X, to=3)
    ng.prune(models[1], list(X.split(50)), to=3)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(models[0].state_dict(), models[1].state_dict(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("limit", [120, 90, 20])
def test_a_budget_is_met_and_used(limit: int) -> None:
    model = mlp(5, 8, 6, 3)
    ng.prune(model, X, max_parameters=limit)
    assert limit - 14 < parameters(model) <= limit  # a neuron of the first layer has 6 weights and 8 in the second


def test_a_budget_is_saved_where_the_least_is_lost() -> None:
    model = dead_dense(1, 2, 3)
    before = model(X)
    (plan,) = ng.prune(model, X, max_parameters=parameters(model) - 3 * 12)
    assert plan.edits[0].positions.tolist() == [1, 2, 3]
    torch.testing.assert_close(model(X), before)


def test_at_least_one_neuron_is_left() -> None:
    model = mlp(5, 4, 3)
    with torch.no_grad():
        model[0].bias[:] = -100.0
    before = model(X)
    (plan,) = ng.prune(model, X)
    assert plan.after == 1
    torch.testing.assert_close(model(X), before)


# --- what is carried along ---------------------------------------------------------------------------------


def test_optimizer_state_and_ages_are_cut_with_the_neurons() -> None:
    model = mlp(5, 8, 6, 3)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        step(model, optimizer, X)
    ng.grow(model, "0", 2, optimizer=optimizer, example=X[:2])
    step(model, optimizer, X)
    saved = {
        name: {key: value.clone() for key, value in optimizer.state[own].items() if isinstance(value, Tensor)}
        for name, own in model.named_parameters()
    }
    with torch.no_grad():
        model[0].bias[[3, 8]] = -100.0
    births = copy.deepcopy(optimizer.state[model[0].weight]["births"])
    ng.prune(model, X, to={"0": 8}, optimizer=optimizer)
    stays = staying(10, [3, 8])
    for name, index in (("0.weight", (stays,)), ("0.bias", (stays,)), ("2.weight", (slice(None), stays))):
        own = optimizer.state[model.get_parameter(name)]
        assert torch.equal(own["exp_avg"], saved[name]["exp_avg"][index])
        assert torch.equal(own["exp_avg_sq"], saved[name]["exp_avg_sq"][index])
    for old, new in zip(births, optimizer.state[model[0].weight]["births"], strict=True):
        assert (old is None) == (new is None)
        if old is not None and len(old) == 10:
            assert torch.equal(new, old[stays])
    step(model, optimizer, X)


def test_an_average_folds_its_own_weights() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.Linear(6, 3))
    average = AveragedModel(model)
    with torch.no_grad():
        average.module[1].weight.mul_(2.0)
        average.module[1].bias.mul_(2.0)
    ng.prune(model, X, ema=average)
    assert model[0].out_features == 5
    torch.testing.assert_close(average.module(X), 2 * model(X), rtol=1e-4, atol=1e-5)


class Pooled(nn.Module):
    """The second width has one activation per sample, the first one has seven."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv1d(2, 4, 3), nn.Linear(4, 6), nn.Linear(6, 2)
        self.mix = nn.Conv1d(4, 4, 1)

    def forward(self, x: Tensor) -> Any:
        return self.c(F.relu(self.b(self.mix(F.relu(self.a(x))).mean(2))))


@pytest.mark.parametrize("options", [{"to": 2}, {"max_parameters": 60}, {}])
def test_too_few_activations_are_refused_and_nothing_changes(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model, x = Pooled(), torch.randn(10, 2, 9)
    with torch.no_grad():
        model.a.bias[0] = -100.0
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="b has 6 neurons, but the data gives only 10 activations of each"):
        ng.prune(model, x, **options)
    assert (model.a.out_channels, model.mix.in_channels) == (4, 4)
    torch.testing.assert_close(model.state_dict(), before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"to": 4, "max_parameters": 90}, "pass to= or max_parameters="),
        ({"to": 0}, "size of 0: expected a number of neurons"),
        ({"to": True}, "size of 0: expected"),
        ({"to": float("nan")}, "size of 0: expected"),
        ({"to": {"2": -1}}, "size of 2: expected"),
        ({"to": {"4": 2}}, "4 cannot be pruned: a size of the model's output"),
        ({"to": {"0": 2}, "exclude": ["0"]}, "0 cannot be pruned: include= and exclude= leave it out"),
        ({"max_parameters": 5}, "one neuron in each width already makes"),
        ({"max_parameters": 0}, "max_parameters: expected a positive integer"),
        ({"max_parameters": 1.5}, "max_parameters: expected a positive integer"),
        ({"include": ["nothing"]}, "include: .nothing. matches no width"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_changes(options: dict[str, Any], message: str) -> None:
    model = mlp(5, 8, 6, 3)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=message):
        ng.prune(model, X, **options)
    torch.testing.assert_close(model.state_dict(), before)


def test_unknown_names_get_a_hint() -> None:
    with pytest.raises(KeyError, match="no width is called"):
        ng.prune(mlp(5, 8, 6, 3), X, to={"hidden": 2})


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(ValueError, match="the list of inputs is empty"):
        ng.prune(mlp(5, 8, 6, 3), [])


def test_activations_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="activations of 0 are not finite"):
        ng.prune(mlp(5, 8, 6, 3), torch.full((64, 5), torch.nan))


def test_widths_that_cannot_be_measured_are_named() -> None:
    class Raw(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.w, self.b, self.c = nn.Linear(5, 6), nn.Parameter(torch.randn(6, 4)), nn.Linear(4, 5), None
            self.c = nn.Linear(5, 2)

        def forward(self, x: Tensor) -> Any:
            return self.c(F.relu(self.b(F.relu(self.a(x)) @ self.w)))  # type: ignore[misc]

    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="these widths are not pruned: a: its consumer w is not a layer"):
        ng.prune(model := Raw(), X, to=3)
    assert model.a.out_features == 6 and model.b.out_features == 3
    with pytest.raises(ValueError, match="cannot be pruned: a: its consumer w"):
        ng.prune(model, X, to={"a": 3})


# --- as the second half of growth --------------------------------------------------------------------------


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, grower: ng.Grower, steps: range, batch: int = 32
) -> list[ng.Event]:
    events = []
    for number in steps:
        x = torch.randn(batch, 5, generator=torch.Generator().manual_seed(number))
        step(model, optimizer, x)
        events += grower.step()
    return events


def grown(model: nn.Module, strategy: Any = "north-random", **options: Any) -> tuple[torch.optim.Optimizer, ng.Grower]:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return optimizer, ng.Grower(model, optimizer, strategy, buffer=64, max_width=16, prune=True, **options)


@pytest.mark.parametrize(
    "strategy", ["north-random", "north-select", "north-weight", "gradmax", "firefly", "need", "static"]
)
@pytest.mark.filterwarnings("ignore")
def test_dead_neurons_are_dropped_with_an_event(strategy: str) -> None:
    model = dead_dense(1, 2)
    chosen = ng.Strategy(ng.triggers.Static(), "random") if strategy == "static" else strategy
    optimizer, grower = grown(model, chosen)
    events = train(model, optimizer, grower, range(70))
    drops = [event for event in events if event.after < event.before]
    first = next(event for event in drops if event.width == "0")
    assert first.before - first.after == 2 and first.step == 60  # dead at the look of step 10, 50 steps later still
    assert all(event in grower.history.events for event in drops)
    assert grower.widths["0"] == model[0].out_features
    assert optimizer.state[model[2].weight]["exp_avg"].shape == model[2].weight.shape


def test_dropping_changes_no_output() -> None:
    model = dead_dense(1, 2)
    optimizer, grower = grown(model, ng.Strategy(ng.triggers.Static(), "random"))
    train(model, optimizer, grower, range(59))
    x = torch.randn(32, 5, generator=torch.Generator().manual_seed(59))
    step(model, optimizer, x)
    before = model(X)
    event = grower.step()[0]
    assert (event.width, event.before, event.after) == ("0", 8, 6)
    torch.testing.assert_close(model(X), before)


@pytest.mark.parametrize("prune", [True, False])
def test_only_with_prune_are_neurons_dropped(prune: bool) -> None:
    model = dead_dense(1)
    optimizer = torch.optim.Adam(model.parameters())
    grower = ng.Grower(model, optimizer, ng.Strategy(ng.triggers.Static(), "random"), buffer=64, prune=prune)
    assert bool(train(model, optimizer, grower, range(60))) == prune


def test_a_new_neuron_gets_its_time() -> None:
    model = mlp(5, 8, 3)
    values = {"0.weight": torch.zeros(1, 5), "0.bias": torch.tensor([-100.0])}

    def add_dead(layer: ng.Layer, count: int, generator: torch.Generator) -> ng.Neurons:
        return ng.Neurons(1, {(name, 0): value for name, value in values.items()})

    def at_step_25(layer: ng.Layer) -> int:
        return int(layer.step == 25)

    optimizer, grower = grown(model, ng.Strategy(at_step_25, add_dead), every=1)
    events = train(model, optimizer, grower, range(90))
    assert [(event.step, event.before, event.after) for event in events] == [(25, 8, 9), (80, 9, 8)]


def test_a_neuron_that_fires_again_stays() -> None:
    model = dead_dense(1)
    optimizer, grower = grown(model, ng.Strategy(ng.triggers.Static(), "random"))
    assert not train(model, optimizer, grower, range(45))
    with torch.no_grad():
        model[0].bias[1] = 0.0
    train(model, optimizer, grower, range(45, 55))
    with torch.no_grad():
        model[0].bias[1] = -100.0
    events = train(model, optimizer, grower, range(55, 120))
    assert [event.step for event in events if event.width == "0"][:1] == [110]


def test_the_last_neuron_is_never_dropped() -> None:
    model = mlp(5, 3, 2)
    with torch.no_grad():
        model[0].bias[:] = -100.0
    optimizer, grower = grown(model, ng.Strategy(ng.triggers.Static(), "random"))
    events = train(model, optimizer, grower, range(130))
    assert [(event.before, event.after) for event in events] == [(3, 1)]


@pytest.mark.parametrize(("died", "left"), [(range(3), 6), (range(8), 2)])
def test_multiples_are_kept(died: Sequence[int], left: int) -> None:
    model = dead_dense(*died)
    optimizer, grower = grown(model, ng.Strategy(ng.triggers.Static(), "random"), round_to=2)
    train(model, optimizer, grower, range(70))
    assert grower.widths["0"] == left


def test_a_constant_that_no_bias_can_take_is_not_dropped() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Sigmoid(), nn.Linear(8, 3, bias=False))
    with torch.no_grad():
        model[0].bias[1], model[0].bias[2] = -200.0, 200.0  # constants of 0 and 1
    optimizer, grower = grown(model, ng.Strategy(ng.triggers.Static(), "random"))
    events = train(model, optimizer, grower, range(70))
    assert [(event.before, event.after) for event in events] == [(8, 7)]
    assert float(model[0].bias.detach().max()) > 100


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("stop", [5, 35, 65])
@pytest.mark.parametrize("strategy", ["north-random", "need"])
def test_a_resumed_run_drops_the_same_neurons(strategy: str, stop: int) -> None:
    def start() -> tuple[nn.Module, torch.optim.Optimizer, ng.Grower]:
        model = dead_dense(1, 2)
        return (model, *grown(model, strategy))

    model, optimizer, grower = start()
    train(model, optimizer, grower, range(stop))
    file = io.BytesIO()
    torch.save([each.state_dict() for each in (model, optimizer, grower)], file)
    events = train(model, optimizer, grower, range(stop, 90))
    again, optimizer2, grower2 = start()
    file.seek(0)
    states = torch.load(file, weights_only=False)
    grower2.load_state_dict(states[2])
    again.load_state_dict(states[0])
    optimizer2.load_state_dict(states[1])
    repeated = train(again, optimizer2, grower2, range(stop, 90))
    assert [(e.step, e.width, e.after) for e in events] == [(e.step, e.width, e.after) for e in repeated]
    assert any(event.after < event.before for event in [*grower2.history])
    for key, tensor in model.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[key]), key


def test_an_average_loses_the_same_neurons() -> None:
    model = dead_dense(1, 2)
    average = AveragedModel(model)
    optimizer, grower = grown(model, ng.Strategy(ng.triggers.Static(), "random"), ema=average)
    train(model, optimizer, grower, range(70))
    assert average.module[0].out_features == model[0].out_features == 6


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda p: torch.optim.Adam(p, betas=(0.8, 0.99)), 0.8),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.95), 0.95),
        (lambda p: torch.optim.Adagrad(p), 0.0),
    ],
)
def test_the_time_follows_the_momentum(make: Callable[[Any], torch.optim.Optimizer], expected: float) -> None:
    model = mlp(5, 3, 2)
    optimizer = make(model.parameters())
    assert momentum([optimizer]) == expected
    grower = ng.Grower(model, optimizer, "north-random", example=X[:2], prune=True)
    dead = DeadNeurons(model, grower.layers, grower.buffer)
    assert dead.patience([optimizer]) == pytest.approx(5 / (1 - expected), abs=1)


def test_widths_that_cannot_be_measured_are_reported() -> None:
    class Raw(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.w = nn.Linear(5, 6), nn.Parameter(torch.randn(6, 4))

        def forward(self, x: Tensor) -> Any:
            return F.relu(self.a(x)) @ self.w

    model = Raw()
    strategy = ng.Strategy(ng.triggers.Static(), "random")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ng.Grower(model, torch.optim.Adam(model.parameters()), strategy, example=X[:2], prune=True)
    assert any("dead neurons of a are not dropped: its consumer w" in str(each.message) for each in caught)
