"""The training loop: gradient steps with growth, tests after an epoch or several, and the record of both."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

import neurogenesis as ng

from .building import (
    BLOCKS,
    TIES,
    build_network,
    build_strategy,
    derived_seed,
    initial_sizes,
    kinds_that_stay,
    standard_sizes,
    widths_of,
)
from .data import Data
from .depth import Hop, add_blocks, hops_of
from .errors import UsageError
from .progress import Display
from .record import Checkpoint, Epoch, Result, Sizes, Step, Totals
from .run_directory import RunDirectory
from .settings import Decay, Deep, Language, Settings
from .signals import Interrupted, collect_signals

GRADIENT_STEP = 3
"""A gradient step takes so many times the operations of its forward pass."""


@dataclass
class Training:
    """Everything that changes during training."""

    settings: Settings
    model: nn.Module
    optimizer: torch.optim.Optimizer
    decay: torch.optim.lr_scheduler.LRScheduler | None
    grower: ng.Grower | None  # None for static networks: they are trained without the library
    widths: Sizes
    example: Tensor
    hops: list[Hop]  # at which blocks are added
    parameters: int = 0
    flops: int = 0  # of a forward pass of one sample
    training_flops: int | None = 0  # so far
    step: int = 0
    totals: Totals = field(default_factory=Totals)

    def update_sizes(self) -> None:
        """Update `widths` and `parameters` after growth."""
        self.widths = self.widths if self.grower is None else self.grower.widths
        self.parameters = sum(parameter.numel() for parameter in self.model.parameters())
        self.flops = ng.flops(self.model, self.example) // len(self.example)

    def deepen(self) -> float:
        """Add the blocks that are due after this step; returns the seconds that it took."""
        started = time.perf_counter()
        due = [hop for hop in self.hops if hop.step <= self.step]
        for hop in due:
            assert isinstance(self.settings, Deep)
            add_blocks(self.model, self.optimizer, hop, self.settings, self.example)
            self.hops.remove(hop)
            self.widths = {**self.widths, BLOCKS: self.widths[BLOCKS] + hop.blocks}
        if due:
            self.update_sizes()
        return time.perf_counter() - started

    def checkpoint(self) -> Checkpoint:
        return Checkpoint(
            model=self.model.state_dict(),
            optimizer=self.optimizer.state_dict(),
            decay=None if self.decay is None else self.decay.state_dict(),
            grower=None if self.grower is None else self.grower.state_dict(),
            step=self.step,
            epoch=dict(vars(self.totals)),
            flops=self.training_flops,
        )

    def load(self, checkpoint: Checkpoint) -> None:
        self.step = checkpoint.step
        self.deepen()
        if self.grower is not None:
            assert checkpoint.grower is not None
            self.grower.load_state_dict(dict(checkpoint.grower))  # first: it grows the model to its size
        self.model.load_state_dict(checkpoint.model)
        self.optimizer.load_state_dict(dict(checkpoint.optimizer))
        if self.decay is not None:
            assert checkpoint.decay is not None
            self.decay.load_state_dict(dict(checkpoint.decay))
        self.totals = Totals(**checkpoint.epoch)
        self.training_flops = checkpoint.flops
        self.update_sizes()


def start_training(settings: Settings, data: Data, device: torch.device) -> Training:
    """Network, optimizer and grower before the first gradient step."""
    steps = settings.epochs * settings.epoch_steps(len(data.train[0]))
    model = build_network(settings, data).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)
    decay = _decay(settings.decay, optimizer, steps)
    hops, example = hops_of(settings, steps), data.train[0][:2].to(device)
    grower = None if settings.static or hops else _grower(settings, model, optimizer, data, device, steps)
    training = Training(settings, model, optimizer, decay, grower, initial_sizes(settings), example, hops)
    training.update_sizes()
    return training


def _decay(name: Decay, optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LRScheduler | None:
    """The scheduler of the learning rate; None if it stays constant."""
    if name == "cosine":
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    if name == "final":
        return torch.optim.lr_scheduler.LambdaLR(optimizer, partial(_final, steps))
    return None


def _final(steps: int, step: int) -> float:
    """The factor of the learning rate at a step: 1, and falling to 0 in the last fifth.

    Example:
        >>> [_final(100, step) for step in (0, 80, 90, 100)]
        [1.0, 1.0, 0.5, 0.0]
    """
    return min(1.0, 5 * (steps - step) / steps)


def _grower(
    settings: Settings,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Data,
    device: torch.device,
    steps: int,
) -> ng.Grower:
    """The grower, with its buffer of activations filled."""
    inputs = data.train[0]
    # The size of a transformer is its depth; its heads and neurons have no maximum.
    limit = None if isinstance(settings, Language) else widths_of(settings, settings.sizes["big"])
    try:
        grower = ng.Grower(
            model,
            optimizer,
            build_strategy(settings, steps),
            example=inputs[:2].to(device),
            max_width=limit,
            max_parameters=settings.max_parameters,
            max_flops=settings.max_flops,
            exclude=kinds_that_stay(settings),
            every=settings.every,
            tie=TIES.get(getattr(settings, "network", ""), ()),
            buffer=settings.buffer,
            seed=derived_seed(settings.seed, "growth"),
            ages=settings.ages,
            margin=settings.margin,
            prune=settings.prune,
        )
    except ValueError as error:  # the strategy does not support this network
        raise UsageError(f"--strategy {settings.strategy}: {error}") from error
    if "activations" in grower.strategy.needs:
        samples = sample_order(len(inputs), settings.seed, 0)[: settings.buffer]
        for batch in samples.split(settings.batch):  # type: ignore[no-untyped-call]
            grower.fill(inputs[batch].to(device))
    return grower


def sample_order(samples: int, seed: int, epoch: int) -> Tensor:
    """The order of samples in an epoch; it depends on seed and epoch only, so that a run can be resumed."""
    return torch.randperm(samples, generator=torch.Generator().manual_seed(derived_seed(seed, f"order {epoch}")))


def gradient_step(training: Training, x: Tensor, y: Tensor, epoch: int) -> Step:
    """A step of the optimizer, then of the grower."""
    started = time.perf_counter()
    loss = loss_of(training.model(x), y)
    training.optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    training.optimizer.step()
    if training.decay is not None:
        training.decay.step()
    if training.training_flops is not None:
        training.training_flops += GRADIENT_STEP * training.flops * len(x)
    value = loss.item()  # waits for the device, which makes the times comparable
    trained = time.perf_counter()
    events: list[ng.Event] = []
    seen = []
    if training.grower is not None:
        events = training.grower.step(lambda: loss_of(training.model(x), y))
        latest, now = training.grower.history.latest, training.grower.steps
        seen = [observation for observation in latest.values() if observation.step == now]
    if events:
        training.update_sizes()
    training.step += 1
    growth_seconds = training.deepen() if training.hops else sum(event.seconds for event in events)
    ended = time.perf_counter()
    step = Step(
        epoch=epoch,
        step=training.step,
        loss=_single(value),
        parameters=training.parameters,
        widths=training.widths,
        metric={each.width: _single(each.metric) for each in seen if each.metric is not None},
        threshold={each.width: _single(each.threshold) for each in seen if each.threshold is not None},
        seconds=round(ended - started, 6),
        trigger_seconds=round(ended - trained - growth_seconds, 6) if training.grower else 0.0,
        initialization_seconds=round(growth_seconds, 6),
    )
    _add(training.totals, step, len(x))
    return step


def _single(value: float) -> float:
    """Round to single precision."""
    return float(f"{value:.7g}")


def _add(totals: Totals, step: Step, samples: int) -> None:
    assert step.loss is not None
    totals.loss += step.loss * samples
    totals.seconds += step.seconds
    totals.trigger_seconds += step.trigger_seconds
    totals.initialization_seconds += step.initialization_seconds
    totals.fastest_seconds = min(totals.fastest_seconds, step.seconds)


def loss_of(outputs: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of labels, or the mean squared error of real targets; their mean over all positions."""
    if y.is_floating_point():
        return nn.functional.mse_loss(outputs, y)
    return nn.functional.cross_entropy(outputs.flatten(0, -2), y.flatten())


