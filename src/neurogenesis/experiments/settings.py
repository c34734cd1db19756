"""Settings of a run, which are also the options of its command: what all presets have, and what each kind adds.

The help of an option is the string below it. Nothing here imports torch: the command's help must be quick.
"""

# Annotations are evaluated here, not postponed: cyclopts reads those of presets, in whose module names may be missing.
import math
import re
from dataclasses import asdict, dataclass, replace
from pathlib import PurePath
from typing import Any, ClassVar, Literal

from ..defaults import STRATEGY
from .errors import UsageError

SIZES = {"small": "initial", "medium": "medium", "big": "maximum"}
"""The setting that gives the size of each static network with a name."""
SHAPED = "static"
"""The static network of any shape."""
STATIC = (*SIZES, SHAPED)
DEEPENING: dict[str, Literal["zero", "copy", "random"]] = {
    "deepen-zero": "zero",
    "deepen-copy": "copy",
    "deepen-random": "random",
}
"""How new blocks begin, by the name of the strategy that adds them."""
PRESET = "preset"
"""The preset's name in settings.json."""
Schedule = Literal["dynamic", "linear", "batched"]
Metric = Literal["effective_dimension", "orthogonality"]
Decay = Literal["none", "cosine", "final"]
_STRATEGY, _SCHEDULE, _OF_SHAPES = "strategy", "schedule", ("shape", "shape_of")
_OPTIONAL = (*_OF_SHAPES, "max_parameters", "max_flops", "final_heads", "final_neurons")


