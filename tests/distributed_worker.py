"""What two processes do in the tests of distributed training; run by torchrun, or alone on the whole batch."""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

import neurogenesis as ng
import tests.torchvision_shim  # noqa: F401  before anything imports torchvision
from tests.growing import mlp

STRATEGIES = ["need", "north-select", "north-random", "north-weight", "gradmax", "firefly", "nest"]
BATCH = 64


def rank() -> int:
    return int(os.environ.get("RANK", 0))


def world() -> int:
    return int(os.environ.get("WORLD_SIZE", 1))


def batch(step: int) -> tuple[Tensor, Tensor]:
    """This process's part of a batch."""
    x = torch.randn(BATCH, 6, generator=torch.Generator().manual_seed(step)).double()
    own = slice(rank() * BATCH // world(), (rank() + 1) * BATCH // world())
    return x[own], x[own, :3].abs() - x[own, 3:]


def convolutional() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 4, 3, padding=1), ng.nn.ReLU(), nn.Conv1d(4, 3, 3, padding=1),
        ng.nn.ReLU(), nn.Flatten(), nn.Linear(18, 3),
    )  # fmt: skip


# In double precision: in single precision, rounding now and then decides on which side of its kink a rectifier is.
MODELS: dict[str, Callable[[], nn.Module]] = {
    "dense": lambda: mlp(6, 4, 4, 3).double(),
    "convolutional": lambda: convolutional().double(),
    "wide": lambda: mlp(6, 40, 4, 3).double(),  # so wide that need fits the rows of several steps together
}


def wrapped(model: nn.Module, **options: Any) -> nn.Module:
    return DistributedDataParallel(model, **options) if dist.is_initialized() else model


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, grower: ng.Grower | None, steps: range, accumulate: int = 1
) -> None:
    for step in steps:
        optimizer.zero_grad()
        for part in range(accumulate):
            x, y = batch(accumulate * step + part)
            loss = (model(x) - y).square().mean()
            (loss / accumulate).backward()
        optimizer.step()
        if grower is not None:
            grower.step()


