"""Data sets as tensors: `load` finds, downloads, verifies and reads one; `generated` and `table` make one; `windows`
cuts one out of a text.

Files are searched for in a directory: the argument `root`, else the environment variable NEUROGENESIS_DATA, else the
user's cache. Each data set has its own subdirectory, with the original files:

    mnist/ and fashion-mnist/       {train,t10k}-{images-idx3,labels-idx1}-ubyte.gz
    cifar10/cifar-10-batches-py/    data_batch_1 to data_batch_5, test_batch
    cifar100/cifar-100-python/      train, test

The files may also be in the directory itself, as torchvision and packages of Linux distributions store them.
"""

from .formats import read_cifar, read_idx
from .generator import generated
from .loading import download, load, names
from .samples import Data, DataError
from .sources import SOURCES, File, Source
from .tables import divided, table
from .text import Text, standard_library, text_file, windows

__all__ = [
    "SOURCES",
    "Data",
    "DataError",
    "File",
    "Source",
    "Text",
    "divided",
    "download",
    "generated",
    "load",
    "names",
    "read_cifar",
    "read_idx",
    "standard_library",
    "table",
    "text_file",
    "windows",
]
