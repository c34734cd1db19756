"""A training run goes back to a snapshot, or to a file, although its models have other sizes by then."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import neurogenesis as ng
from tests.growing import always, mlp

X = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
DATA = Path(__file__).parents[1] / "data"


@dataclass
class Training:
    """A model with everything that is trained beside it."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    grower: ng.Grower
    ema: AveragedModel
    scheduler: lr_scheduler.LRScheduler

    @staticmethod
    def start(strategy: Any = "need", sizes: tuple[int, ...] = (6, 4, 4, 3), **options: Any) -> Training:
        model = mlp(*sizes)
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        grower = ng.Grower(model, optimizer, strategy, **{"buffer": 128, "max_width": 20, "ema": ema, **options})
        return Training(model, optimizer, grower, ema, lr_scheduler.CosineAnnealingLR(optimizer, 50))

    def steps(self, numbers: range) -> list[float]:
        losses = []
        for number in numbers:
            x = torch.randn(64, 6, generator=torch.Generator().manual_seed(number))
            loss = (self.model(x) - x[:, :3].abs() + x[:, 3:]).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.grower.step()
            self.scheduler.step()
            self.ema.update_parameters(self.model)
            losses.append(float(loss.detach()))
        return losses

    @property
    def objects(self) -> tuple[nn.Module, torch.optim.Optimizer, ng.Grower]:
        return self.model, self.optimizer, self.grower

    def snapshot(self, **named: Any) -> ng.Snapshot:
        return ng.snapshot(*self.objects, others=self.scheduler, **named)

    def restore(self, snapshot: ng.Snapshot) -> dict[str, Any]:
        return ng.restore(snapshot, *self.objects, others=self.scheduler)

    @property
    def state(self) -> dict[str, Any]:
        """Everything that there is, copied."""
        growth = self.grower.state_dict()
        for event in growth["history"]["events"]:
            event["seconds"] = 0.0
        return copy.deepcopy(
            {
                "model": self.model.state_dict(),
                "attributes": [(m.in_features, m.out_features) for m in self.model.modules() if type(m) is nn.Linear],
                "optimizer": self.optimizer.state_dict(),
                "grower": growth,
                "ema": self.ema.state_dict(),
                "scheduler": self.scheduler.state_dict(),
            }
        )


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from leaves(each, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for number, each in enumerate(value):
            yield from leaves(each, f"{path}[{number}]")
    else:
        yield path, value


def differing(first: Any, second: Any) -> list[str]:
    """Where two states differ."""
    one, other = dict(leaves(first)), dict(leaves(second))
    if one.keys() != other.keys():
        return sorted(one.keys() ^ other.keys())
    return [path for path, value in one.items() if not same(value, other[path])]


def same(value: Any, other: Any) -> bool:
    if isinstance(value, Tensor):
        return isinstance(other, Tensor) and value.dtype == other.dtype and torch.equal(value, other)
    return bool(value == other)


# --- snapshots -------------------------------------------------------------------------------------------

GROWING = {"need": "need", "north-random": "north-random", "north-integrated": "north-integrated", "gradmax": "gradmax"}


@pytest.mark.parametrize("strategy", GROWING)
@pytest.mark.parametrize("cut", [0, 1, 7])
def test_training_after_restoring_is_that_after_the_snapshot(strategy: str, cut: int) -> None:
    run = Training.start(strategy)
    run.steps(range(cut))
    before, best = run.state, run.snapshot(extra={"epoch": cut})
    widths = run.grower.widths
    expected = run.steps(range(cut, 30))
    after = run.state
    assert run.grower.widths != widths  # it has grown in between
    for _ in range(2):
        assert run.restore(best) == {"epoch": cut}
        assert not differing(run.state, before)
        assert run.grower.widths == widths
        assert run.steps(range(cut, 30)) == expected
        assert not differing(run.state, after)


def test_a_snapshot_is_restored_into_a_larger_and_into_a_smaller_run() -> None:
    run = Training.start("north-random")
    run.steps(range(2))
    small, early = run.snapshot(), run.state
    run.steps(range(2, 20))
    large, late = run.snapshot(), run.state
    assert small.widths != large.widths == run.grower.widths
    parameters = list(run.model.parameters())
    for each, state in ((small, early), (large, late), (small, early)):
        run.restore(each)
        assert not differing(run.state, state)
    assert all(a is b for a, b in zip(parameters, run.model.parameters(), strict=True))
    other = Training.start("north-random")
    other.restore(large)
    assert not differing(other.state, late)


def test_a_snapshot_remembers_neurons_that_are_dropped_and_pruned_later() -> None:
    run = Training.start(ng.Strategy(always(2)), prune=True)
    run.steps(range(5))
    before, best = run.state, run.snapshot()
    expected = run.steps(range(5, 12))
    with torch.no_grad():
        run.model[0].weight[:3], run.model[0].bias[:3] = 0.0, -1.0  # dead from now on
    run.steps(range(12, 80))
    assert any(event.after < event.before for event in run.grower.history)
    ng.shrink(run.model, "2", [1, 3], optimizer=run.optimizer, ema=run.ema)
    run.restore(best)
    assert not differing(run.state, before)
    assert run.steps(range(5, 12)) == expected


def test_a_model_that_was_pruned_is_as_it_was() -> None:
    run = Training.start("north-random")
    run.steps(range(20))
    before, best = run.state, run.snapshot()
    ng.prune(run.model, X.repeat(40, 1), optimizer=run.optimizer, ema=run.ema, to=3)
    assert run.model[0].out_features < best.widths["0"]
    run.restore(best)
    assert not differing(run.state, before)


def test_widths_that_were_measured_later_are_measured_again_in_the_untrained_model() -> None:
    """The widths have enough samples after one, two and three batches."""
    run = Training.start("north-random", sizes=(6, 20, 40, 70, 3), max_width=140, buffer=256)
    run.optimizer.param_groups[0]["lr"] = 0.3  # so that the trained model is soon another one
    run.steps(range(1))
    best = run.snapshot()
    expected = run.steps(range(1, 6))
    state = run.state
    run.restore(best)
    assert run.steps(range(1, 6)) == expected
    assert not differing(run.state, state)


def test_a_snapshot_before_the_first_pass_waits_for_it_again() -> None:
    run = Training.start("north-random")
    best = run.snapshot()
    run.steps(range(10))
    hooks = sum(len(parameter._post_accumulate_grad_hooks or ()) for parameter in run.model.parameters())
    run.restore(best)
    assert run.grower.widths == {} and run.grower.steps == 0
    assert not any(parameter._post_accumulate_grad_hooks for parameter in run.model.parameters())
    run.steps(range(10))
    assert sum(len(parameter._post_accumulate_grad_hooks or ()) for parameter in run.model.parameters()) == hooks


def test_training_and_restoring_leave_a_snapshot_as_it_was() -> None:
    run = Training.start()
    run.steps(range(8))
    best = run.snapshot(extra={"best": torch.ones(2)})
    content = copy.deepcopy(best._content)
    run.steps(range(8, 20))
    run.restore(best)["best"].zero_()
    run.steps(range(8, 20))
    assert not differing(best._content, content)
    held = {value.untyped_storage().data_ptr() for _, value in leaves(best._content) if isinstance(value, Tensor)}
    live = [value for _, value in leaves([run.model.state_dict(), run.optimizer.state_dict()])]
    live += [value for _, value in leaves(run.grower.state_dict())]
    assert not any(value.untyped_storage().data_ptr() in held for value in live if isinstance(value, Tensor))


def test_of_inputs_that_are_slices_only_the_slice_is_copied() -> None:
    run, data = Training.start("north-random"), torch.randn(100_000, 6)
    run.model(data[:64]).square().mean().backward()
    run.optimizer.step()
    run.grower.step()
    stored = [value for _, value in leaves(run.snapshot()._content) if isinstance(value, Tensor)]
    assert max(value.untyped_storage().nbytes() for value in stored) < 100_000
    file = io.BytesIO()
    ng.save(file, *run.objects)
    assert len(file.getvalue()) < 200_000


class WithMask(nn.Module):
    """A buffer with one value per neuron that is not part of the state."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 4), nn.Linear(4, 3)
        self.register_buffer("scale", torch.ones(4), persistent=False)

    def forward(self, x: Tensor) -> Any:
        return self.last(self.first(x).relu() * self.scale)


def test_buffers_that_are_not_part_of_the_state_are_restored_too() -> None:
    model = WithMask()
    model.scale.copy_(torch.arange(4))
    best = ng.snapshot(model)
    ng.shrink(model, "first", [1, 2], example=X)
    assert model.scale.tolist() == [0, 3]
    ng.restore(best, model)
    assert model.scale.tolist() == [0, 1, 2, 3]


def test_files_have_the_buffers_of_widths_that_are_not_part_of_the_state() -> None:
    model, file = WithMask(), io.BytesIO()
    ema = AveragedModel(model)
    model.scale.copy_(torch.arange(4))
    ng.grow(model, "first", 2, example=X, ema=ema)
    model.scale[4:], ema.module.scale[4:] = 5.0, 6.0
    ng.save(file, model, ema=ema)
    file.seek(0)
    fresh = WithMask()
    average = AveragedModel(fresh)
    ng.load(file, fresh, ema=average)
    assert fresh.scale.tolist() == [0, 1, 2, 3, 5, 5] and average.module.scale.tolist() == [1, 1, 1, 1, 6, 6]
    assert torch.equal(fresh(X), model(X)) and torch.equal(average(X), ema(X))


def test_the_layout_of_memory_is_restored() -> None:
    """Kernels of convolutions depend on it, and with them the last bits."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 3)).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    x = torch.randn(2, 2, 8, 8).to(memory_format=torch.channels_last)

    def train(steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = model(x).sin().mean()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        return losses

    train(2)
    best = ng.snapshot(model, optimizer)
    tensors = [*model.parameters(), *(each["momentum_buffer"] for each in optimizer.state.values())]
    strides, expected = [tensor.stride() for tensor in tensors], train(3)
    ng.grow(model, "0", 3, optimizer=optimizer, example=x)
    ng.restore(best, model, optimizer)
    tensors = [*model.parameters(), *(each["momentum_buffer"] for each in optimizer.state.values())]
    assert [tensor.stride() for tensor in tensors] == strides
    assert train(3) == expected


def test_the_model_alone_is_restored_and_its_growers_sizes_follow() -> None:
    run = Training.start()
    run.steps(range(3))
    best, before = ng.snapshot(run.model), copy.deepcopy(run.model.state_dict())
    run.steps(range(3, 25))
    steps = run.grower.steps
    ng.restore(best, run.model)
    assert not differing(run.model.state_dict(), before)
    assert run.grower.widths == best.widths and run.grower.steps == steps


@pytest.mark.parametrize(
    "make",
    [
        lambda each: lr_scheduler.MultiStepLR(each, [2, 9]),
        lambda each: lr_scheduler.LambdaLR(each, lambda epoch: 0.9**epoch),
        lambda each: lr_scheduler.OneCycleLR(each, 0.1, total_steps=30),
        lambda each: lr_scheduler.CyclicLR(each, 0.01, 0.1, step_size_up=4, cycle_momentum=False),
        lambda each: lr_scheduler.SequentialLR(
            each, [lr_scheduler.ConstantLR(each), lr_scheduler.ExponentialLR(each, 0.9)], [4]
        ),
    ],
    ids=["multi step", "lambda", "one cycle", "cyclic", "sequential"],
)
def test_schedulers_and_scalers_go_on_from_snapshots_and_files(make: Callable[[Any], Any], tmp_path: Path) -> None:
    def start() -> tuple[nn.Module, torch.optim.Optimizer, list[Any]]:
        model = mlp(6, 4, 3)
        optimizer = torch.optim.Adam(model.parameters(), 0.1)
        return model, optimizer, [make(optimizer), torch.amp.GradScaler("cpu", init_scale=8.0)]

    def rates(optimizer: torch.optim.Optimizer, scheduler: Any, count: int) -> list[float]:
        result = []
        for _ in range(count):
            optimizer.step()
            scheduler.step()
            result.append(optimizer.param_groups[0]["lr"])
        return result

    model, optimizer, others = start()
    rates(optimizer, others[0], 6)
    best = ng.snapshot(model, optimizer, others=others)
    ng.save(tmp_path / "run.pt", model, optimizer, others=others)
    torch.load(tmp_path / "run.pt", weights_only=True)
    expected = rates(optimizer, others[0], 6)
    ng.restore(best, model, optimizer, others=others)
    assert rates(optimizer, others[0], 6) == expected
    model, optimizer, others = start()
    others[1] = torch.amp.GradScaler("cpu")
    ng.load(tmp_path / "run.pt", model, optimizer, others=others)
    assert rates(optimizer, others[0], 6) == expected
    assert others[1].state_dict()["scale"] == 8.0


class Odd:
    """A scheduler whose state is more than plain values."""

    def state_dict(self) -> dict[str, Any]:
        return {"rate": [self.state_dict]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def test_others_that_could_not_be_saved_or_loaded_are_named(tmp_path: Path) -> None:
    model = mlp(6, 4, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = lr_scheduler.StepLR(optimizer, 3)
    with pytest.raises(TypeError, match=r"cannot save others\[0\].state.rate\[0\], a method"):
        ng.save(tmp_path / "run.pt", model, others=Odd())
    with pytest.raises(
        TypeError, match=r"others: expected objects with state_dict\(\).* not 3: pass plain values as extra="
    ):
        ng.snapshot(model, others=[scheduler, 3])
    with pytest.raises(TypeError, match=r"others: a AveragedModel must be resized with the model: pass it as .* ema="):
        ng.snapshot(model, others=AveragedModel(model))
    best = ng.snapshot(model, optimizer, others=scheduler)
    other = lr_scheduler.ExponentialLR(optimizer, 0.9)
    with pytest.raises(ValueError, match="others: the snapshot has the state of StepLR, not of ExponentialLR"):
        ng.restore(best, model, optimizer, others=other)


# --- averages --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["averaged model", "copy"])
def test_averages_without_a_grower_are_resized(kind: str, tmp_path: Path) -> None:
    def start() -> tuple[nn.Module, nn.Module]:
        model = mlp(6, 4, 3)
        return model, AveragedModel(model) if kind == "averaged model" else copy.deepcopy(model)

    model, ema = start()
    with torch.no_grad():
        for parameter in ema.parameters():
            parameter.mul_(3)
    best, small = ng.snapshot(model, ema=ema), copy.deepcopy(ema.state_dict())
    ng.grow(model, "0", 3, example=X, ema=ema)
    large = copy.deepcopy(ema.state_dict())
    ng.save(tmp_path / "run.pt", model, ema=ema)
    ng.restore(best, model, ema=ema)
    assert not differing(ema.state_dict(), small)
    again, average = start()
    ng.load(tmp_path / "run.pt", again, ema=average)
    assert not differing(average.state_dict(), large)
    with pytest.raises(ValueError, match="has no state of an average: pass no ema="):
        ng.restore(ng.snapshot(model), model, ema=ema)
    with pytest.raises(ValueError, match="ema: it is no average of this model"):
        ng.snapshot(model, ema=mlp(6, 4, 4, 3))


# --- several models --------------------------------------------------------------------------------------


class Pair:
    """An encoder and a decoder with a grower each and one optimizer for both."""

    def __init__(self) -> None:
        self.encoder, self.decoder = mlp(6, 3, 2), mlp(2, 4, 6)
        self.optimizer = torch.optim.Adam([*self.encoder.parameters(), *self.decoder.parameters()], 1e-2)
        self.growers = [
            ng.Grower(model, self.optimizer, ng.Strategy(always(count)), max_width=20, buffer=64)
            for model, count in ((self.encoder, 1), (self.decoder, 2))
        ]

    @property
    def models(self) -> dict[str, nn.Module]:
        return {"encoder": self.encoder, "decoder": self.decoder}

    def steps(self, numbers: range) -> list[float]:
        losses = []
        for number in numbers:
            x = torch.randn(64, 6, generator=torch.Generator().manual_seed(number))
            loss = (self.decoder(self.encoder(x)) - x).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            for grower in self.growers:
                grower.step()
            losses.append(float(loss.detach()))
        return losses

    @property
    def state(self) -> dict[str, Any]:
        states = {name: model.state_dict() for name, model in self.models.items()}
        return copy.deepcopy({**states, "optimizer": self.optimizer.state_dict()})


def test_models_that_share_an_optimizer_are_saved_and_restored_together(tmp_path: Path) -> None:
    pair = Pair()
    pair.steps(range(3))
    before, best = pair.state, ng.snapshot(pair.models, pair.optimizer, pair.growers)
    ng.save(tmp_path / "pair.pt", pair.models, pair.optimizer, pair.growers)
    assert best.widths == {"encoder.0": 6, "decoder.0": 10}
    expected = pair.steps(range(3, 7))
    ng.restore(best, pair.models, pair.optimizer, reversed(pair.growers))
    assert not differing(pair.state, before)
    assert pair.steps(range(3, 7)) == expected
    fresh = Pair()
    named = {"decoder": fresh.growers[1], "encoder": fresh.growers[0]}
    ng.load(tmp_path / "pair.pt", fresh.models, fresh.optimizer, named)
    assert not differing(fresh.state, before)
    assert fresh.steps(range(3, 7)) == expected


def test_some_models_of_a_file_are_loaded_by_name(tmp_path: Path) -> None:
    pair = Pair()
    pair.steps(range(3))
    ng.save(tmp_path / "pair.pt", pair.models, pair.optimizer, pair.growers)
    decoder = mlp(2, 4, 6)
    ng.load(tmp_path / "pair.pt", {"decoder": decoder})
    assert not differing(decoder.state_dict(), pair.decoder.state_dict())
    with pytest.raises(
        ValueError, match=r"several times, after 'encoder.' and 'decoder.'.*load\(file, {name: model}\)"
    ):
        ng.load_state_dict(mlp(6, 3, 2), tmp_path / "pair.pt")
    deep = mlp(6, 4, 3, 2)
    ng.save(tmp_path / "other.pt", {"encoder": pair.encoder, "deep": deep})
    ng.load_state_dict(deep, tmp_path / "other.pt")
    fresh = Pair()
    ng.load(tmp_path / "pair.pt", {"encoder": fresh.encoder}, fresh.optimizer, fresh.growers[0])
    fresh.steps(range(3, 7))  # the state of the decoder's parameters was left alone
    for model, message in (
        (decoder, r"has the models 'encoder', 'decoder': pass them, .* as in model=\{'encoder': model\}"),
        ([pair.encoder, decoder], "has no model '0', but 'encoder', 'decoder'"),
    ):
        with pytest.raises(ValueError, match=message):
            ng.load(tmp_path / "pair.pt", model)
    ng.save(tmp_path / "one.pt", decoder)
    with pytest.raises(ValueError, match="has one model, which was passed alone"):
        ng.load(tmp_path / "one.pt", [decoder])


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_models_that_share_an_optimizer_may_have_a_file_each(order: list[int], tmp_path: Path) -> None:
    pair = Pair()
    pair.steps(range(3))
    for number, model in enumerate((pair.encoder, pair.decoder)):
        ng.save(tmp_path / f"{number}.pt", model, pair.optimizer, pair.growers[number])
    before, expected = pair.state, pair.steps(range(3, 7))
    fresh = Pair()
    for number in order:
        model = (fresh.encoder, fresh.decoder)[number]
        ng.load(tmp_path / f"{number}.pt", model, fresh.optimizer, fresh.growers[number])
        for parameter, state in fresh.optimizer.state.items():  # usable in between
            assert state["exp_avg"].shape == parameter.shape
    assert not differing(fresh.state, before)
    assert fresh.steps(range(3, 7)) == expected


def test_a_file_of_one_model_is_refused_for_both(tmp_path: Path) -> None:
    pair = Pair()
    ng.save(tmp_path / "encoder.pt", pair.encoder, pair.optimizer)
    state, lone = pair.state, torch.optim.Adam(pair.encoder.parameters())
    with pytest.raises(ValueError, match=r"groups of \[4\] parameters, and the saved one of \[8\]"):
        ng.load(tmp_path / "encoder.pt", pair.encoder, lone)
    turned = torch.optim.Adam([*pair.decoder.parameters(), *pair.encoder.parameters()])
    with pytest.raises(ValueError, match=r"a parameter of another model where the saved one has '0.weight'"):
        ng.load(tmp_path / "encoder.pt", pair.encoder, turned)
    assert not differing(pair.state, state)


def test_several_optimizers_and_averages_of_several_models() -> None:
    models = {"a": mlp(6, 4, 3), "b": mlp(6, 5, 3)}
    optimizers = {name: torch.optim.Adam(model.parameters()) for name, model in models.items()}
    averages = {"b": AveragedModel(models["b"])}
    best = ng.snapshot(models, optimizers.values(), ema=averages)
    before = copy.deepcopy([models["a"].state_dict(), models["b"].state_dict(), averages["b"].state_dict()])
    ng.grow(models["a"], "0", 2, example=X, optimizer=optimizers["a"])
    ng.grow(models["b"], "0", 2, example=X, optimizer=optimizers["b"], ema=averages["b"])
    ng.restore(best, models, optimizers.values(), ema=averages)
    assert not differing([models["a"].state_dict(), models["b"].state_dict(), averages["b"].state_dict()], before)
    ng.restore(best, models, list(optimizers.values()), ema={"b": averages["b"]})
    for ema, error, message in (
        (averages["b"], TypeError, "there are several models"),
        ({"c": averages["b"]}, ValueError, "no model 'c'"),
        ([averages["b"]], ValueError, "expected one for each of 2 models"),
    ):
        with pytest.raises(error, match=message):
            ng.snapshot(models, ema=ema)
    with pytest.raises(ValueError, match="a module is passed twice"):
        ng.snapshot([models["a"], models["a"]])
    with pytest.raises(TypeError, match="expected a module, or several"):
        ng.snapshot([])


# --- files -----------------------------------------------------------------------------------------------


def test_open_files_are_written_and_read(tmp_path: Path) -> None:
    run = Training.start("north-random")
    run.steps(range(5))
    before = run.state
    file = io.BytesIO()
    file.write(b"before")
    ng.save(file, *run.objects, others=run.scheduler, extra={"step": 5})
    fresh = Training.start("north-random")
    with pytest.raises(ValueError, match=r"the file .* read from its position: call file.seek\(0\)"):
        ng.load(file, *fresh.objects)
    file.seek(6)
    assert ng.load(file, *fresh.objects, others=fresh.scheduler) == {"step": 5}
    assert not differing(fresh.state, before)
    with pytest.raises(ValueError, match=r"the file .* read from its position: call file.seek\(0\)"):
        ng.load(file, *fresh.objects)
    with (tmp_path / "run.pt").open("wb") as opened:
        ng.save(opened, run.model)
    with (tmp_path / "run.pt").open("rb") as opened:
        assert ng.load_state_dict(mlp(6, 4, 4, 3), opened) == run.grower.widths
    with pytest.raises(TypeError, match="expected a path or a file that is open"):
        ng.load(3, run.model)  # type: ignore[arg-type]


def test_a_file_of_the_first_format_loads() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    grower = ng.Grower(model, optimizer, ng.Strategy(ng.triggers.Linear(steps=4, final=4)), buffer=8)
    assert ng.load(DATA / "format1.pt", model, optimizer, grower) == {"step": 3}
    content = torch.load(DATA / "format1.pt", weights_only=True)
    assert not differing(model.state_dict(), content["model"])
    assert not differing(optimizer.state_dict()["state"], content["optimizers"][0]["state"])
    assert grower.widths == {"0": 4} and grower.steps == 3
    fresh = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1))
    assert ng.load_state_dict(fresh, DATA / "format1.pt") == {"0": 4}


def test_a_file_of_the_second_format_loads() -> None:
    """Its grower repeats the sizes of widths."""
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1))
    optimizer, ema = torch.optim.Adam(model.parameters(), 0.1), AveragedModel(model)
    strategy = ng.Strategy(ng.triggers.Linear(steps=4, final=4))
    grower = ng.Grower(model, optimizer, strategy, buffer=8, ema=ema)
    assert ng.load(DATA / "format2.pt", model, optimizer, grower) == {"step": 3}
    (saved,) = torch.load(DATA / "format2.pt", weights_only=True)["models"].values()
    assert saved["grower"]["sizes"] == grower.widths == {"0": 4} and grower.steps == 3
    assert not differing(model.state_dict(), saved["state"])
    assert not differing(ema.state_dict(), saved["average"])
    assert all(state["exp_avg"].shape == parameter.shape for parameter, state in optimizer.state.items())
    fresh = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1))
    assert ng.load_state_dict(fresh, DATA / "format2.pt") == {"0": 4}


