"""How figures are written for people: bytes, numbers and durations. A plain run imports it."""

from __future__ import annotations


def size(bytes_: float) -> str:
    """Bytes as people read them."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if bytes_ < 1000:
            return f"{bytes_:.3g} {unit}"
        bytes_ /= 1000
    return f"{bytes_:.3g} TB"


def figure(value: float) -> str:
    """A number as people read it: three digits that count, thousands apart."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Seconds as people read them, from microseconds to days."""
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1, 1e3, "ms"), (120, 1, "s"), (7200, 1 / 60, "min"), (172800, 1 / 3600, "h")):
        if seconds < limit:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds / 86400:.3g} d"
