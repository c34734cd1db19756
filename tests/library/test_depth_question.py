"""Would-be blocks get the gradients that real ones would get, and a `Grower` adds those that would learn."""

from __future__ import annotations

import copy
import io
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import neurogenesis as ng
from tests.stacks import CASES, Case, Language, ResNet
from tests.would_be import check_against_deeper, seen_in, without_dropout

REFUSED = {"plain list": "functions stand between", "convolutions in groups": "is a layer, a product or a gain"}
ASKED = [case for case in CASES if case.name not in REFUSED]


@pytest.mark.parametrize("case", ASKED, ids=lambda case: case.name)
def test_a_would_be_block_gets_the_gradient_of_a_real_one_in_each_fold(case: Case) -> None:
    torch.manual_seed(0)
    model = without_dropout(case.make())
    x = case.example.double() if case.example.is_floating_point() else case.example
    x = torch.cat([x, x.flip(-1)])
    if case.name == "gains":
        model.eval()  # its stochastic depth is drawn
    wanted = torch.randn_like(model(x).detach())
    check_against_deeper(model, case.stack, x, lambda deeper: (deeper(x).tanh() * wanted).sum())


@pytest.mark.parametrize("case", [case for case in CASES if case.name in REFUSED], ids=lambda case: case.name)
def test_a_stack_that_cannot_be_asked_says_why(case: Case) -> None:
    model = case.make()
    optimizer = torch.optim.Adam(model.parameters())
    with pytest.raises(ValueError, match=f"cannot be asked whether it needs more blocks: .*{REFUSED[case.name]}"):
        ng.Grower(
            model, optimizer, "static", example=case.example, depth=ng.Deepening(4, stack=case.stack, when="needed")
        )


def test_a_would_be_block_leaves_the_pass_as_it_is() -> None:
    def trained(asked: bool) -> tuple[nn.Module, Tensor, Tensor]:
        torch.manual_seed(0)
        model = ResNet()
        x = torch.randn(4, 3, 6, 6)
        stack = ng.stacks(model, x)["stage1"]

        def loss(model: nn.Module) -> Tensor:
            found: Tensor = nn.functional.dropout(model(x), 0.5).square().sum()
            return found

        if asked:
            seen_in(model, stack, loss)
        else:
            loss(model).backward()
        return (
            model,
            torch.cat([own.grad.flatten() for own in model.parameters() if own.grad is not None]),
            torch.rand(2),
        )

    (one, gradients, after), (other, without, drawn) = trained(True), trained(False)
    assert torch.equal(gradients, without) and torch.equal(after, drawn)
    state = other.state_dict()
    assert all(torch.equal(own, state[name]) for name, own in one.state_dict().items())


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_blocks_are_asked_like_others(reentrant: bool) -> None:
    class Checkpointed(Language):
        def forward(self, characters: Tensor) -> Tensor:
            x = self.embedding(characters) + self.positions[: characters.shape[1]]
            for block in self.blocks:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=reentrant)
            return self.head(self.norm(x))

    torch.manual_seed(0)
    model, plain = Checkpointed().double(), Language().double()
    plain.load_state_dict(model.state_dict())
    x, found = CASES[0].example, []
    for own in (model, plain):
        stack = ng.stacks(own, x)["blocks"]
        seen = sorted(seen_in(own, stack, lambda each: each(x).square().sum()), key=lambda pair: pair[1].block)
        passes = [each.made.passes(would_be.projections, each.gradient, None) for would_be, each in seen]
        found.append([tensor for block in passes for own in block for each in own for tensor in each[:3]])
    assert len(found[0]) == len(found[1]) == 3 * 2 * 3
    assert all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(*found, strict=True))


# --- decisions -------------------------------------------------------------------------------------------


class Residual(nn.Module):
    def __init__(self, size: int = 16):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(size), nn.Linear(size, 32), nn.Linear(32, size)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


def residual(blocks: int = 1) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.Sequential(*(Residual() for _ in range(blocks))), nn.Linear(16, 4))


