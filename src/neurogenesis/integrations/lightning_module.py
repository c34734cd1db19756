"""Functions of `GrowerCallback` on a LightningModule and its Trainer: submodules, averages, the loss, hooks."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.utils._pytree import tree_map_only

from ..structure.running import restoring_attributes

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer


def submodule(pl_module: LightningModule, path: str) -> nn.Module:
    """The submodule at a path; raises ValueError if there is none."""
    try:
        return pl_module.get_submodule(path)
    except AttributeError:
        names = ", ".join(repr(name) for name, _ in pl_module.named_children())
        raise ValueError(f"module={path!r}: {type(pl_module).__name__} has no such submodule; it has {names}") from None


def path_of(module: nn.Module, pl_module: LightningModule) -> str:
    paths: dict[int, str] = {id(each): path for path, each in pl_module.named_modules()}
    return paths[id(module)]


def averages_of(trainer: Trainer) -> list[nn.Module]:
    """Averaged copies of the LightningModule that callbacks of its Trainer hold."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    kept = [(name, value) for callback in callbacks for name, value in vars(callback).items()]
    wrapped = [value.module for _, value in kept if isinstance(value, AveragedModel)]
    plain = [value for name, value in kept if name == "_average_model" and not isinstance(value, AveragedModel)]
    module = trainer.lightning_module
    return [average for average in (*wrapped, *plain) if type(average) is type(module)]


def averages_in(pl_module: LightningModule, module: nn.Module) -> dict[str, AveragedModel]:
    """Averages of a submodule inside a LightningModule, by path: those of the same class and shapes."""
    if module is pl_module:
        return {}

    def kind(of: nn.Module) -> tuple[type, dict[str, torch.Size]]:
        return type(of), {name: parameter.shape for name, parameter in of.named_parameters()}

    averages = {path: each for path, each in pl_module.named_modules() if isinstance(each, AveragedModel)}
    return {path: each for path, each in averages.items() if kind(each.module) == kind(module)}


def on_device(state: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """A state with all tensors on a device: Lightning reads checkpoints on the CPU."""
    moved: dict[str, Any] = tree_map_only(Tensor, lambda tensor: tensor.to(device), state)
    return moved


def loss_again(trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> Callable[[], Any] | None:
    """A function that computes the loss of a batch, for strategies that try neurons; None if steps are manual."""
    if not pl_module.automatic_optimization:
        return None
    parameters = inspect.signature(pl_module.training_step).parameters.values()
    takes_index = len(parameters) > 1 or any(each.kind is each.VAR_POSITIONAL for each in parameters)
    arguments = (batch, batch_idx) if takes_index else (batch,)

    def loss() -> Any:
        with trainer.precision_plugin.train_step_context(), silent(pl_module), restoring_attributes(pl_module):
            output = pl_module.training_step(*arguments)
        return output["loss"] if isinstance(output, Mapping) else output

    return loss


@contextmanager
def silent(pl_module: LightningModule) -> Iterator[None]:
    """Disable the logging methods of a LightningModule."""
    attributes, names = vars(pl_module), ("log", "log_dict")
    before = {name: attributes[name] for name in names if name in attributes}
    attributes.update({name: lambda *args, **kwargs: None for name in names})
    try:
        yield
    finally:
        for name in names:
            del attributes[name]
        attributes.update(before)


class BeforeHook:
    """Calls a function before a hook of one LightningModule; copies and pickles of the module have the plain hook."""

    def __init__(self, module: LightningModule, name: str, action: Callable[[dict[str, Any]], None]):
        self.module, self.name, self.action = module, name, action
        self.own: Any = getattr(module, name)
        self.removed = False
        setattr(module, name, self)

    def __call__(self, checkpoint: dict[str, Any]) -> Any:
        if not self.removed:
            self.action(checkpoint)
        return self.own(checkpoint)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.own, memo)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.module, self.name)

    def remove(self) -> None:
        """Restore the hook of the module, once those that were added later are removed too."""
        self.removed = True
        attributes = vars(self.module)
        while isinstance(present := attributes.get(self.name), BeforeHook) and present.removed:
            del attributes[self.name]
            if getattr(self.module, self.name) != present.own:
                attributes[self.name] = present.own
