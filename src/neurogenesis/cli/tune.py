"""`neurogenesis tune`: search for the settings of a preset."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ..experiments.messages import echo, echo_error
from ..experiments.presets import PRESETS
from ..experiments.settings import Settings
from ..experiments.signals import delay_ctrl_c
from .app import App, Group, Parameter, Quiet, app, reject_unused_data
from .engines import EngineOptions, Where, chosen_engine

if TYPE_CHECKING:
    from ..experiments.tuning.tune import Outcome

tune_app = App(name="tune", help="Search for the widths of static networks, or for other settings.")
app.command(tune_app)


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Options of a search. The help of an option is the string below it."""

    trials: int = 20
    """Number of trials, including those that are done."""
    search: Annotated[tuple[str, ...], Parameter(negative="", show_default=False)] = ()
    """What to search: widths (the default), or a setting with a range, such as learning_rate=1e-4..1e-2, or with
    choices, such as batch=32,64,128. Can be given several times. A range over a factor of 10 or more is searched on a
    logarithmic scale."""
    objective: Literal["accuracy", "pareto"] = "accuracy"
    """Choose the most accurate trial, or all on the Pareto front of accuracy and parameters."""
    sampler: Literal["optuna", "asha"] = "optuna"
    """optuna proposes each trial by the results of those before. asha draws trials at random, and stops early those
    that are behind after the same number of epochs."""


def _add(preset: type[Settings]) -> None:
    def command(
        *,
        settings: Any = None,
        options: Annotated[SearchOptions | None, Parameter(name="*", group=Group("Search", sort_key=1))] = None,
        out: Annotated[Path | None, Parameter(group=_GENERAL)] = None,
        where: Annotated[Where, Parameter(group=_GENERAL)] = None,
        quiet: Annotated[Quiet, Parameter(group=_GENERAL)] = False,
    ) -> int:
        chosen = settings or preset()
        out = out or Path("runs") / f"tune-{chosen.name}-{replace(chosen, max_parameters=None).label}"
        return _tune(chosen, options or SearchOptions(), out, where or EngineOptions(), quiet)

    command.__doc__ = f"""{preset.__doc__}

    Every trial is a run that is measured on held-out training data. The chosen trials are trained once more on the
    whole training split, and only then measured on the test split. If the search was interrupted, the same command
    resumes it; with more --trials it goes on, also with another engine. With --workers 1, the same seed gives the same
    trials.

    Parameters
    ----------
    out:
        Directory of the search. By default runs/tune- and a name made from the settings.
    """
    command.__annotations__["settings"] = Annotated[preset | None, Parameter(name="*", group="Settings")]
    tune_app.command(command, name=preset.name)


_GENERAL = Group("General", sort_key=2)
for _preset in PRESETS.values():
    _add(_preset)


def _tune(settings: Settings, options: SearchOptions, out: Path, where: EngineOptions, quiet: bool) -> int:
    reject_unused_data(where.data, [settings])
    with delay_ctrl_c():
        from ..experiments.progress import sweep_display
        from ..experiments.tuning.choice import Goal
        from ..experiments.tuning.tune import plan_search, require_optuna, tune

    # A search chooses among networks of at most so many parameters; larger ones are not trained.
    goal, settings = Goal(options.objective, settings.max_parameters), replace(settings, max_parameters=None)
    space = plan_search(settings, options.search, goal, options.trials, options.sampler)
    with delay_ctrl_c():
        require_optuna()
    with chosen_engine(where, out, [settings]) as chosen, sweep_display(quiet) as show:
        chosen.download()
        found = tune(space, out, goal, options.trials, chosen.engine, chosen.place, show, options.sampler)
    return _say(found, options.trials, quiet)


@tune_app.command(name="growing-or-searching")
def compare(
    *,
    presets: Annotated[tuple[str, ...], Parameter(negative="", consume_multiple=1)] = ("digits", "mnist"),
    seeds: Annotated[tuple[int, ...], Parameter(negative="", consume_multiple=1)] = (1, 2, 3),
    trials: Annotated[tuple[int, ...], Parameter(negative="", consume_multiple=1)] = (5, 10, 20),
    epochs: int | None = None,
    out: Path | None = None,
    where: Where = None,
    quiet: Quiet = False,
) -> int:
    """Compare growing once with searches for widths: accuracy, parameters and time of training.

    On each preset and seed: the default strategy, north-select, and one search. After each number of trials, what is
    best so far is trained on the whole training split and tested. If it was interrupted, the same command resumes it.

    Parameters
    ----------
    presets:
        Presets to compare on.
    seeds:
        Seeds of grown networks and of searches.
    trials:
        Increasing numbers of trials. A search with fewer trials is the beginning of one with more.
    epochs:
        Epochs of every run, instead of the preset's.
    out:
        Directory of the comparison. By default runs/growing-or-searching.
    """
    with delay_ctrl_c():
        from ..experiments.progress import sweep_display
        from ..experiments.tuning import against_growing

    comparisons = against_growing.plan_comparisons(presets, seeds, trials, epochs)
    runs = [settings for each in comparisons for settings in each.grown.values()]
    where = where or EngineOptions()
    reject_unused_data(where.data, runs)
    out = out or Path("runs") / against_growing.NAME
    with chosen_engine(where, out, runs) as chosen, sweep_display(quiet) as show:
        chosen.download()
        failed = against_growing.compare(comparisons, out, trials, chosen.engine, chosen.place, show)
    for name, reason in failed.items():
        echo_error(f"failed: {out / name}: {reason}")
    if not quiet:
        echo(f"neurogenesis report {out}")
    return 1 if failed else 0


def _say(found: Outcome, trials: int, quiet: bool) -> int:
    """Print the outcome of a search; returns the exit code."""
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
