"""What the Ray engine costs against the local pool: seconds per run, and memory of the driver.

    python -m benchmarks.engine [--json] [--rounds N] [--runs N] [--directories N]

A trivial run is one that is finished already: it starts, in a new process or in a worker of Ray, reads the result and
ends. So this measures the engine's part, which is the same for all runs. Both engines do several of them at a time, in
turns.

Time: medians over rounds of the seconds per run from the tenth end to the last one, times the runs at a time, and the
median of the differences within rounds. What an engine does before is left out.

Memory: the resident set of the driver after 10 and after 1,000 runs on Ray, and its processor time per run.

Directories: what a sweep of 10,000 finished runs does before its first run, what it does itself for each run that it
starts, and how long a report reads.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from neurogenesis.experiments.engines import Ended, Engine, Job, NextJob, Place
from neurogenesis.experiments.engines.pool import cores, pool
from neurogenesis.experiments.parsing import to_json
from neurogenesis.experiments.presets import PRESETS
from neurogenesis.experiments.record import RESULT_FILE, SETTINGS_FILE
from neurogenesis.experiments.run import run
from neurogenesis.experiments.settings import Settings
from neurogenesis.experiments.sweep import record_study, sweep

FEW = 10
AT_A_TIME = 1000
IN_A_ROUND = 60
LIMIT = 0.5  # seconds per run
GROWTH_LIMIT = 10.0  # MB of the driver, from 10 runs to all of them


def trivial(seed: int) -> Settings:
    """The shortest run there is."""
    return PRESETS["generated"](strategy="small", epochs=1, batch=4500, seed=seed)


def resident() -> float:
    """Memory of this process, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class Sweep:
    """Gives an engine trivial runs, and takes times and memory as they end."""

    def __init__(self, runs: int, out: Path):
        self._waiting, self._runs, self._out = runs, runs, out
        self._ended = 0
        self.times: dict[int, float] = {}
        self.memory: dict[int, float] = {}
        """Of this process, by the number of runs that have ended, as the times."""

    def next_job(self) -> Job | None:
        if not self._waiting:
            return None
        self._waiting -= 1
        return Job("trivial", trivial(1), self._out)

    def ended(self, job: Job, reason: str | None) -> None:
        if reason is not None:
            raise RuntimeError(f"{job.directory} failed: {reason}")
        self._ended += 1
        if self._ended in (FEW, self._runs):
            self.times[self._ended], self.memory[self._ended] = time.perf_counter(), resident()

    @property
    def seconds(self) -> float:
        """From one end to the next."""
        return (self.times[self._runs] - self.times[FEW]) / (self._runs - FEW)


def do(engine: Engine, runs: int, out: Path) -> Sweep:
    """Do trivial runs."""
    sweep = Sweep(runs, out)
    engine(sweep.next_job, sweep.ended, Place())
    return sweep


def figures(rounds: int, runs: int, workers: int) -> dict[str, Any]:
    """Seconds per run of both engines, and what the driver needs."""
    from neurogenesis.experiments.engines.ray import cluster  # not in every process of the pool
    from neurogenesis.experiments.engines.ray_cluster import connected

    with tempfile.TemporaryDirectory() as directory, connected("local"):
        out = Path(directory)
        run(trivial(1), out / "run")
        engines = {"pool": pool(workers), "ray": cluster(out, workers=workers)}
        times: dict[str, list[float]] = {name: [] for name in engines}
        for _ in range(rounds):
            for name, engine in engines.items():
                times[name].append(workers * do(engine, IN_A_ROUND, out / "run").seconds)
        started = time.process_time()
        memory = do(engines["ray"], runs, out / "run").memory
        processor = time.process_time() - started
        waiting = wait_for_one(AT_A_TIME)
    differences = [other - local for local, other in zip(times["pool"], times["ray"], strict=True)]
    return {
        "seconds per run": {name: statistics.median(each) for name, each in times.items()},
        "overhead": statistics.median(differences),
        "driver MB": {str(number): each for number, each in memory.items()},
        "growth MB": memory[runs] - memory[FEW],
        "driver milliseconds per run": 1000 * processor / runs,
        "milliseconds to look for news": waiting,
    }


def wait_for_one(runs: int, times: int = 20) -> float:
    """Milliseconds in which the driver looks whether one of many runs has news."""
    import ray

    def never() -> Iterator[None]:
        yield None

    somewhere = ray.remote(resources={"nowhere": 1})(never)
    news = [somewhere.remote() for _ in range(runs)]
    started = time.process_time()
    for _ in range(times):
        ray.wait(news, num_returns=1, timeout=0)
    seconds = time.process_time() - started
    for each in news:
        ray.cancel(each)
    return 1000 * seconds / times


def directories(number: int) -> dict[str, float]:
    """Milliseconds per run of a study, for what a sweep and a report do with all of them."""
    from neurogenesis.report import read

    runs = {settings.label: settings for settings in map(trivial, range(1, number + 1))}
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryDirectory() as other:
        out = Path(directory)
        result = to_json(run(trivial(1), Path(other) / "run"))
        for name, settings in runs.items():
            (out / name).mkdir()
            (out / name / SETTINGS_FILE).write_text(json.dumps(settings.record()))
            (out / name / RESULT_FILE).write_text(json.dumps(result))

        def at_once(next_job: NextJob, ended: Ended, place: Place) -> None:
            while (job := next_job()) is not None:
                ended(job, None)

        parts: dict[str, Callable[[], object]] = {
            "to write study.json": lambda: record_study(out, "trivial", "", runs),
            "to find that it is finished": lambda: sweep(runs, out, at_once),
            "to start and end it": lambda: sweep(runs, Path(other), at_once),
            "to read it for a report": lambda: read([out]),
        }
        found = {}
        for name, part in parts.items():
            started = time.perf_counter()
            part()
            found[name] = 1000 * (time.perf_counter() - started) / number
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    parser.add_argument("--rounds", type=int, default=5, help="times that the engines take turns")
    parser.add_argument("--runs", type=int, default=1000, help="runs after which memory is measured")
    parser.add_argument("--directories", type=int, default=10_000, help="runs of a finished study")
    arguments = parser.parse_args()
    found = figures(arguments.rounds, max(FEW + 1, arguments.runs), cores())
    found["milliseconds"] = directories(arguments.directories)
    if arguments.json:
        print(json.dumps(found))
        return
    each = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in found["seconds per run"].items())
    print(f"a trivial run: {each}; Ray takes {found['overhead']:+.2f} s more (at most {LIMIT} s)")
    memory = ", ".join(f"{value:.0f} MB after {number} runs" for number, value in found["driver MB"].items())
    print(f"driver: {memory}; {found['growth MB']:+.1f} MB (at most {GROWTH_LIMIT:g} MB)")

    print(f"driver: {found['driver milliseconds per run']:.1f} ms of processor time per run")
    print(f"driver: {found['milliseconds to look for news']:.1f} ms to look for news of {AT_A_TIME} runs at a time")
    print(f"the sweep's own time per run, of {arguments.directories}:")
    for what, milliseconds in found["milliseconds"].items():
        print(f"  {milliseconds:.2f} ms {what}")


if __name__ == "__main__":
    main()
