"""The command `neurogenesis`: run, sweep, report, widths.

Torch and everything that takes long to import is imported when a command needs it.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

try:
    from cyclopts import App, ArgumentCollection, CoercionError, Group, Parameter
    from cyclopts.exceptions import CycloptsError
except ImportError:
    sys.exit("neurogenesis: the command takes more than the library: pip install 'torch-neurogenesis[experiments]'")

from .experiments.errors import Mistake
from .experiments.presets import PRESETS, Settings
from .experiments.saying import complain, say

if TYPE_CHECKING:
    from torch import nn


def _refuse_parts(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Whole numbers must be whole: they would be rounded."""
    for argument in arguments:
        if _of(argument.hint, int) and not _of(argument.hint, float):
            for token in argument.tokens:
                if "." in token.value:
                    raise CoercionError(token=token, argument=argument, target_type=int)


def _of(hint: Any, kind: type) -> bool:
    """Whether a type is made of another."""
    return hint is kind or any(_of(part, kind) for part in get_args(hint))


app = App(
    name="neurogenesis",
    config=_refuse_parts,
    help="Grow neural networks while they train.",
    version=lambda: f"neurogenesis {version('torch-neurogenesis')}",
    suppress_keyboard_interrupt=False,
)
run_app = App(name="run", help="Train a network of a preset, grown or not, and record it.")
app.command(run_app)

