"""Statistics, and numbers in print."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pandas as pd

NONE = "—"


def rounded(number: float, digits: int = 5) -> float:
    """A number with as many significant digits as a figure can show."""
    return float(f"{number:.{digits}g}")


def plus_minus(values: Iterable[float], form: str = ",.0f", scale: float = 1.0) -> str:
    """The mean of values and their sample standard deviation, if there are several.

    Example:
        >>> plus_minus([0.9770, 0.9785, 0.9794], ".2f", 100), plus_minus([3.0]), plus_minus([])
        ('97.83 ± 0.12', '3', '—')
    """
    series = scale * pd.Series(values, dtype=float)
    deviation = f" ± {series.std():{form}}" if len(series) > 1 else ""
    return f"{series.mean():{form}}{deviation}" if len(series) else NONE


def significant(values: Iterable[float], scale: float = 1.0, digits: int = 3) -> str:
    """The same, with as many decimals as the significant digits of the mean need, at most three.

    Example:
        >>> significant([0.0108, 0.0114], 1000)
        '11.1 ± 0.4'
    """
    mean = scale * pd.Series(values, dtype=float).mean()
    if not mean:
        return "0"
    decimals = 0 if math.isnan(mean) else min(3, max(0, digits - 1 - math.floor(math.log10(abs(mean)))))
    return plus_minus(values, f",.{decimals}f", scale)


def signed(mean: float, error: float = math.nan) -> str:
    """A difference and its standard error, if that is known.

    Example:
        >>> signed(0.1234, 0.056), signed(-0.5), signed(-0.001)
        ('+0.12 ± 0.06', '-0.50', '+0.00')
    """
    return f"{round(mean, 2) + 0.0:+.2f}" + ("" if math.isnan(error) else f" ± {error:.2f}")


def needs_log_axis(values: Iterable[float]) -> bool:
    """Whether values are positive and span more than a factor of ten."""
    numbers = list(values)
    return min(numbers) > 0 and max(numbers) > 10 * min(numbers)


def time_unit(seconds: float) -> tuple[str, float]:
    """The unit for times up to this many seconds, and its length in seconds.

    Example:
        >>> time_unit(1200)
        ('min', 60.0)
    """
    return ("s", 1.0) if seconds < 300 else ("min", 60.0) if seconds < 5 * 3600 else ("h", 3600.0)


def ellipse(points: pd.DataFrame, corners: int = 40) -> pd.DataFrame:
    r"""The contour at one standard deviation of the Gaussian with the mean and covariance of the points, closed.

    It is the unit circle mapped by the Cholesky factor of the covariance: a line if there is no variance in one
    direction, and nothing for fewer than two points.
    """
    if len(points) < 2:
        return points[:0]
    (xx, xy), (_, yy) = points.cov().to_numpy()
    across = math.sqrt(xx)
    slope = xy / across if across else 0.0
    up = math.sqrt(max(0.0, yy - slope**2))
    angles = np.linspace(0, 2 * math.pi, corners + 1)
    offsets = np.column_stack([across * np.cos(angles), slope * np.cos(angles) + up * np.sin(angles)])
    return pd.DataFrame(points.mean().to_numpy() + offsets, columns=points.columns)


def evenly(count: int, limit: int) -> list[int]:
    """At most `limit` of the indices below `count`, evenly spaced, including the first and the last.

    Example:
        >>> evenly(9, 3), evenly(2, 3)
        ([0, 4, 8], [0, 1])
    """
    if count <= limit:
        return list(range(count))
    return [round(index * (count - 1) / (limit - 1)) for index in range(limit)]
