"""Growing under Accelerate: `prepare`, `accumulate` and mixed precision need nothing; checkpoints need one line."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

from torch import nn

from ..growing.grower import Grower
from ..structure.saved_sizes import SavedSizes
from .checkpoints import KEY, numbered, read_directory, resize_model
from .growers import growth_of


class Accelerator(Protocol):
    """The interface of ``accelerate.Accelerator`` that is used here."""

    is_main_process: bool

    def register_for_checkpointing(self, *objects: Any) -> None: ...
    def register_save_state_pre_hook(self, hook: Any) -> Any: ...
    def register_load_state_pre_hook(self, hook: Any) -> Any: ...
    def unwrap_model(self, model: Any) -> Any: ...


def register_for_checkpointing(accelerator: Accelerator, grower: Grower) -> None:
    """Save and load a grower, with the sizes of widths, in ``accelerator.save_state`` and ``load_state``.

    ``accelerator.register_for_checkpointing(grower)`` alone would load the weights before the model is resized. This
    function resizes it first, so that training goes on as if it had not stopped.

    Args:
        accelerator: the accelerator that prepared the model.
        grower: the grower, created before or after ``prepare``.

    Example:
        >>> import tempfile, torch, neurogenesis as ng
        >>> from accelerate import Accelerator
        >>> from neurogenesis.integrations.accelerate import register_for_checkpointing
        >>> def start():
        ...     model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        ...     accelerator, optimizer = Accelerator(cpu=True), torch.optim.Adam(model.parameters())
        ...     model, optimizer = accelerator.prepare(model, optimizer)
        ...     grower = ng.Grower(model, optimizer, "north-random", max_width=10, buffer=64)
        ...     register_for_checkpointing(accelerator, grower)
        ...     return accelerator, model, optimizer, grower
        >>> accelerator, model, optimizer, grower = start()
        >>> for _ in range(3):
        ...     accelerator.backward(model(torch.randn(64, 4)).square().mean())
        ...     optimizer.step()
        ...     events = grower.step()
        >>> directory = tempfile.mkdtemp()
        >>> path = accelerator.save_state(directory)
        >>> accelerator, model, optimizer, grower = start()
        >>> accelerator.load_state(directory)
        >>> grower.widths
        {'0': 10}
    """

    def number_of(models: Sequence[nn.Module]) -> int:
        for number, model in enumerate(models):
            if accelerator.unwrap_model(model) is grower.model:
                return number
        raise ValueError("the accelerator has not prepared the grower's model: pass it to accelerator.prepare() first")

    def save_sizes(models: Sequence[nn.Module], weights: Any, directory: str) -> None:
        path = Path(directory) / numbered(f"{KEY}.json", number_of(models))
        if accelerator.is_main_process:
            SavedSizes.of(grower.model).write(path)

    def resize(models: Sequence[nn.Module], directory: str) -> None:
        number = number_of(models)
        sizes = Path(directory) / numbered(f"{KEY}.json", number)
        if not sizes.exists():
            raise FileNotFoundError(f"{sizes} does not exist: it was not saved with this grower registered")
        resize_model(grower.model, *read_directory(Path(directory), number), optimizer=grower.optimizers)

    growth = SimpleNamespace(state_dict=partial(growth_of, grower), load_state_dict=grower.load_state_dict)
    accelerator.register_for_checkpointing(growth)
    accelerator.register_save_state_pre_hook(save_sizes)
    accelerator.register_load_state_pre_hook(resize)
