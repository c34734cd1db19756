"""What a trainer's data loader knows about the training set."""

from __future__ import annotations

from typing import Any


def training_samples(loader: Any) -> int | None:
    """The number of samples that a data loader draws from; None if that is not known, as for a stream.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> training_samples(DataLoader(range(7), batch_size=2))
        7
    """
    dataset = getattr(loader, "dataset", None)
    try:
        return len(dataset) or None  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return None
