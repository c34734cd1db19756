"""Studies: sets of runs for the figures and tables of the paper, and on whether growing pays."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import product
from typing import Any, get_args

from .errors import UsageError, unknown_name
from .presets import PRESETS, Table
from .settings import DEEPENING, PRESET, SHAPED, SIZES, Decay, Settings

Choices = Mapping[str, Sequence[Any]]

NORTH = ("north-select", "north-pre", "north-random", "north-weight")
INTEGRATED = "north-integrated"  # on a fixed schedule the same as north-random
GRADIENT = ("gradmax", "firefly", "nest")
GROWING = (*NORTH, INTEGRATED, *GRADIENT)
NEED = "need"
CONVOLUTIONAL = ("north-select", "north-random", "north-weight", INTEGRATED)  # north-pre supports dense layers only


@dataclass(frozen=True)
class Study:
    """Combinations of settings of one or several presets, each with several seeds."""

    title: str
    preset: str | None
    """The preset of all runs; None if each part names its own."""
    parts: tuple[Choices, ...]
    """The runs are all combinations of the values of each part."""
    fixed: Mapping[str, Any]
    """Settings of all runs."""
    seeds: int = 5
    timed: bool = False
    """Whether times are compared, so that runs must not slow each other down."""

    def runs(self, seeds: Sequence[int] | None = None, epochs: int | None = None) -> Iterator[Settings]:
        """The settings of every run, seed by seed."""
        changed = {PRESET: self.preset, **self.fixed, **({} if epochs is None else {"epochs": epochs})}
        for seed in dict.fromkeys(range(1, self.seeds + 1) if seeds is None else seeds):
            for part in self.parts:
                for values in product(*part.values()):
                    chosen = {**changed, **dict(zip(part, values, strict=True)), "seed": seed}
                    yield PRESETS[chosen.pop(PRESET)](**chosen)

    def name(self, settings: Settings) -> str:
        """The name of a run, which is also its directory: the label, below the preset if the study has several."""
        return settings.label if self.preset is not None else f"{settings.name}/{settings.label}"


def _small(study: Study, preset: str, **fixed: Any) -> Study:
    """The small variant of a study, for two cores."""
    return replace(study, title=f"{study.title}, small variant", preset=preset, fixed=fixed, seeds=2)


_vgg11_cifar10 = Study(
    "VGG-11 on CIFAR-10: accuracy, size and time by gamma",
    "vgg11-cifar10",
    (
        {"strategy": ("north-select", "north-random", INTEGRATED), "gamma": (0.9, 0.97, 0.99)},
        {"strategy": ("north-weight", *SIZES)},
    ),
    {},
)
_vgg11_cifar100 = Study(
    "VGG-11 on CIFAR-100: accuracy, size and time",
    "vgg11-cifar100",
    ({"strategy": (*CONVOLUTIONAL, *SIZES)},),
    {},
)
_wrn28_cifar10 = Study(
    "WRN-28 on CIFAR-10: accuracy, size and time",
    "wrn28-cifar10",
    ({"strategy": (*CONVOLUTIONAL, "gradmax", *SIZES)},),
    {},
)
_trigger_cost = Study(
    "Time per mini-batch of VGG-11 on CIFAR-10 in the first epoch",
    "vgg11-cifar10",
    ({"strategy": (*CONVOLUTIONAL, *GRADIENT, *SIZES)},),
    {"epochs": 1},
    timed=True,
)


def _pays(
    preset: str,
    start: float,
    maximum: float,
    sizes: Sequence[float],
    growing: Sequence[str],
    rates: Sequence[float],
    decays: Sequence[Decay] = ("none", "cosine"),
) -> Iterator[Choices]:
    """Whether growing pays on a preset: need, its final shapes from scratch, static networks, other strategies."""
    for rate, decay in product(rates, decays):
        common = {PRESET: (preset,), "learning_rate": (rate,), "decay": (decay,)}
        ends = {"initial": (start,), "maximum": (maximum,)}
        yield {**common, "strategy": (NEED,), **ends}
        yield {**common, "strategy": (SHAPED,), "shape_of": (NEED,), **ends}
        yield {**common, "strategy": (SHAPED,), "shape": [f"{size:g}" for size in sizes]}
        yield {**common, "strategy": growing}


def _tabular() -> Iterator[Choices]:
    """The strategy need, its final shapes from scratch, and static networks on every table, in two batch sizes."""
    for name, batch in product(get_args(Table), (32, _FULL_BATCH)):
        common = {"table": (name,), "batch": (batch,)}
        yield {**common, "strategy": (NEED,)}
        yield {**common, "strategy": (SHAPED,), "shape_of": (NEED,)}
        yield {**common, "strategy": (SHAPED,), "shape": [str(size) for size in _TABULAR_SIZES]}


def _deepening() -> Iterator[Choices]:
    """Static networks of every depth with three lengths of training, and blocks that are added: when, how, how many.

    The best static networks for a compute are shallow and train for long, so growth to 4, 3 and 2 blocks is tried as
    well, early and for 4,000 steps.
    """
    for decay in ("final", "cosine"):
        common = {"decay": (decay,)}
        yield {**common, "epochs": (20, 10, 40), "strategy": (SHAPED,), "shape": tuple("123456")}
        yield {**common, "strategy": tuple(DEEPENING), "at": (0.5, 0.8, 0.25), "initial": (3, 2, 1)}
        yield {**common, "strategy": ("deepen-zero",), "hops": (2, 5), "initial": (1,)}
    lesser: dict[str, Sequence[Any]] = {"decay": ("final",), "strategy": ("deepen-zero",)}
    yield {**lesser, "medium": (4,), "at": (0.25, 0.1), "initial": (2, 1)}
    yield {**lesser, "medium": (4,), "at": (0.5,), "initial": (3, 2)}
    yield {**lesser, "medium": (3,), "at": (0.25, 0.1), "initial": (1,)}
    yield {**lesser, "epochs": (40,), "at": (0.25,), "initial": (3,)}
    yield {**lesser, "epochs": (40,), "medium": (4,), "at": (0.25,), "initial": (2,)}
    yield {**lesser, "epochs": (40,), "medium": (3,), "at": (0.25, 0.5), "initial": (2, 1)}
    yield {**lesser, "epochs": (40,), "medium": (2,), "at": (0.25,), "initial": (1,)}


def _deepening_images() -> Iterator[Choices]:
    """Residual networks on images: static ones of every depth, three lengths of training, and blocks that are added."""
    static: dict[str, Sequence[Any]] = {"strategy": (SHAPED,), "shape": ("0.5",)}
    yield {**static, "epochs": (5, 3, 10), "blocks": (4, 3, 2)}
    yield {"strategy": ("deepen-zero",), "initial": (0.5,), "at": (0.5, 0.25)}


def _pays_language() -> Iterator[Choices]:
    """Transformers grown by need, and on schedules of heads, of neurons and of blocks; static ones, deep and wide."""
    start: dict[str, Sequence[Any]] = {"strategy": (NEED,), "heads": (2,), "neurons": (32,)}
    yield {"strategy": (SHAPED,), "shape": tuple("123456")}
    for heads, neurons in ((1, 64), (2, 128), (8, 512)):
        yield {"strategy": (SHAPED,), "shape": ("3",), "heads": (heads,), "neurons": (neurons,)}
    yield start
    yield {**start, "strategy": (SHAPED,), "shape_of": (NEED,)}
    batched: dict[str, Sequence[Any]] = {"strategy": (NEED,), "schedule": ("batched",)}
    yield {**batched, "heads": (2,), "final_heads": (4,)}
    yield {**batched, "neurons": (64,), "final_neurons": (256,)}
    yield {"strategy": ("deepen-zero",), "initial": (1,), "medium": (3,), "at": (0.5, 0.25)}


_FULL_BATCH = 2500  # more than the training part of a table
_TABULAR_SIZES = (4, 8, 16, 32, 64, 128, 256)
_DIGITS_SIZES, _MNIST_SIZES = (4, 8, 16, 32, 64, 128), (16, 32, 64, 128, 256, 512)
_DIGITS_RATES, _MNIST_RATES = (3.3e-3, 1e-2, 3e-2), (1e-3, 3e-3, 9e-3)
_GROWING_CONVOLUTIONAL = (*CONVOLUTIONAL, "gradmax")
_DENSE_SMALL = ("north-select", "north-random", INTEGRATED, "gradmax")
_SENSITIVE = ("north-select", "north-random", "north-weight", INTEGRATED, *SIZES)

STUDIES: dict[str, Study] = {
    "digits": Study(
        "All strategies on scikit-learn's digits",
        "digits",
        ({"strategy": (*GROWING, *SIZES)},),
        {},
    ),
    "generated": Study(
        "Final widths against independent features of generated data",
        "generated",
        ({"hidden": (1, 2), "features": (1, 2, 4, 8, 16, 32), "strategy": GROWING},),
        {},
    ),
    "mnist-dynamic": Study(
        "MNIST, growth when triggers say so",
        "mnist",
        ({"strategy": (*GROWING, *SIZES)}, {"strategy": ("north-select",), "least": (True,)}),
        {},
    ),
    "mnist-preset": Study(
        "MNIST, initializations on fixed schedules",
        "mnist",
        ({"schedule": ("linear", "batched"), "strategy": (*NORTH, *GRADIENT)}, {"strategy": ("medium",)}),
        {},
    ),
    "mnist-paper": Study(
        "MNIST, as in the paper: without ages and margin",
        "mnist",
        (
            {"strategy": (*NORTH, INTEGRATED)},
            {"strategy": ("north-select",), "least": (True,)},
            {"schedule": ("batched",), "strategy": (*NORTH, *GRADIENT)},
        ),
        {"ages": False, "margin": False},
    ),
    "mnist-gamma": Study(
        "MNIST, sensitivity to the metric and gamma",
        "mnist",
        (
            {
                "metric": ("effective_dimension", "orthogonality"),
                "strategy": ("north-select", "north-pre", "north-random", INTEGRATED),
                "gamma": (0.7, 0.9, 0.97, 0.99, 0.997),
            },
        ),
        {"holdout": 0.1},
    ),
    "mnist-batchsize": Study(
        "MNIST, sensitivity to the batch size",
        "mnist",
        ({"batch": (32, 64, 128, 256, 512, 1024, 2048), "strategy": _SENSITIVE},),
        {"holdout": 0.1},
    ),
    "mnist-lr": Study(
        "MNIST, sensitivity to the learning rate",
        "mnist",
        ({"learning_rate": (1e-4, 3e-4, 1e-3, 3e-3, 1e-2), "strategy": _SENSITIVE},),
        {"holdout": 0.1},
    ),
    "vgg11-cifar10": _vgg11_cifar10,
    "vgg11-cifar10-small": _small(_vgg11_cifar10, "vgg11-cifar10-small"),
    "vgg11-cifar100": _vgg11_cifar100,
    "vgg11-cifar100-small": _small(_vgg11_cifar100, "vgg11-cifar100-small"),
    "wrn28-cifar10": _wrn28_cifar10,
    "wrn28-cifar10-small": _small(_wrn28_cifar10, "wrn28-cifar10-small"),
    "pays": Study(
        "Does growing pay?",
        None,
        (
            *_pays("digits", 4, 512, _DIGITS_SIZES, GROWING, _DIGITS_RATES),
            *_pays("mnist", 16, 784, _MNIST_SIZES, GROWING, _MNIST_RATES),
            *_pays("vgg11-cifar10", 1 / 16, 2, (1 / 8, 1 / 4, 1 / 2, 1, 2), _GROWING_CONVOLUTIONAL, (1e-4, 3e-4, 9e-4)),
            *_pays("wrn28-cifar10", 1 / 4, 6, (1 / 4, 1 / 2, 1, 2, 4), _GROWING_CONVOLUTIONAL, (1e-3, 3e-3, 9e-3)),
        ),
        {},
    ),
    "pays-small": Study(
        "Does growing pay? Small variant",
        None,
        (
            *_pays("digits", 4, 512, _DIGITS_SIZES, _DENSE_SMALL, _DIGITS_RATES),
            *_pays("mnist", 16, 784, _MNIST_SIZES, _DENSE_SMALL, _MNIST_RATES),
            *_pays(
                "vgg11-cifar10-small", 1 / 16, 1 / 2, (1 / 16, 1 / 8, 1 / 4), ("north-random",), (3e-4,), ("cosine",)
            ),
            *_pays("wrn28-cifar10-small", 1 / 8, 1, (1 / 8, 1 / 4, 1 / 2), ("north-random",), (3e-3,), ("cosine",)),
            *_pays(
                "wrn28-cifar10-small-long", 1 / 8, 1, (1 / 8, 1 / 4, 1 / 2), ("north-random",), (3e-3,), ("cosine",)
            ),
        ),
        {},
        seeds=3,
    ),
    "pays-language": Study("Does growing pay? Characters", "gpt-stdlib", tuple(_pays_language()), {}, seeds=3),
    "deepening": Study("Does growing depth pay?", "gpt-stdlib", tuple(_deepening()), {}, seeds=3),
    "deepening-images": Study(
        "Does growing depth pay on images?",
        "wrn28-cifar10-small",
        tuple(_deepening_images()),
        {"decay": "final"},
        seeds=3,
    ),
    "tabular": Study("The right size on small tables", "tabular", tuple(_tabular()), {}),
    "trigger-cost": _trigger_cost,
    "trigger-cost-small": _small(_trigger_cost, "vgg11-cifar10-small", epochs=1, images=2560),
}


def select_runs(
    name: str, seeds: Sequence[int] | None = None, epochs: int | None = None, only: Sequence[str] = ("*",)
) -> tuple[Study, dict[str, Settings]]:
    """A study, and its runs whose names match one of the patterns. UsageError if a pattern matches no run."""
    if name not in STUDIES:
        raise unknown_name("study", name, STUDIES)
    study = STUDIES[name]
    named = {study.name(settings): settings for settings in study.runs(seeds, epochs)}
    for pattern in only:
        if not any(fnmatchcase(label, pattern) for label in named):
            raise UsageError(
                f"--only {pattern!r} matches no run of {name}; near names: {', '.join(_near(pattern, named))}"
            )
    runs = {label: own for label, own in named.items() if any(fnmatchcase(label, pattern) for pattern in only)}
    return study, runs


def _near(pattern: str, labels: Iterable[str], count: int = 3) -> list[str]:
    """Names of runs that resemble a pattern, each with one seed only."""
    by_stem: dict[str, str] = {}
    for label in labels:
        by_stem.setdefault(re.sub(r"seed\d+$", "", label), label)
    return [by_stem[stem] for stem in difflib.get_close_matches(pattern.strip("*"), by_stem, count, cutoff=0)]
