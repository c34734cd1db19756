"""Save and load training runs, in files and in memory: models are resized to what was saved."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..files import replace_file
from ..structure.modes import ordinary_tensors
from ..structure.saved_sizes import SavedSizes
from ..surgery.optimizer_state import Optimizers
from .checkpoints import KEY, File, as_file, name_of, read_content
from .plain import compact, copied, unsafe
from .runs import FORMAT, Averages, Growers, Models, Run


class Snapshot:
    """The state of a training run in memory, made by `snapshot`. Training does not change it."""

    def __init__(self, content: Mapping[str, Any]):
        self._content = content

    @property
    def widths(self) -> dict[str, int]:
        """The sizes of widths in the snapshot, by name; with several models, the name of the model comes first."""
        result = {}
        for name, own in self._content["models"].items():
            result.update(SavedSizes.from_state(own["sizes"]).below(name).widths)
        return result

    def __repr__(self) -> str:
        return f"Snapshot(widths={self.widths})"


def snapshot(
    model: Models,
    optimizer: Optimizers = None,
    grower: Growers = None,
    *,
    ema: Averages = None,
    others: Any = None,
    extra: Mapping[str, Any] | None = None,
) -> Snapshot:
    """Remember a training run in memory, to go back to it with `restore` although the model has grown since.

    Takes the arguments of `save`. Nothing is shared with the model or the optimizer, so that training does not change
    the snapshot.

    Example:
        >>> import torch, neurogenesis as ng
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> optimizer = torch.optim.Adam(model.parameters())
        >>> best = ng.snapshot(model, optimizer, extra={"epoch": 3})
        >>> plan = ng.grow(model, "0", 5, optimizer=optimizer, example=torch.randn(1, 4))
        >>> ng.restore(best, model, optimizer)
        {'epoch': 3}
        >>> model[0]
        Linear(in_features=4, out_features=8, bias=True)
    """
    run = Run.of(model, optimizer, grower, ema, others)
    with ordinary_tensors():
        return Snapshot(copied(run.state(extra, buffers=True)))


def restore(
    snapshot: Snapshot,
    model: Models,
    optimizer: Optimizers = None,
    grower: Growers = None,
    *,
    ema: Averages = None,
    others: Any = None,
) -> dict[str, Any]:
    """Go back to a snapshot: models are resized to their sizes at that time, and all states are loaded.

    Training goes on as it did after the snapshot, bit by bit, but torch's global random state is left alone. A snapshot
    can be restored several times, also into other objects that were created in the same way. What it has and you do not
    pass, such as the optimizer, is left out. If something does not fit, nothing is changed.

    Args:
        snapshot: what `snapshot` returned.
        model: the model, or several as in `snapshot`; of models by name, some may be left out.
        optimizer: the optimizer, or a list of all of them.
        grower: the grower, or a list of all of them.
        ema: the averaged model, as in `snapshot`.
        others: the other objects, as in `snapshot`.

    Returns:
        The `extra` values of the snapshot.
    """
    if not isinstance(snapshot, Snapshot):
        raise TypeError(
            f"snapshot: expected what neurogenesis.snapshot() returned, not a {type(snapshot).__name__}: a "
            "state_dict() is loaded by neurogenesis.load_state_dict(model, state)"
        )
    run = Run.of(model, optimizer, grower, ema, others)
    run.load(snapshot._content, "the snapshot", aliased=True)
    extra: dict[str, Any] = copied(snapshot._content["extra"])
    return extra


def save(
    file: File,
    model: Models,
    optimizer: Optimizers = None,
    grower: Growers = None,
    *,
    ema: Averages = None,
    others: Any = None,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Save a model, with the sizes of its widths, its optimizers and its grower, to a file.

    The file contains tensors and plain values only, so ``torch.load(file, weights_only=True)`` reads it. It is written
    aside and then renamed: if writing fails, an old file stays as it was.

    Args:
        file: the path, or a file that is open for binary data, such as ``io.BytesIO()``.
        model: the model; or several that are trained together, as a list or as a dict by name.
        optimizer: the optimizer, or a list of all of them. It may train several models.
        grower: the grower, or a list of all of them.
        ema: the averaged model, such as ``AveragedModel``; by default the one of the grower. Of several models, a list
            in their order, with None for those that have none, or a dict by the names of the models.
        others: other objects with ``state_dict`` and ``load_state_dict``, such as a learning rate scheduler or a
            ``GradScaler``; one, or a list.
        extra: other plain values and tensors, such as the epoch, which `load` returns.

    Example:
        >>> import os, tempfile, torch, neurogenesis as ng
        >>> def make():
        ...     return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> model = make()
        >>> plan = ng.grow(model, "0", 5, example=torch.randn(1, 4))
        >>> path = os.path.join(tempfile.mkdtemp(), "run.pt")
        >>> ng.save(path, model, extra={"epoch": 3})
        >>> ng.load(path, make())
        {'epoch': 3}
    """
    target = as_file(file)
    content = compact(Run.of(model, optimizer, grower, ema, others).state(extra))
    if problem := next(unsafe(content), None):
        raise TypeError(f"cannot save {problem}: pass tensors and plain values only")
    if not isinstance(target, Path):
        torch.save(content, target)
        return
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{target.parent} is not a directory: create it first")
    replace_file(target, lambda partial: torch.save(content, partial))


def load(
    file: File,
    model: Models,
    optimizer: Optimizers = None,
    grower: Growers = None,
    *,
    ema: Averages = None,
    others: Any = None,
    map_location: Any = None,
) -> dict[str, Any]:
    """Load a file of `save` into a fresh model, its optimizers and its grower, which are resized.

    Training goes on as if it had not stopped. No example is needed. What the file has and you do not pass, such as the
    grower, is left out. If something does not fit, nothing is changed.

    Args:
        file: the path, or a file that is open for binary data at the beginning of what was saved.
        model: a model of the same class; or several, as in `save`. Of models by name, some may be left out.
        optimizer: its optimizer, or a list of all of them. If it also trains models that are loaded from other files,
            the state of their parameters comes from those.
        grower: its grower, created with the same arguments as the saved one, or a list of all of them.
        ema: the averaged model, as in `save`.
        others: the other objects, as in `save`.
        map_location: where to load tensors to, as in ``torch.load``.

    Returns:
        The `extra` values of `save`.
    """
    source, run = as_file(file), Run.of(model, optimizer, grower, ema, others)
    content = _in_latest_format(read_content(source, map_location), name_of(source))
    run.load(content, name_of(source), aliased=False)
    extra: dict[str, Any] = content["extra"]
    return extra


def _in_latest_format(content: dict[str, Any], where: str) -> dict[str, Any]:
    if KEY not in content or not isinstance(content.get("models", content.get("model")), Mapping):
        raise ValueError(
            f"{where} was not written by neurogenesis.save(): use neurogenesis.load_state_dict() for other files"
        )
    if content[KEY] == 1:  # one model, without average and others
        part = {"state": content["model"], "sizes": content["sizes"], "grower": content["grower"], "average": None}
        return {"models": {"": part}, "optimizers": content["optimizers"], "others": [], "extra": content["extra"]}
    if content[KEY] not in (2, FORMAT):  # in format 2, growers repeat the sizes of widths
        raise ValueError(f"{where} has format {content[KEY]}, and this version reads formats 1 to {FORMAT}")
    return content