def result_of(model: nn.Module, grower: ng.Grower | None) -> dict[str, Any]:
    """What was trained, and whether all processes have the same."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    weights = [parameter.detach().clone() for parameter in inner.parameters()]
    equal = True
    for weight in weights:
        first = weight.clone()
        if dist.is_initialized():
            dist.broadcast(first, 0)
        equal &= torch.equal(first, weight)
    flags = torch.tensor([int(equal)])
    if dist.is_initialized():
        dist.all_reduce(flags, dist.ReduceOp.MIN)
    events = [] if grower is None else [(event.step, event.width, event.after) for event in grower.history]
    return {"weights": weights, "equal": bool(flags), "events": events}


def run(
    strategy: str, kind: str = "dense", steps: int = 24, max_width: int = 16, buffer: int = 128, **options: Any
) -> dict[str, Any]:
    model = wrapped(MODELS[kind](), **options)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    grower = ng.Grower(model, optimizer, strategy, buffer=buffer, max_width=max_width, seed=3)
    train(model, optimizer, grower, range(steps))
    return result_of(model, grower)


def compiled() -> dict[str, Any]:
    """Runs of a compiled model: compiled inside its wrapper, in place, and together with it."""
    results = {}
    for how in ("inside", "in place", "together"):
        model = MODELS["dense"]()
        if how == "in place":
            model.compile(backend="eager")
        outer = wrapped(torch.compile(model, backend="eager") if how == "inside" else model)  # type: ignore[arg-type]
        called = torch.compile(outer, backend="eager") if how == "together" else outer
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        grower = ng.Grower(called, optimizer, "north-random", buffer=128, max_width=16, seed=3)  # type: ignore[arg-type]
        train(called, optimizer, grower, range(24))  # type: ignore[arg-type]
        results[how] = result_of(model, grower)
    return results


def trainer(directory: Path) -> dict[str, Any]:
    """A run of the Trainer of Transformers, which wraps the model itself."""
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    from neurogenesis.integrations.huggingface import GrowerCallback

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12}
    model = BertForSequenceClassification(BertConfig(vocab_size=20, **sizes))  # type: ignore[arg-type]
    tokens = torch.randint(20, (64, 8), generator=torch.Generator().manual_seed(0))
    data = [{"input_ids": each, "labels": int(each[0] > each[1])} for each in tokens]
    arguments = TrainingArguments(
        str(directory / "trainer"), max_steps=8, learning_rate=1e-3, report_to="none", disable_tqdm=True, use_cpu=True
    )
    callback = GrowerCallback("north-random", exclude=["*.pooler.*"], max_width=20, buffer=128)
    Trainer(model, arguments, train_dataset=data, callbacks=[callback]).train()
    return result_of(model, callback.grower)


def lightning(directory: Path) -> dict[str, Any]:
    """Runs of Lightning's Trainer, whose training_step calls its network or itself; then a resumed one."""
    import lightning as L
    from torch.utils.data import DataLoader, TensorDataset

    from neurogenesis.integrations.lightning import GrowerCallback

    class Module(L.LightningModule):
        def __init__(self, calls_itself: bool):
            super().__init__()
            self.net, self.calls_itself = MODELS["dense"](), calls_itself

        def forward(self, x: Tensor) -> Any:
            return self.net(x)

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            outputs: Tensor = self(batch[0]) if self.calls_itself else self.net(batch[0])
            return (outputs - batch[1]).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), 1e-2)

    def fit(strategy: str, calls_itself: bool, epochs: int, checkpoint: str | None = None) -> dict[str, Any]:
        module, callback = Module(calls_itself), GrowerCallback(strategy, buffer=128, max_width=16, seed=3)
        x = torch.randn(12 * BATCH, 6, generator=torch.Generator().manual_seed(0)).double()
        data = TensorDataset(x, (3 * x[:, :3]).sin())
        trainer = L.Trainer(
            max_epochs=epochs, devices=world(), accelerator="cpu", strategy="ddp" if world() > 1 else "auto",
            callbacks=[callback], default_root_dir=directory, logger=False, use_distributed_sampler=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        loader = DataLoader(data, BATCH // world(), sampler=range(rank(), len(data), world()))
        trainer.fit(module, loader, ckpt_path=checkpoint)
        trainer.save_checkpoint(directory / f"{strategy}-{epochs}.ckpt")
        return result_of(module, callback.grower)

    results = {"its network": fit("north-select", False, 2), "itself": fit("north-select", True, 2)}
    results["whole"] = fit("gradmax", False, 2)
    fit("gradmax", False, 1)
    results["resumed"] = fit("gradmax", False, 2, str(directory / "gradmax-1.ckpt"))
    return results


def always(layer: ng.Layer) -> int:
    """Grow at every fourth step."""
    return 2 if layer.step % 4 == 0 else 0


def made_before_wrapping() -> dict[str, Any]:
    model = MODELS["dense"]()
    for parameter in model.parameters():
        nn.init.normal_(parameter, generator=torch.Generator().manual_seed(rank()))  # DDP makes them equal
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    grower = ng.Grower(model, optimizer, "north-select", buffer=128, max_width=16, example=torch.zeros(2, 6).double())
    outer = wrapped(model)
    train(outer, optimizer, grower, range(16))
    return result_of(outer, grower)


def by_hand() -> dict[str, Any]:
    torch.manual_seed(rank())  # new neurons are drawn from different random numbers
    model = wrapped(MODELS["dense"](), find_unused_parameters=True)
    torch.manual_seed(rank())
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for step in range(4):
        train(model, optimizer, None, range(4 * step, 4 * step + 4))
        ng.grow(model, "0", 2, optimizer=optimizer, example=torch.zeros(2, 6).double())
    train(model, optimizer, None, range(16, 20))
    return result_of(model, None)


def options_of_wrappers() -> dict[str, Any]:
    results = {}
    for name, options in {
        "find_unused_parameters": {"find_unused_parameters": True},
        "static_graph": {"static_graph": True},
        "gradient_as_bucket_view": {"gradient_as_bucket_view": True},
    }.items():
        results[name] = run(ng.Strategy(always, "random"), steps=16, **options)  # type: ignore[arg-type]
    model = wrapped(MODELS["dense"]())
    calls: list[int] = []

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP compares annotations with its own types
        calls.append(1)
        return allreduce_hook(state, bucket)

    if isinstance(model, DistributedDataParallel):
        model.register_comm_hook(None, hook)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    train(model, optimizer, ng.Grower(model, optimizer, ng.Strategy(always, "random")), range(9))
    results["comm hook"] = result_of(model, None) | {"calls": len(calls)}
    return results


def accumulation() -> dict[str, Any]:
    model = wrapped(MODELS["dense"]())
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    grower = ng.Grower(model, optimizer, "need", max_width=16)
    train(model, optimizer, grower, range(16), accumulate=2)
    return result_of(model, grower)


def dropped() -> dict[str, Any]:
    model = MODELS["dense"]()
    with torch.no_grad():
        model[0].bias[1] = -100.0  # it is dead
    outer = wrapped(model)
    optimizer = torch.optim.Adam(outer.parameters(), 1e-3)
    grower = ng.Grower(outer, optimizer, ng.Strategy(ng.triggers.Static(), "random"), prune=True, buffer=128)
    train(outer, optimizer, grower, range(64))
    return result_of(outer, grower)


def inside_no_sync() -> dict[str, Any]:
    model = wrapped(MODELS["dense"]())
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    grower = ng.Grower(model, optimizer, ng.Strategy(lambda layer: 1, "random"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if isinstance(model, DistributedDataParallel):
            with model.no_sync():
                train(model, optimizer, grower, range(3))
    return {"events": len(grower.history.events), "warnings": [str(each.message) for each in caught]}


def different(**settings: Any) -> str:
    """The error if processes have different settings."""
    own = {name: values[rank()] for name, values in settings.items()}
    model = wrapped(MODELS["dense"]())
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    grower = ng.Grower(model, optimizer, own.pop("strategy", "need"), **own)
    try:
        train(model, optimizer, grower, range(1))
    except ValueError as error:
        return str(error)
    finally:
        grower.detach()
    return "no error"


def not_wrapped() -> list[str]:
    model = MODELS["dense"]()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(model, optimizer, ng.Grower(model, optimizer, "need"), range(1))
    return [str(each.message) for each in caught]


def sharded() -> str:
    from torch.distributed.fsdp import fully_shard

    model = MODELS["dense"]()
    if dist.is_initialized():
        fully_shard(model)
    hooks = len(model._forward_hooks)
    try:
        ng.Grower(model, torch.optim.Adam(model.parameters(), 1e-2))
    except ValueError as error:
        assert len(model._forward_hooks) == hooks
        return str(error)
    return "no error"


def resumed(directory: Path) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for strategy in ("need", "north-select"):
        for stop in (None, 9):
            model = wrapped(MODELS["dense"]())
            optimizer = torch.optim.Adam(model.parameters(), 1e-2)
            grower = ng.Grower(model, optimizer, strategy, buffer=128, max_width=16)
            path = directory / f"{strategy}-{rank()}.pt"
            if stop is None:
                train(model, optimizer, grower, range(9))
                ng.save(path, model, optimizer, grower)
                train(model, optimizer, grower, range(9, 20))
            else:
                ng.load(path, model, optimizer, grower)
                train(model, optimizer, grower, range(9, 20))
            results[f"{strategy} {stop}"] = result_of(model, grower)
    return results


def loaded_by_all(directory: Path) -> dict[str, Any]:
    """Training that goes on from the file of the first process."""
    results = {}
    path = directory / "first.pt"
    for stop in (None, 9):
        model = wrapped(MODELS["dense"]())
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        grower = ng.Grower(model, optimizer, "north-select", buffer=128, max_width=16)
        if stop is None:
            train(model, optimizer, grower, range(9))
            if rank() == 0:
                str(grower)  # communicates with no other process
                ng.save(path, model, optimizer, grower)
            dist.barrier()
        else:
            ng.load(path, model, optimizer, grower)
        own = len(grower.buffer.calls)
        train(model, optimizer, grower, range(9, 20))
        results[f"{stop}"] = result_of(model, grower) | {"calls": own}
    return results


def killed() -> None:
    model = wrapped(MODELS["dense"]())
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    grower = ng.Grower(model, optimizer, "north-select", buffer=128)
    train(model, optimizer, grower, range(5))
    if rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    train(model, optimizer, grower, range(5, 1000))


def stepped_in_one() -> None:
    """The first process alone calls grower.step() from some step on."""
    model = wrapped(MODELS["dense"]())
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    grower = ng.Grower(model, optimizer, "need", buffer=128)
    train(model, optimizer, grower, range(3))
    train(model, optimizer, grower if rank() == 0 else None, range(3, 40))


def grower_in_one() -> None:
    model = wrapped(MODELS["dense"]())
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    train(model, optimizer, ng.Grower(model, optimizer, "need") if rank() == 0 else None, range(40))


def skipped_by_all() -> dict[str, Any]:
    """Every other gradient step without a call of grower.step(), in all processes, of which one is slow."""
    model = wrapped(MODELS["dense"]())
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    grower = ng.Grower(model, optimizer, "need", buffer=128)
    for step in range(44):
        train(model, optimizer, grower if step % 2 else None, range(step, step + 1))
        if step == 4 and rank() == 1:
            time.sleep(1)
    return result_of(model, grower) | {"looks": len(grower.history.observations)}


def everything(directory: Path) -> dict[str, Any]:
    return {
        "strategies": {name: run(name) for name in STRATEGIES},
        "convolutional": {
            strategy: run(strategy, "convolutional") for strategy in ("need", "north-select", "north-integrated")
        },
        "few samples": {
            # Of the smaller buffer, one process has all samples.
            f"{kind} {buffer}": run("north-select", kind, max_width=24, buffer=buffer)
            for kind, buffer in (("dense", 20), ("dense", 72), ("convolutional", 20))
        },
        "wide": run("need", "wide", max_width=80),
        "compiled": compiled(),
        "made before wrapping": made_before_wrapping(),
        "by hand": by_hand(),
        "options": options_of_wrappers(),
        "accumulation": accumulation(),
        "dropped": dropped(),
        "resumed": resumed(directory),
    }


def only_in_several(directory: Path) -> dict[str, Any]:
    return {
        "loaded by all": loaded_by_all(directory),
        "no_sync": inside_no_sync(),
        "skipped": skipped_by_all(),
        "seed": different(seed=[0, 1]),
        "strategy": different(strategy=["need", "north-random"]),
        "max_width": different(max_width=[8, 16]),
        "training_samples": different(training_samples=[None, 100]),
        "not wrapped": not_wrapped(),
        "sharded": sharded(),
    }


def main() -> None:
    torch.set_num_threads(1)
    directory, what = Path.cwd(), sys.argv[1]
    if what != "lightning":  # which does it itself
        dist.init_process_group("gloo", timeout=timedelta(seconds=6) if "in_one" in what else None)
    if what in ("stepped_in_one", "grower_in_one"):
        {"stepped_in_one": stepped_in_one, "grower_in_one": grower_in_one}[what]()
        return
    done = {"trainer": trainer, "lightning": lightning}.get(what)
    results = everything(directory) | only_in_several(directory) if done is None else done(directory)
    if rank() == 0:
        torch.save(results, directory / "results.pt")
    dist.barrier()
    if what == "everything":
        killed()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
