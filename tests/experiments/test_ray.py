"""Sweeps and searches on a Ray cluster: records as on one machine, whatever is killed; one message if it is wrong."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from ray._private.node import Node
from ray.cluster_utils import Cluster

from neurogenesis.cli import main
from neurogenesis.experiments.engines import Engine, Job, Place, ray_cluster, transfer
from neurogenesis.experiments.engines import ray as engine
from neurogenesis.experiments.engines.pool import pool
from neurogenesis.experiments.engines.ray import cluster
from neurogenesis.experiments.engines.ray_cluster import Request, cluster_room, connected
from neurogenesis.experiments.engines.ray_nodes import examine, versions
from neurogenesis.experiments.engines.transfer import Files, read_files, write_files
from neurogenesis.experiments.errors import UsageError
from neurogenesis.experiments.presets import PRESETS
from neurogenesis.experiments.run import run
from neurogenesis.experiments.sweep import sweep
from neurogenesis.experiments.tuning.choice import Goal
from neurogenesis.experiments.tuning.space import Space
from neurogenesis.experiments.tuning.tune import plan_search, tune
from tests.runs import assert_same_run, by_name, command, here, lines, tiny

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="finds processes, and hides directories, by /proc"
)
NODE = {"num_cpus": 1, "object_store_memory": 80_000_000}
LONG = [tiny(strategy="north-random", epochs=40), tiny(strategy="small", epochs=40)]  # some seconds each
LABELS = [settings.label for settings in LONG]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")  # otherwise other processes of the tests leave them little time
        started = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
        started.add_node(**NODE)
        with connected(started.address):
            started.wait_for_nodes()
            yield started
        started.shutdown()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs as the local pool does them."""
    out = tmp_path_factory.mktemp("undisturbed")
    assert not sweep(by_name(*LONG), out, pool(1)).failed
    return out


LONG_IF_SHARED, LONG_IF_FETCHED = (
    [pytest.param(each, marks=pytest.mark.long) if each == long else each for each in ("shared", "fetched")]
    for long in ("shared", "fetched")
)


