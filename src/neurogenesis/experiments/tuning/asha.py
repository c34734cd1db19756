"""A search with Ray Tune: trials drawn at random, those that are behind after the same number of epochs stopped (ASHA).

The trials are drawn before the first one starts, from the seed alone. A trial that was done before, wholly or in part,
reports its recorded epochs again without training: so a search that is resumed compares with the same results.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...files import replace_file
from ..building import derived_seed
from ..engines import HERE, Place
from ..engines.pool import pool
from ..engines.processes import failure_reason
from ..errors import UsageError
from ..presets import NAMES, settings_from
from ..progress import NoDisplay, SweepProgress
from ..record import EPOCHS_FILE, RESULT_FILE, STOPPED_FILE, Epoch
from ..run_directory import RunDirectory
from ..settings import Settings
from ..signals import sigterm_as_ctrl_c
from .choice import Goal
from .directory import record_too_large, writing_search
from .space import Range, Space, initial_parameters
from .trials import Trial, trial_name
from .tune import Outcome, record_of, train_chosen

INSTALL = "pip install 'torch-neurogenesis[ray]'"
_REDUCTION = 3  # of the trials that reach a rung, one in three goes on
_MOST_REDRAWS = 1000
_OBJECT_STORE = 80 * 2**20  # bytes; trials pass numbers only


def tune_with_asha(
    space: Space,
    out: Path,
    goal: Goal,
    trials: int,
    workers: int,
    place: Place = HERE,
    show: Callable[[SweepProgress], None] = lambda progress: None,
) -> Outcome:
    """Search with Ray Tune, and train what is chosen among the trials that were not stopped.

    Args:
        space: what is searched, from `plan_search`.
        out: the directory of the search; the same call goes on with what is there.
        goal: what to look for; accuracy, because trials are stopped by it.
        trials: the number of trials.
        workers: trials at a time.
        place: what all runs use: data, device and number of threads.
        show: called whenever a run starts or ends.
    """
    if goal.objective != "accuracy":
        raise UsageError(f"--objective {goal.objective} needs --engine optuna: ASHA stops trials by accuracy alone")
    if NAMES.epochs in space.settings:
        raise UsageError("--search epochs needs --engine optuna: ASHA compares trials after the same number of epochs")
    _import_tune()
    drawn, too_large = draw(space, goal, trials)
    progress = SweepProgress(len(drawn))
    with writing_search(out, record_of(space, goal, "ray", [trials])):
        record_too_large(out, too_large)
        if all(_ended(out / trial.name) for trial in drawn):
            progress.finished.extend(trial.name for trial in drawn)
        else:
            with sigterm_as_ctrl_c(), _local_ray(workers):
                _fit(drawn, out, workers, place, progress, show)
        if any(not _ended(out / trial.name) and trial.name not in progress.failed for trial in drawn):
            raise KeyboardInterrupt  # Ray Tune ends early on Ctrl-C, and does not say so
        return train_chosen(out, drawn, goal, pool(1, place.threads), place, show, progress, too_large)


def draw(space: Space, goal: Goal, count: int) -> tuple[list[Trial], int]:
    """Trials at random, and how many candidates were too large; fewer trials if too many in a row were."""
    domains = {name: _domain(domain) for name, domain in space.domains.items()}
    trials: list[Trial] = []
    too_large = in_a_row = 0
    while len(trials) < count and in_a_row < _MOST_REDRAWS:
        number = len(trials) + too_large
        seeds = {name: derived_seed(space.base.seed, f"proposal {number} {name}") for name in domains}
        settings = space.at({name: domain.sample(random_state=seeds[name]) for name, domain in domains.items()})
        if goal.allows(initial_parameters(settings)):
            trials.append(Trial(trial_name(len(trials)), settings))
            in_a_row = 0
        else:
            too_large, in_a_row = too_large + 1, in_a_row + 1
    return trials, too_large


def _domain(domain: Any) -> Any:
    from ray import tune

    if not isinstance(domain, Range):
        return tune.choice(domain.values)
    if domain.whole:  # Ray Tune leaves the upper end out
        return (tune.lograndint if domain.log else tune.randint)(int(domain.low), int(domain.high) + 1)
    return (tune.loguniform if domain.log else tune.uniform)(domain.low, domain.high)


def _import_tune() -> None:
    try:
        import ray.tune  # noqa: F401
    except ImportError:
        raise UsageError(f"--engine ray: searching with ASHA needs Ray Tune: {INSTALL}") from None


@contextmanager
def _local_ray(workers: int) -> Iterator[None]:
    """A Ray of this machine, unless there is one already."""
    import ray

    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_worker_niceness", "0")  # as that of other engines; Ray's default is 15
    ray.init(
        address="local",
        num_cpus=workers,
        include_dashboard=False,
        object_store_memory=_OBJECT_STORE,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    try:
        yield
    finally:
        ray.shutdown()


def _fit(
    trials: list[Trial],
    out: Path,
    workers: int,
    place: Place,
    progress: SweepProgress,
    show: Callable[[SweepProgress], None],
) -> None:
    """Do the trials, and mark those that were stopped."""
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler

    epochs = trials[0].settings.epochs
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")  # the run directories are the record
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # the other one cannot be silenced
    jobs = [
        {
            "name": trial.name,
            "settings": trial.settings.record(),
            "directory": str((out / trial.name).resolve()),
            "place": (place.root, place.device, place.threads),
        }
        for trial in trials
    ]
    scheduler = ASHAScheduler(
        time_attr="epoch",
        max_t=epochs + 1,  # a trial ends by itself
        grace_period=max(1, epochs // _REDUCTION**2),
        reduction_factor=_REDUCTION,
    )
    gpus = 1 if place.device.startswith("cuda") else 0
    with tempfile.TemporaryDirectory() as own:  # Ray Tune's own record is not needed
        tune.Tuner(
            tune.with_resources(_train, {"cpu": place.threads, "gpu": gpus}),
            param_space={"job": tune.grid_search(jobs)},
            tune_config=tune.TuneConfig(
                metric="accuracy", mode="max", scheduler=scheduler, max_concurrent_trials=workers
            ),
            run_config=tune.RunConfig(
                storage_path=own, name="asha", verbose=0, callbacks=[_callback(out, epochs, progress, show)]
            ),
        ).fit()


def _train(config: dict[str, Any]) -> None:
    """Do a trial in a process of Ray, and report after each epoch."""
    from ray import tune

    from ..run import run

    job = config["job"]
    directory, settings = Path(job["directory"]), settings_from(job["settings"])
    if _ended(directory):
        for epoch in RunDirectory(directory).epochs():
            _report(epoch)
        return
    root, device, threads = job["place"]
    result = run(settings, directory, root=root, device=device, threads=threads, display=_Reports(directory))
    tune.report({"accuracy": result.accuracy, "epoch": settings.epochs})


class _Reports(NoDisplay):
    """Reports every epoch but the last one: that is reported when the result is written."""

    def __init__(self, directory: Path):
        self._directory = directory

    def on_start(self, settings: Settings, steps: int, done: int) -> None:
        self._last = settings.epochs
        if (self._directory / EPOCHS_FILE).exists():
            for epoch in RunDirectory(self._directory).epochs():
                self.on_epoch(epoch)

    def on_epoch(self, epoch: Epoch) -> None:
        if epoch.epoch < self._last:
            _report(epoch)


def _report(epoch: Epoch) -> None:
    from ray import tune

    tune.report({"accuracy": epoch.accuracy, "epoch": epoch.epoch})


def _ended(directory: Path) -> bool:
    """Whether a trial is finished or was stopped."""
    return (directory / RESULT_FILE).exists() or (directory / STOPPED_FILE).exists()


def _callback(out: Path, epochs: int, progress: SweepProgress, show: Callable[[SweepProgress], None]) -> Any:
    """Marks trials that were stopped, and shows the progress."""
    from ray import tune

    class Marks(tune.Callback):  # type: ignore[misc]
        def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            progress.running.append(trial.config["job"]["name"])
            show(progress)

        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            name = trial.config["job"]["name"]
            if not _ended(out / name):
                done = trial.last_result["epoch"]
                text = f"stopped after epoch {done} of {epochs}, because other trials were ahead\n"
                replace_file(out / name / STOPPED_FILE, lambda path: path.write_text(text))
            progress.running.remove(name)
            progress.finished.append(name)
            show(progress)

        def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            name = trial.config["job"]["name"]
            if name in progress.running:  # it may fail before it starts
                progress.running.remove(name)
            progress.failed[name] = failure_reason(out / name, 1)
            show(progress)

    return Marks()
