"""Small tables of scikit-learn, for classification and regression."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import unknown_name
from .fetching import import_optional
from .samples import Data

SAMPLES = {"friedman1": 2500, "friedman2": 2500, "friedman3": 2500, "random": 900}
"""The number of samples of tables that are generated."""
NOISE = {"friedman1": 1.0, "friedman2": 125.0, "friedman3": 0.1}
TRAINED_PART = 0.7
LEAST_DEVIATION = 0.05  # of an input, relative to its range: inputs that hardly vary are not scaled up


def table(name: str, seed: int) -> Data:
    """A table by name, divided as by `divided`. The targets of `random` are unrelated to its inputs.

    Args:
        name: diabetes, cancer, wine, friedman1, friedman2, friedman3, digits or random.
        seed: seed of the division, and of the samples of Friedman's problems and of `random`.

    Example:
        >>> data = table("random", seed=1)
        >>> data.train[0].shape, data.test[1].shape, data.classes
        (torch.Size([630, 10]), torch.Size([270, 1]), 1)
    """
    if name not in TABLES:
        raise unknown_name("table", name, TABLES)
    inputs, targets = TABLES[name](seed)
    return divided(inputs, targets, seed)


def divided(inputs: Any, targets: Any, seed: int) -> Data:
    """Samples divided at random: 70 % for training.

    Inputs, and targets that are real numbers, have mean 0 and standard deviation 1 in the training part; inputs that
    hardly ever vary, such as pixels at the edge of an image, have a smaller one.

    Args:
        inputs: samples x features.
        targets: a label or a real number for each sample.
        seed: seed of the division.
    """
    inputs, targets = map(torch.as_tensor, (inputs, targets))
    targets = targets if targets.is_floating_point() else targets.long()
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))
    train, test = order.tensor_split([int(TRAINED_PART * len(inputs))])
    inputs = _standardized(inputs, train, LEAST_DEVIATION * (inputs.amax(0) - inputs.amin(0)))
    if targets.is_floating_point():
        targets = _standardized(targets[:, None], train)
    outputs = 1 if targets.is_floating_point() else int(targets.max()) + 1
    return Data((inputs[train], targets[train]), (inputs[test], targets[test]), classes=outputs)


def _standardized(columns: Tensor, train: Tensor, least: Tensor | None = None) -> Tensor:
    deviations = columns[train].std(0)
    if least is not None:
        deviations = deviations.maximum(least)
    scaled: Tensor = (columns - columns[train].mean(0)) / deviations.where(deviations > 0, 1)
    return scaled.float()


def _sklearn(name: str, **options: Any) -> Any:
    return getattr(import_optional("sklearn.datasets"), name)(**options)


def _loaded(name: str) -> Callable[[int], Any]:
    return lambda seed: _sklearn(f"load_{name}", return_X_y=True)


def _friedman(name: str) -> Callable[[int], Any]:
    return lambda seed: _sklearn(f"make_{name}", n_samples=SAMPLES[name], noise=NOISE[name], random_state=seed)


def _random(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(SAMPLES["random"], 10, generator=generator), torch.randn(SAMPLES["random"], generator=generator)


TABLES: dict[str, Callable[[int], Any]] = {
    "diabetes": _loaded("diabetes"),
    "cancer": _loaded("breast_cancer"),
    "wine": _loaded("wine"),
    **{name: _friedman(name) for name in NOISE},
    "digits": _loaded("digits"),
    "random": _random,
}
