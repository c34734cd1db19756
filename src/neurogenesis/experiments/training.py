"""The training loop of the experiments: a preset's settings in, a run's records out."""

from __future__ import annotations

import math
import signal
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import neurogenesis as ng

from .building import TIES, data_of, derived, network_of, strategy_of, widths_of
from .data import Data
from .environment import device_of, environment
from .errors import Mistake
from .presets import Convolutional, Dense, Settings
from .records import Records, read_json
from .watchers import Silent, Watcher

SECONDS = ("seconds", "trigger_seconds", "initialization_seconds")


class Interrupted(Exception):
    """Stopped by the user or the system, after everything was saved."""


@dataclass
class Training:
    """What changes while a network trains."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    decay: torch.optim.lr_scheduler.LRScheduler | None
    grower: ng.Grower | None  # none for networks that do not grow: they are trained as anybody would
    widths: dict[str, int]
    parameters: int
    step: int  # gradient steps done
    epoch: dict[str, float]  # sums over the present epoch

    def measure(self) -> None:
        """Note the sizes of the network, which may have grown."""
        self.widths = self.widths if self.grower is None else self.grower.widths
        self.parameters = sum(parameter.numel() for parameter in self.model.parameters())

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "decay": None if self.decay is None else self.decay.state_dict(),
            "grower": None if self.grower is None else self.grower.state_dict(),
            "step": self.step,
            "epoch": dict(self.epoch),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        if self.grower is not None:
            self.grower.load_state_dict(state["grower"])  # first: it grows the model to its size
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.decay is not None:
            self.decay.load_state_dict(state["decay"])
        self.step, self.epoch = state["step"], dict(state["epoch"])
        self.measure()


def beginning(settings: Settings, data: Data, device: torch.device) -> Training:
    """Everything as it is before the first gradient step."""
    steps = settings.epochs * math.ceil(len(data.train[0]) / settings.batch)
    model = network_of(settings, data).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)
    decay = None
    if settings.decay == "cosine":
        decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    grower = None
    if not settings.static:
        try:
            grower = ng.Grower(
                model,
                optimizer,
                strategy_of(settings, steps),
                example=data.train[0][:2].to(device),
                max_width=widths_of(settings, settings.sizes["big"]),
                every=settings.every,
                tie=TIES.get(getattr(settings, "network", ""), ()),
                buffer=settings.buffer,
                seed=derived(settings.seed, "growth"),
                ages=settings.ages,
                margin=settings.margin,
            )
        except ValueError as error:  # a strategy that is not for this network
            raise Mistake(f"--strategy {settings.strategy}: {error}") from error
        if "activations" in grower.strategy.needs:
            chosen = order(len(data.train[0]), settings.seed, 0)[: settings.buffer]
            for part in chosen.split(settings.batch):  # type: ignore[no-untyped-call]
                grower.fill(data.train[0][part].to(device))
    sums = dict.fromkeys(("loss", *SECONDS), 0.0)
    training = Training(model, optimizer, decay, grower, widths_of(settings, settings.size), 0, 0, sums)
    training.measure()
    return training


def order(samples: int, seed: int, epoch: int) -> Tensor:
    """The order of samples in an epoch; a function of the seed and the epoch alone, so that runs can be resumed."""
    return torch.randperm(samples, generator=torch.Generator().manual_seed(derived(seed, f"order {epoch}")))


def gradient_step(training: Training, x: Tensor, y: Tensor) -> dict[str, Any]:
    """One step of the optimizer, then of the grower; what is recorded of it."""
    started = time.perf_counter()
    loss = nn.functional.cross_entropy(training.model(x), y)
    training.optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    training.optimizer.step()
    if training.decay is not None:
        training.decay.step()
    value = loss.item()  # waits for the device, so that the times are true
    looking = time.perf_counter()
    events: list[ng.Event] = []
    seen = []
    if training.grower is not None:
        events = training.grower.step(lambda: nn.functional.cross_entropy(training.model(x), y))
        latest, now = training.grower.history.latest, training.grower.steps
        seen = [each for each in latest.values() if each.step == now]
    if events:
        training.measure()
    done = time.perf_counter()
    training.step += 1
    grown = sum(event.seconds for event in events)
    line = {
        "step": training.step,
        "loss": round_to(value),
        "parameters": training.parameters,
        "widths": training.widths,
        "metric": {each.width: round_to(each.metric) for each in seen if each.metric is not None},
        "threshold": {each.width: round_to(each.threshold) for each in seen if each.threshold is not None},
        "seconds": round(done - started, 6),
        "trigger_seconds": round(done - looking - grown, 6) if training.grower else 0.0,
        "initialization_seconds": round(grown, 6),
    }
    for name in ("loss", *SECONDS):
        training.epoch[name] += line[name] * (len(x) if name == "loss" else 1)  # type: ignore[operator]
    return line


def round_to(value: float | None, digits: int = 7) -> float | None:
    """Rounded to what single precision knows."""
    return None if value is None else float(f"{value:.{digits}g}")


@torch.no_grad()
def accuracy_of(model: nn.Module, data: tuple[Tensor, Tensor], batch: int = 1000) -> float:
    """The part of samples that the network classifies rightly."""
    model.eval()
    right = [model(x).argmax(1) == y for x, y in zip(*(part.split(batch) for part in data), strict=True)]  # type: ignore[no-untyped-call]
    model.train()
    return torch.cat(right).sum().item() / len(data[1])


def train(
    settings: Settings,
    training: Training,
    data: Data,
    device: torch.device,
    records: Records,
    watcher: Watcher,
) -> dict[str, Any]:
    """Train from the beginning, or from where the records end; the result."""
    x, y = (part.to(device) for part in data.train)
    test = data.test[0].to(device), data.test[1].to(device)
    batches = math.ceil(len(x) / settings.batch)
    steps = batches * settings.epochs
    initial = training.widths
    saved = records.load(device)
    if saved is not None:
        training.load(saved)
    watcher.started(settings, steps, training.step)
    line: dict[str, Any] = {}
    with interruptions() as interrupted:
        for epoch in range(training.step // batches + 1, settings.epochs + 1):
            chosen = order(len(x), settings.seed, epoch).to(device).split(settings.batch)  # type: ignore[no-untyped-call]
            for batch in chosen[training.step % batches :]:
                line = {"epoch": epoch, **gradient_step(training, x[batch], y[batch])}
                if not math.isfinite(line["loss"]):
                    raise Mistake(
                        f"the loss is {line['loss']} at step {line['step']}: training has diverged; try a lower "
                        "--learning-rate"
                    )
                records.add("steps.jsonl", line)
                watcher.stepped(line)
                if interrupted and training.step % batches:
                    records.save(training.state())
                    raise Interrupted(f"stopped at step {training.step} of {steps}")
            started = time.perf_counter()
            accuracy = accuracy_of(training.model, test)
            line = {
                "epoch": epoch,
                "step": training.step,
                "loss": round_to(training.epoch["loss"] / len(x)),
                "accuracy": accuracy,
                "parameters": training.parameters,
                "widths": training.widths,
                "train_seconds": round(training.epoch["seconds"], 6),
                "trigger_seconds": round(training.epoch["trigger_seconds"], 6),
                "initialization_seconds": round(training.epoch["initialization_seconds"], 6),
                "test_seconds": round(time.perf_counter() - started, 6),
            }
            records.add("epochs.jsonl", line)
            training.epoch = dict.fromkeys(training.epoch, 0.0)
            records.save(training.state())
            watcher.finished_epoch(line)
            if interrupted and epoch < settings.epochs:
                raise Interrupted(f"stopped after epoch {epoch} of {settings.epochs}")
    standard = widths_of(settings, 1.0) if isinstance(settings, Convolutional) else None
    epochs = records.lines("epochs.jsonl")
    return {
        **{name: epochs[-1][name] for name in ("accuracy", "loss", "parameters", "widths")},
        "initial_widths": initial,
        "standard_widths": standard,
        "steps": steps,
        **{name: round(sum(line[name] for line in epochs), 6) for name in epochs[-1] if name.endswith("seconds")},
    }


@contextmanager
def interruptions() -> Iterator[list[int]]:
    """Gather the first Ctrl-C, or the system's request to end, in a list; the second one ends at once."""
    gathered: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield gathered
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}

    def gather(number: int, frame: Any) -> None:
        gathered.append(number)
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in before:
        signal.signal(number, gather)
    try:
        yield gathered
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- a run -------------------------------------------------------------------------------------------------


