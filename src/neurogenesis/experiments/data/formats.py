"""File formats: idx files of MNIST and Fashion-MNIST, pickled batches of CIFAR."""

from __future__ import annotations

import gzip
import math
import pickle
import struct
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .samples import Data, DataError

GZIP_ERRORS = (gzip.BadGzipFile, EOFError, zlib.error)


def read_mnist(directory: Path) -> Data:
    """MNIST or Fashion-MNIST: flat images with values from 0 to 1."""

    def split(name: str) -> tuple[Tensor, Tensor]:
        images = read_idx(directory / f"{name}-images-idx3-ubyte.gz")
        return _floats(images.flatten(1)), read_idx(directory / f"{name}-labels-idx1-ubyte.gz").long()

    return Data(split("train"), split("t10k"), classes=10)


def read_cifar10(directory: Path) -> Data:
    """CIFAR-10: images of 3 x 32 x 32 with values from 0 to 1."""

    def split(*batches: str) -> tuple[Tensor, Tensor]:
        parts = [read_cifar(directory / "cifar-10-batches-py" / batch, "labels") for batch in batches]
        return _floats(torch.cat([images for images, _ in parts])), torch.cat([labels for _, labels in parts])

    return Data(split(*(f"data_batch_{i}" for i in range(1, 6))), split("test_batch"), classes=10)


def read_cifar100(directory: Path) -> Data:
    """CIFAR-100: images of 3 x 32 x 32 with values from 0 to 1."""

    def split(name: str) -> tuple[Tensor, Tensor]:
        images, labels = read_cifar(directory / "cifar-100-python" / name, "fine_labels")
        return _floats(images), labels

    return Data(split("train"), split("test"), classes=100)


def _floats(images: Tensor) -> Tensor:
    return images.float().div_(255)


def read_idx(path: Path) -> Tensor:
    """The bytes of a gzip-compressed idx file as a tensor.

    The format: two zero bytes, 8 for the type byte, the number of dimensions, each dimension as a big-endian 32-bit
    integer, then the data.
    """
    try:
        raw = gzip.decompress(path.read_bytes())
    except GZIP_ERRORS as error:
        raise DataError(f"{path} is not a complete gzip file: {error}") from error
    if raw[:3] != b"\0\0\x08" or len(raw) < 4 * (1 + raw[3]):
        raise DataError(f"{path} is not an idx file of bytes: it starts with {raw[:4].hex(' ') or 'nothing'}")
    start = 4 * (1 + raw[3])
    shape = struct.unpack(f">{raw[3]}I", raw[4:start])
    if len(raw) - start != math.prod(shape):
        raise DataError(f"{path} has {len(raw) - start} bytes of data for the shape {shape}")
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)[start:].reshape(shape)


def read_cifar(path: Path, label_key: str) -> tuple[Tensor, Tensor]:
    """The images (bytes of n x 3 x 32 x 32) and labels of a pickled batch of CIFAR."""
    try:
        with path.open("rb") as file:
            batch = _ArrayUnpickler(file, encoding="bytes").load()
        images, labels = torch.from_numpy(batch[b"data"]), torch.tensor(batch[label_key.encode()])
    except OSError:
        raise
    except Exception as error:  # a damaged pickle can raise anything
        raise DataError(f"{path} is not a batch of CIFAR with {label_key}: {error}") from error
    if images.dtype != torch.uint8 or images.shape != (len(labels), 3 * 32 * 32):
        raise DataError(f"{path} has {images.dtype} of shape {tuple(images.shape)} for {len(labels)} images")
    return images.reshape(-1, 3, 32, 32), labels


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickles arrays, strings and numbers, and refuses to call anything else."""

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
            raise pickle.UnpicklingError(f"it calls {module}.{name}, which a data set does not need")
        return super().find_class(module, name)
