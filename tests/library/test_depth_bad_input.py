"""Models that could be deepened wrongly: each works, or is refused with the reason and left as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import neurogenesis as ng
from tests.stacks import CASES, Language

TEXT = CASES[0].example


class Checkpointed(Language):
    """Blocks that are computed again in the backward pass."""

    reentrant = False

    def forward(self, characters: Tensor) -> Tensor:
        x = self.embedding(characters) + self.positions[: characters.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(self.norm(x))


class Reentrant(Checkpointed):
    reentrant = True


class TwoNames(Language):
    """The list of blocks has two names."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = self.blocks


class NamedBlock(Language):
    """A block has a second name."""

    def __init__(self) -> None:
        super().__init__()
        self.last = self.blocks[2]


def shared_projection() -> nn.Module:
    model = Language()
    model.blocks[1].mlp[2].weight = model.blocks[0].mlp[2].weight
    return model


def shared_norm() -> nn.Module:
    """What is shared is no last projection, so that copies share it, too."""
    model = Language()
    for block in model.blocks:
        block.norm1 = model.blocks[0].norm1
    return model


def projection_with_two_names() -> nn.Module:
    model = Language()
    model.extra = model.blocks[0].attention.out
    return model


@pytest.mark.parametrize("make", [Checkpointed, Reentrant, TwoNames, NamedBlock, shared_norm])
def test_it_deepens_and_trains_as_before(make: Any) -> None:
    torch.manual_seed(0)
    model = make().double().train()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    before = model(TEXT)
    ng.deepen(model, ng.stacks(model, TEXT).found[0], 2, optimizer=optimizer)
    assert len(model.blocks) == 5 and torch.allclose(model(TEXT), before, rtol=0, atol=1e-10)
    assert getattr(model, "layers", model.blocks) is model.blocks
    model(TEXT).square().sum().backward()
    optimizer.step()
    new = model.blocks[2].mlp[2].weight
    assert new.grad is not None and bool(new.any())
    if make is shared_norm:
        assert len({id(block.norm1.weight) for block in model.blocks}) == 1
    held = [id(own) for group in optimizer.param_groups for own in group["params"]]
    assert len(held) == len(set(held)) and set(held) == {id(own) for own in model.parameters()}


@pytest.mark.parametrize(
    ("make", "block"), [(shared_projection, 0), (shared_projection, 1), (projection_with_two_names, 0)]
)
def test_a_block_whose_projection_is_used_elsewhere_is_refused_and_left_as_it_was(make: Any, block: int) -> None:
    model, reason = make(), "is used elsewhere, too, and cannot be zero in one block alone"
    optimizer = torch.optim.AdamW(model.parameters())
    stack = ng.stacks(model, TEXT)["blocks"]
    assert not stack.growable and reason in str(stack.reason)
    state = {name: own.clone() for name, own in model.state_dict().items()}
    held = list(map(id, optimizer.param_groups[0]["params"]))
    with pytest.raises(ValueError, match="cannot deepen") as error:
        ng.deepen(model, "blocks", 1, at=[block], optimizer=optimizer)
    assert reason in str(error.value)
    with pytest.raises(ValueError, match="depth: no stack can deepen"):
        ng.Grower(model, optimizer, "static", example=TEXT, depth=ng.Deepening(6, at=1))
    after = model.state_dict()
    assert list(after) == list(state) and all(torch.equal(own, after[name]) for name, own in state.items())
    assert list(map(id, optimizer.param_groups[0]["params"])) == held


@pytest.mark.parametrize("make", [Checkpointed, Reentrant])
def test_checkpointed_blocks_deepen_while_they_train(make: Any) -> None:
    models = []
    for kind in (make, Language):
        torch.manual_seed(0)
        model = kind(2).double()
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        grower = ng.Grower(model, optimizer, "static", depth=ng.Deepening(4, at=2))
        for _ in range(4):
            model(TEXT).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            grower.step()
        assert len(model.blocks) == 4
        models.append(model.state_dict())
    assert all(torch.allclose(own, models[1][name], atol=1e-10) for name, own in models[0].items())
