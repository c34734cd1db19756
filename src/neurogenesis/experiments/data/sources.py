"""The files of each data set: names, checksums, and where to download them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .formats import read_cifar10, read_cifar100, read_mnist
from .samples import Data


@dataclass(frozen=True)
class File:
    """A file, by its path in the data set's directory.

    `content_md5` is the checksum of the decompressed content: Linux distributions recompress files.
    """

    name: str
    md5: str
    content_md5: str | None = None


@dataclass(frozen=True)
class Source:
    """A data set: its files, the base URLs of the files or of an archive of them, and the function that reads them."""

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
        read_mnist,
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
        read_mnist,
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
        read_cifar10,
        File("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),
    ),
    "cifar100": Source(
        ("https://www.cs.toronto.edu/~kriz/",),
        (
            File("cifar-100-python/train", "16019d7e3df5f24257cddd939b257f8d"),
            File("cifar-100-python/test", "f0ef6b0ae62326f3e7ffdfab6717acfc"),
        ),
        read_cifar100,
        File("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),
    ),
}
