"""Settings of the experiments: one dataclass per preset, which is also its command line.

The numbers are those of the paper's table; where its authors' program differs, the program's (the learning rate on
MNIST, the scale of the gradient trigger). Nothing here needs torch, so that the command's help is quick.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal

from .errors import Mistake

SIZES = {"small": "initial", "medium": "medium", "big": "maximum"}
"""The setting that gives each static network its size."""
STATIC = tuple(SIZES)
Schedule = Literal["dynamic", "linear", "batched"]
Metric = Literal["effective_dimension", "orthogonality"]
Decay = Literal["none", "cosine"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What every experiment has; a preset sets the defaults."""

    name: ClassVar[str]
    data: ClassVar[str]
    needs_files: ClassVar[bool] = True

    strategy: str = "north-select"
    """What grows the network: a strategy's name (north-select, north-pre, north-random, north-weight,
    north-integrated, gradmax, firefly, nest), or a network that does not grow: small (the initial size),
    medium or big (the maximum)."""
    schedule: Schedule = "dynamic"
    """When to grow: as the strategy's trigger says (dynamic), or its initialization only, on a fixed schedule up to
    the medium size over the first 75 % of training, neuron by neuron (linear) or in 8 parts (batched)."""
    seed: int = 1
    """Of weights, order of samples, growth, and generated data."""
    epochs: int = 20
    """Passes through the training data."""
    batch: int = 128
    """Samples of a gradient step."""
    learning_rate: float = 3e-4
    """Of Adam."""
    decay: Decay = "none"
    """How the learning rate falls: not, or to 0 along a cosine over the whole training."""
    gamma: float | None = None
    """Factor of the trigger's baseline: growth goes on while the metric is above gamma times the baseline. By
    default 0.97 for activations (0.9 with convolutions) and 0.99 for weights."""
    metric: Metric = "effective_dimension"
    """What the activations' trigger and the selection of candidates measure."""
    scale: float = 0.5
    """Factor of the gradient trigger's threshold: 0.5 in the authors' program, 1 in the paper."""
    least: bool = False
    """Keep the least orthogonal candidates, as the authors' program does for dense layers: an ablation of
    north-select."""
    every: int | None = None
    """Look at the network at every so many gradient steps. By default at every step while it grows, and less often, at
    least at every twelfth, while it does not; fixed schedules look at each."""
    ages: bool = True
    """Train new weights as if training had just begun for them; without, Adam moves them up to 6.5 times too far, as in
    the paper."""
    margin: bool = True
    """Balance random fan-in, and make it longer than that of the first neurons, by as much as one gradient can move it;
    without, it is as long as that of present ones, as in the paper."""
    buffer: int = 128
    """Latest samples that activations are measured on, by strategies that look at them."""
    holdout: float = 0.0
    """Part of the training split to hold out; accuracy is measured there instead of on the test split."""
    initial: float = 0.25
    """Size of the network at the start, and of small static ones."""
    medium: float = 1.0
    """Size at the end of schedules, and of medium static networks."""
    maximum: float = 2.0
    """Size that the network may have, and that of big static ones."""

    def __post_init__(self) -> None:
        for name, number in asdict(self).items():
            if name in _POSITIVE and number is not None and not 0 < number < math.inf:
                raise Mistake(f"--{name.replace('_', '-')}: expected a positive number, not {number}")
        if not 0 <= self.holdout < 1:
            raise Mistake(f"--holdout: expected a part from 0 to below 1, not {self.holdout}")
        if not self.sizes["small"] <= self.sizes["medium"] <= self.sizes["big"]:
            told = ", ".join(f"{size:g}" for size in self.sizes.values())
            raise Mistake(f"--initial, --medium and --maximum: expected to rise, not {told}")
        if self.static and self.schedule != "dynamic":
            raise Mistake(f"--schedule {self.schedule}: a {self.strategy} network does not grow; choose a strategy")

    @property
    def sizes(self) -> dict[str, float]:
        """The sizes of static networks: the initial one, the final one of schedules, and the maximum."""
        return {name: getattr(self, setting) for name, setting in SIZES.items()}

    @property
    def size(self) -> float:
        """The size that the network begins with."""
        return self.sizes[self.strategy if self.static else "small"]

    @property
    def static(self) -> bool:
        """Whether the network never grows."""
        return self.strategy in STATIC

    def record(self) -> dict[str, Any]:
        """All settings as plain values, with the preset's name."""
        return {"preset": self.name, **asdict(self)}

    @property
    def label(self) -> str:
        """A short name that tells these settings from others of the preset: what is not the default, and the seed."""
        usual = type(self)()
        parts = [self.strategy, *([self.schedule] if self.schedule != "dynamic" else [])]
        for name, value in asdict(self).items():
            default = self.usual_epochs if name == "epochs" else getattr(usual, name)
            if name not in ("strategy", "schedule", "seed") and value != default:
                parts.append(name.replace("_", "-") + ("" if value is True else f"-{value}"))
        return "-".join([*parts, f"seed{self.seed}"])

    @property
    def usual_epochs(self) -> int:
        """The preset's passes through the training data."""
        return type(self)().epochs


