"""A search with Ray Tune: trials drawn at random, those that are behind after the same number of epochs stopped (ASHA).

The trials are drawn before the first one starts, from the seed alone. A trial that was done before, wholly or in part,
reports its recorded epochs again without training: so a search that is resumed, or whose worker or node was lost,
compares with the same results.
"""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.error import TuneError
from ray.tune.schedulers import ASHAScheduler

from ...files import replace_file
from ..building import derived_seed
from ..engines import HERE, Place
from ..engines.processes import refused, write_failure
from ..engines.ray import Losses, cluster, loss_reason
from ..engines.ray_cluster import Request, examine_cluster, on_this_node
from ..engines.transfer import read_parts, write_parts
from ..errors import UsageError
from ..files import writing_to
from ..progress import SweepProgress
from ..record import FAILURE_FILE, RESULT_FILE, STOPPED_FILE
from ..run_directory import RunDirectory
from ..signals import restoring_signals, sigterm_as_ctrl_c
from .asha_trials import ACCURACY, EPOCH, FAILURE, FILES, Start, Starts, do_trial
from .choice import Goal
from .directory import record_too_large, writing_search
from .space import Range, Space, initial_parameters
from .trials import Trial, trial_name
from .tune import Outcome, check_asha, record_of, train_chosen

_REDUCTION = 3  # of the trials that reach a rung, one in three goes on
_MOST_REDRAWS = 1000
_QUIET = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # the run directories are the record
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",  # those that matter are listed at the end
    "RAY_AIR_NEW_OUTPUT": "0",  # the other one cannot be silenced
}
_Show = Callable[[SweepProgress], None]


def tune_with_asha(
    space: Space,
    out: Path,
    goal: Goal,
    trials: int,
    place: Place = HERE,
    show: _Show = lambda progress: None,
    *,
    data: Sequence[str] = (),
    request: Request | None = None,
    workers: int | None = None,
) -> Outcome:
    """Search with Ray Tune, and train what is chosen among the trials that were not stopped.

    Everything is done on the cluster that this process is connected to (`engines.ray_cluster.connected`).

    Args:
        space: what is searched, from `plan_search`.
        out: the directory of the search; the same call goes on with what is there.
        goal: what to look for; accuracy, because trials are stopped by it.
        trials: the number of trials.
        place: what all runs use: data, device and number of threads.
        show: called whenever a run starts or ends.
        data: the data sets with files that they read.
        request: what each run needs of a node; by default one CPU.
        workers: maximum number of trials at a time; by default as many as there is room for.
    """
    check_asha(space, goal)
    request = request or Request()
    engine = cluster(out, data, request, workers)
    drawn, too_large = draw(space, goal, trials)
    progress = SweepProgress(len(drawn))
    with writing_search(out, record_of(space, goal, "asha", [trials])):
        record_too_large(out, too_large)
        if all(_ended(out / trial.name) for trial in drawn):
            progress.finished.extend(trial.name for trial in drawn)
        else:
            with sigterm_as_ctrl_c():
                place, shared = examine_cluster(out, data, place, request)
                _fit(drawn, place, request, workers, _Driver(drawn, out, shared, progress, show))
        if any(not _ended(out / trial.name) and trial.name not in progress.failed for trial in drawn):
            raise KeyboardInterrupt  # Ray Tune ends early on Ctrl-C, and does not say so
        return train_chosen(out, drawn, goal, engine, place, show, progress, too_large)


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
    if not isinstance(domain, Range):
        return tune.choice(domain.values)
    if domain.whole:  # Ray Tune leaves the upper end out
        return (tune.lograndint if domain.log else tune.randint)(int(domain.low), int(domain.high) + 1)
    return (tune.loguniform if domain.log else tune.uniform)(domain.low, domain.high)


def _ended(directory: Path) -> bool:
    """Whether a trial is finished or was stopped."""
    return (directory / RESULT_FILE).exists() or (directory / STOPPED_FILE).exists()


