"""A LightningModule grows under a Trainer, with everything that a Trainer does."""

from __future__ import annotations

import pickle
import runpy
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.fabric.utilities.warnings import PossibleUserWarning
from lightning.pytorch.callbacks import (
    Callback,
    EMAWeightAveraging,
    LearningRateFinder,
    ModelCheckpoint,
    OnExceptionCheckpoint,
    StochasticWeightAveraging,
)
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

import neurogenesis as ng
from neurogenesis.integrations.lightning import GrowerCallback, resize_to_checkpoint

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Warnings are errors, but what Lightning says of small tasks."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("ignore", PossibleUserWarning)
        for message in ("Be aware that when using `ckpt_path`", ".*fit\\(ckpt_path="):
            warnings.filterwarnings("ignore", message)
        yield


def data(batches: int = 6, batch: int = 32) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(batches * batch, 8, generator=generator)
    y = (x[:, :1] * x[:, 1:2] > 0).long().flatten()
    return DataLoader(TensorDataset(x, y), batch)


class Inner(L.LightningModule):
    """Calls its net, and never itself."""

    def __init__(self, hidden: int = 6):
        super().__init__()
        self.save_hyperparameters()
        torch.manual_seed(0)
        self.net = nn.Sequential(
            nn.Linear(8, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 2)
        )

    def run(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        loss = F.cross_entropy(self.run(x), y)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("val", F.cross_entropy(self.run(x), y))

    test_step = validation_step

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Outer(Inner):
    """Calls itself."""

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def run(self, x: Tensor) -> Tensor:
        return self(x)


class Loading(Inner):
    on_load_checkpoint = resize_to_checkpoint


def growing(**options: Any) -> GrowerCallback:
    return GrowerCallback("north-random", **{"max_width": 12, "buffer": 64, **options})


def trainer(*callbacks: Callback, path: Path | None = None, **options: Any) -> L.Trainer:
    defaults: dict[str, Any] = {"max_epochs": 2, "logger": False, "enable_checkpointing": path is not None}
    quiet_ones = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    return L.Trainer(callbacks=list(callbacks), **{**defaults, **quiet_ones, **options})  # type: ignore[arg-type]


def checkpoints(path: Path, **options: Any) -> ModelCheckpoint:
    defaults = {"filename": "{epoch}", "save_top_k": -1, "every_n_epochs": 1}
    return ModelCheckpoint(path, **{**defaults, **options})  # type: ignore[arg-type]


def sizes(module: nn.Module) -> list[int]:
    return [each.out_features for each in module.modules() if isinstance(each, nn.Linear)]


def same(first: Any, second: Any) -> bool:
    """Whether two nested states are bit-identical."""
    if isinstance(first, Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(same, first, second))
    return bool(first == second)


def same_growth(first: GrowerCallback, second: GrowerCallback) -> bool:
    assert first.grower is not None and second.grower is not None
    pairs = zip(first.grower.history.events, second.grower.history.events, strict=True)
    return all((a.step, a.width, a.before, a.after) == (b.step, b.width, b.before, b.after) for a, b in pairs)


def untouched(module: nn.Module) -> bool:
    """Whether no hooks are left on a module, nor on anything in it."""
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_load_state_dict_pre_hooks")
    hooks = any(getattr(each, name) for each in module.modules() for name in names)
    tensors = any(getattr(each, "_post_accumulate_grad_hooks", None) for each in module.parameters())
    return not hooks and not tensors and "on_load_checkpoint" not in vars(module)


# --- training ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [Inner, Outer])
def test_it_grows_as_in_a_plain_loop(make: Callable[[], Inner]) -> None:
    module, callback = make(), growing()
    trainer(callback).fit(module, data())
    plain = make()
    optimizer = plain.configure_optimizers()
    grower = ng.Grower(plain if make is Outer else plain.net, optimizer, "north-random", max_width=12, buffer=64)
    for x, y in [batch for _ in range(2) for batch in data()]:
        optimizer.zero_grad()
        F.cross_entropy(plain.run(x), y).backward()
        optimizer.step()
        grower.step()
    assert callback.grower is not None
    assert callback.grower.widths == grower.widths and sizes(module) == [12, 12, 2]
    assert same(module.state_dict(), plain.state_dict())


def test_nothing_stays_on_the_module() -> None:
    module = Inner()
    trainer(growing()).fit(module, data(), data())
    assert untouched(module)
    pickle.dumps(module)


@pytest.mark.parametrize(
    "options",
    [
        {"accumulate_grad_batches": 3},
        {"precision": "bf16-mixed"},
        {"precision": "64-true"},
        {"gradient_clip_val": 0.1},
        {"val_check_interval": 2},
    ],
    ids=str,
)
def test_the_grower_makes_the_steps_of_the_optimizer(options: dict[str, Any]) -> None:
    module, callback = Inner(), growing()
    fitting = trainer(callback, **options)
    fitting.fit(module, data(), data(2))
    assert callback.grower is not None
    assert callback.grower.steps == fitting.global_step == (4 if "accumulate_grad_batches" in options else 12)
    assert min(sizes(module.net[:3])) > 9


class Scheduled(Inner):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=12)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def test_learning_rates_follow_their_schedule() -> None:
    rates = []
    for callbacks in ([growing()], []):
        fitting = trainer(*callbacks)
        fitting.fit(Scheduled(), data())
        rates.append(fitting.optimizers[0].param_groups[0]["lr"])
    assert rates[0] == rates[1] != 0.01


