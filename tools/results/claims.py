"""The claims of the paper, each with what the records say: the rows of docs/results.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pandas as pd

from neurogenesis.report.names import display_name
from neurogenesis.report.numbers import plus_minus, signed
from neurogenesis.report.sections import Configuration

from .records import by_strategy, counted, exists, section

Verdict = Literal["met", "not met", "not comparable", "not run yet"]
Networks = Mapping[str, Configuration]

NORTH = ("north-select", "north-pre", "north-random", "north-weight")
GRADIENT = ("gradmax", "firefly", "nest")
STATIC = ("small", "medium", "big")
LEAST_SEEDS = 3
INPUTS, MAXIMUM = 64, {"generated": 512, "mnist": 784}
COSTS = {
    "north-random": 1.05, "north-select": 1.09, "north-weight": 1.83, "gradmax": 2.55, "firefly": 3.37, "nest": 4.33,
}  # fmt: skip
"""The paper's time of a mini-batch of VGG-11 with a trigger for all layers, relative to Small Static on a GPU."""


@dataclass(frozen=True)
class Finding:
    """What the records say about a claim."""

    figure: str
    verdict: Verdict


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, and how it is judged."""

    of: str
    claim: str
    study: str
    """The study with the records."""
    judge: Callable[[], Finding]
    without_ages: Callable[[], Finding] | None = None
    """The same with the paper's behavior: without ages and margin."""
    needs: Sequence[str] = ()
    """The strategies of which there must be at least three seeds."""
    why: Mapping[Verdict, str] = field(default_factory=dict)
    small: Callable[[], Finding] | None = None
    """What the small variant of the study shows, where the study itself needs a GPU."""


def claims_table() -> list[Mapping[str, str]]:
    """A row for each claim."""
    return [_row(claim) for claim in CLAIMS]


def _row(claim: Claim) -> Mapping[str, str]:
    study, found = claim.study, Finding("", "not run yet")
    if exists(claim.study):
        found = _judged(claim)
    elif claim.small is not None and exists(f"{claim.study}-small"):
        study, found = f"{claim.study}-small", claim.small()
    return {
        "of": claim.of,
        "claim of the paper": claim.claim,
        "here": found.figure,
        "verdict": found.verdict,
        "why": claim.why.get(found.verdict, ""),
        "command": f"`neurogenesis sweep {study}`",
    }


def _judged(claim: Claim) -> Finding:
    """What the records of a study say, or how many of them are still missing."""
    if _fewest(claim.study, claim.needs) < LEAST_SEEDS:
        return Finding(_progress(claim.study), "not run yet")
    found = claim.judge()
    if claim.without_ages is None or not exists("mnist-paper") or _fewest("mnist-paper", NORTH) < LEAST_SEEDS:
        return found
    other = claim.without_ages()
    return Finding(f"{found.figure}; without ages and margin: {other.figure} ({other.verdict})", found.verdict)


def _fewest(study: str, needed: Sequence[str]) -> int:
    """The fewest finished seeds of the configurations of some strategies."""
    found = [len(c.finished) for c in section(study).configurations if c.strategy in needed]
    return min(found, default=0)


def _progress(study: str) -> str:
    runs = section(study).runs
    return f"{sum(run.result is not None for run in runs)} of {len(runs)} runs are done"


# --- generated data -------------------------------------------------------------------------------------------


def _generated(*strategies: str) -> list[Configuration]:
    return [c for c in section("generated").finished if c.strategy in strategies]


def _title(c: Configuration) -> str:
    """A strategy with its settings, in print."""
    return f"{c.name}{f', {c.label()}' if c.label() else ''}"


def _generated_accuracy() -> Finding:
    every = _generated(*NORTH, *GRADIENT)
    many = [c for c in every if c.values["features"] == 32]
    lowest = [min(some, key=lambda c: c.results["accuracy"].mean()) for some in (
        [c for c in every if c not in many], many)]  # fmt: skip
    texts = [f"{plus_minus(c.results['accuracy'], '.2f')} % ({_title(c)})" for c in lowest]
    below = sum(c.results["accuracy"].mean() <= 99 for c in every if c not in many)
    met = not below and lowest[1].results["accuracy"].mean() >= 97
    return Finding(
        f"lowest mean below 32 features {texts[0]}, at or below 99 % in {below} of {len(every) - len(many)} settings; "
        f"at 32 features {texts[1]}; {_seeds(every)}",
        "met" if met else "not met",
    )


def _generated_weight() -> Finding:
    every = _generated("north-weight")
    most = max(c.widths["hidden1"].max() for c in every)
    return Finding(f"at most {most:.0f} neurons; {_seeds(every)}", "met" if most <= INPUTS else "not met")


def _generated_maximum() -> Finding:
    every = [c for c in _generated("north-select", "north-pre", "north-random") if c.values["features"] == 32]
    texts = [f"{_title(c)}: {plus_minus(c.widths['hidden1'], '.0f')}" for c in every]
    met = all(c.widths["hidden1"].mean() > 0.98 * MAXIMUM["generated"] for c in every)
    return Finding(f"at 32 features {'; '.join(texts)}; {_seeds(every)}", "met" if met else "not met")