def _is_shape(text: str) -> bool:
    """Whether a text is a positive size or several whole ones.

    Example:
        >>> _is_shape("0.25"), _is_shape("183-275"), _is_shape("16-0.5"), _is_shape("16-0")
        (True, True, False, False)
    """
    numbers = text.split("-")
    form = r"\d+" if len(numbers) > 1 else r"\d*\.?\d+"
    return all(re.fullmatch(form, number, re.ASCII) and float(number) > 0 for number in numbers)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of every run; presets set the defaults."""

    name: ClassVar[str]
    data: ClassVar[str]
    needs_files: ClassVar[bool] = True
    steps_between_tests: ClassVar[int] = 1
    """The network is tested, and the run saved, after an epoch; of small data, after several of at least so many steps
    together."""
    patience: ClassVar[float | None] = None
    """Training may end before the last epoch: after 300 steps and so many times those until the lowest test loss."""

    strategy: str = STRATEGY
    """How the network grows: the name of a strategy (need, north-select, north-pre, north-opt, north-random,
    north-weight, north-integrated, gradmax, firefly, nest), or of a static network: small (the initial size), medium,
    big (the maximum) or static (of any shape)."""
    schedule: Schedule = "dynamic"
    """When the network grows: when the strategy's trigger says so (dynamic), or on a fixed schedule that only uses the
    strategy's initialization and reaches the medium size after 75 % of training, neuron by neuron (linear) or in 8
    parts (batched)."""
    seed: int = 1
    """Seed of the weights, the order of samples, growth, and generated data."""
    epochs: int = 20
    """Passes through the training data."""
    batch: int = 128
    """Samples per gradient step."""
    learning_rate: float = 3e-4
    """Learning rate of Adam."""
    decay: Decay = "none"
    """Decay of the learning rate: none, to 0 along a cosine over the whole training, or in a straight line over its
    last fifth (final)."""
    gamma: float | None = None
    """Factor of the trigger's baseline: the network grows while the metric is above gamma times the baseline. By
    default that of the strategy's trigger."""
    metric: Metric = "effective_dimension"
    """What the trigger on activations and the selection of candidates measure."""
    scale: float = 0.5
    """Factor of the gradient trigger's threshold: 0.5 in the authors' program, 1 in the paper."""
    least: bool = False
    """Keep the least orthogonal candidates, as the authors' program does for dense layers: an ablation of
    north-select."""
    every: int | None = None
    """Gradient steps from one look at the network to the next. By default every step while it grows, and up to every
    twelfth while it does not; fixed schedules look at every step."""
    ages: bool = True
    """Treat new weights in Adam as if training had just started for them. Without it, Adam moves them up to 6.5 times
    too far, as in the paper."""
    margin: bool = True
    """Balance random fan-ins, and make them longer than those of the initial neurons by as much as one gradient step
    can move them; Firefly's halves have fan-outs that differ, and GradMax's neurons a fan-in. Without it, all that is
    as in the paper: fan-ins as long as those of present neurons, equal halves, no fan-in."""
    prune: bool = False
    """Drop neurons that have died: on the latest samples they give the next layers a constant."""
    buffer: int = 128
    """Number of recent samples to measure activations on, for strategies that use them."""
    holdout: float = 0.0
    """Fraction of the training split to hold out and measure accuracy on, instead of the test split."""
    initial: float = 0.25
    """Size of the network at the start, and of the small static one."""
    medium: float = 1.0
    """Size at the end of fixed schedules, and of the medium static network."""
    maximum: float = 2.0
    """Maximum size of the network, and size of the big static one."""
    max_parameters: int | None = None
    """Maximum number of parameters of a network that grows, or of those that a search chooses from."""
    max_flops: int | None = None
    """Maximum number of floating-point operations of its forward pass, for one sample."""
    shape: str | None = None
    """Sizes of a static network: one for all layers, or the number of neurons of each layer, such as 183-275."""
    shape_of: str | None = None
    """The strategy that grew the shape, for the report."""

    def __post_init__(self) -> None:
        unbounded = {"seed", "holdout"}
        for name, value in asdict(self).items():
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if number and name not in unbounded and not 0 < value < math.inf:
                raise UsageError(f"--{name.replace('_', '-')}: expected a positive number, not {value}")
        if not 0 <= self.holdout < 1:
            raise UsageError(f"--holdout: expected a fraction of at least 0 and less than 1, not {self.holdout}")
        if not self.sizes["small"] <= self.sizes["medium"] <= self.sizes["big"]:
            given = ", ".join(f"{size:g}" for size in self.sizes.values())
            raise UsageError(f"--initial, --medium and --maximum: expected increasing sizes, not {given}")
        if (self.static or self.strategy in DEEPENING) and self.schedule != "dynamic":
            raise UsageError(
                f"--schedule {self.schedule}: widths of {self.strategy} networks do not grow; choose a strategy"
            )
        self._check_shape()

    def _check_shape(self) -> None:
        if self.strategy == SHAPED and self.shape is None and self.shape_of is None:
            raise UsageError(f"--strategy {SHAPED}: give its sizes with --shape, such as 128 or 183-275")
        for option, value in (("--shape", self.shape), ("--shape-of", self.shape_of)):
            if value is not None and self.strategy != SHAPED:
                raise UsageError(f"{option} has no effect on {self.strategy}: remove it, or choose --strategy {SHAPED}")
        if self.shape is not None and not _is_shape(self.shape):
            raise UsageError(f"--shape: expected positive sizes such as 128 or 183-275, not {self.shape!r}")

    @property
    def sizes(self) -> dict[str, float]:
        """The sizes of static networks that have a name."""
        return {name: getattr(self, setting) for name, setting in SIZES.items()}

    @property
    def size(self) -> float:
        """The size of the network at the start, if it has no shape."""
        return self.sizes[self.strategy if self.static else "small"]

    @property
    def static(self) -> bool:
        """Whether the network never grows."""
        return self.strategy in STATIC

    @property
    def source(self) -> "Settings | None":
        """The settings of the run that grew the shape, if there is one."""
        if self.shape_of is None:
            return None
        return replace(self, strategy=self.shape_of, shape=None, shape_of=None)

    @property
    def data_set(self) -> str:
        """The name of the data set in `shapes.SHAPES`."""
        return self.data

    def epoch_steps(self, samples: int) -> int:
        """Gradient steps of an epoch, of so many training samples."""
        return math.ceil(samples / self.batch)

    @property
    def usual_epochs(self) -> int:
        """The preset's number of epochs."""
        return type(self)().epochs

    def record(self) -> dict[str, Any]:
        """The content of settings.json: the preset's name and all settings; those of shapes and limits only if set."""
        settings = {PRESET: self.name, **asdict(self)}
        return {name: value for name, value in settings.items() if value is not None or name not in _OPTIONAL}

    @property
    def label(self) -> str:
        """A short name, unique within the preset: the strategy, settings that are not the default, and the seed.

        A shape that was grown is named by its strategy, so that the name is known before the shape is.
        """
        usual = replace(type(self)(), seed=self.seed, epochs=self.usual_epochs)
        shape = self.shape if self.shape_of is None else f"of-{self.shape_of}"
        parts = [self.strategy, *([shape] if shape else []), *([self.schedule] if self.schedule != "dynamic" else [])]
        for name, value in asdict(self).items():
            if name not in (_STRATEGY, _SCHEDULE, *_OF_SHAPES) and value != getattr(usual, name):
                value = PurePath(value).stem if name == "text" else value
                parts.append(name.replace("_", "-") + ("" if value is True else f"-{value}"))
        return "-".join([*parts, f"seed{self.seed}"])


