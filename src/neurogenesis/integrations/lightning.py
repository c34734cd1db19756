"""Grow a LightningModule while a Trainer fits it; works with both packages, lightning and pytorch_lightning."""

from __future__ import annotations

import inspect
import sys
import warnings
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from torch.nn.parallel import DistributedDataParallel

from ..defaults import STRATEGY
from ..growing.grower import Grower
from ..strategies import Strategy
from ..strategies import strategy as as_strategy
from ..structure.saved_sizes import SavedSizes
from .called import OutermostCalls
from .checkpoints import KEY, resize_model, sizes_in
from .growers import growth_of, optimizers_of, training_samples
from .lightning_module import (
    BeforeHook,
    averages_in,
    averages_of,
    loss_again,
    on_device,
    path_of,
    silent,
    submodule,
)

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def callback_classes() -> tuple[type, ...]:
    """Base classes for callbacks: of the imported packages or, if none is imported, of the first installed one."""
    names = [name for name in _PACKAGES if name in sys.modules]
    names = names or [name for name in _PACKAGES if find_spec(name.partition(".")[0]) is not None][:1]
    if not names:
        raise ImportError("neurogenesis.integrations.lightning needs lightning: pip install lightning")
    return tuple(import_module(name).Callback for name in names)


if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    Callback = type("Callback", callback_classes(), {})


