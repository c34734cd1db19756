"""A `Grower` adds blocks by schedule, beside widths, and resumes."""

from __future__ import annotations

import io
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import neurogenesis as ng
from tests.stacks import CASES, Block, Language, perceptron

TEXT = CASES[0].example


def train(model: nn.Module, optimizer: Any, grower: ng.Grower, steps: int, x: torch.Tensor = TEXT) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        grower.step()


def start(strategy: str = "static", model: nn.Module | None = None, **depth: Any) -> tuple[Any, Any, ng.Grower]:
    torch.manual_seed(0)
    model = Language(2) if model is None else model
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    options = {key: depth.pop(key) for key in ("max_parameters", "max_flops", "max_width", "example") if key in depth}
    return model, optimizer, ng.Grower(model, optimizer, strategy, depth=ng.Deepening(**depth), **options)


@pytest.mark.parametrize(
    ("depth", "expected"),
    [
        ({"blocks": 4, "at": 3}, [(3, 2, 4)]),
        ({"blocks": 5, "at": (2, 4)}, [(2, 2, 3), (4, 3, 5)]),
        ({"blocks": (3, 6), "at": (0.2, 0.6), "steps": 10}, [(2, 2, 3), (6, 3, 6)]),
        ({"parameters": 2500, "at": 1}, [(1, 2, 4)]),
        ({"blocks": 6, "at": 2, "max_parameters": 2500}, [(2, 2, 4)]),
    ],
)
def test_blocks_are_added_when_it_is_time(depth: dict[str, Any], expected: list[tuple[int, int, int]]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, optimizer, grower = start(**depth)
        train(model, optimizer, grower, 7)
    assert [(event.step, event.before, event.after) for event in grower.history] == expected
    assert all(event.what == "blocks" and event.width == "blocks" for event in grower.history)
    assert len(model.blocks) == expected[-1][2]
    held = {id(own) for own in optimizer.param_groups[0]["params"]}
    assert held == {id(own) for own in model.parameters()}
    grower.detach()
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())


def test_the_limit_of_parameters_is_said() -> None:
    model, optimizer, grower = start(blocks=9, at=1, max_parameters=2500)
    with pytest.warns(UserWarning, match="blocks gets 2 blocks, not 7: max_parameters=2500"):
        train(model, optimizer, grower, 1)


def test_a_limit_of_operations_allows_so_many_blocks() -> None:
    of_two, of_four = (ng.flops(Language(depth), TEXT) // len(TEXT) for depth in (2, 4))
    model, optimizer, grower = start(blocks=9, at=1, max_flops=of_four + (of_four - of_two) // 4)
    with pytest.warns(UserWarning, match="blocks gets 2 blocks, not 7: max_flops="):
        train(model, optimizer, grower, 2)
    assert len(model.blocks) == 4 and grower.flops == ng.flops(model, TEXT) // len(TEXT) == of_four
    assert grower.training_flops == 3 * len(TEXT) * (of_two + of_four)


def test_widths_and_their_state_follow_blocks_that_move() -> None:
    model, optimizer, grower = start("north-random", perceptron(), blocks=5, at=2, max_width=12)
    x = torch.randn(64, 4)
    train(model, optimizer, grower, 1, x)
    initial = {layer.width.producers[0].module: layer.initial for layer in grower.layers}
    train(model, optimizer, grower, 8, x)
    assert len(grower.widths) == len(initial) + 2 and set(initial) < set(grower.widths)
    for layer in grower.layers:
        assert layer.size == model.get_submodule(layer.name).out_features
    assert {event.what for event in grower.history} == {"neurons", "blocks"}


def test_print_shows_the_depth_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    model, optimizer, grower = start(blocks=4, at=3, example=TEXT)
    assert "4 blocks from step 3" in str(grower)
    train(model, optimizer, grower, 3)
    assert "at its final depth" in str(grower) and "step 3: blocks of blocks 2 -> 4" in str(grower.history)


def test_resumed_training_adds_the_same_blocks_bit_by_bit() -> None:
    def options() -> dict[str, Any]:
        return {"blocks": 6, "at": (2, 5)}

    model, optimizer, grower = start("north-random", max_width=16, **options())
    train(model, optimizer, grower, 3)
    file = io.BytesIO()
    ng.save(file, model, optimizer, grower)
    train(model, optimizer, grower, 4)
    file.seek(0)
    again, other, resumed = start("north-random", max_width=16, **options())
    ng.load(file, again, other, resumed)
    assert len(again.blocks) == 4
    train(again, other, resumed, 4)
    one, two = model.state_dict(), again.state_dict()
    assert list(one) == list(two) and all(torch.equal(one[name], two[name]) for name in one)
    assert list(map(str, grower.history)) == list(map(str, resumed.history))


def test_schedules_that_make_no_sense_are_refused() -> None:
    for arguments, message in [
        ({}, "pass the final number of blocks"),
        ({"blocks": 4, "parameters": 9}, "pass the final number of blocks"),
        ({"blocks": 4, "at": 0.5}, "pass steps="),
        ({"blocks": 4, "at": (5, 3)}, "increasing times"),
        ({"blocks": (6, 4), "at": (1, 2)}, "increasing numbers"),
        ({"blocks": (4, 5, 6), "at": (1, 2)}, "3 numbers of blocks for 2 times"),
    ]:
        with pytest.raises(ValueError, match=message):
            ng.Deepening(**arguments)
    with pytest.raises(ValueError, match="0 stacks are called 'layers'; stacks: 'blocks'"):
        start(blocks=4, at=1, stack="layers", example=TEXT)
    with pytest.raises(ValueError, match="has 2 blocks already"):
        start(blocks=1, at=1, example=TEXT)
    two = nn.Sequential(nn.Sequential(*perceptron(2)[:-1]), *[nn.Linear(8, 8), nn.ReLU()] * 1, nn.Linear(8, 2))
    with pytest.raises(ValueError, match="several stacks can deepen"):
        start(model=two, blocks=4, at=1, example=torch.randn(2, 4))


@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": True}, {"amsgrad": True}])
def test_optimizers_of_every_kind_train_through_a_deepening(options: dict[str, bool]) -> None:
    torch.manual_seed(0)
    model = Language(2)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01, **options)
    grower = ng.Grower(model, optimizer, "static", depth=ng.Deepening(4, at=3))
    train(model, optimizer, grower, 6)
    assert len(model.blocks) == 4
    for own in model.parameters():
        for name, state in optimizer.state[own].items():
            assert name == "step" or state.shape == own.shape
    new = model.blocks[1].mlp[2].weight
    assert float(optimizer.state[new]["step"]) == 3 and bool(new.any())  # it has learned since


def test_scaled_gradients_in_parts_train_through_a_deepening() -> None:
    def trained(parts: int, scaled: bool) -> nn.Module:
        torch.manual_seed(0)
        model, optimizer, grower = start(model=Language(2).double(), blocks=4, at=3)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaled)
        for step in range(6):
            x = torch.randint(11, (4, 6), generator=torch.Generator().manual_seed(step))
            for number, part in enumerate(x.chunk(parts)):
                loss = model(part).square().mean() / parts
                scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
                if number + 1 < parts:
                    grower.step()  # too early, as in loops that call it after each backward pass
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            grower.step()
        assert len(model.blocks) == 4 and [event.step for event in grower.history] == [3]
        return model

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "no optimizer step since the last call")
        whole, *others = (trained(*each).state_dict() for each in ((1, False), (1, True), (2, True)))
    for other in others:
        assert list(other) == list(whole)
        assert all(torch.allclose(own, whole[name], atol=1e-8) for name, own in other.items())


