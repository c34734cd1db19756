"""A Ray cluster: connect to it, and examine its nodes before the first run."""

from __future__ import annotations

import logging
import math
import os
import secrets
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ..errors import UsageError, one_line
from ..files import writing_to
from . import Place
from .pool import cores
from .ray_nodes import examine, versions

ANSWER = 30  # seconds that a cluster has to answer; on a busy machine, asking takes ten
_OBJECT_STORE = 128 * 2**20  # bytes, of a local Ray, where nothing is fetched


@dataclass(frozen=True)
class Request:
    """The resources that each run needs on a node."""

    cpus: float = 1
    gpus: float = 0

    def __post_init__(self) -> None:
        if not 0 < self.cpus < math.inf or not 0 <= self.gpus < math.inf:
            raise UsageError("--cpus and --gpus: expected positive numbers")
        if self.gpus > 1 and self.gpus % 1:
            raise UsageError(f"--gpus {self.gpus:g}: expected a whole number, or a fraction of one")

    def fits(self, resources: dict[str, float]) -> int:
        """How many runs a node with these resources has room for.

        Example:
            >>> Request(cpus=2, gpus=0.5).fits({"CPU": 8, "GPU": 1})
            2
        """
        needs = {"CPU": self.cpus, "GPU": self.gpus}
        rooms = [resources.get(name, 0) / need for name, need in needs.items() if need]
        return math.floor(min(rooms) + 1e-9)  # 1 / 0.1 may be less than 10


@contextmanager
def connected(address: str | None = None) -> Iterator[None]:
    """Connect to a cluster: by default the one at $RAY_ADDRESS, else a local one that ends with the block.

    Args:
        address: HOST:PORT of the cluster's head, or "auto" for one that runs on this machine.
    """
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    local: dict[str, Any] = {}
    if address == "local":
        os.environ.setdefault("RAY_worker_niceness", "0")  # as in other engines; Ray's default is 15
        local = {"num_cpus": cores(), "include_dashboard": False, "object_store_memory": _OBJECT_STORE}
    else:
        _check_address(address)
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **local)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UsageError(f"--address {address}: {one_line(error)}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """UsageError if no cluster answers. This is tried in another process, because Ray ends one that cannot connect."""
    if address.startswith("ray://"):
        raise UsageError(
            f"--address {address}: Ray Client is not supported; start the command on a machine of the cluster, "
            "with HOST:PORT of its head (usually port 6379), or auto"
        )
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    try:
        answers = subprocess.run(command, capture_output=True, timeout=ANSWER, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        answers = False
    if not answers:
        raise UsageError(
            f"--address {address}: no Ray cluster answered within {ANSWER} seconds; "
            "give HOST:PORT of its head, or start one with: ray start --head"
        )


def cluster_room(request: Request) -> int:
    """How many runs the cluster has room for; UsageError if it has none."""
    nodes = [node["Resources"] for node in alive_nodes()]
    room = sum(map(request.fits, nodes))
    if not room:
        largest = {name: max((node.get(name, 0) for node in nodes), default=0) for name in ("CPU", "GPU")}
        asked = f"--cpus {request.cpus:g}" + (f" --gpus {request.gpus:g}" if request.gpus else "")
        raise UsageError(
            f"{asked}: no node of the cluster has that much; the largest have {largest['CPU']:g} CPUs and "
            f"{largest['GPU']:g} GPUs"
        )
    return room


def examine_cluster(out: Path, data: Sequence[str], place: Place, request: Request) -> tuple[Place, bool]:
    """Examine all nodes: the place with its data directory, and whether every node sees the directory `out`.

    UsageError if a node cannot do runs.

    Args:
        out: the directory of all runs.
        data: the data sets with files that they read.
        place: data, device and threads of all runs.
        request: what each run needs of a node.
    """
    cluster_room(request)
    root = place.root or os.environ.get("NEUROGENESIS_DATA")
    place = replace(place, root=Path(root).absolute() if root else None)  # None is each node's own default
    nodes = [node for node in alive_nodes() if request.fits(node["Resources"])]
    marker, content = out.absolute() / f"marker-{secrets.token_hex(8)}", secrets.token_hex(8)
    with writing_to(out):
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.write_text(content, "utf-8")
    try:
        remote = ray.remote(num_cpus=0, max_retries=0)(examine)
        strategies = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in nodes]
        reports = [
            remote.options(scheduling_strategy=each).remote(marker, content, data, place.root) for each in strategies
        ]
        found = [_report(report) for report in reports]
    finally:
        marker.unlink(missing_ok=True)
    here, problems = versions(), defaultdict(list)
    for node, report in zip(nodes, found, strict=True):
        if problem := _difference(report["versions"], here) or report["problem"]:
            problems[problem].append(f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})")
    for problem, names in problems.items():
        raise UsageError(f"node {', '.join(names)} {problem}")
    return place, all(report["shared"] for report in found)


def alive_nodes() -> list[dict[str, Any]]:
    """The nodes that are alive."""
    return [node for node in ray.nodes() if node["Alive"]]


def _report(report: Any) -> dict[str, Any]:
    """The report of a node; one without the package cannot even start `examine`."""
    try:
        found: dict[str, Any] = ray.get(report)
        return found
    except RayError as error:
        cause = one_line(error.cause if isinstance(error, RayTaskError) else error)
        return {"versions": {}, "shared": False, "problem": f"cannot do runs ({cause}): install neurogenesis there"}


def _difference(there: dict[str, str], here: dict[str, str]) -> str | None:
    for name, version in there.items():
        if version != here[name]:
            return f"has {name} {version}, and this machine {here[name]}: install the same version on both"
    return None
