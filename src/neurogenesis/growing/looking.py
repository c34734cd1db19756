"""A look: what was recorded is checked, processes agree on it, and the trigger decides about each layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..layer import Layer
from ..passes.buffers import Buffer
from ..passes.measurements import Measurement
from ..passes.processes import Processes
from ..strategies import Strategy
from ..triggers import Decision
from .budget import rounded_up
from .settings import Settings


@dataclass(frozen=True)
class Request:
    """A layer that should grow, why, and by how many neurons."""

    layer: Layer
    decision: Decision
    count: int


def clear_stale(layers: Sequence[Layer]) -> bool:
    """Clear what was recorded of layers whose inputs or sizes have changed since; returns whether there are any."""
    stale = [layer for layer in layers if any(record.stale for record in layer.records)]
    for layer in stale:
        for record in layer.records:
            record.clear()
    return bool(stale)


def shared_inputs(
    layers: Sequence[Layer], buffer: Buffer, processes: Processes, *, kept: bool, needed: bool
) -> Measurement | None:
    """The model on its latest inputs, of all processes; None if they were lost in some process.

    Records of consumers that no gradient has reached in some process are cleared.

    Args:
        layers: the layers that are looked at.
        buffer: the inputs.
        processes: the processes that train the model together.
        kept: whether inputs are kept.
        needed: whether the strategy uses activations, so that inputs must not be lost.
    """
    lost = buffer.drop_overwritten() and needed
    recorded = [record for layer in layers for record in layer.records]
    try:
        intact, known, *present = processes.least(
            [not lost, buffer.known, *(bool(record.pairs) for record in recorded)]
        )
    except RuntimeError as error:
        raise RuntimeError(
            f"grower.step() lost the other processes ({error}): look for an earlier error there, and call "
            "grower.step() after every gradient step in every process"
        ) from error
    if not intact:
        return None
    for record, in_all in zip(recorded, present, strict=True):
        if not in_all:
            record.clear()
    names = [layer.name for layer in layers]
    return buffer.shared_measurement(names, bool(known)) if kept else buffer.measurement(names)


def check_closure(strategy: Strategy, layers: Sequence[Layer], closure: object) -> None:
    """Raise TypeError if the loss must be evaluated again, but cannot be."""
    for layer in layers if closure is None else ():
        if strategy.initialization.needs_loss(layer):
            raise TypeError(
                f"{layer.name}: this strategy evaluates the loss again: call grower.step(closure) with a function that "
                "runs the model and returns the loss"
            )


def request(layer: Layer, decision: Decision, settings: Settings) -> Request:
    """What a layer gets of what its trigger asks for: a multiple, within the maximum."""
    count = rounded_up(decision.count, layer.size, settings.round_to, layer.maximum) if decision.count > 0 else 0
    return Request(layer, decision, max(0, count))


class SampleNotices:
    """Says whether there are enough samples to measure layers."""

    def __init__(self) -> None:
        self.measured: set[str] = set()  # layers whose activations have been measured
        self._few: set[str] = set()  # layers with more neurons than samples, of which that has been said

    def look(self, layers: Sequence[Layer]) -> tuple[str | None, str | None]:
        """What to say if nothing can be measured yet, and of layers with more neurons than samples."""
        waiting = {layer.name: layer.waiting for layer in layers}
        self.measured |= {name for name, text in waiting.items() if text is None}
        listed = "; ".join(f"{name}: {text}" for name, text in waiting.items())
        nothing = f"nothing can be measured yet ({listed}): use larger batches or grower.fill()"
        few = {}
        for layer in layers:
            measurement = None if waiting[layer.name] else layer.measurement
            seen = None if measurement is None else measurement.activations(layer.name)
            if seen is not None and seen.columns < layer.size and layer.name not in self._few:
                few[layer.name] = f"{layer.name} ({layer.size} on {seen.columns})"
        self._few |= few.keys()
        limited = (
            f"widths with more neurons than samples, whose rank is limited by the samples: {', '.join(few.values())}: "
            "use larger batches or a larger buffer"
        )
        return nothing if all(waiting.values()) else None, limited if few else None