# --- MNIST ----------------------------------------------------------------------------------------------------


def _dynamic() -> Networks:
    return by_strategy("mnist-dynamic")


def _as_in_paper() -> Networks:
    """The runs without ages and margin; what does not grow, or grows no further, is the same with both."""
    own = {c.strategy: c for c in section("mnist-paper").finished if not c.scheduled}
    return {**{name: c for name, c in _dynamic().items() if name not in NORTH}, **own}


def _front(networks: Networks) -> Finding:
    """The networks than which no other one is both smaller and more accurate, by means over seeds."""
    known = {name: c for name, c in networks.items() if name in (*NORTH, *GRADIENT, *STATIC)}
    means = pd.DataFrame({name: c.results[["parameters", "accuracy"]].mean() for name, c in known.items()}).T
    best = means.sort_values(["parameters", "accuracy"], ascending=[True, False])
    front = best[best["accuracy"] > best["accuracy"].cummax().shift(fill_value=0.0)]
    texts = [f"{display_name(name)} {row['accuracy']:.2f} % at {row['parameters']:,.0f}"
             for name, row in front.iterrows()]  # fmt: skip
    met = all(name in NORTH for name in front.index if name != "small")
    return Finding(f"{', '.join(texts)} parameters; {_seeds(known.values())}", "met" if met else "not met")


def _no_maximum(networks: Networks) -> Finding:
    own = {name: c for name, c in networks.items() if name in (*NORTH, *GRADIENT)}
    full = {name: int((c.widths >= MAXIMUM["mnist"]).any(axis=1).sum()) for name, c in own.items()}
    texts = [f"{display_name(name)} {count} of {len(own[name].finished)}" for name, count in full.items() if count]
    return Finding(
        f"runs in which a layer has {MAXIMUM['mnist']} neurons: {', '.join(texts) or 'none'}; {_seeds(own.values())}",
        "not met" if texts else "met",
    )


def _first_is_larger(networks: Networks) -> Finding:
    own = [networks[name] for name in NORTH if name in networks]
    texts = [f"{c.name} {_widths(c)}" for c in own]
    larger = all(c.widths["hidden1"].mean() > c.widths["hidden2"].mean() for c in own)
    return Finding(f"{', '.join(texts)}; {_seeds(own)}", "met" if larger else "not met")


def _like_big(networks: Networks) -> Finding:
    big = networks["big"]
    own = [networks[name] for name in ("north-select", "north-random") if name in networks]
    texts, met = [], True
    for c in own:
        mean, error = _difference(c, big)
        met &= mean > -2 * error and c.results["parameters"].mean() < big.results["parameters"].mean()
        texts.append(
            f"{c.name} {signed(mean, error)} points to Big static with {plus_minus(c.results['parameters'])} "
            f"parameters of {big.results['parameters'].mean():,.0f}"
        )
    return Finding(f"{', '.join(texts)}; {_seeds(own)}", "met" if met else "not met")


def _presets() -> Finding:
    every = section("mnist-preset").finished
    medium = next(c for c in every if c.strategy == "medium")
    own = [c for c in every if c.strategy in NORTH]
    found = [(c, *_difference(c, medium)) for c in own]
    better = [c for c, mean, error in found if mean > error]
    best, mean, error = max(found, key=lambda each: each[1])
    return Finding(
        f"{len(better)} of {len(own)} are better by more than an error; the best is {_title(best)}, "
        f"{signed(mean, error)} points; {_seeds(own)}",
        "met" if len(better) > 1 else "not met",
    )


# --- convolutional networks -----------------------------------------------------------------------------------


def _small_vgg() -> Finding:
    every = section("vgg11-cifar10-small").finished
    big = next(c for c in every if c.strategy == "big")
    own = next(c for c in every if c.strategy == "north-select" and c.values.get("gamma") in (0.9, None))
    mean, error = _difference(own, big)
    return Finding(
        f"{signed(mean, error)} points to Big static with {own.results['parameters'].mean():,.0f} parameters of "
        f"{big.results['parameters'].mean():,.0f}; {_seeds([own])}",
        "not comparable",
    )


def _small_dense() -> Finding:
    every = section("vgg11-cifar10-small").finished
    own = next(c for c in every if c.strategy == "north-select" and c.values.get("gamma") in (0.9, None))
    means = own.relative_widths.mean()
    return Finding(
        f"dense layers at {means.iloc[-2]:.2f} and {means.iloc[-1]:.2f} of the standard network, convolutions at "
        f"{means.iloc[:-2].mean():.2f}; {_seeds([own])}",
        "not comparable",
    )


def _small_wrn() -> Finding:
    own = [c for c in section("wrn28-cifar10-small").finished if c.strategy in NORTH]
    texts = [f"{c.name} {c.relative_widths.mean().mean():.2f}" for c in own]
    return Finding(f"mean widths relative to the standard network, at most 1: {', '.join(texts)}", "not comparable")


