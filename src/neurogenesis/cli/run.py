"""`neurogenesis run`: one run of a preset, with its settings as options."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from ..experiments.errors import UsageError
from ..experiments.messages import echo, echo_error
from ..experiments.presets import PRESETS
from ..experiments.record import RESULT_FILE, SETTINGS_FILE, TENSORBOARD_DIRECTORY
from ..experiments.settings import Settings
from ..experiments.signals import Interrupted, delay_ctrl_c
from .app import App, DataDirectory, Group, Parameter, Quiet, app, reject_unused_data

run_app = App(name="run", help="Train a growing or static network and record it.")
app.command(run_app)

_GENERAL = Group("General", sort_key=1)
_Flag = Annotated[bool, Parameter(group=_GENERAL, negative="")]


def _add(preset: type[Settings]) -> None:
    def command(
        *,
        settings: Any = None,
        out: Annotated[Path | None, Parameter(group=_GENERAL)] = None,
        data: Annotated[DataDirectory, Parameter(group=_GENERAL)] = None,
        device: Annotated[str, Parameter(group=_GENERAL)] = "cpu",
        threads: Annotated[int | None, Parameter(group=_GENERAL)] = None,
        resume: _Flag = False,
        tensorboard: _Flag = False,
        quiet: Annotated[Quiet, Parameter(group=_GENERAL)] = False,
    ) -> int:
        return _run(settings or preset(), out, data, device, threads, resume, tensorboard, quiet)

    command.__doc__ = f"""{preset.__doc__}

    If the run was interrupted, the same command resumes it. A finished run is not repeated.

    Parameters
    ----------
    out:
        Directory of the run. By default runs/ and a name made from the settings.
    device:
        Device to train on: cpu, cuda, ...
    threads:
        Number of torch's threads. By default 1 for dense networks, which are small, and all cores for convolutional
        ones.
    resume:
        Fail unless there is a run to resume.
    tensorboard:
        Write scalars for TensorBoard into the run's directory.
    """
    command.__annotations__["settings"] = Annotated[preset | None, Parameter(name="*", group="Settings")]
    run_app.command(command, name=preset.name)


for _preset in PRESETS.values():
    _add(_preset)


def _run(
    settings: Settings,
    out: Path | None,
    data: Path | None,
    device: str,
    threads: int | None,
    resume: bool,
    tensorboard: bool,
    quiet: bool,
) -> int:
    reject_unused_data(data, [settings])
    with delay_ctrl_c():
        from ..experiments.progress import Bar, Display, Displays, Lines, NoDisplay, TensorBoard, format_sizes
        from ..experiments.run import run

    out = out or Path("runs") / f"{settings.name}-{settings.label}"
    if resume and not (out / SETTINGS_FILE).exists():
        raise UsageError(f"--resume: there is no run in {out}; start one without --resume")
    finished = (out / RESULT_FILE).exists()
    displays: list[Display] = [NoDisplay() if quiet else Bar() if sys.stdout.isatty() else Lines()]
    if tensorboard:
        displays.append(TensorBoard(out / TENSORBOARD_DIRECTORY))
    try:
        result = run(settings, out, root=data, device=device, threads=threads, display=Displays(displays))
    except Interrupted as interruption:
        echo_error(f"{interruption}; {out} is saved. The same command resumes it.")
        return 130
    if not quiet:
        split = "validation" if settings.holdout else "test"
        echo(
            f"{'already finished: ' if finished else ''}{split} accuracy {result.accuracy:.2%}, "
            f"widths {format_sizes(result.widths)}, "
            f"{result.parameters} parameters, {result.train_seconds:.1f} s of training; {out}"
        )
    return 0
