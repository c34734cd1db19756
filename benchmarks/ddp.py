"""Overhead of growing in two processes: steps with a `Grower` that looks but never grows, relative to plain ones.

    python -m benchmarks.ddp [--steps N] [--rounds N]

Two processes with one thread each train under `DistributedDataParallel` (gloo): a dense network 784-256-256-10 at batch
512 per process, and VGG-11 at a quarter of its width at batch 128 per process, on labels that are random at each step,
as in `benchmarks.overhead`. Plain and watched steps alternate. As there, `need` is timed over its first steps, in which
it has seven windows, and other strategies when the intervals between their looks have reached their maximum. Also
printed: the time of a growth event, relative to a plain step, in which the reducer is rebuilt.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import neurogenesis as ng
from benchmarks.overhead import NEED_STEPS, TIMED_TOGETHER, WARM_UP, data, without_growth
from neurogenesis.experiments.models import mlp, vgg11, xavier

NETWORKS = ("784-256-256-10", "VGG-11 / 4")
STRATEGIES = ("need", "north-select", "gradmax")
LIMIT = 1.15


def training_step(
    network: str, strategy: ng.Strategy | None
) -> tuple[Callable[[int], None], nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = vgg11(0.25) if network.startswith("VGG") else mlp(784, 256, 256, 10)
    xavier(model)
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(wrapped.parameters(), lr=3e-4)
    batches = data(network)[0]
    grower = None if strategy is None else ng.Grower(wrapped, optimizer, strategy)

    def step(number: int) -> None:
        seed = torch.Generator().manual_seed(2 * number + dist.get_rank())
        images = batches[number % len(batches)]
        optimizer.zero_grad()
        nn.functional.cross_entropy(wrapped(images), torch.randint(10, (len(images),), generator=seed)).backward()
        optimizer.step()
        if grower is not None:
            grower.step()

    return step, wrapped, optimizer


def overhead(network: str, strategy: str, first: int, steps: int) -> float:
    """Mean time of watched steps relative to plain ones, from step `first` on."""
    runs = training_step(network, None)[0], training_step(network, without_growth(strategy))[0]
    times: tuple[list[float], list[float]] = [], []
    for number in range(first + steps):
        for step, own in zip(runs, times, strict=True):
            dist.barrier()
            start = time.perf_counter()
            step(number)
            own.append(time.perf_counter() - start)
    plain, watched = (trimmed_mean(own[first:]) for own in times)
    return watched / plain


def growth(network: str, rounds: int = 5) -> float:
    """Time of a growth event in plain steps."""
    step, model, optimizer = training_step(network, None)
    width = next(iter(ng.widths(model, data(network)[0][0][:2]).growable))
    steps, events = [], []
    for number in range(rounds):
        for action, own in (
            (lambda n=number: step(n), steps),
            (lambda: ng.grow(model, width, 1, optimizer=optimizer), events),
        ):
            dist.barrier()
            start = time.perf_counter()
            action()
            own.append(time.perf_counter() - start)
    return sorted(events)[rounds // 2] / sorted(steps)[rounds // 2]


def trimmed_mean(values: Sequence[float], part: float = 0.005) -> float:
    """The mean counts, because few steps are looked at; a trimmed one, because some steps are disturbed."""
    kept = sorted(values)[: len(values) - int(part * len(values))]
    return sum(kept) / len(kept)


def worker(steps: int, rounds: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for network in NETWORKS:
        for strategy in STRATEGIES:
            span = (3, steps) if strategy == "need" else (WARM_UP, rounds * TIMED_TOGETHER)
            ratio = overhead(network, strategy, *span)
            if dist.get_rank() == 0:
                print(f"{network:16}{strategy:16}{ratio:8.3f} ({LIMIT})", flush=True)
        event = growth(network)
        if dist.get_rank() == 0:
            print(f"{network:16}{'growth event':16}{event:8.2f} plain steps", flush=True)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=NEED_STEPS, help="of need")
    parser.add_argument("--rounds", type=int, default=10, help=f"of {TIMED_TOGETHER} steps, of other strategies")
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        worker(arguments.steps, arguments.rounds)
        return
    launch = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launch, "-m", "benchmarks.ddp", "--steps", str(arguments.steps), "--rounds", str(arguments.rounds)]
    sys.exit(subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode)


if __name__ == "__main__":
    main()
