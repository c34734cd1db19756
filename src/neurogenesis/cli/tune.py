"""`neurogenesis tune`: search for the settings of a preset."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ..experiments.messages import echo, echo_error
from ..experiments.presets import PRESETS
from ..experiments.settings import Settings
from ..experiments.signals import delay_ctrl_c
from .app import App, Group, Parameter, app, reject_unused_data

if TYPE_CHECKING:
    from ..experiments.tuning.tune import Outcome

tune_app = App(name="tune", help="Search for the widths of static networks, or for other settings.")
app.command(tune_app)

_SEARCH = Group("Search", sort_key=1)
_GENERAL = Group("General", sort_key=2)
_Path = Annotated[Path | None, Parameter(group=_GENERAL)]


def _add(preset: type[Settings]) -> None:
    def command(
        *,
        settings: Any = None,
        trials: Annotated[int, Parameter(group=_SEARCH)] = 20,
        search: Annotated[tuple[str, ...], Parameter(group=_SEARCH, negative="")] = (),
        objective: Annotated[Literal["accuracy", "pareto"], Parameter(group=_SEARCH)] = "accuracy",
        max_parameters: Annotated[int | None, Parameter(group=_SEARCH)] = None,
        engine: Annotated[Literal["optuna", "ray"], Parameter(group=_SEARCH)] = "optuna",
        out: _Path = None,
        workers: Annotated[int | None, Parameter(group=_GENERAL)] = None,
        threads: Annotated[int, Parameter(group=_GENERAL)] = 1,
        data: _Path = None,
        device: Annotated[str, Parameter(group=_GENERAL)] = "cpu",
        quiet: Annotated[bool, Parameter(group=_GENERAL, negative="")] = False,
    ) -> int:
        chosen = settings or preset()
        return _tune(
            chosen, trials, search, objective, max_parameters, engine, out, workers, threads, data, device, quiet
        )

    command.__doc__ = f"""{preset.__doc__}

    Every trial is a run that holds data out of the training split to choose by. What is chosen is trained on the whole
    training split, and only then the test split is used. If the search was interrupted, the same command resumes it;
    with more --trials it goes on.

    Parameters
    ----------
    trials:
        Number of trials, those that are done included.
    search:
        What to search: widths (the default), or a setting with a range, such as learning_rate=1e-4..1e-2, or with
        choices, such as batch=32,64,128. Can be given several times. A range over a factor of 10 or more is searched
        on a logarithmic scale.
    objective:
        Choose the most accurate trial, or all on the Pareto front of accuracy and parameters.
    max_parameters:
        Choose among networks of at most so many parameters; larger ones are not trained.
    engine:
        optuna proposes each trial by what came out of those before. ray draws trials at random, and Ray Tune stops
        those early that are behind after the same number of epochs (ASHA).
    out:
        Directory of the search. By default runs/tune- and a name made from the settings.
    workers:
        Number of trials at a time. By default as many as there are cores for, and 1 on a device other than the CPU.
        With 1, the same seed gives the same trials.
    threads:
        Number of torch's threads in each trial.
    data:
        Directory of data sets; missing files are downloaded into it. By default $NEUROGENESIS_DATA, else the user's
        cache.
    device:
        Device to train on: cpu, cuda, ...
    quiet:
        Show no progress.
    """
    command.__annotations__["settings"] = Annotated[preset | None, Parameter(name="*", group="Settings")]
    tune_app.command(command, name=preset.name)


for _preset in PRESETS.values():
    _add(_preset)


def _tune(
    settings: Settings,
    trials: int,
    searched: tuple[str, ...],
    objective: str,
    max_parameters: int | None,
    engine: str,
    out: Path | None,
    workers: int | None,
    threads: int,
    data: Path | None,
    device: str,
    quiet: bool,
) -> int:
    reject_unused_data(data, [settings])
    with delay_ctrl_c():
        from ..experiments.data import download
        from ..experiments.engines import Place
        from ..experiments.engines.pool import pool
        from ..experiments.environment import select_device
        from ..experiments.progress import sweep_display
        from ..experiments.tuning.choice import Goal
        from ..experiments.tuning.tune import plan_search, tune

    goal = Goal(objective, max_parameters)
    space = plan_search(settings, searched, goal, trials)
    workers = _workers(workers, threads, device)
    select_device(device)
    out = out or Path("runs") / f"tune-{settings.name}-{settings.label}"
    place = Place(data, device, threads)
    local = pool(workers, threads)
    download(settings.data, data)
    with sweep_display(quiet) as show:
        try:
            if engine == "optuna":
                found = tune(space, out, goal, trials, local, place, show)
            else:
                from ..experiments.tuning.asha import tune_with_asha

                found = tune_with_asha(space, out, goal, trials, workers, place, show)
        except KeyboardInterrupt:
            echo_error(f"stopped; {out} is saved. The same command resumes it.")
            return 130
    return _say(found, trials, quiet)


@tune_app.command(name="growing-or-searching")
def compare(
    *,
    presets: Annotated[tuple[str, ...], Parameter(negative="", consume_multiple=1)] = ("digits", "mnist"),
    seeds: Annotated[tuple[int, ...], Parameter(negative="", consume_multiple=1)] = (1, 2, 3),
    trials: Annotated[tuple[int, ...], Parameter(negative="", consume_multiple=1)] = (5, 10, 20),
    epochs: int | None = None,
    out: Path | None = None,
    workers: int | None = None,
    threads: int = 1,
    data: Path | None = None,
    device: str = "cpu",
    quiet: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Compare growing once with searches for widths: accuracy, parameters and time of training.

    On each preset and seed: the default strategy, need, and one search. After each number of trials, what is best so
    far is trained on the whole training split and tested. If it was interrupted, the same command resumes it.

    Parameters
    ----------
    presets:
        Presets to compare on.
    seeds:
        Seeds of grown networks and of searches.
    trials:
        Numbers of trials, increasing: the first trials of a search are those of a shorter one.
    epochs:
        Epochs of every run, instead of the preset's.
    out:
        Directory of the comparison. By default runs/growing-or-searching.
    workers:
        Number of runs at a time. By default as many as there are cores for, and 1 on a device other than the CPU.
    threads:
        Number of torch's threads in each run.
    data:
        Directory of data sets; missing files are downloaded into it. By default $NEUROGENESIS_DATA, else the user's
        cache.
    device:
        Device to train on: cpu, cuda, ...
    quiet:
        Show no progress.
    """
    with delay_ctrl_c():
        from ..experiments.data import download
        from ..experiments.engines import Place
        from ..experiments.engines.pool import pool
        from ..experiments.environment import select_device
        from ..experiments.progress import sweep_display
        from ..experiments.tuning import against_growing

    parts = against_growing.plan_parts(presets, seeds, trials, epochs)
    runs = [settings for part in parts for settings in part.grown.values()]
    reject_unused_data(data, runs)
    engine = pool(_workers(workers, threads, device), threads)
    select_device(device)
    out = out or Path("runs") / against_growing.NAME
    for name in {settings.data for settings in runs}:
        download(name, data)
    with sweep_display(quiet) as show:
        try:
            failed = against_growing.compare(parts, out, trials, engine, Place(data, device, threads), show)
        except KeyboardInterrupt:
            echo_error(f"stopped; {out} is saved. The same command resumes it.")
            return 130
    for name, reason in failed.items():
        echo_error(f"failed: {out / name}: {reason}")
    if not quiet:
        echo(f"neurogenesis report {out}")
    return 1 if failed else 0


