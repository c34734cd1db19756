"""Read states of models from files of any kind, and load them into a model that is resized to them."""

from __future__ import annotations

import json
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor, nn

from ..depth.loading import match_depth
from ..structure.axes import unwrapped
from ..structure.examples import Examples
from ..structure.interfaces import known_interfaces
from ..structure.modes import ordinary_tensors
from ..structure.saved_sizes import SavedSizes
from ..structure.solving import shapes_in
from ..surgery.optimizer_state import Optimizers
from ..surgery.plan import Surgery
from ..surgery.resizing import resize_to_saved

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
    interfaces: bool = False,
) -> dict[str, int]:
    """Resize a model to the shapes in a state and load it; no grower is needed.

    The state may be larger or smaller than the model, and have more or fewer blocks. If the model does not fit, nothing
    is changed.

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
        optimizer: the optimizers of the model, if they have state already. New entries are as they initialize them.
        interfaces: whether sizes of inputs and outputs are resized, too, such as a vocabulary. Those that were saved
            with the sizes of widths, as they had been grown by hand, always are.

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
    model, saved = unwrapped(model), SavedSizes()
    if not isinstance(state, Mapping):
        state, saved = read_state(as_file(state))
    state, prefix = state_of(model, state)
    saved = saved.without_prefix(prefix)
    if interfaces:
        shapes, found = shapes_in(model, with_shared(model, state)), known_interfaces(model, example)
        axes = [(axis.tensor, axis.axis) for each in found if each.growable for axis in each.axes]
        saved = replace(saved, interfaces=[(name, axis, shapes[name][axis]) for name, axis in axes if name in shapes])
    return load_weights(model, state, saved, example, strict=strict, optimizer=optimizer)


def load_weights(
    model: nn.Module,
    state: State,
    saved: SavedSizes,
    example: Examples | None = None,
    *,
    strict: bool = True,
    optimizer: Optimizers = None,
) -> dict[str, int]:
    """Resize a model to a state with its own names and load it; returns the new sizes of widths."""
    with ordinary_tensors(), torch.no_grad():
        with Surgery(model, optimizer, ages=False) as surgery:
            match_depth(surgery, list(with_shared(model, state)), saved.stacks)
            state = with_shared(model, state)
            if strict:
                check_names(model, state)
            resized = resize_to_saved(surgery, state, saved, example)
        model.load_state_dict(state, strict=strict)
    return resized


def resize_model(
    model: nn.Module,
    state: State,
    saved: SavedSizes,
    example: Examples | None = None,
    optimizer: Optimizers = None,
) -> dict[str, int]:
    """Resize a model to a state that is loaded afterwards; returns the new sizes of widths."""
    with ordinary_tensors(), torch.no_grad(), Surgery(model, optimizer, ages=False) as surgery:
        match_depth(surgery, list(with_shared(model, state)), saved.stacks)
        return resize_to_saved(surgery, state, saved, example)


def as_file(file: File) -> Path | IO[bytes]:
    """Check that something is a path or an open file."""
    if isinstance(file, (str, PathLike)):
        return Path(file)
    if not hasattr(file, "read"):
        raise TypeError(f"expected a path or a file that is open for binary data, not {file!r}")
    return file


def name_of(file: Path | IO[bytes]) -> str:
    """The name of a file in messages."""
    name = file if isinstance(file, Path) else getattr(file, "name", None)
    return str(name) if isinstance(name, (str, Path)) else "the file"


def read_state(path: Path | IO[bytes]) -> tuple[State, SavedSizes]:
    """Read the state of a model from a file or directory, with the sizes of its widths if they are there."""
    if isinstance(path, Path) and path.is_dir():
        return read_directory(path)
    if isinstance(path, Path) and path.suffix == ".safetensors":
        return _read_safetensors(path), SavedSizes()
    content = read_content(path)
    if KEY in content and isinstance(content.get("models"), Mapping):  # of save()
        return _read_models(content["models"])
    saved = sizes_in(content)
    for key in ("model", "state_dict", "model_state_dict"):  # format 1, Lightning's, and what tutorials use
        if isinstance(content.get(key), Mapping):
            return content[key], saved
    if not any(isinstance(value, Tensor) for value in content.values()):
        raise ValueError(f"{name_of(path)} contains no state of a model; it has {', '.join(map(str, [*content][:5]))}")
    return content, saved


def sizes_in(content: Mapping[str, Any]) -> SavedSizes:
    """The sizes of widths in a file of format 1 or a checkpoint of Lightning; empty for other files."""
    entry = content.get(KEY, {})
    sizes = (entry if isinstance(entry, Mapping) else content).get("sizes")
    return SavedSizes() if sizes is None else SavedSizes.from_state(sizes)


def _read_models(models: Mapping[str, Any]) -> tuple[State, SavedSizes]:
    """The states of one or more models; if they have names, these are prefixes."""
    if list(models) == [""]:
        return models[""]["state"], SavedSizes.from_state(models[""]["sizes"])
    state, sizes = {}, SavedSizes()
    for name, own in models.items():
        state.update({f"{name}.{key}": value for key, value in own["state"].items()})
        sizes = sizes.joined(SavedSizes.from_state(own["sizes"]).below(name))
    return state, sizes


def read_directory(path: Path, number: int = 0) -> tuple[State, SavedSizes]:
    """Read the state of a model from a directory; Accelerate numbers the files of several models."""
    saved = SavedSizes.read(path / numbered(f"{KEY}.json", number))
    for name in (numbered(each, number) for each in _WEIGHT_FILES):
        index = path / f"{name}.index.json"
        if (path / name).exists():
            return read_state(path / name)[0], saved
        if index.exists():
            shards = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
            return {key: value for shard in shards for key, value in read_state(path / shard)[0].items()}, saved
    raise ValueError(f"{path} contains none of {', '.join(_WEIGHT_FILES)}")


def numbered(name: str, number: int) -> str:
    """The name that Accelerate gives to a file of one of several models."""
    stem, _, suffix = name.partition(".")
    return f"{stem}_{number}.{suffix}" if number else name


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


def state_of(model: nn.Module, state: State) -> tuple[State, str]:
    """Select the entries of a model from a state; returns them without their prefix, and the prefix."""
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
    """Complete a state that has shared tensors under one name only, as files of safetensors do."""
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
    """Raise ValueError unless a state has the names of a model."""
    names = model.state_dict(keep_vars=True)
    missing, more = [name for name in names if name not in state], [name for name in state if name not in names]
    if missing or more:
        found = [f"it has no {missing[0]}"] if missing else []
        found += [f"the model has no {more[0]}"] if more else []
        raise ValueError(f"the state is of another architecture: {', and '.join(found)}")
