"""Compiled models: the same training as eager, one graph per size, and no graph where the grower looks."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

import neurogenesis as ng
from neurogenesis.defaults import MAX_INTERVAL
from tests.growing import always, mlp

WAYS = ("wrapper", "method", "function")


class Own(nn.Module):
    """A model with a class of its own, which Dynamo treats differently from the containers of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(4, 2)
        self.relu = ng.nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.relu(self.second(self.relu(self.first(x)))))
        return out


def sequential() -> nn.Sequential:
    return mlp(6, 5, 4, 2)


def own() -> nn.Module:
    torch.manual_seed(0)
    return Own()


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(recompile_limit=8, accumulated_recompile_limit=256):
        yield
    torch._dynamo.reset()


def graphs() -> int:
    return counters["stats"]["unique_graphs"]


def breaks() -> int:
    return sum(counters["graph_break"].values())


def batch(number: int) -> Tensor:
    return torch.randn(32, 6, generator=torch.Generator().manual_seed(number))


class Run:
    """A model in training with a grower that grows each width by one neuron at every look.

    Args:
        make: makes the model.
        way: how it is compiled; None for not at all.
        every: interval of the looks.
        switched: whether a compiled function around the model is called uncompiled while `grower.eager`.
        options: of `torch.compile`.
    """

    def __init__(
        self,
        make: Callable[[], nn.Module],
        way: str | None,
        *,
        every: int = 16,
        strategy: str | ng.Strategy | None = None,
        switched: bool = False,
        **options: Any,
    ):
        options = {"backend": "eager", **options}
        self.model = self.called = make()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        if way == "wrapper":
            self.called = torch.compile(self.model, **options)  # type: ignore[assignment]
        elif way == "method":
            self.model.compile(**options)
        strategy = ng.Strategy(always(1), "random") if strategy is None else strategy
        self.grower = ng.Grower(self.called, self.optimizer, strategy, every=every, buffer=64)
        self.loss = torch.compile(self._loss, **options) if way == "function" else self._loss
        self.switched = switched
        self.log: list[tuple[bool, int, int]] = []  # per step: whether it was eager, new graphs and graph breaks
        self.losses: list[float] = []

    def _loss(self, x: Tensor) -> Tensor:
        return self.called(x).square().mean()

    def train(self, steps: int) -> Run:
        for _ in range(steps):
            eager, before = self.grower.eager, (graphs(), breaks())
            self.optimizer.zero_grad()
            loss = (self._loss if eager and self.switched else self.loss)(batch(self.grower.steps))
            loss.backward()
            self.optimizer.step()
            self.grower.step()
            self.losses.append(loss.item())
            self.log.append((eager, graphs() - before[0], breaks() - before[1]))
        return self


@cache
def eager_run(make: Callable[[], nn.Module], steps: int) -> Run:
    return Run(make, None).train(steps)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [own, sequential])
def test_a_compiled_model_trains_and_grows_as_an_eager_one(make: Callable[[], nn.Module], way: str) -> None:
    eager, run = eager_run(make, 34), Run(make, way).train(34)
    assert run.grower.widths == eager.grower.widths
    assert len(run.grower.history) == 6
    torch.testing.assert_close(run.losses, eager.losses)
    for own_tensor, other in zip(run.model.parameters(), eager.model.parameters(), strict=True):
        torch.testing.assert_close(own_tensor, other)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [own, sequential])
def test_each_size_that_lasts_takes_one_graph_and_looks_take_none(make: Callable[[], nn.Module], way: str) -> None:
    run = Run(make, way, switched=True).train(3 * 16)
    assert [eager for eager, _, _ in run.log] == 3 * ([True] * (MAX_INTERVAL + 1) + [False] * (15 - MAX_INTERVAL))
    assert not any(new for eager, new, _ in run.log if eager)
    assert not any(broken for _, _, broken in run.log)
    first, *others = [new for eager, new, _ in run.log if not eager and new]
    assert first <= 2  # the hook on the model may be a graph of its own, which does not depend on the size
    assert others == [1, 1]