def answered(targets: str, steps: int = 40) -> Any:
    """The latest answer about a network of fixed weights."""
    torch.manual_seed(0)
    model = residual(2)
    for block in model[1]:
        nn.init.normal_(block.down.weight, std=0.5)  # so that the next block gets something new
    x = torch.randn(16384, 4, generator=torch.Generator().manual_seed(1))
    if targets == "noise":
        y = (model(x) + torch.randn(16384, 4, generator=torch.Generator().manual_seed(2))).detach()
    else:
        deeper = copy.deepcopy(model)
        ng.deepen(deeper, "1", 1, at=[0], example=x[:2])
        nn.init.normal_(deeper[1][1].down.weight, std=0.1)
        y = deeper(x).detach()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    grower = ng.Grower(
        model, optimizer, "static", example=x[:2], depth=ng.Deepening(2 + 1, when="needed"), max_parameters=10**6
    )
    for step in range(steps):
        chosen = torch.arange(512) + 512 * (step % 32)
        (model(x[chosen]) - y[chosen]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        grower.step()
    return grower


def test_noise_needs_no_block_and_the_outputs_of_a_deeper_network_do() -> None:
    deeper, noise = answered("of a deeper one"), answered("noise")
    for grower, expected in ((deeper, True), (noise, False)):
        seen = [each for each in grower.history.observations if each.width == "blocks of 1"]
        assert [(each.metric > 1.5 * each.threshold, bool(each.count)) for each in seen] == [
            (expected, expected)
        ] * len(seen)
        assert seen and len(grower.history) == expected == (len(grower.model[1]) == 3)


def start(strategy: str = "static", **options: Any) -> tuple[nn.Module, Any, ng.Grower]:
    torch.manual_seed(0)
    model = residual(2)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    options.setdefault("depth", ng.Deepening(5, when="needed"))
    return model, optimizer, ng.Grower(model, optimizer, strategy, **options)


def train(model: nn.Module, optimizer: Any, grower: ng.Grower, steps: range) -> None:
    for step in steps:
        x = torch.randn(256, 4, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        (model(x) - torch.sin(3 * x)).square().mean().backward()
        optimizer.step()
        grower.step()


def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every window end with a block, so that tests do not hang on what training decides."""
    monkeypatch.setattr("neurogenesis.growing.asking.needed_ratio", lambda *_: -1e9)


def test_blocks_come_one_by_one_and_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    always(monkeypatch)
    monkeypatch.setenv("COLUMNS", "200")
    model, optimizer, grower = start()
    assert "before the first batch" in str(grower)
    train(model, optimizer, grower, range(1))
    assert "at most 5 blocks, next look at step 3" in str(grower)
    train(model, optimizer, grower, range(1, 45))
    assert [(event.step, event.before, event.after) for event in grower.history] == [(9, 2, 3), (18, 3, 4), (36, 4, 5)]
    for event in grower.history:
        assert event.metric is not None and f"({event.metric:.4g} against" in str(event)
        assert event.metric == next(
            each.metric
            for each in grower.history.observations
            if (each.step, each.width) == (event.step, "blocks of 1")
        )
    assert "at its final depth" in str(grower)
    assert all(not block._forward_hooks and not block._forward_pre_hooks for block in model[1])
    held = {id(own) for own in optimizer.param_groups[0]["params"]}
    assert held == {id(own) for own in model.parameters()}


def test_they_are_asked_from_the_time_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    always(monkeypatch)
    model, optimizer, grower = start(depth=ng.Deepening(3, at=0.5, steps=40, when="needed"))
    train(model, optimizer, grower, range(18))
    assert all(not block._forward_hooks for block in model[1])
    train(model, optimizer, grower, range(18, 40))
    assert [(event.step, event.after) for event in grower.history] == [(28, 3)]


def test_the_budget_holds_for_needed_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    always(monkeypatch)
    size = sum(own.numel() for own in residual(2).parameters())
    block = sum(own.numel() for own in Residual().parameters())
    model, optimizer, grower = start(max_parameters=size + block + 1)
    with pytest.warns(UserWarning, match="gets 0 blocks, not 1: max_parameters="):
        train(model, optimizer, grower, range(45))
    assert len(model[1]) == 3 and "at its final depth" in str(grower)


@pytest.mark.parametrize("strategy", ["static", "need"])
@pytest.mark.parametrize("pause", [5, 14, 20])
def test_training_resumes_bit_by_bit_inside_a_window(
    monkeypatch: pytest.MonkeyPatch, strategy: str, pause: int
) -> None:
    always(monkeypatch)
    model, optimizer, grower = start(strategy)
    train(model, optimizer, grower, range(pause))
    file = io.BytesIO()
    ng.save(file, model, optimizer, grower)
    train(model, optimizer, grower, range(pause, 40))
    file.seek(0)
    again, other, resumed = start(strategy)
    ng.load(file, again, other, resumed)
    train(again, other, resumed, range(pause, 40))
    one, two = model.state_dict(), again.state_dict()
    assert list(one) == list(two) and all(torch.equal(one[name], two[name]) for name in one)
    assert list(map(str, grower.history)) == list(map(str, resumed.history))
    assert len(model[1]) == 5


def test_detaching_removes_the_hooks_on_blocks() -> None:
    model, optimizer, grower = start()
    train(model, optimizer, grower, range(2))
    assert any(block._forward_hooks for block in model[1])
    grower.detach()
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())


def test_a_batch_in_parts_says_the_same_as_the_whole() -> None:
    answers = []
    for parts in (1, 4):
        model, optimizer, grower = start()
        for step in range(9):
            x = torch.randn(256, 4, generator=torch.Generator().manual_seed(step))
            for part in x.chunk(parts):
                ((model(part) - torch.sin(3 * part)).square().mean() / parts).backward()
            optimizer.step()
            optimizer.zero_grad()
            grower.step()
        (seen,) = [each for each in grower.history.observations if each.width == "blocks of 1"]
        answers.append(seen.metric)
    assert answers[0] == pytest.approx(answers[1], rel=1e-2)


def test_arguments_that_make_no_sense_are_refused() -> None:
    for arguments in ({"blocks": (4, 5)}, {"blocks": 4, "at": (1, 2)}, {"blocks": 4, "how": "copy"}):
        with pytest.raises(ValueError, match="pass their largest number"):
            ng.Deepening(**arguments, when="needed")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="when: expected one of 'scheduled', 'needed'"):
        ng.Deepening(4, when="later")  # type: ignore[arg-type]


def test_a_gradient_that_is_not_finite_is_left_out() -> None:
    model, optimizer, grower = start()
    train(model, optimizer, grower, range(2))
    x = torch.randn(256, 4)
    (model(x).sum() * float("inf")).backward()
    optimizer.zero_grad()
    optimizer.step()
    with pytest.warns(UserWarning, match="not finite"):
        grower.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, optimizer, grower, range(3, 12))
    assert [each.step for each in grower.history.observations if each.width == "blocks of 1"]
