"""The options that say where the runs of a sweep are done."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..experiments.errors import UsageError
from ..experiments.settings import Settings
from ..experiments.signals import delay_ctrl_c

if TYPE_CHECKING:
    from ..experiments.engines import Engine, Place

EngineName = Literal["pool", "ray"]
INSTALL_RAY = "pip install 'torch-neurogenesis[experiments,ray]'"


@dataclass(frozen=True)
class Chosen:
    """An engine, and what it was told."""

    engine: Engine
    place: Place
    workers: int
    """Runs at a time."""
    downloads: Sequence[str] = ()
    """Data sets that must be on this machine before the first run."""


@contextmanager
def chosen_engine(
    name: EngineName,
    out: Path,
    runs: Collection[Settings],
    *,
    workers: int | None,
    threads: int | None,
    data: Path | None,
    device: str | None,
    address: str | None,
    cpus: float | None,
    gpus: float | None,
    timed: bool = False,
) -> Iterator[Chosen]:
    """The engine that options ask for; UsageError if it or the device is not available.

    Args:
        name: the engine.
        out: the directory of all runs.
        runs: settings of all runs, or of one of each kind.
        workers: runs at a time; by default as many as there is room for, and one if they are `timed` or share a device.
        threads: threads of each run; by default one, or as many as it has CPUs of a cluster.
        data: the directory of data sets.
        device: the device to train on; by default the CPU, or the GPUs that each run is given.
        address: of a Ray cluster.
        cpus: what each run needs of a Ray cluster, as `gpus`.
        timed: times are compared.
    """
    with delay_ctrl_c():
        from ..experiments.engines import Place
        from ..experiments.engines.pool import cores, pool
        from ..experiments.environment import select_device

    names = sorted({settings.data for settings in runs if settings.needs_files})
    if name == "pool":
        for option, value in (("--address", address), ("--cpus", cpus), ("--gpus", gpus)):
            if value is not None:
                raise UsageError(f"{option} has no effect without --engine ray: remove it, or add --engine ray")
        device, threads = device or "cpu", 1 if threads is None else threads
        if workers is None:
            workers = 1 if timed or device != "cpu" else max(1, cores() // max(1, threads))
        engine = pool(workers, threads)
        select_device(device)  # fails once, before the first run, rather than in each
        yield Chosen(engine, Place(data, device, threads), workers, names)
        return
    with delay_ctrl_c():
        try:
            from ..experiments.engines.ray import Request, cluster, cluster_room, connected
        except ModuleNotFoundError as error:
            if error.name != "ray":
                raise
            raise UsageError(f"--engine ray: Ray is not installed: {INSTALL_RAY}") from None
    if threads is not None and threads < 1:
        raise UsageError("--threads: expected a positive number")
    if cpus is None:
        cpus = 1 if threads is None else threads
    request = Request(cpus, gpus or 0)
    device = device or ("cuda" if request.gpus else "cpu")
    if (device.partition(":")[0] == "cuda") != bool(request.gpus):
        given = f"--gpus {request.gpus:g}" if request.gpus else "no --gpus"
        raise UsageError(f"--device {device} with {given}: a run sees the GPUs that it asks for with --gpus, as cuda")
    with connected(address):
        room = cluster_room(request)
        engine = cluster(out, names, request, 1 if workers is None and timed else workers)
        place = Place(data, device, threads or max(1, int(request.cpus)))
        yield Chosen(engine, place, workers or (1 if timed else room))