class Manual(Inner):
    """Two optimizers for one network, stepped by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        for optimizer in self.optimizers():
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in self.optimizers():
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.net[0].parameters()), torch.optim.SGD(self.net[1:].parameters(), 0.1, 0.9)


def test_several_optimizers_of_one_module() -> None:
    module, callback = Manual(), growing()
    trainer(callback).fit(module, data())
    assert callback.grower is not None
    assert sizes(module) == [12, 12, 2] and callback.grower.steps == 12


class Adversarial(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 8))
        self.critic = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 1))

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x, _ = batch
        first, second = self.optimizers()
        fake = self.generator(torch.randn(len(x), 4))
        second.zero_grad()
        self.manual_backward(F.softplus(self.critic(fake.detach())).mean() + F.softplus(-self.critic(x)).mean())
        second.step()
        if batch_idx % 2 == 0:
            first.zero_grad()
            self.manual_backward(F.softplus(-self.critic(fake)).mean())
            first.step()

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.generator.parameters()), torch.optim.Adam(self.critic.parameters())


def test_two_modules_grow_with_one_callback_each_and_are_loaded_together(tmp_path: Path) -> None:
    module = Adversarial()
    callbacks = [growing(module="generator"), growing(module="critic", max_width=9)]
    fitting = trainer(*callbacks)
    fitting.fit(module, data())
    assert sizes(module) == [12, 8, 9, 1]
    assert [callback.grower.steps for callback in callbacks if callback.grower] == [6, 12]
    assert untouched(module)
    fitting.save_checkpoint(tmp_path / "last.ckpt")
    fresh, again = Adversarial(), [growing(module="generator"), growing(module="critic", max_width=9)]
    trainer(*again, max_epochs=3).fit(fresh, data(), ckpt_path=tmp_path / "last.ckpt")
    assert [callback.grower.steps for callback in again if callback.grower] == [9, 18]


class Toggled(Adversarial):
    """Each network is frozen while the other one is trained, and the first pass of the critic is a frozen one."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x, _ = batch
        first, second = self.optimizers()
        noise = torch.randn(len(x), 4)
        for optimizer in (first, second):
            self.toggle_optimizer(optimizer)
            scores = self.critic(self.generator(noise))
            loss = F.softplus(-scores) if optimizer is first else F.softplus(scores) + F.softplus(-self.critic(x))
            optimizer.zero_grad()
            self.manual_backward(loss.mean())
            optimizer.step()
            self.untoggle_optimizer(optimizer)


def test_modules_that_are_frozen_in_turn_grow() -> None:
    module = Toggled()
    trainer(growing(module="generator"), growing(module="critic", max_width=9)).fit(module, data())
    assert sizes(module) == [12, 8, 9, 1]


def test_a_pass_of_a_frozen_module_trains_nothing() -> None:
    model = Inner().net
    grower = ng.Grower(model, torch.optim.Adam(model.parameters()), "north-random")
    model.requires_grad_(False)(torch.randn(4, 8))
    assert grower.widths == {}
    model.requires_grad_(True)(torch.randn(4, 8))
    assert grower.widths == {"0": 6, "2": 6}


