"""What settings mean: data, network, widths and strategy."""

from __future__ import annotations

import zlib
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import neurogenesis as ng

from . import data as datasets
from .errors import Mistake, unknown
from .models import VGG11, WRN28, mlp, vgg11, wrn28, xavier
from .presets import STATIC, Convolutional, Dense, Generated, Settings

TIES = {"wrn28": [["group1.*"], ["group2.*"], ["group3.*"]]}


def widths_of(settings: Settings, size: float) -> dict[str, int]:
    """The sizes of all widths of the preset's network: neurons, or multiples of the standard widths."""
    if isinstance(settings, Dense):
        return {f"hidden{number}": int(size) for number in range(1, settings.hidden + 1)}
    assert isinstance(settings, Convolutional)
    standard = {"vgg11": VGG11, "wrn28": WRN28}[settings.network]
    widths = {name: round(size * width) for name, width in standard.items()}
    if min(widths.values()) < 1:
        raise Mistake(f"--initial, --medium or --maximum {size}: a layer would have no channel")
    return widths


def network_of(settings: Settings, data: datasets.Data) -> nn.Module:
    """The untrained network that a run begins with."""
    torch.manual_seed(derived(settings.seed, "weights"))
    if isinstance(settings, Dense):
        hidden = widths_of(settings, settings.size).values()
        return xavier(mlp(data.train[0].shape[1], *hidden, data.classes))
    assert isinstance(settings, Convolutional)
    make = {"vgg11": vgg11, "wrn28": wrn28}[settings.network]
    return xavier(make(settings.size, data.classes))


def strategy_of(settings: Settings, steps: int) -> ng.Strategy:
    """The strategy with the settings' schedule, metric and factors."""
    names = [*(name for name in ng.strategies.STRATEGIES if name != "static"), *STATIC]
    if settings.strategy not in names:
        raise unknown("strategy", settings.strategy, names)
    if settings.strategy == "north-pre" and isinstance(settings, Convolutional):
        raise Mistake(f"--strategy north-pre is for dense layers, and {settings.name} has others: choose north-select")
    if settings.static:
        found = ng.strategies.strategy("static")
    else:
        found = ng.strategies.strategy(settings.strategy)
    trigger: Any = found.trigger
    if settings.schedule != "dynamic":
        schedule = {"linear": ng.triggers.Linear, "batched": ng.triggers.Batched}[settings.schedule]
        trigger = schedule(steps, widths_of(settings, settings.sizes["medium"]))
    initialization: Any = found.initialization
    changed = {field.name for field in fields(settings) if getattr(settings, field.name) != field.default}
    for name in ("gamma", "metric", "scale", "least"):
        value = getattr(settings, name)
        having = [part for part in (trigger, initialization) if is_dataclass(part) and hasattr(part, name)]
        if name in changed and not having:
            raise _idle(name, settings)
        if value is not None:
            trigger = replace(trigger, **{name: value}) if trigger in having else trigger
            initialization = replace(initialization, **{name: value}) if initialization in having else initialization
    strategy = ng.Strategy(trigger, initialization)
    if "every" in changed and (settings.static or settings.schedule != "dynamic"):
        raise _idle("every", settings)
    if "buffer" in changed and "activations" not in strategy.needs:
        raise _idle("buffer", settings)
    return strategy


def _idle(name: str, settings: Settings) -> Mistake:
    schedule = f" ({settings.schedule})" if settings.schedule != "dynamic" else ""
    return Mistake(f"--{name} has no effect on {settings.strategy}{schedule}: leave it out")


def data_of(settings: Settings, root: Path | None) -> datasets.Data:
    """The preset's data as tensors."""
    if isinstance(settings, Generated):
        data = datasets.generated(settings.features, derived(settings.seed, "data"))
    else:
        data = datasets.load(settings.data, root)
    if isinstance(settings, Convolutional):
        try:
            data = data.first(settings.images, settings.test_images)
        except datasets.DataError as error:
            raise Mistake(f"--images or --test-images: {error}") from None
    return data.holding_out(settings.holdout, derived(settings.seed, "holdout"))


def derived(seed: int, purpose: str) -> int:
    """A seed for one purpose; torch's generator takes no more than 32 bits of it."""
    return zlib.crc32(f"{seed} {purpose}".encode())
