"""Text as characters to predict: the sources of Python's standard library, or any file."""

from __future__ import annotations

import hashlib
import sysconfig
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from .samples import Data, DataError

LEAST = 32  # occurrences in the training part that give a character an entry of its own
TESTED = 512  # windows of the validation or test part, spread evenly over it
TEST_OF, TEST_AT, VALIDATION_AT = 20, 9, 19  # files by number, modulo the first


@dataclass(frozen=True)
class Text:
    """A text, divided into training, validation and test part."""

    train: str
    validation: str
    test: str

    @property
    def digest(self) -> str:
        """A digest of all parts: texts with the same one are the same."""
        content = "\0".join((self.train, self.validation, self.test)).encode("utf-8", "surrogatepass")
        return hashlib.sha256(content).hexdigest()[:16]


def standard_library(directory: Path | None = None) -> Text:
    """The modules of Python's standard library that are files of their own, in the order of their names.

    Of twenty files one is for validation and one for testing. The library differs between versions of Python: compare
    results of equal digests only.

    Args:
        directory: of the files; by default that of the running Python.
    """
    directory = Path(sysconfig.get_path("stdlib")) if directory is None else directory
    # _sysconfigdata is written when Python is built, and holds the paths and options of that machine.
    paths = sorted(path for path in directory.glob("*.py") if not path.name.startswith("_sysconfigdata"))
    if len(paths) < TEST_OF:
        raise DataError(
            f"{directory} has {len(paths)} modules of Python's standard library as source: pass a text with --text"
        )
    parts: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    for number, path in enumerate(paths):
        part = {TEST_AT: "test", VALIDATION_AT: "validation"}.get(number % TEST_OF, "train")
        parts[part].append(_read(path))
    return Text(**{name: "".join(texts) for name, texts in parts.items()})


def text_file(path: Path) -> Text:
    """A file in UTF-8; its last tenth is for validation and testing."""
    content = _read(path)
    if "\0" in content:
        raise DataError(f"{path} is no text: it has NUL characters")
    first, second = len(content) * 90 // 100, len(content) * 95 // 100
    return Text(content[:first], content[first:second], content[second:])


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is no text in UTF-8: {error}") from None


def windows(text: Text, length: int, validation: bool = False) -> Data:
    """Windows of a text, each with the same window one character later as its target.

    A character is the number of its entry in the vocabulary: those that are frequent enough in the training part, in
    order, then one for all others.

    Args:
        text: the text.
        length: characters in a window.
        validation: whether to test on the validation part.

    Example:
        >>> data = windows(Text("ab" * 100, "", "abcabc"), length=5)
        >>> data.classes, data.test[0].tolist(), data.test[1].tolist()
        (3, [[0, 1, 2, 0, 1]], [[1, 2, 0, 1, 2]])
    """
    vocabulary = frequent(text.train)
    if not vocabulary:
        raise DataError(f"no character occurs {LEAST} times in the training part of the text: it is too short")
    train = _windows(text.train, vocabulary, length, "training")
    name, tested = ("validation", text.validation) if validation else ("test", text.test)
    inputs, targets = _windows(tested, vocabulary, length, name)
    chosen = torch.arange(0, len(inputs), max(1, len(inputs) // TESTED))[:TESTED]
    return Data(train, (inputs[chosen], targets[chosen]), classes=len(vocabulary) + 1, digest=text.digest)


def frequent(text: Iterable[str]) -> list[str]:
    """The characters that occur often enough, in the order of their code points.

    Example:
        >>> frequent("b" * 40 + "a" * 32 + "c" * 31)
        ['a', 'b']
    """
    return sorted(character for character, count in Counter(text).items() if count >= LEAST)


def _windows(text: str, vocabulary: Sequence[str], length: int, name: str) -> tuple[Tensor, Tensor]:
    if len(text) <= length:
        raise DataError(f"the {name} part of the text has {len(text)} characters: more than {length} are needed")
    entries = {character: number for number, character in enumerate(vocabulary)}
    numbers = torch.tensor([entries.get(character, len(vocabulary)) for character in text])
    both = numbers.unfold(0, length + 1, length)
    return both[:, :-1], both[:, 1:]