@pytest.mark.parametrize("way", WAYS)
def test_many_growths_do_not_use_up_the_recompile_limit(way: str) -> None:
    run = Run(own, way, switched=True, every=MAX_INTERVAL + 2).train(10 * (MAX_INTERVAL + 2))
    compiled = [new for eager, new, _ in run.log if not eager]
    assert compiled[1:] == [1] * 9
    run.grower.detach()
    before = graphs()
    torch.testing.assert_close(run.loss(batch(0)), run.model.forward(batch(0)).square().mean())
    assert graphs() == before + (way == "function")  # the hook on the model was part of that graph


def test_growth_by_hand_does_not_use_up_the_recompile_limit() -> None:
    model = own()
    ng.widths(model, batch(0))
    compiled = torch.compile(model, backend="eager")
    for number in range(10):
        torch.testing.assert_close(compiled(batch(0)), model(batch(0)))
        assert graphs() == number + 1
        ng.grow(model, "first", 1)


def test_other_compiled_functions_keep_their_graphs() -> None:
    other = torch.compile(sequential(), backend="eager")
    function = torch.compile(lambda x: x.sin(), backend="eager")
    other(batch(0)), function(batch(0))
    run = Run(sequential, "wrapper").train(18)
    assert len(run.grower.history) == 4
    before = graphs()
    other(batch(0)), function(batch(0))
    assert graphs() == before


def test_the_limits_of_torch_stay_as_they_are_while_nothing_is_compiled() -> None:
    Run(own, None, every=1).train(3)
    assert torch._dynamo.config.recompile_limit == 8


@pytest.mark.parametrize("way", ["wrapper", "method"])
@pytest.mark.parametrize("make", [own, sequential])
def test_fullgraph_works(make: Callable[[], nn.Module], way: str) -> None:
    eager, run = eager_run(make, 18), Run(make, way, fullgraph=True, backend="aot_eager").train(18)
    assert run.grower.widths == eager.grower.widths
    torch.testing.assert_close(run.losses, eager.losses)


def test_fullgraph_around_the_model_works_with_uncompiled_looks() -> None:
    eager, run = eager_run(own, 18), Run(own, "function", fullgraph=True, switched=True).train(18)
    assert run.grower.widths == eager.grower.widths
    torch.testing.assert_close(run.losses, eager.losses)
    assert [new for eager_step, new, _ in run.log if not eager_step] == [1, 0, 0]


def test_fullgraph_around_a_pass_that_is_looked_at_is_refused_with_the_way_out() -> None:
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"call that function uncompiled while grower\.eager"):
        Run(own, "function", fullgraph=True).train(1)


def test_compiling_after_the_grower_was_made_is_refused_with_the_way_out() -> None:
    run = Run(own, None)
    run.model.compile(backend="eager")
    with pytest.raises(RuntimeError, match=r"model\.compile\(\) was called after Grower.*call it before"):
        run.train(1)


