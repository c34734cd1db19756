"""Stacks are found, and blocks can be added and removed, with optimizers and averages."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

import neurogenesis as ng
from tests.stacks import CASES, Block, Case, Language, Plain, ResNet, encoder, perceptron

by_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def made(case: Case) -> nn.Module:
    """The model of a case in double precision, with no parameter at a special value."""
    torch.manual_seed(1)
    model = case.make().double()
    with torch.no_grad():
        for own in model.parameters():
            own.add_(0.1 * torch.randn_like(own))
    return model


def example(case: Case) -> Tensor:
    return case.example.double() if case.example.is_floating_point() else case.example


def outputs(model: nn.Module, x: Tensor) -> list[Tensor]:
    """Outputs in evaluation mode, and in training mode without dropout."""
    found = []
    for training in (False, True):
        own = copy.deepcopy(model).train(training)
        for module in own.modules():
            if isinstance(module, (nn.Dropout, nn.MultiheadAttention)) or hasattr(module, "dropout"):
                module.eval()
        torch.manual_seed(0)
        found.append(own(x))
    return found


def close(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.allclose(one, other, rtol=1e-11, atol=1e-12) for one, other in zip(a, b, strict=True))


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, count: int = 2) -> None:
    for _ in range(count):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


@by_case
def test_new_blocks_change_no_outputs_and_learn_at_once(case: Case) -> None:
    model, x = made(case), example(case)
    before, present = outputs(model, x), ng.stacks(model, x)[case.stack].blocks
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = ng.deepen(model, case.stack, 2)
    if case.name != "gains":  # its random numbers differ with the number of blocks
        assert close(outputs(model, x), before)
    else:
        assert torch.allclose(outputs(model, x)[0], before[0])
    assert (plan.before, plan.after) == (present, present + 2)
    assert ng.stacks(model, x)[case.stack].blocks == present + 2
    model.train()(x).square().sum().backward()
    new = [block.new for block in plan.order if block.new is not None]
    for modules in new:
        own = {name: each for module in modules for name, each in module.named_parameters()}
        assert all(bool(own[name].grad.any()) for name in case.zero)


@by_case
def test_only_the_last_projections_differ_from_the_copied_block(case: Case) -> None:
    model, x = made(case), example(case)
    plan = ng.deepen(model, case.stack, 1, example=x)
    (block,) = [each for each in plan.order if each.new is not None]
    assert block.new is not None
    differ = set()
    for new, old in zip(block.new, plan.run.modules(model, block.source), strict=True):
        theirs = dict(old.named_parameters())
        differ |= {name for name, own in new.named_parameters() if not torch.equal(own, theirs[name])}
        assert not {id(own) for own in new.parameters()} & {id(own) for own in old.parameters()}
    assert differ == set(case.zero)


@by_case
def test_blocks_that_are_removed_again_leave_the_model_as_it_was(case: Case) -> None:
    model, x = made(case), example(case)
    before, state = outputs(model, x), copy.deepcopy(model.state_dict())
    plan = ng.deepen(model, case.stack, 3, example=x)
    new = [number for number, block in enumerate(plan.order) if block.new is not None]
    ng.remove_blocks(model, case.stack, new)
    assert list(model.state_dict()) == list(state)
    assert all(torch.equal(own, state[name]) for name, own in model.state_dict().items())
    assert close(outputs(model, x), before)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": True}, {}])
def test_new_parameters_join_the_groups_of_those_they_copy(kind: Any, options: dict[str, bool]) -> None:
    model, x = Language(2), CASES[0].example
    decays = [own for own in model.parameters() if own.ndim > 1]
    others = [own for own in model.parameters() if own.ndim < 2]
    groups = [{"params": decays, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = kind(groups, lr=0.01, **({"momentum": 0.9} if kind is torch.optim.SGD else {}), **options)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda step: 1 / (1 + step)] * 2)
    steps(model, optimizer, x)
    state = {id(own): copy.deepcopy(optimizer.state[own]) for own in model.parameters()}
    ng.deepen(model, "blocks", 2, optimizer=optimizer, example=x)
    for group, wanted in zip(optimizer.param_groups, (True, False), strict=True):
        expected = [own for own in model.parameters() if (own.ndim > 1) == wanted]
        assert [id(own) for own in group["params"]] == [id(own) for own in expected]  # in the order of the model
    for own in model.parameters():
        if id(own) in state:
            assert all(torch.equal(torch.as_tensor(value), torch.as_tensor(optimizer.state[own][key]))
                       for key, value in state[id(own)].items())  # fmt: skip
        else:
            assert not any(bool(torch.as_tensor(value).any()) for value in optimizer.state.get(own, {}).values())
    new = model.blocks[1].mlp[2].weight
    steps(model, optimizer, x)
    scheduler.step()
    assert bool(new.any()) and len(optimizer.param_groups) == 2


KINDS = [torch.optim.Adagrad, torch.optim.RMSprop, torch.optim.NAdam, torch.optim.Rprop, torch.optim.Adadelta]


@pytest.mark.parametrize("kind", KINDS)
def test_new_blocks_train_with_every_optimizer(kind: Any) -> None:
    model, x = Language(2), CASES[0].example
    optimizer = kind(model.parameters(), lr=0.01)
    steps(model, optimizer, x)
    ng.deepen(model, "blocks", 1, optimizer=optimizer, example=x)
    steps(model, optimizer, x)
    assert bool(model.blocks[2].mlp[2].weight.any())


def test_training_goes_on_as_if_new_blocks_did_not_exist_when_they_are_frozen() -> None:
    torch.manual_seed(0)
    model, x = Language(2).double(), CASES[0].example
    twin = copy.deepcopy(model)
    one, other = (torch.optim.Adam(each.parameters()) for each in (model, twin))
    steps(model, one, x)
    steps(twin, other, x)
    plan = ng.deepen(model, "blocks", 2, optimizer=one, example=x)
    for block in plan.order:
        for module in block.new or ():
            module.requires_grad_(False)
    steps(model, one, x)
    steps(twin, other, x)
    assert torch.allclose(model(x), twin(x), rtol=1e-11)


def test_an_average_gets_copies_of_the_new_blocks() -> None:
    model, x = Language(2), CASES[0].example
    optimizer, average = torch.optim.Adam(model.parameters(), 0.01), AveragedModel(model)
    for _ in range(3):
        steps(model, optimizer, x, 1)
        average.update_parameters(model)
    before = average(x)
    ng.deepen(model, "blocks", 2, optimizer=optimizer, ema=average, example=x)
    assert torch.allclose(average(x), before, atol=1e-6)
    new, averaged = model.blocks[1], average.module.blocks[1]
    assert torch.equal(new.mlp[0].weight, averaged.mlp[0].weight) and new.mlp[0].weight is not averaged.mlp[0].weight
    steps(model, optimizer, x, 1)
    average.update_parameters(model)
    assert average.module.blocks[3].index == 3


def test_indices_of_blocks_follow() -> None:
    model = Language(3)
    ng.deepen(model, "blocks", 2, at=[0, 1], example=CASES[0].example)
    assert [block.index for block in model.blocks] == [0, 1, 2, 3, 4]
    ng.remove_blocks(model, "blocks", [0, 2])
    assert [block.index for block in model.blocks] == [0, 1, 2]


def test_new_blocks_go_where_they_are_told() -> None:
    model = Language(3)
    old = list(model.blocks)
    ng.deepen(model, "blocks", 3, at=[0, 0, 2], example=CASES[0].example)
    assert [old.index(each) if each in old else None for each in model.blocks] == [0, None, None, 1, 2, None]


def test_copies_and_random_blocks_change_outputs() -> None:
    x = CASES[0].example
    for how in ("copy", "random"):
        torch.manual_seed(0)
        model = Language(2)
        before = model(x)
        ng.deepen(model, "blocks", 1, how=how, example=x, generator=torch.Generator().manual_seed(0))
        assert not torch.allclose(model(x), before, atol=1e-3)
        weight, copied = model.blocks[2].mlp[0].weight, model.blocks[1].mlp[0].weight
        assert torch.equal(weight, copied) == (how == "copy")
        assert float((weight.std() / copied.std()).detach()) == pytest.approx(1, abs=0.3)


def test_a_config_from_which_the_model_is_made_follows() -> None:
    class Config:
        def __init__(self, layers: int, heads: int):
            self.layers, self.heads, self.kinds, self.pair = layers, heads, ["full"] * layers, [1, 2]

    class Model(nn.Module):
        def __init__(self, config: Config):
            super().__init__()
            self.config = config
            self.blocks = nn.ModuleList(Block(2 * config.heads, index) for index, _ in enumerate(config.kinds))

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks[: self.config.layers]:
                x = block(x)
            return x

    model, x = Model(Config(2, 2)), torch.randn(2, 3, 4)
    before = model(x)
    plan = ng.deepen(model, "blocks", 2, example=x)
    config = model.config
    assert (config.layers, config.heads, config.kinds, config.pair) == (4, 2, ["full"] * 4, [1, 2])
    assert "config.layers: +2" in str(plan) and torch.allclose(model(x), before, atol=1e-6)
    assert set(Model(config).state_dict()) == set(model.state_dict())


def test_a_failure_while_applying_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Language(2), CASES[0].example
    optimizer = torch.optim.Adam(model.parameters())
    steps(model, optimizer, x)
    plan = ng.plan_deepening(model, "blocks", 2, example=x)
    names, groups = list(model.state_dict()), [id(own) for own in optimizer.param_groups[0]["params"]]

    def fail(*_: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr("neurogenesis.depth.operations.SetGroup.apply", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        plan.apply(model, optimizer)
    assert list(model.state_dict()) == names and [block.index for block in model.blocks] == [0, 1]
    assert [id(own) for own in optimizer.param_groups[0]["params"]] == groups


def test_finding_and_planning_leave_the_model_and_random_numbers_alone() -> None:
    model, x = ResNet(), torch.randn(2, 3, 6, 6)
    state, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    ng.plan_deepening(model, "stage1", 1, example=x)
    assert all(torch.equal(own, state[name]) for name, own in model.state_dict().items())
    assert len(model.stage1) == 2 and torch.equal(torch.get_rng_state(), random)
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        block = Block()
        self.blocks = nn.ModuleList([block, Block(), block])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block1, self.block2 = Block(), Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.block2(self.block1(x))


class Counted(Recurrent):
    """Code that calls as many blocks as it was written for."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks[1](self.blocks[0](x))


