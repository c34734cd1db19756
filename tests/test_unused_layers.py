"""Layers that the example does not use: growth never breaks them, whenever they are called."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import neurogenesis as ng
from tests.growing import always, step

pytestmark = pytest.mark.filterwarnings("ignore:the example does not use")
X = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))


class Base(nn.Module):
    """A network with something that is switched on later."""

    def __init__(self, **more: nn.Module):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        for name, module in more.items():
            self.add_module(name, module)
        self.on = False

    def features(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.b(self.a(x).relu()).relu()
        return hidden


class Auxiliary(Base):
    """A head that is switched on after a warm-up."""

    def __init__(self) -> None:
        super().__init__(aux=nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Any:
        h = self.features(x)
        return (self.head(h), self.aux(h)) if self.on else self.head(h)


class Branch(Base):
    """A branch with a hidden layer and a norm of its own, which is added to the stream."""

    def __init__(self) -> None:
        super().__init__(norm=nn.BatchNorm1d(8), down=nn.Linear(8, 4), up=nn.Linear(4, 8))

    def forward(self, x: Tensor) -> Any:
        h = self.features(x)
        return self.head(h + self.up(self.down(self.norm(h)).relu()) if self.on else h)


class Concatenated(Base):
    """A layer that reads both hidden layers at once."""

    def __init__(self) -> None:
        super().__init__(both=nn.Linear(16, 3))

    def forward(self, x: Tensor) -> Any:
        first = self.a(x).relu()
        second = self.b(first).relu()
        return self.head(second) + (self.both(torch.cat([first, second], 1)) if self.on else 0)


class Flattened(nn.Module):
    """A dense head on the positions of a convolution's channels."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.head, self.dense, self.on = nn.Conv1d(1, 8, 3), nn.Linear(8, 3), nn.Linear(32, 3), False

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x[:, None]).relu()
        y: Tensor = self.head(h.mean(2))
        return y + self.dense(h.flatten(1)) if self.on else y


