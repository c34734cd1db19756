"""Activation checkpointing changes nothing, whichever part of the model is computed again, and in whichever way."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import neurogenesis as ng


class Block(nn.Module):
    def __init__(self, options: dict[str, Any] | None, dropout: float):
        super().__init__()
        self.a, self.dropout, self.b, self.options = nn.Linear(8, 8), nn.Dropout(dropout), nn.Linear(8, 8), options

    def body(self, x: Tensor) -> Tensor:
        return self.b(self.dropout(self.a(x).tanh()))

    def forward(self, x: Tensor) -> Tensor:
        return x + (self.body(x) if self.options is None else checkpoint(self.body, x, **self.options))


class Blocks(nn.Module):
    def __init__(self, options: dict[str, Any] | None, dropout: float = 0.1):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.head = nn.Linear(6, 8), nn.Linear(8, 2)
        self.blocks = nn.Sequential(Block(options, dropout), Block(options, dropout))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x).tanh()))


def trained(
    strategy: str, dropout: float, part: dict[str, Any] | None = None, whole: dict[str, Any] | None = None
) -> list[Any]:
    """What a grower sees and does in some steps, with some parts of the model, or all of it, checkpointed."""
    model, generator = Blocks(part, dropout), torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    grower = ng.Grower(model, optimizer, strategy, max_width=12)
    torch.manual_seed(5)
    for _ in range(12):
        x = torch.randn(64, 6, generator=generator)
        target = torch.stack([x[:, 0] * x[:, 1], x[:, 2].sin()], 1)
        x.requires_grad_()
        output = model(x) if whole is None else checkpoint(model, x, **whole)
        optimizer.zero_grad()
        (output - target).square().mean().backward()
        optimizer.step()
        grower.step()
    return [grower.widths, [(seen.step, seen.width, seen.metric) for seen in grower.history.observations]]


@pytest.mark.parametrize("strategy", ["need", "gradmax"])
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("where", ["part", "whole"])
def test_checkpointing_changes_nothing(strategy: str, reentrant: bool, where: str) -> None:
    # Where blocks run twice, would-be neurons run in the whole model, where dropout draws other numbers for them.
    dropout = 0.0 if (strategy, reentrant, where) == ("need", True, "part") else 0.1
    expected = trained(strategy, dropout)
    assert {width for _, width, metric in expected[1] if metric is not None} >= {"stem", "blocks.0.a", "blocks.1.a"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert trained(strategy, dropout, **{where: {"use_reentrant": reentrant}}) == expected


def test_two_passes_before_the_backward_pass_are_told_apart() -> None:
    seen = []
    for options in (None, {"use_reentrant": True}):
        model = Blocks(options).double()
        optimizer = torch.optim.SGD(model.parameters())
        grower = ng.Grower(model, optimizer, "need")
        torch.manual_seed(5)
        x = torch.randn(2, 20, 6, generator=torch.Generator().manual_seed(1)).double()
        model(x[0]).square().mean().backward()  # the widths are found
        first, second = (model(each).square().mean() for each in x)
        first.backward()
        second.backward()
        (layer,) = (layer for layer in grower.layers if layer.name == "blocks.0.a")
        pairs = sorted((pair for own in layer.records for pair in own.pairs), key=lambda pair: float(pair.D.sum()))
        assert len(pairs) == 3
        seen.append([(pair.H_prev, pair.H, pair.D) for pair in pairs])
    torch.testing.assert_close(seen[1], seen[0])


def test_what_is_not_computed_again_is_named() -> None:
    remedy = r"blocks\.0\.b, blocks\.1\.b ran without gradients .* pass use_reentrant=False"
    with pytest.warns(UserWarning, match=remedy):
        trained("need", 0.1, {"use_reentrant": True, "preserve_rng_state": False})  # with other neurons dropped
