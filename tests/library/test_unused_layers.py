"""Layers that the example does not use: growth never breaks them, whenever they are called."""

from __future__ import annotations

import copy
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy
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


class Square(Base):
    """A layer that maps a width to itself, in a residual branch."""

    def __init__(self) -> None:
        super().__init__(square=nn.Linear(8, 8))

    def forward(self, x: Tensor) -> Any:
        h = self.features(x)
        return self.head(h + self.square(h) if self.on else h)


class Instead(Base):
    """Another head in place of the first."""

    def __init__(self) -> None:
        super().__init__(other=nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Any:
        return (self.other if self.on else self.head)(self.features(x))


class Counting(Auxiliary):
    """The head runs in every third pass, which the model counts itself."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = 0

    def forward(self, x: Tensor) -> Any:
        h = self.features(x)
        self.passes += 1
        return (self.head(h), self.aux(h)) if self.on and self.passes % 3 == 0 else self.head(h)


class Checkpointed(Auxiliary):
    """The head that is switched on runs in a checkpoint."""

    def forward(self, x: Tensor) -> Any:
        h = self.features(x)
        return (self.head(h), checkpoint(self.aux, h, use_reentrant=False)) if self.on else self.head(h)


MODELS: list[type[nn.Module]] = [Auxiliary, Branch, Concatenated, Flattened, Square, Instead, Checkpointed]


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
    for parameter in [own for own in model.parameters() if own in optimizer.state]:
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


def test_a_layer_that_runs_in_every_third_pass_is_resized_in_the_first_of_these() -> None:
    model = make(Counting)
    model.on = True
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    grower = ng.Grower(model, optimizer, ng.Strategy(always(1)), max_width=20)
    for _ in range(7):
        step(model, optimizer, X)
        grower.step()
    assert model.passes == 7
    assert model.aux.in_features == model.b.out_features == 14


class Dropping(nn.Module):
    """Each block runs in a third of all passes of training, by random numbers from any generator."""

    def __init__(self, draw: Callable[[], float]):
        super().__init__()
        self.a, self.blocks = nn.Linear(6, 8), nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.head, self.draw = nn.Linear(8, 3), draw

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x).relu()
        for block in self.blocks:
            if not self.training or self.draw() < 1 / 3:
                h = h + block(h).relu()
        y: Tensor = self.head(h)
        return y


DRAWS: dict[str, Callable[[], float]] = {
    "python": random.random,
    "numpy": numpy.random.random_sample,
    "torch": lambda: torch.rand([]).item(),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize("seed", range(3))
def test_blocks_that_are_dropped_at_random_are_never_broken(draw: Callable[[], float], seed: int) -> None:
    def run(grown: bool) -> tuple[Dropping, float]:
        random.seed(seed)
        numpy.random.seed(seed)
        torch.manual_seed(seed)
        model = Dropping(draw)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        grower = ng.Grower(model, optimizer, ng.Strategy(always(1)), max_width=12) if grown else None
        for _ in range(12):
            step(model, optimizer, X)
            if grower is not None:
                grower.step()
        return model, draw()

    model, drawn = run(grown=True)
    assert model.a.out_features == 12 and {block.in_features for block in model.blocks} == {12}
    assert drawn == run(grown=False)[1]  # passes of our own leave no trace in the user's random numbers


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


@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind is not Instead])
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
    if sys.version_info >= (3, 11):  # which has notes
        notes = "".join(caught.value.__notes__)
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


class Heads(nn.Module):
    """Heads that are switched on one after the other, the last with a hidden layer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.on = nn.Linear(6, 8), 0
        last = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
        self.heads = nn.ModuleList([nn.Linear(8, 3), nn.Linear(8, 3), last])

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x).relu()
        outputs: Tensor = sum(head(h) for head in self.heads[: self.on + 1])  # type: ignore[assignment]
        return outputs


def growing_heads(**options: Any) -> tuple[Any, torch.optim.Optimizer, ng.Grower]:
    model = make(Heads)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    grower = ng.Grower(model, optimizer, ng.Strategy(always(1)), **options)
    step(model, optimizer, X)
    grower.step()
    return model, optimizer, grower


@pytest.mark.parametrize("steps", [True, False])
def test_several_layers_may_be_switched_on_one_after_the_other(steps: bool) -> None:
    model, optimizer, grower = growing_heads(max_width={"a": 20, "heads.2.0": 40})
    for number in (1, 2):
        model.on = number
        if steps:
            for _ in range(2):
                step(model, optimizer, X)
                grower.step()
        else:
            outputs(model)
    step(model, optimizer, X)
    grower.step()
    assert {head.in_features for head in model.heads[:2]} == {model.heads[2][0].in_features} == {model.a.out_features}
    assert grower.widths["heads.2.0"] >= 32


