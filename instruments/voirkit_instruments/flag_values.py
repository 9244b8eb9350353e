"""What the values of flags have to be: each function reads one, and raises ValueError with what would be right.

Every run loads this module with ``flags``; what only one flag needs is imported when it is given.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from voirkit_instruments.torch_profile.record_steps import Window

# What --syscalls records: every call's count; with arguments; those on files, with arguments; what this process can count by itself.
SYSCALLS = ("full", "files", "counts", "counters")


def what_if(text: str) -> tuple[str, str | None]:
    from voirkit_instruments.what_if.record_changes import parse_change

    return parse_change(text)


def pairs(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 5 <= int(text) <= 1000):
        raise ValueError(
            f"{text!r} is no number of pairs; give a whole number of at least 5: with fewer, chance alone is on one side too often."
        )
    return int(text)


def positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ValueError(f"{text!r} is not a number of rates; give a whole number of at least 1.")
    return int(text)


def parameters_of(text: str) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    if not words or not set(words) <= {"buffers", "state"}:
        raise ValueError(f"{text!r} is not known; give buffers, state, or both with a comma between.")
    return words


def every(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= 1_000_000):
        raise ValueError(f"{text!r} is no number of steps; give a whole number of at least 1.")
    return int(text)


def whole(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text!r} is no number of steps; give a whole number.")
    return int(text)


def steps(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) >= 8):
        raise ValueError(f"{text!r} is no number of steps to measure; give a whole number of at least 8.")
    return int(text)


def setting(text: str) -> dict[str, int]:
    from voirkit_instruments.loader_sweep.record_setting import read

    return read(text)


def syscalls(text: str) -> str:
    if text not in SYSCALLS:
        raise ValueError(f"{text!r} is none of {', '.join(SYSCALLS)}.")
    return text


def window(text: str) -> Window:
    from voirkit_instruments.torch_profile.record_steps import read

    return read(text)


def memory(text: str) -> str:
    if text not in ("rss", "tracemalloc"):
        raise ValueError(f"{text!r} is not known; give tracemalloc, or nothing.")
    return text


def hertz(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= 20_000):
        raise ValueError(f"{text!r} is no rate; give a whole number of samples a second, at most 20000.")
    return int(text)


def stacks(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= 1000):
        raise ValueError(f"{text!r} is no rate; give a whole number of stacks a second, at most 1000.")
    return int(text)


def duration(text: str) -> float:
    from voirkit_instruments.rates.durations import seconds

    return seconds(text)


def address(text: str) -> tuple[str, int]:
    """``9090`` or ``0.0.0.0:9090`` as (host, port); this machine alone unless a host is given."""
    host, colon, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536) or (colon and not host):
        raise ValueError(f"{text!r} is no port; give 9090, or 0.0.0.0:9090 for all that reach this machine.")
    return host.strip("[]") or "127.0.0.1", int(port)


def is_script_behind_calls(word: str, following: Sequence[str]) -> bool:
    from voirkit_instruments.calls.record_modules import is_script

    return is_script(word, following)
