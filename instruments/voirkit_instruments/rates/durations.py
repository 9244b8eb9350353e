"""Durations as one writes them: ``30s``, ``5m``, ``1.5h``, ``250ms``, or plain seconds."""

from __future__ import annotations

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
EXAMPLES = "a number with ms, s, m or h (250ms, 30s, 5m, 1.5h), or seconds without a unit"


def seconds(text: str) -> float:
    """The seconds that a duration stands for.

    Raises:
        ValueError: It is none, or it is not longer than nothing; the message says what would be right.
    """
    number = text.strip()
    factor = 1.0
    for unit, worth in UNITS.items():  # "ms" stands before "s" and "m"
        if number.endswith(unit):
            number, factor = number[: -len(unit)].rstrip(), worth
            break
    digits = number.replace(".", "", 1)
    if not (digits.isascii() and digits.isdigit()):  # float() would also take "inf", "1e9" and "1_000"
        raise ValueError(f"{text!r} is no duration; give {EXAMPLES}.")
    value = float(number) * factor
    if value <= 0:
        raise ValueError(f"{text!r} is not longer than nothing; give {EXAMPLES}.")
    return value
