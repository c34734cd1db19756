"""Options on where and how the runs of a sweep or a search are done."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from ..experiments.errors import UsageError
from ..experiments.settings import Settings
from ..experiments.signals import Interrupted, delay_ctrl_c
from .app import DataDirectory, Parameter

if TYPE_CHECKING:
    from ..experiments.engines import Engine, Place

INSTALL_RAY = "pip install 'torch-neurogenesis[experiments,ray]'"


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Where and how runs are done. The help of an option is the string below it."""

    engine: Literal["pool", "ray"] | None = None
    """Where runs are done: in processes of this machine (pool), or on a Ray cluster (ray). By default pool, or ray with
    --address, --cpus or --gpus."""
    workers: int | None = None
    """Number of runs at a time. By default as many as there is room for, and 1 if runs share a device other than the
    CPU, or in the study trigger-cost, which compares times."""
    threads: int | None = None
    """Number of torch's threads in each run. By default 1, or as many as it has CPUs of a Ray cluster."""
    data: DataDirectory = None
    device: str | None = None
    """Device to train on: cpu, cuda, ... By default cpu, or cuda with --gpus."""
    address: str | None = None
    """Address of the Ray cluster: HOST:PORT of its head, or auto for one that this machine belongs to. By default
    $RAY_ADDRESS, else Ray is started on this machine until all runs are done."""
    cpus: float | None = None
    """CPUs that each run needs of a node of the Ray cluster. By default the number of threads."""
    gpus: float | None = None
    """GPUs that each run needs of a node of the Ray cluster; 0.5 lets two runs share one. By default 0."""


Where = Annotated[EngineOptions | None, Parameter(name="*")]
"""The parameter of a command that takes all of these options."""


@dataclass(frozen=True)
class Chosen:
    """An engine, and what its runs have in common."""

    engine: Engine
    place: Place
    workers: int
    """Runs at a time."""
    downloads: Sequence[str] = ()
    """Data sets that must be on this machine before the first run."""

    def download(self) -> None:
        """Download what is missing."""
        from ..experiments.data import download

        for name in self.downloads:
            download(name, self.place.root)


@contextmanager
def chosen_engine(
    options: EngineOptions, out: Path, runs: Collection[Settings], timed: bool = False
) -> Iterator[Chosen]:
    """The engine that options ask for; UsageError if it or the device is not available, Interrupted at Ctrl-C.

    Args:
        options: where and how runs are done.
        out: the directory of all runs.
        runs: settings of all runs, or of one of each kind.
        timed: times are compared, so that by default there is one run at a time.
    """
    for_ray = [name for name in ("address", "cpus", "gpus") if getattr(options, name) is not None]
    if options.engine == "pool" and for_ray:
        raise UsageError(f"--{for_ray[0]} has no effect with --engine pool: remove one of them")
    try:
        if options.engine == "ray" or for_ray:
            with _ray(options, out, data_sets(runs), timed) as chosen:
                yield chosen
        else:
            yield _pool(options, data_sets(runs), timed)
    except KeyboardInterrupt:
        raise Interrupted(f"stopped; {out} is saved. The same command resumes it.") from None


def data_sets(runs: Collection[Settings]) -> list[str]:
    """The data sets with files."""
    return sorted({settings.data for settings in runs if settings.needs_files})


def _pool(options: EngineOptions, data: Sequence[str], timed: bool) -> Chosen:
    with delay_ctrl_c():
        from ..experiments.engines import Place
        from ..experiments.engines.pool import cores, pool
        from ..experiments.environment import select_device

    device, threads = options.device or "cpu", 1 if options.threads is None else options.threads
    workers = options.workers
    if workers is None:
        workers = 1 if timed or device != "cpu" else max(1, cores() // max(1, threads))
    engine = pool(workers, threads)
    select_device(device)  # fails once, before the first run, rather than in each
    return Chosen(engine, Place(options.data, device, threads), workers, data)


@contextmanager
def _ray(options: EngineOptions, out: Path, data: Sequence[str], timed: bool) -> Iterator[Chosen]:
    with delay_ctrl_c():
        from ..experiments.engines import Place

        try:
            from ..experiments.engines.ray import cluster
            from ..experiments.engines.ray_cluster import Request, cluster_room, connected
        except ModuleNotFoundError as error:
            if error.name != "ray":
                raise
            raise UsageError(f"--engine ray: Ray is not installed: {INSTALL_RAY}") from None
    threads, cpus = options.threads, options.cpus
    if threads is not None and threads < 1:
        raise UsageError("--threads: expected a positive number")
    request = Request((threads or 1) if cpus is None else cpus, options.gpus or 0)
    device = options.device or ("cuda" if request.gpus else "cpu")
    if (device.partition(":")[0] == "cuda") != bool(request.gpus):
        given = f"--gpus {request.gpus:g}" if request.gpus else "no --gpus"
        raise UsageError(f"--device {device} with {given}: a run sees the GPUs that it asks for with --gpus, as cuda")
    workers = 1 if options.workers is None and timed else options.workers
    engine = cluster(out, data, request, workers)
    with connected(options.address):
        room = cluster_room(request)
        place = Place(options.data, device, threads or max(1, int(request.cpus)))
        yield Chosen(engine, place, workers or room)
