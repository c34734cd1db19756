"""Run a model without side effects: hooks ignore the run, and attributes and random states are restored."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from .kept import kept_of
from .randomness import random_state_restored


@contextmanager
def internal_run(model: nn.Module) -> Iterator[None]:
    """Mark runs of a model as internal: hooks that record activations ignore them."""
    kept = kept_of(model)
    if kept.internal_run:
        yield
        return
    kept.internal_run = True
    try:
        with warnings.catch_warnings():  # of reentrant activation checkpointing, which is right only in training passes
            warnings.filterwarnings("ignore", "None of the inputs have requires_grad=True")
            yield
    finally:
        kept.internal_run = False


def is_internal_run(model: nn.Module) -> bool:
    """Whether the library is running the model."""
    return kept_of(model).internal_run


# Training mode changes only the values these modules compute, and some of them reject small batches.
_VALUES_ONLY = (_BatchNorm, _InstanceNorm, _DropoutNd)


@contextmanager
def preserved(model: nn.Module, training: bool) -> Iterator[None]:
    """Set training mode; on exit, restore all attributes of all modules and the random state."""
    fastpath = torch.backends.mha.get_fastpath_enabled()
    with restoring_attributes(model):
        for module in model.modules():
            module.training = training and not isinstance(module, _VALUES_ONLY)
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            with random_state_restored(model), torch.compiler.set_stance("force_eager"):
                yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fastpath)


@contextmanager
def restoring_attributes(model: nn.Module) -> Iterator[None]:
    """On exit, restore all attributes and hooks of all modules, and what their lists, sets and dicts hold.

    Some modules keep what they compute, such as biases by position, for later runs.
    """
    modules = list(model.modules())
    saved = [dict(vars(module)) for module in modules]
    held = [(own, own.copy()) for each in saved for own in each.values() if isinstance(own, list | set | dict)]
    registered = [[dict(getattr(module, kind)) for kind in _REGISTRIES] for module in modules]
    try:
        yield
    finally:
        for own, contents in held:
            own.clear()
            (own.extend if isinstance(own, list) else own.update)(contents)
        for module, attributes, registries in zip(modules, saved, registered, strict=True):
            vars(module).clear()
            vars(module).update(attributes)
            for kind, contents in zip(_REGISTRIES, registries, strict=True):
                getattr(module, kind).clear()
                getattr(module, kind).update(contents)


# Hooks, too: Transformers registers some at the first pass, and notes in an attribute that it has.
_REGISTRIES = (
    "_parameters _buffers _modules _forward_pre_hooks _forward_pre_hooks_with_kwargs _forward_hooks "
    "_forward_hooks_with_kwargs _forward_hooks_always_called _backward_pre_hooks _backward_hooks"
).split()


def constant_calls(module: nn.Module) -> int:
    """The number of calls of a module, in a pass of its model, before the first that depends on the model's input.

    0 if none depends on it. An example is a layer that computes a norm of its own weights before it is used.
    """
    return kept_of(module).constant_calls


def note_constant_calls(module: nn.Module, count: int) -> None:
    """Set the number of calls that `constant_calls` returns."""
    kept_of(module).constant_calls = count