def test_several_called_modules_are_a_question_to_the_user() -> None:
    with pytest.raises(ValueError, match=r"several modules itself, generator and critic.*GrowerCallback\(module="):
        trainer(growing()).fit(Adversarial(), data())


class Parts(Inner):
    """Calls its layers, by a call of forward that is none of the module."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = self.net[0], self.net[2:]
        del self.net

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).relu())

    def run(self, x: Tensor) -> Tensor:
        return self.forward(x)


def test_a_call_of_forward_is_a_question_to_the_user_too() -> None:
    with pytest.raises(ValueError, match=r"itself, first and last.*call self\(x\) in training_step \(not self.forward"):
        trainer(growing()).fit(Parts(), data())


def test_why_the_called_module_cannot_grow_is_told() -> None:
    module = Inner()
    module.net = module.net[0]
    with pytest.raises(ValueError, match="no width of this model can grow"):
        trainer(growing()).fit(module, data())


def test_a_module_in_evaluation_mode_is_told() -> None:
    class Evaluated(Inner):
        def on_train_start(self) -> None:
            self.net.eval()

    with pytest.warns(UserWarning, match="called no module in training mode"):
        trainer(growing()).fit(Evaluated(), data())


def test_a_module_that_is_compiled_as_a_whole_is_refused() -> None:
    with pytest.raises(RuntimeError, match="compile the network inside"):
        trainer(growing()).fit(torch.compile(Inner(), backend="eager"), data())


def test_a_model_that_is_wrapped_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SingleDeviceStrategy, "_setup_model", lambda self, model: nn.DataParallel(model))
    with pytest.raises(RuntimeError, match="wraps the model in DataParallel"):
        trainer(growing()).fit(Inner(), data())


def test_a_compiled_module_grows_and_is_resumed(tmp_path: Path) -> None:
    warnings.simplefilter("ignore")  # the compiler has its own

    def make() -> Inner:
        module = Inner()
        module.net = torch.compile(module.net, backend="eager")  # type: ignore[assignment]
        return module

    fitting, module, fresh = trainer(growing()), make(), make()
    fitting.fit(module, data())
    fitting.save_checkpoint(tmp_path / "last.ckpt")
    trainer(growing()).fit(fresh, data(), ckpt_path=tmp_path / "last.ckpt")
    assert sizes(fresh) == [12, 12, 2] and same(fresh.state_dict(), module.state_dict())
    trainer(growing()).fit(plain := Inner(), data())
    assert same(list(module.parameters()), list(plain.parameters()))


class Frozen(Inner):
    """Training calls a frozen part, a loss with no parameters, and then the head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8).requires_grad_(False)
        self.loss = nn.CrossEntropyLoss()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        return {"loss": self.loss(self.net(self.body(x)), y)}


def test_only_modules_that_are_trained_count() -> None:
    module = Frozen()
    trainer(growing()).fit(module, data())
    assert module.net[0].out_features == 12


def test_the_module_to_grow_can_be_chosen() -> None:
    module, callback = Outer(), growing(module="net")
    trainer(callback).fit(module, data())
    assert callback.grower is not None and list(callback.grower.widths) == ["0", "2"]


def test_unknown_arguments_and_modules_are_named() -> None:
    with pytest.raises(TypeError, match="max_widht: no argument of Grower"):
        GrowerCallback(max_widht=2)
    with pytest.raises(ValueError, match="module='nett': Inner has no such submodule; it has 'net'"):
        trainer(growing(module="nett")).fit(Inner(), data())


class Convolutional(Inner):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Unflatten(1, (1, 8)), nn.Conv1d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(18, 2))


class OnlyBatch(Convolutional):
    def training_step(self, batch: Any) -> Any:  # type: ignore[override]
        return super().training_step(batch, 0)


class AnyArguments(Convolutional):
    def training_step(self, *args: Any) -> Any:
        batch, number = args
        return super().training_step(batch, number)