class GrowerCallback(Callback):
    """Grows the model of a LightningModule while it trains; a callback of the Trainer.

    It calls `neurogenesis.Grower.step` after each training batch in which the optimizer has stepped. Checkpoints
    contain the sizes of widths and the state of growth, and loading them resizes the model first. If the Trainer has
    loggers, they get the sizes of widths and the number of parameters when training starts and whenever a width grows.
    An average of the weights that another callback keeps, such as ``EMAWeightAveraging``, grows too.

    Args:
        strategy: a name of `neurogenesis.strategies`, or a `Strategy`; `need` by default.
        module: path of the submodule to grow, such as ``"net"``; ``""`` is the whole LightningModule. By default it is
            the one module that ``training_step`` calls: the LightningModule itself, by ``self(x)``, or one of its
            submodules, by ``self.net(x)``. Names of widths are relative to it.
        options: other arguments of `neurogenesis.Grower`, such as ``max_width=2.0``.

    Attributes:
        grower: the grower, with its ``widths`` and ``history``; None before the first training batch.

    Example:
        >>> import lightning as L, neurogenesis as ng
        >>> from neurogenesis.integrations.lightning import GrowerCallback
        >>> trainer = L.Trainer(callbacks=[GrowerCallback(max_parameters=1_000_000)], logger=False)
    """

    def __init__(self, strategy: str | Strategy = STRATEGY, *, module: str | None = None, **options: Any):
        super().__init__()
        known = set(inspect.signature(Grower).parameters) - {"model", "optimizer", "strategy"}
        if unknown := sorted(options.keys() - known):
            raise TypeError(f"{unknown[0]}: no argument of Grower; it takes {', '.join(sorted(known))}")
        self.strategy, self.module, self.options = as_strategy(strategy), module, options
        self.grower: Grower | None = None
        self._key = module or ""  # of this callback's grower in checkpoints
        self._path = self._key  # of the module that grows
        self._watching = False  # whether the grower is attached to the model
        self._calls: OutermostCalls | None = None  # in the first batch, unless the module is known
        self._problem: ValueError | None = None  # why the first module that was called cannot grow
        self._logged = False  # whether the loggers have the initial sizes
        self._saved: dict[str, Any] | None = None  # state of growth to continue from
        self._sizes = SavedSizes()  # of the last checkpoint
        self._owner: Callable[[], LightningModule | None] = lambda: None  # the LightningModule of all this
        self._hooks: list[BeforeHook] = []

    @property
    def state_key(self) -> str:
        return self._generate_state_key(module=self.module)

    # --- the Trainer's walk ------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._end()  # if the last run was interrupted
        owner = self._owner()
        if owner is not pl_module and (stage == "fit" or owner is None):
            self.grower, self._saved, self._path = None, None, self._key
            self._sizes, self._owner = SavedSizes(), weakref.ref(pl_module)
        load = partial(self._before_loading, trainer, pl_module, stage)
        save = partial(self._before_saving, pl_module)
        self._hooks = [
            BeforeHook(pl_module, "on_load_checkpoint", load),
            BeforeHook(pl_module, "on_save_checkpoint", save),
        ]

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.model is not pl_module and not isinstance(trainer.model, DistributedDataParallel):
            raise RuntimeError(
                f"the Trainer wraps the model in {type(trainer.model).__name__}, which keeps its parameters as they "
                "are: use a strategy for one device, or strategy='ddp' for several"
            )
        if getattr(pl_module, "_compiler_ctx", None) is not None:
            raise RuntimeError(
                "the LightningModule is compiled as a whole, with its training_step, so its passes cannot be watched: "
                "compile the network inside it, as self.net = torch.compile(self.net)"
            )
        self._logged = False

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if self._watching or self._calls is not None:
            return
        if self._saved is not None:
            grower = self._make_grower(trainer, pl_module, self._path)
            with silent(pl_module):
                grower.load_state_dict(on_device(self._saved, pl_module.device))
        elif self.module is not None:
            self._make_grower(trainer, pl_module, self.module)
        else:
            self._calls = OutermostCalls(pl_module, partial(self._first_call, trainer, pl_module))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._calls is not None:
            self._check_calls(self._calls)
        grower = self.grower
        if grower is None or not self._watching:
            return
        if not self._logged and grower.layers:
            self._log(trainer, pl_module)
            self._logged = True
        if grower.stepped:
            with silent(pl_module):
                events = grower.step(loss_again(trainer, pl_module, batch, batch_idx))
            if events:
                self._log(trainer, pl_module)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._end()

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._before_saving(pl_module, checkpoint)

    # --- which module grows ------------------------------------------------------------------------------

    def _first_call(
        self, trainer: Trainer, pl_module: LightningModule, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        try:
            grower = self._make_grower(trainer, pl_module, path)
            if self._path == path:  # the one inside a compiled module is still to be called
                with silent(pl_module):
                    grower.watch_pass(*args, **kwargs)
        except ValueError as error:  # the reason may be that the first module is only a part of the model
            self._problem = error
            self._release()
            self.grower = None

    def _make_grower(self, trainer: Trainer, pl_module: LightningModule, path: str) -> Grower:
        module = submodule(pl_module, path)
        optimizers = optimizers_of(module, trainer.optimizers)
        averages = [average.get_submodule(path) for average in averages_of(trainer)]
        averages += [average.module for average in averages_in(pl_module, module).values()]
        if len(averages) > 1 and "ema" not in self.options:
            raise ValueError(
                f"the model has {len(averages)} averages, and only one can grow: keep one of them, or choose with "
                "GrowerCallback(ema=average)"
            )
        ema = averages[0] if averages else None
        with silent(pl_module):
            known = {"ema": ema, "training_samples": training_samples(trainer.train_dataloader)}
            self.grower = grower = Grower(module, optimizers, self.strategy, **{**known, **self.options})
        self._path, self._watching = path_of(grower.model, pl_module), True  # inside a compiled one
        return grower

    def _check_calls(self, calls: OutermostCalls) -> None:
        """After the first batch, raise an error if several modules were called or the one that was cannot grow."""
        if not calls.paths:
            warnings.warn(
                "training_step has called no module in training mode whose parameters are trained: nothing grows",
                stacklevel=2,
            )
            return
        calls.remove()
        self._calls = None
        problem, self._problem = self._problem, None
        if calls.others:
            first, *others = [path or "the LightningModule itself" for path in [calls.paths[0], *calls.others]]
            raise ValueError(
                f"training_step calls several modules itself, {first} and {', '.join(others)}, so it is not clear what "
                f"should grow: choose with GrowerCallback(module={first!r}), with one callback for each that should "
                "grow, or call self(x) in training_step (not self.forward(x)), where forward calls all of them"
            ) from problem
        if problem is not None:
            raise problem

    # --- saving and loading ------------------------------------------------------------------------------

    def _before_saving(self, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if self._owner() is not pl_module:
            return
        entry = checkpoint.setdefault(KEY, {"sizes": SavedSizes().state(), "growers": {}})
        if self._key in entry["growers"]:
            return  # both the callback and the module are asked
        sizes = _sizes_of(pl_module, self._path) or self._sizes
        entry["sizes"] = SavedSizes.from_state(entry["sizes"]).joined(sizes).state()
        state = self._state()
        if state is not None and "optimizer_states" in checkpoint:  # not if only weights are saved
            entry["growers"][self._key] = {"path": self._path, "state": state}

    def _before_loading(
        self, trainer: Trainer, pl_module: LightningModule, stage: str, checkpoint: dict[str, Any]
    ) -> None:
        if self._owner() is not pl_module:
            return resize_to_checkpoint(pl_module, checkpoint)
        self._pause()
        state = checkpoint["state_dict"]
        self._sizes = sizes_in(checkpoint) or _sizes_of(pl_module, self._path, state)  # if saved before they were known
        optimizers = [] if stage == "fit" else optimizers_of(pl_module, trainer.optimizers)  # fit makes new ones
        resize_model(pl_module, state, self._sizes, optimizer=optimizers)
        for average in averages_of(trainer):
            resize_model(average, state, self._sizes)
        saved = (checkpoint.get(KEY) or {}).get("growers", {}).get(self._key)
        self._path = self._path if saved is None else saved["path"]
        self._saved = None if saved is None else saved["state"]

    def _state(self) -> dict[str, Any] | None:
        """The state of growth, if it has begun."""
        if self._watching and self.grower is not None:
            return growth_of(self.grower) if self.grower.layers else None
        return self._saved

    def _pause(self) -> None:
        """Remove all hooks from the model, but keep the state of growth."""
        if self._calls is not None:
            self._calls.remove()
            self._calls = None
        self._saved = self._state()
        self._release()

    def _release(self) -> None:
        if self._watching and self.grower is not None:
            self.grower.detach(keep_ages=True)  # the optimizers' state may still be saved
        self._watching = False

    def _end(self) -> None:
        self._pause()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    # --- what others see ---------------------------------------------------------------------------------

    def _log(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the sizes of widths and the number of parameters."""
        assert self.grower is not None
        prefix = f"{self._path}." if self._path else ""
        metrics: dict[str, float] = {f"widths/{prefix}{name}": size for name, size in self.grower.widths.items()}
        metrics["parameters"] = sum(parameter.numel() for parameter in pl_module.parameters())
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=trainer.fit_loop.epoch_loop._batches_that_stepped)


def resize_to_checkpoint(module: LightningModule, checkpoint: dict[str, Any]) -> None:
    """Resize a LightningModule to a checkpoint that was saved with `GrowerCallback`.

    As a method of the class it makes ``load_from_checkpoint`` work, and a Trainer without the callback:

    Example:
        >>> import lightning as L
        >>> from neurogenesis.integrations.lightning import resize_to_checkpoint
        >>> class Classifier(L.LightningModule):
        ...     on_load_checkpoint = resize_to_checkpoint
    """
    resize_model(module, checkpoint["state_dict"], sizes_in(checkpoint))


def _sizes_of(pl_module: LightningModule, path: str, state: Mapping[str, Any] | None = None) -> SavedSizes:
    """The sizes of a submodule and its averages, now or in a state of the LightningModule; empty if not known."""
    module, prefix = submodule(pl_module, path), f"{path}." if path else ""
    if state is not None:
        state = {name[len(prefix) :]: value for name, value in state.items() if name.startswith(prefix)}
    sizes = SavedSizes.of(module, state)
    result = sizes.below(path)
    for average in averages_in(pl_module, module):
        result = result.joined(sizes.below(f"{average}.module"))
    return result
