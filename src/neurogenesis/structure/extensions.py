"""Extensions for the layers of other libraries, which fix sizes or store them where operations do not show it.

The module that registers an extension is imported when a model has layers of its library.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from importlib import import_module
from typing import Protocol

from torch import nn

from .axes import Structure

_HOMES = {  # the module that registers an extension, by library
    "peft": "neurogenesis.integrations.peft",
    "transformers": "neurogenesis.integrations.configs",
}
_REGISTERED: list[Extension] = []


class Operation(Protocol):
    """A reversible change; `commit` completes it once all operations have been applied."""

    def apply(self) -> None: ...
    def revert(self) -> None: ...
    def commit(self) -> None: ...


class Extension(Protocol):
    """Knows the layers of another library."""

    def limit(self, model: nn.Module, structure: Structure) -> None:
        """Fix sizes that operations would allow to change, and add to `structure.complete`; called to find widths."""

    def idle(self, model: nn.Module) -> Container[str]:
        """Names of parameters that no input uses as long as they are not switched on."""

    def follow(self, model: nn.Module) -> Sequence[Operation]:
        """Operations that are applied after each resize of a model's tensors, and reverted with it."""

    def settle(self, model: nn.Module) -> None:
        """Called once surgery by hand is complete; it must not fail."""


def register(extension: Extension) -> None:
    """Use an extension from now on."""
    _REGISTERED.append(extension)


def extensions(model: nn.Module) -> list[Extension]:
    """The extensions for a model."""
    for library in libraries_of(model) & _HOMES.keys():
        import_module(_HOMES[library])
    return _REGISTERED


def libraries_of(model: nn.Module) -> set[str]:
    """The names of the libraries that the classes of a model's modules are from."""
    return {type(module).__module__.partition(".")[0] for module in model.modules()}
