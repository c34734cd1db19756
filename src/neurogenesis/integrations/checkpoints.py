"""Load the weights of grown networks, from anywhere: the model is resized to the shapes in the state."""

from __future__ import annotations

import json
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor, nn

from ..structure.axes import named_tensors, unwrapped
from ..structure.examples import Examples
from ..structure.finding import known_widths, last_widths
from ..structure.modes import ordinary_tensors
from ..structure.solving import sizes_from_shapes
from ..surgery.optimizer_state import Optimizers
from ..surgery.plan import Surgery
from ..surgery.resizing import resize_widths
from .sizes import SavedSizes

KEY = "neurogenesis"  # of the sizes of widths in checkpoints
_WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin", "model.pt")  # in directories of Hugging Face and Accelerate

State = Mapping[str, Any]
StrPath = str | PathLike[str]
File = StrPath | IO[bytes]


def load_state_dict(
    model: nn.Module,
    state: State | File,
    *,
    example: Examples | None = None,
    strict: bool = True,
    optimizer: Optimizers = None,
) -> dict[str, int]:
    """Resize a model to the shapes in a state and load it; no grower is needed.

    The state may be larger or smaller than the model. If the model does not fit, nothing is changed.

    Args:
        model: a model of the class that the state was saved from.
        state: a ``state_dict()``, or a file or directory that contains one: of `neurogenesis.save`, ``torch.save``,
            safetensors, Lightning, Hugging Face or Accelerate. If its names have a prefix, such as ``net.`` or
            ``module.``, the part with the model's names is loaded. Files, which may be open, are read with
            ``weights_only=True``.
        example: an input of the model, or a list of several, to find its widths. It is not needed if `widths` was
            called for this model, as is necessary for widths that grow together by `tie`, if the sizes of widths are in
            the file, or if the model has the shapes of the state already.
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
        state, saved = read_state(as_file(state))
    state, prefix = part_for(model, state)
    if saved is not None:
        saved = saved.inside(prefix)
    state = with_shared(model, state)
    if strict:
        check_names(model, state)
    with ordinary_tensors(), torch.no_grad():
        resized = fit(model, state, saved, example, optimizer)
        model.load_state_dict(state, strict=strict)
    return resized


def fit(
    model: nn.Module,
    state: State,
    saved: SavedSizes | None = None,
    example: Examples | None = None,
    optimizer: Optimizers = None,
) -> dict[str, int]:
    """Resize a model to the shapes in a state, which the caller then loads; returns the new sizes of widths."""
    with Surgery(model, optimizer, ages=False) as surgery:
        return fit_in(surgery, state, saved, example)


def fit_in(
    surgery: Surgery, state: State, saved: SavedSizes | None = None, example: Examples | None = None
) -> dict[str, int]:
    """Resize a model as `fit` does, as a part of a surgery, which reverts it if another part fails."""
    model = surgery.model
    tensors, shapes = named_tensors(model), shapes_in(model, state)
    differing = [name for name, shape in shapes.items() if tensors[name].shape != shape]
    if not differing:
        return {}
    found = last_widths(model)
    known = found is not None and found.differs_from(model) is None
    if not known and example is None and saved is not None and saved.widths:
        surgery.apply(saved.plan(model, shapes))
        return saved.widths
    if not known and example is None:
        first = differing[0]
        raise ValueError(
            f"{first} has shape {shapes[first]} in the state, but {tuple(tensors[first].shape)} in the model: pass an "
            "input of the model as example=, or call neurogenesis.widths(model, example) first, so that its widths can "
            "be resized"
        )
    with torch.enable_grad():
        found = known_widths(model, example)
    for name in (each for each in differing if each in found.structure.unused):
        raise ValueError(
            f"{name} has shape {shapes[name]} in the state, but {tuple(tensors[name].shape)} in the model, and no "
            "example uses it: switch it on before the state is loaded, or pass a list of inputs that together use all "
            "layers, as example=[...]"
        )
    sizes = sizes_from_shapes(found, shapes)
    resized = {name: number for name, number in sizes.items() if found[name].size != number}
    resize_widths(surgery, found, resized, torch.Generator().manual_seed(0))
    return resized


def shapes_in(model: nn.Module, state: State) -> dict[str, tuple[int, ...]]:
    """Shapes in a state of the tensors that the model has."""
    return {name: tuple(state[name].shape) for name in named_tensors(model) if isinstance(state.get(name), Tensor)}


def as_file(file: File) -> Path | IO[bytes]:
    """A path or an open file."""
    if isinstance(file, (str, PathLike)):
        return Path(file)
    if not hasattr(file, "read"):
        raise TypeError(f"expected a path or a file that is open for binary data, not {file!r}")
    return file


def name_of(file: Path | IO[bytes]) -> str:
    """What messages call a file."""
    name = file if isinstance(file, Path) else getattr(file, "name", None)
    return str(name) if isinstance(name, (str, Path)) else "the file"


def read_state(path: Path | IO[bytes]) -> tuple[State, SavedSizes | None]:
    """Read the state of a model from a file or directory, with the sizes of its widths if they are there."""
    if isinstance(path, Path) and path.is_dir():
        return _read_directory(path)
    if isinstance(path, Path) and path.suffix == ".safetensors":
        return _read_safetensors(path), None
    content = read_content(path)
    if KEY in content and isinstance(content.get("models"), Mapping):  # of save()
        return _read_models(content["models"])
    saved = SavedSizes.from_state(content["sizes"]) if KEY in content and "sizes" in content else None
    if saved is None and isinstance(content.get(KEY), Mapping):  # of the callbacks
        saved = SavedSizes.from_state(content[KEY]["sizes"])
    for key in ("model", "state_dict", "model_state_dict"):  # format 1, Lightning's, and what tutorials use
        if isinstance(content.get(key), Mapping):
            return content[key], saved
    if not any(isinstance(value, Tensor) for value in content.values()):
        raise ValueError(f"{name_of(path)} contains no state of a model; it has {', '.join(map(str, [*content][:5]))}")
    return content, saved


def _read_models(models: Mapping[str, Any]) -> tuple[State, SavedSizes]:
    """The states of one or more models; if they have names, these are prefixes."""
    if list(models) == [""]:
        return models[""]["state"], SavedSizes.from_state(models[""]["sizes"])
    state, sizes = {}, SavedSizes({}, {}, [])
    for name, own in models.items():
        state.update({f"{name}.{key}": value for key, value in own["state"].items()})
        sizes = sizes.joined(SavedSizes.from_state(own["sizes"]).below(name))
    return state, sizes


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


def read_content(path: Path | IO[bytes], map_location: Any = "cpu") -> dict[str, Any]:
    """Read a file of ``torch.save`` that contains tensors and plain values."""
    name = name_of(path)
    if isinstance(path, Path) and not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    hint = (
        "" if isinstance(path, Path) else ". It is read from its position: call file.seek(0) to read it from the start"
    )
    try:
        content = torch.load(path, map_location=map_location, weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{name} contains more than tensors and plain values, or is damaged. If you trust it, read it with "
            f"torch.load(path, weights_only=False) and pass its state. ({str(error).splitlines()[0]}){hint}"
        ) from None
    except (RuntimeError, EOFError, ValueError, KeyError, OSError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(f"{name} is not a complete file of torch.save(): {reason}{hint}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{name} contains a {type(content).__name__}, not a state")
    return content


def part_for(model: nn.Module, state: State) -> tuple[State, str]:
    """The part of a state with the names of the model, without its prefix, and the prefix."""
    names = list(model.state_dict(keep_vars=True))
    if not names or names[0] in state:
        return state, ""
    prefixes = [key[: -len(names[0])] for key in state if key.endswith(f".{names[0]}")]
    fitting = [prefix for prefix in prefixes if all(prefix + name in state for name in names)]
    if not fitting:
        return state, ""
    if len(fitting) > 1:
        raise ValueError(
            f"the state has all names of the model several times, after {' and '.join(map(repr, fitting))}: pass the "
            "part that is meant or, if several models were saved, use neurogenesis.load(file, {name: model})"
        )
    (prefix,) = fitting
    return {key[len(prefix) :]: value for key, value in state.items() if key.startswith(prefix)}, prefix


def with_shared(model: nn.Module, state: State) -> OrderedDict[str, Any]:
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


def check_names(model: nn.Module, state: State) -> None:
    names = model.state_dict(keep_vars=True)
    missing, more = [name for name in names if name not in state], [name for name in state if name not in names]
    if missing or more:
        found = [f"it has no {missing[0]}"] if missing else []
        found += [f"the model has no {more[0]}"] if more else []
        raise ValueError(f"the state is of another architecture: {', and '.join(found)}")
