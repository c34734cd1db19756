"""The model's latest inputs, on which activations are measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from ..structure.widths import Width
from .inputs import Inputs, inputs_of
from .measurements import Measurement, positions_in
from .processes import ALONE, Processes
from .quotas import Quota, Rows
from .replay import ModelCall
from .routes import Route


class Buffer:
    """The latest inputs of the model in this process, as many as measurements need.

    Args:
        model: the model.
        limit: the number of samples in a measurement: items of a batch or, after `count_rows`, rows of activations.
    """

    def __init__(self, model: nn.Module, limit: int):
        self.model = model
        self.quota = Quota(limit)
        self.processes = ALONE  # that train the model together
        self.calls: list[ModelCall] = []
        self._saved_by: int | None = None  # the process that saved the calls, if they were loaded
        self.passes = 0  # number of calls in the process that has the most, at the latest measurement
        self.inputs_overwritten = False  # whether the model or the caller writes into the inputs
        self._modes: list[tuple[nn.Module, bool]] = []

    def add(self, call: ModelCall) -> None:
        """Add the inputs of a call of the model and drop the oldest ones beyond the limit."""
        self.calls.append(call)
        most = self.quota.most_items(self.quota.widths, self.calls, self.processes.count)
        held = sum(each.samples for each in self.calls)
        while self.calls and held - self.calls[0].samples >= most:
            held -= self.calls.pop(0).samples
        self._modes = [(module, module.training) for module in self.model.modules()]

    def watch(self, widths: Mapping[str, tuple[Width, Route]]) -> None:
        """Measure these widths, in place of others."""
        self.quota = replace(self.quota, widths=dict(widths))

    def count_rows(self, call: ModelCall) -> None:
        """Count each position of a sequence as a sample, at the widths that have positions in this call."""
        found = positions_in(self.model, self.quota.widths, call)
        rows = {name: Rows.of(positions, call) for name, positions in found.items()}
        several = {name: each for name, each in rows.items() if each != Rows()}
        self.quota = replace(self.quota, rows={**self.quota.rows, **several})

    def join(self, processes: Processes) -> None:
        """Measure on the inputs of all processes from now on."""
        self.processes = processes
        self._keep_own()

    def _keep_own(self) -> None:
        """Drop calls that were saved by another process, which has them."""
        if not self.processes.take_over(self._saved_by):
            self.calls.clear()
            self._saved_by = self.processes.rank

    @property
    def known(self) -> bool:
        """Whether the other processes know the shapes of the inputs, because they are as at the latest exchange."""
        return self.processes.know(self.calls)

    def measurement(self, names: Sequence[str] = ()) -> Measurement:
        """The current model on the inputs of this process; the widths in `names` are measured together."""
        return self._on(Inputs(tuple(self.calls)), names)

    def shared_measurement(self, names: Sequence[str] = (), known: bool | None = None) -> Measurement:
        """The current model on the inputs of all processes, which tell each other of them.

        Args:
            names: the widths to measure together.
            known: whether the inputs of all processes are `known`; if None, the processes tell each other.
        """
        inputs = inputs_of(tuple(self.calls), self.processes, known)
        self.passes = inputs.passes
        return self._on(inputs, names)

    def _on(self, inputs: Inputs, names: Sequence[str]) -> Measurement:
        return Measurement(self.model, inputs, self.quota, self._modes, names, self.inputs_overwritten)

    @property
    def latest(self) -> ModelCall | None:
        """The latest inputs."""
        return self.calls[-1] if self.calls else None

    def drop_overwritten(self) -> bool:
        """Drop inputs that were modified in place; returns whether that removed all of them."""
        intact = [call for call in self.calls if call.intact]
        lost = bool(self.calls) and not intact
        self.calls[:] = intact
        return lost

    def clear(self) -> None:
        """Discard all inputs."""
        self.calls.clear()

    def forget_widths(self) -> None:
        """Discard all inputs, and measure no widths any more."""
        self.clear()
        self.quota, self.passes = Quota(self.quota.limit), 0

    def state(self) -> dict[str, Any]:
        return {
            "calls": [call.saved for call in self.calls if call.intact],
            "rank": self.processes.rank if self._saved_by is None else self._saved_by,
            "passes": self.passes,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        self.calls[:] = [ModelCall.from_parts(*call) for call in state["calls"]]
        self._saved_by, self.passes = state.get("rank", 0), state.get("passes", len(self.calls))
        self._keep_own()
