"""The presets: a data set, a network, and the defaults of all settings.

The numbers are from the paper's table. Where the authors' program differs, they are from the program: the learning
rate on MNIST, and the scale of the gradient trigger.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Any, Literal, get_args

from ..defaults import GAMMA, GAMMA_CONVOLUTIONAL, GAMMA_WEIGHT
from .errors import UsageError, unknown_name
from .settings import PRESET, Convolutional, Deep, Dense, Language, Residual, Settings
from .shapes import SHAPES

Table = Literal["diabetes", "cancer", "wine", "friedman1", "friedman2", "friedman3", "digits", "random"]


@dataclass(frozen=True, kw_only=True)
class Digits(Dense):
    """Handwritten digits of 8 x 8 pixels, included in scikit-learn: no download, under a minute."""

    name = "digits"
    data = "digits"
    needs_files = False
    epochs: int = 24
    batch: int = 64
    learning_rate: float = 1e-2
    buffer: int = 1024
    initial: int = 4
    medium: int = 32
    maximum: int = 64


@dataclass(frozen=True, kw_only=True)
class Generated(Dense):
    """Generated data: two classes by the sum of 64 features, some of which are independent."""

    name = "generated"
    data = "generated"
    needs_files = False
    features: int = 16
    """Number of independent features; the others are linear combinations of them."""
    hidden: int = 1
    """Number of hidden layers: 1 or 2 in the paper."""
    epochs: int | None = None  # type: ignore[assignment]
    """Passes through the training data; by default 20 + 4 times the independent features, for each hidden layer."""
    buffer: int = 1024
    initial: int = 4
    medium: int = 64
    maximum: int = 512

    def __post_init__(self) -> None:
        if not 1 <= self.features <= 64:
            raise UsageError(f"--features: expected 1 to 64, not {self.features}")
        if self.epochs is None and self.hidden > 0:
            object.__setattr__(self, "epochs", self.usual_epochs)
        super().__post_init__()

    @property
    def usual_epochs(self) -> int:
        return (20 + 4 * self.features) * self.hidden


@dataclass(frozen=True, kw_only=True)
class Tabular(Dense):
    """Small tables of scikit-learn, for classification or regression, with early stopping."""

    name = "tabular"
    data = "tabular"
    needs_files = False
    steps_between_tests = 20
    patience = 2.5
    table: Table = "diabetes"
    """The table; the targets of random are unrelated to its inputs."""
    epochs: int | None = None  # type: ignore[assignment]
    """Maximum passes through the training data; by default for about 3,000 gradient steps."""
    batch: int = 32
    learning_rate: float = 3e-3
    initial: int = 16
    medium: int = 64
    maximum: int = 1024

    def __post_init__(self) -> None:
        if self.data_set not in SHAPES:
            raise unknown_name("table", self.table, get_args(Table))
        if self.epochs is None and self.batch > 0:
            object.__setattr__(self, "epochs", self.usual_epochs)
        super().__post_init__()

    @property
    def data_set(self) -> str:
        return f"{self.data}/{self.table}"

    @property
    def usual_epochs(self) -> int:
        return round(3000 / math.ceil(SHAPES[self.data_set][0] / self.batch))


@dataclass(frozen=True, kw_only=True)
class Mnist(Dense):
    """Two hidden layers on the handwritten digits of MNIST."""

    name = "mnist"
    data = "mnist"
    batch: int = 512
    learning_rate: float = 3e-3
    buffer: int = 1568


@dataclass(frozen=True, kw_only=True)
class FashionMnist(Mnist):
    """Two hidden layers on the clothes of Fashion-MNIST."""

    name = "fashion-mnist"
    data = "fashion-mnist"


@dataclass(frozen=True, kw_only=True)
class Vgg11Cifar10(Convolutional):
    """VGG-11 on CIFAR-10; needs a GPU."""

    name = "vgg11-cifar10"
    data = "cifar10"
    network = "vgg11"


@dataclass(frozen=True, kw_only=True)
class Vgg11Cifar100(Vgg11Cifar10):
    """VGG-11 on CIFAR-100; needs a GPU."""

    name = "vgg11-cifar100"
    data = "cifar100"


@dataclass(frozen=True, kw_only=True)
class Wrn28Cifar10(Residual):
    """WRN-28 on CIFAR-10, with one width per group of blocks; needs a GPU."""

    name = "wrn28-cifar10"
    data = "cifar10"
    network = "wrn28"
    stacks = ("group1", "group2", "group3")
    epochs: int = 50
    learning_rate: float = 3e-3
    maximum: float = 6.0


@dataclass(frozen=True, kw_only=True)
class Vgg11Cifar10Small(Vgg11Cifar10):
    """VGG-11 on a part of CIFAR-10, narrow and for few epochs: up to half an hour on two cores."""

    name = "vgg11-cifar10-small"
    epochs: int = 10
    initial: float = 0.0625
    medium: float = 0.25
    maximum: float = 0.5
    images: int | None = 10_000
    test_images: int | None = 2000


@dataclass(frozen=True, kw_only=True)
class Vgg11Cifar100Small(Vgg11Cifar10Small):
    """VGG-11 on a part of CIFAR-100, narrow and for few epochs: up to half an hour on two cores."""

    name = "vgg11-cifar100-small"
    data = "cifar100"


@dataclass(frozen=True, kw_only=True)
class Wrn28Cifar10Small(Wrn28Cifar10):
    """WRN-28 on a part of CIFAR-10, narrow and for few epochs: up to half an hour on two cores."""

    name = "wrn28-cifar10-small"
    epochs: int = 5
    initial: float = 0.125
    maximum: float = 1.0
    medium: float = 0.5
    images: int | None = 10_000
    test_images: int | None = 2000


@dataclass(frozen=True, kw_only=True)
class Wrn28Cifar10SmallLong(Wrn28Cifar10Small):
    """WRN-28 on a part of CIFAR-10 for three times as many epochs: up to two hours on two cores."""

    name = "wrn28-cifar10-small-long"
    epochs: int = 15


@dataclass(frozen=True, kw_only=True)
class GptStdlib(Language):
    """A small causal transformer, character by character, on the sources of Python's standard library: some minutes."""

    name = "gpt-stdlib"
    data = "stdlib"
    needs_files = False