@torch.no_grad()
def accuracy_and_loss(model: nn.Module, samples: tuple[Tensor, Tensor], batch: int = 1000) -> tuple[float, float]:
    """The fraction of samples that the network classifies correctly, or of the variance it explains, and the loss."""
    model.eval()
    inputs, y = samples
    outputs = torch.cat([model(x) for x in inputs.split(batch)])  # type: ignore[no-untyped-call]
    model.train()
    loss = loss_of(outputs, y).item()
    if y.is_floating_point():
        variance = y.var(correction=0).item()
        return 1 - loss / variance if variance else 0.0, loss
    return (outputs.argmax(-1) == y).sum().item() / y.numel(), loss


def train(
    settings: Settings,
    training: Training,
    data: Data,
    device: torch.device,
    directory: RunDirectory,
    displays: Sequence[Display],
    until: int | None = None,
) -> Generator[Epoch, None, Result | None]:
    """Train from the start or from the checkpoint, to the end or to epoch `until`; yields epochs that are saved.

    Returns the result, or None if there are epochs left.
    """
    x, y = (part.to(device) for part in data.train)
    test = data.test[0].to(device), data.test[1].to(device)
    batches = settings.epoch_steps(len(x))
    steps = batches * settings.epochs
    between_tests = math.ceil(settings.steps_between_tests / batches)  # epochs
    last = min(until or settings.epochs, settings.epochs)
    initial_widths = training.widths
    checkpoint = directory.load(device)
    if checkpoint is not None:
        training.load(checkpoint)
    losses = [] if checkpoint is None else [line.test_loss for line in directory.epochs()]
    for display in displays:
        display.on_start(settings, steps, training.step)
    with collect_signals() as signals:
        for epoch in range(training.step // batches + 1, last + 1):
            past = (epoch - 1) % between_tests  # epochs since the latest test
            if past == 0 and settings.patience is not None and _is_over(losses, training.step, settings.patience):
                break
            order = sample_order(len(x), settings.seed, epoch)[: batches * settings.batch].to(device)
            samples = len(order)
            for batch in order.split(settings.batch)[training.step % batches :]:  # type: ignore[no-untyped-call]
                step = gradient_step(training, x[batch], y[batch], epoch)
                if step.loss is None or not math.isfinite(step.loss):
                    raise UsageError(
                        f"the loss is {step.loss} at step {step.step}: training diverged; try a lower --learning-rate"
                    )
                directory.add(step)
                for display in displays:
                    display.on_step(step)
                if signals and training.step % batches:
                    directory.save(training.checkpoint())
                    raise _interrupted(f"step {training.step} of {steps}", directory)
            if past + 1 == between_tests or epoch == settings.epochs:
                line = _finish_epoch(training, epoch, (past + 1) * samples, test)
                losses.append(line.test_loss)
                directory.add(line)
                directory.save(training.checkpoint())
                for display in displays:
                    display.on_epoch(line)
                yield line
            elif signals or epoch == last:
                directory.save(training.checkpoint())
            if signals and epoch < settings.epochs:
                raise _interrupted(f"epoch {epoch} of {settings.epochs}", directory)
        else:
            if last < settings.epochs:
                return None
    return _result(directory.epochs(), initial_widths, standard_sizes(settings), training.step)


def _interrupted(where: str, directory: RunDirectory) -> Interrupted:
    return Interrupted(f"stopped after {where}; {directory.path} is saved. The same command resumes it.")


def _lowest(losses: Sequence[float | None]) -> float | None:
    """The lowest loss; None if the first is missing, because the run began in an earlier version."""
    return None if losses[0] is None else min(loss for loss in losses if loss is not None)


def _is_over(losses: Sequence[float | None], steps: int, patience: float) -> bool:
    """Whether the lowest test loss was so long ago that a lower one is unlikely.

    Example:
        >>> _is_over([2.0, 1.0, 3.0, 3.0], steps=400, patience=2.5), _is_over([4.0, 3.0, 2.0, 1.0], 400, 2.5)
        (False, False)
        >>> _is_over([2.0, 1.0, *[3.0] * 18], steps=2000, patience=2.5)
        True
    """
    finite = [loss if loss is not None and math.isfinite(loss) else math.inf for loss in losses]
    return bool(finite) and steps > _LEAST_STEPS + patience * steps * (finite.index(min(finite)) + 1) / len(finite)


_LEAST_STEPS = 300


def _finish_epoch(training: Training, epoch: int, samples: int, test: tuple[Tensor, Tensor]) -> Epoch:
    """Test the network, and start the totals of the next epoch."""
    started = time.perf_counter()
    accuracy, test_loss = accuracy_and_loss(training.model, test)
    totals, training.totals = training.totals, Totals()
    return Epoch(
        epoch=epoch,
        step=training.step,
        loss=_single(totals.loss / samples),
        accuracy=accuracy,
        test_loss=_single(test_loss),
        parameters=training.parameters,
        flops=training.flops,
        training_flops=training.training_flops,
        bits_per_character=_single(test_loss / math.log(2)) if isinstance(training.settings, Language) else None,
        widths=training.widths,
        train_seconds=round(totals.seconds, 6),
        trigger_seconds=round(totals.trigger_seconds, 6),
        initialization_seconds=round(totals.initialization_seconds, 6),
        test_seconds=round(time.perf_counter() - started, 6),
        fastest_seconds=totals.fastest_seconds,
    )


def _result(epochs: list[Epoch], initial_widths: Sizes, standard_widths: Sizes | None, steps: int) -> Result:
    last = epochs[-1]
    assert last.accuracy is not None
    return Result(
        accuracy=last.accuracy,
        loss=last.loss,
        test_loss=last.test_loss,
        lowest_test_loss=_lowest([epoch.test_loss for epoch in epochs]),
        parameters=last.parameters,
        flops=last.flops,
        training_flops=last.training_flops,
        bits_per_character=last.bits_per_character,
        widths=last.widths,
        initial_widths=initial_widths,
        standard_widths=standard_widths,
        steps=steps,
        train_seconds=round(sum(epoch.train_seconds for epoch in epochs), 6),
        trigger_seconds=round(sum(epoch.trigger_seconds for epoch in epochs), 6),
        initialization_seconds=round(sum(epoch.initialization_seconds for epoch in epochs), 6),
        test_seconds=round(sum(epoch.test_seconds for epoch in epochs), 6),
    )


@contextmanager
def torch_threads(threads: int | None) -> Iterator[None]:
    """Set torch's number of threads for a while; None leaves it as it is."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
