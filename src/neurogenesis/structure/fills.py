"""What new neurons hold by default: constants, means, or random fan-in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class Fill:
    """What new positions of an axis hold.

    Args:
        values: constants, the mean of the present entries, or Xavier-uniform vectors scaled to their mean norm.
        zero_at: the entry of each random vector that is zero, as for a padding token.
        statistic: whether they are running statistics, which start anew.
    """

    values: Literal["zero", "one", "mean", "random"]
    zero_at: int | None = None
    statistic: bool = False


ZERO, ONE, MEAN, RANDOM = Fill("zero"), Fill("one"), Fill("mean"), Fill("random")


class FanIn(NamedTuple):
    """What random fan-in is like: its norm, and how strong each input is.

    `common` has the shape of a fan-in and holds the strength of each input; new fan-ins are balanced against it.
    """

    length: float
    common: Tensor | None = None


def balanced(new: Tensor, common: Tensor) -> Tensor:
    r"""Vectors w (first axis) without what makes them respond to all inputs alike, all but 1/d of it.

    .. math:: w - (1 - 1/d) \frac{w \cdot s}{s \cdot s} s
    """
    flat, s = new.flatten(1), common.flatten()
    square = s @ s
    if len(s) == 1 or not square > 0:
        return new
    return (flat - (1 - 1 / len(s)) * torch.outer(flat @ s / square, s)).reshape(new.shape)


def new_values(
    old: Tensor, axis: int, count: int, fill: Fill, generator: torch.Generator | None, fan_in: FanIn | None = None
) -> Tensor:
    """What `count` new positions of an axis hold; `fan_in` says what random vectors are like, if given."""
    rows = old.detach().movedim(axis, 0)
    shape = (count, *rows.shape[1:])
    if fill.values in ("zero", "one") or not (old.is_floating_point() or old.is_complex()):
        one = torch.full((1,) * len(shape), int(fill.values == "one"), dtype=old.dtype, device=old.device)
        return one.expand(shape).movedim(0, axis)  # a single number in memory
    rows = rows.to(torch.promote_types(old.dtype, torch.float32))
    if fill.values == "mean":
        new = rows.mean(0, keepdim=True).expand(shape)
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
    noise = torch.rand(parts, generator=generator, device=device) * 2 - 1
    noise = (torch.view_as_complex(noise) if rows.is_complex() else noise).to(rows)
    inputs, receptive = rows[0].numel(), rows[0, 0].numel() if rows.ndim > 1 else 1
    noise *= (6 / (inputs + rows.shape[0] * receptive)) ** 0.5
    wanted = rows.reshape(rows.shape[0], -1).norm(dim=1).mean() if fan_in is None else fan_in.length
    if fan_in is not None and fan_in.common is not None:
        noise = balanced(noise, fan_in.common.to(noise))
    if wanted > 0:  # a layer that starts at zero gives no scale: Xavier's stands
        norms = noise.reshape(shape[0], -1).norm(dim=1).clamp_min(torch.finfo(noise.dtype).tiny)
        noise *= (wanted / norms).reshape(-1, *[1] * (len(shape) - 1))
    return noise
