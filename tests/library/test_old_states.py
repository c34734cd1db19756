"""States that an earlier version saved still load, and training goes on from them as it did then."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import neurogenesis as ng

DATA = Path(__file__).parents[1] / "data"


@pytest.mark.parametrize("name", ["north-random", "north-integrated", "gradmax"])
def test_a_grower_goes_on_from_an_old_state(name: str) -> None:
    saved = torch.load(DATA / f"{name}.pt", weights_only=True)
    then = torch.load(DATA / f"{name}-then.pt", weights_only=True)
    model = nn.Sequential(nn.Linear(6, 4), ng.nn.ReLU(), nn.Linear(4, 4), ng.nn.ReLU(), nn.Linear(4, 3))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    grower = ng.Grower(model, optimizer, name, max_width=7, buffer=32)
    grower.load_state_dict(saved["grower"])
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    for x, y in list(zip(then["data"], then["labels"], strict=True))[12:]:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        grower.step()
    assert {key: tensor.shape for key, tensor in model.state_dict().items()} == {
        key: tensor.shape for key, tensor in then["model"].items()
    }
    for key, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, then["model"][key], rtol=1e-3, atol=1e-4)
