"""Progress displays: a progress bar, plain lines or TensorBoard for a run, a bar or lines for a sweep."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from .errors import INSTALL, UsageError
from .files import writing_to
from .messages import echo
from .record import Epoch, Sizes, Step
from .settings import Settings


class Display:
    """Shows the progress of a run; this one shows nothing."""

    def on_start(self, settings: Settings, steps: int, done: int) -> None:
        """The run starts; `steps` is the number of gradient steps, of which `done` were done before."""

    def on_step(self, step: Step) -> None: ...

    def on_epoch(self, epoch: Epoch) -> None: ...

    def close(self) -> None: ...


class Lines(Display):
    """Prints a line per epoch, but at most about one per second; for logs and pipes."""

    def __init__(self) -> None:
        self._printed = 0.0
        self._pending: Epoch | None = None  # the latest one, if it is not printed yet

    def on_start(self, settings: Settings, steps: int, done: int) -> None:
        resumed = f", resumed after step {done}" if done else ""
        echo(f"{settings.name} {settings.label}: {settings.epochs} epochs, {steps} steps{resumed}")
        echo("epoch  training loss  accuracy  parameters  widths")

    def on_epoch(self, epoch: Epoch) -> None:
        self._pending = epoch
        if self._printed == 0.0 or time.monotonic() - self._printed > 1:
            self._print(epoch)

    def close(self) -> None:
        if self._pending is not None:
            self._print(self._pending)

    def _print(self, epoch: Epoch) -> None:
        self._printed, self._pending = time.monotonic(), None
        numbers = f"{epoch.epoch:5}  {epoch.loss:13.4f}  {epoch.accuracy:8.2%}  {epoch.parameters:10}"
        echo(f"{numbers}  {format_sizes(epoch.widths)}")


class Bar(Display):
    """A progress bar with step, loss, accuracy, widths and the remaining time; for terminals."""

    def on_start(self, settings: Settings, steps: int, done: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.table import Column

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=10),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
            TextColumn("loss {task.fields[loss]}  accuracy {task.fields[accuracy]}"),
            # The last column may be long; it is the one that a narrow terminal cuts off.
            TextColumn("{task.fields[widths]}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
            expand=True,
        )
        self._task = self._bar.add_task(
            settings.strategy, total=steps, completed=done, loss="-", accuracy="-", widths="-"
        )
        self._updated = 0.0
        self._bar.start()

    def on_step(self, step: Step) -> None:
        if time.monotonic() - self._updated > 0.1:  # more often would slow training down without being visible
            self._updated = time.monotonic()
            widths = format_sizes(step.widths)
            self._bar.update(self._task, completed=step.step, loss=f"{step.loss:.4f}", widths=widths)

    def on_epoch(self, epoch: Epoch) -> None:
        accuracy, widths = f"{epoch.accuracy:.2%}", format_sizes(epoch.widths)
        self._bar.update(self._task, completed=epoch.step, accuracy=accuracy, widths=widths)

    def close(self) -> None:
        if hasattr(self, "_bar"):
            self._bar.stop()


class TensorBoard(Display):
    """Writes scalars for TensorBoard into a directory."""

    def __init__(self, directory: Path):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UsageError(f"--tensorboard: {INSTALL}") from None
        self._make_writer, self._directory = SummaryWriter, directory

    def on_start(self, settings: Settings, steps: int, done: int) -> None:
        with writing_to(self._directory):
            self._writer = self._make_writer(str(self._directory), purge_step=done + 1)

    def on_step(self, step: Step) -> None:
        scalars = {"loss": step.loss, "parameters": step.parameters}
        for kind, values in (("widths", step.widths), ("metric", step.metric), ("threshold", step.threshold)):
            scalars |= {f"{kind}/{width}": value for width, value in values.items()}
        with writing_to(self._directory):
            for name, value in scalars.items():
                self._writer.add_scalar(name, value, step.step)

    def on_epoch(self, epoch: Epoch) -> None:
        with writing_to(self._directory):
            self._writer.add_scalar("accuracy", epoch.accuracy, epoch.step)
            self._writer.flush()

    def close(self) -> None:
        if hasattr(self, "_writer"):
            with writing_to(self._directory):
                self._writer.close()


def format_sizes(widths: Sizes) -> str:
    """Sizes joined by hyphens.

    Example:
        >>> format_sizes({"hidden1": 64, "hidden2": 32})
        '64-32'
    """
    return "-".join(map(str, widths.values()))


@dataclass
class SweepProgress:
    """The progress of a sweep, by labels of runs."""

    total: int
    running: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """The reason of each failure in one line, by label."""


@contextmanager
def sweep_display(quiet: bool) -> Iterator[Callable[[SweepProgress], None]]:
    """The display of a sweep: a progress bar in a terminal, a line per run elsewhere."""
    if quiet:
        yield lambda progress: None
    elif not sys.stdout.isatty():
        yield _line_per_run()
    else:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns) as bar:
            task = bar.add_task("")

            def update(progress: SweepProgress) -> None:
                failed = f"[red]{len(progress.failed)} failed[/red]  " if progress.failed else ""
                done = len(progress.finished) + len(progress.failed)
                bar.update(task, total=progress.total, completed=done, description=failed + _names(progress.running))

            yield update


def _names(running: Sequence[str], shown: int = 4) -> str:
    """The names of runs, or of the first ones.

    Example:
        >>> _names(["a", "b", "c"], shown=2)
        'a, b and 1 more'
    """
    more = len(running) - shown
    return ", ".join(running[:shown]) + (f" and {more} more" if more > 0 else "")


def _line_per_run() -> Callable[[SweepProgress], None]:
    finished, failed = 0, 0

    def show(progress: SweepProgress) -> None:
        nonlocal finished, failed
        for label in progress.finished[finished:]:
            finished += 1
            echo(f"[{finished + failed}/{progress.total}] {label} finished")
        new = islice(progress.failed.items(), failed, None) if len(progress.failed) > failed else ()
        for label, reason in new:
            failed += 1
            echo(f"[{finished + failed}/{progress.total}] {label} failed: {reason}")

    return show
