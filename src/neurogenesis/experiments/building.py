"""From settings to data, network, sizes and strategy."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import nn

import neurogenesis as ng

from .data import Data, DataError, generated, load, standard_library, table, text_file, windows
from .errors import UsageError, unknown_name
from .language import Transformer
from .models import VGG11, WRN28, mlp, scaled, vgg11, wrn28, xavier
from .presets import NAMES, Generated, Tabular
from .settings import DEEPENING, SHAPED, STATIC, Convolutional, Deep, Dense, Language, Residual, Settings

BLOCKS = "blocks"
HEAD_SIZE = 16
TIES = {"wrn28": [["group1.*"], ["group2.*"], ["group3.*"]]}
"""Widths that grow together, by network."""


def build_data(settings: Settings, root: Path | None) -> Data:
    """The preset's data set, or a part of it."""
    if isinstance(settings, Language):
        return _text_of(settings)
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


def _text_of(settings: Language) -> Data:
    """Windows of the text of the settings."""
    if settings.text is None:
        return windows(standard_library(), settings.length, validation=settings.holdout > 0)
    try:
        return windows(text_file(Path(settings.text)), settings.length, validation=settings.holdout > 0)
    except DataError as error:
        raise UsageError(f"--text {settings.text}: {error}") from None


def build_network(settings: Settings, data: Data) -> nn.Module:
    """The untrained network at its initial size."""
    torch.manual_seed(derived_seed(settings.seed, "weights"))
    if isinstance(settings, Dense):
        network = mlp(data.train[0].shape[1], *initial_widths(settings).values(), data.classes)
        return network if isinstance(settings, Tabular) else xavier(network)  # as in the paper
    if isinstance(settings, Language):
        heads, neurons = zip(*sizes_of_blocks(settings), strict=True)
        return Transformer(
            characters=data.classes, length=settings.length, size=settings.stream, head_size=HEAD_SIZE, heads=heads,
            neurons=neurons,
        )  # fmt: skip
    assert isinstance(settings, Convolutional)
    classes, widths = data.classes, initial_widths(settings)
    if isinstance(settings, Residual):
        return xavier(wrn28(classes=classes, widths=widths, blocks=initial_blocks(settings)))
    return xavier(vgg11(classes=classes, widths=widths))


def initial_blocks(settings: Residual) -> int:
    """The number of blocks of each group at the start."""
    return settings.depths[0] if settings.strategy in DEEPENING else settings.blocks


def sizes_of_blocks(settings: Language) -> list[tuple[int, int]]:
    """The number of heads and of neurons of each block at the start."""
    widths = initial_widths(settings)
    if BLOCKS in widths:
        return [(settings.heads, settings.neurons)] * widths[BLOCKS]
    return list(zip(*[iter(widths.values())] * 2, strict=True))


def shape_of(settings: Settings, widths: Mapping[str, int]) -> str:
    """The sizes to which a network has grown, as the shape of a static one.

    A transformer's are the heads and the neurons of each block.

    Example:
        >>> from neurogenesis.experiments.presets import PRESETS
        >>> shape_of(PRESETS["digits"](), {"hidden1": 7, "hidden2": 5})
        '7-5'
        >>> shape_of(PRESETS["gpt-stdlib"](initial=2), {"blocks.0.query": 2, "blocks.0.up": 40, "blocks.1.up": 50})
        '2-40-4-50'
    """
    if isinstance(settings, Language):
        start = _widths_of_blocks([(settings.heads, settings.neurons)] * settings.initial)
        return "-".join(str(widths.get(name, size)) for name, size in start.items())
    return "-".join(str(widths[name]) for name in widths_of(settings, 1.0))


def _widths_of_blocks(sizes: Iterable[tuple[int, int]]) -> dict[str, int]:
    """The widths of each block, by their names in the network."""
    return {
        f"{BLOCKS}.{number}.{layer}": size
        for number, both in enumerate(sizes)
        for layer, size in zip(("query", "up"), both, strict=True)
    }


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
    if isinstance(settings, Language):
        if len(numbers) % 2:
            raise UsageError(f"--shape {settings.shape}: expected the heads and the neurons of each block")
        both = zip(*[iter(map(int, numbers))] * 2, strict=True)
        return _widths_of_blocks(both)
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


def initial_sizes(settings: Settings) -> dict[str, int]:
    """The sizes in the record of a run at its start: of all widths, and blocks if these are what may be added."""
    return {**initial_widths(settings), **({BLOCKS: initial_blocks(settings)} if _counts_blocks(settings) else {})}


def standard_sizes(settings: Settings) -> dict[str, int] | None:
    """The same in the standard network, if there is one."""
    if not isinstance(settings, Convolutional):
        return None
    return {**widths_of(settings, 1.0), **({BLOCKS: type(settings)().blocks} if _counts_blocks(settings) else {})}


def _counts_blocks(settings: Settings) -> TypeGuard[Residual]:
    """Whether the sizes of a network with other widths include its blocks, as all widths are as at the start."""
    return isinstance(settings, Residual) and (settings.static or settings.strategy in DEEPENING)


def kinds_that_stay(settings: Settings) -> list[str]:
    """The kinds of widths of a transformer that do not grow: the stream, and those without a size in a schedule."""
    if not isinstance(settings, Language):
        return []
    final = {"heads": settings.final_heads, "neurons": settings.final_neurons}
    return ["stream", *(kind for kind, size in final.items() if settings.schedule != "dynamic" and size is None)]


def build_strategy(settings: Settings, steps: int) -> ng.Strategy:
    """The strategy with the schedule, metric and factors of the settings, for a training of `steps` gradient steps.

    Raises UsageError if a setting that is not the default has no effect.
    """
    deepening = DEEPENING if isinstance(settings, Deep) else {}
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
    for name in (NAMES.at, NAMES.hops, NAMES.initial_blocks):
        if name in changed and settings.strategy not in DEEPENING:
            raise _no_effect(name, settings)
    return strategy


def _trigger(settings: Settings, named: ng.Strategy, steps: int) -> Any:
    if settings.schedule == "dynamic":
        return named.trigger
    schedule = {"linear": ng.triggers.Linear, "batched": ng.triggers.Batched}[settings.schedule]
    if isinstance(settings, Language):
        kinds = {"heads": settings.final_heads, "neurons": settings.final_neurons}
        return schedule(steps, {kind: size for kind, size in kinds.items() if size is not None})
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
    if not settings.margin:  # as in the paper
        if isinstance(initialization, ng.initializations.Firefly):
            initialization = replace(initialization, apart=0.0)
        elif isinstance(initialization, ng.initializations.GradMax):
            initialization = replace(initialization, pairs=False)
    return trigger, initialization


def _changed(settings: Settings) -> set[str]:
    return {field.name for field in fields(settings) if getattr(settings, field.name) != field.default}


def _no_effect(name: str, settings: Settings) -> UsageError:
    schedule = f" ({settings.schedule})" if settings.schedule != "dynamic" else ""
    return UsageError(f"--{name.replace('_', '-')} has no effect on {settings.strategy}{schedule}: remove it")


def derived_seed(seed: int, purpose: str) -> int:
    """A seed for one purpose, of 32 bits: torch's generator ignores any further ones."""
    return zlib.crc32(f"{seed} {purpose}".encode())