def test_sizes_are_saved_once(tmp_path: Path) -> None:
    run = Training.start("north-random")
    run.steps(range(5))
    ng.save(tmp_path / "run.pt", *run.objects)
    for content in (torch.load(tmp_path / "run.pt", weights_only=True), run.snapshot()._content):
        assert content["models"][""]["sizes"]["widths"] == run.grower.widths
        assert "sizes" not in content["models"][""]["grower"]
    assert run.grower.state_dict()["sizes"] == run.grower.widths  # which is all that it has by itself


# --- what does not fit -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: Training.start("north-random", (6, 4, 4, 5)), "belong to a width that can be resized"),
        (lambda: Training.start("north-random", (6, 4, 3)), "another architecture: the model has no 4.weight"),
        (lambda: Training.start("gradmax"), "another strategy"),
        (lambda: Training.start("north-random", include=["0"]), "other widths"),
    ],
    ids=["outputs", "layers", "strategy", "widths"],
)
def test_what_does_not_fit_changes_nothing(other: Callable[[], Training], message: str) -> None:
    run = Training.start("north-random")
    run.steps(range(5))
    best, target = run.snapshot(), other()
    if len(target.model) == 5 and target.model[-1].out_features == 3:
        target.steps(range(2))
    before = target.state
    with pytest.raises(ValueError, match=message):
        ng.restore(best, *target.objects)
    assert not differing(target.state, before)