def _small_cost() -> Finding:
    found = {c.strategy: c for c in section("trigger-cost-small").finished}
    step = {name: (c.results["seconds"] / c.results["steps"]).mean() for name, c in found.items()}
    texts = [f"{display_name(name)} {step[name] / step['small']:.2f}" for name in COSTS if name in step]
    return Finding(f"{', '.join(texts)}; {_seeds(found.values())}", "not comparable")


def _unjudged() -> Finding:
    return Finding("", "not run yet")


# --- what they have in common ---------------------------------------------------------------------------------


def _difference(c: Configuration, other: Configuration) -> tuple[float, float]:
    """The difference of mean accuracies, and its standard error; seeds are not paired."""
    accuracies = [each.results["accuracy"] for each in (c, other)]
    error = sum((each.sem() if len(each) > 1 else 0.0) ** 2 for each in accuracies) ** 0.5
    return float(accuracies[0].mean() - accuracies[1].mean()), float(error)


def _widths(c: Configuration) -> str:
    return " and ".join(plus_minus(c.widths[name], ".0f") for name in c.widths)


def _seeds(configurations: Sequence[Configuration] | object) -> str:
    numbers = {len(c.finished) for c in configurations}  # type: ignore[attr-defined]
    return counted(max(numbers)) if len(numbers) == 1 else f"{min(numbers)} to {max(numbers)} seeds"


_GPU = "the study needs a GPU"
_SMALL = "narrower networks, a fifth of the images and a tenth of the epochs"
CLAIMS = (
    Claim(
        "generated data",
        "Test accuracy is above 99 % for all strategies and numbers of features, 97 % at 32.",
        "generated",
        _generated_accuracy,
        needs=(*NORTH, *GRADIENT),
        why={"not met": "there are 500 test samples, so that one standard deviation of the test is 0.4 points at 99 %"},
    ),
    Claim(
        "generated data",
        "NORTH-Weight's first layer stays within the 64 inputs.",
        "generated",
        _generated_weight,
        needs=("north-weight",),
        why={"met": "more neurons than inputs cannot have independent weights"},
    ),
    Claim(
        "generated data",
        "The other NORTH* strategies reach the maximum of 512 in the first layer.",
        "generated",
        _generated_maximum,
        needs=("north-select", "north-pre", "north-random"),
    ),
    Claim(
        "MNIST, dynamic",
        "The Pareto front of accuracy against size is NORTH*'s.",
        "mnist-dynamic",
        lambda: _front(_dynamic()),
        lambda: _front(_as_in_paper()),
        (*NORTH, *GRADIENT, *STATIC),
        why={"not met": "where triggers on the rank end is mostly chance: static networks of medium size are better"},
    ),
    Claim(
        "MNIST, dynamic",
        "No strategy reaches the maximum.",
        "mnist-dynamic",
        lambda: _no_maximum(_dynamic()),
        lambda: _no_maximum(_as_in_paper()),
        (*NORTH, *GRADIENT),
        why={
            "not met": "growth ends only when neurons are dead or redundant, and weights of 784 inputs have full rank"
        },
    ),
    Claim(
        "MNIST, dynamic",
        "First layers end larger than second ones.",
        "mnist-dynamic",
        lambda: _first_is_larger(_dynamic()),
        lambda: _first_is_larger(_as_in_paper()),
        NORTH,
        why={"not met": "sizes differ more between seeds than between layers"},
    ),
    Claim(
        "MNIST, dynamic",
        "NORTH-Select and NORTH-Random match Big Static with fewer neurons.",
        "mnist-dynamic",
        lambda: _like_big(_dynamic()),
        lambda: _like_big(_as_in_paper()),
        ("north-select", "north-random", "big"),
        why={"not met": "some seeds end with few neurons and are less accurate"},
    ),
    Claim(
        "MNIST, preset",
        "Several NORTH* beat Medium Static of the same final size.",
        "mnist-preset",
        _presets,
        needs=(*NORTH, "medium"),
        why={"not met": "neurons that come late have less time to learn"},
    ),
    Claim(
        "VGG-11",
        "NORTH-Select at gamma 0.9 beats Big Static with less than half its parameters.",
        "vgg11-cifar10",
        _unjudged,
        why={"not run yet": _GPU, "not comparable": _SMALL},
        small=_small_vgg,
    ),
    Claim(
        "VGG-11",
        "Dense layers stay small.",
        "vgg11-cifar10",
        _unjudged,
        why={"not run yet": _GPU, "not comparable": _SMALL},
        small=_small_dense,
    ),
    Claim(
        "WRN-28",
        "NORTH* grow to or near the maximum.",
        "wrn28-cifar10",
        _unjudged,
        why={"not run yet": _GPU, "not comparable": _SMALL},
        small=_small_wrn,
    ),
    Claim(
        "cost",
        "A mini-batch of VGG-11 takes, relative to Small Static: "
        + ", ".join(f"{display_name(name)} {ratio:.2f}" for name, ratio in COSTS.items())
        + ".",
        "trigger-cost",
        _unjudged,
        why={
            "not run yet": _GPU,
            "not comparable": "on a CPU, where all that networks have grown during the epoch costs time, too",
        },
        small=_small_cost,
    ),
)
