"""Models whose widths must not grow, or not as others do: frozen layers, masks, shared memory, parametrizations."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn.utils import parametrizations, parametrize, prune

import neurogenesis as ng
from neurogenesis.initializations.base import parameter_values
from neurogenesis.structure.axes import named_tensors
from neurogenesis.structure.memory import shared_memory
from tests import oracles
from tests.cases import randn
from tests.growing import always, mlp, step

# --- inference mode ----------------------------------------------------------------------------------------


def all_tensors(model: nn.Module, optimizer: optim.Optimizer) -> list[Tensor]:
    state = [value for own in optimizer.state.values() for value in own.values() if isinstance(value, Tensor)]
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [*named_tensors(model).values(), *gradients, *state]


def with_norm() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), ng.nn.ReLU(), nn.Linear(8, 3))


def test_growing_by_hand_in_inference_mode_gives_tensors_that_can_be_trained() -> None:
    model, x = with_norm(), randn(20, 4)
    optimizer = optim.Adam(model.parameters())
    step(model, optimizer, x)
    with torch.inference_mode():
        assert ng.widths(model, torch.randn(20, 4))["0"].growable
        ng.grow(model, "0", 3, optimizer=optimizer)
        ng.shrink(model, "0", [1], optimizer=optimizer)
        given = {"0.weight": torch.randn(2, 4)}
        ng.plan_growth(model, "0", 2, initialization=given).apply(model, optimizer)
        assert torch.is_inference_mode_enabled()
    assert not any(tensor.is_inference() for tensor in all_tensors(model, optimizer))
    before = model[0].weight.detach().clone()
    step(model, optimizer, x)
    step(model, optimizer, x)
    assert (model[0].weight != before).any(1).all()


@pytest.mark.parametrize("strategy", ["north-select", "gradmax"])
def test_a_grower_made_and_stepped_in_inference_mode_grows_ordinary_tensors(strategy: str) -> None:
    model, x = with_norm(), randn(64, 4)
    optimizer = optim.Adam(model.parameters())
    strategy = ng.Strategy(always(1), ng.strategies.strategy(strategy).initialization)  # type: ignore[assignment]
    with torch.inference_mode():
        grower = ng.Grower(model, optimizer, strategy, example=torch.randn(64, 4), buffer=64)
    for _ in range(3):
        step(model, optimizer, x)
        with torch.inference_mode():
            grower.step()
    assert grower.widths == {"0": 11}
    assert not any(tensor.is_inference() for tensor in all_tensors(model, optimizer))


def test_a_model_made_in_inference_mode_is_refused() -> None:
    with torch.inference_mode():
        model = with_norm()
    with pytest.raises(ValueError, match=r"0\.weight was created in inference mode"):
        ng.widths(model, randn(2, 4))


def test_gradients_stay_as_they_are_outside_inference_mode() -> None:
    with torch.no_grad():
        ng.widths(with_norm(), randn(2, 4))
        assert not torch.is_grad_enabled()
    ng.widths(with_norm(), randn(2, 4))
    assert torch.is_grad_enabled()


# --- shared memory -----------------------------------------------------------------------------------------


def three_layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)
    )


def same_data(model: nn.Sequential) -> None:
    model[2].weight.data = model[0].weight.data


def transposed_view(model: nn.Sequential) -> None:
    model[2].weight.data = model[0].weight.data.T


def slices_of_one_tensor(model: nn.Sequential) -> None:
    flat = torch.cat([model[0].weight.data.flatten(), model[2].weight.data.flatten()])
    model[0].weight.data, model[2].weight.data = flat[:36].view(6, 6), flat[36:].view(6, 6)


def buffer_of_a_parameter(model: nn.Sequential) -> None:
    model[2].register_buffer("view", model[0].weight.data[1:3])


@pytest.mark.parametrize("share", [same_data, transposed_view, slices_of_one_tensor])
def test_parameters_that_share_memory_keep_their_widths_from_growing(share: Callable[[Any], None]) -> None:
    model = three_layers()
    share(model)
    found = ng.widths(model, randn(3, 6))
    assert [width.name for width in found.growable] == ["4"]
    for name in ("0", "2"):
        assert "2.weight shares its memory with 0.weight" in (found[name].reason or "")
    ng.grow(model, "4", 2)
    assert model[2].weight.untyped_storage().data_ptr() == model[0].weight.untyped_storage().data_ptr()


@pytest.mark.parametrize("share", [same_data, transposed_view, slices_of_one_tensor, buffer_of_a_parameter])
def test_memory_shared_since_a_plan_was_made_stops_the_plan(share: Callable[[Any], None]) -> None:
    model = three_layers()
    plan = ng.plan_growth(model, "0", 2, example=randn(3, 6))
    share(model)
    with pytest.raises(ValueError, match=r"0\.weight shares its memory with 2\.\w+, and resizing would untie them"):
        plan.apply(model)
    assert model[0].weight.shape == (6, 6)


def test_tensors_with_memory_of_their_own_are_told_from_those_that_share() -> None:
    flat = torch.arange(12.0)
    halves = {"a": flat[:6], "b": flat[6:]}
    assert shared_memory(halves) == {}
    assert shared_memory({name: nn.Parameter(half) for name, half in halves.items()}) == {"a": "b", "b": "a"}
    assert shared_memory({"a": flat[:7], "b": flat[6:]}) == {"a": "b", "b": "a"}
    assert shared_memory({"wide": flat, "a": flat[:2], "b": flat[8:], "alone": torch.ones(3)}) == {
        "wide": "a", "a": "wide", "b": "wide",
    }  # fmt: skip
    empty = torch.empty(0, 3)
    assert shared_memory({"a": empty, "b": empty[:0], "c": torch.empty(0)}) == {}


# --- frozen layers -----------------------------------------------------------------------------------------


def test_a_width_whose_consumer_is_frozen_does_not_grow_while_it_is() -> None:
    model = mlp(4, 8, 7, 3)
    found = ng.widths(model, randn(5, 4))
    assert [width.name for width in found.growable] == ["0", "2"]
    model[2].requires_grad_(False)
    assert found.growable == []
    assert "its consumer 2 is frozen" in (found["0"].reason or "")
    with pytest.raises(ValueError, match="0 cannot grow: its consumer 2 is frozen"):
        ng.grow(model, "0", 1)
    assert ng.widths(model, randn(5, 4)).growable == []
    with pytest.raises(ValueError, match="0 cannot grow: its consumer 2 is frozen"):
        ng.grow(model, "0", 1, frozen=True)  # which could not be trained
    ng.shrink(model, "0", [3])  # takes nothing from what is learned
    model[2].requires_grad_(True)
    assert [width.name for width in found.growable] == ["0", "2"]


def test_a_frozen_consumer_is_grown_only_if_asked_for() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.frozen, self.trained = nn.Linear(4, 5), nn.Linear(5, 3), nn.Linear(5, 3)
            self.frozen.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            x = self.a(x).relu()
            return self.frozen(x) + self.trained(x)

    model = Two()
    assert "frozen.weight would be resized, but is frozen" in (ng.widths(model, randn(2, 4))["a"].reason or "")
    ng.grow(model, "a", 1, frozen=True)
    assert (model.frozen.in_features, model.trained.in_features) == (6, 6)


def test_a_model_that_is_frozen_as_a_whole_can_be_resized() -> None:
    model = mlp(4, 8, 3).requires_grad_(False)
    ng.grow(model, "0", 2, example=randn(2, 4))
    assert model[0].out_features == 10


def test_a_grower_leaves_alone_what_was_frozen_meanwhile_and_says_so() -> None:
    model, x = mlp(4, 8, 7, 3), randn(64, 4)
    optimizer = optim.Adam(model.parameters())
    grower = ng.Grower(model, optimizer, ng.Strategy(always(1), "random"))
    step(model, optimizer, x)
    grower.step()
    model[2].requires_grad_(False)
    step(model, optimizer, x)
    with pytest.warns(UserWarning, match="0 does not grow: its consumer 2 is frozen"):
        grower.step()
    assert grower.widths == {"0": 9, "2": 8}


# --- masks and other buffers -------------------------------------------------------------------------------


class Buffered(nn.Module):
    """Something per neuron in a buffer, used in one of several ways."""

    def __init__(self, held: Tensor, use: Callable[[Tensor, Tensor], Tensor]):
        super().__init__()
        self.a, self.b, self.use = nn.Linear(4, 5), nn.Linear(5, 3), use
        self.register_buffer("held", held)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.use(self.a(x).tanh(), self.held))


def dead_where_true(x: Tensor, mask: Tensor) -> Tensor:
    return x.masked_fill(mask, 0)


def alive_where_true(x: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, x, 0)


def times(x: Tensor, factor: Tensor) -> Tensor:
    return x * factor


def plus(x: Tensor, shift: Tensor) -> Tensor:
    return x + shift


FALSE, TRUE = torch.zeros(5, dtype=torch.bool), torch.ones(5, dtype=torch.bool)


@pytest.mark.parametrize(
    ("held", "use"),
    [
        (FALSE, dead_where_true), (TRUE, alive_where_true), (torch.full((5,), 3), times), (torch.full((5,), 3), plus),
        (torch.ones(5), times), (torch.full((5,), 2.5), plus), (torch.full((5,), 7, dtype=torch.uint8), times),
        (randn(1, 3).repeat(5, 1)[:, 0], times),
    ],
)  # fmt: skip
def test_new_neurons_get_what_all_present_ones_share_in_a_buffer(held: Tensor, use: Any) -> None:
    model = Buffered(held.clone(), use)
    ng.grow(model, "a", 2, example=randn(6, 4))
    assert torch.equal(model.held, held[:1].expand(7))


@pytest.mark.parametrize(
    ("held", "use"),
    [
        (torch.tensor([True, False, False, False, True]), dead_where_true),
        (torch.tensor([True, True, False, True, True]), alive_where_true),
        (torch.arange(5), plus), (torch.tensor([1, 1, 1, 0, 1]), times), (torch.tensor([1.0, 1, 0, 1, 0]), times),
    ],
)  # fmt: skip
def test_a_buffer_that_marks_some_neurons_keeps_their_width_from_growing(held: Tensor, use: Any) -> None:
    model = Buffered(held.clone(), use)
    found = ng.widths(model, randn(6, 4))
    assert "held" in (found["a"].reason or "")
    assert "differs between neurons" in (found["a"].reason or "")
    with pytest.raises(ValueError, match="held"):
        ng.grow(model, "a", 1)
    ng.shrink(model, "a", [0])
    assert torch.equal(model.held, held[1:])


def test_a_mask_that_changes_in_training_is_looked_at_when_it_grows() -> None:
    model = Buffered(TRUE.clone(), alive_where_true)
    found = ng.widths(model, randn(6, 4))
    assert found["a"].growable
    model.held[2] = False
    assert not found["a"].growable
    model.held[2] = True
    ng.grow(model, "a", 1)
    assert model.held.tolist() == [True] * 6


def test_a_mask_over_two_widths_counts_for_each_alone() -> None:
    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.head = nn.Linear(4, 3), nn.Linear(4, 2), nn.Linear(5, 2)
            self.register_buffer("mask", torch.tensor([True, True, True, False, False]))

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.where(self.mask, torch.cat([self.a(x).relu(), self.b(x).relu()], 1), 0.5))

    model = Joined()
    found = ng.widths(model, randn(6, 4))
    ng.grow(model, found["a"], 1)
    ng.grow(model, found["b"], 2)
    assert model.mask.tolist() == [True] * 4 + [False] * 4


def test_a_mask_of_pixels_is_the_same_for_new_channels() -> None:
    class Pixels(nn.Module):
        """Flattened with the pixels in front of the channels, some pixels masked."""

        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(1, 3, 1), nn.Linear(12, 2)
            self.register_buffer("mask", torch.tensor([True, False, True, True]).repeat_interleave(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.conv(x).relu().permute(0, 2, 3, 1).flatten(1).masked_fill(self.mask, 0))

    model = Pixels()
    ng.grow(model, "conv", 2, example=randn(6, 1, 2, 2))
    assert torch.equal(model.mask, torch.tensor([True, False, True, True]).repeat_interleave(5))


def test_a_frozen_scale_of_zeros_and_ones_is_a_mask_too() -> None:
    model = Buffered(torch.ones(5), times)
    del model.held
    model.held = nn.Parameter(torch.tensor([1.0, 0, 1, 1, 1]), requires_grad=False)
    assert "held" in (ng.widths(model, randn(6, 4))["a"].reason or "")
    model.held.requires_grad_(True)
    assert ng.widths(model, randn(6, 4))["a"].growable


def test_running_statistics_start_anew_whatever_the_present_ones_are() -> None:
    model = with_norm()
    model[1].running_mean.copy_(torch.tensor([0.0, 1, 0, 1, 1, 1, 0, 0]))
    model[1].running_var.fill_(4.0)
    ng.grow(model, "0", 2, example=randn(6, 4))
    assert model[1].running_mean[8:].tolist() == [0.0, 0.0]
    assert model[1].running_var[8:].tolist() == [1.0, 1.0]


def test_masks_of_single_weights_let_those_of_new_neurons_through() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    for layer in (model[0], model[2]):
        prune.random_unstructured(layer, "weight", 0.3)  # type: ignore[no-untyped-call]
    ng.grow(model, "0", 3, example=randn(2, 6))
    assert model[0].weight_mask[5:].eq(1).all()
    assert model[2].weight_mask[:, 5:].eq(1).all()
    assert not model[0].weight_mask.eq(1).all()


# --- parametrizations --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4, 8, 3), (8, 8, 8), (16, 5, 12)])
@pytest.mark.parametrize("which", [0, 2])
@pytest.mark.parametrize("how", ["orthogonal", "spectral_norm"])
def test_parametrizations_that_growth_would_break_are_named(shape: tuple[int, int, int], which: int, how: str) -> None:
    model = nn.Sequential(nn.Linear(shape[0], shape[1]), nn.ReLU(), nn.Linear(shape[1], shape[2]))
    getattr(parametrizations, how)(model[which])
    reason = ng.widths(model, randn(3, shape[0]))["0"].reason or ""
    assert how.split("_")[0] in reason.lower()
    assert f"{which}.weight" in reason or f"{which}.parametrizations.weight" in reason


def test_a_tall_orthogonal_layer_is_not_called_growable() -> None:
    model = nn.Sequential(parametrizations.orthogonal(nn.Linear(4, 8)), nn.ReLU(), nn.Linear(8, 3))
    reason = ng.widths(model, randn(3, 4))["0"].reason
    assert reason == "0.weight is kept orthogonal by the parametrization of 0, which other sizes would break"


class Twice(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def doubled(module: nn.Module) -> nn.Module:
    return parametrize.register_parametrization(module, "weight", Twice())


def normed_dense() -> nn.Sequential:
    torch.manual_seed(0)
    norm = parametrizations.weight_norm
    layers = norm(nn.Linear(12, 8)), ng.nn.ReLU(), norm(nn.Linear(8, 5)), ng.nn.ReLU(), norm(nn.Linear(5, 3))
    return nn.Sequential(*layers)


def normed_images() -> nn.Sequential:
    torch.manual_seed(0)
    norm = parametrizations.weight_norm
    return nn.Sequential(
        norm(nn.Conv2d(2, 4, 3, padding=1)), ng.nn.ReLU(), norm(nn.Conv2d(4, 5, 3)), ng.nn.ReLU(), nn.Flatten(),
        norm(nn.Linear(20, 8)), ng.nn.ReLU(), nn.Linear(8, 3),
    )  # fmt: skip


NORMED = {normed_dense: randn(64, 12), normed_images: randn(64, 2, 4, 4)}
ACTIVATIONS = ["north-select", "north-random", "north-integrated", "north-weight", "north-pre", "north-opt"]


NORMED_GROWTH = [
    (make, name) for make in NORMED for name in ACTIVATIONS if (make, name) != (normed_images, "north-pre")
]


@pytest.mark.parametrize(("make", "name"), NORMED_GROWTH)
def test_weight_norm_grows_by_activations_and_weights(make: Callable[[], nn.Sequential], name: str) -> None:
    model, x = make(), NORMED[make]
    optimizer = optim.SGD(model.parameters(), lr=1e-3)
    grower = ng.Grower(model, optimizer, name, buffer=64)
    step(model, optimizer, x)
    before = model(x).detach()
    events = grower.step()
    assert [event.width for event in events] == list(grower.widths)
    torch.testing.assert_close(model(x), before, rtol=1e-5, atol=1e-6)
    new = slice(events[0].before, None)
    norms = model[0].weight.flatten(1).norm(dim=1)
    expected = norms[: events[0].before].mean().expand(len(norms[new]))
    torch.testing.assert_close(norms[new], expected, rtol=1e-4, atol=1e-6)
    originals = [original.detach().clone() for original in model[0].parameters()]
    optimizer = optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(3):
        step(model, optimizer, x)
    assert all((now[new] != old[new]).any() for now, old in zip(model[0].parameters(), originals, strict=True))


@pytest.mark.parametrize("make", NORMED)
def test_candidates_under_weight_norm_are_tried_as_they_would_be(make: Callable[[], nn.Sequential]) -> None:
    model, x = make(), NORMED[make]
    optimizer = optim.SGD(model.parameters(), lr=1e-3)
    grower = ng.Grower(model, optimizer, "north-select", example=x, buffer=64)
    model(x)
    layer = grower.layers[0]
    fan_in = layer.random_fan_in(3, torch.Generator().manual_seed(1))
    with torch.no_grad():
        present, tried = layer.trial(fan_in)
        ng.grow(model, layer.width, 3, initialization=parameter_values(layer, layer.producer, fan_in))
        seen = model[:2](x).flatten(2) if x.ndim > 2 else model[:2](x)[:, :, None]
    torch.testing.assert_close(torch.cat([present.samples, tried.samples], 1), seen)
    torch.testing.assert_close(model[0].weight[-3:].flatten(), fan_in.flatten())


@pytest.mark.parametrize(
    ("norm", "strategy", "reason"),
    [
        (parametrizations.weight_norm, "gradmax", "0 is under weight norm, so the gradient"),
        (nn.utils.weight_norm, "north-select", r"use torch\.nn\.utils\.parametrizations\.weight_norm instead"),
        (doubled, "north-select", r"0 has its weight computed by a parametrization \(Twice\)"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated")
def test_what_a_strategy_cannot_do_with_a_parametrized_layer_is_said_plainly(
    norm: Callable[[nn.Module], nn.Module], strategy: str, reason: str
) -> None:
    model = nn.Sequential(norm(nn.Linear(4, 8)), ng.nn.ReLU(), nn.Linear(8, 3))
    with pytest.raises(ValueError, match=reason):
        ng.Grower(model, optim.SGD(model.parameters()), strategy, example=randn(8, 4))


# --- complex layers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["north-random", "north-select", "north-pre", "north-opt", "north-weight", "north-integrated"]
)
def test_complex_layers_are_measured_and_grown(name: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(12, 8, dtype=torch.cfloat), nn.Tanh(), nn.Linear(8, 3, dtype=torch.cfloat)
    )  # fmt: skip
    with torch.no_grad():  # conjugate neurons on real inputs: different, with the same real parts
        for parameter in model[0].parameters():
            parameter[4:] = parameter[:4].conj()
    x = randn(64, 12).to(torch.cfloat)
    optimizer = optim.SGD(model.parameters(), lr=0.0)
    grower = ng.Grower(model, optimizer, name, buffer=64)
    step(model, optimizer, x)
    before = model(x).detach()
    (event,) = grower.step()
    with torch.no_grad():
        seen = model[0].weight[:8] if name == "north-weight" else model[:2](x).T[:8]
    assert event.metric == oracles.effective_rank(seen) / 8 == 1
    torch.testing.assert_close(model(x), before)


# --- nothing can grow --------------------------------------------------------------------------------------


class Written(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return self[1](self[0](x).reshape(-1, 8))


class Returning(nn.Sequential):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        hidden = self[0](x).relu()
        return self[1](hidden), hidden


class Adding(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return self[1](x + self[0](x).relu())


@pytest.mark.parametrize(
    ("make", "remedy"),
    [
        (lambda: nn.Linear(4, 3), "put a hidden layer between"),
        (lambda: nn.Sequential(nn.Linear(4, 8), nn.Softmax(-1), nn.Linear(8, 2)), "normalize with BatchNorm"),
        (lambda: Written(nn.Linear(4, 8), nn.Linear(8, 2)), r"x\.flatten\(1\)"),
        (lambda: Returning(nn.Linear(4, 8), nn.Linear(8, 2)), "do not return activations that other layers read"),
        (lambda: Adding(nn.Linear(4, 4), nn.Linear(4, 2)), "read the model's input before it is combined"),
        (lambda: Buffered(torch.arange(5), plus), "let the buffer hold the same"),
        (lambda: nn.Sequential(parametrizations.orthogonal(nn.Linear(4, 8)), nn.Linear(8, 2)), "remove the param"),
    ],
)  # fmt: skip
def test_a_model_that_cannot_grow_says_in_the_constructor_what_can_be_done(
    make: Callable[[], nn.Module], remedy: str
) -> None:
    model = make()
    with pytest.raises(ValueError, match=rf"(?s)no width of this model can grow:\n.*what can be done:\n.*{remedy}"):
        ng.Grower(model, optim.SGD(model.parameters()), example=randn(5, 4))
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nn.PReLU(), "no layer reads the output of another one: put a hidden layer between input and output"),
        (nn.Bilinear(4, 4, 5), "weight is used by aten._trilinear, an operation without a rule"),
    ],
)
def test_a_model_without_widths_says_why(model: nn.Module, said: str) -> None:
    example = (randn(5, 4), randn(5, 4))[: 1 + isinstance(model, nn.Bilinear)]
    assert said in str(ng.widths(model, example))
    with pytest.raises(ValueError, match=rf"no width of this model can grow: .*{re.escape(said)}"):
        ng.Grower(model, optim.SGD(model.parameters()), example=example)


def test_tracing_an_lstm_leaves_the_kernels_on() -> None:
    ng.widths(nn.LSTM(4, 3), randn(2, 5, 4))
    assert torch.backends.mkldnn.enabled
    with pytest.raises(ValueError, match="the model rejects the example"):
        ng.widths(nn.LSTM(4, 3), randn(2, 5, 5))
    assert torch.backends.mkldnn.enabled