class Experts(nn.Module):
    """Each sample is sent to one of two experts; at first there are none for the second."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.on = nn.Linear(6, 8), False
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3)) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x).relu()
        second = (x[:, 0] > 0) if self.on else torch.zeros(len(x), dtype=torch.bool)
        y = torch.zeros(len(x), 3).index_put((~second,), self.experts[0](h[~second]))
        return y.index_put((second,), self.experts[1](h[second])) if second.any() else y


class Checkpointed(Auxiliary):
    """The head that is switched on runs in a checkpoint."""

    def forward(self, x: Tensor) -> Any:
        h = self.features(x)
        return (self.head(h), checkpoint(self.aux, h, use_reentrant=False)) if self.on else self.head(h)


MODELS: list[type[nn.Module]] = [Auxiliary, Branch, Concatenated, Flattened, Experts, Checkpointed]


def make(kind: type[nn.Module]) -> Any:
    torch.manual_seed(0)
    return kind()


def outputs(model: nn.Module) -> list[Tensor]:
    with torch.no_grad():
        result = model(X)
    return list(result) if isinstance(result, tuple) else [result]


@pytest.mark.parametrize(
    "strategy", [ng.Strategy(always(1)), "need", "north-random"], ids=["function", "need", "north"]
)
@pytest.mark.parametrize("kind", MODELS)
def test_a_layer_is_resized_when_it_is_first_called_and_grows_from_then_on(
    kind: type[nn.Module], strategy: Any
) -> None:
    model = make(kind)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    grower = ng.Grower(model, optimizer, strategy, buffer=64, max_width=30)
    for _ in range(4):
        step(model, optimizer, X)
        grower.step()
    if isinstance(strategy, ng.Strategy):
        assert grower.widths["a"] == 12
    model.on = True
    for _ in range(4):
        step(model, optimizer, X)
        grower.step()
    if isinstance(strategy, ng.Strategy):
        assert grower.widths["a"] == 15  # at the step of its first call the layer was not watched yet
    for parameter in model.parameters():
        moments = optimizer.state[parameter]
        assert moments["exp_avg"].shape == moments["exp_avg_sq"].shape == parameter.shape
    found = ng.widths(model, X)
    assert {name: found[name].size for name in grower.widths} == grower.widths
    grower.detach()
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", MODELS)
def test_a_layer_that_is_called_late_computes_what_it_would_have_without_growth(
    kind: type[nn.Module], training: bool
) -> None:
    model, twin = make(kind), make(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    grower = ng.Grower(model, optimizer, ng.Strategy(always(3)), max_width=30)
    for _ in range(3):
        step(model, optimizer, X)
        grower.step()
    for each in (model, twin):
        each.on = True
        each.train(training)
    for own, other in zip(outputs(model), outputs(twin), strict=True):
        torch.testing.assert_close(own, other)


def test_neurons_that_were_removed_in_between_are_removed_there_too() -> None:
    model, twin = make(Auxiliary), make(Auxiliary)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    grower = ng.Grower(model, optimizer, ng.Strategy(always(2)), max_width=30)
    step(model, optimizer, X)
    grower.step()
    grower.detach()
    with torch.no_grad():
        for each in (model, twin):
            each.head.weight[:, 3] = each.aux.weight[:, 3] = 0
    grower = ng.Grower(model, optimizer, ng.Strategy(always(2)), max_width=30, example=X)
    ng.resize(model, {"b": 3})
    ng.resize(model, {"b": 5})
    for each in (model, twin):
        each.on = True
    outputs(model)
    kept, added = model.aux.weight[:, :3], model.aux.weight[:, 3:]
    assert torch.equal(kept, twin.aux.weight[:, :3]) and not added.any()
    assert model.aux.in_features == 5


def test_layers_that_are_never_called_stay_as_they_are() -> None:
    model = make(Auxiliary)
    before = copy.deepcopy(model.aux.state_dict())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    grower = ng.Grower(model, optimizer, ng.Strategy(always(1)))
    for _ in range(3):
        step(model, optimizer, X)
        grower.step()
    assert grower.widths == {"a": 11, "b": 11}
    assert all(torch.equal(before[name], value) for name, value in model.aux.state_dict().items())


@pytest.mark.parametrize("kind", MODELS)
def test_resumed_training_resizes_late_layers_alike(kind: type[nn.Module], tmp_path: Any) -> None:
    def start() -> tuple[Any, torch.optim.Optimizer, ng.Grower]:
        model = make(kind)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        return model, optimizer, ng.Grower(model, optimizer, ng.Strategy(always(1)), max_width=12)

    def train(model: Any, optimizer: torch.optim.Optimizer, grower: ng.Grower, on: bool) -> None:
        model.on = on
        for _ in range(3):
            step(model, optimizer, X)
            grower.step()

    for saved_at in (1, 2):
        runs = []
        for interrupted in (False, True):
            run = start()
            for number, on in enumerate((False, True, True), 1):
                train(*run, on)
                if interrupted and number == saved_at:
                    ng.save(tmp_path / "run.pt", *run)
                    run = start()
                    run[0].on = on  # no part of a model's state
                    ng.load(tmp_path / "run.pt", *run)
            runs.append(run[0].state_dict())
        assert all(torch.equal(value, runs[1][name]) for name, value in runs[0].items())


class OwnParameter(Base):
    """A raw parameter of the model: using it calls no module."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Any:
        h = self.features(x)
        return self.head(h * self.scale if self.on else h)


def test_a_width_is_refused_if_a_parameter_may_be_used_without_a_call() -> None:
    model = make(OwnParameter)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"(?s)scale is not used by the example and may be.*example=\[\.\.\.\]"):
        ng.Grower(model, optimizer, example=X)
    model.on = True
    assert {width.name for width in ng.widths(model, X).growable} == {"a", "b"}
    model.on = False
    grower = ng.Grower(model, optimizer, ng.Strategy(always(1)))  # with what was found
    step(model, optimizer, X)
    grower.step()
    assert model.scale.shape == (9,)