def _fit(trials: Sequence[Trial], place: Place, request: Request, workers: int | None, driver: _Driver) -> None:
    """Let Ray Tune do the trials."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    epochs = trials[0].settings.epochs
    scheduler = ASHAScheduler(
        time_attr=EPOCH,
        max_t=epochs + 1,  # a trial ends by itself
        grace_period=max(1, epochs // _REDUCTION**2),
        reduction_factor=_REDUCTION,
    )
    trainable = tune.with_parameters(do_trial, starts=driver.starts, place=place)
    with tempfile.TemporaryDirectory() as own, driver.holding():  # Ray Tune's own record is not needed
        tuner = tune.Tuner(
            tune.with_resources(trainable, {"cpu": request.cpus, "gpu": request.gpus}),
            param_space={"job": tune.grid_search([driver.job(trial) for trial in trials])},
            tune_config=tune.TuneConfig(
                metric=ACCURACY, mode="max", scheduler=scheduler, max_concurrent_trials=workers, reuse_actors=True
            ),
            run_config=tune.RunConfig(
                storage_path=own,
                name="asha",
                verbose=0,
                callbacks=[driver],
                failure_config=tune.FailureConfig(max_failures=-1),  # the driver counts losses itself
            ),
        )
        try:
            with restoring_signals():  # Ray Tune would go on to keep Ctrl-C from what comes afterwards
                tuner.fit()
        except TuneError:
            if driver.problem is not None:
                raise driver.problem from None
            raise


class _Driver(tune.Callback):  # type: ignore[misc]
    """The driver's side of the trials: their files, what was lost, what is stopped, and the progress."""

    def __init__(self, trials: Sequence[Trial], out: Path, shared: bool, progress: SweepProgress, show: _Show):
        self.starts = ray.remote(num_cpus=0, scheduling_strategy=on_this_node())(Starts).remote()
        self._trials = {trial.name: trial for trial in trials}
        self._out, self._shared, self._progress, self._show = out.absolute(), shared, progress, show
        self._losses = {trial.name: Losses(self._out / trial.name) for trial in trials}
        self.problem: UsageError | None = None
        self._held: dict[str, ExitStack] = {}  # directories of trials under way, if this process writes to them

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Ray Tune writes it to a file, which is not needed; locks and displays could not be written

    def job(self, trial: Trial) -> dict[str, Any]:
        """What Ray Tune gives a trial."""
        return {"name": trial.name, "settings": trial.settings.record(), "directory": str(self._out / trial.name)}

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Let go of the directories of all trials at the end of the block."""
        try:
            yield
        finally:
            for name in list(self._held):
                self._release(name)

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        name = trial.config["job"]["name"]
        start = self._start(name)
        ray.get(self.starts.put.remote(name, start))
        if start is not None:
            self._progress.running.append(name)
            self._show(self._progress)

    def _start(self, name: str) -> Start | None:
        """What a trial is told; None if it has failed."""
        directory = self._out / name
        if name in self._progress.failed:
            return None
        if _ended(directory):
            return Start(recorded=RunDirectory(directory).epochs())
        try:
            with writing_to(directory):
                directory.mkdir(exist_ok=True)  # by which a new node is known to see it
                (directory / FAILURE_FILE).unlink(missing_ok=True)
            if self._shared:
                return Start()
            held = self._held[name] = ExitStack()
            held.enter_context(RunDirectory(directory).locked(self._trials[name].settings.record()))
            return Start(read_parts(directory))
        except UsageError as error:
            self._fail(name, refused(directory, " ".join(str(error).split())))
            return None

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        name, files, failure = trial.config["job"]["name"], result.pop(FILES, []), result.pop(FAILURE, None)
        try:
            write_parts(self._out / name, files)
            self._note(name, result, failure)
        except UsageError as error:  # of which Ray Tune would make a traceback
            self.problem = error
            raise

    def _note(self, name: str, result: dict[str, Any], failure: str | None) -> None:
        """Note that a trial failed, or is being stopped."""
        directory = self._out / name
        if failure is not None:
            self._release(name)
            self._fail(name, failure if (directory / FAILURE_FILE).exists() else refused(directory, failure))
        elif result.get("done") and not _ended(directory):
            epochs = self._trials[name].settings.epochs
            text = f"stopped after epoch {result[EPOCH]} of {epochs}, because other trials were ahead\n"
            with writing_to(directory):
                replace_file(directory / STOPPED_FILE, lambda path: path.write_text(text, "utf-8"))

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        name = trial.config["job"]["name"]
        self._release(name)
        if name in self._progress.running:
            self._progress.running.remove(name)
            self._progress.finished.append(name)
            self._show(self._progress)

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A trial was lost. Ray Tune starts it again, if only to be told that it is not to be done."""
        name = trial.config["job"]["name"]
        self._release(name)
        if name in self._progress.running:
            self._progress.running.remove(name)
        reason = self._losses[name].add(_why(trial))
        if reason is not None:
            self._fail(name, write_failure(self._out / name, reason))

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A trial could not be started."""
        name = trial.config["job"]["name"]
        self._release(name)
        self._fail(name, refused(self._out / name, _why(trial)))

    def _fail(self, name: str, reason: str) -> None:
        if name in self._progress.running:
            self._progress.running.remove(name)
        self._progress.failed[name] = reason
        self._show(self._progress)

    def _release(self, name: str) -> None:
        """Let go of the directory of a trial."""
        if name in self._held:
            self._held.pop(name).close()


def _why(trial: Any) -> str:
    """Why Ray Tune lost a trial."""
    file = trial.pickled_error_file
    return loss_reason(pickle.loads(Path(file).read_bytes())) if file else "it could not be started"
