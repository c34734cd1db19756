"""The networks of the paper: VGG-11 and WRN-28-1 for images of 32 x 32 pixels, and dense networks."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import torch
from torch import Tensor, nn

import neurogenesis as ng

VGG11 = {"conv1": 64, "conv2": 128, "conv3": 256, "conv4": 256, "conv5": 512, "conv6": 512, "conv7": 512, "conv8": 512,
         "dense1": 4096, "dense2": 4096}  # fmt: skip
WRN28 = {"stem": 16, "group1.0.conv1": 16, "group2.0.conv1": 32, "group3.0.conv1": 64}


def scaled(standard: Mapping[str, int], scale: float) -> dict[str, int]:
    """The sizes of a standard network times a factor."""
    return {name: round(scale * size) for name, size in standard.items()}


def mlp(*sizes: int) -> nn.Sequential:
    """Dense layers `hidden1`, `hidden2`, ..., `output` with ReLUs between them; the first size is the input's."""
    model = nn.Sequential()
    for number, (before, after) in enumerate(pairwise(sizes[:-1]), 1):
        model.add_module(f"hidden{number}", nn.Linear(before, after))
        model.add_module(f"relu{number}", ng.nn.ReLU())
    model.add_module("output", nn.Linear(sizes[-2], sizes[-1]))
    return model


def vgg11(scale: float = 1.0, classes: int = 10, widths: Mapping[str, int] | None = None) -> nn.Sequential:
    """VGG-11 without normalization; `scale` multiplies all sizes, unless `widths` gives them."""
    model = nn.Sequential()
    before = 3
    for name, after in (widths or scaled(VGG11, scale)).items():
        if name == "dense1":
            model.add_module("flatten", nn.Flatten())
        dense = name.startswith("dense")
        model.add_module(name, nn.Linear(before, after) if dense else nn.Conv2d(before, after, 3, padding=1))
        model.add_module(f"relu_{name}", ng.nn.ReLU())
        if name in ("conv1", "conv2", "conv4", "conv6", "conv8"):
            model.add_module(f"pool_{name}", nn.MaxPool2d(2))
        before = after
    model.add_module("output", nn.Linear(before, classes))
    return model


class Block(nn.Module):
    """A pre-activation residual block; the first one of a group has a projection to the group's width."""

    def __init__(self, before: int, after: int, stride: int, first: bool):
        super().__init__()
        self.norm1, self.relu1 = nn.BatchNorm2d(before), ng.nn.ReLU()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm2, self.relu2 = nn.BatchNorm2d(after), ng.nn.ReLU()
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.shortcut = nn.Conv2d(before, after, 1, stride, bias=False) if first else None

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu1(self.norm1(x))
        y: Tensor = self.conv2(self.relu2(self.norm2(self.conv1(h))))
        return y + (x if self.shortcut is None else self.shortcut(h))


def wrn28(
    scale: float = 1.0, classes: int = 10, widths: Mapping[str, int] | None = None, blocks: int = 4
) -> nn.Sequential:
    """WRN-28-1: a convolution, three groups of four residual blocks, or as many as `blocks`, and a linear layer.

    `scale` multiplies all sizes, unless `widths` gives them.
    """
    sizes = list((widths or scaled(WRN28, scale)).values())
    model = nn.Sequential()
    model.add_module("stem", nn.Conv2d(3, sizes[0], 3, 1, 1, bias=False))
    for number, (before, after) in enumerate(pairwise(sizes), 1):
        first = Block(before, after, 2 if number > 1 else 1, first=True)
        others = (Block(after, after, 1, False) for _ in range(blocks - 1))
        model.add_module(f"group{number}", nn.Sequential(first, *others))
    model.add_module("norm", nn.BatchNorm2d(sizes[-1]))
    model.add_module("relu", ng.nn.ReLU())
    model.add_module("pool", nn.AdaptiveAvgPool2d(1))
    model.add_module("flatten", nn.Flatten())
    model.add_module("output", nn.Linear(sizes[-1], classes))
    return model


@torch.no_grad()
def xavier(model: nn.Module) -> nn.Module:
    """Draw weights from Xavier's uniform distribution and set biases to zero, as in the paper."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                module.bias.zero_()
    return model
