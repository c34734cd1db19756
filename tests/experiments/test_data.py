"""Data sets: their content, and how files are found, downloaded, verified and rejected."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import os
import pickle
import re
import struct
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, get_args

import numpy as np
import pytest
import torch

from neurogenesis.experiments import data
from neurogenesis.experiments.data import Data, DataError, File, formats, generated, load, read_cifar, read_idx, table
from neurogenesis.experiments.errors import UsageError
from neurogenesis.experiments.presets import Table
from neurogenesis.experiments.shapes import SHAPES
from tests.real_data import ROOT, needs

DISTRIBUTION = Path("/usr/share/datasets")  # of Debian's package dataset-fashion-mnist


# Generated and built-in data


@pytest.mark.parametrize("features", [1, 8, 32, 64])
def test_generated_features_have_the_rank_asked_for(features: int) -> None:
    drawn = generated(features, seed=1)
    inputs, labels = torch.cat([drawn.train[0], drawn.test[0]]), torch.cat([drawn.train[1], drawn.test[1]])
    assert inputs.shape == (5000, 64) and inputs.dtype == torch.float32 and labels.dtype == torch.int64
    assert torch.linalg.matrix_rank(inputs) == features
    assert inputs[:, :features].std() == pytest.approx(1, abs=0.05)
    assert labels.float().mean() == pytest.approx(0.5, abs=0.03)


def test_generated_labels_follow_the_sum_with_little_noise() -> None:
    drawn = generated(64, seed=3)
    sums = torch.cat([drawn.train[0], drawn.test[0]]).double().sum(1)
    labels = torch.cat([drawn.train[1], drawn.test[1]])
    # The deviations of 0.9 sums and 0.1 noise are 7.2 and 0.1: one label in atan(0.1 / 7.2) / pi, 22, changes.
    assert 8 < int(((sums > sums.mean()).long() != labels).sum()) < 45


def test_generated_data_depends_on_the_seed_only() -> None:
    one = generated(8, seed=1)
    torch.manual_seed(99)
    again, other = generated(8, seed=1), generated(8, seed=2)
    assert torch.equal(one.train[0], again.train[0]) and torch.equal(one.test[1], again.test[1])
    assert not torch.equal(one.train[0], other.train[0])


@pytest.mark.parametrize("features", [0, 65])
def test_too_many_or_too_few_features_are_rejected(features: int) -> None:
    with pytest.raises(ValueError, match=f"1 to 64 independent features, not {features}"):
        generated(features, seed=1)


def test_digits_are_split_the_same_way_every_time() -> None:
    one, again = load("digits"), load("digits")
    assert one.train[0].shape == (1348, 64) and one.test[0].shape == (449, 64) and one.classes == 10
    assert one.train[0].min() == 0 and one.train[0].max() == 1
    assert torch.equal(one.test[0], again.test[0]) and torch.equal(one.train[1], again.train[1])
    assert one.test[1].bincount().min() > 25


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("digits", lambda: load("digits")),
        ("generated", lambda: generated(8, seed=1)),
        *((f"tabular/{name}", lambda name=name: table(name, seed=1)) for name in get_args(Table)),
    ],
)
def test_shapes_are_known_without_reading_the_data(name: str, made: Callable[[], Data]) -> None:
    inputs, _ = made().train
    assert SHAPES[name] == (len(inputs), tuple(inputs.shape[1:]), made().classes)


@pytest.mark.parametrize("name", get_args(Table))
def test_tables_are_standardized_by_their_training_part_and_divided_by_the_seed(name: str) -> None:
    one, again, other = table(name, seed=1), table(name, seed=1), table(name, seed=2)
    (x, y), count = one.train, len(one.train[1]) + len(one.test[1])
    assert torch.equal(x, again.train[0]) and not torch.equal(x, other.train[0])
    assert len(y) == int(0.7 * count) and x.dtype == torch.float32
    torch.testing.assert_close(x.mean(0), torch.zeros(x.shape[1]), rtol=0, atol=1e-4)
    deviations = x.std(0)
    assert float(deviations.max()) < 1.001
    assert name == "digits" or float(deviations.min()) > 0.999  # pixels at the edge hardly vary
    assert y.is_floating_point() == (name not in ("cancer", "wine", "digits"))
    if y.is_floating_point():
        assert y.shape == (len(x), 1) and abs(float(y.std()) - 1) < 1e-4
    else:
        assert y.dtype == torch.int64 and y.unique().tolist() == list(range(one.classes))


# Parts of a data set


@pytest.fixture
def numbered() -> Data:
    inputs = torch.arange(100.0)[:, None]
    return Data((inputs, inputs[:, 0].long() % 7), (-inputs[:10] - 1, torch.zeros(10).long()), classes=7)


def test_holding_out_divides_the_training_samples(numbered: Data) -> None:
    held = numbered.holding_out(0.1, seed=1)
    (inputs, labels), (tests, expected) = held.train, held.test
    assert len(inputs) == 90 and len(tests) == 10 and held.classes == 7
    assert torch.equal(torch.cat([inputs, tests]).sort(0).values, numbered.train[0])
    assert torch.equal(labels, inputs[:, 0].long() % 7) and torch.equal(expected, tests[:, 0].long() % 7)


def test_holding_out_is_random_by_the_seed(numbered: Data) -> None:
    drawn = [numbered.holding_out(0.1, seed).test[0] for seed in (1, 1, 2)]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0].sort(0).values, numbered.train[0][:10])
    assert numbered.holding_out(0, seed=1) is numbered


@pytest.mark.parametrize("part", [-0.1, 0.001, 1.0, 2.0])
def test_a_fraction_that_leaves_nothing_is_rejected(numbered: Data, part: float) -> None:
    with pytest.raises(DataError, match=rf"of 100 training samples \(a fraction of {part}\)"):
        numbered.holding_out(part, seed=1)


def test_first_samples_come_from_the_start(numbered: Data) -> None:
    few = numbered.first(30)
    assert torch.equal(few.train[0], numbered.train[0][:30]) and torch.equal(few.train[1], numbered.train[1][:30])
    assert torch.equal(few.test[0], numbered.test[0]) and torch.equal(few.test[1], numbered.test[1])
    few = numbered.first(test=3)
    assert torch.equal(few.train[0], numbered.train[0]) and torch.equal(few.test[0], numbered.test[0][:3])


@pytest.mark.parametrize("images", [0, -1, 101])
def test_too_many_or_too_few_samples_are_rejected(numbered: Data, images: int) -> None:
    with pytest.raises(DataError, match=f"from 1 to 100 of training samples, not {images}"):
        numbered.first(images)


# The real files


@needs("mnist")
def test_mnist() -> None:
    mnist = load("mnist", ROOT)
    assert mnist.train[0].shape == (60000, 784) and mnist.test[0].shape == (10000, 784) and mnist.classes == 10
    assert mnist.train[0].dtype == torch.float32 and mnist.train[1].dtype == torch.int64
    assert mnist.train[0].mean() == pytest.approx(0.1307, abs=1e-4)
    assert mnist.train[0].min() == 0 and mnist.train[0].max() == 1
    assert mnist.train[1][:5].tolist() == [5, 0, 4, 1, 9]
    counts = mnist.train[1].bincount()
    assert len(counts) == 10 and counts.min() > 5000 and counts.max() < 7000


@needs("fashion-mnist", DISTRIBUTION)
@pytest.mark.parametrize("root", [DISTRIBUTION, DISTRIBUTION / "fashion-mnist"])
def test_fashion_mnist_as_a_distribution_compresses_it(root: Path) -> None:
    fashion = load("fashion-mnist", root)
    assert fashion.train[0].shape == (60000, 784) and fashion.test[0].shape == (10000, 784)
    assert fashion.train[1].bincount().tolist() == [6000] * 10
    assert fashion.train[0].mean() == pytest.approx(0.2860, abs=1e-4)


@needs("cifar10")
def test_cifar10() -> None:
    cifar = load("cifar10", ROOT)
    assert cifar.train[0].shape == (50000, 3, 32, 32) and cifar.test[0].shape == (10000, 3, 32, 32)
    assert cifar.train[0].dtype == torch.float32 and cifar.train[1].dtype == torch.int64 and cifar.classes == 10
    assert cifar.train[1][0] == 6 and cifar.train[1].bincount().tolist() == [5000] * 10
    means = cifar.train[0][:5000].mean((0, 2, 3)).tolist()
    assert means == pytest.approx([0.4914, 0.4822, 0.4465], abs=0.01)  # red, green, blue


# Tiny files in the same formats


def idx(values: torch.Tensor, *, shape: tuple[int, ...] | None = None, kind: int = 8) -> bytes:
    sizes = shape or tuple(values.shape)
    head = bytes([0, 0, kind, len(sizes)]) + struct.pack(f">{len(sizes)}I", *sizes)
    return head + bytes(values.flatten().tolist())


def images(count: int) -> torch.Tensor:
    return torch.arange(count * 4).reshape(count, 2, 2) % 256


TINY = {
    "train-images-idx3-ubyte": idx(images(6)),
    "train-labels-idx1-ubyte": idx(torch.tensor([0, 1, 2, 3, 4, 5])),
    "t10k-images-idx3-ubyte": idx(images(2)),
    "t10k-labels-idx1-ubyte": idx(torch.tensor([9, 8])),
}
FILES = {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in TINY.items()}


def batch(labels: list[int], key: bytes = b"labels") -> bytes:
    pixels = np.arange(len(labels) * 3072).astype(np.uint8).reshape(len(labels), 3072)
    return pickle.dumps({b"data": pixels, key: labels}, protocol=2)


BATCHES = {
    **{f"cifar-10-batches-py/data_batch_{i}": batch([i, i + 1]) for i in range(1, 6)},
    "cifar-10-batches-py/test_batch": batch([7]),
}


def tar(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


class Server:
    """Serves files on a local port, and remembers the requests."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.delay = 0.0
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.requests.append(self.path)
                time.sleep(server.delay)
                content = server.files.get(self.path)
                self.send_response(404 if content is None else 200)
                self.send_header("Content-Length", str(len(content or b"")))
                self.end_headers()
                self.wfile.write(content or b"")

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/"

    def serve(self, folder: str, files: dict[str, bytes]) -> str:
        self.files.update({f"/{folder}/{name}": content for name, content in files.items()})
        return f"{self.url}{folder}/"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    running = Server()
    thread = threading.Thread(target=running.http.serve_forever, args=(0.01,))
    thread.start()
    yield running
    running.http.shutdown()
    thread.join()
    running.http.server_close()