@pytest.fixture(params=["shared", "fetched"])
def out(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A directory that workers see, or one that only this process does."""
    if request.param == "shared":
        yield tmp_path
        return
    descriptor = os.open(tmp_path, os.O_RDONLY)
    for number in range(500, 600):  # one that no worker has
        if not Path(f"/proc/self/fd/{number}").exists():
            break
    os.dup2(descriptor, number)
    yield Path(f"/proc/self/fd/{number}")
    os.close(number)
    os.close(descriptor)


def wait_until(true: Callable[[], Any], seconds: float = 600) -> Any:
    end = time.monotonic() + seconds
    while not (value := true()):
        assert time.monotonic() < end, "timed out"
        time.sleep(0.02)
    return value


def processes(parents: set[int]) -> dict[int, str]:
    """The command lines of all children."""
    found = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                if parent in parents:
                    found[int(path.name)] = (path / "cmdline").read_text().replace("\0", " ")
            except (FileNotFoundError, ProcessLookupError):  # it has just ended
                continue
    return found


def workers(*nodes: Node) -> set[int]:
    """The workers of nodes that are doing runs."""
    raylets = {process.process.pid for node in nodes for process in node.all_processes["raylet"]}
    return {pid for pid, title in processes(raylets).items() if title.startswith("ray::do_run")}


def run_under_way(out: Path, label: str, *nodes: Node) -> int | None:
    """The worker of a run, if it has done some epochs, but not all, on one of the nodes."""
    if 3 < len(saved(out, label)) < 35:
        for pid in workers(*nodes):
            with suppress(FileNotFoundError):
                files = [Path(os.readlink(file)) for file in Path(f"/proc/{pid}/fd").iterdir()]
                if any(file.parts[-2:] == (label, "log.txt") for file in files):
                    return pid
    return None


@contextmanager
def meanwhile(disturb: Callable[[], None]) -> Iterator[None]:
    with ThreadPoolExecutor() as threads:
        disturbed = threads.submit(disturb)
        yield
        disturbed.result()


class Disturbed:
    """A sweep of the long runs in which each disturbance happened; one that came too late is tried again.

    Args:
        out: sweeps are done in directories of it.
        disturbances: for each, what to wait for, and what to do then.
    """

    def __init__(self, out: Path, *disturbances: tuple[Callable[[Path], Any], Callable[[Any], None]]):
        for attempt in range(5):
            self.out = out / str(attempt)
            self.out.mkdir()
            self.before: dict[str, list[dict[str, Any]]] = {}  # epochs that need not be repeated
            self._ended = threading.Event()
            with ThreadPoolExecutor() as threads:
                happened = [threads.submit(self._disturb, *each) for each in disturbances]
                try:
                    self.progress = sweep(by_name(*LONG), self.out, cluster(self.out))
                finally:
                    self._ended.set()
                if all(each.result() for each in happened):
                    return
        pytest.fail("all runs ended too early")

    def _disturb(self, sought: Callable[[Path], Any], act: Callable[[Any], None]) -> bool:
        while not self._ended.is_set():
            if found := sought(self.out):
                self.before.update({label: saved(self.out, label) for label in LABELS})
                act(found)
                return True
            time.sleep(0.02)
        return False


def epochs(out: Path, label: str) -> list[dict[str, Any]]:
    path = out / label / "epochs.jsonl"
    return lines(path) if path.exists() else []


def saved(out: Path, label: str) -> list[dict[str, Any]]:
    """The epochs that a run need not repeat."""
    path = out / label / "checkpoint.pt"
    step = torch.load(path, weights_only=True)["step"] if path.exists() else 0
    return [epoch for epoch in epochs(out, label) if epoch["step"] <= step]


# --- what a cluster does -------------------------------------------------------------------------------------


def test_a_study_gives_the_same_records_as_the_local_pool(nodes: Cluster, undisturbed: Path, out: Path) -> None:
    waiting: list[str] = []
    most = 0

    def counted(engine: Engine) -> Engine:
        def counting(next_job: Any, ended: Any, place: Place) -> None:
            def asked() -> Job | None:
                nonlocal most
                job: Job | None = next_job()
                waiting.extend([job.name] if job else [])
                most = max(most, len(waiting))
                return job

            def told(job: Job, reason: str | None) -> None:
                waiting.remove(job.name)
                ended(job, reason)

            engine(asked, told, place)

        return counting

    more = [tiny(strategy="small", epochs=1, seed=seed) for seed in (3, 4)]
    progress = sweep(by_name(*more, *LONG), out, counted(cluster(out)))
    assert not progress.failed
    assert sorted(progress.finished) == sorted([*LABELS, *(settings.label for settings in more)])
    for label in LABELS:
        assert_same_run(undisturbed / label, out / label)
        assert {path.name for path in (out / label).iterdir()} == {
            path.name for path in (undisturbed / label).iterdir()
        }
    assert most == 2  # as many as there is room for, and no others wait in the cluster
    assert sorted(path.name for path in out.iterdir()) == sorted(progress.finished)


@pytest.mark.parametrize("out", LONG_IF_FETCHED, indirect=True)
def test_a_killed_worker_loses_nothing(nodes: Cluster, undisturbed: Path, out: Path) -> None:
    def under_way(label: str) -> Callable[[Path], Any]:
        return lambda out: run_under_way(out, label, *nodes.list_all_nodes())

    done = Disturbed(
        out,
        (under_way(LABELS[0]), lambda worker: os.kill(worker, signal.SIGKILL)),
        (under_way(LABELS[1]), lambda worker: os.kill(worker, signal.SIGTERM)),
    )
    assert_nothing_is_lost(done, undisturbed)


def assert_nothing_is_lost(done: Disturbed, undisturbed: Path) -> None:
    assert not done.progress.failed
    for label in LABELS:
        assert_same_run(undisturbed / label, done.out / label)
        before = done.before[label]
        assert epochs(done.out, label)[: len(before)] == before  # with the same times: they were not repeated


@pytest.mark.parametrize("out", LONG_IF_SHARED, indirect=True)
def test_a_lost_node_loses_nothing(nodes: Cluster, undisturbed: Path, out: Path) -> None:
    (node,) = nodes.worker_nodes

    def under_way(out: Path) -> bool:
        return any(run_under_way(out, label, node) for label in LABELS)

    try:
        done = Disturbed(out, (under_way, lambda _: nodes.remove_node(node, allow_graceful=False)))
    finally:
        if node not in nodes.worker_nodes:
            nodes.add_node(**NODE)
            nodes.wait_for_nodes()
    assert_nothing_is_lost(done, undisturbed)


def test_a_run_that_is_killed_at_every_start_is_given_up(nodes: Cluster, tmp_path: Path) -> None:
    ended = threading.Event()
    killed = set()

    def kill() -> None:
        while not ended.is_set():
            for pid in workers(*nodes.list_all_nodes()):
                if pid not in killed:
                    killed.add(pid)
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    with meanwhile(kill):
        try:
            progress = sweep(by_name(LONG[0]), tmp_path, cluster(tmp_path))
        finally:
            ended.set()
    reason = "its worker was killed; given up after 3 times without a new checkpoint"
    assert progress.failed == {LABELS[0]: reason}
    assert (tmp_path / LABELS[0] / "failure.txt").read_text() == reason + "\n"
    assert len(killed) == 3


def test_a_run_that_fails_by_itself_is_not_repeated(nodes: Cluster, out: Path) -> None:
    diverging = tiny(strategy="medium", learning_rate=1e30)
    foreign, fine = tiny(strategy="big"), tiny(strategy="small", epochs=1)
    (out / foreign.label).mkdir()
    (out / foreign.label / "thesis.tex").write_text("mine")
    progress = sweep(by_name(diverging, foreign, fine), out, cluster(out))
    assert progress.finished == [fine.label]
    assert "training diverged" in progress.failed[diverging.label]
    assert f"{out / foreign.label} is not a run (it has thesis.tex)" in progress.failed[foreign.label]
    assert "training diverged" in (out / diverging.label / "failure.txt").read_text()
    assert (out / diverging.label / "log.txt").read_text().count("training diverged") == 1
    assert "thesis.tex" in (out / foreign.label / "failure.txt").read_text()
    assert (out / foreign.label / "thesis.tex").read_text() == "mine"


@pytest.mark.parametrize("out", ["fetched"], indirect=True)  # of a shared one, workers wait half a minute
def test_a_directory_that_another_process_writes_to_is_left_alone(nodes: Cluster, out: Path) -> None:
    (out / LABELS[0]).mkdir()
    with FileLock(out / LABELS[0] / "lock"):
        progress = sweep(by_name(LONG[0]), out, cluster(out))
    assert "another process is writing to" in progress.failed[LABELS[0]]
    assert not (out / LABELS[0] / "failure.txt").exists()


STUDY = ("sweep", "digits", "--seeds", "1", "--epochs", "30", "--only", "north-random*", "--engine", "ray")
NAME = "north-random-epochs-30-seed1"


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("uninterrupted")
    assert command(*STUDY[:-2], "--out", out, "--quiet").returncode == 0
    return out


@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, *(pytest.param(each, marks=pytest.mark.long) for each in (signal.SIGINT, signal.SIGTERM))],
)
def test_an_interrupted_sweep_that_is_resumed_equals_an_uninterrupted_one(
    number: int, nodes: Cluster, uninterrupted: Path, tmp_path: Path
) -> None:
    words = [*STUDY, "--address", nodes.address, "--out", str(tmp_path)]
    if number == signal.SIGINT:  # in a terminal, it reaches the local Ray as well
        words = [*STUDY, "--out", str(tmp_path)]
    call = [sys.executable, "-m", "neurogenesis", *words]
    process = subprocess.Popen(call, stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_until(lambda: len(epochs(tmp_path, NAME)) > 2)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    _, said = process.communicate()
    assert not (tmp_path / NAME / "result.json").exists()
    if number != signal.SIGKILL:
        assert process.returncode == 130
        assert said.splitlines()[-1].endswith("The same command resumes it.")
    done = command(*STUDY, "--address", nodes.address, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["[1/1]", "all"]
    assert_same_run(uninterrupted / NAME, tmp_path / NAME)


@pytest.mark.long
def test_a_dry_run_tells_how_many_runs_there_is_room_for(nodes: Cluster, tmp_path: Path) -> None:
    done = command(*STUDY, "--address", nodes.address, "--out", tmp_path, "--dry-run")
    assert "1 of 1 runs to do, 2 at a time" in done.stdout
    assert not list(tmp_path.iterdir())


# --- what is wrong is said before any run starts -----------------------------------------------------------------


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """What the command says that it cannot do."""
    code = main(["sweep", "digits", "--engine", "ray", *map(str, words)])
    said = capsys.readouterr().err.splitlines()
    assert (code, len(said)) == (1, 1), said
    return said[0]


def test_without_ray_the_command_says_what_to_install() -> None:
    code = "import sys; sys.modules['ray'] = None; from neurogenesis.cli import main; sys.exit(main(sys.argv[1:]))"
    words = [sys.executable, "-c", code, "sweep", "digits", "--engine", "ray"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    expected = "neurogenesis: --engine ray: Ray is not installed: pip install 'torch-neurogenesis[experiments,ray]'\n"
    assert (done.returncode, done.stderr) == (1, expected)


def test_an_address_must_answer_in_time(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        started = time.monotonic()
        with monkeypatch.context() as impatient:
            impatient.setattr(ray_cluster, "ANSWER", 1)
            assert f"--address {address}: no Ray cluster answered within 1 sec" in refused(capsys, "--address", address)
        assert time.monotonic() - started < 30  # Ray itself would try for longer
    assert "--address nonsense: no Ray cluster answered" in refused(capsys, "--address", "nonsense")
    assert "Ray Client is not supported" in refused(capsys, "--address", "ray://127.0.0.1:10001")


def test_more_than_any_node_has_is_refused(nodes: Cluster) -> None:
    assert cluster_room(Request(cpus=0.5)) == 4
    with pytest.raises(UsageError, match=r"--cpus 1 --gpus 1: no node .* the largest have 1 CPUs and 0 GPUs"):
        cluster_room(Request(gpus=1))
    with pytest.raises(UsageError, match="--cpus 2: no node of the cluster has that much"):
        cluster_room(Request(cpus=2))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpus", "1", "--device", "cpu"], "--device cpu with --gpus 1"),
        (["--device", "cuda"], "--device cuda with no --gpus"),
        (["--cpus", "0"], "--cpus and --gpus: expected positive numbers"),
        (["--gpus", "1.5"], "--gpus 1.5: expected a whole number, or a fraction of one"),
        (["--threads", "0"], "--threads: expected a positive number"),
    ],
)
def test_requests_that_make_no_sense_are_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(capsys, *words)


@pytest.mark.parametrize("option", ["--address", "--cpus", "--gpus"])
def test_options_of_ray_choose_ray(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "digits", option, "1", "--engine", "pool"]) == 1
    assert f"{option} has no effect with --engine pool" in capsys.readouterr().err
    assert main(["sweep", "digits", option, "1", "--workers", "0"]) == 1
    assert "--workers: expected a positive number" in capsys.readouterr().err  # as Ray's engine says


def test_a_node_without_the_data_is_named(nodes: Cluster, tmp_path: Path) -> None:
    settings = tiny("mnist", strategy="small")
    place = Place(root=Path("/dev/null/data"))
    with pytest.raises(UsageError, match=r"^node .* cannot read its data: mnist is not in /dev/null/data/mnist"):
        sweep(by_name(settings), tmp_path, cluster(tmp_path, data=["mnist"]), place)
    assert not list(tmp_path.iterdir())


def test_the_data_directory_of_the_environment_is_that_of_all_nodes(
    nodes: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEUROGENESIS_DATA", "/dev/null/mine")
    with pytest.raises(UsageError, match="mnist is not in /dev/null/mine/mnist"):
        sweep(by_name(tiny("mnist")), tmp_path, cluster(tmp_path, data=["mnist"]))


def test_a_node_with_another_version_is_named(nodes: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other" / "torch-0.4.1.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 0.4.1\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(other.parent), os.environ.get("PYTHONPATH", "")]))
    node = nodes.add_node(**NODE)
    try:
        nodes.wait_for_nodes()
        expected = rf"^node .* has torch 0.4.1, and this machine {versions()['torch']}: install the same version"
        with pytest.raises(UsageError, match=expected.replace("+", r"\+")):
            sweep(by_name(tiny()), tmp_path / "runs", cluster(tmp_path / "runs"))
    finally:
        nodes.remove_node(node)
    assert not list((tmp_path / "runs").iterdir())


def test_a_node_that_cannot_write_the_output_says_so() -> None:
    marker = Path("/proc/sys/kernel/ostype")
    found = examine(marker, marker.read_text(), [], None)
    assert found["shared"]
    assert found["problem"].startswith("cannot write to /proc/sys/kernel (")


# --- searches ------------------------------------------------------------------------------------------------


def search_space(searched: Sequence[str] = (), trials: int = 2, **changes: Any) -> Space:
    """A search on the digits."""
    return plan_search(PRESETS["digits"](**{"epochs": 2, "batch": 256, **changes}), searched, Goal(), trials)


def test_a_search_that_was_begun_on_one_machine_goes_on_on_a_cluster(nodes: Cluster, tmp_path: Path) -> None:
    space, alone, out = search_space(), tmp_path / "alone", tmp_path / "out"
    whole = tune(space, alone, Goal(), 6, here)  # the last one depends on the results of the others
    tune(space, out, Goal(), 2, here)
    found = tune(space, out, Goal(), 6, cluster(out, workers=1))
    assert (found.trials, found.chosen, found.failed) == (whole.trials, whole.chosen, {})
    for name in [trial.name for trial in whole.trials] + [trial.final_name for trial in whole.chosen]:
        assert_same_run(alone / name, out / name)


def test_trials_are_stopped_on_a_cluster_as_on_one_machine(
    nodes: Cluster, out: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    space = search_space(["learning_rate=1e-2,1e-6"], epochs=9, strategy="small", seed=14)
    alone = tmp_path_factory.mktemp("alone")
    whole = tune(space, alone, Goal(), 3, here, sampler="asha")
    found = tune(space, out, Goal(), 3, cluster(out, workers=1), sampler="asha")
    assert (found.trials, found.chosen, found.failed) == (whole.trials, whole.chosen, {})
    stopped = [trial.name for trial in whole.trials if trial.is_stopped(alone)]
    assert stopped and stopped == [trial.name for trial in found.trials if trial.is_stopped(out)]
    for trial in whole.trials:
        assert len(epochs(out, trial.name)) == len(epochs(alone, trial.name))
    for name in (whole.chosen[0].name, whole.chosen[0].final_name):
        assert_same_run(alone / name, out / name)


@pytest.mark.long
@pytest.mark.parametrize("sampler", ["optuna", "asha"])
def test_the_command_searches_on_a_cluster(sampler: str, nodes: Cluster, tmp_path: Path) -> None:
    words = ("--sampler", sampler, "--engine", "ray", "--address", nodes.address, "--trials", 2, "--epochs", 2)
    done = command("tune", "digits", *words, "--out", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].startswith("2 trials; ")


# --- files of runs on other machines ---------------------------------------------------------------------------------


def test_a_copy_is_resumed_as_the_run_itself(tmp_path: Path) -> None:
    settings, here = tiny(epochs=3), tmp_path / "here"
    run(settings, here)
    whole = {path.name: path.read_bytes() for path in here.iterdir() if path.name != "lock"}
    write_files(tmp_path / "there", read_files(here))
    assert {path.name: path.read_bytes() for path in (tmp_path / "there").iterdir()} == whole


def test_a_checkpoint_is_written_after_the_lines_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tiny(epochs=1), tmp_path / "here")
    written: list[str] = []
    monkeypatch.setattr(transfer, "replace_file", lambda path, write: written.append(path.name))
    write_files(tmp_path / "there", read_files(tmp_path / "here"))
    assert written.index("steps.jsonl") < written.index("epochs.jsonl") < written.index("checkpoint.pt")
    assert written[-1] == "result.json"  # which marks the run as finished


@pytest.mark.parametrize("out", ["fetched"], indirect=True)
def test_a_run_whose_files_cannot_be_written_fails(nodes: Cluster, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(directory: Path, files: Files) -> None:
        raise UsageError(f"cannot write to {directory} (No space left on device)")

    monkeypatch.setattr(engine, "write_files", full)
    progress = sweep(by_name(LONG[0]), out, cluster(out))
    assert "No space left" in progress.failed[LABELS[0]]