def test_a_wrapper_that_the_grower_does_not_know_works_too() -> None:
    eager, run = eager_run(own, 18), Run(own, None)
    run.called = torch.compile(run.model, backend="eager")  # type: ignore[assignment]
    run.train(18)
    torch.testing.assert_close(run.losses, eager.losses)
    assert not any(new for eager_step, new, _ in run.log if eager_step)


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.up, self.relu, self.down = nn.Linear(inputs, 5), ng.nn.ReLU(), nn.Linear(5, outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(self.relu(self.up(x)))
        return out


class Blocks(nn.Module):
    """A model whose blocks are compiled one by one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = Block(6, 4), Block(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(x))
        return out


@pytest.mark.parametrize("way", ["wrapper", "method"])
def test_blocks_that_are_compiled_one_by_one_are_graphs_too(way: str) -> None:
    def compiled() -> nn.Module:
        model = Blocks()
        for name, block in list(model.named_children()):
            if way == "wrapper":
                setattr(model, name, torch.compile(block, backend="eager"))
            else:
                block.compile(backend="eager")
        return model

    strategy = ng.Strategy(ng.triggers.Gradient(0.0), "random")  # has hooks on modules
    eager, run = Run(Blocks, None, strategy=strategy).train(34), Run(compiled, None, strategy=strategy).train(34)
    assert list(run.grower.widths.values()) == list(eager.grower.widths.values())
    assert len(run.grower.history) > 2
    torch.testing.assert_close(run.losses, eager.losses)
    assert not any(new or broken for eager_step, new, broken in run.log if eager_step)
    assert [new for eager_step, new, _ in run.log if new and not eager_step] == [2, 2]


@pytest.mark.parametrize("way", ["wrapper", "method"])
def test_evaluation_is_compiled_even_if_the_next_step_is_looked_at(way: str) -> None:
    run = Run(own, way).train(1)
    assert run.grower.eager
    run.model.eval()
    with torch.no_grad():
        torch.testing.assert_close(run.called(batch(0)), run.model.forward(batch(0)))
        assert graphs() == 1
        run.grower.detach()
        run.called(batch(0))
        assert graphs() == 1


def test_inputs_of_compiled_passes_are_measured() -> None:
    run = Run(own, "function", switched=True, strategy="north-random", backend="aot_eager", every=20).train(16)
    assert run.log[-1][0] is False
    kept = torch.cat([call.args[0] for call in run.grower.buffer.calls])
    torch.testing.assert_close(kept, torch.cat([batch(14), batch(15)]))


@pytest.mark.parametrize("name", ["north-select", "gradmax"])
def test_decisions_are_those_of_eager_training(name: str) -> None:
    strategy = ng.Strategy(ng.triggers.Gradient(0.02), "gradmax") if name == "gradmax" else name
    eager = Run(sequential, None, strategy=strategy, every=14).train(30)
    run = Run(sequential, "wrapper", strategy=strategy, every=14).train(30)
    assert graphs() > 1
    assert len(eager.grower.history) > 1
    assert [(e.step, e.width, e.after) for e in run.grower.history] == [
        (e.step, e.width, e.after) for e in eager.grower.history
    ]
    torch.testing.assert_close(run.losses, eager.losses, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("steps", [1, 14])
@pytest.mark.parametrize("way", ["wrapper", "method", None])
def test_nothing_is_left_after_detach(way: str | None, steps: int) -> None:
    plain = own()
    called = torch.compile(plain, backend="eager") if way == "wrapper" else plain
    if way == "method":
        plain.compile(backend="eager")
    before = {name: dict(vars(module)) for name, module in {"inner": plain, "outer": called}.items()}
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    grower = ng.Grower(called, optimizer, ng.Strategy(always(1), "random"), buffer=32, every=20)
    for number in range(steps):
        called(batch(number)).sum().backward()
        optimizer.step()
        grower.step()
    grower.detach()
    assert before == {name: dict(vars(module)) for name, module in {"inner": plain, "outer": called}.items()}


def test_copies_and_pickles_of_a_model_that_is_looked_at_are_plain() -> None:
    run = Run(sequential, "method").train(1)
    for other in (copy.deepcopy(run.model), pickle.loads(pickle.dumps(run.model))):
        assert other._compiled_call_impl is None
        run.model.eval()
        torch.testing.assert_close(other(batch(0)), run.model(batch(0)))


def test_two_growers_on_one_model_leave_it_as_it_was() -> None:
    model = own()
    model.compile(backend="eager")
    compiled = model._compiled_call_impl
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first, second = (ng.Grower(model, optimizer, "north-random", example=batch(0)) for _ in range(2))
    first.detach()
    second.detach()
    assert model._compiled_call_impl is compiled


def test_graphs_for_all_sizes_serve_every_growth() -> None:
    flags = {"force_parameter_static_shapes": False, "force_nn_module_property_static_shapes": False}
    with torch._dynamo.config.patch(flags):
        run = Run(own, "wrapper").train(4 * 16)
    assert len(run.grower.history) == 8
    assert [new for eager, new, _ in run.log if new and not eager] == [2, 1]


def test_a_backend_of_ones_own_grows_too() -> None:
    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        return graph.forward  # type: ignore[no-any-return]

    eager, run = eager_run(own, 34), Run(own, "wrapper", backend=backend).train(34)
    assert run.grower.widths == eager.grower.widths
    torch.testing.assert_close(run.losses, eager.losses)


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_inductor_trains_and_grows_as_eager(way: str) -> None:
    eager = Run(own, None).train(33)
    run = Run(own, way, switched=True, backend="inductor").train(33)
    assert run.grower.widths == eager.grower.widths
    torch.testing.assert_close(run.losses, eager.losses, rtol=1e-4, atol=1e-6)
