"""Means, standard deviations and ellipses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Statistic:
    """The mean of n values and their sample standard deviation, which is None for a single value."""

    mean: float
    sd: float | None
    n: int

    @property
    def low(self) -> float:
        """One standard deviation below the mean."""
        return self.mean - (self.sd or 0.0)

    @property
    def high(self) -> float:
        """One standard deviation above the mean."""
        return self.mean + (self.sd or 0.0)


def statistic(values: Sequence[float]) -> Statistic | None:
    """Mean and sample standard deviation; None if there are no values.

    Example:
        >>> statistic([1.0, 2.0, 3.0])
        Statistic(mean=2.0, sd=1.0, n=3)
    """
    if not values:
        return None
    mean = math.fsum(values) / len(values)
    return Statistic(mean, math.sqrt(covariance(values, values)) if len(values) > 1 else None, len(values))


def covariance(xs: Sequence[float], ys: Sequence[float]) -> float:
    """The sample covariance of at least two pairs."""
    x, y = math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
    return math.fsum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / (len(xs) - 1)


def ellipse(xs: Sequence[float], ys: Sequence[float], corners: int = 40) -> list[tuple[float, float]]:
    r"""The contour at one standard deviation of the Gaussian with the mean and covariance of the points, closed.

    It is the unit circle mapped by the Cholesky factor of the covariance: a line if there is no variance in one
    direction, and nothing for fewer than two points.
    """
    if len(xs) < 2:
        return []
    x, y = math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
    across = math.sqrt(covariance(xs, xs))
    slope = covariance(xs, ys) / across if across else 0.0
    up = math.sqrt(max(0.0, covariance(ys, ys) - slope**2))
    angles = [2 * math.pi * corner / corners for corner in range(corners + 1)]
    return [(x + across * math.cos(t), y + slope * math.cos(t) + up * math.sin(t)) for t in angles]


def evenly(count: int, limit: int) -> list[int]:
    """At most `limit` of the indices below `count`, evenly spaced, including the first and the last.

    Example:
        >>> evenly(9, 3), evenly(2, 3)
        ([0, 4, 8], [0, 1])
    """
    if count <= limit:
        return list(range(count))
    return [round(index * (count - 1) / (limit - 1)) for index in range(limit)]
