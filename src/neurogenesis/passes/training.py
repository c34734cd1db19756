"""Notice the training passes of a model, as its user runs them: in training mode, with gradients enabled."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..structure.running import is_internal_run
from ..structure.wrappers import is_redirected
from .checkpointing import inside_backward, places
from .compiled import EagerPasses, PassHook


class TrainingPasses:
    """Hooks on a model for its training passes.

    Args:
        model: the model.
        before: called with the arguments of a pass that begins.
        after: called with the output of the pass.
        unrecorded: called instead of both, with the arguments, while nothing is `recorded`.
        compiled: called with the tensors in the arguments of a pass that runs compiled.
        failed: called with the error of a pass that fails.
        wrapper: the result of `torch.compile(model)`, if the user calls that.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        before: Callable[[Any, Any], None],
        after: Callable[[Any], None],
        unrecorded: Callable[[Any, Any], None],
        compiled: Callable[[Sequence[Tensor]], None],
        failed: Callable[[BaseException], None],
        wrapper: nn.Module | None = None,
    ):
        self.model = model
        self._on_pass, self._on_end, self._on_unrecorded = before, after, unrecorded
        self._on_compiled, self._on_failure = compiled, failed
        self.recorded = True  # whether passes are recorded; otherwise they are only counted, which takes no time
        self._inside = False
        # Reentrant activation checkpointing runs parts of the model, or all of it, without gradients at first.
        self._without_gradients: set[tuple[Any, ...]] = set()
        self._hooks = [PassHook(self._before, observer=self), PassHook(self._after)]
        self._handles: list[Any] = [
            model.register_forward_pre_hook(self._hooks[0], with_kwargs=True),
            model.register_forward_hook(self._hooks[1], always_call=True),
        ]
        self._eager_passes = EagerPasses(model, wrapper)
        self.run_eagerly(True)  # to find the widths before the first pass

    def run_eagerly(self, eager: bool) -> None:
        """Run the next passes eagerly, or compiled if the user compiles the model."""
        for hook in self._hooks:
            hook.eager = eager
        self._eager_passes.switch(eager)

    @property
    def compiled(self) -> bool:
        """Whether the user compiles the model, or modules inside it."""
        return self._eager_passes.compiled

    @property
    def eager(self) -> bool:
        """Whether the next passes run eagerly."""
        return self._hooks[0].eager

    def enter(self, args: Any, kwargs: Any) -> None:
        """Tell of a pass of the model if it is a training pass."""
        if is_internal_run(self.model) or not self.model.training:
            return
        if not torch.is_grad_enabled():
            self._without_gradients.add(places(args, kwargs))
            return
        if not any(parameter.requires_grad for parameter in self.model.parameters()):
            return  # frozen for the time being, as a discriminator while the generator is trained
        if inside_backward():  # activation checkpointing computes a pass again
            where = places(args, kwargs)
            if where not in self._without_gradients:
                return  # it was recorded
            self._without_gradients.discard(where)
        if self._eager_passes.bypassed:
            raise RuntimeError("model.compile() was called after Grower(model, optimizer): call it before")
        self._on_pass(args, kwargs)
        self._inside = True

    def note(self, inputs: Sequence[Tensor]) -> None:
        """Tell of a pass that runs compiled."""
        if not is_internal_run(self.model):
            self._on_compiled(inputs)

    def clear(self) -> None:
        """Forget the passes without gradients."""
        self._without_gradients.clear()

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self.run_eagerly(False)
        self._inside = False
        self.clear()

    def _before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if module is not self.model:
            return
        if not self.recorded:
            if module.training and torch.is_grad_enabled():
                self._on_unrecorded(args, kwargs)
        elif not is_redirected(module):
            self.enter(args, kwargs)

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        if is_internal_run(module):
            return
        if output is None and (error := sys.exc_info()[1]) is not None:
            self._on_failure(error)
        if module is self.model and self._inside:
            self._inside = False
            self._on_end(output)