@pytest.mark.parametrize("make", [Convolutional, OnlyBatch, AnyArguments])
def test_a_strategy_that_evaluates_the_loss_again_gets_it(make: type[Convolutional]) -> None:
    module, callback = make(), GrowerCallback("nest", max_width=4)
    trainer(callback).fit(module, data())
    assert callback.grower is not None and callback.grower.widths == {"1": 4}
    assert untouched(module) and "log" not in vars(module)


# --- checkpoints ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (Inner, {}),
        (Inner, {"precision": "bf16-mixed"}),
        (Inner, {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1}),
        (Outer, {}),
        (Scheduled, {}),
        (Manual, {}),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_resumed_training_is_that_of_an_uninterrupted_run(
    make: Callable[[], Inner], options: dict[str, Any], tmp_path: Path
) -> None:
    whole, callback = make(), growing(every=3)
    first = trainer(callback, checkpoints(tmp_path), path=tmp_path, **options)
    first.fit(whole, data())
    resumed, again = make(), growing(every=3)
    second = trainer(again, **options)
    second.fit(resumed, data(), ckpt_path=tmp_path / "epoch=0.ckpt")
    early = torch.load(tmp_path / "epoch=0.ckpt", weights_only=True)["state_dict"]
    assert len(early["net.0.weight"]) > 6
    assert same(whole.state_dict(), resumed.state_dict())
    assert same([each.state_dict() for each in first.optimizers], [each.state_dict() for each in second.optimizers])
    assert same_growth(callback, again)


def test_training_goes_on_from_a_checkpoint_that_was_saved_after_it(tmp_path: Path) -> None:
    whole, callback = Inner(), growing(every=3)
    trainer(callback, max_epochs=4).fit(whole, data())
    half, resumed, again = Inner(), Inner(), growing(every=3)
    fitting = trainer(growing(every=3))
    fitting.fit(half, data())
    fitting.save_checkpoint(tmp_path / "last.ckpt")
    trainer(again, max_epochs=4).fit(resumed, data(), ckpt_path=tmp_path / "last.ckpt")
    assert same(whole.state_dict(), resumed.state_dict()) and same_growth(callback, again)


def test_a_checkpoint_is_loaded_without_the_trainer(tmp_path: Path) -> None:
    fitting, module = trainer(growing()), Loading()
    fitting.fit(module, data())
    fitting.save_checkpoint(tmp_path / "last.ckpt")
    for loaded in (Loading.load_from_checkpoint(tmp_path / "last.ckpt"), Inner(), Inner().net):
        if not isinstance(loaded, Loading):
            ng.load_state_dict(loaded, tmp_path / "last.ckpt")
        state = (module if isinstance(loaded, Inner) else module.net).state_dict()
        assert same(state, loaded.state_dict()) and sizes(loaded) == [12, 12, 2]
    trainer().test(Loading(), data(), ckpt_path=tmp_path / "last.ckpt", verbose=False)


def test_widths_of_the_whole_module_stay_current_when_a_checkpoint_is_loaded(tmp_path: Path) -> None:
    fitting, module = trainer(growing()), Outer()
    fitting.fit(module, data())
    fitting.save_checkpoint(tmp_path / "last.ckpt")
    loaded = Outer()
    found = ng.widths(loaded, torch.zeros(2, 8))
    resize_to_checkpoint(loaded, torch.load(tmp_path / "last.ckpt", weights_only=True))
    assert found.sizes == {"net.0": 12, "net.2": 12} and found.differs_from(loaded) is None
    loaded.load_state_dict(module.state_dict())


def test_a_checkpoint_of_weights_alone_has_the_sizes(tmp_path: Path) -> None:
    trainer(growing(), checkpoints(tmp_path, save_weights_only=True), path=tmp_path).fit(Loading(), data())
    assert sizes(Loading.load_from_checkpoint(tmp_path / "epoch=1.ckpt")) == [12, 12, 2]


def test_a_checkpoint_from_before_the_callback_says_what_to_do(tmp_path: Path) -> None:
    fitting = trainer(max_epochs=1)
    fitting.fit(Loading(hidden=7), data())
    fitting.save_checkpoint(tmp_path / "last.ckpt")
    with pytest.raises(ValueError, match=r"net.0.weight has shape \(7, 8\) in the state.*load_state_dict"):
        trainer(growing()).fit(Inner(), data(), ckpt_path=tmp_path / "last.ckpt")


