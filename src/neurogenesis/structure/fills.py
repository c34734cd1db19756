"""Default values of new neurons: constants, means, or random fan-in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class Fill:
    """How new positions of an axis are filled.

    Args:
        values: a constant, the mean or the root mean square of the existing entries, copies of them, or Xavier-uniform
            vectors scaled to their mean norm.
        zero_at: index in each random vector that is set to zero, for a padding token.
        statistic: whether the tensor holds running statistics, which new neurons start from scratch.
        shift: whether the tensor is added to activations.
    """

    values: Literal["zero", "one", "mean", "rms", "copy", "random"]
    zero_at: int | None = None
    statistic: bool = False
    shift: bool = False


ZERO = Fill("zero")
"""Zeros, as for the columns of a consumer."""
SHIFT = Fill("zero", shift=True)
"""Zeros, as for a tensor that is added to activations."""
ONE = Fill("one")
"""Ones, as for the scale of a norm."""
MEAN = Fill("mean")
"""The mean of the present entries."""
RMS = Fill("rms")
"""The root mean square of the present entries."""
COPY = Fill("copy")
"""Copies of the present entries, one after the other."""
RANDOM = Fill("random")
"""Random vectors, as for the rows of a producer."""


class FanIn(NamedTuple):
    """Norm of random fan-in vectors, and the direction they are balanced against.

    `common` has the shape of one fan-in and holds the strength of each input; see `balanced`.
    """

    length: float
    common: Tensor | None = None


def balanced(new: Tensor, common: Tensor) -> Tensor:
    r"""Remove from vectors w (first axis) all but 1/d of their component along s, the strength of each of d inputs.

    .. math:: w - (1 - 1/d) \frac{w \cdot s}{s \cdot s} s
    """
    flat, s = new.flatten(1), common.flatten()
    square = s @ s
    if len(s) == 1 or not square > 0:
        return new
    along = torch.outer(flat @ s / square, s).mul_(1 - 1 / len(s))
    return torch.sub(flat, along, out=along).reshape(new.shape)


def new_values(
    old: Tensor, axis: int, count: int, fill: Fill, generator: torch.Generator | None, fan_in: FanIn | None = None
) -> Tensor:
    """Values of `count` new positions of an axis; `fan_in` sets the norm and balance of random vectors."""
    rows = old.detach().movedim(axis, 0)
    shape = (count, *rows.shape[1:])
    if fill.values in ("zero", "one") or not (old.is_floating_point() or old.is_complex()):
        one = torch.full((1,) * len(shape), int(fill.values == "one"), dtype=old.dtype, device=old.device)
        return one.expand(shape).movedim(0, axis)  # stores a single number
    rows = rows.to(torch.promote_types(old.dtype, torch.float32))
    if fill.values == "mean":
        new = rows.mean(0, keepdim=True).expand(shape)
    elif fill.values == "rms":
        new = rows.abs().square().mean(0, keepdim=True).sqrt().to(rows.dtype).expand(shape)
    else:
        new = _random_rows(rows, shape, generator, fan_in)
        if fill.zero_at is not None:
            new[:, fill.zero_at] = 0
    return new.to(old.dtype).movedim(0, axis)


def _random_rows(
    rows: Tensor, shape: tuple[int, ...], generator: torch.Generator | None, fan_in: FanIn | None
) -> Tensor:
    device = "cpu" if generator is None else generator.device
    parts = (*shape, 2) if rows.is_complex() else shape
    # In place where possible: there may be thousands of rows.
    noise = torch.rand(parts, generator=generator, device=device).mul_(2).sub_(1)
    noise = (torch.view_as_complex(noise) if rows.is_complex() else noise).to(rows)
    inputs, receptive = rows[0].numel(), rows[0, 0].numel() if rows.ndim > 1 else 1
    noise *= (6 / (inputs + rows.shape[0] * receptive)) ** 0.5
    wanted = rows.reshape(rows.shape[0], -1).norm(dim=1).mean() if fan_in is None else fan_in.length
    if fan_in is not None and fan_in.common is not None:
        noise = balanced(noise, fan_in.common.to(noise))
    if wanted > 0:  # a layer initialized to zero gives no scale: keep Xavier's
        norms = noise.reshape(shape[0], -1).norm(dim=1).clamp_min(torch.finfo(noise.dtype).tiny)
        noise *= (wanted / norms).reshape(-1, *[1] * (len(shape) - 1))
    return noise
