"""Markers: calls that fail on purpose and show, in a tracer's log, where a phase begins and ends.

A marker is ``access("/vk!forward+", mode)``: ``+`` begins a phase, ``-`` ends it, and a name alone says what a process is
(``/vk!worker 3``). The kernel's own events hold numbers only, so the mode says it too. No file has such a mode, so that the kernel refuses
it before it looks for the file.
"""

from __future__ import annotations

import re

OWN = "voirkit"  # in which voirkit works for itself: nothing of it is the program's
OTHER = "other"  # around all others, from the beginning of tracing to its end
PHASES = (OTHER, OWN, "wait", "fetch", "forward", "backward", "optimizer", "zero_grad", "checkpoint", "transfer", "communication")

_MODE, _KIND, _WORKER = 0x766B0000, 0xFFFF0000, 0x8000  # "vk", and below it twice the phase's number, or a worker's
_TEXT = re.compile(r'"/vk!([^"]*)"')


def path_and_mode(message: str) -> tuple[str, int]:
    """The arguments of ``access`` of a marker: ``forward+``, ``forward-`` or ``worker 3``."""
    if message[:-1] in PHASES:
        return f"/vk!{message}", _MODE + 2 * PHASES.index(message[:-1]) + (message[-1] == "-")
    return f"/vk!{message}", _MODE + _WORKER + int(message.rpartition(" ")[2])


def message_of_text(args: str) -> str | None:
    """What a marker says, from the arguments of an ``access`` as strace prints them; None if it is a call of the program."""
    match = _TEXT.search(args)
    return match[1] if match is not None else None


def message_of_mode(mode: int) -> str | None:
    """What a marker says, from its mode; None if it is a call of the program."""
    number = mode & ~_KIND
    if mode & _KIND != _MODE or mode >> 32:
        return None
    if number & _WORKER:
        return f"worker {number - _WORKER}"
    return PHASES[number // 2] + "+-"[number % 2] if number // 2 < len(PHASES) else None
