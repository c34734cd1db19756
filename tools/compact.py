"""Copy the finished runs of a study without steps and checkpoints: `python -m tools.compact runs/study results/study`.

What is left are a few kilobytes per run, from which `neurogenesis report` draws everything but what it shows by step.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from neurogenesis.experiments.record import ENVIRONMENT_FILE, EPOCHS_FILE, RESULT_FILE, SETTINGS_FILE, STUDY_FILE

KEPT = (SETTINGS_FILE, ENVIRONMENT_FILE, EPOCHS_FILE, RESULT_FILE)


def compact(source: Path, target: Path) -> int:
    """Copy the records of all finished runs below a directory; returns their number."""
    finished = [path.parent for path in sorted(source.rglob(RESULT_FILE))]
    for run in finished:
        copy = target / run.relative_to(source)
        copy.mkdir(parents=True, exist_ok=True)
        for name in KEPT:
            shutil.copyfile(run / name, copy / name)
    if (source / STUDY_FILE).exists():
        shutil.copyfile(source / STUDY_FILE, target / STUDY_FILE)
    return len(finished)


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    print(f"{compact(source, target)} runs are in {target}")