def test_a_skipped_step_delays_nothing_and_breaks_nothing() -> None:
    model, optimizer, grower = start(blocks=4, at=3)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(6):
            loss = model(TEXT).square().mean() * (float("inf") if step == 1 else 1.0)
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            scaler.step(optimizer)  # not at the second time
            scaler.update()
            optimizer.zero_grad()
            grower.step()
    assert [(event.step, event.after) for event in grower.history] == [(3, 4)] and grower.steps == 5
    assert all(bool(own.isfinite().all()) for own in model.parameters())


@pytest.mark.parametrize("use_buffers", [False, True])
def test_an_average_follows_a_deepening(use_buffers: bool) -> None:
    torch.manual_seed(0)
    model = Language(2)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=use_buffers
    )
    grower = ng.Grower(model, optimizer, "static", depth=ng.Deepening(4, at=3), ema=average)
    for step in range(6):
        before = {name: own.clone() for name, own in average.module.named_parameters()}
        train(model, optimizer, grower, 1)
        if step == 2:  # deeper, and not averaged again yet
            shallow = Language(2)
            shallow.load_state_dict(before)
            assert torch.allclose(average(TEXT), shallow(TEXT), atol=1e-6)
        average.update_parameters(model)
    assert list(average.module.state_dict()) == list(model.state_dict())
    assert not set(map(id, average.module.parameters())) & set(map(id, model.parameters()))
    new = average.module.blocks[1].mlp[2].weight
    assert bool(new.any()) and not torch.equal(new, model.blocks[1].mlp[2].weight)


def test_a_hook_that_comes_later_stops_the_deepening_and_leaves_the_model_as_it_was() -> None:
    model, optimizer, grower = start(blocks=4, at=3)
    train(model, optimizer, grower, 2)
    handle = model.blocks[1].mlp.register_forward_hook(lambda *_: None)
    names, held = list(model.state_dict()), list(optimizer.param_groups[0]["params"])
    with pytest.raises(ValueError, match=r"blocks cannot deepen: blocks.1.mlp has a hook"):
        train(model, optimizer, grower, 1)
    assert list(model.state_dict()) == names and list(map(id, held)) == list(
        map(id, optimizer.param_groups[0]["params"])
    )
    handle.remove()
    train(model, optimizer, grower, 2)  # training goes on


def test_a_stack_inside_a_stack_deepens_when_it_is_named() -> None:
    inner = [nn.Sequential(Block(), Block()) for _ in range(2)]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Sequential(*inner), nn.Linear(8, 2))
    x = torch.randn(3, 5, 4)
    _, optimizer, grower = start(model=model, blocks=4, at=2, stack="1.1", example=x)
    train(model, optimizer, grower, 3, x)
    assert [len(each) for each in model[1]] == [2, 4]
