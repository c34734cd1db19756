"""Trials of a search: their directories, results and final trainings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..record import CHOSEN_DIRECTORY, EPOCHS_FILE, FAILURE_FILE, STOPPED_FILE, Result
from ..run_directory import RunDirectory
from ..settings import Settings
from ..sweep import result_of
from .choice import Goal, choose


@dataclass(frozen=True)
class Trial:
    """Settings that are tried."""

    name: str
    """The name of its directory, in the directory of the search."""
    settings: Settings

    @property
    def final_name(self) -> str:
        """The directory of the final training, if the trial is chosen."""
        return f"{CHOSEN_DIRECTORY}/{self.name}"

    @property
    def final_settings(self) -> Settings:
        """The same settings on the whole training split, with the test split."""
        return replace(self.settings, holdout=0.0)

    def result(self, out: Path) -> Result | None:
        """The result, if the trial is finished."""
        return result_of(self.settings, out / self.name)

    def is_stopped(self, out: Path) -> bool:
        """Whether the trial was stopped because others were ahead."""
        return (out / self.name / STOPPED_FILE).exists()

    def accuracy(self, out: Path) -> float:
        """The accuracy after the latest epoch."""
        accuracy = RunDirectory(out / self.name).epochs()[-1].accuracy
        assert accuracy is not None
        return accuracy

    def failure(self, out: Path) -> str:
        """Why the trial failed, in one line."""
        path = out / self.name / FAILURE_FILE
        return path.read_text("utf-8", "replace").strip().splitlines()[-1] if path.exists() else "failed"

    def train_seconds(self, out: Path) -> float:
        """Seconds of training so far."""
        result = self.result(out)
        if result is not None:
            return result.train_seconds
        started = (out / self.name / EPOCHS_FILE).exists()
        return sum(epoch.train_seconds for epoch in RunDirectory(out / self.name).epochs()) if started else 0.0

    def final_result(self, out: Path) -> Result | None:
        """The result of the final training, if it is finished."""
        return result_of(self.final_settings, out / self.final_name)


def trial_name(index: int) -> str:
    """The name of a trial by its index, from 0."""
    return f"trial-{index + 1:02}"


def choice(trials: Sequence[Trial], out: Path, goal: Goal) -> list[Trial]:
    """The chosen trials: the best one, or the Pareto front."""
    named = {trial.name: trial for trial in trials}
    results = {name: result for name, trial in named.items() if (result := trial.result(out)) is not None}
    return [named[name] for name in choose(results, goal)]
