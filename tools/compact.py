"""Copy the finished runs of a study without steps and checkpoints: `python -m tools.compact runs/study results/study`.

What is left are a few kilobytes per run, from which `neurogenesis report` draws everything but what it shows by step.
With `--results-only`, for studies of many epochs, what happened after each epoch is left out, too.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

from neurogenesis.experiments.record import ENVIRONMENT_FILE, EPOCHS_FILE, RESULT_FILE, SETTINGS_FILE, STUDY_FILE

KEPT = (SETTINGS_FILE, ENVIRONMENT_FILE, EPOCHS_FILE, RESULT_FILE)


RESULTS_ONLY = tuple(name for name in KEPT if name != EPOCHS_FILE)


def compact(source: Path, target: Path, kept: Sequence[str] = KEPT) -> int:
    """Copy the records of all finished runs below a directory; returns their number."""
    finished = [path.parent for path in sorted(source.rglob(RESULT_FILE))]
    for run in finished:
        copy = target / run.relative_to(source)
        copy.mkdir(parents=True, exist_ok=True)
        for name in kept:
            shutil.copyfile(run / name, copy / name)
    if (source / STUDY_FILE).exists():
        shutil.copyfile(source / STUDY_FILE, target / STUDY_FILE)
    return len(finished)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("source", type=Path, help="directory of a study's runs")
    parser.add_argument("target", type=Path, help="directory to copy to")
    parser.add_argument("--results-only", action="store_true", help="leave out what happened after each epoch")
    chosen = parser.parse_args()
    number = compact(chosen.source, chosen.target, RESULTS_ONLY if chosen.results_only else KEPT)
    print(f"{number} runs are in {chosen.target}")
