"""Which entries of a model's parameters are new since a moment, so that they alone can be trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..structure.axes import unwrapped
from ..structure.edits import Edit
from ..structure.kept import kept_of
from .ages.births import Run, edited_runs
from .optimizer_state import Optimizers, as_list


@dataclass
class _Record:
    """The moments at which entries of a parameter were added, along each axis, or all of them at once."""

    parameter: Tensor
    axes: list[list[Run]]
    whole: int = 0


@dataclass
class _Log:
    moment: int = 0  # number of surgeries so far
    records: dict[int, _Record] = field(default_factory=dict)  # by id of the parameter, which they keep alive


def moment(model: nn.Module) -> int:
    """The number of surgeries on a model so far, for `new_parameters`."""
    log: _Log | None = kept_of(unwrapped(model)).surgeries
    return 0 if log is None else log.moment


def note_surgery(model: nn.Module, edits: Sequence[tuple[Tensor, Sequence[Edit]]], new: Sequence[Tensor]) -> None:
    """Note the edits of tensors, and new parameters, of a surgery on a model."""
    kept = kept_of(model)
    log: _Log = kept.surgeries or _Log()
    kept.surgeries = log
    log.moment += 1
    present = {id(own) for own in model.parameters()}
    for tensor, own in edits:
        if id(tensor) in present and own:
            record = log.records.setdefault(id(tensor), _Record(tensor, [[] for _ in range(tensor.ndim)]))
            for edit in own:
                record.axes[edit.axis] = edited_runs(record.axes[edit.axis], edit, log.moment)
    for tensor in new:
        if id(tensor) in present:
            log.records[id(tensor)] = _Record(tensor, [[] for _ in range(tensor.ndim)], log.moment)
    log.records = {key: record for key, record in log.records.items() if key in present}


class NewParameters(Mapping[str, Tensor]):
    """New entries of parameters: for the name of each parameter that has some, a mask that is true where they are."""

    def __init__(self, model: nn.Module, masks: Mapping[str, Tensor]):
        self._model, self._masks = model, dict(masks)

    def __getitem__(self, name: str) -> Tensor:
        return self._masks[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._masks)

    def __len__(self) -> int:
        return len(self._masks)

    @property
    def count(self) -> int:
        """Number of new entries."""
        return sum(int(mask.sum()) for mask in self._masks.values())

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters that have new entries, for an optimizer that trains them alone."""
        named = dict(self._model.named_parameters())
        return [named[name] for name in self._masks]

    def train_alone(self, optimizer: Optimizers = None) -> Frozen:
        """Train new entries alone: other parameters are frozen, and old entries are put back after each step.

        Args:
            optimizer: the optimizers that train the model; needed if parameters are new only in part.

        Returns:
            A handle whose `remove` trains everything again.
        """
        return Frozen(self._model, self._masks, as_list(optimizer))

    def __repr__(self) -> str:
        whole = sum(bool(mask.all()) for mask in self._masks.values())
        return f"NewParameters({self.count:,} entries; {whole} whole parameters, {len(self) - whole} in part)"


def new_parameters(model: nn.Module, since: int = 0) -> NewParameters:
    """The entries of a model's parameters that growing has added since a moment, such as the blocks of `deepen`.

    Args:
        model: the model.
        since: what `moment` returned; by default all that was added since the model was made.

    Example:
        >>> import torch, neurogenesis as ng
        >>> layers = [each for _ in range(2) for each in (torch.nn.Linear(8, 8), torch.nn.ReLU())]
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), *layers, torch.nn.Linear(8, 2))
        >>> plan = ng.deepen(model, "2", 1, example=torch.randn(1, 4))
        >>> new = ng.new_parameters(model)
        >>> new
        NewParameters(72 entries; 2 whole parameters, 0 in part)
        >>> handle = new.train_alone()
        >>> [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        ['6.weight', '6.bias']
    """
    model = unwrapped(model)
    log: _Log | None = kept_of(model).surgeries
    masks = {}
    for name, parameter in model.named_parameters():
        record = None if log is None else log.records.get(id(parameter))
        if record is not None:
            mask = torch.full(parameter.shape, record.whole > since, device=parameter.device)
            for axis, runs in enumerate(record.axes):
                for start, stop, born in runs:
                    if born > since:
                        mask.narrow(axis, start, stop - start).fill_(True)
            if mask.any():
                masks[name] = mask
    return NewParameters(model, masks)


class Frozen:
    """Keeps everything but new entries as it is, until it is removed."""

    def __init__(self, model: nn.Module, masks: Mapping[str, Tensor], optimizers: Sequence[Any]):
        named = dict(model.named_parameters())
        parts = {name: mask for name, mask in masks.items() if not mask.all() and named[name].requires_grad}
        if parts and not optimizers:
            raise ValueError(
                f"{next(iter(parts))} is new only in part: pass the optimizer, which would change its old entries"
            )
        self._masks = [(named[name], mask) for name, mask in parts.items()]
        self._before: list[Tensor] = []
        self._frozen = [own for name, own in named.items() if name not in masks and own.requires_grad]
        for parameter in self._frozen:
            parameter.requires_grad_(False)
            parameter.grad = None
        self._handles = []
        for each in optimizers if parts else ():
            self._handles += [each.register_step_pre_hook(self._keep), each.register_step_post_hook(self._put_back)]

    def _keep(self, *_: Any) -> None:
        self._before = [parameter.detach().clone() for parameter, _ in self._masks]

    @torch.no_grad()
    def _put_back(self, *_: Any) -> None:
        for (parameter, mask), before in zip(self._masks, self._before, strict=True):
            parameter.copy_(torch.where(mask, parameter, before))

    def remove(self) -> None:
        """Train everything again."""
        for parameter in self._frozen:
            parameter.requires_grad_(True)
        for handle in self._handles:
            handle.remove()
        self._frozen, self._handles, self._before = [], [], []