class ByIndex(Language):
    """Blocks that compute something else at odd places."""

    def forward(self, characters: Tensor) -> Tensor:
        x = self.embedding(characters)
        for block in self.blocks:
            x = block(x) * (2.0 if block.index % 2 else 1.0)
        return self.head(x)


def hooked() -> nn.Module:
    model = Language(2)
    model.blocks[1].mlp[0].register_forward_hook(lambda *_: None)
    return model


REFUSED = [
    ("the same module", Recurrent, torch.randn(1, 3, 8), "blocks", "blocks 0 and 2 are the same module"),
    ("attributes", Named, torch.randn(1, 3, 8), "block1", "put them in a ModuleList"),
    ("counted in code", Counted, torch.randn(1, 3, 8), "blocks", "does not call all blocks"),
    ("a norm behind", lambda: encoder(False), torch.randn(1, 3, 8), "layers", "a norm follows the addition"),
    ("an index that matters", lambda: ByIndex(4), CASES[0].example, "blocks", "read their own index"),
    ("a hook", hooked, CASES[0].example, "blocks", "blocks.1.mlp.0 has a hook"),
    (
        "an activation that is no identity",
        lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), *[nn.Linear(8, 8), nn.Tanh()] * 1, nn.Linear(8, 2)),
        torch.randn(3, 4),
        "2",
        "outputs would change",
    ),
]