def run(
    settings: Settings,
    out: Path,
    *,
    root: Path | None = None,
    device: str = "cpu",
    threads: int | None = None,
    watcher: Watcher | None = None,
) -> dict[str, Any]:
    """Train as the settings say and record it in a directory; goes on where an earlier run was cut off.

    Args:
        settings: of a preset.
        out: the run's directory.
        root: where data sets are, as in `neurogenesis.experiments.data.load`.
        device: what to train on.
        threads: of torch; 1 for dense networks, which are small, and all cores for convolutions by default.
        watcher: what shows the progress.

    Returns:
        The result, as in `result.json`.
    """
    place = device_of(device)
    strategy_of(settings, 1)  # this and the next say what is wrong before anything is read
    widths_of(settings, settings.sizes["small"])
    if threads is not None and threads < 1:
        raise Mistake(f"--threads: expected a positive number, not {threads}")
    records = Records(out)
    if (out / "result.json").exists():
        if not records.compare(settings.record()):
            raise Mistake(f"{out} is not a run (it has result.json and no settings.json): choose another --out")
        return read_json(out / "result.json") or {}
    with threads_of_torch(1 if threads is None and isinstance(settings, Dense) else threads):
        data = data_of(settings, root)
        training = beginning(settings, data, place)  # and this before anything is written
        with records.opened(settings.record()):
            records.start(environment(place))
            watcher = watcher or Silent()
            try:
                result = train(settings, training, data, place, records, watcher)
            except (KeyboardInterrupt, Interrupted):
                raise
            except Mistake as mistake:
                records.fail(" ".join(str(mistake).split()) + "\n")
                raise
            except Exception:
                records.fail(traceback.format_exc())
                raise
            finally:
                watcher.close()
            records.finish(result)
    return result


@contextmanager
def threads_of_torch(threads: int | None) -> Iterator[None]:
    """So many threads for a while; None leaves them as they are."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