def test_the_best_checkpoint_may_be_smaller(tmp_path: Path) -> None:
    module, callback = Inner(), growing(every=3)
    saving = checkpoints(tmp_path, monitor="val", mode="max", save_top_k=1, every_n_train_steps=None)
    fitting = trainer(callback, saving, path=tmp_path, max_epochs=3)
    fitting.fit(module, data(), data(2))
    assert sizes(module) == [12, 12, 2]
    (metrics,) = fitting.test(module, data(2), ckpt_path="best", verbose=False)
    smaller = sizes(module)
    assert smaller[0] < 12 and metrics["val"] == pytest.approx(float(saving.best_model_score or 0))
    assert untouched(module)
    for optimizer in fitting.optimizers:
        assert all(state["exp_avg"].shape == each.shape for each, state in optimizer.state.items())
    fitting.save_checkpoint(tmp_path / "again.ckpt")  # what was tested, with its growth
    fresh = Inner()
    trainer(growing(every=3), max_epochs=6).fit(fresh, data(), ckpt_path=tmp_path / "again.ckpt")
    assert sizes(fresh) == [12, 12, 2]
    trainer(callback, max_epochs=6).fit(module, data())
    assert callback.grower is not None
    assert sizes(module) == [12, 12, 2] and callback.grower.steps == 6 + 36  # from the growth of that checkpoint


def test_fitting_again_goes_on_and_another_module_starts_anew() -> None:
    module, callback = Inner(), growing(max_width=1.5)
    trainer(callback).fit(module, data())
    assert sizes(module) == [9, 9, 2]
    trainer(callback).fit(module, data())
    assert callback.grower is not None
    assert sizes(module) == [9, 9, 2] and callback.grower.steps == 24
    other = Inner(hidden=4)
    trainer(callback).fit(other, data())
    assert sizes(other) == [6, 6, 2] and callback.grower.steps == 12


def test_testing_another_module_leaves_growth_alone(tmp_path: Path) -> None:
    module, callback = Loading(), growing()
    fitting = trainer(callback)
    fitting.fit(module, data())
    fitting.save_checkpoint(tmp_path / "last.ckpt")
    fitting.test(Inner(), data(2), ckpt_path=tmp_path / "last.ckpt", verbose=False)
    fitting.test(Loading.load_from_checkpoint(tmp_path / "last.ckpt"), data(2), verbose=False)
    assert callback.grower is not None and callback.grower.steps == 12
    trainer(callback).fit(module, data())
    assert callback.grower.steps == 24


def test_a_checkpoint_from_before_the_first_batch_shrinks_the_model(tmp_path: Path) -> None:
    module, fitting = Inner(), trainer(growing())
    trainer(max_epochs=1).validate(module, data(1), verbose=False)
    early = trainer(growing(), max_epochs=0)
    early.fit(module, data())
    early.save_checkpoint(tmp_path / "first.ckpt")
    fitting.fit(module, data())
    assert sizes(module) == [12, 12, 2]
    fitting.test(module, data(2), ckpt_path=tmp_path / "first.ckpt", verbose=False)
    assert sizes(module) == [6, 6, 2] and module.net[2].in_features == 6
    assert same(module.state_dict(), Inner().state_dict())
    fitting.save_checkpoint(tmp_path / "again.ckpt")
    assert ng.load_state_dict(Inner(hidden=5), tmp_path / "again.ckpt") == {"net.0": 6, "net.2": 6}


class Failing(Inner):
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.global_step == 8:
            raise KeyError("the disk is full")


def test_an_interrupted_run_is_saved_and_goes_on(tmp_path: Path) -> None:
    whole, callback = Inner(), growing(every=3)
    trainer(callback).fit(whole, data())
    module, interrupted = Failing(), growing(every=3)
    with pytest.raises(KeyError, match="disk"):
        trainer(interrupted, OnExceptionCheckpoint(tmp_path), path=tmp_path).fit(module, data())
    state = torch.load(tmp_path / "on_exception.ckpt", weights_only=True)
    growth = state["neurogenesis"]["growers"][""]["state"]
    assert growth["steps"] == 8 and "sizes" not in growth  # which are beside it
    trainer(interrupted).fit(other := Inner(), data())
    assert same(whole.state_dict(), other.state_dict()) and untouched(other)


