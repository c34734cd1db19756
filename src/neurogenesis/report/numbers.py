"""Numbers in print."""

from __future__ import annotations

import math
from collections.abc import Iterable

from .statistics import Statistic

NONE = "—"


def rounded(number: float | None, digits: int = 5) -> float | None:
    """A number with as many significant digits as a figure can show."""
    return None if number is None else float(f"{number:.{digits}g}")


def plus_minus(found: Statistic | None, form: str = ",.0f", scale: float = 1.0) -> str:
    """Mean and standard deviation.

    Example:
        >>> plus_minus(Statistic(0.97853, 0.0012, 5), ".2f", 100)
        '97.85 ± 0.12'
    """
    if found is None:
        return NONE
    deviation = "" if found.sd is None else f" ± {found.sd * scale:{form}}"
    return f"{found.mean * scale:{form}}{deviation}"


def signed(mean: float, error: float | None) -> str:
    """A difference and its standard error.

    Example:
        >>> signed(0.1234, 0.056), signed(-0.5, None), signed(-0.001, None)
        ('+0.12 ± 0.06', '-0.50', '+0.00')
    """
    return f"{round(mean, 2) + 0.0:+.2f}" + ("" if error is None else f" ± {error:.2f}")


def significant(found: Statistic | None, scale: float = 1.0, digits: int = 3) -> str:
    """Mean and standard deviation, with as many decimals as the significant digits of the mean need, at most three.

    Example:
        >>> significant(Statistic(0.0111, 0.00031, 5), 1000)
        '11.1 ± 0.3'
    """
    if found is None or not found.mean:
        return NONE if found is None else "0"
    decimals = min(3, max(0, digits - 1 - math.floor(math.log10(abs(found.mean * scale)))))
    return plus_minus(found, f",.{decimals}f", scale)


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