def test_a_second_model_that_does_not_fit_leaves_the_first_as_it_is() -> None:
    pair = Pair()
    pair.steps(range(3))
    best = ng.snapshot(pair.models, grower=pair.growers)
    fresh = Pair()
    fresh.steps(range(1))
    # A state that cannot be resized: found only when the decoder is resized, after the encoder.
    fresh.optimizer.state[fresh.decoder[0].weight]["exp_avg"] = torch.zeros(7, 7)
    before = fresh.state
    with pytest.raises(ValueError, match="cannot be resized"):
        ng.restore(best, fresh.models, grower=fresh.growers)
    assert not differing(fresh.state, before)


@pytest.mark.parametrize("strategy", ["need", "north-random"])
def test_a_saved_state_has_no_more_of_the_data_than_it_needs(strategy: str, tmp_path: Path) -> None:
    data = torch.randn(100_000, 6)  # 2.4 MB
    model = mlp(6, 4, 4, 3)
    optimizer = torch.optim.Adam(model.parameters())
    grower = ng.Grower(model, optimizer, strategy, buffer=128)
    for batch in data[:320].split(32):
        model(batch).square().mean().backward()
        optimizer.step()
        grower.step()
    torch.save(grower.state_dict(), tmp_path / "state.pt")
    assert (tmp_path / "state.pt").stat().st_size < 200_000


