"""Save and load grown networks: a fresh model is resized to the shapes in the state."""

from __future__ import annotations

import json
import pickle
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..files import replace_file
from ..growing.grower import Grower
from ..structure.axes import named_tensors, unwrapped
from ..structure.modes import ordinary_tensors
from ..structure.solving import sizes_from_shapes
from ..structure.tracing import Example
from ..structure.widths import known_widths, last_widths
from ..surgery.ages import resume
from ..surgery.optimizer_state import Optimizers, as_list
from ..surgery.plan import Surgery
from ..surgery.resizing import resize_widths
from .sizes import SavedSizes

KEY = "neurogenesis"  # of the sizes of widths in checkpoints
FORMAT = 1  # of the files of `save`
_WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin", "model.pt")  # in directories of Hugging Face and Accelerate

State = Mapping[str, Any]
StrPath = str | PathLike[str]


def load_state_dict(
    model: nn.Module,
    state: State | StrPath,
    *,
    example: Example | None = None,
    strict: bool = True,
    optimizer: Optimizers = None,
) -> dict[str, int]:
    """Resize a model to the shapes in a state and load it; no grower is needed.

    The state may be larger or smaller than the model. If the model does not fit, nothing is changed.

    Args:
        model: a model of the class that the state was saved from.
        state: a ``state_dict()``, or a file or directory that contains one: of `neurogenesis.save`, ``torch.save``,
            safetensors, Lightning, Hugging Face or Accelerate. If its names have a prefix, such as ``net.`` or
            ``module.``, the part with the model's names is loaded. Files are read with ``weights_only=True``.
        example: an input of the model, to find its widths. It is not needed if `widths` was called for this model, as
            is necessary for widths that grow together by `tie`, if the sizes of widths are in the file, or if the
            model has the shapes of the state already.
        strict: whether state and model must have the same names.
        optimizer: the optimizers of the model, if they have state already; the new entries are zero.

    Returns:
        The new sizes of the widths that were resized, by name; of all widths if their sizes come from the file.

    Example:
        >>> import torch, neurogenesis as ng
        >>> def make():
        ...     return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> grown, example = make(), torch.randn(1, 4)
        >>> plan = ng.grow(grown, "0", 5, example=example)
        >>> fresh = make()
        >>> ng.load_state_dict(fresh, grown.state_dict(), example=example)
        {'0': 13}
        >>> torch.equal(fresh(example), grown(example))
        True
    """
    model, saved = unwrapped(model), None
    if not isinstance(state, Mapping):
        state, saved = read_state(Path(state))
    state, prefix = _part_for(model, state)
    if saved is not None:
        saved = saved.inside(prefix)
    state = _with_shared(model, state)
    if strict:
        _check_names(model, state)
    return _load(model, state, saved, example, strict, optimizer)


def _load(
    model: nn.Module,
    state: State,
    saved: SavedSizes | None,
    example: Example | None,
    strict: bool,
    optimizer: Optimizers,
) -> dict[str, int]:
    with ordinary_tensors(), torch.no_grad():
        resized = fit(model, state, saved, example, optimizer)
        model.load_state_dict(state, strict=strict)
    return resized


def fit(
    model: nn.Module,
    state: State,
    saved: SavedSizes | None = None,
    example: Example | None = None,
    optimizer: Optimizers = None,
) -> dict[str, int]:
    """Resize a model to the shapes in a state, which the caller then loads; returns the new sizes of widths."""
    tensors, shapes = named_tensors(model), _shapes(model, state)
    differing = [name for name, shape in shapes.items() if tensors[name].shape != shape]
    if not differing:
        return {}
    found = last_widths(model)
    known = found is not None and found.differs_from(model) is None
    if not known and example is None and saved is not None and saved.widths:
        saved.resize(model, shapes, optimizer)
        return saved.widths
    if not known and example is None:
        first = differing[0]
        raise ValueError(
            f"{first} has shape {shapes[first]} in the state, but {tuple(tensors[first].shape)} in the model: pass an "
            "input of the model as example=, so that its widths can be found and resized"
        )
    with torch.enable_grad():
        found = known_widths(model, example)
    sizes = sizes_from_shapes(found, shapes)
    resized = {name: number for name, number in sizes.items() if found[name].size != number}
    with Surgery(model, optimizer, ages=False) as surgery:
        resize_widths(surgery, found, resized, torch.Generator().manual_seed(0))
    return resized


def _shapes(model: nn.Module, state: State) -> dict[str, tuple[int, ...]]:
    """Shapes in a state of the tensors that the model has."""
    return {name: tuple(state[name].shape) for name in named_tensors(model) if isinstance(state.get(name), Tensor)}


