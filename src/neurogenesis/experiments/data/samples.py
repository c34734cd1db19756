"""A data set in memory, and parts of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..errors import UsageError


class DataError(UsageError):
    """A data set is missing, damaged, or too small."""


@dataclass(frozen=True)
class Data:
    """Inputs (float32) and targets, for training and for testing: labels (int64) or real numbers (float32, in columns).

    `classes` is the number of the network's outputs: the number of classes, or 1 for regression. Data that differs
    between machines has a digest. The targets of text are those of each position.
    """

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    classes: int
    digest: str | None = None

    def holding_out(self, fraction: float, seed: int) -> Data:
        """Replace the test samples by a random fraction of the training samples, which are then not trained on.

        This is for choosing hyperparameters without using the test samples. A fraction of 0 changes nothing.

        Example:
            >>> from neurogenesis.experiments.data import generated
            >>> data = generated(features=8, seed=1).holding_out(0.1, seed=1)
            >>> len(data.train[1]), len(data.test[1])
            (4050, 450)
        """
        if fraction == 0:
            return self
        inputs, labels = self.train
        count = round(fraction * len(labels))
        if not 0 < count < len(labels):
            raise DataError(f"cannot hold out {count} of {len(labels)} training samples (a fraction of {fraction})")
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
        test, train = order[:count], order[count:]
        return replace(self, train=(inputs[train], labels[train]), test=(inputs[test], labels[test]))

    def first(self, train: int | None = None, test: int | None = None) -> Data:
        """Keep the given numbers of samples from the start of each split; None keeps all.

        Example:
            >>> from neurogenesis.experiments.data import generated
            >>> data = generated(features=8, seed=1).first(100)
            >>> len(data.train[1]), len(data.test[1])
            (100, 500)
        """
        for split, samples, count in (("training", self.train, train), ("test", self.test, test)):
            if count is not None and not 0 < count <= len(samples[1]):
                raise DataError(f"expected a number from 1 to {len(samples[1])} of {split} samples, not {count}")
        (inputs, labels), (test_inputs, test_labels) = self.train, self.test
        return replace(self, train=(inputs[:train], labels[:train]), test=(test_inputs[:test], test_labels[:test]))
