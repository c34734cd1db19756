"""Save and load grown models of Transformers, by their config if it can describe them, else by saved sizes."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from ..structure.axes import unwrapped
from ..structure.extensions import libraries_of
from ..structure.saved_sizes import SavedSizes
from .checkpoints import KEY, load_weights, read_state

Model = TypeVar("Model", bound=nn.Module)
Shapes = Mapping[str, tuple[int, ...]]


def save_pretrained(model: nn.Module, path: str | PathLike[str]) -> bool:
    """Save a grown model by its own ``save_pretrained``, with its sizes in the config if that can describe them.

    Args:
        model: a model of Transformers, or one with adapters of PEFT, which are saved without the base model.
        path: the directory. The sizes of the widths, if they are known, are written beside the weights.

    Returns:
        Whether the config describes the model, so that the ``from_pretrained`` of its class loads it. Otherwise, use
        the `from_pretrained` of this module; that of the class raises an error. For adapters, whether
        ``PeftModel.from_pretrained`` loads them onto the base model as the base model's config builds it.

    Example:
        >>> import tempfile, torch, neurogenesis as ng
        >>> from transformers import BertConfig, BertModel
        >>> from neurogenesis.integrations.huggingface import from_pretrained, save_pretrained
        >>> small = dict(vocab_size=9, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12)
        >>> model = BertModel(BertConfig(**small)).eval()
        >>> example = {"input_ids": torch.tensor([[1, 2, 3]])}
        >>> plan = ng.grow(model, "encoder.layer.0.intermediate.dense", 5, example=example)
        >>> directory = tempfile.mkdtemp()
        >>> save_pretrained(model, directory)  # the layers differ, and the config has one intermediate_size
        False
        >>> again = from_pretrained(BertModel, directory)
        >>> torch.equal(again(**example)[0], model(**example)[0])
        True
    """
    model = unwrapped(model)
    follows = _base_has_config_sizes(model) if has_adapters(model) else update_config(model)
    model.save_pretrained(path)  # type: ignore[operator]
    SavedSizes.of(model).write(Path(path) / f"{KEY}.json")
    return follows


def from_pretrained(model_class: type[Model], path: str | PathLike[str]) -> Model:
    """Load a grown model from a directory of `save_pretrained` or of a Trainer with `GrowerCallback`.

    Args:
        model_class: the class of the model.
        path: the directory. It has the sizes of the widths, so that no input of the model is needed.

    Returns:
        The model in evaluation mode, in the precision that it was saved in.
    """
    directory = Path(path)
    if (directory / "adapter_config.json").exists():
        raise ValueError(f"{directory} has adapters, not a model: load them with PeftModel.from_pretrained(base, path)")
    if not (directory / "config.json").exists():
        raise FileNotFoundError(f"{directory} has no config.json: expected a directory of save_pretrained()")
    own: Any = model_class
    if not hasattr(own, "config_class"):
        raise TypeError(f"{own.__name__} is not the class of a model, such as BertModel: pass type(model)")
    model = own(own.config_class.from_pretrained(directory))
    if model.config.dtype is not None:
        model.to(model.config.dtype)
    names, (state, sizes) = saved_names(model), read_state(directory)
    load_weights(model, {names.get(name, name): value for name, value in state.items()}, sizes)
    if (directory / "generation_config.json").exists():
        model.generation_config = type(model.generation_config).from_pretrained(directory)
    result: Model = model.eval()
    return result


def update_config(model: Any) -> bool:
    """Update sizes in the config of a model, such as ``intermediate_size``, so that it builds the model as it is.

    Fields are found by building the class of the model on the meta device: a field is set if that gives more tensors
    their shapes. If the config cannot describe all, as when it has one size for layers that differ, it is not changed.

    Returns:
        Whether the config describes the model.
    """
    wanted = _shapes(model)
    config, differing = copy.deepcopy(model.config), _differing(model, model.config, wanted)
    if _layers_differ(differing, wanted):
        return False
    found: list[tuple[tuple[str, ...], str, int]] = []
    while differing:
        better = next(_improvements(model, config, wanted, differing), None)
        if better is None:
            return False
        found.append(better)
        _set(config, *better)
        differing = _differing(model, config, wanted)
    for change in found:
        _set(model.config, *change)
    return True


def _layers_differ(built: Shapes, wanted: Shapes) -> bool:
    """Whether layers of different sizes, whose names differ in numbers only, are built alike by a config."""
    shapes: dict[tuple[str, tuple[int, ...]], set[tuple[int, ...]]] = {}
    for name, shape in built.items():
        shapes.setdefault((re.sub(r"\d+", "*", name), shape), set()).add(wanted.get(name, ()))
    return any(len(each) > 1 for each in shapes.values())


def has_adapters(model: nn.Module) -> bool:
    """Whether a model has adapters of PEFT: then these are saved, not the model."""
    return isinstance(getattr(model, "peft_config", None), Mapping) and "peft" in libraries_of(model)


def _base_has_config_sizes(model: nn.Module) -> bool:
    """Whether the config of the base model builds it with the present sizes, including ``modules_to_save``."""
    from transformers import PreTrainedModel

    from .peft import shapes_without_adapters

    base = next((each for each in model.modules() if isinstance(each, PreTrainedModel)), None)
    if base is None:
        return True  # not of Transformers: whoever builds it again gives it its sizes
    built = _built_shapes(base, base.config)
    return all(built.get(name, shape) == shape for name, shape in shapes_without_adapters(base))


def saved_files(model: nn.Module, directory: Path) -> Iterator[tuple[Path, Mapping[str, str]]]:
    """Files with the weights of a model in a directory, each with names in the model by names in the file."""
    if has_adapters(model):
        from .peft import adapter_files

        yield from ((directory / file, names) for file, names in adapter_files(model))
    else:
        names = saved_names(model)
        yield from ((file, names) for file in sorted(directory.glob("*.safetensors")))


def saved_names(model: Any) -> dict[str, str]:
    """Names of tensors in a model by their names in files, which are older ones for some models."""
    from transformers import PreTrainedModel
    from transformers.core_model_loading import revert_weight_conversion

    if not isinstance(model, PreTrainedModel):
        return {}
    own = {value.data_ptr(): name for name, value in model.state_dict().items() if value.numel()}
    saved = revert_weight_conversion(model, dict(model.state_dict()))
    return {name: own[value.data_ptr()] for name, value in saved.items() if value.data_ptr() in own}


def _improvements(
    model: Any, config: Any, wanted: Shapes, differing: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[tuple[str, ...], str, int]]:
    """Changes of one field that make fewer tensors differ: first of fields with the old size, then of unset ones."""
    pairs = {
        pair
        for name, shape in differing.items()
        for pair in zip(shape, wanted.get(name, ()), strict=False)
        if pair[0] != pair[1]
    }
    fields = list(_fields(config))
    for old, new in sorted(pairs):
        for value in (old, None):
            for path, field, present in fields:
                if present == value and type(present) is type(value):
                    changed = copy.deepcopy(config)
                    try:
                        _set(changed, path, field, new)
                        left = _differing(model, changed, wanted)
                    except Exception:  # the field means something else, or the config checks its values
                        continue
                    if len(left) < len(differing):
                        yield path, field, new


def _fields(config: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str, Any]]:
    """Path, name and value of each field in a config and in nested configs."""
    for name, value in vars(config).items():
        if hasattr(value, "to_diff_dict"):  # a config
            yield from _fields(value, (*path, name))
        elif not name.startswith("_"):
            yield path, name, value


def _set(config: Any, path: tuple[str, ...], field: str, value: int) -> None:
    for name in path:
        config = getattr(config, name)
    setattr(config, field, value)


def _shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in model.state_dict(keep_vars=True).items()}


def _differing(model: nn.Module, config: Any, wanted: Shapes) -> dict[str, tuple[int, ...]]:
    """Tensors that a config builds with another shape than wanted, and their built shape; () if there is none."""
    built = _built_shapes(model, config)
    return {
        name: built.get(name, ()) for name in (*wanted, *(built.keys() - wanted)) if built.get(name) != wanted.get(name)
    }


def _built_shapes(model: nn.Module, config: Any) -> dict[str, tuple[int, ...]]:
    """Shapes in a model of the same class, built from a config on the meta device."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        return _shapes(type(model)(copy.deepcopy(config)))
