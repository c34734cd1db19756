"""What shows a run while it goes on: a progress bar, plain lines, TensorBoard, or nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from .errors import Mistake
from .presets import Settings
from .records import writing_to
from .saying import say


class Watcher(Protocol):
    """Is told of a run's beginning, of every step and epoch, and of its end."""

    def started(self, settings: Settings, steps: int, done: int) -> None: ...

    def stepped(self, line: Mapping[str, Any]) -> None: ...

    def finished_epoch(self, line: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class Silent:
    """Shows nothing."""

    def started(self, settings: Settings, steps: int, done: int) -> None: ...

    def stepped(self, line: Mapping[str, Any]) -> None: ...

    def finished_epoch(self, line: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class Lines(Silent):
    """Plain lines, one an epoch but not more than about one a second; for logs and pipes."""

    def __init__(self) -> None:
        self._settings: Settings | None = None
        self._last = 0.0

    def started(self, settings: Settings, steps: int, done: int) -> None:
        self._settings = settings
        goes_on = f", from step {done} on" if done else ""
        say(f"{settings.name} {settings.label}: {settings.epochs} epochs, {steps} steps{goes_on}")
        say("epoch  training loss  accuracy  parameters  widths")

    def finished_epoch(self, line: Mapping[str, Any]) -> None:
        assert self._settings is not None
        last = line["epoch"] == self._settings.epochs
        if last or line["epoch"] == 1 or time.monotonic() - self._last > 1:
            self._last = time.monotonic()
            numbers = f"{line['epoch']:5}  {line['loss']:13.4f}  {line['accuracy']:8.2%}  {line['parameters']:10}"
            say(f"{numbers}  {shown(line['widths'])}")


class Bar(Silent):
    """A progress bar with step, loss, accuracy, widths and the time left; for terminals."""

    def started(self, settings: Settings, steps: int, done: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.table import Column

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=10),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
            TextColumn("loss {task.fields[loss]}  accuracy {task.fields[accuracy]}"),
            # Last, as it may be long: this is what gives way where the terminal is narrow.
            TextColumn("{task.fields[widths]}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
            expand=True,
        )
        self._task = self._bar.add_task(
            settings.strategy, total=steps, completed=done, loss="-", accuracy="-", widths="-"
        )
        self._last = 0.0
        self._bar.start()

    def stepped(self, line: Mapping[str, Any]) -> None:
        if time.monotonic() - self._last > 0.1:  # the eye does not see more, and the loop is not held up
            self._last = time.monotonic()
            widths = shown(line["widths"])
            self._bar.update(self._task, completed=line["step"], loss=f"{line['loss']:.4f}", widths=widths)

    def finished_epoch(self, line: Mapping[str, Any]) -> None:
        accuracy, widths = f"{line['accuracy']:.2%}", shown(line["widths"])
        self._bar.update(self._task, completed=line["step"], accuracy=accuracy, widths=widths)

    def close(self) -> None:
        if hasattr(self, "_bar"):
            self._bar.stop()


class TensorBoard(Silent):
    """Scalars for TensorBoard in a directory."""

    def __init__(self, directory: Path):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise Mistake("--tensorboard: pip install 'torch-neurogenesis[experiments]'") from None
        self._make, self._directory = SummaryWriter, directory

    def started(self, settings: Settings, steps: int, done: int) -> None:
        with writing_to(self._directory):
            self._writer = self._make(str(self._directory), purge_step=done + 1)

    def stepped(self, line: Mapping[str, Any]) -> None:
        scalars = {"loss": line["loss"], "parameters": line["parameters"]}
        for kind in ("widths", "metric", "threshold"):
            scalars |= {f"{kind}/{width}": value for width, value in line[kind].items()}
        with writing_to(self._directory):
            for name, value in scalars.items():
                self._writer.add_scalar(name, value, line["step"])

    def finished_epoch(self, line: Mapping[str, Any]) -> None:
        with writing_to(self._directory):
            self._writer.add_scalar("accuracy", line["accuracy"], line["step"])
            self._writer.flush()

    def close(self) -> None:
        if hasattr(self, "_writer"):
            with writing_to(self._directory):
                self._writer.close()


class Several:
    """Several watchers as one."""

    def __init__(self, watchers: Sequence[Watcher]):
        self.watchers = watchers

    def started(self, settings: Settings, steps: int, done: int) -> None:
        for each in self.watchers:
            each.started(settings, steps, done)

    def stepped(self, line: Mapping[str, Any]) -> None:
        for each in self.watchers:
            each.stepped(line)

    def finished_epoch(self, line: Mapping[str, Any]) -> None:
        for each in self.watchers:
            each.finished_epoch(line)

    def close(self) -> None:
        for each in self.watchers:
            each.close()


def shown(widths: Mapping[str, int]) -> str:
    """Widths in one word."""
    return "-".join(map(str, widths.values()))
