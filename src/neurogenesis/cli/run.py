"""`neurogenesis run`: one run of a preset, with its settings as options."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from ..experiments.errors import UsageError
from ..experiments.messages import echo
from ..experiments.presets import PRESETS
from ..experiments.record import RESULT_FILE, SETTINGS_FILE, TENSORBOARD_DIRECTORY
from ..experiments.settings import Settings
from ..experiments.signals import delay_ctrl_c
from .app import App, DataDirectory, Flag, Group, Parameter, Quiet, app, reject_unused_data

run_app = App(name="run", help="Train a growing or static network and record it.")
app.command(run_app)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options besides the settings. The help of an option is the string below it."""

    out: Path | None = None
    """Directory of the run. By default runs/ and a name made from the settings."""
    data: DataDirectory = None
    device: str = "cpu"
    """Device to train on: cpu, cuda, ..."""
    threads: int | None = None
    """Number of torch's threads. By default 1 for small networks, and all cores for convolutional ones."""
    resume: Flag = False
    """Fail unless there is a run to resume."""
    tensorboard: Flag = False
    """Write scalars for TensorBoard into the run's directory."""
    quiet: Quiet = False


def _add(preset: type[Settings]) -> None:
    def command(
        *,
        settings: Any = None,
        options: Annotated[RunOptions | None, Parameter(name="*", group=Group("General", sort_key=1))] = None,
    ) -> int:
        return _run(settings or preset(), options or RunOptions())

    command.__doc__ = f"""{preset.__doc__}

    If the run was interrupted, the same command resumes it. A finished run is not repeated.
    """
    command.__annotations__["settings"] = Annotated[preset | None, Parameter(name="*", group="Settings")]
    run_app.command(command, name=preset.name)


for _preset in PRESETS.values():
    _add(_preset)


def _run(settings: Settings, options: RunOptions) -> int:
    reject_unused_data(options.data, [settings])
    with delay_ctrl_c():
        from ..experiments.progress import Bar, Display, Lines, TensorBoard, format_sizes
        from ..experiments.run import run

    out = options.out or Path("runs") / f"{settings.name}-{settings.label}"
    if options.resume and not (out / SETTINGS_FILE).exists():
        raise UsageError(f"--resume: there is no run in {out}; start one without --resume")
    finished = (out / RESULT_FILE).exists()
    displays: list[Display] = [] if options.quiet else [Bar() if sys.stdout.isatty() else Lines()]
    if options.tensorboard:
        displays.append(TensorBoard(out / TENSORBOARD_DIRECTORY))
    result = run(settings, out, root=options.data, device=options.device, threads=options.threads, displays=displays)
    if not options.quiet:
        split = "validation" if settings.holdout else "test"
        bits = result.bits_per_character
        echo(
            f"{'already finished: ' if finished else ''}{split} accuracy {result.accuracy:.2%}, "
            f"{'' if bits is None else f'{bits:.3f} bits per character, '}"
            f"widths {format_sizes(result.widths)}, "
            f"{result.parameters} parameters, {result.train_seconds:.1f} s of training; {out}"
        )
    return 0