def _workers(workers: int | None, threads: int, device: str) -> int:
    """The number of runs at a time."""
    from ..experiments.engines.pool import cores

    if workers is not None:
        return workers
    return 1 if device != "cpu" else max(1, cores() // max(1, threads))


def _say(found: Outcome, trials: int, quiet: bool) -> int:
    """Print what came of a search; the exit code."""
    from ..experiments.progress import format_sizes

    for name, reason in found.failed.items():
        echo_error(f"failed: {found.out / name}: {reason}")
    if not found.chosen:
        echo_error("neurogenesis: no trial is finished, so there is nothing to choose from")
        return 1
    if len(found.trials) < trials:
        echo_error(f"neurogenesis: only {len(found.trials)} trials: further candidates were too large")
    seconds = 0.0
    for trial in found.chosen:
        tried, final = trial.result(found.out), trial.final_result(found.out)
        if tried is None or final is None:
            return 1
        seconds += final.train_seconds
        if not quiet:
            echo(
                f"{trial.name}: validation accuracy {tried.accuracy:.2%}, test accuracy {final.accuracy:.2%}, "
                f"widths {format_sizes(final.widths)}, {final.parameters} parameters; {found.out / trial.final_name}"
            )
    if not quiet:
        left_out = f", {found.too_large} larger candidates were not trained" if found.too_large else ""
        echo(
            f"{len(found.trials)} trials{left_out}; {found.trial_seconds:.1f} s of training, and {seconds:.1f} s for "
            f"what was chosen; neurogenesis report {found.out}"
        )
    return 0
