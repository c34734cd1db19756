"""`neurogenesis sweep`: all runs of a study."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ..experiments.messages import echo, echo_error
from ..experiments.signals import delay_ctrl_c
from ..experiments.studies import STUDIES, select_runs
from .app import Parameter, Quiet, app, reject_unused_data
from .engines import EngineOptions, Where, chosen_engine


def sweep(
    study: str,
    *,
    out: Path | None = None,
    seeds: Annotated[tuple[int, ...] | None, Parameter(negative="", consume_multiple=1)] = None,
    epochs: int | None = None,
    only: Annotated[tuple[str, ...], Parameter(negative="", consume_multiple=1)] = ("*",),
    where: Where = None,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    quiet: Quiet = False,
) -> int:
    with delay_ctrl_c():
        from ..experiments import sweep as sweeps
        from ..experiments.environment import select_device
        from ..experiments.estimates import plan
        from ..experiments.progress import sweep_display

    selected, runs = select_runs(study, seeds, epochs, only)
    where = where or EngineOptions()
    reject_unused_data(where.data, list(runs.values()))
    out = out or Path("runs") / study
    with chosen_engine(where, out, runs.values(), timed=selected.timed) as chosen:
        if dry_run:
            select_device(chosen.place.device)  # steps are timed here
            echo(plan(runs, out, chosen.workers, chosen.place.threads, chosen.place.device))
            return 0
        chosen.download()
        with sweep_display(quiet) as show:
            sweeps.record_study(out, study, selected.title, runs)
            progress = sweeps.sweep(runs, out, chosen.engine, chosen.place, show)
    if progress.failed:
        echo_error(f"{len(progress.failed)} of {len(runs)} runs failed:")
        for name, reason in progress.failed.items():
            echo_error(f"  {out / name}: {reason}")
        return 1
    if not quiet:
        echo(f"all {len(runs)} runs are finished; neurogenesis report {out}")
    return 0


sweep.__doc__ = f"""Do all runs of a study, several at a time; finished ones are skipped, failed ones listed at the end.

Parameters
----------
study:
    One of {", ".join(STUDIES)}. Those with VGG-11 and WRN-28, pays and trigger-cost need a GPU; their
    -small variants and deepening-images run on two cores.
out:
    Directory of the runs' directories. By default runs/ and the study's name.
seeds:
    Seeds to use instead of the study's.
epochs:
    Epochs of every run, instead of the study's.
only:
    Do only runs whose names match one of these patterns, such as "north-select*" "gradmax*". In a study of several
    presets, names begin with the preset: "mnist/need*".
dry_run:
    Only list the runs and estimate how long they will take.
"""
app.command(sweep)
