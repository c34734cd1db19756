"""The state of a layer at one gradient step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from ..structure.fills import FanIn
from .measurements import Measurement
from .processes import ALONE, Processes
from .samples import Samples
from .untrained import Untrained

LossWith = Callable[[Mapping[tuple[str, int], Tensor]], float]


@dataclass(frozen=True)
class StepContext:
    """The state of a layer that changes from step to step.

    Args:
        step: number of gradient steps taken.
        seed: seed of the layer's random numbers at this step.
        find_fan_ins: computes the distribution of random fan-ins, by parameter.
        loss_with: maps the values of one new neuron to the loss with it; None if the loss cannot be evaluated again.
        samples: the samples of the passes since the last step, and how many there are in the training set.
        measurement: the model on its latest inputs; None if it is not being looked at.
        untrained: the model before training, until every layer has been measured in it.
        processes: the processes that train the model together.
    """

    step: int = 0
    seed: int = 0
    find_fan_ins: Callable[[], Mapping[str, FanIn]] = dict
    loss_with: LossWith | None = None
    samples: Samples = field(default_factory=Samples)
    measurement: Measurement | None = None
    untrained: Untrained | None = None
    processes: Processes = ALONE

    @cached_property
    def fan_ins(self) -> Mapping[str, FanIn]:
        """Distribution of random fan-ins, by parameter."""
        return self.find_fan_ins()
