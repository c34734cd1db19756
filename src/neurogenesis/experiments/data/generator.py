"""Generated data with a known number of independent features."""

from __future__ import annotations

from functools import partial

import torch

from .samples import Data

SAMPLES, FEATURES = 5000, 64


def generated(features: int, seed: int) -> Data:
    """5000 samples of two classes with 64 features, of which the first `features` are independent.

    Independent features are standard normal. The others are linear combinations of them with standard normal
    coefficients, so their standard deviation is about the square root of `features`. The class is 1 where

        0.9 * (sum of all features) + 0.1 * (standard normal noise)

    is above its mean. The last 10 % of the samples are for testing.

    Example:
        >>> data = generated(features=8, seed=1)
        >>> data.train[0].shape, data.test[0].shape, data.classes
        (torch.Size([4500, 64]), torch.Size([500, 64]), 2)
    """
    if not 1 <= features <= FEATURES:
        raise ValueError(f"expected 1 to {FEATURES} independent features, not {features}")
    normal = partial(torch.randn, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    independent = normal(SAMPLES, features)
    inputs = torch.cat([independent, independent @ normal(features, FEATURES - features)], dim=1)
    response = 0.9 * inputs.sum(1) + 0.1 * normal(SAMPLES)
    inputs, labels = inputs.float(), (response > response.mean()).long()
    train = SAMPLES - SAMPLES // 10
    return Data((inputs[:train], labels[:train]), (inputs[train:], labels[train:]), classes=2)