def test_looking_for_a_learning_rate_leaves_no_growth_behind(tmp_path: Path) -> None:
    class Tuned(Inner):
        def __init__(self) -> None:
            super().__init__()
            self.lr = 0.01

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=self.lr)

    module, callback = Tuned(), growing()
    found = LearningRateFinder(num_training_steps=8, attr_name="lr", update_attr=False, early_stop_threshold=None)
    trainer(callback, found, default_root_dir=tmp_path).fit(module, data())
    plain, without = Inner(), growing()
    trainer(without).fit(plain, data())
    assert same(module.net.state_dict(), plain.net.state_dict()) and same_growth(callback, without)


# --- averages ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
def test_an_average_of_the_weights_grows_too(first: bool, tmp_path: Path) -> None:
    def callbacks() -> list[Any]:
        pair = [growing(every=3), EMAWeightAveraging(decay=0.8)]
        return pair if first else pair[::-1]

    whole, averaged = Loading(), callbacks()
    trainer(*averaged, checkpoints(tmp_path), path=tmp_path, max_epochs=3).fit(whole, data(), data(2))
    assert sizes(whole) == [12, 12, 2]  # the average was copied to the module
    resumed = Loading()
    trainer(*callbacks(), max_epochs=3).fit(resumed, data(), data(2), ckpt_path=tmp_path / "epoch=0.ckpt")
    assert same(whole.state_dict(), resumed.state_dict())
    last = Loading.load_from_checkpoint(tmp_path / "epoch=2.ckpt")
    assert same(last.state_dict(), whole.state_dict())  # the average
    fitting = trainer(*averaged)
    fitting.test(whole, data(2), ckpt_path=tmp_path / "epoch=0.ckpt", verbose=False)
    assert sizes(whole) == sizes(Loading.load_from_checkpoint(tmp_path / "epoch=0.ckpt")) != [12, 12, 2]


def test_the_average_of_the_last_epochs_grows_too() -> None:
    module, callback = Inner(), growing()
    trainer(callback, StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=1), max_epochs=3).fit(module, data())
    assert sizes(module) == [12, 12, 2] and all(each.isfinite().all() for each in module.parameters())


class OwnAverage(Loading):
    """Keeps an average of its network itself."""

    def __init__(self) -> None:
        super().__init__()
        self.average = AveragedModel(self.net, multi_avg_fn=get_ema_multi_avg_fn(0.8))

    def on_train_batch_end(self, *_: Any) -> None:
        self.average.update_parameters(self.net)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.net.parameters(), lr=0.01)


def test_an_average_inside_the_module_grows_too(tmp_path: Path) -> None:
    whole, resumed = OwnAverage(), OwnAverage()
    trainer(growing(every=3), checkpoints(tmp_path), path=tmp_path).fit(whole, data())
    assert sizes(whole.average)[0] == whole.net[0].out_features > 6
    trainer(growing(every=3)).fit(resumed, data(), ckpt_path=tmp_path / "epoch=0.ckpt")
    assert same(whole.state_dict(), resumed.state_dict())
    assert same(whole.state_dict(), OwnAverage.load_from_checkpoint(tmp_path / "epoch=1.ckpt").state_dict())


class OtherAverages(OwnAverage):
    """Has averages of other networks, too."""

    def __init__(self, *others: nn.Module) -> None:
        super().__init__()
        self.others = nn.ModuleList(map(AveragedModel, others))


def test_an_average_of_another_network_is_left_alone() -> None:
    module = OtherAverages(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)))
    trainer(growing(every=3)).fit(module, data())
    assert sizes(module.average)[0] == module.net[0].out_features > 6
    assert sizes(module.others[0]) == [5, 2]


def test_the_average_that_grows_can_be_chosen() -> None:
    module = OtherAverages(OwnAverage().net)
    with pytest.raises(ValueError, match=r"has 2 averages.*choose with GrowerCallback\(ema=average\)"):
        trainer(growing()).fit(module, data())
    trainer(growing(every=3, ema=module.average)).fit(module, data())
    assert sizes(module.average)[0] == module.net[0].out_features > 6
    assert sizes(module.others[0]) == [6, 6, 2]