@pytest.mark.parametrize(("make", "x", "stack", "reason"), [each[1:] for each in REFUSED], ids=[r[0] for r in REFUSED])
def test_what_cannot_be_deepened_says_why(make: Any, x: Tensor, stack: str, reason: str) -> None:
    model = make()
    with torch.no_grad():  # away from initial values that hide differences
        for own in model.parameters():
            own.add_(0.3 * torch.randn_like(own))
    found = ng.stacks(model, x)
    assert not found[stack].growable and reason in str(found[stack].reason)
    state = list(model.state_dict())
    with pytest.raises(ValueError, match="cannot deepen") as error:
        ng.deepen(model, stack, 1, at=[0])
    assert reason in str(error.value) and list(model.state_dict()) == state


def test_bad_arguments_are_refused_before_anything_is_touched() -> None:
    model, x = Language(2), CASES[0].example
    with pytest.raises(ValueError, match=r"call stacks\(model, example\) first"):
        ng.deepen(model, "blocks", 1)
    ng.stacks(model, x)
    for arguments, options, error, message in [
        (("block", 1), {}, KeyError, "did you mean 'blocks'"),
        (("blocks", 0), {}, ValueError, "must be positive"),
        (("blocks", 1.5), {}, TypeError, "must be an integer"),
        (("blocks", 2), {"at": [0]}, ValueError, "1 places for 2 new blocks"),
        (("blocks", 1), {"at": [2]}, IndexError, "has blocks 0 to 1"),
        (("blocks", 1), {"how": "zeros"}, ValueError, "how: expected one of"),
        ((3, 1), {}, TypeError, "expected the name of a stack"),
    ]:
        with pytest.raises(error, match=message):
            ng.deepen(model, *arguments, **options)
    with pytest.raises(ValueError, match="cannot remove all 2"):
        ng.remove_blocks(model, "blocks", [0, 1])
    with pytest.raises(TypeError, match=r"such as \[1\]"):
        ng.remove_blocks(model, "blocks", 1)  # type: ignore[arg-type]
    other = torch.optim.SGD(Language(2).parameters(), 0.1)
    with pytest.raises(ValueError, match="created for another model"):
        ng.deepen(model, "blocks", 1, optimizer=other)
    assert len(model.blocks) == 2


