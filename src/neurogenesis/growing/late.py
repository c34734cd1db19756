"""Layers that no example has used: their first call is noticed, and they are resized as the others have been since."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import nn

from ..passes.checkpointing import saving_apart
from ..passes.replay import ModelCall
from ..passes.unused import UnusedLayers
from ..structure.axes import Structure
from ..structure.completing import Resize, more_widths
from ..structure.finding import publish
from ..structure.modes import ordinary_tensors
from ..structure.widths import Widths
from ..surgery.late import resize_late_layers
from .choosing import as_example
from .trained import TrainedModel

_SEARCHES = 20  # at most, for layers that values decide on


class LateLayers:
    """Waits for the first call of layers that no example has used.

    If values decide what runs, a trace of the same pass may run something else, so that the layer could not be resized
    in its call; but then no width has grown that it may read, and the widths can be found again later, by `search`.

    Args:
        trained: the model.
        tie: groups of patterns of widths that grow together.
    """

    def __init__(self, trained: TrainedModel, tie: Sequence[str | Sequence[str]]):
        self.model, self.tie, self._trained = trained.model, tie, trained
        self.calls: list[ModelCall] = []  # in which layers were first used, and have been resized
        self._known: Widths | None = None
        self._completed = False  # whether widths have been found that `take` has not returned
        self._noticed: ModelCall | None = None  # in which a layer was called, to search for later
        self._searches = 0  # without success
        self._hooks: UnusedLayers | None = None

    def watch(self, known: Widths, noticed: bool) -> None:
        """Notice when a layer is called that no example has used.

        Args:
            known: the widths that are known.
            noticed: whether calls are noticed: a hook would break a graph, and several processes would have to resize a
                layer together, though only one may call it.
        """
        self.remove()
        self._known = known
        late = known.structure.not_called if noticed and self._searches < _SEARCHES else ()
        self._hooks = UnusedLayers(self.model, late, self._on_call)

    @property
    def pending(self) -> bool:
        """Whether a layer has been called since the last `take` and `search`."""
        return self._completed or self._noticed is not None

    def take(self) -> Widths | None:
        """The widths with layers that have been called since the last time; None if there are none."""
        found, self._completed = self._known if self._completed else None, False
        return found

    def search(self) -> Widths | None:
        """Find the widths in the pass in which values led to the call of a layer; None if there are no more."""
        call, self._noticed = self._noticed, None
        if call is None:
            return None
        assert self._known is not None
        known = self._known.structure
        found, resizes = self._more_widths(known, call)
        if found.structure.unused < known.unused:
            return self._resized(found, known, resizes, call)
        self._searches += 1  # it was not used in the trace
        self.watch(self._known, noticed=True)
        return None

    def start_again(self) -> None:
        """Forget all widths and calls."""
        self.remove()
        self.calls, self._known, self._completed, self._noticed, self._searches = [], None, False, None, 0

    def remove(self) -> None:
        if self._hooks is not None:
            self._hooks.remove()

    @torch.no_grad()
    def _on_call(self, module: nn.Module, call: ModelCall) -> None:
        """Resize a layer that is about to run, and find the widths with it, or note the call."""
        assert self._known is not None
        known = self._known.structure
        if known.by_values:
            self._noticed = self._noticed or call
            return
        with ordinary_tensors():
            found, resizes = self._more_widths(known, call)
            if not {id(own) for own in module.parameters()}.isdisjoint(
                id(own) for name, own in self.model.named_parameters() if name in found.structure.unused
            ):
                raise ValueError(
                    f"{type(module).__name__} is used in this pass for the first time, but not when the pass is run "
                    "again, so that it cannot be resized: pass a list of inputs that together use all layers to the "
                    "Grower, as example=[...]"
                )
            resized = self._resized(found, known, resizes, call)
        self._completed = True
        self.watch(resized, noticed=True)

    def _more_widths(self, known: Structure, call: ModelCall) -> tuple[Widths, list[Resize]]:
        with ordinary_tensors(), warnings.catch_warnings(), torch.enable_grad(), saving_apart():
            warnings.filterwarnings("ignore", "the example does not use")  # which is known
            return more_widths(self.model, known, as_example(self.model, call), self.tie)

    def _resized(self, found: Widths, known: Structure, resizes: Sequence[Resize], call: ModelCall) -> Widths:
        """Resize the layers that are new in a structure; the widths are then those of the model."""
        with self._trained.surgery() as surgery:
            resize_late_layers(surgery, found, known.unused, resizes)
        self.calls.append(call)
        return publish(found, self.model)
