"""Load a data set by name."""

from __future__ import annotations

from pathlib import Path

import torch

from ..errors import unknown_name
from .fetching import cache, complete_directory, import_optional
from .samples import Data
from .sources import SOURCES


def load(name: str, root: Path | None = None) -> Data:
    """A data set by name: "digits", "mnist", "fashion-mnist", "cifar10" or "cifar100".

    Images have values from 0 to 1. Those of CIFAR are 3 x 32 x 32, others are flat.

    Args:
        name: the name.
        root: the directory of data sets; missing files are downloaded into it.
    """
    if name == "digits":
        return _digits()
    if name not in SOURCES:
        raise unknown_name("data set", name, names())
    return SOURCES[name].read(complete_directory(name, cache() if root is None else root))


def download(name: str, root: Path | None = None) -> None:
    """Download the missing files of a data set, if it has any, and verify all of them."""
    if name in SOURCES:
        complete_directory(name, cache() if root is None else root)


def names() -> list[str]:
    """The names that `load` accepts.

    Example:
        >>> names()
        ['digits', 'mnist', 'fashion-mnist', 'cifar10', 'cifar100']
    """
    return ["digits", *SOURCES]


def _digits() -> Data:
    images, labels = import_optional("sklearn.datasets").load_digits(return_X_y=True)
    everything = torch.as_tensor(images / 16, dtype=torch.float32), torch.as_tensor(labels, dtype=torch.int64)
    return Data(everything, everything, classes=10).holding_out(0.25, seed=0)
