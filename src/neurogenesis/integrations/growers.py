"""Functions that the integrations share: states of growers, optimizers of a module, the size of the training set."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..growing.grower import Grower


def growth_of(grower: Grower) -> dict[str, Any]:
    """The state of a grower without the sizes of widths, which are saved with the model."""
    return {key: value for key, value in grower.state_dict().items() if key != "sizes"}


def optimizers_of(module: nn.Module, optimizers: Iterable[Optimizer]) -> list[Optimizer]:
    """The optimizers that hold parameters of a module."""
    own = set(map(id, module.parameters()))
    held = {each: {id(one) for group in each.param_groups for one in group["params"]} for each in optimizers}
    return [each for each, parameters in held.items() if not own.isdisjoint(parameters)]


def training_samples(loader: Any) -> int | None:
    """The number of samples that a data loader draws from; None if unknown, as for a stream.

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