def test_a_state_dict_is_no_snapshot() -> None:
    model = mlp(6, 4, 3)
    with pytest.raises(TypeError, match=r"not a OrderedDict: a state_dict\(\) is loaded by neurogenesis.load_state"):
        ng.restore(model.state_dict(), model)  # type: ignore[arg-type]


# --- torch's own loading ---------------------------------------------------------------------------------


def test_early_stopping_as_everyone_writes_it_names_the_remedy() -> None:
    run = Training.start("north-random")
    run.steps(range(2))
    best, before = copy.deepcopy(run.model.state_dict()), run.grower.widths
    run.steps(range(2, 20))
    message = (
        rf"size mismatch for 0.weight(.|\n)*resized since the state was saved: widths '0' \({before['0']} in the state"
        rf", {run.grower.widths['0']} in the model\), '2' (.|\n)*neurogenesis.load_state_dict\(model, state\)(.|\n)*"
        r"neurogenesis.snapshot\(\) and neurogenesis.restore\(\)"
    )
    with pytest.raises(RuntimeError, match=message):
        run.model.load_state_dict(best)
    ng.load_state_dict(run.model, best, optimizer=run.optimizer)
    run.model.load_state_dict(best)  # fits now
    assert not differing(run.model.state_dict(), best)


def test_the_remedy_is_that_of_a_submodule_if_its_parent_is_loaded() -> None:
    parent = nn.ModuleDict({"net": mlp(6, 4, 3), "head": nn.Linear(3, 2)})
    grower = ng.Grower(parent["net"], torch.optim.SGD(parent.parameters(), 0.1), "north-random", example=X)
    best = copy.deepcopy(parent.state_dict())
    ng.grow(parent["net"], "0", 2)
    with pytest.raises(
        RuntimeError, match=r"width '0' \(4 in .*neurogenesis.load_state_dict\(model.net, state\) first"
    ):
        parent.load_state_dict(best)
    ng.load_state_dict(parent["net"], best)
    parent.load_state_dict(best)
    assert grower.widths == {"0": 4}


