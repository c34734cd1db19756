"""Data sets as whole tensors: found in a directory, or fetched into it and verified.

The directory is the argument `root`, else what NEUROGENESIS_DATA says, else the user's cache. Each data set has its
own directory there, with the original files:

    mnist/ and fashion-mnist/       {train,t10k}-{images-idx3,labels-idx1}-ubyte.gz
    cifar10/cifar-10-batches-py/    data_batch_1 to data_batch_5, test_batch
    cifar100/cifar-100-python/      train, test

A directory with the files of one data set will do, too: as packages of distributions and torchvision have them.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import pickle
import shutil
import struct
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch import Tensor

from .errors import Mistake, unknown


class DataError(Mistake):
    """A data set that is not there, or not what it should be."""


@dataclass(frozen=True)
class Data:
    """A data set: inputs (float32) and labels (int64) to train with and to test with."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    classes: int

    def holding_out(self, part: float, seed: int) -> Data:
        """The same with a random part of the training samples as test samples, and the others to train with.

        For choosing hyperparameters without a look at the real test samples. A part of 0 changes nothing.

        Example:
            >>> data = generated(features=8, seed=1).holding_out(0.1, seed=1)
            >>> len(data.train[1]), len(data.test[1])
            (4050, 450)
        """
        if part == 0:
            return self
        inputs, labels = self.train
        held = round(part * len(labels))
        if not 0 < held < len(labels):
            raise DataError(
                f"cannot hold out a part of {part} of {len(labels)} training samples: that is {held} of them"
            )
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
        test, train = order[:held], order[held:]
        return replace(self, train=(inputs[train], labels[train]), test=(inputs[test], labels[test]))

    def first(self, train: int | None = None, test: int | None = None) -> Data:
        """The same with only the first so many samples; None means all.

        Example:
            >>> data = generated(features=8, seed=1).first(100)
            >>> len(data.train[1]), len(data.test[1])
            (100, 500)
        """
        for kind, part, count in (("training", self.train, train), ("test", self.test, test)):
            if count is not None and not 0 < count <= len(part[1]):
                raise DataError(f"there are 1 to {len(part[1])} {kind} samples to take, not {count}")
        (inputs, labels), (test_inputs, test_labels) = self.train, self.test
        return replace(self, train=(inputs[:train], labels[:train]), test=(test_inputs[:test], test_labels[:test]))


SAMPLES, FEATURES = 5000, 64


def generated(features: int, seed: int) -> Data:
    """5000 samples in two classes, of 64 features of which only the first so many are independent.

    These are standard normal. The others are linear combinations of them, the coefficients standard normal and not
    scaled: their standard deviation is about the root of the number of independent features. The class is whether
    0.9 times the sum of all features plus 0.1 times standard normal noise is above its mean. The last 10 % are to test.

    Example:
        >>> data = generated(features=8, seed=1)
        >>> data.train[0].shape, data.test[0].shape, data.classes
        (torch.Size([4500, 64]), torch.Size([500, 64]), 2)
    """
    if not 1 <= features <= FEATURES:
        raise ValueError(f"1 to {FEATURES} features can be independent, not {features}")
    normal = partial(torch.randn, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    independent = normal(SAMPLES, features)
    inputs = torch.cat([independent, independent @ normal(features, FEATURES - features)], dim=1)
    response = 0.9 * inputs.sum(1) + 0.1 * normal(SAMPLES)
    inputs, labels = inputs.float(), (response > response.mean()).long()
    train = SAMPLES - SAMPLES // 10
    return Data((inputs[:train], labels[:train]), (inputs[train:], labels[train:]), classes=2)


def load(name: str, root: Path | None = None) -> Data:
    """A data set by its name: "digits", "mnist", "fashion-mnist", "cifar10" or "cifar100".

    Images have values from 0 to 1; those of CIFAR are 3 x 32 x 32, others flat.

    Args:
        name: which.
        root: the directory that data sets are in, or are fetched into; see above.
    """
    if name == "digits":
        return _digits()
    if name not in SOURCES:
        raise unknown("data set", name, names())
    return SOURCES[name].read(_directory(name, _cache() if root is None else root))


def prepare(name: str, root: Path | None = None) -> None:
    """Have the files of a data set there, verified, for `load` to read."""
    if name in SOURCES:
        _directory(name, _cache() if root is None else root)


def names() -> list[str]:
    """The data sets that can be loaded.

    Example:
        >>> names()
        ['digits', 'mnist', 'fashion-mnist', 'cifar10', 'cifar100']
    """
    return ["digits", *SOURCES]


def _digits() -> Data:
    images, labels = _module("sklearn.datasets").load_digits(return_X_y=True)
    everything = torch.as_tensor(images / 16, dtype=torch.float32), torch.as_tensor(labels, dtype=torch.int64)
    return Data(everything, everything, classes=10).holding_out(0.25, seed=0)


def _cache() -> Path:
    return Path(os.environ.get("NEUROGENESIS_DATA") or _module("pooch").os_cache("neurogenesis"))


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise DataError(f"cannot import {name} ({error}): pip install 'torch-neurogenesis[experiments]'") from None


def read_idx(path: Path) -> Tensor:
    """The bytes in a compressed idx file, in their shape.

    The file: two zeros, 8 for bytes, the number of dimensions, the dimensions as big-endian integers, the bytes.
    """
    try:
        raw = gzip.decompress(path.read_bytes())
    except BROKEN_GZIP as error:
        raise DataError(f"{path} is not a whole gzip file: {error}") from error
    if raw[:3] != b"\0\0\x08" or len(raw) < 4 * (1 + raw[3]):
        raise DataError(f"{path} is not an idx file of bytes: it begins with {raw[:4].hex(' ') or 'nothing'}")
    start = 4 * (1 + raw[3])
    shape = struct.unpack(f">{raw[3]}I", raw[4:start])
    if len(raw) - start != math.prod(shape):
        raise DataError(f"{path} has {len(raw) - start} bytes of data for the shape {shape}")
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)[start:].reshape(shape)


