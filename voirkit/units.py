"""Formats numbers, sizes and durations for people: three significant digits, in a fitting unit.

This module imports nothing, since every run loads it.
"""

from __future__ import annotations

_BYTES = (
    (1e3, 1.0, "bytes"),
    (1e6, 1e-3, "kB"),
    (1e9, 1e-6, "MB"),
    (1e12, 1e-9, "GB"),
    (float("inf"), 1e-12, "TB"),
)
_SECONDS = (
    (1e-3, 1e6, "µs"),
    (1, 1e3, "ms"),
    (120, 1, "s"),
    (7200, 1 / 60, "min"),
    (172800, 1 / 3600, "h"),
    (float("inf"), 1 / 86400, "d"),
)
_UNREADABLE = 1e15


def size(bytes_: float) -> str:
    """Format a number of bytes, such as ``1.5 GB``."""
    return _in_unit(bytes_, _BYTES)


def duration(seconds: float) -> str:
    """Format a duration given in seconds, in a unit from microseconds to days."""
    return _in_unit(seconds, _SECONDS)


def time_unit(seconds: float) -> tuple[float, str]:
    """Return (factor, unit name) for a duration given in seconds. The factor converts seconds into
    the unit in which the duration is best shown."""
    return _unit(seconds, _SECONDS)


def figure(value: float, digits: int = 3) -> str:
    """Format a number with at least ``digits`` significant digits. Numbers with more integer digits
    are shown in full, with thousands separators, up to 10**15."""
    whole = 10.0 ** (digits - 1) <= abs(_rounded(value, digits)) < _UNREADABLE
    return f"{value:,.0f}" if whole else f"{value:.{digits}g}"


def _in_unit(value: float, units: tuple[tuple[float, float, str], ...]) -> str:
    """Format a value in the unit that fits it.

    Args:
        units: (limit, factor, name) of each unit, with ascending limits. The unit applies to values
            below its limit; the factor converts a value into it.
    """
    factor, name = _unit(value, units)
    return f"{figure(value * factor)} {name}"


def _unit(value: float, units: tuple[tuple[float, float, str], ...]) -> tuple[float, str]:
    """Return (factor, name) of the first unit whose limit is above the rounded value. Rounding to
    three digits comes first, so that 999.9 µs is shown as 1 ms."""
    magnitude = abs(_rounded(value))
    for limit, factor, name in units:
        if magnitude < limit:
            return factor, name
    return units[-1][1:]


def _rounded(value: float, digits: int = 3) -> float:
    return float(f"{value:.{digits}g}")