def test_a_state_of_another_architecture_gets_torchs_own_message() -> None:
    model = mlp(6, 4, 3)
    ng.Grower(model, torch.optim.SGD(model.parameters(), 0.1), "north-random", example=X)
    with pytest.raises(RuntimeError, match="size mismatch") as raised:
        model.load_state_dict(mlp(5, 4, 3).state_dict())
    assert "neurogenesis" not in str(raised.value)


def test_before_the_first_pass_the_remedy_is_named_without_sizes() -> None:
    model = mlp(6, 4, 3)
    ng.Grower(model, torch.optim.SGD(model.parameters(), 0.1), "north-random")
    with pytest.raises(RuntimeError, match=r"grown, call neurogenesis.load_state_dict\(model, state\)"):
        model.load_state_dict(mlp(6, 7, 3).state_dict())


def test_hooks_that_resize_the_model_before_it_is_loaded_are_let_through() -> None:
    model = mlp(6, 4, 3)
    grower = ng.Grower(model, torch.optim.SGD(model.parameters(), 0.1), "north-random", example=X)
    handle = model.register_load_state_dict_pre_hook(  # after the grower's
        lambda module, state, *_: ng.resize(module, {"0": len(state["0.bias"])})
    )
    model.load_state_dict(mlp(6, 7, 3).state_dict())
    assert grower.widths == {"0": 7}
    handle.remove()


def test_detaching_takes_the_remedy_off_and_copies_have_none() -> None:
    model = mlp(6, 4, 3)
    grower = ng.Grower(model, torch.optim.SGD(model.parameters(), 0.1), "north-random", example=X)
    state, copied = mlp(6, 7, 3).state_dict(), copy.deepcopy(model)
    grower.detach()
    assert not model._load_state_dict_pre_hooks and not model._load_state_dict_post_hooks
    for each in (model, copied):
        with pytest.raises(RuntimeError, match="size mismatch") as raised:
            each.load_state_dict(state)
        assert "neurogenesis" not in str(raised.value)