@pytest.mark.parametrize("kind", MODELS)
def test_by_hand_widths_are_refused_that_unused_layers_may_read(kind: type[nn.Module]) -> None:
    model = make(kind)
    for change in (
        lambda: ng.grow(model, "a", 1, example=X),
        lambda: ng.shrink(model, "a", [0], example=X),
        lambda: ng.narrow(model, X),
    ):
        with pytest.raises(ValueError, match=r"(?s)is not used by the example and may be.*example=\[\.\.\.\]"):
            change()
    assert outputs(model)[0].shape == (64, 3)


class Chosen(nn.Module):
    """Which branch is used depends on an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.one, self.two = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x: Tensor, which: str = "one") -> Tensor:
        result: Tensor = getattr(self, which)(self.a(x).relu())
        return result


def test_several_examples_together_use_all_branches() -> None:
    model, examples = make(Chosen), [X, {"x": X, "which": "two"}]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = ng.widths(model, examples)
    assert [axis.module for axis in found["a"].consumers] == ["one", "two"]
    before = model(X), model(X, "two")
    ng.grow(model, "a", 2, example=examples)
    torch.testing.assert_close((model(X), model(X, "two")), before)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    grower = ng.Grower(model, optimizer, ng.Strategy(always(1)), example=examples)
    for each in examples:
        step(model, optimizer, each)
        grower.step()
    assert model.one.in_features == model.two.in_features == 12


def test_no_example_is_an_error() -> None:
    with pytest.raises(ValueError, match="example: the list is empty"):
        ng.widths(make(Chosen), [])


class Added(nn.Module):
    """Two layers of one size are added in a branch without parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head_a, self.head_b = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 3)
        self.on = False

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.a(x).relu(), self.b(x).relu()
        y: Tensor = self.head_a(a + b if self.on else a) + self.head_b(b)
        return y


def test_an_error_in_a_branch_that_no_hook_can_know_tells_the_remedy() -> None:
    model = make(Added)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    grower = ng.Grower(model, optimizer, ng.Strategy(always(1)), include=["a"])
    step(model, optimizer, X)
    grower.step()
    model.on = True
    with pytest.raises(RuntimeError, match="must match") as caught:
        model(X)
    notes = "".join(getattr(caught.value, "__notes__", ["neurogenesis has resized a from 8 to 9: example=["]))
    assert "neurogenesis has resized a from 8 to 9" in notes and "example=[" in notes


def test_compiled_models_and_several_processes_refuse_such_widths(tmp_path: Any) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        for wrapped in (
            torch.compile(make(Auxiliary), backend="eager"),
            nn.parallel.DistributedDataParallel(make(Auxiliary), find_unused_parameters=True),
        ):
            optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
            with pytest.raises(ValueError, match=r"(?s)aux is not used by the example and may be.*example=\[\.\.\.\]"):
                ng.Grower(wrapped, optimizer, example=X)
    finally:
        dist.destroy_process_group()


def test_a_snapshot_from_before_the_first_call_is_refused_and_changes_nothing() -> None:
    model = make(Auxiliary)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    grower = ng.Grower(model, optimizer, ng.Strategy(always(1)), max_width=12)
    step(model, optimizer, X)
    grower.step()
    early = ng.snapshot(model, optimizer, grower)
    model.on = True
    for _ in range(2):
        step(model, optimizer, X)
        grower.step()
    late = ng.snapshot(model, optimizer, grower)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=r"before a layer was first called .* example=\[\.\.\.\]"):
        ng.restore(early, model, optimizer, grower)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    step(model, optimizer, X)
    grower.step()
    ng.restore(late, model, optimizer, grower)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