BROKEN_GZIP = (gzip.BadGzipFile, EOFError, zlib.error)


def read_cifar(path: Path, label_key: str) -> tuple[Tensor, Tensor]:
    """The images, bytes of n x 3 x 32 x 32, and the labels in a pickled batch of CIFAR."""
    try:
        with path.open("rb") as file:
            batch = _Arrays(file, encoding="bytes").load()
        images, labels = torch.from_numpy(batch[b"data"]), torch.tensor(batch[label_key.encode()])
    except OSError:
        raise
    except Exception as error:  # a broken pickle can raise anything
        raise DataError(f"{path} is not a batch of CIFAR with {label_key}: {error}") from error
    if images.dtype != torch.uint8 or images.shape != (len(labels), 3 * 32 * 32):
        raise DataError(f"{path} has {images.dtype} of shape {tuple(images.shape)} for {len(labels)} images")
    return images.reshape(-1, 3, 32, 32), labels


class _Arrays(pickle.Unpickler):
    """Reads arrays, strings and numbers; calls nothing but what makes arrays."""

    allowed = frozenset(
        {
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("_codecs", "encode"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.allowed:
            raise pickle.UnpicklingError(f"it wants to call {module}.{name}, which no data set needs")
        return super().find_class(module, name)


def _floats(images: Tensor) -> Tensor:
    return images.float().div_(255)


def _read_mnist(directory: Path) -> Data:
    def split(part: str) -> tuple[Tensor, Tensor]:
        images = read_idx(directory / f"{part}-images-idx3-ubyte.gz")
        return _floats(images.flatten(1)), read_idx(directory / f"{part}-labels-idx1-ubyte.gz").long()

    return Data(split("train"), split("t10k"), classes=10)


def _read_cifar10(directory: Path) -> Data:
    def split(*batches: str) -> tuple[Tensor, Tensor]:
        parts = [read_cifar(directory / "cifar-10-batches-py" / batch, "labels") for batch in batches]
        return _floats(torch.cat([images for images, _ in parts])), torch.cat([labels for _, labels in parts])

    return Data(split(*(f"data_batch_{i}" for i in range(1, 6))), split("test_batch"), classes=10)


def _read_cifar100(directory: Path) -> Data:
    def split(part: str) -> tuple[Tensor, Tensor]:
        images, labels = read_cifar(directory / "cifar-100-python" / part, "fine_labels")
        return _floats(images), labels

    return Data(split("train"), split("test"), classes=100)


@dataclass(frozen=True)
class File:
    """A file by its path in the directory of its data set, and its checksum.

    `content` is the checksum of what is compressed in it: distributions compress it anew.
    """

    name: str
    md5: str
    content: str | None = None


@dataclass(frozen=True)
class Source:
    """The files of a data set, where they can be had, one by one or in an archive, and how they are read."""

    mirrors: tuple[str, ...]
    files: tuple[File, ...]
    read: Callable[[Path], Data]
    archive: File | None = None


SOURCES = {
    "mnist": Source(
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        (
            File("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb"),
            File("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624"),
            File("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea"),
            File("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637"),
        ),
        _read_mnist,
    ),
    "fashion-mnist": Source(
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
        (
            File("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d", "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
            File("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe", "9018921c3c673c538a1fc5bad174d6f9"),
            File("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79", "8181f5470baa50b63fa0f6fddb340f0a"),
            File("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310", "15d484375f8d13e6eb1aabb0c3f46965"),
        ),
        _read_mnist,
    ),
    "cifar10": Source(
        ("https://www.cs.toronto.edu/~kriz/",),
        (
            File("cifar-10-batches-py/data_batch_1", "c99cafc152244af753f735de768cd75f"),
            File("cifar-10-batches-py/data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec"),
            File("cifar-10-batches-py/data_batch_3", "54ebc095f3ab1f0389bbae665268c751"),
            File("cifar-10-batches-py/data_batch_4", "634d18415352ddfa80567beed471001a"),
            File("cifar-10-batches-py/data_batch_5", "482c414d41f54cd18b22e5b47cb7c3cb"),
            File("cifar-10-batches-py/test_batch", "40351d587109b95175f43aff81a1287e"),
        ),
        _read_cifar10,
        File("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),
    ),
    "cifar100": Source(
        ("https://www.cs.toronto.edu/~kriz/",),
        (
            File("cifar-100-python/train", "16019d7e3df5f24257cddd939b257f8d"),
            File("cifar-100-python/test", "f0ef6b0ae62326f3e7ffdfab6717acfc"),
        ),
        _read_cifar100,
        File("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),
    ),
}


def _directory(name: str, root: Path) -> Path:
    """The directory that has all files of a data set, verified; fetched if they are missing."""
    source, own = SOURCES[name], root / name
    if _missing(source, own):
        if not _missing(source, root):
            fitting = [_fits((root / file.name).read_bytes(), file) for file in source.files]
            if any(fitting):  # else they are of another data set, with the same names
                for file in source.files:
                    _check(root / file.name, file)
                return root
        _fetch(name, own)
    for file in source.files:
        _check(own / file.name, file)
    return own


def _missing(source: Source, directory: Path) -> list[File]:
    return [file for file in source.files if not (directory / file.name).is_file()]


def _check(path: Path, file: File) -> None:
    raw = path.read_bytes()
    if not _fits(raw, file):
        raise DataError(
            f"{path} is damaged or another file: its {len(raw)} bytes have the md5 {_md5(raw)}, not {file.md5}. "
            "Delete it to have it fetched again, or replace it"
        )


def _fits(raw: bytes, file: File) -> bool:
    if _md5(raw) == file.md5:
        return True
    if file.content is None:
        return False
    try:
        return _md5(gzip.decompress(raw)) == file.content
    except BROKEN_GZIP:
        return False


def _md5(raw: bytes) -> str:
    return hashlib.md5(raw, usedforsecurity=False).hexdigest()


def _fetch(name: str, directory: Path) -> None:
    """Put the files of a data set that are missing into its directory, each at once and whole."""
    source, pooch = SOURCES[name], _module("pooch")
    made = [place for place in (directory, *directory.parents) if not place.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with FileLock(directory / ".lock"), _removing(directory, made):
            missing = _missing(source, directory)  # again: another process may have fetched them meanwhile
            if missing and source.archive:
                _fetch_archive(pooch, source, source.archive, missing, directory)
            else:
                for file in missing:
                    _retrieve(pooch, source, file, directory)
    except OSError as error:
        raise _unavailable(name, directory, error.strerror or str(error), made[1:]) from None


@contextmanager
def _removing(directory: Path, made: list[Path]) -> Iterator[None]:
    """Leave no empty directories behind a failure: somebody may have mistyped a name."""
    try:
        yield
    except BaseException:
        if made and set(os.listdir(directory)) <= {".lock"}:
            with suppress(OSError):  # another process has begun to use them
                (directory / ".lock").unlink(missing_ok=True)
                for place in made:
                    place.rmdir()
        raise


def _fetch_archive(pooch: Any, source: Source, archive: File, files: list[File], directory: Path) -> None:
    with tempfile.TemporaryDirectory(dir=directory) as temporary:
        path = directory / archive.name
        if path.is_file():
            _check(path, archive)
        else:
            path = _retrieve(pooch, source, archive, Path(temporary))
        _unpack(path, files, directory, Path(temporary))


def _retrieve(pooch: Any, source: Source, file: File, directory: Path) -> Path:
    failures = []
    for mirror in source.mirrors:
        url = mirror + file.name
        try:
            return Path(pooch.retrieve(url, known_hash=f"md5:{file.md5}", fname=file.name, path=directory))
        except (OSError, ValueError) as error:
            failures.append(f"{url}: {_in_short(error)}")
    raise ConnectionError("; ".join(failures))


def _in_short(error: OSError | ValueError) -> str:
    """What failed in a few words; those of the network have hundreds."""
    if not isinstance(error, OSError):
        return "not the file expected, by its md5"
    status = getattr(getattr(error, "response", None), "status_code", None)
    return error.strerror or (f"status {status}" if status else type(error).__name__)


def _unpack(archive: Path, files: Iterable[File], directory: Path, temporary: Path) -> None:
    wanted = {file.name for file in files}
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.name in wanted and member.isfile():
                target, part = directory / member.name, temporary / "part"
                content = tar.extractfile(member)
                assert content is not None
                with part.open("wb") as out:
                    shutil.copyfileobj(content, out)
                target.parent.mkdir(exist_ok=True)
                part.replace(target)


def _unavailable(name: str, directory: Path, why: str, made: list[Path]) -> DataError:
    source = SOURCES[name]
    files = ", ".join(file.name for file in _missing(source, directory))
    wanted = f"{source.archive.name}, or from it {files}" if source.archive else files
    return DataError(
        f"{name} is not in {directory}{f' (there is no {made[-1]})' if made else ''} and cannot be fetched into it "
        f"({why}).\n"
        f"Put there {wanted}, which can be had from {source.mirrors[0]}, or let --data or NEUROGENESIS_DATA name a "
        f"directory with {name}/ that has them."
    )