def test_stacks_inside_stacks_are_found_and_deepened() -> None:
    outer = nn.Sequential(*(nn.Sequential(Block(), Block()) for _ in range(3)))
    model, x = nn.Sequential(nn.Linear(4, 8), outer), torch.randn(2, 3, 4)
    before = model(x)
    assert {stack.name for stack in ng.stacks(model, x)} == {"1", "1.0", "1.1", "1.2"}
    ng.deepen(model, "1", 1)
    ng.deepen(model, "1.3", 1)
    assert [len(each) for each in outer] == [2, 2, 2, 3] and torch.allclose(model(x), before, atol=1e-6)
    assert {stack.name for stack in ng.stacks(model, x)} >= {"1", "1.0", "1.3"}


def test_checkpointed_blocks_deepen() -> None:
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(Plain):
        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x).relu()
            for layer in self.hidden:
                x = checkpoint(lambda x, own=layer: own(x).relu(), x, use_reentrant=False)
            return self.last(x)

    model, x = Checkpointed(), torch.randn(3, 4)
    before = model(x)
    ng.deepen(model, "hidden", 2, example=x)
    model(x).sum().backward()
    assert torch.allclose(model(x), before, atol=1e-6) and model.hidden[3].weight.grad is not None


def test_widths_are_found_anew_after_a_change_of_depth() -> None:
    model, x = perceptron(), torch.randn(3, 4)
    width = ng.widths(model, x)["2"]
    ng.deepen(model, "2", 1, example=x)
    with pytest.raises(ValueError, match="blocks of 2 were added or removed"):
        _ = width.size
    ng.grow(model, "2", 3, example=x)
    assert model[2].out_features == 11 and ng.stacks(model, x)["6"].blocks == 2  # those of one size


def test_a_compiled_model_deepens() -> None:
    model, x = Plain(), torch.randn(3, 4)
    compiled = torch.compile(model, backend="eager")
    before = compiled(x)
    ng.deepen(compiled, "hidden", 1, example=x)
    assert torch.allclose(compiled(x), before, atol=1e-6)
    with torch.no_grad():
        model.hidden[2].bias.add_(1)
    assert not torch.allclose(compiled(x), before, atol=1e-3)
