"""The shapes of data sets, without reading them. Nothing here imports torch: the command's help must be quick."""

from __future__ import annotations

SHAPES: dict[str, tuple[int, tuple[int, ...], int]] = {
    "digits": (1348, (64,), 10),
    "generated": (4500, (64,), 2),
    "mnist": (60_000, (784,), 10),
    "fashion-mnist": (60_000, (784,), 10),
    "cifar10": (50_000, (3, 32, 32), 10),
    "cifar100": (50_000, (3, 32, 32), 100),
    "stdlib": (66_000, (64,), 97),
    "tabular/diabetes": (309, (10,), 1),
    "tabular/cancer": (398, (30,), 2),
    "tabular/wine": (124, (13,), 3),
    "tabular/friedman1": (1750, (10,), 1),
    "tabular/friedman2": (1750, (4,), 1),
    "tabular/friedman3": (1750, (4,), 1),
    "tabular/digits": (1257, (64,), 10),
    "tabular/random": (630, (10,), 1),
}
"""The number of training samples, the shape of a sample, and the number of classes, or 1 if targets are numbers."""