def save(
    path: StrPath,
    model: nn.Module,
    optimizer: Optimizers = None,
    grower: Grower | None = None,
    *,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Save a model, with the sizes of its widths, its optimizers and its grower, to a file.

    The file contains tensors and plain values only, so ``torch.load(path, weights_only=True)`` reads it. It is written
    aside and then renamed: if writing fails, an old file stays as it was.

    Args:
        path: the file.
        model: the model.
        optimizer: the optimizer, or a list of all of them.
        grower: the grower.
        extra: other plain values and tensors, such as the epoch or the state of a learning rate schedule, which `load`
            returns.

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
    model = unwrapped(model)
    if grower is not None and grower.model is not model:
        raise ValueError("grower: it grows another model")
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    content = {
        KEY: FORMAT,
        "model": model.state_dict(),
        "sizes": SavedSizes.of(model).state(),
        "optimizers": [_optimizer_state(each, names) for each in as_list(optimizer)],
        "grower": None if grower is None else grower.state_dict(),
        "extra": dict(extra or {}),
    }
    if problem := next(_unsafe(content), None):
        raise TypeError(f"cannot save {problem}: pass tensors and plain values only")
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{target.parent} is not a directory: create it first")
    replace_file(target, lambda partial: torch.save(content, partial))


def load(
    path: StrPath,
    model: nn.Module,
    optimizer: Optimizers = None,
    grower: Grower | None = None,
    *,
    map_location: Any = None,
) -> dict[str, Any]:
    """Load a file of `save` into a fresh model, its optimizers and its grower, all of which it resizes.

    Training goes on as if it had not stopped. No example is needed. What the file has and you do not pass, such as the
    grower, is left out.

    Args:
        path: the file.
        model: a model of the same class.
        optimizer: its optimizer, or a list of all of them.
        grower: its grower, created with the same arguments as the saved one.
        map_location: where to load tensors to, as in ``torch.load``.

    Returns:
        The `extra` values of `save`.
    """
    model, optimizers = unwrapped(model), as_list(optimizer)
    content = _read(Path(path), map_location)
    if KEY not in content or not isinstance(content.get("model"), Mapping):
        raise ValueError(
            f"{path} was not written by neurogenesis.save(): use neurogenesis.load_state_dict() for other files"
        )
    if content[KEY] != FORMAT:
        raise ValueError(f"{path} has format {content[KEY]}, and this version reads format {FORMAT}")
    saved_optimizers = content["optimizers"]
    if optimizers and len(optimizers) != len(saved_optimizers):
        raise ValueError(f"{path} has the state of {len(saved_optimizers)} optimizers, not of {len(optimizers)}")
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for each, state in zip(optimizers, saved_optimizers, strict=False):
        _check_optimizer(each, state, names)
    if grower is not None and content["grower"] is None:
        raise ValueError(f"{path} has no state of a grower: pass none")
    if grower is not None and grower.model is not model:
        raise ValueError("grower: it grows another model")
    state, sizes = _with_shared(model, content["model"]), SavedSizes.from_state(content["sizes"])
    _check_names(model, state)
    if grower is not None:
        if sizes.widths:
            sizes.plan(model, _shapes(model, state))  # refuses other models, before the grower resizes this one
        grower.load_state_dict(content["grower"])
    _load(model, state, sizes, None, True, optimizers)
    for each, saved in zip(optimizers, saved_optimizers, strict=False):
        each.load_state_dict({key: value for key, value in saved.items() if key != "names"})
        if grower is None:
            resume(each)
    extra: dict[str, Any] = content["extra"]
    return extra


def read_state(path: Path) -> tuple[State, SavedSizes | None]:
    """Read the state of a model from a file or directory, with the sizes of its widths if they are there."""
    if path.is_dir():
        return _read_directory(path)
    if path.suffix == ".safetensors":
        return _read_safetensors(path), None
    content = _read(path)
    saved = SavedSizes.from_state(content["sizes"]) if KEY in content and "sizes" in content else None
    if saved is None and isinstance(content.get(KEY), Mapping):  # of the callbacks
        saved = SavedSizes.from_state(content[KEY]["sizes"])
    for key in ("model", "state_dict", "model_state_dict"):  # ours, Lightning's, and what tutorials use
        if isinstance(content.get(key), Mapping):
            return content[key], saved
    if not any(isinstance(value, Tensor) for value in content.values()):
        raise ValueError(f"{path} contains no state of a model; it has {', '.join(map(str, list(content)[:5]))}")
    return content, saved


def _read_directory(path: Path) -> tuple[State, SavedSizes | None]:
    sizes = path / f"{KEY}.json"
    saved = SavedSizes.read(sizes) if sizes.exists() else None
    for name in _WEIGHT_FILES:
        index = path / f"{name}.index.json"
        if (path / name).exists():
            return read_state(path / name)[0], saved
        if index.exists():
            shards = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
            return {key: value for shard in shards for key, value in read_state(path / shard)[0].items()}, saved
    raise ValueError(f"{path} contains none of {', '.join(_WEIGHT_FILES)}")


def _read_safetensors(path: Path) -> State:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError:
        raise ImportError("reading .safetensors files needs safetensors: pip install safetensors") from None
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    try:
        state: State = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is not a complete safetensors file: {error}") from None
    return state


def _read(path: Path, map_location: Any = "cpu") -> dict[str, Any]:
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    try:
        content = torch.load(path, map_location=map_location, weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{path} contains more than tensors and plain values, or is damaged. If you trust it, read it with "
            f"torch.load(path, weights_only=False) and pass its state. ({str(error).splitlines()[0]})"
        ) from None
    except (RuntimeError, EOFError, ValueError, KeyError, OSError) as error:
        raise ValueError(f"{path} is not a complete file of torch.save(): {str(error).splitlines()[0]}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} contains a {type(content).__name__}, not a state")
    return content


def _part_for(model: nn.Module, state: State) -> tuple[State, str]:
    """The part of a state with the names of the model, without its prefix, and the prefix."""
    names = list(model.state_dict(keep_vars=True))
    if not names or names[0] in state:
        return state, ""
    prefixes = [key[: -len(names[0])] for key in state if key.endswith(f".{names[0]}")]
    fitting = [prefix for prefix in prefixes if all(prefix + name in state for name in names)]
    if len(fitting) != 1:
        return state, ""
    (prefix,) = fitting
    return {key[len(prefix) :]: value for key, value in state.items() if key.startswith(prefix)}, prefix


def _with_shared(model: nn.Module, state: State) -> State:
    """Add the other names of tensors that the model has under several; some formats store one only."""
    first: dict[int, str] = {}
    present = model.state_dict(keep_vars=True)
    for name, value in present.items():
        if name in state and isinstance(value, Tensor):
            first.setdefault(id(value), name)
    added = {
        name: state[first[id(value)]]
        for name, value in present.items()
        if name not in state and isinstance(value, Tensor) and id(value) in first
    }
    result = OrderedDict({**state, **added})
    if hasattr(state, "_metadata"):  # versions of modules
        result._metadata = state._metadata  # type: ignore[attr-defined]
    return result


def _check_names(model: nn.Module, state: State) -> None:
    names = model.state_dict(keep_vars=True)
    missing, more = [name for name in names if name not in state], [name for name in state if name not in names]
    if missing or more:
        found = [f"it has no {missing[0]}"] if missing else []
        found += [f"the model has no {more[0]}"] if more else []
        raise ValueError(f"the state is of another architecture: {', and '.join(found)}")


def _optimizer_state(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> dict[str, Any]:
    """The state of an optimizer, and the names of its parameters in order: loading goes by position."""
    groups = [[names.get(id(each), "") for each in group["params"]] for group in optimizer.param_groups]
    return {**optimizer.state_dict(), "names": groups}


def _check_optimizer(optimizer: torch.optim.Optimizer, state: State, names: Mapping[int, str]) -> None:
    saved = state["names"]
    present = [[names.get(id(each), "") for each in group["params"]] for group in optimizer.param_groups]
    if list(map(len, present)) != list(map(len, saved)):
        raise ValueError(
            f"{type(optimizer).__name__} has parameter groups of {list(map(len, present))} parameters, and the saved "
            f"one of {list(map(len, saved))}: create it as before"
        )
    for own, theirs in zip(present, saved, strict=True):
        for name, other in zip(own, theirs, strict=True):
            if name != other:
                raise ValueError(
                    f"{type(optimizer).__name__} has parameter {name!r} where the saved one has {other!r}: create it "
                    "with its parameters in the same order"
                )


_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device)


def _unsafe(content: Any, path: str = "") -> Iterator[str]:
    """Places of values that ``torch.load(weights_only=True)`` would refuse."""
    if type(content) in (dict, OrderedDict):
        for key, value in content.items():
            yield from _unsafe(key, f"a key of {path}") if type(key) is not str else ()
            yield from _unsafe(value, f"{path}.{key}" if path else str(key))
    elif type(content) in (list, tuple, set):
        for number, value in enumerate(content):
            yield from _unsafe(value, f"{path}[{number}]")
    elif type(content) not in (*_PLAIN, Tensor, nn.Parameter):
        yield f"{path}, a {type(content).__name__}"