@pytest.fixture
def tiny_mnist(monkeypatch: pytest.MonkeyPatch, server: Server) -> Server:
    known = tuple(File(name, md5(raw), md5(gzip.decompress(raw))) for name, raw in FILES.items())
    mirror = server.serve("good", FILES)
    monkeypatch.setitem(data.SOURCES, "mnist", replace(data.SOURCES["mnist"], mirrors=(mirror,), files=known))
    return server


def mirrored(monkeypatch: pytest.MonkeyPatch, *mirrors: str) -> None:
    monkeypatch.setitem(data.SOURCES, "mnist", replace(data.SOURCES["mnist"], mirrors=mirrors))


@pytest.fixture
def tiny_cifar(monkeypatch: pytest.MonkeyPatch, server: Server) -> Server:
    known = tuple(File(name, md5(raw)) for name, raw in BATCHES.items())
    packed = tar({"cifar-10-batches-py/readme.html": b"hello", **BATCHES, "../outside": b"no"})
    mirror = server.serve("cifar", {"cifar-10-python.tar.gz": packed})
    source = replace(
        data.SOURCES["cifar10"], mirrors=(mirror,), files=known, archive=File("cifar-10-python.tar.gz", md5(packed))
    )
    monkeypatch.setitem(data.SOURCES, "cifar10", source)
    return server