def test_a_width_that_is_found_late_may_be_larger_than_the_maximum() -> None:
    model, optimizer, grower = growing_heads(max_width=12)
    model.on = 2
    for _ in range(8):
        step(model, optimizer, X)
        grower.step()
    assert grower.widths == {"a": 12, "heads.2.0": 32}


@pytest.mark.parametrize("when", ["made in it", "made before"])
def test_layers_may_be_called_first_in_inference_mode(when: str) -> None:
    model, optimizer, grower = growing_heads()
    before = torch.randn(5, 6)
    for number in (0, 2):
        model.on = number
        with torch.inference_mode():
            model.eval()(torch.randn(5, 6) if when == "made in it" else before)
    step(model.train(), optimizer, X)
    grower.step()
    step(model, optimizer, X)
    grower.step()
    assert grower.widths == {"a": 10, "heads.2.0": 33}


def test_a_state_may_be_saved_and_loaded_right_after_the_first_call() -> None:
    model, optimizer, grower = growing_heads()
    early = copy.deepcopy(grower.state_dict())
    model.on = 2
    outputs(model)
    late = ng.snapshot(model, optimizer, grower)
    for _ in range(2):
        step(model, optimizer, X)
        grower.step()
    ng.restore(late, model, optimizer, grower)
    assert grower.widths == {"a": 9, "heads.2.0": 32}
    step(model, optimizer, X)
    grower.step()
    with pytest.raises(ValueError, match="before a layer was first called"):
        grower.load_state_dict(early)
    step(model, optimizer, X)


class Routed(nn.Module):
    """A mixture of experts: a learned gate sends each sample to one of them, and some get none at first."""

    def __init__(self, experts: int = 4) -> None:
        super().__init__()
        self.a, self.gate = nn.Linear(6, 8), nn.Linear(8, experts)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3)) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x).relu()
        best, chosen = self.gate(h).softmax(1).max(1)
        y = torch.zeros(len(x), 3)
        for number, expert in enumerate(self.experts):
            here = (chosen == number).nonzero().flatten()
            if len(here):
                y = y.index_add(0, here, expert(h[here]) * best[here, None])
        return y


class WideRouted(Routed):
    """With a width before it that no expert can read, which grows from the beginning."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 6))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.before(x))


@pytest.mark.parametrize("seed", range(6))
def test_experts_that_get_no_samples_at_first_are_never_broken(seed: int) -> None:
    torch.manual_seed(seed)
    model = WideRouted()
    with torch.no_grad():
        model.gate.bias[1:3] = torch.tensor([-1.0, -2.0])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
    grower = ng.Grower(model, optimizer, ng.Strategy(always(1)), max_width={"a": 12, "before.0": 30})
    for number in range(40):
        with torch.no_grad():
            if number == 15:
                model.gate.bias[1] += 2
            if number == 25:
                model.gate.bias[2] += 3
        step(model, optimizer, torch.randn(32, 6))
        grower.step()
    assert len(grower.state_dict()["further examples"]) < 5
    sizes = {expert[0].in_features for expert in model.experts}
    assert sizes == {model.a.out_features}
    assert not grower.layers[0].width.structure.unused
    assert grower.widths["a"] == 12 and grower.widths["before.0"] == 30


def test_a_state_with_resized_layers_that_no_example_uses_any_more_is_refused_with_the_remedy(tmp_path: Any) -> None:
    model = make(Instead)
    optimizer = torch.optim.Adam(model.parameters())
    grower = ng.Grower(model, optimizer, ng.Strategy(always(1)))
    for model.on in (False, True, True):
        step(model, optimizer, X)
        grower.step()
    ng.save(tmp_path / "run.pt", model, optimizer, grower)
    fresh = make(Instead)
    again = torch.optim.Adam(fresh.parameters())
    with pytest.raises(ValueError, match=r"other\.weight .* no example uses it: switch it on before"):
        ng.load(tmp_path / "run.pt", fresh, again, ng.Grower(fresh, again, ng.Strategy(always(1))))
    assert fresh.a.out_features == 8


def test_an_idle_expert_is_waited_for_with_a_warning() -> None:
    model = make(Routed)
    with torch.no_grad():
        model.gate.bias[2] = -100
    optimizer = torch.optim.Adam(model.parameters())
    grower = ng.Grower(model, optimizer, ng.Strategy(always(1)))
    with pytest.warns(UserWarning, match=r"no width can grow yet .*experts\.\d\.0 is not used .*example=\[\.\.\.\]"):
        step(model, optimizer, X)
    grower.step()
    assert grower.widths == {}
