"""Save and load grown models of Transformers, by their config if it can describe them, else by saved sizes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from ..structure.axes import unwrapped
from ..structure.saved_sizes import SavedSizes
from .checkpoints import KEY, load_weights, read_state
from .configs import Build, as_built, config_problem, has_adapters

Model = TypeVar("Model", bound=nn.Module)


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
    problem = None if has_adapters(model) else config_problem(model)
    follows = _base_has_config_sizes(model) if has_adapters(model) else problem is None
    with nullcontext() if problem is None else as_built(model):
        model.save_pretrained(path)  # type: ignore[operator]
    SavedSizes.of(model).write(Path(path) / f"{KEY}.json")
    if problem is not None:
        warnings.warn(
            f"the from_pretrained of {type(model).__name__} cannot load this, as {problem}: load it with that of "
            "neurogenesis.integrations.huggingface",
            stacklevel=2,
        )
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


def _base_has_config_sizes(model: nn.Module) -> bool:
    """Whether the config of the base model builds it with the present sizes, including ``modules_to_save``."""
    from transformers import PreTrainedModel

    from .peft import shapes_without_adapters

    base = next((each for each in model.modules() if isinstance(each, PreTrainedModel)), None)
    if base is None:
        return True  # not of Transformers: whoever builds it again gives it its sizes
    built = Build.by(type(base), base.config).shapes
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
