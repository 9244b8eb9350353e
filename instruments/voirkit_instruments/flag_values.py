"""What the values of flags have to be: each function here reads one, or returns what reads one; ValueError says what would be right.

Every run loads this module with the declarations of instruments.
"""

from __future__ import annotations

from voirkit.instrument import resolve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATIONS = "a number with ms, s, m or h (250ms, 30s, 5m, 1.5h), or seconds without a unit"


def whole_number(what: str, advice: str = "", least: int = 0, most: int | None = None) -> Callable[[str], int]:
    """A whole number, from ``least`` to ``most``: ``whole_number("no number of steps", " of at least 1", 1)``."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and least <= int(text) and (most is None or int(text) <= most)):
            raise ValueError(f"{text!r} is {what}; give a whole number{advice}.")
        return int(text)

    return read


def one_of(*words: str) -> Callable[[str], str]:
    """One of some words."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"{text!r} is none of {', '.join(words)}.")
        return text

    return read


def read_by(reference: str) -> Callable[[str], Any]:
    """What a function reads that is imported when the flag is given: ``"package.module:function"``."""
    return lambda text: resolve(reference)(text)


def duration(text: str) -> float:
    """The seconds that a duration stands for: ``30s``, ``5m``, ``1.5h``, ``250ms``, or plain seconds."""
    number = text.strip()
    factor = 1.0
    for unit, worth in UNITS.items():  # "ms" stands before "s" and "m"
        if number.endswith(unit):
            number, factor = number[: -len(unit)].rstrip(), worth
            break
    digits = number.replace(".", "", 1)
    if not (digits.isascii() and digits.isdigit()):  # float() would also take "inf", "1e9" and "1_000"
        raise ValueError(f"{text!r} is no duration; give {_DURATIONS}.")
    value = float(number) * factor
    if value <= 0:
        raise ValueError(f"{text!r} is not longer than nothing; give {_DURATIONS}.")
    return value
