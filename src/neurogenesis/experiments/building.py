"""From settings to data, network, sizes and strategy."""

from __future__ import annotations

import zlib
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import neurogenesis as ng

from .data import Data, DataError, generated, load, standard_library, table, text_file, windows
from .errors import UsageError, unknown_name
from .language import Transformer
from .models import VGG11, WRN28, mlp, scaled, vgg11, wrn28, xavier
from .presets import NAMES, Generated, Tabular
from .settings import DEEPENING, SHAPED, STATIC, Convolutional, Dense, Language, Settings

BLOCKS = "blocks"
HEAD_SIZE = 16
TIES = {"wrn28": [["group1.*"], ["group2.*"], ["group3.*"]]}
"""Widths that grow together, by network."""


def build_data(settings: Settings, root: Path | None) -> Data:
    """The preset's data set, or a part of it."""
    if isinstance(settings, Language):
        text = standard_library() if settings.text is None else text_file(Path(settings.text))
        return windows(text, settings.length, validation=settings.holdout > 0)
    if isinstance(settings, Generated):
        data = generated(settings.features, derived_seed(settings.seed, "data"))
    elif isinstance(settings, Tabular):
        data = table(settings.table, derived_seed(settings.seed, "data"))
    else:
        data = load(settings.data, root)
    if isinstance(settings, Convolutional):
        try:
            data = data.first(settings.images, settings.test_images)
        except DataError as error:
            raise UsageError(f"--images or --test-images: {error}") from None
    return data.holding_out(settings.holdout, derived_seed(settings.seed, "holdout"))


def build_network(settings: Settings, data: Data) -> nn.Module:
    """The untrained network at its initial size."""
    torch.manual_seed(derived_seed(settings.seed, "weights"))
    if isinstance(settings, Dense):
        network = mlp(data.train[0].shape[1], *initial_widths(settings).values(), data.classes)
        return network if isinstance(settings, Tabular) else xavier(network)  # as in the paper
    if isinstance(settings, Language):
        return Transformer(
            characters=data.classes, blocks=initial_widths(settings)[BLOCKS], length=settings.length,
            size=settings.stream, heads=settings.heads, head_size=HEAD_SIZE, neurons=settings.neurons,
        )  # fmt: skip
    assert isinstance(settings, Convolutional)
    make = {"vgg11": vgg11, "wrn28": wrn28}[settings.network]
    return xavier(make(classes=data.classes, widths=initial_widths(settings)))


def initial_widths(settings: Settings) -> dict[str, int]:
    """The sizes of all widths at the start."""
    if settings.strategy != SHAPED:
        return widths_of(settings, settings.size)
    if settings.shape is None:
        raise UsageError(f"--shape-of {settings.shape_of}: give the sizes with --shape")
    numbers = settings.shape.split("-")
    names = list(widths_of(settings, 1.0))
    if len(numbers) == 1:
        if not isinstance(settings, Convolutional) and "." in settings.shape:
            what = "blocks" if isinstance(settings, Language) else "neurons"
            raise UsageError(f"--shape: expected a number of {what}, not {settings.shape}")
        return widths_of(settings, float(settings.shape))
    if len(numbers) != len(names):
        raise UsageError(
            f"--shape {settings.shape}: expected one size, or {len(names)} for {', '.join(names)}, not {len(numbers)}"
        )
    return dict(zip(names, map(int, numbers), strict=True))


def widths_of(settings: Settings, size: float) -> dict[str, int]:
    """The sizes of all widths of the preset's network, for a size in neurons or as a multiple of the standard sizes."""
    if isinstance(settings, Dense):
        return {f"hidden{number}": int(size) for number in range(1, settings.hidden + 1)}
    if isinstance(settings, Language):
        return {BLOCKS: int(size)}
    assert isinstance(settings, Convolutional)
    standard = {"vgg11": VGG11, "wrn28": WRN28}[settings.network]
    widths = scaled(standard, size)
    if min(widths.values()) < 1:
        raise UsageError(f"--initial, --medium, --maximum or --shape {size}: a layer would have no channels")
    return widths


def build_strategy(settings: Settings, steps: int) -> ng.Strategy:
    """The strategy with the schedule, metric and factors of the settings, for a training of `steps` gradient steps.

    Raises UsageError if a setting that is not the default has no effect.
    """
    deepening = DEEPENING if isinstance(settings, Language) else {}
    names = [*(name for name in ng.strategies.STRATEGIES if name != "static"), *deepening, *STATIC]
    if settings.strategy not in names:
        raise unknown_name("strategy", settings.strategy, names)
    if settings.strategy == "north-pre" and isinstance(settings, Convolutional):
        raise UsageError(
            f"--strategy north-pre supports dense layers only, and {settings.name} has others: choose north-select"
        )
    same_widths = settings.static or settings.strategy in DEEPENING
    named = ng.strategies.strategy("static" if same_widths else settings.strategy)
    trigger, initialization = _configured(settings, _trigger(settings, named, steps), named.initialization)
    strategy = ng.Strategy(trigger, initialization)
    changed = _changed(settings)
    if NAMES.every in changed and (same_widths or settings.schedule != "dynamic"):
        raise _no_effect(NAMES.every, settings)
    if NAMES.buffer in changed and "activations" not in strategy.needs:
        raise _no_effect(NAMES.buffer, settings)
    for name in (NAMES.max_parameters, NAMES.max_flops):
        if name in changed and same_widths:
            raise _no_effect(name, settings)
    for name in (NAMES.at, NAMES.hops):
        if name in changed and settings.strategy not in DEEPENING:
            raise _no_effect(name, settings)
    return strategy


def _trigger(settings: Settings, named: ng.Strategy, steps: int) -> Any:
    if settings.schedule == "dynamic":
        return named.trigger
    schedule = {"linear": ng.triggers.Linear, "batched": ng.triggers.Batched}[settings.schedule]
    return schedule(steps, widths_of(settings, settings.sizes["medium"]))


def _configured(settings: Settings, trigger: Any, initialization: Any) -> tuple[Any, Any]:
    """Trigger and initialization, with fields set from the settings of the same name."""
    for name in (NAMES.gamma, NAMES.metric, NAMES.scale, NAMES.least):
        value = getattr(settings, name)
        for_trigger, for_initialization = (
            is_dataclass(part) and hasattr(part, name) for part in (trigger, initialization)
        )
        if name in _changed(settings) and not for_trigger and not for_initialization:
            raise _no_effect(name, settings)
        if value is not None and for_trigger:
            trigger = replace(trigger, **{name: value})
        if value is not None and for_initialization:
            initialization = replace(initialization, **{name: value})
    return trigger, initialization


def _changed(settings: Settings) -> set[str]:
    return {field.name for field in fields(settings) if getattr(settings, field.name) != field.default}


def _no_effect(name: str, settings: Settings) -> UsageError:
    schedule = f" ({settings.schedule})" if settings.schedule != "dynamic" else ""
    return UsageError(f"--{name.replace('_', '-')} has no effect on {settings.strategy}{schedule}: remove it")


def derived_seed(seed: int, purpose: str) -> int:
    """A seed for one purpose, of 32 bits: torch's generator ignores any further ones."""
    return zlib.crc32(f"{seed} {purpose}".encode())
