"""Figures as people read them: three digits that count, in the unit that fits.

Imports nothing: every run loads it.
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
    """Bytes as people read them."""
    return _in_unit(bytes_, _BYTES)


def duration(seconds: float) -> str:
    """Seconds as people read them, from microseconds to days."""
    return _in_unit(seconds, _SECONDS)


def time_unit(seconds: float) -> tuple[float, str]:
    """What seconds are multiplied by in the unit that fits a duration, and its name."""
    return _unit(seconds, _SECONDS)


def figure(value: float, digits: int = 3) -> str:
    """A number as people read it: thousands apart, at least so many digits that count, and no power
    of ten below 10**15."""
    whole = 10.0 ** (digits - 1) <= abs(_rounded(value, digits)) < _UNREADABLE
    return f"{value:,.0f}" if whole else f"{value:.{digits}g}"


def _in_unit(value: float, units: tuple[tuple[float, float, str], ...]) -> str:
    """A value in the unit that fits it.

    Args:
        units: (limit, what a value is multiplied by, name), ascending.
    """
    factor, name = _unit(value, units)
    return f"{figure(value * factor)} {name}"


def _unit(value: float, units: tuple[tuple[float, float, str], ...]) -> tuple[float, str]:
    """The first unit below whose limit a value is as it is shown: 999.9 µs are 1 ms."""
    magnitude = abs(_rounded(value))
    for limit, factor, name in units:
        if magnitude < limit:
            return factor, name
    return units[-1][1:]


def _rounded(value: float, digits: int = 3) -> float:
    return float(f"{value:.{digits}g}")
