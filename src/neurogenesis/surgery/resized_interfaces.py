"""Note which interfaces of a model have been resized by hand, and tell the `Grower` that is attached to it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from ..structure.axes import unwrapped
from ..structure.edits import Edit
from ..structure.interfaces import resized_interfaces
from ..structure.kept import kept_of
from .attached import attached_to


class NoteInterfaces:
    """Operation that notes axes with a size of the model's inputs or outputs, so that they are saved with its sizes."""

    def __init__(self, model: nn.Module, places: Sequence[tuple[str, int]], edits: Sequence[Edit]):
        self.model, self.places = unwrapped(model), frozenset(places)
        read = {(edit.tensor, edit.axis) for edit in edits if edit.role == "consumer"}
        self.of_inputs = not read.isdisjoint(places)
        self.before: frozenset[tuple[str, int]] = frozenset()

    def apply(self) -> None:
        self.before = resized_interfaces(self.model)
        kept_of(self.model).resized_interfaces = self.before | self.places

    def revert(self) -> None:
        kept_of(self.model).resized_interfaces = self.before

    def commit(self) -> None:
        """Tell the `Grower`, whose latest inputs have another size, if inputs were resized."""
        if self.of_inputs and (attached := attached_to(self.model)) is not None:
            attached.inputs_resized()
