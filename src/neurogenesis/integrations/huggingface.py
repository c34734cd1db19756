"""Growing in the Trainer of Transformers, and saving and loading grown models of Transformers."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

try:
    from safetensors import safe_open
    from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise ImportError(
        f"{error}: growing in the Trainer needs transformers: pip install 'torch-neurogenesis[huggingface]'"
    ) from error

from ..files import replace_file
from ..growing.grower import Grower
from ..passes.replay import Hook
from ..strategies import strategy as as_strategy
from ..structure.finding import widths
from ..structure.saved_sizes import SavedSizes
from .checkpoints import KEY, resize_model, with_shared
from .configs import as_built, config_problem, has_adapters, update_config
from .growers import growth_of, training_samples
from .pretrained import from_pretrained, save_pretrained, saved_files, saved_names

__all__ = ["GrowerCallback", "config_problem", "from_pretrained", "save_pretrained", "update_config"]


class GrowerCallback(TrainerCallback):  # type: ignore[misc]
    """Grows the model of a ``Trainer``: pass it in ``callbacks``.

    The grower looks after each gradient step, so once in several batches with ``gradient_accumulation_steps``. Each
    checkpoint gets the state of the grower and the sizes of widths, and its config is updated if it can describe them.
    ``trainer.train(resume_from_checkpoint=...)`` resizes the model and goes on as if training had not stopped;
    ``load_best_model_at_end`` resizes it to the best checkpoint. Sizes and the number of parameters are logged with the
    loss.

    Args:
        arguments: the arguments of `Grower` after model and optimizer.
        named: its keyword arguments.

    Attributes:
        grower: the grower of the current or last training, with its `widths` and `history`; None before.
        resume_from: the directory of the checkpoint to resume from; needed only if it is not inside ``output_dir``.

    Example:
        >>> import tempfile, torch
        >>> from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
        >>> from neurogenesis.integrations.huggingface import GrowerCallback
        >>> small = dict(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=12)
        >>> data = [{"input_ids": torch.randint(9, (6,)), "labels": number % 2} for number in range(48)]
        >>> callback = GrowerCallback("north-random", include=["*.intermediate.dense"], max_width=13)
        >>> trainer = Trainer(
        ...     BertForSequenceClassification(BertConfig(**small)),
        ...     TrainingArguments(tempfile.mkdtemp(), max_steps=3, report_to="none", disable_tqdm=True, use_cpu=True),
        ...     train_dataset=data,
        ...     callbacks=[callback],
        ... )
        >>> output = trainer.train()  # doctest: +ELLIPSIS
        {'train_runtime': ...}
        >>> callback.grower.widths
        {'bert.encoder.layer.0.intermediate.dense': 13}
    """

    def __init__(self, *arguments: Any, **named: Any):
        given = inspect.signature(Grower).bind(None, None, *arguments, **named)  # raises TypeError for unknown ones
        as_strategy(given.arguments.get("strategy", "static"))  # raises ValueError, not only when training begins
        self.arguments, self.named = arguments, named
        self.grower: Grower | None = None
        self.resume_from: str | PathLike[str] | None = None
        self._places: list[Path] = []

    # --- events of the Trainer ---------------------------------------------------------------------------

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Resize the model before a state is loaded into it: the Trainer loads checkpoints before training begins."""
        given = getattr(args, "resume_from_checkpoint", None)
        self._places = [Path(each) for each in (given, args.output_dir) if isinstance(each, str)]
        kwargs["model"].register_load_state_dict_pre_hook(Hook(self._before_loading))

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Create the grower and, if training resumes, load its state."""
        model, optimizer = kwargs["model"], kwargs["optimizer"]
        if self.grower is not None:
            self.grower.detach(keep_ages=True)  # the ages in the optimizer may be those of a checkpoint
        self.grower = None
        saved = self._saved_state(model, state.global_step) if state.global_step else None
        grower = Grower(model, optimizer, *self.arguments, **self.named)
        if grower.samples.total is None:
            grower.samples.total = training_samples(kwargs.get("train_dataloader"))
        if saved is not None:
            try:
                grower.load_state_dict(saved)
            except BaseException:
                grower.detach()
                raise
        self.grower = grower

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        assert self.grower is not None
        self.grower.step()

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Log sizes and the number of parameters with the loss, in the Trainer's history and for later callbacks."""
        logs = kwargs.get("logs")
        if self.grower is None or not logs or "loss" not in logs:
            return
        own: dict[str, float] = {f"width/{name}": size for name, size in self.grower.widths.items()}
        own["parameters"] = sum(parameter.numel() for parameter in self.grower.model.parameters())
        logs.update(own)
        if state.log_history:
            state.log_history[-1].update(own)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Write the state of the grower and the sizes of widths into the checkpoint, and update its config."""
        if self.grower is None or not args.should_save:
            return
        name, output = f"checkpoint-{state.global_step}", Path(args.output_dir or ".")
        found = [each for each in (output / name, *output.glob(f"run-*/{name}")) if each.is_dir()]
        directory = max(found, key=lambda each: each.stat().st_mtime, default=output / name)  # of several trials
        model: Any = self.grower.model
        content = growth_of(self.grower)
        replace_file(directory / f"{KEY}.pt", lambda partial: torch.save(content, partial))
        SavedSizes.of(model).write(directory / f"{KEY}.json")
        if _has_config(model):
            with nullcontext() if update_config(model) else as_built(model):
                model.config.save_pretrained(directory)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Detach the grower, and update the config of the model if it can describe the sizes."""
        if self.grower is not None:
            self.grower.detach()
            if _has_config(self.grower.model):
                update_config(self.grower.model)

    # --- checkpoints -------------------------------------------------------------------------------------

    def _before_loading(self, module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        """Resize the model to a state that is about to be loaded, and give its entries the names in the model."""
        if prefix:
            return  # of a larger model, which loads more
        present = module.state_dict(keep_vars=True)
        if any(name not in present for name in state):  # the Trainer would leave those out
            for name, own in saved_names(module).items():
                if name in state and own != name:
                    state[own] = state.pop(name)
        shapes = {name: value.shape for name, value in state.items() if isinstance(value, Tensor)}
        same_names = set(with_shared(module, state)) == set(present)
        if same_names and all(shapes.get(name, value.shape) == value.shape for name, value in present.items()):
            return
        directory = self._checkpoint_of(module, state)
        saved = SavedSizes() if directory is None else SavedSizes.read(directory / f"{KEY}.json")
        example, tie = self.named.get("example"), self.named.get("tie", ())
        if example is not None and tie and self.grower is None:
            with torch.enable_grad():
                widths(module, example, tie=tie)
        optimizers = None if self.grower is None or self.grower.model is not module else self.grower.optimizers
        try:
            resize_model(module, state, saved, example, optimizers)
        except ValueError as error:
            raise ValueError(
                f"the checkpoint does not fit the model: {error}. If the checkpoint is not inside "
                f"{' or '.join(map(str, self._places))}, set GrowerCallback.resume_from to its directory"
            ) from error

    def _saved_state(self, model: nn.Module, step: int) -> Any:
        """Read the state of the grower from the checkpoint that the Trainer has just loaded."""
        directory = self._checkpoint_of(model, model.state_dict(), step)
        if directory is None:
            raise ValueError(
                f"training resumes at step {step}, but no checkpoint with the model's weights is inside "
                f"{' or '.join(map(str, self._places))}: set GrowerCallback.resume_from to its directory"
            )
        file = directory / f"{KEY}.pt"
        if not file.exists():
            warnings.warn(f"{directory} was saved without a GrowerCallback: growth starts anew", stacklevel=2)
            return None
        return torch.load(file, map_location="cpu", weights_only=True)

    def _checkpoint_of(self, model: nn.Module, state: Mapping[str, Any], step: int | None = None) -> Path | None:
        """Find the checkpoint with these weights: the events of a Trainer do not say which one it loads."""
        found = sorted(self._directories(), key=lambda each: each.name != f"checkpoint-{step}")
        return next((each for each in found if _contains(saved_files(model, each), state)), None)

    def _directories(self) -> list[Path]:
        """Directories that may be checkpoints, the newest first."""
        if self.resume_from is not None:
            if not Path(self.resume_from).is_dir():
                raise FileNotFoundError(f"resume_from: {self.resume_from} is not a directory")
            return [Path(self.resume_from)]
        found = [each for place in self._places for each in (place, *place.glob("checkpoint-*"))]
        found += [each for place in self._places for each in place.glob("run-*/checkpoint-*")]
        return sorted(filter(Path.is_dir, found), key=lambda each: each.stat().st_mtime, reverse=True)


def _has_config(model: nn.Module) -> bool:
    """Whether the model has a config that must describe its sizes; configs of adapters are updated with each resize."""
    return isinstance(model, PreTrainedModel) and not has_adapters(model)


def _contains(files: Iterable[tuple[Path, Mapping[str, str]]], state: Mapping[str, Any]) -> bool:
    """Whether a state was read from these files.

    All tensors are compared: frozen layers are the same in every checkpoint.

    Args:
        files: the files, each with names in the state by those in the file, where they differ.
        state: the state of a model, or a part of it.
    """
    compared = 0
    for file, names in files:
        if not file.exists():
            continue
        with safe_open(file, "pt") as content:
            for name in content.keys():  # noqa: SIM118
                own = state.get(names.get(name, name))
                if own is None:
                    continue
                if list(own.shape) != content.get_slice(name).get_shape():
                    return False
                if not torch.equal(content.get_tensor(name).to(own.dtype), own.cpu()):
                    return False
                compared += 1
    return compared > 0