_HOW = Group("How and where", sort_key=1)
_Place = Annotated[Path | None, Parameter(group=_HOW)]
_Flag = Annotated[bool, Parameter(group=_HOW, negative="")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the arguments are those of the command line by default."""

    def warn(message: Warning | str, *_: Any, **__: Any) -> None:
        complain(f"neurogenesis: {message}")

    with warnings.catch_warnings():
        warnings.showwarning = warn  # without the line of our source that it came from
        try:
            result = app(arguments, exit_on_error=False, result_action="return_value")
        except CycloptsError as error:  # said already
            complain(" ".join(["All options: neurogenesis", *(error.command_chain or ()), "--help"]))
            return 2
        except Mistake as error:
            complain(f"neurogenesis: {error}")
            return 1
        except KeyboardInterrupt:
            complain("neurogenesis: interrupted; the same command goes on from what is saved")
            return 130
    return result if isinstance(result, int) else 0


@contextmanager
def _imports() -> Iterator[None]:
    """Let Ctrl-C wait until imports are done: some of them swallow it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


# --- run ---------------------------------------------------------------------------------------------------


def _add(preset: type[Settings]) -> None:
    def command(
        *,
        settings: Any = None,
        out: _Place = None,
        data: _Place = None,
        device: Annotated[str, Parameter(group=_HOW)] = "cpu",
        threads: Annotated[int | None, Parameter(group=_HOW)] = None,
        resume: _Flag = False,
        tensorboard: _Flag = False,
        quiet: _Flag = False,
    ) -> int:
        return _run(settings or preset(), out, data, device, threads, resume, tensorboard, quiet)

    command.__doc__ = f"""{preset.__doc__}

    A run that was cut off goes on when the same command is given again; one that is finished is not repeated.

    Parameters
    ----------
    out:
        The run's directory; by default runs/ and a name made of the settings.
    data:
        Where files of data sets are, or are put; by default $NEUROGENESIS_DATA, else the user's cache.
    device:
        What to train on: cpu, cuda, ...
    threads:
        Threads of torch; by default 1 for dense networks, which are small, and all cores for convolutions.
    resume:
        Refuse to begin anew: there must be a run to go on with.
    tensorboard:
        Write scalars for TensorBoard into the run's directory.
    quiet:
        Show no progress.
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
    _refuse_data(data, [settings])
    with _imports():
        from .experiments.training import Interrupted, run
        from .experiments.watchers import Bar, Lines, Several, Silent, TensorBoard, Watcher, shown

    out = out or Path("runs") / f"{settings.name}-{settings.label}"
    if resume and not (out / "settings.json").exists():
        raise Mistake(f"--resume: there is no run in {out}; leave --resume out to begin one")
    finished = (out / "result.json").exists()
    watchers: list[Watcher] = [Silent() if quiet else Bar() if sys.stdout.isatty() else Lines()]
    if tensorboard:
        watchers.append(TensorBoard(out / "tensorboard"))
    try:
        result = run(settings, out, root=data, device=device, threads=threads, watcher=Several(watchers))
    except Interrupted as interruption:
        complain(f"{interruption}; {out} is saved. The same command goes on from there.")
        return 130
    if not quiet:
        kind = "validation" if settings.holdout else "test"
        say(
            f"{'finished already: ' if finished else ''}{kind} accuracy {result['accuracy']:.2%}, "
            f"widths {shown(result['widths'])}, "
            f"{result['parameters']} parameters, {result['train_seconds']:.1f} s of training; {out}"
        )
    return 0


def _refuse_data(data: Path | None, runs: Sequence[Settings]) -> None:
    if data is not None and not any(settings.needs_files for settings in runs):
        raise Mistake(f"--data has no effect on {runs[0].name}, which needs no files: leave it out")


# --- sweep -------------------------------------------------------------------------------------------------


@app.command
def sweep(
    study: str,
    *,
    out: Path | None = None,
    seeds: Annotated[tuple[int, ...] | None, Parameter(negative="", consume_multiple=1)] = None,
    epochs: int | None = None,
    only: Annotated[tuple[str, ...], Parameter(negative="", consume_multiple=1)] = ("*",),
    workers: int | None = None,
    threads: int = 1,
    data: Path | None = None,
    device: str = "cpu",
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    quiet: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Make all runs of a study, several at a time; finished ones are skipped, failed ones listed at the end.

    Parameters
    ----------
    study:
        The paper's figures and tables: generated, mnist-dynamic, mnist-preset, mnist-gamma, mnist-batchsize, mnist-lr,
        and for a GPU vgg11-cifar10, vgg11-cifar100, wrn28-cifar10, trigger-cost. For two cores instead of these:
        vgg11-cifar10-small, vgg11-cifar100-small, wrn28-cifar10-small, trigger-cost-small. Also digits: all strategies
        in a few minutes.
    out:
        The directory of the runs' directories; by default runs/ and the study's name.
    seeds:
        Seeds to take instead of the study's.
    epochs:
        Epochs of every run instead of the study's.
    only:
        Only runs whose names match one of these patterns, such as "north-select*" "gradmax*".
    workers:
        Runs at a time; by default as many as there are cores for, and 1 if their times matter (trigger-cost) or they
        share another device.
    threads:
        Threads of torch in each.
    data:
        Where files of data sets are, or are put; by default $NEUROGENESIS_DATA, else the user's cache.
    device:
        What to train on: cpu, cuda, ...
    dry_run:
        Only list the runs, and estimate how long they will take.
    quiet:
        Show no progress.
    """
    with _imports():
        from .experiments import sweep as sweeps
        from .experiments.data import prepare
        from .experiments.environment import device_of
        from .experiments.estimates import plan
        from .experiments.studies import chosen

    found, runs = chosen(study, seeds, epochs, only)
    _refuse_data(data, runs)
    out = out or Path("runs") / study
    if workers is None:
        alone = found.timed or device != "cpu"
        workers = 1 if alone else max(1, sweeps.cores() // max(1, threads))
    sweeps.check(workers, threads)
    device_of(device)  # once, and before the first run, instead of in each
    if dry_run:
        say(plan(runs, out, workers, threads, device))
        return 0
    for name in {settings.data for settings in runs}:
        prepare(name, data)
    with sweeps.shown(quiet) as tell:
        try:
            sweeps.claim(out, study, found.title, runs)
            progress = sweeps.sweep(runs, out, workers=workers, threads=threads, root=data, device=device, tell=tell)
        except KeyboardInterrupt:
            complain(f"stopped; {out} is saved. The same command goes on from there.")
            return 130
    if progress.failed:
        complain(f"{len(progress.failed)} of {len(runs)} runs failed:")
        for label, why in progress.failed.items():
            complain(f"  {out / label}: {why}")
        return 1
    if not quiet:
        say(f"all {len(runs)} runs are finished; neurogenesis report {out}")
    return 0


# --- report ------------------------------------------------------------------------------------------------


@app.command
def report(
    runs: Annotated[tuple[Path, ...], Parameter(negative="")],
    *,
    out: Path | None = None,
    format: Annotated[tuple[Literal["html", "png", "svg", "pdf"], ...], Parameter(negative="")] = ("html",),
) -> int:
    """Draw figures and tables of runs: one HTML file that opens offline, or pictures.

    Parameters
    ----------
    runs:
        Directories of runs, of sweeps, or above them.
    out:
        Where to write; by default into the first of these that there is.
    format:
        html for the page; png, svg or pdf for one file per figure. Can be given several times.
    """
    try:
        from .report import draw, read
    except ImportError as error:
        complain(f"neurogenesis: {error}: pip install 'torch-neurogenesis[experiments]'")
        return 1
    records = read(runs)
    for left_out in records.left_out[:5]:
        complain(f"neurogenesis: left out {left_out}")
    if len(records.left_out) > 5:
        complain(f"neurogenesis: left out {len(records.left_out) - 5} more; the report names them")
    drawn = draw(records, out or next(path for path in runs if path.is_dir()), format)
    for path in drawn:
        say(path)
    if not drawn:
        complain("neurogenesis: nothing to draw, as no run has done a step yet")
    return 0 if drawn else 1


# --- widths ------------------------------------------------------------------------------------------------


def _shape(type_: Any, tokens: Sequence[Any]) -> tuple[int, ...]:
    text = tokens[0].value
    if not all(part.isdecimal() and int(part) for part in text.split(",")):
        raise ValueError(f"expected sizes such as 1,3,224,224, not {text!r}")
    return tuple(map(int, text.split(",")))


@app.command
def widths(
    model: str,
    *values: str,
    input: Annotated[Any, Parameter(converter=_shape, n_tokens=1)],
    tie: Annotated[tuple[str, ...], Parameter(negative="")] = (),
) -> int:
    """Print every width of a model: what can grow, together with what, and why not.

    Example: neurogenesis widths torch.nn:TransformerEncoderLayer 64 4 dim_feedforward=96 --input 1,10,64

    Parameters
    ----------
    model:
        What makes the model, as package.module:callable.
    values:
        Arguments of the callable, as Python values; name=value for keywords.
    input:
        Shape of an input, such as 1,3,224,224.
    tie:
        Pattern of widths that grow together. Can be given several times.
    """
    import torch

    import neurogenesis as ng

    made = _model(model, values)
    try:
        found = ng.widths(made, torch.randn(input), tie=tie)
    except (ValueError, TypeError) as error:
        raise Mistake(str(error)) from None
    say(found if len(found) else f"no width found in {model}: it has no layer that another one reads from")
    return 0


def _model(place: str, values: Sequence[str]) -> nn.Module:
    from torch import nn

    module, _, name = place.partition(":")
    if not name:
        raise Mistake(f"{place!r} does not name a model: write package.module:callable")
    sys.path.insert(0, os.getcwd())  # as python -m does
    named = dict(value.split("=", 1) for value in values if _NAMED.match(value))
    listed = [_value(value) for value in values if not _NAMED.match(value)]
    try:
        made = getattr(importlib.import_module(module), name)
        if callable(made) and not isinstance(made, nn.Module):
            made = made(*listed, **{key: _value(value) for key, value in named.items()})
    except Exception as error:  # of somebody else's code: any
        raise Mistake(f"cannot make {place}: {type(error).__name__}: {error}") from error
    if not isinstance(made, nn.Module):
        raise Mistake(f"{place} gives a {type(made).__name__}, not a torch.nn.Module")
    return made


_NAMED = re.compile(r"[A-Za-z_]\w*=")


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


if __name__ == "__main__":
    sys.exit(main())
