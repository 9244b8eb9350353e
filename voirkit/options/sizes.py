"""Reads sizes as people write them: ``1GB``, ``500 MB``, ``64MiB``, ``1000000``."""

from __future__ import annotations

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30, "TI": 1 << 40}


def size(text: str) -> int:
    """Bytes.  ``GB`` is 10\\ :sup:`9` of them, ``GiB`` is 2\\ :sup:`30`; a number alone is bytes.

    Raises:
        ValueError: It is no size.
    """
    given = text.strip().upper()
    digits = given.rstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    unit = given[len(digits) :].strip()
    try:
        factor = _UNITS[unit.removesuffix("B")]
        found = float(digits) * factor if not digits.isdecimal() else int(digits) * factor
        if not 0 <= found < float("inf"):
            raise ValueError
    except (KeyError, ValueError):
        raise ValueError("not a size, such as 4GB, 500MB or 1000000 (bytes)") from None
    return int(found)