PRESETS: dict[str, type[Settings]] = {
    preset.name: preset
    for preset in (
        Digits, Generated, Tabular, Mnist, FashionMnist, Vgg11Cifar10, Vgg11Cifar100, Wrn28Cifar10,
        Vgg11Cifar10Small, Vgg11Cifar100Small, Wrn28Cifar10Small, Wrn28Cifar10SmallLong, GptStdlib,
    )
}  # fmt: skip

NAMES = SimpleNamespace(
    preset=PRESET, **{field.name: field.name for preset in PRESETS.values() for field in fields(preset)}
)
"""The name of every setting of every preset: `NAMES.gamma` is "gamma"."""
DEFAULTS: dict[str, Any] = {
    field.name: field.default
    for kind in (*PRESETS.values(), Language, Residual, Convolutional, Deep, Dense, Settings)
    for field in fields(kind)
}
"""The default of every setting, for records of unknown presets."""
GROWTH_SETTINGS: tuple[str, ...] = (
    NAMES.schedule, NAMES.gamma, NAMES.metric, NAMES.scale, NAMES.least, NAMES.every, NAMES.ages, NAMES.margin,
    NAMES.prune, NAMES.buffer, NAMES.at, NAMES.hops, NAMES.initial_blocks, NAMES.final_heads, NAMES.final_neurons,
    NAMES.max_parameters, NAMES.max_flops,
)  # fmt: skip
"""Settings that have no effect on static networks."""


def settings_from(record: dict[str, Any]) -> Settings:
    """Settings from the content of settings.json."""
    preset = PRESETS[record[PRESET]]
    return preset(**{field.name: record[field.name] for field in fields(preset) if field.name in record})


def default_gamma(strategy: str, convolutional: bool) -> float:
    """The gamma of a strategy's trigger, where none is set."""
    if strategy == "north-weight":
        return GAMMA_WEIGHT
    return GAMMA_CONVOLUTIONAL if convolutional else GAMMA
