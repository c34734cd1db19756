"""What `widths` says about a model, and that it leaves the model alone."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import neurogenesis as ng
from tests import cases
from tests.cases import randn


def consumers(width: ng.Width) -> list[tuple[str, int, int]]:
    return [(axis.module, axis.per_neuron, axis.offset) for axis in width.consumers]


def test_a_flattened_channel_owns_as_many_columns_as_it_has_pixels() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2))
    width = ng.widths(model, randn(1, 1, 8, 8))["0"]
    assert consumers(width) == [("3", 36, 0)]
    positions = width.positions(width.consumers[0])
    assert torch.equal(positions, torch.arange(144).reshape(4, 36))


def test_channels_flattened_behind_pixels_own_every_fifth_column() -> None:
    width = ng.widths(cases.pixels_before_channels(), randn(2, 3, 4, 4))["conv"]
    assert consumers(width) == [("head", 16, 0)]
    assert torch.equal(width.positions(width.consumers[0]), torch.arange(80).reshape(16, 5).T)


def test_concatenated_widths_have_offsets() -> None:
    found = ng.widths(cases.dense_concatenation(), randn(2, 3, 8, 8))
    assert consumers(found["stem"]) == [("a", 1, 0), ("b", 1, 0), ("head", 9, 6 * 9)]
    assert consumers(found["a"]) == [("b", 1, 4), ("head", 9, 10 * 9)]
    assert consumers(found["b"]) == [("head", 9, 0)]
    assert [(axis.module, axis.offset) for axis in found["a"].carriers if axis.tensor == "norm.weight"] == [
        ("norm", 10)
    ]


def test_a_residual_stream_is_one_width_with_many_producers_and_consumers() -> None:
    width = ng.widths(cases.residual(), randn(2, 3, 8, 8))["stem"]
    assert {axis.module for axis in width.producers} == {"stem", "blocks.0.b", "blocks.1.b"}
    assert {axis.module for axis in width.consumers} == {"blocks.0.a", "blocks.1.a", "head"}
    assert {axis.module for axis in width.carriers} == {"blocks.0.n", "blocks.1.n"}


def test_a_width_is_found_by_any_of_its_producers() -> None:
    found = ng.widths(cases.residual(), randn(2, 3, 8, 8))
    assert found["blocks.1.b"] is found["stem"]


def test_a_gate_makes_its_layer_a_producer() -> None:
    width = ng.widths(cases.squeeze_excite(), randn(2, 3, 6, 6))["conv"]
    assert {axis.module for axis in width.producers} == {"conv", "excite"}
    assert {axis.module for axis in width.consumers} == {"squeeze", "next"}


def test_a_parameter_at_two_places_is_listed_once() -> None:
    width = ng.widths(cases.tied_embedding(), torch.arange(10).reshape(2, 5) % 7)["back"]
    assert [axis.tensor for axis in width.axes].count("embedding.weight") == 1
    assert "head.weight" not in [axis.tensor for axis in width.axes]


def test_tied_widths_grow_together() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Linear(3, 4)
            self.layer1 = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
            self.head = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            return self.head(x + self.layer1[1](self.layer1[0](x).relu()))

    model = Block()
    assert {width.name for width in ng.widths(model, randn(2, 3)).growable} == {"stem", "layer1.0"}
    for tie in ([["layer1.*"]], ["layer1.*"], [["layer1.0", "stem"]]):
        (width,) = ng.widths(model, randn(2, 3), tie=tie).growable
        assert {axis.module for axis in width.producers} == {"stem", "layer1.0", "layer1.1"}
    before = model(randn(5, 3))
    ng.grow(model, "stem", 2)
    assert [parameter.shape[0] for parameter in model.layer1.parameters()] == [6, 6, 6, 6]
    torch.testing.assert_close(model(randn(5, 3)), before)


@pytest.mark.parametrize(
    ("tie", "message"),
    [
        (["nothing"], "tie: 'nothing' matches no layer that produces a width"),
        (["0", "nothing"], "tie: 'nothing' matches no layer"),
        (["0", "2"], "one size"),
        ([["4"]], "growable"),
    ],
)
def test_ties_that_cannot_hold_are_refused(tie: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ng.widths(cases.mlp(), randn(5, 6), tie=[tie[0] if isinstance(tie[0], list) else tie])


def test_parts_of_one_layer_with_different_sizes_cannot_be_tied() -> None:
    with pytest.raises(ValueError, match="one size, but these match: up of size 4, up of size 5"):
        ng.widths(cases.split_by_size(), randn(2, 6), tie=["up"])


def test_the_table_is_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    text = str(ng.widths(cases.conv_flatten(), randn(2, 3, 8, 8)))
    assert text.splitlines() == [
        "width       size  producers  carriers  consumers  can grow",
        "----------------------------------------------------------",
        "0           4     0          1         3          yes",
        "3           5     3          4         8          yes",
        "8           9     8                    10         yes",
        "10          2     10                              no: a size of the model's output",
        "input of 0  3                          0          no: a size of the model's input",
    ]


def test_the_table_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ng.widths(cases.conv_flatten(), randn(2, 3, 8, 8))
    monkeypatch.setenv("COLUMNS", "80")
    assert str(found).splitlines()[5:7] == [
        "10          2     10                              no: a size of the model's",
        "                                                  output",
    ]
    monkeypatch.setenv("COLUMNS", "55")
    assert str(found).splitlines()[-4:] == [
        "input of 0",
        "  size       3",
        "  consumers  0",
        "  can grow   no: a size of the model's input",
    ]
    for columns in (30, 40, 60, 70):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert max(map(len, str(found).splitlines())) <= columns


def test_outside_a_terminal_each_width_is_one_line() -> None:
    code = "import torch, neurogenesis as ng; print(ng.widths(torch.nn.Linear(6, 5), torch.zeros(2, 6)))"
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    shown = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert len(shown.stdout.splitlines()) == 4


def test_an_unknown_name_suggests_the_nearest() -> None:
    found = ng.widths(cases.residual(), randn(2, 3, 8, 8))
    with pytest.raises(KeyError, match=r"did you mean 'blocks\.0\.a'"):
        found["block.0.a"]


@pytest.mark.parametrize("training", [False, True])
def test_finding_widths_changes_nothing(training: bool) -> None:
    class Counting(nn.Module):
        """Changes its buffers, draws random numbers and reassigns a buffer whenever it runs in training."""

        def __init__(self) -> None:
            super().__init__()
            self.a, self.norm, self.b = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)
            self.register_buffer("calls", torch.zeros(1))
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            x = self.norm(self.a(x))
            self.calls += 1
            if self.training:
                self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
            return self.b(F.dropout(x, training=self.training))

    model = Counting().train(training)
    model.norm.eval()  # a frozen norm stays frozen
    state = {name: value.clone() for name, value in model.state_dict().items()}
    objects = dict(model.named_buffers())
    hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
    random = torch.get_rng_state()
    ng.widths(model, randn(4, 3))
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert all(objects[name] is buffer for name, buffer in model.named_buffers())
    assert [module.training for module in model.modules()] == [training, training, False, training]
    assert torch.equal(random, torch.get_rng_state())
    assert hooks == [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
    assert not any(weakref.getweakrefs(tensor) for tensor in (*model.parameters(), *model.buffers()))
    assert not torch.nn.modules.module._global_forward_hooks
    assert not torch.nn.modules.module._global_forward_pre_hooks
    assert not torch.nn.modules.module._global_forward_hooks_with_kwargs


def test_parameters_inputs_and_attributes_that_a_model_changes_are_put_back() -> None:
    class Changing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.key, self.b = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 2)
            self.codes = nn.Parameter(randn(4))
            self.register_buffer("cache", None)
            self.state: Any = None

        def forward(self, x: Tensor) -> Tensor:
            x.mul_(0.5)
            if self.training:
                self.key.weight.data = 0.9 * self.key.weight.data + 0.1 * self.a.weight.data
                self.codes = nn.Parameter(self.codes * 0.9)
            self.cache = torch.ones(1)
            self.state = self.a(x) + self.key(x) + self.codes
            return self.b(self.state.relu())

    model, x = Changing(), randn(2, 3)
    before = {name: (parameter, parameter.detach().clone()) for name, parameter in model.named_parameters()}
    ng.widths(model, x)
    for name, parameter in model.named_parameters():
        assert parameter is before[name][0]
        assert torch.equal(parameter, before[name][1])
    assert model.cache is None
    assert model.state is None
    assert torch.equal(x, randn(2, 3))


def test_layers_that_the_example_does_not_use_are_named() -> None:
    class Optional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.condition = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(3, 4)

        def forward(self, x: Tensor, c: Tensor | None = None) -> Tensor:
            h = self.a(x)
            return self.b(h if c is None else h + self.condition(c))

    with pytest.warns(UserWarning, match=r"does not use condition\.weight, condition\.bias"):
        ng.widths(Optional(), randn(2, 3))
    found = ng.widths(Optional(), (randn(2, 3), randn(2, 3)))
    assert {axis.module for axis in found["a"].producers} == {"a", "condition"}


def test_a_model_without_an_output_is_refused() -> None:
    class Silent(nn.Linear):
        def forward(self, x: Tensor) -> None:  # type: ignore[override]
            super().forward(x)

    with pytest.raises(ValueError, match="output holds no tensor"):
        ng.widths(Silent(3, 4), randn(2, 3))


def test_a_model_that_differentiates_inside_works() -> None:
    class Force(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = x.requires_grad_()
            (force,) = torch.autograd.grad(self.b(self.a(x).tanh()).sum(), x, create_graph=True)
            return force

    assert ng.widths(Force(), randn(2, 3))["input of a"].reason is not None


def test_a_forgotten_model_is_freed_and_all_that_was_found_of_it() -> None:
    model = cases.mlp()
    references = [weakref.ref(model), weakref.ref(ng.widths(model, randn(5, 6)).structure)]
    references.append(weakref.ref(ng.interfaces(model, randn(5, 6)).structure))
    del model
    gc.collect()
    assert [reference() for reference in references] == [None] * 3


def test_an_example_the_model_rejects_is_refused_with_its_own_words() -> None:
    with pytest.raises(ValueError, match=r"rejects the example: RuntimeError: .*cannot be multiplied"):
        ng.widths(cases.mlp(), randn(5, 7))


def test_a_model_that_cannot_be_trained_on_the_example_gives_a_warning() -> None:
    class Picky(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                raise ValueError("targets, please")
            return super().forward(x)

    with pytest.warns(UserWarning, match="targets, please"):
        found = ng.widths(Picky(nn.Linear(3, 4), nn.Linear(4, 2)), randn(2, 3))
    assert found["0"].growable


def test_a_batch_norm_takes_a_single_sample() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    assert ng.widths(model, randn(1, 3))["0"].growable


def test_a_model_on_the_meta_device_is_refused() -> None:
    with pytest.raises(ValueError, match=r"0\.weight is on the meta device"):
        ng.widths(cases.mlp().to("meta"), randn(5, 6))


def test_lazy_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match=r"0\.weight is lazy"):
        ng.widths(nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 2)), randn(2, 3))


def test_code_that_fails_only_for_some_widths_names_them() -> None:
    class Insisting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(5, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.a(x).relu()
            assert x.shape[1] == 4, "four, please"
            return self.c(self.b(x).relu())

    found = ng.widths(Insisting(), randn(2, 3))
    assert "four, please" in (found["a"].reason or "")
    assert found["b"].growable


def test_values_that_would_change_fix_a_width() -> None:
    class Leaking(nn.Module):
        """The fan-out is a sigmoid of the parameter: a zero there is no zero fan-out."""

        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(3, 4), nn.Parameter(randn(4, 5)), nn.Linear(5, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.c((self.a(x) @ self.b.sigmoid()).tanh())

    found = ng.widths(Leaking(), randn(2, 3))
    assert "aten.sigmoid" in (found["a"].reason or "")
    assert found["b"].growable


def test_a_plain_tensor_attribute_fixes_a_width() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(5, 2)
            self.scale = torch.ones(4)

        def forward(self, x: Tensor) -> Tensor:
            return self.c(self.b(self.a(x) * self.scale).relu())

    found = ng.widths(Scaled(), randn(2, 3))
    assert "plain tensor" in (found["a"].reason or "")
    assert found["b"].growable


def test_a_compiled_model_is_seen_through() -> None:
    model = torch.compile(cases.mlp(), backend="eager")
    found = ng.widths(model, x := randn(5, 6))
    assert {width.name: width.size for width in found.growable} == {"0": 8, "2": 7}
    before = model(x).detach()
    ng.grow(model, "0", 2)
    assert found["0"].size == 10
    torch.testing.assert_close(model(x), before)


def test_channels_that_double_stage_by_stage_need_little_memory() -> None:
    """Each stage's factor is a width of its own; to try all of them at once must not multiply a thousand times."""

    class Stage(nn.Module):
        def __init__(self, channels: int):
            super().__init__()
            self.spread = nn.Conv2d(channels, 2 * channels, 3, padding=1, groups=channels)
            self.mix = nn.Conv2d(2 * channels, 2 * channels, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.spread(x)
            return x + self.mix(x)

    stages = [Stage(4 * 2**stage) for stage in range(5)]
    model = nn.Sequential(nn.Conv2d(3, 4, 1), *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))
    longest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal longest
            result = func(*args, **(kwargs or {}))
            longest = max(longest, *result.shape) if isinstance(result, Tensor) and result.dim() == 4 else longest
            return result

    with Watch():
        widths = ng.widths(model, torch.randn(2, 3, 4, 4))
    assert [width.size for width in widths.growable] == [4, 2, 2, 2, 2, 2]
    assert longest < 32 * 128
