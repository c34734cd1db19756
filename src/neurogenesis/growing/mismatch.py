"""Advice added to torch's own errors about sizes, in a model that has grown."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from ..layer import Layer
from ..passes.replay import Hook
from ..structure.axes import named_tensors
from ..structure.solving import sizes_from_shapes
from ..structure.widths import Widths


class MismatchNote:
    """Adds the widths that differ, and the remedy, to the error of ``model.load_state_dict(state)``.

    Torch collects errors in a list, which only hooks before loading see, and raises when all modules are loaded. The
    list is looked at after loading, so that other hooks may resize the model or change the state before.

    Args:
        model: the model.
        widths: returns its widths, or None while they are not known.
    """

    def __init__(self, model: nn.Module, widths: Callable[[], Widths | None]):
        self._widths = widths
        self._errors: list[str] | None = None
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._prefix = ""
        self._handles = [
            model.register_load_state_dict_pre_hook(Hook(self._before)),  # type: ignore[no-untyped-call]
            model.register_load_state_dict_post_hook(Hook(self._after)),  # type: ignore[no-untyped-call]
        ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _before(self, model: nn.Module, state: Mapping[str, Any], prefix: str, *others: Any) -> None:
        self._prefix, self._errors = prefix, others[-1]
        self._shapes = {
            name: tuple(value.shape)
            for name in named_tensors(model)
            if isinstance(value := state.get(prefix + name), Tensor)
        }

    def _after(self, model: nn.Module, _: Any) -> None:
        errors, self._errors = self._errors, None
        if not any(error.startswith(f"size mismatch for {self._prefix}") for error in errors or ()):
            return
        note = mismatch_note(model, self._shapes, self._widths(), self._prefix.removesuffix("."))
        if errors is not None and note is not None:
            errors.append(note)


def mismatch_note(
    model: nn.Module, shapes: Mapping[str, Sequence[int]], widths: Widths | None, path: str = ""
) -> str | None:
    """Which widths of a model differ from a state and what to do, or None if it is of another architecture.

    Args:
        model: the model.
        shapes: shapes in the state, by the model's names.
        widths: the model's widths, or None if they are not known.
        path: where the model is inside the one that is loaded.
    """
    remedy = "neurogenesis.load_state_dict(model, state)"
    if path:
        remedy = f"neurogenesis.load_state_dict(model.{path}, state) first"
    if widths is None or widths.differs_from(model) is not None:
        return f"If the state was saved from a model that has grown, call {remedy}: it resizes the model."
    try:
        sizes = sizes_from_shapes(widths, shapes)
    except ValueError:
        return None
    differing = [
        f"{name!r} ({size} in the state, {widths[name].size} in the model)"
        for name, size in sizes.items()
        if size != widths[name].size
    ]
    if not differing:
        return None
    listed = ", ".join(differing[:3]) + (f" and {len(differing) - 3} more" if len(differing) > 3 else "")
    return (
        f"The model has been resized since the state was saved: width{'s' if len(differing) > 1 else ''} {listed}. "
        f"Call {remedy}, which resizes it back; or, to go back with optimizer and grower, use neurogenesis.snapshot() "
        "and neurogenesis.restore() instead of state_dict() and load_state_dict()."
    )


def explain_failure(error: BaseException, layers: Sequence[Layer]) -> None:
    """Add a note to an error about sizes in the model's forward, if layers have been resized since the start."""
    changed = [f"{layer.name} from {layer.initial} to {layer.size}" for layer in layers if layer.size != layer.initial]
    if changed and re.search(r"\b(shapes?|sizes?|dimensions?)\b", str(error)) and sys.version_info >= (3, 11):
        error.add_note(
            f"neurogenesis has resized {', '.join(changed)}. If this pass uses a layer or a branch that the "
            "example, or the first batch, did not use, pass inputs that together use all of them: "
            "Grower(..., example=[...])"
        )
