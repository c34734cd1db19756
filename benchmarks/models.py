"""The networks of the paper: VGG-11 and WRN-28-1 for 32 x 32 images, and plain dense ones."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

import neurogenesis as ng


def mlp(*sizes: int) -> nn.Sequential:
    """Dense layers of the given sizes, with rectifiers between."""
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), ng.nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def vgg11(scale: float = 1.0, classes: int = 10) -> nn.Sequential:
    """VGG-11 without normalisation; `scale` multiplies all widths."""
    layers: list[nn.Module] = []
    channels = 3
    for width in (64, "pool", 128, "pool", 256, 256, "pool", 512, 512, "pool", 512, 512, "pool"):
        if isinstance(width, str):
            layers.append(nn.MaxPool2d(2))
        else:
            width = round(scale * width)
            layers += [nn.Conv2d(channels, width, 3, padding=1), ng.nn.ReLU()]
            channels = width
    hidden = round(scale * 4096)
    layers += [nn.Flatten(), nn.Linear(channels, hidden), ng.nn.ReLU(), nn.Linear(hidden, hidden), ng.nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden, classes))


class Block(nn.Module):
    """A pre-activation residual block."""

    def __init__(self, before: int, after: int, stride: int):
        super().__init__()
        self.norm1, self.relu1 = nn.BatchNorm2d(before), ng.nn.ReLU()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm2, self.relu2 = nn.BatchNorm2d(after), ng.nn.ReLU()
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.shortcut = nn.Conv2d(before, after, 1, stride, bias=False) if (before, stride) != (after, 1) else None

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu1(self.norm1(x))
        y: Tensor = self.conv2(self.relu2(self.norm2(self.conv1(h))))
        return y + (x if self.shortcut is None else self.shortcut(h))


def wrn28(scale: float = 1.0, classes: int = 10) -> nn.Sequential:
    """WRN-28-1: a convolution, three groups of four residual blocks, and a linear layer."""
    widths = [round(scale * width) for width in (16, 16, 32, 64)]
    groups = []
    for number, (before, after) in enumerate(pairwise(widths)):
        blocks = [Block(before if i == 0 else after, after, 2 if i == 0 and number else 1) for i in range(4)]
        groups.append(nn.Sequential(*blocks))
    return nn.Sequential(
        nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), *groups, nn.BatchNorm2d(widths[-1]), ng.nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes),
    )  # fmt: skip