_POSITIVE = (
    "epochs", "batch", "learning_rate", "gamma", "scale", "every", "buffer", "initial", "medium", "maximum", "hidden",
    "images", "test_images",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Dense(Settings):
    """A network of dense hidden layers of the same number of neurons."""

    initial: int = 64
    """Neurons of a hidden layer at the start."""
    medium: int = 256
    """Neurons of a hidden layer at the end of schedules."""
    maximum: int = 784
    """Neurons that a hidden layer may have."""
    hidden: int = 2
    """Hidden layers."""


@dataclass(frozen=True, kw_only=True)
class Digits(Dense):
    """Handwritten digits of 8 x 8 pixels that come with scikit-learn: no network needed, under a minute."""

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
    """Generated data: two classes by the sum of 64 features, of which some are independent."""

    name = "generated"
    data = "generated"
    needs_files = False
    features: int = 16
    """Independent features; the others are linear combinations of them."""
    hidden: int = 1
    """Hidden layers, 1 or 2 in the paper."""
    epochs: int | None = None  # type: ignore[assignment]
    """Passes through the training data; by default (20 + 4 features) per hidden layer."""
    buffer: int = 1024
    initial: int = 4
    medium: int = 64
    maximum: int = 512

    def __post_init__(self) -> None:
        if not 1 <= self.features <= 64:
            raise Mistake(f"--features: expected 1 to 64, not {self.features}")
        if self.epochs is None and self.hidden > 0:
            object.__setattr__(self, "epochs", self.usual_epochs)
        super().__post_init__()

    @property
    def usual_epochs(self) -> int:
        return (20 + 4 * self.features) * self.hidden


@dataclass(frozen=True, kw_only=True)
class Mnist(Dense):
    """Two hidden layers on MNIST's handwritten digits."""

    name = "mnist"
    data = "mnist"
    batch: int = 512
    learning_rate: float = 3e-3
    buffer: int = 1568


@dataclass(frozen=True, kw_only=True)
class FashionMnist(Mnist):
    """Two hidden layers on Fashion-MNIST's pieces of clothing."""

    name = "fashion-mnist"
    data = "fashion-mnist"


@dataclass(frozen=True, kw_only=True)
class Convolutional(Settings):
    """A convolutional network whose widths are multiples of its standard ones."""

    network: ClassVar[str]

    epochs: int = 100
    decay: Decay = "cosine"
    initial: float = 0.25
    """Widths at the start, times the standard ones."""
    medium: float = 1.0
    """Widths at the end of schedules, times the standard ones."""
    maximum: float = 2.0
    """Widths that layers may have, times the standard ones."""
    images: int | None = None
    """Only the first so many images of the training split."""
    test_images: int | None = None
    """Only the first so many images of the test split."""


@dataclass(frozen=True, kw_only=True)
class Vgg11Cifar10(Convolutional):
    """VGG-11 on CIFAR-10's small images; takes a GPU."""

    name = "vgg11-cifar10"
    data = "cifar10"
    network = "vgg11"


@dataclass(frozen=True, kw_only=True)
class Vgg11Cifar100(Vgg11Cifar10):
    """VGG-11 on CIFAR-100's small images; takes a GPU."""

    name = "vgg11-cifar100"
    data = "cifar100"


@dataclass(frozen=True, kw_only=True)
class Wrn28Cifar10(Convolutional):
    """WRN-28 on CIFAR-10's small images, its widths tied by groups; takes a GPU."""

    name = "wrn28-cifar10"
    data = "cifar10"
    network = "wrn28"
    epochs: int = 50
    learning_rate: float = 3e-3
    maximum: float = 6.0


@dataclass(frozen=True, kw_only=True)
class Vgg11Cifar10Small(Vgg11Cifar10):
    """VGG-11 on some of CIFAR-10's images, narrow and for few epochs: half an hour at most on two cores."""

    name = "vgg11-cifar10-small"
    epochs: int = 10
    initial: float = 0.0625
    medium: float = 0.25
    maximum: float = 0.5
    images: int | None = 10_000
    test_images: int | None = 2000


@dataclass(frozen=True, kw_only=True)
class Vgg11Cifar100Small(Vgg11Cifar10Small):
    """VGG-11 on some of CIFAR-100's images, narrow and for few epochs: half an hour at most on two cores."""

    name = "vgg11-cifar100-small"
    data = "cifar100"


@dataclass(frozen=True, kw_only=True)
class Wrn28Cifar10Small(Wrn28Cifar10):
    """WRN-28 on some of CIFAR-10's images, narrow and for few epochs: half an hour at most on two cores."""

    name = "wrn28-cifar10-small"
    epochs: int = 5
    initial: float = 0.125
    maximum: float = 1.0
    medium: float = 0.5
    images: int | None = 10_000
    test_images: int | None = 2000


PRESETS: dict[str, type[Settings]] = {
    preset.name: preset
    for preset in (
        Digits, Generated, Mnist, FashionMnist, Vgg11Cifar10, Vgg11Cifar100, Wrn28Cifar10,
        Vgg11Cifar10Small, Vgg11Cifar100Small, Wrn28Cifar10Small,
    )
}  # fmt: skip


def settings_from(record: dict[str, Any]) -> Settings:
    """Settings from their record."""
    preset = PRESETS[record["preset"]]
    return preset(**{field.name: record[field.name] for field in fields(preset) if field.name in record})