@dataclass(frozen=True, kw_only=True)
class Dense(Settings):
    """A network of dense hidden layers, all of the same size."""

    initial: int = 64
    """Neurons of a hidden layer at the start."""
    medium: int = 256
    """Neurons of a hidden layer at the end of fixed schedules."""
    maximum: int = 784
    """Maximum number of neurons of a hidden layer."""
    hidden: int = 2
    """Number of hidden layers."""


@dataclass(frozen=True, kw_only=True)
class Deep(Settings):
    """A network with stacks of blocks, to which a strategy may add some."""

    stacks: ClassVar[tuple[str, ...]]
    """The stacks; all have the same number of blocks."""

    at: float = 0.5
    """Part of the training after which all blocks are there, if the strategy adds blocks."""
    hops: int = 1
    """In how many parts blocks are added, at equal distances."""

    @property
    def depths(self) -> tuple[int, int]:
        """The number of blocks at the start and at the end, if the strategy adds blocks."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.strategy in DEEPENING:
            first, last = self.depths
            if not self.at < 1:
                raise UsageError(f"--at: expected a part of the training, less than 1, not {self.at}")
            if not self.hops <= last - first:
                raise UsageError(f"--hops {self.hops}: from {first} to {last} blocks there are fewer")


@dataclass(frozen=True, kw_only=True)
class Convolutional(Settings):
    """A convolutional network whose sizes are multiples of the standard ones."""

    network: ClassVar[str]

    epochs: int = 100
    decay: Decay = "cosine"
    initial: float = 0.25
    """Sizes at the start, as a multiple of the standard ones."""
    medium: float = 1.0
    """Sizes at the end of fixed schedules, as a multiple of the standard ones."""
    maximum: float = 2.0
    """Maximum sizes, as a multiple of the standard ones."""
    images: int | None = None
    """Use only this many images of the training split."""
    test_images: int | None = None
    """Use only this many images of the test split."""


@dataclass(frozen=True, kw_only=True)
class Residual(Convolutional, Deep):
    """A convolutional network of groups of residual blocks, of which the first of a group is unlike the others."""

    blocks: int = 4
    """Blocks of each group; those at the end, if the strategy adds blocks."""
    initial_blocks: int = 2
    """Blocks of each group at the start, if the strategy adds blocks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.strategy in DEEPENING and self.initial_blocks < 2:
            raise UsageError(
                f"--initial-blocks {self.initial_blocks}: new blocks are copies, and the first block of a group, which "
                "changes its size, cannot be copied: expected at least 2"
            )

    @property
    def depths(self) -> tuple[int, int]:
        return self.initial_blocks, self.blocks


@dataclass(frozen=True, kw_only=True)
class Language(Deep):
    """A causal transformer that predicts the next character; its size is its number of blocks."""

    stacks = ("blocks",)
    part: ClassVar[int] = 100
    """Gradient steps of an epoch: a pass through the text would take longer than a training."""

    epochs: int = 20
    """Parts of 100 gradient steps, after each of which the network is tested."""
    batch: int = 24
    """Windows of the text per gradient step."""
    learning_rate: float = 3e-3
    decay: Decay = "final"
    text: str | None = None
    """A text file in UTF-8 to learn, instead of the default; its last tenth is for validation and testing."""
    holdout: float = 0.0
    """If it is positive, measure on the validation part of the text instead of the test part."""
    initial: int = 3
    """Blocks at the start."""
    medium: int = 6
    """Blocks at the end of strategies that add blocks, and of the medium static network."""
    maximum: int = 6
    """Blocks of the big static network."""
    length: int = 64
    """Characters of a window."""
    stream: int = 64
    """Size of the residual stream."""
    heads: int = 4
    """Heads of each block at the start, of 16 entries each."""
    neurons: int = 256
    """Neurons of each block's dense layer at the start."""
    final_heads: int | None = None
    """Heads of each block at the end of fixed schedules; by default they do not grow."""
    final_neurons: int | None = None
    """Neurons of each block at the end of fixed schedules; by default they do not grow."""

    def __post_init__(self) -> None:
        super().__post_init__()
        final = {"heads": self.final_heads, "neurons": self.final_neurons}
        if self.schedule != "dynamic" and not any(final.values()):
            raise UsageError(f"--schedule {self.schedule}: say what grows, with --final-heads or --final-neurons")
        for name, size in final.items():
            if size is not None and self.schedule == "dynamic":
                raise UsageError(f"--final-{name} has no effect without --schedule linear or batched: remove it")
            if size is not None and size < getattr(self, name):
                raise UsageError(f"--final-{name} {size}: there are {getattr(self, name)} at the start")

    @property
    def depths(self) -> tuple[int, int]:
        return self.initial, self.medium

    def epoch_steps(self, samples: int) -> int:
        return min(self.part, math.ceil(samples / self.batch))