def write(directory: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return directory


def is_tiny_mnist(found: Data) -> bool:
    return (
        torch.equal(found.train[0], images(6).flatten(1) / 255)
        and found.train[1].tolist() == [0, 1, 2, 3, 4, 5]
        and found.test[0].shape == (2, 4)
        and found.test[1].tolist() == [9, 8]
    )


# Downloading


def test_missing_files_are_downloaded_once(tiny_mnist: Server, tmp_path: Path) -> None:
    assert is_tiny_mnist(load("mnist", tmp_path))
    assert sorted(tiny_mnist.requests) == sorted(f"/good/{name}" for name in FILES)
    assert is_tiny_mnist(load("mnist", tmp_path))
    assert len(tiny_mnist.requests) == 4


def test_only_missing_files_are_downloaded(tiny_mnist: Server, tmp_path: Path) -> None:
    here = dict(list(FILES.items())[:3])
    write(tmp_path / "mnist", here)
    assert is_tiny_mnist(load("mnist", tmp_path))
    assert tiny_mnist.requests == ["/good/t10k-labels-idx1-ubyte.gz"]


def test_an_environment_variable_sets_the_directory(
    tiny_mnist: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEUROGENESIS_DATA", str(tmp_path / "there"))
    load("mnist")
    assert {path.name for path in (tmp_path / "there" / "mnist").iterdir()} >= set(FILES)


def test_the_default_is_the_users_cache(tiny_mnist: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NEUROGENESIS_DATA", raising=False)
    monkeypatch.setattr("pooch.os_cache", lambda project: tmp_path / project)
    load("mnist")
    assert {path.name for path in (tmp_path / "neurogenesis" / "mnist").iterdir()} >= set(FILES)


def test_the_next_mirror_is_tried_if_one_fails(
    tiny_mnist: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = tiny_mnist.serve("wrong", dict.fromkeys(FILES, b"an error page"))
    mirrored(monkeypatch, f"{tiny_mnist.url}nothing/", wrong, f"{tiny_mnist.url}good/")
    assert is_tiny_mnist(load("mnist", tmp_path))
    assert [path.split("/")[1] for path in tiny_mnist.requests] == ["nothing", "wrong", "good"] * 4


def test_a_wrong_file_is_not_kept(tiny_mnist: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirrored(monkeypatch, tiny_mnist.serve("wrong", dict.fromkeys(FILES, b"an error page")))
    with pytest.raises(DataError, match="wrong md5"):
        load("mnist", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_parallel_loads_download_once(tiny_mnist: Server, tmp_path: Path) -> None:
    tiny_mnist.delay = 0.1
    together = threading.Barrier(4)

    def loading() -> Data:
        together.wait()
        return load("mnist", tmp_path)

    with ThreadPoolExecutor(4) as pool:
        found = [future.result() for future in [pool.submit(loading) for _ in range(4)]]
    assert all(is_tiny_mnist(each) for each in found)
    assert len(tiny_mnist.requests) == 4


def test_only_the_batches_of_an_archive_are_unpacked(tiny_cifar: Server, tmp_path: Path) -> None:
    cifar = load("cifar10", tmp_path)
    assert cifar.train[0].shape == (10, 3, 32, 32) and cifar.train[1].tolist() == [1, 2, 2, 3, 3, 4, 4, 5, 5, 6]
    assert cifar.test[1].tolist() == [7] and cifar.train[0].max() == 1
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"}
    assert files == {f"cifar10/{name}" for name in BATCHES}
    load("cifar10", tmp_path)
    assert tiny_cifar.requests == ["/cifar/cifar-10-python.tar.gz"]


def test_a_missing_batch_is_unpacked_again(tiny_cifar: Server, tmp_path: Path) -> None:
    kept, lost = "cifar-10-batches-py/data_batch_1", "cifar-10-batches-py/data_batch_3"
    packed = tiny_cifar.files["/cifar/cifar-10-python.tar.gz"]
    directory = write(tmp_path / "cifar10", {**BATCHES, "cifar-10-python.tar.gz": packed})
    (directory / lost).unlink()
    before = (directory / kept).stat().st_mtime_ns
    load("cifar10", tmp_path)
    assert (directory / lost).read_bytes() == BATCHES[lost] and (directory / kept).stat().st_mtime_ns == before
    assert tiny_cifar.requests == []  # the archive is on disk, and stays there
    assert (directory / "cifar-10-python.tar.gz").read_bytes() == packed


def test_a_failed_unpacking_leaves_no_partial_file(
    tiny_cifar: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: IO[bytes], target: IO[bytes]) -> None:
        target.write(source.read(100))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("shutil.copyfileobj", full)
    with pytest.raises(DataError, match=r"cannot be downloaded \(No space left on device\)"):
        load("cifar10", tmp_path)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"] == []


def test_a_truncated_archive_is_rejected(tiny_cifar: Server, tmp_path: Path) -> None:
    packed = tiny_cifar.files["/cifar/cifar-10-python.tar.gz"]
    write(tmp_path / "cifar10", {"cifar-10-python.tar.gz": packed[:100]})
    with pytest.raises(DataError, match=r"cifar-10-python.tar.gz is damaged .* 100 bytes"):
        load("cifar10", tmp_path)


# Files on disk


def test_files_need_no_subdirectory(tiny_mnist: Server, tmp_path: Path) -> None:
    write(tmp_path, FILES)
    assert is_tiny_mnist(load("mnist", tmp_path))
    assert tiny_mnist.requests == []


def test_files_of_another_data_set_are_ignored(tiny_mnist: Server, tmp_path: Path) -> None:
    write(tmp_path, dict.fromkeys(FILES, gzip.compress(b"others")))
    assert is_tiny_mnist(load("mnist", tmp_path))
    assert len(tiny_mnist.requests) == 4


def test_a_damaged_file_among_others_is_named(tiny_mnist: Server, tmp_path: Path) -> None:
    write(tmp_path, {**FILES, "t10k-labels-idx1-ubyte.gz": b"damaged"})
    with pytest.raises(DataError, match=re.escape(f"{tmp_path / 't10k-labels-idx1-ubyte.gz'} is damaged")):
        load("mnist", tmp_path)
    assert tiny_mnist.requests == []


def test_files_may_be_recompressed(tiny_mnist: Server, tmp_path: Path) -> None:
    anew = {name: gzip.compress(gzip.decompress(raw), compresslevel=1, mtime=12345) for name, raw in FILES.items()}
    assert all(anew[name] != FILES[name] for name in FILES)
    write(tmp_path / "mnist", anew)
    assert is_tiny_mnist(load("mnist", tmp_path))
    assert tiny_mnist.requests == []


@pytest.mark.parametrize(
    "content",
    [b"", b"no gzip", FILES["t10k-images-idx3-ubyte.gz"][:-9], gzip.compress(idx(images(3)))],
    ids=["empty", "no gzip", "truncated", "other content"],
)
def test_a_file_with_a_wrong_checksum_is_rejected(tiny_mnist: Server, tmp_path: Path, content: bytes) -> None:
    name = "t10k-images-idx3-ubyte.gz"
    directory = write(tmp_path / "mnist", {**FILES, name: content})
    with pytest.raises(DataError) as refused:
        load("mnist", tmp_path)
    message = str(refused.value)
    assert str(directory / name) in message and md5(content) in message and md5(FILES[name]) in message
    assert f"{len(content)} bytes" in message and "Delete it" in message
    assert (directory / name).read_bytes() == content


def test_a_pickle_is_verified_before_it_is_read(
    tiny_cifar: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "cifar10", {**BATCHES, "cifar-10-batches-py/test_batch": batch([8])})
    monkeypatch.setattr(formats, "read_cifar", lambda *_: pytest.fail("a batch was read"))
    with pytest.raises(DataError, match="test_batch is damaged or a different file"):
        load("cifar10", tmp_path)


# Without a network


def test_the_message_says_what_to_do(tiny_mnist: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = "http://127.0.0.1:9/"
    mirrored(monkeypatch, closed)
    with pytest.raises(DataError) as refused:
        load("mnist", tmp_path)
    message = str(refused.value)
    assert all(name in message for name in FILES) and str(tmp_path / "mnist") in message
    assert f"there, from {closed}" in message and "ConnectionError" in message
    assert "--data" in message and "NEUROGENESIS_DATA" in message
    assert len(message.replace(str(tmp_path), "")) < 600
    assert refused.value.__cause__ is None and refused.value.__suppress_context__


def test_the_message_asks_for_the_archive(tiny_cifar: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_cifar.files.clear()
    with pytest.raises(DataError, match=r"Put cifar-10-python.tar.gz, or .*data_batch_1.*test_batch there, from"):
        load("cifar10", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_status_is_reported(tiny_mnist: Server, tmp_path: Path) -> None:
    tiny_mnist.files.clear()
    with pytest.raises(DataError, match=r"good/train-images-idx3-ubyte.gz: status 404"):
        load("mnist", tmp_path)


def test_a_root_that_cannot_be_written_is_named(tiny_mnist: Server, tmp_path: Path) -> None:
    root = tmp_path / "file"
    root.touch()
    with pytest.raises(DataError, match=r"mnist is not in .*file/mnist and cannot be downloaded \(Not a dir"):
        load("mnist", root)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="needs a user who may not write everywhere")
@pytest.mark.parametrize("made", [False, True])
def test_a_read_only_root_is_named(tiny_mnist: Server, tmp_path: Path, made: bool) -> None:
    directory = tmp_path / "mnist" if made else tmp_path
    directory.mkdir(exist_ok=True)
    directory.chmod(0o500)
    try:
        with pytest.raises(DataError, match=r"cannot be downloaded \(Permission denied\)"):
            load("mnist", tmp_path)
    finally:
        directory.chmod(0o700)
    assert tiny_mnist.requests == []


def test_a_complete_directory_is_only_read(tiny_mnist: Server, tmp_path: Path) -> None:
    directory = write(tmp_path / "mnist", FILES)
    load("mnist", tmp_path)
    assert {path.name for path in directory.iterdir()} == set(FILES)


@pytest.mark.parametrize(("module", "name"), [("pooch", "mnist"), ("sklearn.datasets", "digits")])
def test_missing_packages_are_named(module: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(DataError, match=rf"{module}.*pip install 'torch-neurogenesis\[experiments\]'"):
        load(name, tmp_path)


def test_an_unknown_name_is_rejected_with_the_closest_match() -> None:
    with pytest.raises(UsageError, match=r"unknown data set 'mnits'\. Did you mean 'mnist'"):
        load("mnits")
    with pytest.raises(UsageError, match=r"unknown data set 'x'\. Choose from digits, mnist"):
        load("x")


# Formats


def test_idx_files_keep_shape_and_values(tmp_path: Path) -> None:
    values = torch.arange(24).reshape(2, 3, 4) * 10
    (tmp_path / "a.gz").write_bytes(gzip.compress(idx(values)))
    assert torch.equal(read_idx(tmp_path / "a.gz"), values.to(torch.uint8))


BROKEN_IDX = {
    "not compressed": (b"not compressed", "not a complete gzip file"),
    "truncated": (gzip.compress(idx(images(2)))[:-10], "not a complete gzip file"),
    "no header": (gzip.compress(b"")[:4], "not a complete gzip file"),
    "nothing": (gzip.compress(b""), "starts with nothing"),
    "no magic number": (gzip.compress(b"\0\0"), "starts with 00 00"),
    "no shape": (gzip.compress(b"\0\0\x08\x03\0\0"), "starts with 00 00 08 03"),
    "floats": (gzip.compress(idx(images(2), kind=0x0D)), "not an idx file of bytes: it starts with 00 00 0d 03"),
    "too short": (gzip.compress(idx(images(2))[:-1]), r"7 bytes of data for the shape \(2, 2, 2\)"),
    "too long": (gzip.compress(idx(images(2), shape=(1, 2, 2))), r"8 bytes of data for the shape \(1, 2, 2\)"),
}


@pytest.mark.parametrize(("raw", "message"), BROKEN_IDX.values(), ids=BROKEN_IDX)
def test_damaged_idx_files_are_rejected(raw: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(raw)
    with pytest.raises(DataError, match=message) as refused:
        read_idx(path)
    assert str(path) in str(refused.value)


def old_batch() -> bytes:
    """As pickled by Python 2: byte strings as strings, arrays by the old name of their module."""
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntU\x01btR(I1\n(I1\nI3072\ntcnumpy\ndtype\n"
    dtype = b"(U\x02u1I0\nI1\ntR(I3\nU\x01|NNNI-1\nI-1\nI0\ntbI00\n"
    pixels = b"T" + struct.pack("<i", 3072) + bytes(range(256)) * 12
    return b"\x80\x02}(U\x04data" + array + dtype + pixels + b"tbU\x0bfine_labels](K\x2aeu."


@pytest.mark.parametrize("raw", [old_batch(), batch([42], b"fine_labels")], ids=["old", "new"])
def test_batches_of_any_age_are_read(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "train").write_bytes(raw)
    pixels, labels = read_cifar(tmp_path / "train", "fine_labels")
    assert pixels.dtype == torch.uint8 and labels.tolist() == [42] and labels.dtype == torch.int64
    assert torch.equal(pixels, (torch.arange(3072) % 256).to(torch.uint8).reshape(1, 3, 32, 32))


class Attack:
    def __init__(self, path: Path) -> None:
        self.command = f"touch {path}"

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_pickles_cannot_run_code(tmp_path: Path, protocol: int) -> None:
    target, path = tmp_path / "was here", tmp_path / "batch"
    path.write_bytes(pickle.dumps({b"data": Attack(target), b"labels": []}, protocol=protocol))
    with pytest.raises(DataError, match=r"it calls (posix|nt)\.system"):
        read_cifar(path, "labels")
    assert not target.exists()


@pytest.mark.parametrize("called", [eval, getattr, __import__, open, np.load, np.frombuffer])
def test_pickles_can_call_nothing_else(tmp_path: Path, called: object) -> None:
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps({b"data": called}, protocol=2))
    with pytest.raises(DataError, match="it calls"):
        read_cifar(path, "labels")


def other_batch(pixels: np.ndarray, labels: list[int]) -> bytes:
    return pickle.dumps({b"data": pixels, b"labels": labels}, protocol=2)


BROKEN_BATCHES = {
    "empty": (b"", "Ran out of input"),
    "truncated": (batch([1, 2])[:-100], "truncated"),
    "no pickle": (b"no pickle", "not a batch of CIFAR"),
    "no batch": (pickle.dumps([1, 2]), "not a batch of CIFAR"),
    "no labels": (batch([1, 2], b"fine_labels"), "not a batch of CIFAR with labels"),
    "floats": (other_batch(np.zeros((2, 3072)), [1, 2]), "torch.float64 of shape"),
    "small": (other_batch(np.zeros((2, 3071), np.uint8), [1, 2]), r"\(2, 3071\) for 2 images"),
    "few labels": (other_batch(np.zeros((2, 3072), np.uint8), [1]), r"\(2, 3072\) for 1 images"),
}


@pytest.mark.parametrize(("raw", "message"), BROKEN_BATCHES.values(), ids=BROKEN_BATCHES)
def test_damaged_batches_are_rejected(raw: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "batch"
    path.write_bytes(raw)
    with pytest.raises(DataError, match=message) as refused:
        read_cifar(path, "labels")
    assert str(path) in str(refused.value)