# --- loggers -------------------------------------------------------------------------------------------


def test_loggers_get_the_sizes(tmp_path: Path) -> None:
    class Recording(DummyLogger):
        seen: list[tuple[int, dict[str, float]]]

        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            if "parameters" in metrics:
                self.seen.append((step or 0, metrics))

    logger, callback, module = Recording(), growing(every=3), Inner()
    logger.seen = []
    trainer(callback, logger=[logger, CSVLogger(tmp_path)]).fit(module, data())
    assert callback.grower is not None
    steps = dict.fromkeys(event.step for event in callback.grower.history.events)
    assert [step for step, _ in logger.seen] == [0, *(step - 1 for step in steps)]
    assert logger.seen[0][1] == {"widths/net.0": 6, "widths/net.2": 6, "parameters": 110}
    assert logger.seen[-1][1]["widths/net.0"] == sizes(module)[0] > 6
    table = next(tmp_path.rglob("metrics.csv")).read_text().splitlines()
    assert "widths/net.0" in table[0]


def test_what_forward_logs_is_logged_once_for_each_pass() -> None:
    logged = []

    class Logging(Outer):
        def forward(self, x: Tensor) -> Tensor:
            self.log("norm", x.norm())
            return self.net(x)

        def log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
            logged.append(name)
            super().log(name, value, *args, **kwargs)

    module = Logging()
    trainer(growing()).fit(module, data())
    assert logged.count("norm") == logged.count("loss") == 12 and sizes(module) == [12, 12, 2]


# --- without the callback ------------------------------------------------------------------------------


class OwnGrower(Inner):
    """Makes a grower of its own: before the Trainer, with the optimizer, or when training starts."""

    def __init__(self, when: str) -> None:
        super().__init__()
        self.when = when
        self.optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        self.make_grower("before fit", self.optimizer)

    def make_grower(self, now: str, optimizer: Any) -> None:
        if now == self.when:
            self.grower = ng.Grower(self.net, optimizer, "north-random", max_width=12, buffer=64)

    def configure_optimizers(self) -> Any:
        self.make_grower("configure_optimizers", self.optimizer)
        return self.optimizer

    def on_fit_start(self) -> None:
        self.make_grower("on_fit_start", self.optimizers())

    def on_train_batch_end(self, *_: Any) -> None:
        self.grower.step()


@pytest.mark.parametrize("when", ["before fit", "configure_optimizers", "on_fit_start"])
def test_a_grower_of_the_users_own_works(when: str) -> None:
    module, callback = OwnGrower(when), growing()
    trainer().fit(module, data(), data(2))
    plain = Inner()
    trainer(callback).fit(plain, data())
    assert same(module.state_dict(), plain.state_dict())


def test_a_grower_of_a_module_that_is_never_called_says_so() -> None:
    class Never(OwnGrower):
        def configure_optimizers(self) -> Any:
            optimizer = Inner.configure_optimizers(self)
            self.grower = ng.Grower(self, optimizer)
            return optimizer

    with pytest.warns(UserWarning, match="the model itself rather than its parts"):
        trainer().fit(Never("never"), data())


def test_the_other_package_works_too(monkeypatch: pytest.MonkeyPatch) -> None:
    import pytorch_lightning as pl

    monkeypatch.delitem(sys.modules, "lightning.pytorch")
    found = find_spec("neurogenesis.integrations.lightning")
    assert found is not None and found.loader is not None
    again = module_from_spec(found)
    found.loader.exec_module(again)

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = Inner().net

        def training_step(self, batch: Any) -> Tensor:
            return self.net(batch[0]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters())

    callback = again.GrowerCallback("north-random", max_width=12, buffer=64)
    assert isinstance(callback, pl.Callback) and not isinstance(callback, Callback)
    options = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu", "logger": False}
    fitting = pl.Trainer(callbacks=callback, max_epochs=2, enable_checkpointing=False, **options)
    fitting.fit(Module(), data())
    assert callback.grower.widths == {"0": 12, "2": 12}


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    warnings.simplefilter("ignore")  # that the directory of checkpoints exists
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "examples" / "lightning_digits.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "the best: " in printed and "goes on: " in printed
